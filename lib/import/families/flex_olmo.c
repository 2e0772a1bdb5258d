/* FlexOlmo: norms follow the branches instead of preceding them. */
#include "lib/import/family.h"

static void start(struct clb_arch *a)
{
    a->rope = CLB_ROPE_HALF;
    a->qk_norm = CLB_QK_NORM_FULL;
    a->norm_place = CLB_NORM_AFTER;
    a->router = CLB_ROUTER_SOFTMAX_TOPK;
}

static const struct clb_family_key keys[] = {
    { "intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(expert_size), true, 1, 1 << 24 },
    { "norm_topk_prob", NULL, CLB_KEY_BOOL, CLB_KEY_AT(topk_normalise), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(q_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(k_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(v_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(o_bias), false, 0, 0 },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

static const struct clb_family_tensor tensors[] = {
    { "model.layers.#.post_attention_layernorm.weight", CLB_ATTN_NORM, 0 },
    { "model.layers.#.post_feedforward_layernorm.weight", CLB_MLP_NORM, 0 },
    { NULL, 0, 0 },
};

static bool derive(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err)
{
    (void)config, (void)a, (void)notes, (void)err;
    return true;
}

const struct clb_family clb_family_flex_olmo = {
    .model_type = "flex_olmo",
    .default_theta = 5e5,
    .start = start,
    .keys = keys,
    .mlp = clb_family_mlp,
    .tensors = tensors,
    .derive = derive,
};
