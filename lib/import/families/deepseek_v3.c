/* DeepSeek-V3, R1, Moonlight, Kimi-K2: latent attention, sigmoid router with correction, limited to
 * groups of experts by their best two. */
#include "lib/import/family.h"

static void start(struct clb_arch *a)
{
    a->rope = CLB_ROPE_INTERLEAVED;
    a->router = CLB_ROUTER_SIGMOID;
    a->router_correction = true;
    a->topk_normalise = true;
    a->lora_norm_eps = 1e-6f; /* config.json does not name it */
}

static const struct clb_family_key keys[] = {
    { "moe_intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(expert_size), true, 1, 1 << 24 },
    { "intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(dense_size), true, 1, 1 << 24 },
    { "routed_scaling_factor", NULL, CLB_KEY_F32, CLB_KEY_AT(routed_scale), true, 1e-6, 1e6 },
    { "norm_topk_prob", NULL, CLB_KEY_BOOL, CLB_KEY_AT(topk_normalise), false, 0, 0 },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

static const struct clb_family_tensor tensors[] = {
    { "model.layers.#.self_attn.q_a_proj.weight", CLB_Q_A, 0 },
    { "model.layers.#.self_attn.q_a_layernorm.weight", CLB_Q_A_NORM, 0 },
    { "model.layers.#.self_attn.q_b_proj.weight", CLB_Q, 0 },
    { "model.layers.#.self_attn.kv_a_proj_with_mqa.weight", CLB_KV_A, 0 },
    { "model.layers.#.self_attn.kv_a_layernorm.weight", CLB_KV_A_NORM, 0 },
    { "model.layers.#.self_attn.kv_b_proj.weight", CLB_FOR_KV_B, 0 },
    { "model.layers.#.mlp.gate.e_score_correction_bias", CLB_ROUTER_CORRECTION, 0 },
    { NULL, 0, 0 },
};

static bool derive(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err)
{
    static const char *const groups[] = { "n_group", "topk_group", NULL };
    bool interleaved = true;

    (void)notes;
    clb_setting_no_effect(config, "seq_aux"); /* training */
    clb_setting_no_effect(config, "ep_size"); /* how the publisher spreads experts */
    if (!clb_setting_bool(config, "rope_interleave", &interleaved, err))
        return false;
    a->rope = interleaved ? CLB_ROPE_INTERLEAVED : CLB_ROPE_HALF;
    return clb_family_mla(config, a, err) && clb_family_must(config, groups, err) &&
           clb_family_groups(config, a, CLB_GROUP_TOP2_SUM, err) &&
           clb_family_flag(config, "attention_bias", false, err) &&
           clb_family_word(config, "scoring_func", "sigmoid", err) &&
           clb_family_word(config, "topk_method", "noaux_tc", err) &&
           clb_family_number(config, "moe_layer_freq", 1, err) &&
           clb_family_shared(config, "n_shared_experts", a, err) &&
           clb_family_first_dense(config, "first_k_dense_replace", a, err);
}

const struct clb_family clb_family_deepseek_v3 = {
    .model_type = "deepseek_v3",
    .default_theta = 1e4,
    .yarn_scales_attention = true,
    .further_layers = "num_nextn_predict_layers",
    .start = start,
    .keys = keys,
    .mlp = clb_family_mlp,
    .tensors = tensors,
    .derive = derive,
};
