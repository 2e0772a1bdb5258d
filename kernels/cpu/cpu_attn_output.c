/* cpu_attn_output.c - output projection of attention, and the residual. */
#include "kernels/cpu/cpu.h"

#include <string.h>

struct job {
    struct clb_backend *be;
    struct clb_acts *x;
    const struct clb_layer *l;
    struct clb_cpu_list o;
    atomic_uint next; /* MLA: the next head */
};

static void output(void *arg, unsigned thread, unsigned n_thread)
{
    struct job *j = arg;
    struct clb_acts *x = j->x;
    uint32_t n = x->a->n_head * x->a->value_dim, first, last;

    if (x->a->attention == CLB_ATTN_MLA) {
        clb_cpu_mla_values(j->be, x, j->l, &j->next, thread);
        clb_pool_barrier(j->be->pool);
    }
    clb_share(x->p->n_row, thread, n_thread, &first, &last);
    for (uint32_t r = first; r < last; r++) {
        float *mix = x->mix + r * x->ld_mix;

        memset(mix + n, 0, (x->ld_mix - n) * sizeof *mix);
        if (clb_cpu_quantised(&j->o.l->w))
            j->be->k.quantise(x->mix_record + r * x->mix_record_bytes, mix, n);
    }
    clb_pool_barrier(j->be->pool);
    clb_cpu_list_run(j->be, x, &j->o, thread);
    clb_pool_barrier(j->be->pool);
    for (uint32_t r = first; r < last; r++)
        clb_cpu_residual_row(j->be, x, r, x->branch + r * x->ld_hidden, clb_cpu_attn_norm(j->l));
}

bool clb_cpu_attn_output(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                         struct clb_err *err)
{
    struct job j = { .be = be, .x = x, .l = l, .o = { .l = x->linear, .n = 1 } };

    (void)err;
    x->linear[0] = (struct clb_cpu_linear){
        .w = l->o,
        .x = { .f32 = x->mix,
               .ld = x->ld_mix,
               .record = x->mix_record,
               .record_bytes = x->mix_record_bytes },
        .n_row = x->p->n_row,
        .y = x->branch,
        .ldy = x->ld_hidden,
    };
    clb_cpu_list_plan(be, &j.o);
    clb_cpu_run(be, j.o.cost, output, &j);
    return true;
}
