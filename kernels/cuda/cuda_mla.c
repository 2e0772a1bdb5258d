/* cuda_mla.c - multi-head latent attention, absorbed as on the CPU (kernels/cpu/cpu_mla.c): k_up
 * takes queries into the latent's space, v_up takes what was mixed out of latents to values. Rows
 * of all heads lie head by head, so that both are one grouped product: a head is an expert whose
 * rows are all rows of the pass. */
#include "kernels/cuda/cuda.h"

/* n values of every head and row between [row][head] and [head][row] order. */
static void slice(struct clb_acts *x, uint32_t n_head, struct clb_cuda_slice s)
{
    s.n_row = x->p->n_row;
    s.n_head = n_head;
    clb_cuda_run_slice(&s, x->stream);
}

/* The rows of every head, times its matrix, to head_out. */
static void each_head(struct clb_backend *be, struct clb_acts *x, const struct clb_cuda_per_head *m,
                      const struct clb_cuda_rows *in)
{
    const struct clb_matrix *w = &m->w;
    struct clb_cuda_product p = clb_cuda_product_of(be, w->dtype, w->rows, w->cols, w->book);
    const struct clb_cuda_chunks chunks = {
        .list = { x->there.chunk[0], x->there.chunk[1], x->there.chunk[2] }, .n = x->there.n_chunk
    };

    p.block = m->block;
    p.part[0] = m->part;
    p.x = clb_cuda_as(in, clb_cuda_kind(w->dtype));
    p.ldx = in->ld;
    p.chunks = &chunks;
    p.n_row = x->p->n_row;
    p.y = x->head_out;
    p.ldy = x->ld_head;
    clb_cuda_run_product(&p, x->stream);
}

static float lora_eps(const struct clb_arch *a)
{
    return a->lora_norm_eps > 0 ? a->lora_norm_eps : a->norm_eps;
}

/* w reads rows `in` of its own kind. */
static void project(struct clb_backend *be, struct clb_acts *x, const struct clb_matrix *w,
                    const void *in, size_t ld_in, float *y, size_t ldy)
{
    const struct clb_cuda_linear l = {
        .w = w, .in = in, .ld_in = ld_in, .n_row = x->p->n_row, .y = y, .ldy = ldy
    };

    clb_cuda_linear(be, x, &l);
}

/* Queries, through their latent if they have one. */
static void queries(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *w)
{
    const struct clb_arch *a = be->host->arch;
    enum clb_cuda_kind kind = clb_cuda_kind(w->q.dtype);
    struct clb_cuda_branch norm = {
        .norm = { true, CLB_NORM_RMS, w->q_a_norm, NULL, lora_eps(a) },
        .ld_wide = x->q_in.ld,
        .ld_half = x->q_in.ld,
        .bf16 = kind == CLB_CUDA_BRAIN,
    };

    if (!w->q_a.tiles) {
        project(be, x, &w->q, clb_cuda_input(be, x, &w->q), x->in.ld, x->q, x->ld_q);
        return;
    }
    project(be, x, &w->q_a, clb_cuda_input(be, x, &w->q_a), x->in.ld, x->q_a, x->q_in.ld);
    if (kind == CLB_CUDA_WIDE)
        norm.wide = x->q_in.wide;
    else
        norm.half = x->q_in.half[kind];
    clb_cuda_run_branch(&norm, x->q_a, x->q_in.ld, a->q_lora_rank, x->p->n_row, x->stream);
    project(be, x, &w->q, clb_cuda_as(&x->q_in, kind), x->q_in.ld, x->q, x->ld_q);
}

/* The key: its latent is normed, what all heads share behind it is rotated. */
static void keys(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *w)
{
    const struct clb_arch *a = be->host->arch;
    const struct clb_cuda_heads h = {
        .n_head = 1,
        .dim = x->key_dim,
        .y = x->k,
        .ld = x->ld_k,
        .norm = CLB_QK_NORM_HEAD,
        .norm_dim = a->kv_lora_rank,
        .weight = w->kv_a_norm,
        .eps = lora_eps(a),
        .rope = a->rope,
        .rope_at = a->kv_lora_rank,
    };

    project(be, x, &w->kv_a, clb_cuda_input(be, x, &w->kv_a), x->in.ld, x->k, x->ld_k);
    clb_cuda_finish_heads(be, x, h, w->index);
}

void clb_cuda_mla_project(struct clb_backend *be, struct clb_acts *x,
                          const struct clb_cuda_layer *l)
{
    const struct clb_arch *a = be->host->arch;
    uint32_t n_row = x->p->n_row;
    enum clb_cuda_kind kind = clb_cuda_kind(l->k_up.w.dtype);
    const struct clb_cuda_heads rotate = {
        .n_head = a->n_head,
        .dim = x->key_dim,
        .y = x->query,
        .ld = x->ld_query,
        .rope = a->rope,
        .rope_at = a->kv_lora_rank,
    };
    struct clb_cuda_slice nope = {
        .n = a->qk_nope_dim,
        .from = x->q,
        .from_row = x->ld_q,
        .from_head = a->head_dim,
        .to_row = x->nope.ld,
        .to_head = x->nope.ld * n_row,
        .bf16 = kind == CLB_CUDA_BRAIN,
    };

    keys(be, x, &l->w);
    queries(be, x, &l->w);
    if (kind == CLB_CUDA_WIDE)
        nope.wide = x->nope.wide;
    else
        nope.half = x->nope.half[kind];
    slice(x, a->n_head, nope);
    each_head(be, x, &l->k_up, &x->nope);
    slice(x, a->n_head,
          (struct clb_cuda_slice){ .n = a->kv_lora_rank,
                                   .from = x->head_out,
                                   .from_row = x->ld_head,
                                   .from_head = x->ld_head * n_row,
                                   .wide = x->query,
                                   .to_row = x->ld_query,
                                   .to_head = x->key_dim });
    slice(x, a->n_head,
          (struct clb_cuda_slice){ .n = a->qk_rope_dim,
                                   .from = x->q + a->qk_nope_dim,
                                   .from_row = x->ld_q,
                                   .from_head = a->head_dim,
                                   .wide = x->query + a->kv_lora_rank,
                                   .to_row = x->ld_query,
                                   .to_head = x->key_dim });
    clb_cuda_finish_heads(be, x, rotate, l->w.index);
}

void clb_cuda_mla_values(struct clb_backend *be, struct clb_acts *x, const struct clb_cuda_layer *l)
{
    const struct clb_arch *a = be->host->arch;
    enum clb_cuda_kind kind = clb_cuda_kind(l->w.o.dtype);
    struct clb_cuda_slice mix = {
        .n = a->value_dim,
        .from = x->head_out,
        .from_row = x->ld_head,
        .from_head = x->ld_head * x->p->n_row,
        .to_row = x->mix.ld,
        .to_head = a->value_dim,
        .bf16 = kind == CLB_CUDA_BRAIN,
    };

    each_head(be, x, &l->v_up, &x->mixed);
    if (kind == CLB_CUDA_WIDE)
        mix.wide = x->mix.wide;
    else
        mix.half = x->mix.half[kind];
    slice(x, a->n_head, mix);
}
