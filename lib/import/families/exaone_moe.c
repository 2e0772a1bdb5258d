/* EXAONE MoE: sliding layers with positions, full ones without; experts as in DeepSeek-V3. */
#include "lib/import/family.h"

static void start(struct clb_arch *a)
{
    a->rope = CLB_ROPE_HALF;
    a->router = CLB_ROUTER_SIGMOID;
    a->router_correction = true;
    a->topk_normalise = true;
    a->routed_scale = 2.5f;
    a->qk_norm = CLB_QK_NORM_HEAD;
}

static const struct clb_family_key keys[] = {
    { "moe_intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(expert_size), true, 1, 1 << 24 },
    { "intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(dense_size), true, 1, 1 << 24 },
    { "norm_topk_prob", NULL, CLB_KEY_BOOL, CLB_KEY_AT(topk_normalise), false, 0, 0 },
    { "routed_scaling_factor", NULL, CLB_KEY_F32, CLB_KEY_AT(routed_scale), false, 1e-6, 1e6 },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

static const struct clb_family_tensor tensors[] = {
    { "model.layers.#.mlp.e_score_correction_bias", CLB_ROUTER_CORRECTION, 0 },
    { "mtp.*", CLB_FOR_NOTHING, 0 }, /* predicts further tokens */
    { NULL, 0, 0 },
};

/* A window that is null; one that is not there is another, by the reference's default. */
static bool is_null(const struct clb_settings *config, const char *key)
{
    for (uint32_t i = 0; i < config->n; i++)
        if (!strcmp(config->setting[i].as, key))
            return config->setting[i].type == CLB_JSON_NULL;
    return false;
}

/* Without a window every layer is full and has positions. */
static bool read_windows(struct clb_settings *config, struct clb_arch *a, struct clb_err *err)
{
    uint32_t window = 0;
    bool sliding[CLB_MAX_LAYERS] = { false }, found, slides = false;

    clb_setting_no_effect(config, "sliding_window_pattern"); /* layer_types says the same */
    if (!clb_setting_u32(config, "sliding_window", 1, 1 << 30, &window, err) ||
        !clb_family_layer_types(config, a, sliding, &found, err))
        return false;
    if (!found && window)
        return clb_setting_missing(config, "layer_types", err);
    for (uint32_t l = 0; l < a->n_layer; l++)
        slides |= sliding[l];
    if (!window && (slides || !is_null(config, "sliding_window")))
        return clb_setting_missing(config, "sliding_window", err);
    for (uint32_t l = 0; l < a->n_layer && window; l++) {
        a->window[l] = sliding[l] ? window : 0;
        a->no_rope[l] = !sliding[l];
    }
    return true;
}

/* is_moe_layer lists them; else the first ones are dense. */
static bool read_sparse_layers(struct clb_settings *config, struct clb_arch *a, struct clb_err *err)
{
    bool sparse[CLB_MAX_LAYERS];
    uint32_t n = 0;

    if (!clb_setting_flags(config, "is_moe_layer", sparse, CLB_MAX_LAYERS, &n, err) ||
        !clb_family_first_dense(config, "first_k_dense_replace", a, err))
        return false;
    if (n && n != a->n_layer)
        return clb_setting_fail(config, clb_setting_find(config, "is_moe_layer"), err,
                                "has %u entries, but there are %u layers", n, a->n_layer);
    for (uint32_t l = 0; l < n; l++)
        if (sparse[l] != (a->layer_experts[l] > 0))
            return clb_setting_fail(config, clb_setting_find(config, "is_moe_layer"), err,
                                    "and 'first_k_dense_replace' disagree about layer %u", l);
    return true;
}

static bool derive(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err)
{
    (void)notes;
    return clb_family_word(config, "scoring_func", "sigmoid", err) &&
           clb_family_groups(config, a, CLB_GROUP_TOP2_SUM, err) &&
           clb_family_shared(config, "num_shared_experts", a, err) &&
           read_windows(config, a, err) && read_sparse_layers(config, a, err);
}

const struct clb_family clb_family_exaone_moe = {
    .model_type = "exaone_moe",
    .further_layers = "num_nextn_predict_layers",
    .start = start,
    .keys = keys,
    .mlp = clb_family_mlp,
    .tensors = tensors,
    .derive = derive,
};
