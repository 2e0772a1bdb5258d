/* ERNIE 4.5: interleaved rotation, probabilities corrected for the choice only. */
#include "lib/import/family.h"

static void start(struct clb_arch *a)
{
    a->rope = CLB_ROPE_INTERLEAVED;
    a->router = CLB_ROUTER_SOFTMAX_TOPK;
    a->router_correction = true;
    a->topk_normalise = true;
    a->topk_normalise_min = 1e-12f;
    a->tied_embeddings = true;
}

static const struct clb_family_key keys[] = {
    { "moe_intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(expert_size), true, 1, 1 << 24 },
    { "intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(dense_size), true, 1, 1 << 24 },
    { "moe_norm_min", NULL, CLB_KEY_F32, CLB_KEY_AT(topk_normalise_min), false, 1e-30, 1 },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

static const struct clb_family_tensor tensors[] = {
    { "model.layers.#.mlp.moe_statics.e_score_correction_bias", CLB_ROUTER_CORRECTION, 0 },
    /* these predict further tokens */
    { "model.mtp_block.*", CLB_FOR_NOTHING, 0 },
    { "model.mtp_emb_norm.*", CLB_FOR_NOTHING, 0 },
    { "model.mtp_hidden_norm.*", CLB_FOR_NOTHING, 0 },
    { "model.mtp_linear_proj.*", CLB_FOR_NOTHING, 0 },
    { NULL, 0, 0 },
};

/* Sparse are layers from the start index to the end index (inclusive) whose number, counted from 1,
 * is a multiple of the interval. */
static bool read_sparse_layers(struct clb_settings *config, struct clb_arch *a, struct clb_err *err)
{
    uint32_t start_index = 1, end_index = INT32_MAX, interval = 1;
    const struct clb_setting *end = clb_setting_find(config, "moe_layer_end_index");

    if (!clb_setting_u32(config, "moe_layer_start_index", 0, CLB_MAX_LAYERS, &start_index, err) ||
        !clb_setting_u32(config, "moe_layer_interval", 1, CLB_MAX_LAYERS, &interval, err) ||
        (end && !clb_str_is(end->raw, "-1") &&
         !clb_setting_u32(config, "moe_layer_end_index", 0, CLB_MAX_LAYERS, &end_index, err)))
        return false;
    for (uint32_t l = 0; l < a->n_layer; l++)
        if (l < start_index || l > end_index || (l + 1) % interval)
            a->layer_experts[l] = 0;
    clb_family_dense_size(a);
    return true;
}

static bool derive(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err)
{
    (void)notes;
    clb_setting_no_effect(config, "moe_capacity");
    clb_setting_no_effect(config, "num_nextn_predict_layers"); /* further tokens */
    return clb_family_flag(config, "use_bias", false, err) &&
           clb_family_flag(config, "moe_use_aux_free", true, err) &&
           clb_family_word(config, "moe_gate", "topk", err) &&
           clb_family_shared(config, "moe_num_shared_experts", a, err) &&
           read_sparse_layers(config, a, err);
}

const struct clb_family clb_family_ernie4_5_moe = {
    .model_type = "ernie4_5_moe",
    .default_theta = 5e5,
    .start = start,
    .keys = keys,
    .mlp = clb_family_mlp,
    .tensors = tensors,
    .derive = derive,
};
