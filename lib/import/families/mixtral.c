/* Mixtral 8x7B, 8x22B and relatives: softmax over all experts, the chosen ones renormalised. */
#include "lib/import/family.h"

static void start(struct clb_arch *a)
{
    a->rope = CLB_ROPE_HALF;
    a->router = CLB_ROUTER_SOFTMAX_TOPK;
    a->topk_normalise = true;
}

static const struct clb_family_key keys[] = {
    { "intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(expert_size), true, 1, 1 << 24 },
    { "sliding_window", NULL, CLB_KEY_U32, CLB_KEY_AT(window[0]), false, 1, 1 << 30 },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

static const struct clb_family_tensor tensors[] = {
    { "model.layers.#.block_sparse_moe.gate.weight", CLB_ROUTER, 0 },
    { "model.layers.#.block_sparse_moe.experts.#.w1.weight", CLB_FOR_EXPERT + CLB_GATE, 0 },
    { "model.layers.#.block_sparse_moe.experts.#.w3.weight", CLB_FOR_EXPERT + CLB_UP, 0 },
    { "model.layers.#.block_sparse_moe.experts.#.w2.weight", CLB_FOR_EXPERT + CLB_DOWN, 0 },
    { NULL, 0, 0 },
};

/* The window is one for all layers. */
static bool derive(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err)
{
    (void)config, (void)notes, (void)err;
    for (uint32_t l = 1; l < a->n_layer; l++)
        a->window[l] = a->window[0];
    return true;
}

const struct clb_family clb_family_mixtral = {
    .model_type = "mixtral",
    .default_theta = 1e6,
    .start = start,
    .keys = keys,
    .tensors = tensors,
    .derive = derive,
};
