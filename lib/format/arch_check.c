/* arch_check.c - whether the fields of a descriptor agree with each other. After clb_arch_check
 * every division, product and index that the engine derives from a descriptor is safe. */
#include "lib/format/arch.h"

static bool bad(struct clb_err *err, const char *field)
{
    return clb_err_place(err, NULL, field, CLB_NO_OFFSET);
}

/* `set` needs `on`: a field of a feature that is switched off means that somebody misunderstood. */
static bool only_with(struct clb_err *err, const char *field, bool set, bool on,
                      const char *feature)
{
    if (!set || on)
        return true;
    clb_fail(err, CLB_BAD_INPUT, "'%s' is given, but has a meaning only with %s", field, feature);
    return bad(err, field);
}

static bool at_most(struct clb_err *err, const char *field, uint32_t v, const char *limit,
                    uint32_t most)
{
    if (v <= most)
        return true;
    clb_fail(err, CLB_BAD_INPUT, "'%s' is %u, more than '%s', which is %u", field, v, limit, most);
    return bad(err, field);
}

static bool divides(struct clb_err *err, const char *field, uint32_t v, const char *whole,
                    uint32_t n)
{
    if (v && n % v == 0)
        return true;
    clb_fail(err, CLB_BAD_INPUT, "'%s' is %u, which does not divide '%s', %u", field, v, whole, n);
    return bad(err, field);
}

static bool given(struct clb_err *err, const char *field, bool set, const char *feature)
{
    if (set)
        return true;
    clb_fail(err, CLB_BAD_INPUT, "'%s' is missing, but %s needs it", field, feature);
    return bad(err, field);
}

static bool check_mla(const struct clb_arch *a, struct clb_err *err)
{
    bool mla = a->attention == CLB_ATTN_MLA;

    if (!only_with(err, "q_lora_rank", a->q_lora_rank, mla, "'attention' mla") ||
        !only_with(err, "kv_lora_rank", a->kv_lora_rank, mla, "'attention' mla") ||
        !only_with(err, "qk_nope_dim", a->qk_nope_dim, mla, "'attention' mla") ||
        !only_with(err, "qk_rope_dim", a->qk_rope_dim, mla, "'attention' mla") ||
        !only_with(err, "lora_norm_eps", a->lora_norm_eps > 0, mla, "'attention' mla"))
        return false;
    if (!mla)
        return true;
    if (!given(err, "kv_lora_rank", a->kv_lora_rank, "'attention' mla") ||
        !given(err, "qk_nope_dim", a->qk_nope_dim, "'attention' mla"))
        return false;
    if (!only_with(err, "qk_norm", a->qk_norm != CLB_QK_NORM_NONE, false, "'attention' gqa") ||
        !only_with(err, "k_bias", a->k_bias, false, "'attention' gqa") ||
        !only_with(err, "v_bias", a->v_bias, false, "'attention' gqa") ||
        !only_with(err, "clip_qkv", a->clip_qkv > 0, false, "'attention' gqa") ||
        !only_with(err, "attn_temperature_scale", a->attn_temperature_scale > 0, false,
                   "'attention' gqa") ||
        !at_most(err, "rope_dim", a->rope_dim, "qk_rope_dim", a->qk_rope_dim))
        return false;
    if (a->qk_nope_dim + a->qk_rope_dim != a->head_dim) {
        clb_fail(err, CLB_BAD_INPUT,
                 "'head_dim' is %u, but 'qk_nope_dim' + 'qk_rope_dim' is %u + %u", a->head_dim,
                 a->qk_nope_dim, a->qk_rope_dim);
        return bad(err, "head_dim");
    }
    return true;
}

static bool check_rope(const struct clb_arch *a, struct clb_err *err)
{
    bool rope = a->rope != CLB_ROPE_NONE;

    if (!only_with(err, "rope_dim", a->rope_dim, rope, "'rope'") ||
        !only_with(err, "rope_scale", a->rope_scale > 0, rope, "'rope'") ||
        !only_with(err, "rope_long_from", a->rope_long_from, rope, "'rope'") ||
        !only_with(err, "rope_scale_long", a->rope_scale_long > 0, a->rope_long_from,
                   "'rope_long_from'"))
        return false;
    if (!rope)
        return true;
    if (!given(err, "rope_dim", a->rope_dim, "'rope'") ||
        !at_most(err, "rope_dim", a->rope_dim, "head_dim", a->head_dim))
        return false;
    if (a->rope_dim % 2) {
        clb_fail(err, CLB_BAD_INPUT, "'rope_dim' is %u, but must be even", a->rope_dim);
        return bad(err, "rope_dim");
    }
    return true;
}

