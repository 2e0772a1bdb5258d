/* arch_tensors.c - the one list of dense tensors that a descriptor demands, in file order. */
#include "lib/format/arch.h"

#include <stdio.h>

const char *const clb_part_name[CLB_PARTS] = { "gate", "up", "down" };

static const char *const role_name[CLB_ROLE_COUNT] = {
    [CLB_EMBED] = "embed",
    [CLB_ROPE_INV_FREQ] = "rope.inv_freq",
    [CLB_ROPE_INV_FREQ_LONG] = "rope.inv_freq_long",
    [CLB_FINAL_NORM] = "final_norm",
    [CLB_FINAL_NORM_BIAS] = "final_norm_bias",
    [CLB_OUTPUT] = "output",
    [CLB_OUTPUT_BIAS] = "output_bias",
    [CLB_ATTN_NORM] = "attn_norm",
    [CLB_ATTN_NORM_BIAS] = "attn_norm_bias",
    [CLB_Q] = "q",
    [CLB_Q_BIAS] = "q_bias",
    [CLB_K] = "k",
    [CLB_K_BIAS] = "k_bias",
    [CLB_V] = "v",
    [CLB_V_BIAS] = "v_bias",
    [CLB_Q_NORM] = "q_norm",
    [CLB_K_NORM] = "k_norm",
    [CLB_SINKS] = "sinks",
    [CLB_Q_A] = "q_a",
    [CLB_Q_A_NORM] = "q_a_norm",
    [CLB_KV_A] = "kv_a",
    [CLB_KV_A_NORM] = "kv_a_norm",
    [CLB_K_UP] = "k_up",
    [CLB_V_UP] = "v_up",
    [CLB_O] = "o",
    [CLB_O_BIAS] = "o_bias",
    [CLB_MLP_NORM] = "mlp_norm",
    [CLB_MLP_NORM_BIAS] = "mlp_norm_bias",
    [CLB_ROUTER] = "router",
    [CLB_ROUTER_BIAS] = "router_bias",
    [CLB_ROUTER_CORRECTION] = "router_correction",
    [CLB_ROUTER_IN] = "router_in",
    [CLB_SHARED_GATE] = "shared_gate",
    [CLB_SHARED_GATE_PROJ] = "shared_gate_proj",
    [CLB_SHARED_UP] = "shared_up",
    [CLB_SHARED_DOWN] = "shared_down",
    [CLB_DENSE_GATE] = "dense_gate",
    [CLB_DENSE_UP] = "dense_up",
    [CLB_DENSE_DOWN] = "dense_down",
};

/* Runs of roles: before the layers, of each layer, behind the layers. */
static const struct {
    enum clb_role first, last;
} head = { CLB_EMBED, CLB_ROPE_INV_FREQ_LONG }, body = { CLB_ATTN_NORM, CLB_DENSE_DOWN },
  tail = { CLB_FINAL_NORM, CLB_OUTPUT_BIAS };

void clb_spec_name(const struct clb_tensor_spec *s, char out[64])
{
    if (s->layer == UINT32_MAX)
        snprintf(out, 64, "%s", role_name[s->role]);
    else
        snprintf(out, 64, "layers.%u.%s", s->layer, role_name[s->role]);
}

/* Shapes. Each returns whether there is such a tensor at all. */
static bool vector(struct clb_tensor_spec *s, bool wanted, uint32_t n)
{
    s->form = CLB_FORM_VECTOR;
    s->rows = 1;
    s->cols = n;
    return wanted;
}

static bool matrix(struct clb_tensor_spec *s, bool wanted, uint32_t rows, uint32_t cols)
{
    s->form = CLB_FORM_MATRIX;
    s->rows = rows;
    s->cols = cols;
    return wanted;
}

/* Small and decisive: always f32. */
static bool router(struct clb_tensor_spec *s, bool wanted, uint32_t rows, uint32_t cols)
{
    s->form = CLB_FORM_ROUTER;
    s->rows = rows;
    s->cols = cols;
    return wanted;
}

