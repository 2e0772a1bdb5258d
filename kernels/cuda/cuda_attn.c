/* cuda_attn.c - the three stages of attention: projections and KV cache, scores and values, output.
 */
#include "kernels/cuda/cuda.h"

/* -- projections ------------------------------------------------------------------------------- */

static void project(struct clb_backend *be, struct clb_acts *x, const struct clb_matrix *w,
                    float *y, size_t ldy)
{
    const struct clb_cuda_linear l = {
        .w = w,
        .in = clb_cuda_input(be, x, w),
        .ld_in = x->in.ld,
        .n_row = x->p->n_row,
        .y = y,
        .ldy = ldy,
    };

    clb_cuda_linear(be, x, &l);
}

/* `h` has what is its own; the rest is the layer's. */
void clb_cuda_finish_heads(struct clb_backend *be, struct clb_acts *x, struct clb_cuda_heads h,
                           uint32_t layer)
{
    const struct clb_arch *a = be->host->arch;

    h.n_row = x->p->n_row;
    h.rope = a->no_rope[layer] ? CLB_ROPE_NONE : h.rope;
    h.rope_dim = a->rope_dim;
    h.cosine = x->cosine;
    h.sine = x->sine;
    h.position = x->there.position;
    clb_cuda_run_heads(&h, x->stream);
}

static struct clb_cuda_heads heads_of(const struct clb_arch *a, uint32_t n_head, float *y,
                                      size_t ld, const float *weight, bool rotated)
{
    return (struct clb_cuda_heads){
        .n_head = n_head,
        .dim = a->head_dim,
        .y = y,
        .ld = ld,
        .norm = a->qk_norm == CLB_QK_NORM_L2 && !rotated ? CLB_QK_NORM_NONE : a->qk_norm,
        .norm_dim = a->head_dim,
        .weight = weight,
        .eps = a->qk_norm_eps > 0 ? a->qk_norm_eps : a->norm_eps,
        .clip = a->clip_qkv,
        .rope = a->rope,
    };
}

static void finish_all(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l)
{
    const struct clb_arch *a = be->host->arch;
    bool rotated = a->rope != CLB_ROPE_NONE && !a->no_rope[l->index];
    struct clb_cuda_heads q = heads_of(a, a->n_head, x->q, x->ld_q, l->q_norm, rotated);
    const struct clb_cuda_heads k = heads_of(a, a->n_kv_head, x->k, x->ld_k, l->k_norm, rotated);
    const struct clb_cuda_heads v = {
        .n_head = a->n_kv_head, .dim = a->value_dim, .y = x->v, .ld = x->ld_v, .clip = a->clip_qkv
    };

    if (a->no_rope[l->index]) {
        q.temperature = a->attn_temperature_scale;
        q.floor = a->attn_temperature_floor;
    }
    clb_cuda_finish_heads(be, x, q, l->index);
    clb_cuda_finish_heads(be, x, k, l->index);
    if (v.clip > 0)
        clb_cuda_finish_heads(be, x, v, l->index);
}

struct clb_cuda_kv clb_cuda_kv_of(const struct clb_backend *be, const struct clb_acts *x,
                                  uint32_t layer)
{
    const struct clb_kv_shape *s = clb_kv_pool_shape(x->pool);

    (void)be;
    return (struct clb_cuda_kv){
        .dtype = s->dtype,
        .pages = clb_kv_pool_block(x->pool, 0) + layer * s->layer_bytes,
        .page_bytes = s->block_bytes,
        .head_bytes = s->head_bytes,
        .n_head = s->n_kv_head,
        .key_dim = s->key_dim,
        .value_dim = s->value_dim,
        .table = x->there.table,
        .ld_table = x->ld_table,
    };
}

