/* Phi-3.5-MoE: SparseMixer routing, LayerNorm, biases. */
#include "lib/import/family.h"

static void start(struct clb_arch *a)
{
    a->rope = CLB_ROPE_HALF;
    a->norm = CLB_NORM_LAYER;
    a->router = CLB_ROUTER_SPARSEMIXER;
    a->router_jitter = 0.01f;
    a->top_k = 2;
}

static const struct clb_family_key keys[] = {
    { "intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(expert_size), true, 1, 1 << 24 },
    { "router_jitter_noise", NULL, CLB_KEY_F32, CLB_KEY_AT(router_jitter), false, 0, 1 },
    { "sliding_window", NULL, CLB_KEY_U32, CLB_KEY_AT(window[0]), false, 1, 1 << 30 },
    { "lm_head_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(output_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(q_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(k_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(v_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(o_bias), false, 0, 0 },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

static const struct clb_family_tensor tensors[] = {
    { "model.layers.#.input_layernorm.bias", CLB_ATTN_NORM_BIAS, 0 },
    { "model.layers.#.post_attention_layernorm.bias", CLB_MLP_NORM_BIAS, 0 },
    { "model.norm.bias", CLB_FINAL_NORM_BIAS, 0 },
    { "lm_head.bias", CLB_OUTPUT_BIAS, 0 },
    { "model.layers.#.block_sparse_moe.gate.weight", CLB_ROUTER, 0 },
    { "model.layers.#.block_sparse_moe.experts.#.w1.weight", CLB_FOR_EXPERT + CLB_GATE, 0 },
    { "model.layers.#.block_sparse_moe.experts.#.w3.weight", CLB_FOR_EXPERT + CLB_UP, 0 },
    { "model.layers.#.block_sparse_moe.experts.#.w2.weight", CLB_FOR_EXPERT + CLB_DOWN, 0 },
    { NULL, 0, 0 },
};

static bool derive(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err)
{
    (void)notes;
    clb_setting_no_effect(config, "input_jitter_noise"); /* training only */
    for (uint32_t l = 1; l < a->n_layer; l++)
        a->window[l] = a->window[0];
    return clb_family_number(config, "num_experts_per_tok", 2, err);
}

const struct clb_family clb_family_phimoe = {
    .model_type = "phimoe",
    .default_theta = 1e6,
    .start = start,
    .keys = keys,
    .tensors = tensors,
    .derive = derive,
};
