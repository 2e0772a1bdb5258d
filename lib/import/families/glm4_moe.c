/* GLM-4.5, 4.6 and 4.5-Air: half of each head is rotated, experts as in DeepSeek-V3. */
#include "lib/import/family.h"

static void start(struct clb_arch *a)
{
    a->rope = CLB_ROPE_HALF;
    a->router = CLB_ROUTER_SIGMOID;
    a->router_correction = true;
    a->topk_normalise = true;
}

static const struct clb_family_key keys[] = {
    { "moe_intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(expert_size), true, 1, 1 << 24 },
    { "intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(dense_size), true, 1, 1 << 24 },
    { "norm_topk_prob", NULL, CLB_KEY_BOOL, CLB_KEY_AT(topk_normalise), false, 0, 0 },
    { "routed_scaling_factor", NULL, CLB_KEY_F32, CLB_KEY_AT(routed_scale), false, 1e-6, 1e6 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(q_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(k_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(v_bias), false, 0, 0 },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

static const struct clb_family_tensor tensors[] = {
    { "model.layers.#.mlp.gate.e_score_correction_bias", CLB_ROUTER_CORRECTION, 0 },
    { NULL, 0, 0 },
};

static bool derive(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err)
{
    bool norms = false;

    (void)notes;
    if (!clb_setting_bool(config, "use_qk_norm", &norms, err))
        return false;
    a->qk_norm = norms ? CLB_QK_NORM_HEAD : CLB_QK_NORM_NONE;
    return clb_family_word(config, "scoring_func", "sigmoid", err) &&
           clb_family_groups(config, a, CLB_GROUP_TOP2_SUM, err) &&
           clb_family_shared(config, "n_shared_experts", a, err) &&
           clb_family_first_dense(config, "first_k_dense_replace", a, err);
}

const struct clb_family clb_family_glm4_moe = {
    .model_type = "glm4_moe",
    .default_theta = 1e4,
    .partial_rotary = true,
    .default_part = 0.5,
    .further_layers = "num_nextn_predict_layers",
    .start = start,
    .keys = keys,
    .mlp = clb_family_mlp,
    .tensors = tensors,
    .derive = derive,
};
