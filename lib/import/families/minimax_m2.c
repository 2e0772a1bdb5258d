/* MiniMax-M2: tensor names of Mixtral, sigmoid router with correction, part of each head rotated.
 */
#include "lib/import/family.h"

static void start(struct clb_arch *a)
{
    a->rope = CLB_ROPE_HALF;
    a->router = CLB_ROUTER_SIGMOID;
    a->router_correction = true;
    a->topk_normalise = true;
    a->qk_norm = CLB_QK_NORM_FULL;
}

static const struct clb_family_key keys[] = {
    { "intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(expert_size), true, 1, 1 << 24 },
    { "rotary_dim", NULL, CLB_KEY_U32, CLB_KEY_AT(rope_dim), false, 2, CLB_MAX_ROPE },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

static const struct clb_family_tensor tensors[] = {
    { "model.layers.#.block_sparse_moe.gate.weight", CLB_ROUTER, 0 },
    { "model.layers.#.block_sparse_moe.e_score_correction_bias", CLB_ROUTER_CORRECTION, 0 },
    { "model.layers.#.block_sparse_moe.experts.#.w1.weight", CLB_FOR_EXPERT + CLB_GATE, 0 },
    { "model.layers.#.block_sparse_moe.experts.#.w3.weight", CLB_FOR_EXPERT + CLB_UP, 0 },
    { "model.layers.#.block_sparse_moe.experts.#.w2.weight", CLB_FOR_EXPERT + CLB_DOWN, 0 },
    { NULL, 0, 0 },
};

static bool derive(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err)
{
    uint32_t kind[CLB_MAX_LAYERS];

    (void)notes;
    clb_setting_no_effect(config, "use_mtp"); /* predicts further tokens */
    for (uint32_t l = 0; l < a->n_layer; l++)
        kind[l] = 1;
    if (!clb_family_per_layer(config, "attn_type_list", a, 1, 1, kind, err))
        return false;
    return clb_family_word(config, "scoring_func", "sigmoid", err) &&
           clb_family_word(config, "qk_norm_type", "per_layer", err) &&
           clb_family_flag(config, "use_qk_norm", true, err) &&
           clb_family_flag(config, "use_routing_bias", true, err) &&
           clb_family_number(config, "mtp_transformer_layers", 1, err) &&
           clb_family_number(config, "shared_intermediate_size", 0, err);
}

const struct clb_family clb_family_minimax_m2 = {
    .model_type = "minimax_m2",
    .default_theta = 5e6,
    .partial_rotary = true,
    .further_layers = "num_mtp_modules",
    .start = start,
    .keys = keys,
    .tensors = tensors,
    .derive = derive,
};
