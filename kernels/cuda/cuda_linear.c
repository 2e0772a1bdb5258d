/* cuda_linear.c - steps that several stages share: inputs of branches, products, residuals. */
#include "kernels/cuda/cuda.h"

#include <string.h>

/* -- inputs of branches ------------------------------------------------------------------------ */

static struct clb_cuda_norm norm_of(const struct clb_backend *be, const float *weight,
                                    const float *bias)
{
    const struct clb_arch *a = be->host->arch;

    return (struct clb_cuda_norm){ true, a->norm, weight, bias, a->norm_eps };
}

struct clb_cuda_norm clb_cuda_attn_norm(const struct clb_backend *be, const struct clb_layer *l)
{
    return norm_of(be, l->attn_norm, l->attn_norm_bias);
}

struct clb_cuda_norm clb_cuda_mlp_norm(const struct clb_backend *be, const struct clb_layer *l)
{
    return norm_of(be, l->mlp_norm, l->mlp_norm_bias);
}

/* What reads the branch first, and whether all that read it take the same rows. */
static enum clb_cuda_kind main_kind(const struct clb_layer *l, bool mlp, bool *wide)
{
    const struct clb_matrix *const attn[] = { &l->q, &l->k, &l->v, &l->kv_a, &l->q_a };
    const struct clb_matrix *const inner[] = { &l->dense[CLB_GATE], &l->shared[CLB_GATE],
                                               &l->shared_gate };
    const struct clb_matrix *const *m = mlp ? inner : attn;
    size_t n = mlp ? sizeof inner / sizeof *inner : sizeof attn / sizeof *attn;
    int kind = mlp && l->experts ? (int)clb_cuda_kind(l->experts->part[CLB_GATE].dtype) : -1;

    *wide = mlp && l->experts; /* the router */
    for (size_t i = 0; i < n; i++) {
        if (!m[i]->tiles || (m[i] == &l->q && l->q_a.tiles)) /* that reads the query's latent */
            continue;
        if (kind < 0)
            kind = (int)clb_cuda_kind(m[i]->dtype);
        *wide |= (int)clb_cuda_kind(m[i]->dtype) != kind;
    }
    *wide |= kind == CLB_CUDA_WIDE;
    return (enum clb_cuda_kind)kind;
}

struct clb_cuda_branch clb_cuda_next(struct clb_backend *be, struct clb_acts *x,
                                     const struct clb_layer *l, bool mlp)
{
    struct clb_cuda_branch b = { .ld_wide = x->in.ld, .ld_half = x->in.ld };
    bool wide;

    memset(x->in_has, 0, sizeof x->in_has);
    if (!l)
        return b;
    enum clb_cuda_kind kind = main_kind(l, mlp, &wide);
    b.norm = mlp ? clb_cuda_mlp_norm(be, l) : clb_cuda_attn_norm(be, l);
    b.norm.on = be->host->arch->norm_place == CLB_NORM_BEFORE;
    b.wide = wide ? x->in.wide : NULL;
    b.half = kind == CLB_CUDA_WIDE ? NULL : x->in.half[kind];
    b.bf16 = kind == CLB_CUDA_BRAIN;
    x->in_has[CLB_CUDA_WIDE] = wide;
    x->in_has[kind] = true;
    return b;
}

const void *clb_cuda_input(struct clb_backend *be, struct clb_acts *x, const struct clb_matrix *w)
{
    enum clb_cuda_kind kind = clb_cuda_kind(w->dtype);

    if (!x->in_has[kind]) {
        const struct clb_cuda_slice s = {
            .n_row = x->p->n_row,
            .n_head = 1,
            .n = be->host->arch->hidden_size,
            .from = x->in.wide,
            .from_row = x->in.ld,
            .half = x->in.half[kind],
            .to_row = x->in.ld,
            .bf16 = kind == CLB_CUDA_BRAIN,
        };
        clb_cuda_run_slice(&s, x->stream);
        x->in_has[kind] = true;
    }
    return clb_cuda_as(&x->in, kind);
}

/* -- products ---------------------------------------------------------------------------------- */

struct clb_cuda_product clb_cuda_product_of(const struct clb_backend *be, enum clb_dtype dtype,
                                            uint32_t rows, uint32_t cols, const int8_t *book)
{
    const struct clb_arch *a = be->host->arch;
    struct clb_cuda_product p = {
        .dtype = dtype,
        .rows = rows,
        .cols = cols,
        .act = a->act,
        .limit = a->act_limit,
        .alpha = a->act_alpha,
        .n_cta = be->n_cta,
        .part = { { .bias_at = CLB_CUDA_NONE }, { .bias_at = CLB_CUDA_NONE } },
    };

    for (int i = 0; book && i < 16; i++)
        p.book[i / 4] |= (uint32_t)(book[i] + 128) << 8 * (i % 4);
    return p;
}

