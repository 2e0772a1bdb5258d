/* OLMoE: norms of q and k over the whole projection, an optional clamp of q, k and v. */
#include "lib/import/family.h"

static void start(struct clb_arch *a)
{
    a->rope = CLB_ROPE_HALF;
    a->qk_norm = CLB_QK_NORM_FULL;
    a->router = CLB_ROUTER_SOFTMAX_TOPK;
}

static const struct clb_family_key keys[] = {
    { "intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(expert_size), true, 1, 1 << 24 },
    { "norm_topk_prob", NULL, CLB_KEY_BOOL, CLB_KEY_AT(topk_normalise), false, 0, 0 },
    { "clip_qkv", NULL, CLB_KEY_F32, CLB_KEY_AT(clip_qkv), false, 1e-6, 1e9 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(q_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(k_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(v_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(o_bias), false, 0, 0 },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

const struct clb_family clb_family_olmoe = {
    .model_type = "olmoe",
    .default_theta = 1e4,
    .start = start,
    .keys = keys,
    .mlp = clb_family_mlp,
};
