/* gpt-oss: sinks, windows on every other layer, clamped SwiGLU with biases; published experts are
 * MXFP4, in tensors for all experts of a layer with rows of gate and up taking turns. */
#include "lib/import/family.h"

static void start(struct clb_arch *a)
{
    a->rope = CLB_ROPE_HALF;
    a->q_bias = a->k_bias = a->v_bias = a->o_bias = true;
    a->sinks = true;
    a->router = CLB_ROUTER_TOPK_SOFTMAX;
    a->router_bias = true;
    a->expert_bias = true;
    a->act_limit = 7.0f;
    a->act_alpha = 1.702f; /* published configurations do not name it */
}

static const struct clb_family_key keys[] = {
    { "num_experts_per_tok", "experts_per_token", CLB_KEY_U32, CLB_KEY_AT(top_k), true, 1,
      CLB_MAX_TOP_K },
    { "intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(expert_size), true, 1, 1 << 24 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(q_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(k_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(v_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(o_bias), false, 0, 0 },
    { "swiglu_alpha", NULL, CLB_KEY_F32, CLB_KEY_AT(act_alpha), false, 1e-3, 1e6 },
    { "swiglu_limit", NULL, CLB_KEY_F32, CLB_KEY_AT(act_limit), false, 1e-3, 1e6 },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

#define EXPERTS "model.layers.#.mlp.experts."
static const struct clb_family_tensor tensors[] = {
    { "model.layers.#.self_attn.sinks", CLB_SINKS, 0 },
    { "model.layers.#.mlp.router.weight", CLB_ROUTER, 0 },
    { "model.layers.#.mlp.router.bias", CLB_ROUTER_BIAS, 0 },
    { EXPERTS "gate_up_proj_blocks", CLB_FOR_EXPERT_GATE_UP,
      CLB_STACKED | CLB_INTERLEAVED | CLB_BLOCKS },
    { EXPERTS "gate_up_proj", CLB_FOR_EXPERT_GATE_UP,
      CLB_STACKED | CLB_INTERLEAVED | CLB_TRANSPOSED },
    { EXPERTS "gate_up_proj_bias", CLB_FOR_EXPERT_GATE_UP_BIAS, CLB_STACKED | CLB_INTERLEAVED },
    { EXPERTS "down_proj_blocks", CLB_FOR_EXPERT + CLB_DOWN, CLB_STACKED | CLB_BLOCKS },
    { EXPERTS "down_proj", CLB_FOR_EXPERT + CLB_DOWN, CLB_STACKED | CLB_TRANSPOSED },
    { EXPERTS "down_proj_bias", CLB_FOR_EXPERT_BIAS + CLB_DOWN, CLB_STACKED },
    { NULL, 0, 0 },
};

/* Without layer_types the first layer and every other one slide. Without an object for the rotation
 * the reference takes one of its own, which is not guessed here. */
static bool derive(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err)
{
    uint32_t window = 128;
    bool sliding[CLB_MAX_LAYERS], found;

    (void)notes;
    clb_setting_no_effect(config, "initial_context_length"); /* rope_scaling says it */
    if (!clb_setting_find(config, "rope_scaling") && !clb_setting_find(config, "rope_parameters"))
        return clb_setting_missing(config, "rope_scaling", err);
    if (!clb_family_word(config, "hidden_act", "silu", err) ||
        !clb_setting_u32(config, "sliding_window", 1, 1 << 30, &window, err) ||
        !clb_family_layer_types(config, a, sliding, &found, err))
        return false;
    a->act = CLB_ACT_CLAMPED_SWIGLU;
    for (uint32_t l = 0; l < a->n_layer; l++)
        a->window[l] = (found ? sliding[l] : l % 2 == 0) ? window : 0;
    return true;
}

const struct clb_family clb_family_gpt_oss = {
    .model_type = "gpt_oss",
    .default_theta = 15e4,
    .start = start,
    .keys = keys,
    .tensors = tensors,
    .derive = derive,
};