/* Where a matrix lies, counted from `base`. */
static struct clb_cuda_part part_of(const struct clb_matrix *m, const uint8_t *base)
{
    uintptr_t from = (uintptr_t)base;

    return (struct clb_cuda_part){
        .tiles_at = (uintptr_t)m->tiles - from,
        .scale_at = (uintptr_t)m->row_scale - from,
        .bias_at = m->bias ? (uintptr_t)m->bias - from : CLB_CUDA_NONE,
    };
}

/* cuBLASLt has the matrix: both products of a gated one are f32 first. */
static bool by_library(struct clb_backend *be, struct clb_acts *x, const struct clb_cuda_linear *l)
{
    const struct clb_cuda_by_rows *w = clb_cuda_dense_of(be, l->w);
    const struct clb_matrix *const part[2] = { l->w, l->up };
    struct clb_cuda_activate a = {
        .n_row = l->n_row,
        .n = l->w->rows,
        .gate = x->gate_up[0],
        .up = x->gate_up[1],
        .ld = clb_cuda_ld(l->w->rows),
        .y = l->y,
        .ldy = l->ldy,
        .bf16 = l->w->dtype == CLB_BF16,
        .of = clb_cuda_product_of(be, l->w->dtype, l->w->rows, l->w->cols, NULL),
    };

    if (!w)
        return false;
    if (!l->up) {
        clb_cuda_dense_run(be, x, w, l);
        return true;
    }
    for (int k = 0; k < 2; k++) {
        const struct clb_cuda_linear one = { .w = part[k],
                                             .in = l->in,
                                             .ld_in = l->ld_in,
                                             .n_row = l->n_row,
                                             .y = x->gate_up[k],
                                             .ldy = a.ld };
        clb_cuda_dense_run(be, x, clb_cuda_dense_of(be, part[k]), &one);
    }
    clb_cuda_run_activate(&a, x->stream);
    return true;
}

void clb_cuda_linear(struct clb_backend *be, struct clb_acts *x, const struct clb_cuda_linear *l)
{
    const struct clb_matrix *w = l->w;
    struct clb_cuda_product p = clb_cuda_product_of(be, w->dtype, w->rows, w->cols, w->book);

    if (by_library(be, x, l))
        return;
    p.base = w->tiles;
    p.part[0] = part_of(w, w->tiles);
    if (l->up)
        p.part[1] = part_of(l->up, w->tiles);
    p.gated = l->up != NULL;
    p.x = l->in;
    p.ldx = l->ld_in;
    p.n_row = l->n_row;
    p.y = l->y;
    p.ldy = l->ldy;
    clb_cuda_run_product(&p, x->stream);
}

void clb_cuda_gated(struct clb_backend *be, struct clb_acts *x,
                    const struct clb_matrix part[CLB_PARTS], const struct clb_cuda_rows *inner,
                    float *y)
{
    enum clb_cuda_kind kind = clb_cuda_kind(part[CLB_GATE].dtype);
    const struct clb_cuda_linear in = {
        .w = &part[CLB_GATE],
        .up = &part[CLB_UP],
        .in = clb_cuda_input(be, x, &part[CLB_GATE]),
        .ld_in = x->in.ld,
        .n_row = x->p->n_row,
        .y = clb_cuda_as(inner, kind),
        .ldy = inner->ld,
    };
    const struct clb_cuda_linear down = {
        .w = &part[CLB_DOWN],
        .in = clb_cuda_as(inner, kind),
        .ld_in = inner->ld,
        .n_row = x->p->n_row,
        .y = y,
        .ldy = x->ld_hidden,
    };

    clb_cuda_linear(be, x, &in);
    clb_cuda_linear(be, x, &down);
}

/* -- residual ---------------------------------------------------------------------------------- */

void clb_cuda_residual(struct clb_backend *be, struct clb_acts *x, float *y,
                       struct clb_cuda_norm own, const struct clb_cuda_branch *next)
{
    const struct clb_arch *a = be->host->arch;
    struct clb_cuda_gather g = {
        .n_row = x->p->n_row,
        .n = a->hidden_size,
        .ld = x->ld_hidden,
        .shared = y,
        .x = x->x,
        .residual_scale = a->residual_scale,
        .after = own,
        .next = *next,
    };

    g.after.on = a->norm_place == CLB_NORM_AFTER;
    clb_cuda_moe_gather(&g, x->stream);
}