static bool check_attention(const struct clb_arch *a, struct clb_err *err)
{
    bool q_norm = a->qk_norm != CLB_QK_NORM_NONE;

    return divides(err, "n_kv_head", a->n_kv_head, "n_head", a->n_head) &&
           only_with(err, "qk_norm_eps", a->qk_norm_eps > 0, q_norm, "'qk_norm'") &&
           (!(a->attn_temperature_scale > 0) ||
            given(err, "attn_temperature_floor", a->attn_temperature_floor > 0,
                  "'attn_temperature_scale'")) &&
           only_with(err, "attn_temperature_floor", a->attn_temperature_floor > 0,
                     a->attn_temperature_scale > 0, "'attn_temperature_scale'") &&
           only_with(err, "index_head_dim", a->index_head_dim, a->index_heads, "'index_heads'") &&
           only_with(err, "index_top_k", a->index_top_k, a->index_heads, "'index_heads'") &&
           check_mla(a, err) && check_rope(a, err);
}

static bool check_router(const struct clb_arch *a, struct clb_err *err)
{
    bool clamped = a->act == CLB_ACT_CLAMPED_SWIGLU, groups = a->n_group > 0;

    return at_most(err, "top_k", a->top_k, "n_expert", a->n_expert) &&
           (a->router != CLB_ROUTER_SPARSEMIXER ||
            at_most(err, "top_k", a->top_k, "the choices of sparsemixer", 2)) &&
           only_with(err, "router_jitter", a->router_jitter > 0,
                     a->router == CLB_ROUTER_SPARSEMIXER, "'router' sparsemixer") &&
           only_with(err, "top_groups", a->top_groups, groups, "'n_group'") &&
           only_with(err, "group_score", a->group_score != CLB_GROUP_NONE, groups, "'n_group'") &&
           (!groups ||
            (divides(err, "n_group", a->n_group, "n_expert", a->n_expert) &&
             given(err, "top_groups", a->top_groups, "'n_group'") &&
             at_most(err, "top_groups", a->top_groups, "n_group", a->n_group) &&
             given(err, "group_score", a->group_score != CLB_GROUP_NONE, "'n_group'"))) &&
           only_with(err, "topk_normalise_min", a->topk_normalise_min > 0, a->topk_normalise,
                     "'topk_normalise'") &&
           only_with(err, "shared_gate", a->shared_gate, a->shared_size, "'shared_size'") &&
           only_with(err, "act_limit", a->act_limit > 0, clamped, "'act' clamped_swiglu") &&
           only_with(err, "act_alpha", a->act_alpha > 0, clamped, "'act' clamped_swiglu");
}

static bool check_layer(const struct clb_arch *a, uint32_t l, struct clb_err *err)
{
    uint32_t experts = a->layer_experts[l];

    if (!experts)
        return given(err, "dense_size", a->dense_size, "a layer without experts") &&
               only_with(err, "layer_top_k", a->layer_top_k[l], false, "experts");
    if (!at_most(err, "layer_experts", experts, "n_expert", a->n_expert))
        return false;
    if (a->n_group && experts % a->n_group)
        return divides(err, "n_group", a->n_group, "layer_experts", experts);
    if (a->layer_top_k[l] && !at_most(err, "layer_top_k", a->layer_top_k[l], "top_k", a->top_k))
        return false;
    const char *field = a->layer_top_k[l] ? "layer_top_k" : "top_k";
    uint32_t top_k = clb_arch_layer_top_k(a, l);

    return at_most(err, field, top_k, "layer_experts", experts) &&
           at_most(err, field, top_k, "the experts of 'top_groups'",
                   clb_arch_choosable(a, experts));
}

static bool check_layers(const struct clb_arch *a, struct clb_err *err)
{
    uint32_t most = 0, dense = 0;

    for (uint32_t l = 0; l < a->n_layer; l++) {
        if (!check_layer(a, l, err))
            return clb_fail_in(err, "layer %u", l);
        most = a->layer_experts[l] > most ? a->layer_experts[l] : most;
        dense += a->layer_experts[l] == 0;
    }
    if (dense == a->n_layer) {
        clb_fail(err, CLB_BAD_INPUT,
                 "'layer_experts' is 0 everywhere: only Mixture-of-Experts models are served");
        return bad(err, "layer_experts");
    }
    if (most != a->n_expert) {
        clb_fail(err, CLB_BAD_INPUT, "'n_expert' is %u, but no layer has more than %u", a->n_expert,
                 most);
        return bad(err, "n_expert");
    }
    return only_with(err, "dense_size", a->dense_size, dense, "a layer without experts");
}

bool clb_arch_check(const struct clb_arch *a, struct clb_err *err)
{
    if (!clb_arch_ranges(a, err) || !given(err, "norm_eps", a->norm_eps > 0, "every norm"))
        return false;
    return check_attention(a, err) && check_router(a, err) && check_layers(a, err);
}