static bool global_spec(const struct clb_arch *a, struct clb_tensor_spec *s)
{
    uint32_t hidden = a->hidden_size, vocab = a->vocab_size;
    bool rope = a->rope != CLB_ROPE_NONE, layer_norm = a->norm == CLB_NORM_LAYER;

    s->layer = UINT32_MAX;
    switch (s->role) {
    case CLB_EMBED:
        matrix(s, true, vocab, hidden);
        s->form = CLB_FORM_ROWS;
        return true;
    case CLB_ROPE_INV_FREQ:
        return vector(s, rope, a->rope_dim / 2);
    case CLB_ROPE_INV_FREQ_LONG:
        return vector(s, rope && a->rope_long_from, a->rope_dim / 2);
    case CLB_FINAL_NORM:
        return vector(s, true, hidden);
    case CLB_FINAL_NORM_BIAS:
        return vector(s, layer_norm, hidden);
    case CLB_OUTPUT:
        return matrix(s, true, vocab, hidden);
    case CLB_OUTPUT_BIAS:
        return vector(s, a->output_bias, vocab);
    default:
        return false;
    }
}

/* Grouped-query attention: every head has its own key and value projection. MLA: keys and values
 * come from a latent; k_up takes a query head's position-free part into the latent's space (per
 * head [kv_lora_rank][qk_nope_dim]), v_up takes the mixed latent to the head's output
 * ([value_dim][kv_lora_rank]). */
static bool attention_spec(const struct clb_arch *a, struct clb_tensor_spec *s)
{
    uint32_t hidden = a->hidden_size, q = a->n_head * a->head_dim, out = a->n_head * a->value_dim;
    uint32_t k = a->n_kv_head * a->head_dim, v = a->n_kv_head * a->value_dim;
    bool mla = a->attention == CLB_ATTN_MLA, layer_norm = a->norm == CLB_NORM_LAYER;
    bool full = a->qk_norm == CLB_QK_NORM_FULL;
    bool qk_norm =
        full || a->qk_norm == CLB_QK_NORM_HEAD || a->qk_norm == CLB_QK_NORM_HEAD_AFTER_ROPE;

    switch (s->role) {
    case CLB_ATTN_NORM:
        return vector(s, true, hidden);
    case CLB_ATTN_NORM_BIAS:
        return vector(s, layer_norm, hidden);
    case CLB_Q:
        return matrix(s, true, a->attn_output_gate ? 2 * q : q,
                      a->q_lora_rank ? a->q_lora_rank : hidden);
    case CLB_Q_BIAS:
        return vector(s, a->q_bias, q);
    case CLB_K:
        return matrix(s, !mla, k, hidden);
    case CLB_K_BIAS:
        return vector(s, !mla && a->k_bias, k);
    case CLB_V:
        return matrix(s, !mla, v, hidden);
    case CLB_V_BIAS:
        return vector(s, !mla && a->v_bias, v);
    case CLB_Q_NORM:
        return vector(s, qk_norm, full ? q : a->head_dim);
    case CLB_K_NORM:
        return vector(s, qk_norm, full ? k : a->head_dim);
    case CLB_SINKS:
        return vector(s, a->sinks, a->n_head);
    case CLB_Q_A:
        return matrix(s, a->q_lora_rank, a->q_lora_rank, hidden);
    case CLB_Q_A_NORM:
        return vector(s, a->q_lora_rank, a->q_lora_rank);
    case CLB_KV_A:
        return matrix(s, mla, a->kv_lora_rank + a->qk_rope_dim, hidden);
    case CLB_KV_A_NORM:
        return vector(s, mla, a->kv_lora_rank);
    case CLB_K_UP:
        return matrix(s, mla, a->n_head * a->kv_lora_rank, a->qk_nope_dim);
    case CLB_V_UP:
        return matrix(s, mla, out, a->kv_lora_rank);
    case CLB_O:
        return matrix(s, true, hidden, out);
    case CLB_O_BIAS:
        return vector(s, a->o_bias, hidden);
    default:
        return false;
    }
}

