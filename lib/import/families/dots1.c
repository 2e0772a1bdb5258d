/* dots.llm1: attention of Qwen3 with the experts of DeepSeek-V3. */
#include "lib/import/family.h"

static void start(struct clb_arch *a)
{
    a->rope = CLB_ROPE_HALF;
    a->router = CLB_ROUTER_SIGMOID;
    a->router_correction = true;
    a->qk_norm = CLB_QK_NORM_HEAD;
}

static const struct clb_family_key keys[] = {
    { "moe_intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(expert_size), true, 1, 1 << 24 },
    { "intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(dense_size), true, 1, 1 << 24 },
    { "norm_topk_prob", NULL, CLB_KEY_BOOL, CLB_KEY_AT(topk_normalise), false, 0, 0 },
    { "routed_scaling_factor", NULL, CLB_KEY_F32, CLB_KEY_AT(routed_scale), false, 1e-6, 1e6 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(q_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(k_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(v_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(o_bias), false, 0, 0 },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

static const struct clb_family_tensor tensors[] = {
    { "model.layers.#.mlp.gate.e_score_correction_bias", CLB_ROUTER_CORRECTION, 0 },
    { NULL, 0, 0 },
};

/* Layers from max_window_layers on have the window, if there is one. */
static bool read_window(struct clb_settings *config, struct clb_arch *a, struct clb_err *err)
{
    uint32_t window = 0, from = 62;

    if (!clb_setting_u32(config, "sliding_window", 1, 1 << 30, &window, err) ||
        !clb_setting_u32(config, "max_window_layers", 0, INT32_MAX, &from, err))
        return false;
    for (uint32_t l = from; l < a->n_layer; l++)
        a->window[l] = window;
    return true;
}

static bool derive(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err)
{
    (void)notes;
    clb_setting_no_effect(config, "use_sliding_window"); /* the reference looks at the other two */
    return clb_family_word(config, "scoring_func", "noaux_tc|sigmoid", err) &&
           clb_family_number(config, "moe_layer_freq", 1, err) && read_window(config, a, err) &&
           clb_family_groups(config, a, CLB_GROUP_TOP2_SUM, err) &&
           clb_family_shared(config, "n_shared_experts", a, err) &&
           clb_family_first_dense(config, "first_k_dense_replace", a, err);
}

const struct clb_family clb_family_dots1 = {
    .model_type = "dots1",
    .default_theta = 1e4,
    .start = start,
    .keys = keys,
    .mlp = clb_family_mlp,
    .tensors = tensors,
    .derive = derive,
};
