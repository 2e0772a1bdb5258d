/* Hunyuan-A13B: norms of q and k behind the rotation, lists with a value for each layer. */
#include "lib/import/family.h"

static void start(struct clb_arch *a)
{
    a->rope = CLB_ROPE_HALF;
    a->qk_norm = CLB_QK_NORM_HEAD_AFTER_ROPE;
    a->router = CLB_ROUTER_SOFTMAX_TOPK;
    a->topk_normalise = true;
}

static const struct clb_family_key keys[] = {
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(q_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(k_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(v_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(o_bias), false, 0, 0 },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

static const struct clb_family_tensor tensors[] = {
    { "model.layers.#.self_attn.query_layernorm.weight", CLB_Q_NORM, 0 },
    { "model.layers.#.self_attn.key_layernorm.weight", CLB_K_NORM, 0 },
    { "model.layers.#.mlp.gate.wg.weight", CLB_ROUTER, 0 },
    { "model.layers.#.mlp.shared_mlp.gate_proj.weight", CLB_SHARED_GATE_PROJ, 0 },
    { "model.layers.#.mlp.shared_mlp.up_proj.weight", CLB_SHARED_UP, 0 },
    { "model.layers.#.mlp.shared_mlp.down_proj.weight", CLB_SHARED_DOWN, 0 },
    { NULL, 0, 0 },
};

/* The value that all layers share. */
static bool uniform(struct clb_settings *config, const struct clb_arch *a, const char *key,
                    const uint32_t *value, struct clb_err *err)
{
    for (uint32_t l = 1; l < a->n_layer; l++)
        if (value[l] != value[0])
            return clb_setting_fail(config, clb_setting_find(config, key), err,
                                    "is %u for layer 0, but %u for layer %u; one width is known",
                                    value[0], value[l], l);
    return true;
}

static bool read_widths(struct clb_settings *config, struct clb_arch *a, struct clb_err *err)
{
    uint32_t plain = 0, size[CLB_MAX_LAYERS], count[CLB_MAX_LAYERS];
    bool mixed = true;

    if (!clb_setting_u32(config, "intermediate_size", 1, 1 << 24, &plain, err))
        return false;
    if (!plain)
        return clb_setting_missing(config, "intermediate_size", err);
    for (uint32_t l = 0; l < a->n_layer; l++) {
        size[l] = plain;
        count[l] = 1;
    }
    if (!clb_family_per_layer(config, "moe_intermediate_size", a, 1, 1 << 24, size, err) ||
        !clb_family_per_layer(config, "num_shared_expert", a, 0, 64, count, err) ||
        !uniform(config, a, "moe_intermediate_size", size, err) ||
        !uniform(config, a, "num_shared_expert", count, err) ||
        !clb_setting_bool(config, "use_mixed_mlp_moe", &mixed, err))
        return false;
    a->expert_size = size[0];
    a->shared_size = mixed ? plain * count[0] : 0;
    return true;
}

static bool read_choices(struct clb_settings *config, struct clb_arch *a, struct clb_err *err)
{
    uint32_t top_k[CLB_MAX_LAYERS];

    for (uint32_t l = 0; l < a->n_layer; l++)
        top_k[l] = a->top_k;
    if (!clb_family_per_layer(config, "moe_topk", a, 1, CLB_MAX_TOP_K, top_k, err))
        return false;
    for (uint32_t l = 0; l < a->n_layer; l++)
        a->top_k = top_k[l] > a->top_k ? top_k[l] : a->top_k;
    for (uint32_t l = 0; l < a->n_layer; l++)
        a->layer_top_k[l] = top_k[l] == a->top_k ? 0 : top_k[l];
    return true;
}

/* Published configurations speak of images, of classification, of ids, and of features that are
 * switched off. */
static bool read_rest(struct clb_settings *config, const struct clb_arch *a, struct clb_err *err)
{
    static const char *const nothing[] = {
        "norm_topk_prob", /* the reference always does */
        "cla_share_factor", "dense_list",     "class_num",      "pool_type",     "num_media_embeds",
        "org_vocab_size",   "eod_token_id",   "pad_id",         "im_start_id",   "im_end_id",
        "im_newline_id",    "image_token_id", "text_start_id",  "text_end_id",   "video_start_id",
        "video_end_id",     "mask_init_id",
    };
    double scale = 1;

    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++)
        clb_setting_no_effect(config, nothing[i]);
    if (!clb_setting_f64(config, "routed_scaling_factor", 0, 1e6, &scale, err))
        return false;
    if (scale < 1 || scale > 1)
        return clb_setting_fail(config, clb_setting_find(config, "routed_scaling_factor"), err,
                                "is %g; only 1 is known", scale);
    return clb_family_word(config, "norm_type", "rms", err) &&
           clb_family_number(config, "attention_head_dim", a->head_dim, err) &&
           clb_family_flag(config, "use_rotary_pos_emb", true, err);
}

static bool derive(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err)
{
    (void)notes;
    return read_rest(config, a, err) && clb_family_flag(config, "use_cla", false, err) &&
           clb_family_flag(config, "mlp_bias", false, err) &&
           clb_family_flag(config, "use_qk_norm", true, err) &&
           clb_family_flag(config, "moe_drop_tokens", false, err) &&
           clb_family_number(config, "moe_layer_num_skipped", 0, err) &&
           read_widths(config, a, err) && read_choices(config, a, err);
}

const struct clb_family clb_family_hunyuan_v1_moe = {
    .model_type = "hunyuan_v1_moe",
    .default_theta = 1e4,
    .start = start,
    .keys = keys,
    .mlp = clb_family_mlp,
    .tensors = tensors,
    .derive = derive,
};
