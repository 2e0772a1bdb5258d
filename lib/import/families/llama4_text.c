/* Llama 4, the language model, alone or beside one for images: interleaved rotation and norms
 * without weight on layers that see their chunk, no rotation and a temperature on the others; the
 * router weighs what goes into an expert. */
#include "lib/import/family.h"

static void start(struct clb_arch *a)
{
    a->rope = CLB_ROPE_INTERLEAVED;
    a->qk_norm = CLB_QK_NORM_L2;
    a->router = CLB_ROUTER_SIGMOID;
    a->scale_expert_input = true;
    a->top_k = 1;
}

static const struct clb_family_key keys[] = {
    { "intermediate_size", NULL, CLB_KEY_U32, CLB_KEY_AT(expert_size), true, 1, 1 << 24 },
    { "intermediate_size_mlp", NULL, CLB_KEY_U32, CLB_KEY_AT(dense_size), true, 1, 1 << 24 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(q_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(k_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(v_bias), false, 0, 0 },
    { "attention_bias", NULL, CLB_KEY_BOOL, CLB_KEY_AT(o_bias), false, 0, 0 },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

#define MLP "model.layers.#.feed_forward."
static const struct clb_family_tensor tensors[] = {
    { MLP "router.weight", CLB_ROUTER, 0 },
    { MLP "experts.gate_up_proj", CLB_FOR_EXPERT_GATE_UP, CLB_STACKED | CLB_TRANSPOSED },
    { MLP "experts.down_proj", CLB_FOR_EXPERT + CLB_DOWN, CLB_STACKED | CLB_TRANSPOSED },
    { MLP "shared_expert.gate_proj.weight", CLB_SHARED_GATE_PROJ, 0 },
    { MLP "shared_expert.up_proj.weight", CLB_SHARED_UP, 0 },
    { MLP "shared_expert.down_proj.weight", CLB_SHARED_DOWN, 0 },
    { MLP "gate_proj.weight", CLB_DENSE_GATE, 0 },
    { MLP "up_proj.weight", CLB_DENSE_UP, 0 },
    { MLP "down_proj.weight", CLB_DENSE_DOWN, 0 },
    { "vision_model.*", CLB_FOR_NOTHING, 0 },
    { "multi_modal_projector.*", CLB_FOR_NOTHING, 0 },
    { NULL, 0, 0 },
};

/* no_rope_layers has a 1 for each layer that is rotated; else every interval-th is not. */
static bool read_positions(struct clb_settings *config, struct clb_arch *a, struct clb_err *err)
{
    uint32_t rotated[CLB_MAX_LAYERS], n = 0, interval = 4, chunk = 8192;
    const struct clb_setting *e = clb_setting_find(config, "no_rope_layers");
    bool limited[CLB_MAX_LAYERS], found;

    if (!clb_setting_list(config, "no_rope_layers", 1, rotated, CLB_MAX_LAYERS, &n, err) ||
        !clb_setting_u32(config, "no_rope_layer_interval", 1, CLB_MAX_LAYERS, &interval, err) ||
        !clb_setting_u32(config, "attention_chunk_size", 1, 1 << 30, &chunk, err) ||
        !clb_family_layer_types(config, a, limited, &found, err))
        return false;
    if (n && n != a->n_layer)
        return clb_setting_fail(config, e, err, "has %u entries, but there are %u layers", n,
                                a->n_layer);
    for (uint32_t l = 0; l < a->n_layer; l++) {
        a->no_rope[l] = n ? !rotated[l] : (l + 1) % interval == 0;
        a->chunk[l] = (found ? limited[l] : !a->no_rope[l]) ? chunk : 0;
    }
    return true;
}

/* A flag; early checkpoints have a number. */
static bool read_temperature(struct clb_settings *config, struct clb_arch *a, struct clb_err *err)
{
    const struct clb_setting *e = clb_setting_find(config, "attn_temperature_tuning");
    double scale = 0.1, floor_at = 8192;
    uint32_t number = 1;
    bool on = true;

    if (!clb_setting_f64(config, "attn_scale", 1e-6, 1e6, &scale, err) ||
        !clb_setting_f64(config, "floor_scale", 1, 1e9, &floor_at, err))
        return false;
    if (e && e->type == CLB_JSON_NUMBER
            ? !clb_setting_u32(config, e->key, 0, UINT32_MAX, &number, err)
            : !clb_setting_bool(config, "attn_temperature_tuning", &on, err))
        return false;
    if (on && number) {
        a->attn_temperature_scale = (float)scale;
        a->attn_temperature_floor = (float)floor_at;
    }
    return true;
}

/* moe_layers lists those with experts; else every step-th has them. */
static bool read_sparse_layers(struct clb_settings *config, struct clb_arch *a, struct clb_err *err)
{
    const struct clb_setting *e = clb_setting_find(config, "moe_layers");
    uint32_t listed[CLB_MAX_LAYERS], n = 0, step = 1;

    if (!clb_setting_list(config, "moe_layers", a->n_layer - 1, listed, CLB_MAX_LAYERS, &n, err) ||
        !clb_setting_u32(config, "interleave_moe_layer_step", 1, CLB_MAX_LAYERS, &step, err))
        return false;
    for (uint32_t l = 0; l < a->n_layer; l++)
        a->layer_experts[l] = !e && (l + 1) % step == 0 ? a->n_expert : 0;
    for (uint32_t i = 0; i < n; i++)
        a->layer_experts[listed[i]] = a->n_expert;
    clb_family_dense_size(a);
    return true;
}

static bool derive(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err)
{
    bool norm = true;

    (void)notes;
    clb_setting_no_effect(config, "for_llm_compressor"); /* how tools lay out experts */
    if (!clb_setting_bool(config, "use_qk_norm", &norm, err))
        return false;
    a->qk_norm = norm ? CLB_QK_NORM_L2 : CLB_QK_NORM_NONE;
    a->shared_size = a->expert_size;
    return read_positions(config, a, err) && read_temperature(config, a, err) &&
           read_sparse_layers(config, a, err);
}

const struct clb_family clb_family_llama4_text = {
    .model_type = "llama4_text",
    .default_theta = 5e5,
    .start = start,
    .keys = keys,
    .tensors = tensors,
    .derive = derive,
};

static const char *const beside[] = {
    "boi_token_index", "eoi_token_index", "image_token_index", "vision_config", NULL,
};

const struct clb_family clb_family_llama4 = {
    .model_type = "llama4",
    .default_theta = 5e5,
    .text_config = "text_config",
    .prefix = "language_model.",
    .beside = beside,
    .start = start,
    .keys = keys,
    .tensors = tensors,
    .derive = derive,
};
