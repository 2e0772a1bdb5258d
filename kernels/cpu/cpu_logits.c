/* cpu_logits.c - final norm and output projection of the rows whose logits are wanted. */
#include "kernels/cpu/cpu.h"

#include "lib/base/fmath.h"

struct job {
    struct clb_backend *be;
    struct clb_acts *x;
    float *out; /* [n_logit][vocab] */
    struct clb_cpu_list list;
};

static void finish(const struct job *j, float *y)
{
    const struct clb_arch *a = j->x->a;
    float cap = a->logit_softcap;

    if (a->logit_scale > 0 && a->logit_scale != 1)
        j->be->k.scale(y, a->logit_scale, a->vocab_size);
    for (uint32_t i = 0; cap > 0 && i < a->vocab_size; i++)
        y[i] = cap * clb_tanhf(y[i] / cap);
}

static void logits(void *arg, unsigned thread, unsigned n_thread)
{
    struct job *j = arg;
    struct clb_acts *x = j->x;
    uint32_t first, last;

    clb_share(x->p->n_logit, thread, n_thread, &first, &last);
    for (uint32_t i = first; i < last; i++)
        clb_cpu_norm_row(j->be, x, i, x->x + x->p->logit_row[i] * x->ld_hidden,
                         (struct clb_cpu_norm){ x->w->final_norm, x->w->final_norm_bias },
                         clb_cpu_quantised(&x->w->output));
    clb_pool_barrier(j->be->pool);
    clb_cpu_list_run(j->be, x, &j->list, thread);
    clb_pool_barrier(j->be->pool);
    for (uint32_t i = first; i < last; i++)
        finish(j, j->out + (size_t)i * x->a->vocab_size);
}

bool clb_cpu_logits(struct clb_backend *be, struct clb_acts *x, float *out, struct clb_err *err)
{
    struct job j = { .be = be, .x = x, .out = out, .list = { .l = x->linear, .n = 1 } };

    (void)err;
    if (!x->p->n_logit)
        return true;
    x->linear[0] = (struct clb_cpu_linear){
        .w = x->w->output,
        .x = clb_cpu_norm_rows(x),
        .n_row = x->p->n_logit,
        .y = out,
        .ldy = x->a->vocab_size,
    };
    clb_cpu_list_plan(be, &j.list);
    clb_cpu_run(be, j.list.cost, logits, &j);
    return true;
}
