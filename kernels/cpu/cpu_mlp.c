/* cpu_mlp.c - gated MLPs: of experts, of the shared expert, of dense layers; and the stage of
 * dense layers. */
#include "kernels/cpu/cpu.h"

/* in[i] and out[i] from the three matrices, for n_row rows of `from`; inner rows from `at` on. */
void clb_cpu_mlp_set(const struct clb_acts *x, struct clb_cpu_mlp *m, uint32_t i,
                     const struct clb_matrix part[CLB_PARTS], const struct clb_cpu_rows *from,
                     uint32_t n_row, size_t at, float *y)
{
    uint32_t width = part[CLB_GATE].rows;
    size_t ld = clb_cpu_ld(width), record_bytes = clb_record_bytes(width);
    struct clb_cpu_rows inner = {
        .f32 = x->inner + at * ld,
        .ld = ld,
        .record = x->inner_record + at * record_bytes,
        .record_bytes = record_bytes,
    };

    m->in.l[i] = (struct clb_cpu_linear){
        .w = part[CLB_GATE],
        .up = part[CLB_UP],
        .x = *from,
        .n_row = n_row,
        .y = x->inner + at * ld,
        .ldy = ld,
    };
    m->out.l[i] = (struct clb_cpu_linear){
        .w = part[CLB_DOWN],
        .x = inner,
        .n_row = n_row,
        .y = y,
        .ldy = x->ld_hidden,
    };
}

void clb_cpu_mlp_plan(const struct clb_backend *be, struct clb_cpu_mlp *m)
{
    clb_cpu_list_plan(be, &m->in);
    clb_cpu_list_plan(be, &m->out);
}

/* An even share of all inner rows of the list to records. */
static void quantise_inner(const struct clb_backend *be, const struct clb_cpu_list *out,
                           unsigned thread, unsigned n_thread)
{
    uint32_t total = 0, first, last, at = 0;

    for (uint32_t i = 0; i < out->n; i++)
        total += out->l[i].n_row;
    clb_share(total, thread, n_thread, &first, &last);
    for (uint32_t i = 0; i < out->n && at < last; at += out->l[i++].n_row) {
        const struct clb_cpu_linear *l = &out->l[i];
        uint32_t from = first > at ? first - at : 0;
        uint32_t to = last - at < l->n_row ? last - at : l->n_row;

        for (uint32_t r = from; r < to && clb_cpu_quantised(&l->w); r++)
            be->k.quantise((uint8_t *)(uintptr_t)l->x.record + r * l->x.record_bytes,
                           l->x.f32 + r * l->x.ld, l->w.cols);
    }
}

void clb_cpu_mlp_run(const struct clb_backend *be, const struct clb_acts *x, struct clb_cpu_mlp *m,
                     unsigned thread, unsigned n_thread)
{
    clb_cpu_list_run(be, x, &m->in, thread);
    clb_pool_barrier(be->pool);
    quantise_inner(be, &m->out, thread, n_thread);
    clb_pool_barrier(be->pool);
    clb_cpu_list_run(be, x, &m->out, thread);
}

struct job {
    struct clb_backend *be;
    struct clb_acts *x;
    const struct clb_layer *l;
    struct clb_cpu_mlp mlp;
};

static void run(void *arg, unsigned thread, unsigned n_thread)
{
    struct job *j = arg;
    struct clb_acts *x = j->x;
    uint32_t first, last;

    clb_share(x->p->n_row, thread, n_thread, &first, &last);
    for (uint32_t r = first; r < last; r++)
        clb_cpu_branch_row(j->be, x, r, clb_cpu_mlp_norm(j->l),
                           clb_cpu_quantised(&j->l->dense[CLB_GATE]) ||
                               clb_cpu_quantised(&j->l->dense[CLB_UP]));
    clb_pool_barrier(j->be->pool);
    clb_cpu_mlp_run(j->be, x, &j->mlp, thread, n_thread);
    clb_pool_barrier(j->be->pool);
    for (uint32_t r = first; r < last; r++)
        clb_cpu_residual_row(j->be, x, r, x->branch + r * x->ld_hidden, clb_cpu_mlp_norm(j->l));
}

bool clb_cpu_mlp(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                 struct clb_err *err)
{
    struct clb_cpu_rows from = clb_cpu_norm_rows(x);
    struct job j = {
        .be = be,
        .x = x,
        .l = l,
        .mlp = { .in = { .l = x->linear, .n = 1 }, .out = { .l = x->linear + 1, .n = 1 } },
    };

    (void)err;
    clb_cpu_mlp_set(x, &j.mlp, 0, l->dense, &from, x->p->n_row, 0, x->branch);
    clb_cpu_mlp_plan(be, &j.mlp);
    clb_cpu_run(be, j.mlp.in.cost + j.mlp.out.cost, run, &j);
    return true;
}
