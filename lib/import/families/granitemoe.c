/* Granite 3 MoE, with and without a shared expert: multipliers; the experts of a layer in one
 * tensor, the rows of gate before those of up. */
#include "lib/import/family.h"

static void start(struct clb_arch *a)
{
    a->rope = CLB_ROPE_HALF;
    a->router = CLB_ROUTER_TOPK_SOFTMAX;
    a->attn_scale = 1;
}

static const struct clb_family_key keys[] = {
    { "intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(expert_size), true, 1, 1 << 24 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(q_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(k_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(v_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(o_bias), false, 0, 0 },
    { "embedding_multiplier", NULL, CLB_KEY_F32, CLB_KEY_AT(embedding_scale), false, 1e-6, 1e6 },
    { "residual_multiplier", NULL, CLB_KEY_F32, CLB_KEY_AT(residual_scale), false, 1e-6, 1e6 },
    { "attention_multiplier", NULL, CLB_KEY_F32, CLB_KEY_AT(attn_scale), false, 1e-6, 1e6 },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

#define LAYER "model.layers.#."
static const struct clb_family_tensor tensors[] = {
    { LAYER "block_sparse_moe.router.layer.weight", CLB_ROUTER, 0 },
    { LAYER "block_sparse_moe.input_linear.weight", CLB_FOR_EXPERT_GATE_UP, CLB_STACKED },
    { LAYER "block_sparse_moe.output_linear.weight", CLB_FOR_EXPERT + CLB_DOWN, CLB_STACKED },
    { LAYER "shared_mlp.input_linear.weight", CLB_FOR_SHARED_GATE_UP, 0 },
    { LAYER "shared_mlp.output_linear.weight", CLB_SHARED_DOWN, 0 },
    { NULL, 0, 0 },
};

/* Logits are divided by logits_scaling. */
static bool derive(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err)
{
    double divisor = 1;

    (void)notes;
    if (!clb_setting_f64(config, "logits_scaling", 1e-6, 1e6, &divisor, err))
        return false;
    a->logit_scale = (float)(1 / divisor);
    return true;
}

static bool derive_shared(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                          struct clb_err *err)
{
    return clb_setting_u32(config, "shared_intermediate_size", 0, 1 << 24, &a->shared_size, err) &&
           derive(config, a, notes, err);
}

const struct clb_family clb_family_granitemoe = {
    .model_type = "granitemoe",
    .default_theta = 1e4,
    .start = start,
    .keys = keys,
    .tensors = tensors,
    .derive = derive,
};

const struct clb_family clb_family_granitemoeshared = {
    .model_type = "granitemoeshared",
    .default_theta = 1e4,
    .start = start,
    .keys = keys,
    .tensors = tensors,
    .derive = derive_shared,
};
