/* Qwen1.5-MoE and Qwen2-MoE: a shared expert behind a gate of its own. */
#include "lib/import/family.h"

static void start(struct clb_arch *a)
{
    a->rope = CLB_ROPE_HALF;
    a->q_bias = a->k_bias = a->v_bias = true;
    a->router = CLB_ROUTER_SOFTMAX_TOPK;
    a->shared_gate = true;
}

static const struct clb_family_key keys[] = {
    { "moe_intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(expert_size), true, 1, 1 << 24 },
    { "intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(dense_size), true, 1, 1 << 24 },
    { "shared_expert_intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(shared_size), true, 1,
      1 << 24 },
    { "norm_topk_prob", NULL, CLB_KEY_BOOL, CLB_KEY_AT(topk_normalise), false, 0, 0 },
    { "qkv_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(q_bias), false, 0, 0 },
    { "qkv_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(k_bias), false, 0, 0 },
    { "qkv_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(v_bias), false, 0, 0 },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

static const struct clb_family_tensor tensors[] = {
    { "model.layers.#.mlp.shared_expert.gate_proj.weight", CLB_SHARED_GATE_PROJ, 0 },
    { "model.layers.#.mlp.shared_expert.up_proj.weight", CLB_SHARED_UP, 0 },
    { "model.layers.#.mlp.shared_expert.down_proj.weight", CLB_SHARED_DOWN, 0 },
    { "model.layers.#.mlp.shared_expert_gate.weight", CLB_SHARED_GATE, 0 },
    { NULL, 0, 0 },
};

static bool derive(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err)
{
    (void)notes;
    clb_setting_no_effect(config, "sliding_window");
    clb_setting_no_effect(config, "max_window_layers");
    return clb_family_flag(config, "use_sliding_window", false, err) &&
           clb_family_sparse_step(config, a, err);
}

const struct clb_family clb_family_qwen2_moe = {
    .model_type = "qwen2_moe",
    .default_theta = 1e4,
    .start = start,
    .keys = keys,
    .mlp = clb_family_mlp,
    .tensors = tensors,
    .derive = derive,
};
