/* Qwen3-MoE: norms of q and k per head, dense layers among the sparse ones. */
#include "lib/import/family.h"

static void start(struct clb_arch *a)
{
    a->rope = CLB_ROPE_HALF;
    a->qk_norm = CLB_QK_NORM_HEAD;
    a->router = CLB_ROUTER_SOFTMAX_TOPK;
}

static const struct clb_family_key keys[] = {
    { "moe_intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(expert_size), true, 1, 1 << 24 },
    { "intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(dense_size), true, 1, 1 << 24 },
    { "norm_topk_prob", NULL, CLB_KEY_BOOL, CLB_KEY_AT(topk_normalise), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(q_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(k_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(v_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(o_bias), false, 0, 0 },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

/* With use_sliding_window the reference gives every layer the window, whatever max_window_layers
 * says; without it neither key means anything. */
static bool read_window(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                        struct clb_err *err)
{
    const struct clb_setting *layers = clb_setting_find(config, "max_window_layers");
    uint32_t window = 0;
    bool use = false;

    clb_setting_no_effect(config, "max_window_layers");
    clb_setting_no_effect(config, "sliding_window");
    if (!clb_setting_bool(config, "use_sliding_window", &use, err))
        return false;
    if (!use)
        return true;
    if (!clb_setting_u32(config, "sliding_window", 1, 1 << 30, &window, err))
        return false;
    if (!window)
        return clb_setting_missing(config, "sliding_window", err);
    for (uint32_t l = 0; l < a->n_layer; l++)
        a->window[l] = window;
    if (layers)
        clb_note(notes, "'max_window_layers' has no effect: every layer has the sliding window");
    return true;
}

static bool derive(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err)
{
    return clb_family_sparse_step(config, a, err) && read_window(config, a, notes, err);
}

const struct clb_family clb_family_qwen3_moe = {
    .model_type = "qwen3_moe",
    .default_theta = 1e4,
    .start = start,
    .keys = keys,
    .mlp = clb_family_mlp,
    .derive = derive,
};
