/* LLaMA-MoE (v1): a router of two layers, experts cut from the MLPs of LLaMA. */
#include "lib/import/family.h"

static void start(struct clb_arch *a)
{
    a->rope = CLB_ROPE_HALF;
    a->router = CLB_ROUTER_TOPK_SOFTMAX;
    a->router_two_layers = true;
}

static const struct clb_family_key keys[] = {
    { "num_selects", NULL, CLB_KEY_U32, CLB_KEY_AT(top_k), true, 1, CLB_MAX_TOP_K },
    { "score_scale_factor", NULL, CLB_KEY_F32, CLB_KEY_AT(routed_scale), false, 1e-6, 1e6 },
    { NULL, NULL, CLB_KEY_U32, 0, false, 0, 0 },
};

static const struct clb_family_tensor tensors[] = {
    { "model.layers.#.mlp.gate.gate_network.0.weight", CLB_ROUTER_IN, 0 },
    { "model.layers.#.mlp.gate.gate_network.2.weight", CLB_ROUTER, 0 },
    { "model.layers.#.mlp.gate.weight_noise.weight", CLB_FOR_NOTHING, 0 }, /* training */
    { "model.layers.#.mlp.calculator.experts.weight_gate.#", CLB_FOR_EXPERT + CLB_GATE, 0 },
    { "model.layers.#.mlp.calculator.experts.weight_up.#", CLB_FOR_EXPERT + CLB_UP, 0 },
    { "model.layers.#.mlp.calculator.experts.weight_down.#", CLB_FOR_EXPERT + CLB_DOWN, 0 },
    { NULL, 0, 0 },
};

/* size_experts has a list for each layer with a width for each expert; one width is known. Without
 * it intermediate_size is what the experts of a layer share. */
static bool read_width(struct clb_settings *config, struct clb_arch *a, struct clb_err *err)
{
    const struct clb_setting *e = clb_setting_find(config, "size_experts");
    uint32_t inner = 0, n = 0;
    bool uniform = true;
    struct clb_err ignored;
    struct clb_json j;

    if (!clb_setting_u32(config, "intermediate_size", 1, 1 << 24, &inner, err))
        return false;
    a->expert_size = inner / a->n_expert;
    if (!e)
        return inner || clb_setting_missing(config, "intermediate_size", err);
    clb_json_open(&j, e->raw.p, e->raw.n, config->file);
    for (clb_json_array(&j); clb_json_item(&j);)
        for (clb_json_array(&j); clb_json_item(&j); n++) {
            uint32_t size = (uint32_t)clb_json_u64(&j, 1 << 24);

            a->expert_size = n ? a->expert_size : size;
            uniform &= size == a->expert_size;
        }
    if (clb_json_close(&j, &ignored) && uniform && n == a->n_layer * a->n_expert)
        return true;
    return clb_setting_fail(config, e, err, "one width for all %u experts of %u layers is expected",
                            a->n_expert, a->n_layer);
}

static bool derive(struct clb_settings *config, struct clb_arch *a, struct clb_text *notes,
                   struct clb_err *err)
{
    static const char *const training[] = { "gate_use_balance", "gate_balance_loss_weight",
                                            "gate_add_noise",   "gate_noise_epsilon",
                                            "drop_tokens",      "dropped_padding",
                                            "capacity_factor" };

    (void)notes;
    for (size_t i = 0; i < sizeof training / sizeof *training; i++)
        clb_setting_no_effect(config, training[i]);
    return clb_family_word(config, "gate_type", "TopKBalancedNoisyGate", err) &&
           clb_family_word(config, "gate_network", "mlp", err) &&
           clb_family_word(config, "calculator_type", "UniversalCalculator", err) &&
           clb_family_flag(config, "gate_use_softmax", true, err) &&
           clb_family_flag(config, "multiply_gate_scores", true, err) &&
           clb_family_flag(config, "add_weight_norm", false, err) && read_width(config, a, err);
}

const struct clb_family clb_family_llama_moe = {
    .model_type = "llama_moe",
    .default_theta = 1e4,
    .start = start,
    .keys = keys,
    .tensors = tensors,
    .derive = derive,
};