static bool mlp_spec(const struct clb_arch *a, struct clb_tensor_spec *s)
{
    uint32_t hidden = a->hidden_size, experts = a->layer_experts[s->layer];
    bool moe = experts > 0, shared = moe && a->shared_size;

    switch (s->role) {
    case CLB_MLP_NORM:
        return vector(s, true, hidden);
    case CLB_MLP_NORM_BIAS:
        return vector(s, a->norm == CLB_NORM_LAYER, hidden);
    case CLB_ROUTER:
        return router(s, moe, experts, a->router_two_layers ? experts : hidden);
    case CLB_ROUTER_BIAS:
        return vector(s, moe && a->router_bias, experts);
    case CLB_ROUTER_CORRECTION:
        return vector(s, moe && a->router_correction, experts);
    case CLB_ROUTER_IN:
        return router(s, moe && a->router_two_layers, experts, hidden);
    case CLB_SHARED_GATE:
        return router(s, shared && a->shared_gate, 1, hidden);
    case CLB_SHARED_GATE_PROJ:
    case CLB_SHARED_UP:
        return matrix(s, shared, a->shared_size, hidden);
    case CLB_SHARED_DOWN:
        return matrix(s, shared, hidden, a->shared_size);
    case CLB_DENSE_GATE:
    case CLB_DENSE_UP:
        return matrix(s, !moe, a->dense_size, hidden);
    case CLB_DENSE_DOWN:
        return matrix(s, !moe, hidden, a->dense_size);
    default:
        return false;
    }
}

/* The i-th demanded tensor of a run of roles; *n is how many were passed over. */
static bool pick(const struct clb_arch *a, uint32_t first, uint32_t last, uint32_t layer,
                 uint32_t i, struct clb_tensor_spec *out, uint32_t *n)
{
    *n = 0;
    for (uint32_t role = first; role <= last; role++) {
        *out = (struct clb_tensor_spec){ .role = (enum clb_role)role, .layer = layer };
        bool wanted = layer == UINT32_MAX   ? global_spec(a, out)
                      : role < CLB_MLP_NORM ? attention_spec(a, out)
                                            : mlp_spec(a, out);
        if (wanted && (*n)++ == i)
            return true;
    }
    return false;
}

/* Layers are of two kinds, with and without experts: how many tensors one of each kind has. */
static void layer_counts(const struct clb_arch *a, uint32_t count[2])
{
    struct clb_tensor_spec s;

    count[0] = count[1] = 0;
    for (uint32_t l = 0; l < a->n_layer; l++)
        if (!count[clb_arch_is_moe(a, l)])
            pick(a, body.first, body.last, l, UINT32_MAX, &s, &count[clb_arch_is_moe(a, l)]);
}

bool clb_arch_tensor(const struct clb_arch *a, uint32_t i, struct clb_tensor_spec *out)
{
    uint32_t n, count[2];

    if (pick(a, head.first, head.last, UINT32_MAX, i, out, &n))
        return true;
    i -= n;
    layer_counts(a, count);
    for (uint32_t l = 0; l < a->n_layer; l++) {
        n = count[clb_arch_is_moe(a, l)];
        if (i < n)
            return pick(a, body.first, body.last, l, i, out, &n);
        i -= n;
    }
    return pick(a, tail.first, tail.last, UINT32_MAX, i, out, &n);
}

uint32_t clb_arch_tensor_count(const struct clb_arch *a)
{
    struct clb_tensor_spec s;
    uint32_t before, behind, count[2], n = 0;

    pick(a, head.first, head.last, UINT32_MAX, UINT32_MAX, &s, &before);
    pick(a, tail.first, tail.last, UINT32_MAX, UINT32_MAX, &s, &behind);
    layer_counts(a, count);
    for (uint32_t l = 0; l < a->n_layer; l++)
        n += count[clb_arch_is_moe(a, l)];
    return before + n + behind;
}
