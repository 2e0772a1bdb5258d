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

/* With use_sliding_window, layer_types says which layers have the window; without it every other
 * one below max_window_layers has, from the first on. */
static bool read_windows(struct clb_settings *config, struct clb_arch *a, struct clb_err *err)
{
    const struct clb_setting *types = clb_setting_find(config, "layer_types");
    uint32_t window = 4096, below = 28;
    bool use = false, sliding[CLB_MAX_LAYERS] = { false }, found;

    if (!clb_setting_bool(config, "use_sliding_window", &use, err) ||
        !clb_setting_u32(config, "sliding_window", 1, 1 << 30, &window, err) ||
        !clb_setting_u32(config, "max_window_layers", 0, 1 << 20, &below, err) ||
        !clb_family_layer_types(config, a, sliding, &found, err))
        return false;
    if (!use || found)
        clb_setting_no_effect(config, "max_window_layers");
    if (!use)
        clb_setting_no_effect(config, "sliding_window");
    for (uint32_t l = 0; l < a->n_layer; l++) {
        if (!found)
            sliding[l] = use && l % 2 == 0 && l < below;
        if (sliding[l] && !use)
            return clb_setting_fail(config, types, err,
                                    "layer %u slides, but 'use_sliding_window' is not true", l);
        a->window[l] = sliding[l] ? window : 0;
    }
    return true;
}

static bool derive(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err)
{
    (void)notes;
    return read_windows(config, a, err) && clb_family_sparse_step(config, a, err);
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