bool clb_cuda_attn_project(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                           struct clb_err *err)
{
    const struct clb_cuda_layer *there = &be->layer[l->index];
    const struct clb_cuda_append append = {
        .kv = clb_cuda_kv_of(be, x, l->index),
        .n_row = x->p->n_row,
        .key = x->k,
        .value = x->v,
        .ld_key = x->ld_k,
        .ld_value = x->ld_v,
        .position = x->there.position,
        .sequence = x->there.sequence,
    };

    if (be->host->arch->attention == CLB_ATTN_MLA) {
        clb_cuda_mla_project(be, x, there);
    } else {
        project(be, x, &there->w.q, x->q, x->ld_q);
        project(be, x, &there->w.k, x->k, x->ld_k);
        project(be, x, &there->w.v, x->v, x->ld_v);
        finish_all(be, x, &there->w);
    }
    clb_cuda_run_append(&append, x->stream);
    return clb_cuda_launched(be, x, err, "AttnProject");
}

/* -- scores and values ------------------------------------------------------------------------- */

/* Splits get blocks of their own while there are few blocks, and room for what they find. */
static bool split_first(const struct clb_backend *be, const struct clb_acts *x, uint32_t n_tile)
{
    uint64_t blocks = (uint64_t)n_tile * x->n_kv_head;
    uint32_t splits = clb_cuda_splits(x->last_position);

    return splits > 1 && blocks < be->n_cta / 2 && blocks * splits <= x->most_partials;
}

bool clb_cuda_attn_mix(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                       struct clb_err *err)
{
    const struct clb_arch *a = be->host->arch;
    const struct clb_layer *w = &be->layer[l->index].w;
    bool mla = a->attention == CLB_ATTN_MLA;
    enum clb_cuda_kind kind = clb_cuda_kind(mla ? be->layer[l->index].v_up.w.dtype : w->o.dtype);
    const struct clb_cuda_rows *to = mla ? &x->mixed : &x->mix;
    bool library = x->dnn.n_run && be->dnn.takes[l->index];
    uint32_t n_tile = library ? x->n_own_tile : x->n_tile;
    const struct clb_cuda_attention m = {
        .kv = clb_cuda_kv_of(be, x, l->index),
        .tile = x->there.tile,
        .n_tile = n_tile,
        .n_head = a->n_head,
        .q = x->query,
        .ld_q = mla ? x->ld_query : x->ld_q,
        .position = x->there.position,
        .last_position = x->last_position,
        .window = a->window[l->index],
        .chunk = a->chunk[l->index],
        .scale = clb_arch_attn_scale(a),
        .softcap = a->attn_softcap,
        .sink = w->sinks,
        .out = kind == CLB_CUDA_WIDE ? NULL : to->half[kind],
        .wide = kind == CLB_CUDA_WIDE ? to->wide : NULL,
        .ld_out = to->ld,
        .ld_head = mla ? to->ld * x->p->n_row : a->value_dim,
        .bf16 = kind == CLB_CUDA_BRAIN,
        .split_first = split_first(be, x, n_tile),
        .partial = x->partial,
    };

    if (n_tile)
        clb_cuda_run_attention(&m, x->stream);
    if (library)
        clb_cuda_dnn_mix(be, x, &m);
    return clb_cuda_launched(be, x, err, "Attention");
}

/* -- output ------------------------------------------------------------------------------------ */

bool clb_cuda_attn_output(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                          struct clb_err *err)
{
    const struct clb_cuda_layer *there = &be->layer[l->index];
    const struct clb_cuda_linear o = {
        .w = &there->w.o,
        .in = clb_cuda_as(&x->mix, clb_cuda_kind(there->w.o.dtype)),
        .ld_in = x->mix.ld,
        .n_row = x->p->n_row,
        .y = x->out,
        .ldy = x->ld_hidden,
    };

    if (be->host->arch->attention == CLB_ATTN_MLA)
        clb_cuda_mla_values(be, x, there);
    clb_cuda_linear(be, x, &o);
    const struct clb_cuda_branch next = clb_cuda_next(be, x, &there->w, true);
    clb_cuda_residual(be, x, x->out, clb_cuda_attn_norm(be, &there->w), &next);
    return clb_cuda_launched(be, x, err, "AttnOutput");
}
