#include "lib/model/bind.h"

#include "lib/base/mem.h"

#define NO_BIAS CLB_ROLE_COUNT
#define WHOLE   UINT32_MAX

/* The tensors of one layer, or of the whole model. */
struct source {
    const struct clb_reader *r;
    uint32_t layer;
};

static const float *vector(struct source s, enum clb_role role)
{
    const struct clb_tensor *t = clb_reader_find(s.r, role, s.layer);

    return t ? clb_reader_data(s.r, t) : NULL;
}

static struct clb_matrix matrix(struct source s, enum clb_role role, enum clb_role bias)
{
    struct clb_matrix m = clb_reader_matrix(s.r, clb_reader_find(s.r, role, s.layer));

    if (m.tiles && bias != NO_BIAS)
        m.bias = vector(s, bias);
    return m;
}

static void bind_attention(struct clb_layer *l, struct source s)
{
    l->attn_norm = vector(s, CLB_ATTN_NORM);
    l->attn_norm_bias = vector(s, CLB_ATTN_NORM_BIAS);
    l->q = matrix(s, CLB_Q, CLB_Q_BIAS);
    l->k = matrix(s, CLB_K, CLB_K_BIAS);
    l->v = matrix(s, CLB_V, CLB_V_BIAS);
    l->o = matrix(s, CLB_O, CLB_O_BIAS);
    l->q_norm = vector(s, CLB_Q_NORM);
    l->k_norm = vector(s, CLB_K_NORM);
    l->sinks = vector(s, CLB_SINKS);
    l->q_a = matrix(s, CLB_Q_A, NO_BIAS);
    l->kv_a = matrix(s, CLB_KV_A, NO_BIAS);
    l->k_up = matrix(s, CLB_K_UP, NO_BIAS);
    l->v_up = matrix(s, CLB_V_UP, NO_BIAS);
    l->q_a_norm = vector(s, CLB_Q_A_NORM);
    l->kv_a_norm = vector(s, CLB_KV_A_NORM);
}

static void bind_mlp(struct clb_layer *l, struct source s, const struct clb_arch *a)
{
    l->mlp_norm = vector(s, CLB_MLP_NORM);
    l->mlp_norm_bias = vector(s, CLB_MLP_NORM_BIAS);
    l->router = matrix(s, CLB_ROUTER, CLB_ROUTER_BIAS);
    l->router_in = matrix(s, CLB_ROUTER_IN, NO_BIAS);
    l->router_correction = vector(s, CLB_ROUTER_CORRECTION);
    l->shared_gate = matrix(s, CLB_SHARED_GATE, NO_BIAS);
    for (int p = 0; p < CLB_PARTS; p++) {
        static const enum clb_role shared[] = { CLB_SHARED_GATE_PROJ, CLB_SHARED_UP,
                                                CLB_SHARED_DOWN };
        static const enum clb_role dense[] = { CLB_DENSE_GATE, CLB_DENSE_UP, CLB_DENSE_DOWN };

        l->shared[p] = matrix(s, shared[p], NO_BIAS);
        l->dense[p] = matrix(s, dense[p], NO_BIAS);
    }
    l->experts = clb_reader_experts(s.r, s.layer);
    if (l->experts) {
        l->n_expert = l->experts->count;
        l->top_k = clb_arch_layer_top_k(a, s.layer);
    }
}

bool clb_weights_bind(struct clb_weights *w, const struct clb_reader *r, struct clb_err *err)
{
    struct source whole = { r, WHOLE };
    const struct clb_tensor *embed = clb_reader_find(r, CLB_EMBED, WHOLE);

    *w = (struct clb_weights){
        .arch = &r->arch,
        .reader = r,
        .embed_dtype = embed->dtype,
        .embed = clb_reader_data(r, embed),
        .rope_inv_freq = vector(whole, CLB_ROPE_INV_FREQ),
        .rope_inv_freq_long = vector(whole, CLB_ROPE_INV_FREQ_LONG),
        .final_norm = vector(whole, CLB_FINAL_NORM),
        .final_norm_bias = vector(whole, CLB_FINAL_NORM_BIAS),
        .output = matrix(whole, CLB_OUTPUT, CLB_OUTPUT_BIAS),
        .layer = clb_new(r->arch.n_layer, sizeof *w->layer, err),
    };
    if (!w->layer)
        return false;
    for (uint32_t i = 0; i < r->arch.n_layer; i++) {
        struct source s = { r, i };

        w->layer[i].index = i;
        bind_attention(&w->layer[i], s);
        bind_mlp(&w->layer[i], s, &r->arch);
    }
    return true;
}

void clb_weights_done(struct clb_weights *w)
{
    clb_free(w->layer);
    *w = (struct clb_weights){ 0 };
}
