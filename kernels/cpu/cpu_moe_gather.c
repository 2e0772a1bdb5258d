/* cpu_moe_gather.c - the shared expert, then per row the weighted sum of its experts in ascending
 * rank, the shared expert's output and the residual. */
#include "kernels/cpu/cpu.h"

#include <string.h>

#include "lib/base/fmath.h"

struct job {
    struct clb_backend *be;
    struct clb_acts *x;
    const struct clb_layer *l;
    bool shared;
    struct clb_cpu_mlp mlp;   /* the shared expert: norm -> branch */
    struct clb_cpu_list gate; /* its gate: norm -> score[row][0] */
};

static void gather_row(const struct job *j, uint32_t row)
{
    const struct clb_acts *x = j->x;
    const struct clb_kernels *k = &j->be->k;
    uint32_t n = x->a->hidden_size, top_k = x->routes.top_k;
    const uint32_t *slot = x->routes.slot + (size_t)row * top_k;
    const float *weight = x->weight + (size_t)row * top_k;
    const float *branch = x->branch + row * x->ld_hidden;
    float *sum = x->norm + row * x->ld_hidden; /* the input of the layer is not needed any more */

    memcpy(sum, x->slot_out + slot[0] * x->ld_hidden, n * sizeof *sum);
    if (!x->a->scale_expert_input)
        k->scale(sum, weight[0], n);
    for (uint32_t i = 1; i < top_k; i++)
        if (x->a->scale_expert_input)
            k->add(sum, x->slot_out + slot[i] * x->ld_hidden, n);
        else
            k->scale_add(sum, x->slot_out + slot[i] * x->ld_hidden, weight[i], n);
    if (j->shared && j->l->shared_gate.tiles)
        k->scale_add(sum, branch, clb_sigmoidf(x->score[row * x->ld_expert]), n);
    else if (j->shared)
        k->add(sum, branch, n);
    clb_cpu_residual_row(j->be, x, row, sum, clb_cpu_mlp_norm(j->l));
}

static void gather(void *arg, unsigned thread, unsigned n_thread)
{
    struct job *j = arg;
    uint32_t first, last;

    if (j->shared) {
        clb_cpu_list_run(j->be, j->x, &j->gate, thread);
        clb_cpu_mlp_run(j->be, j->x, &j->mlp, thread, n_thread);
        clb_pool_barrier(j->be->pool);
    }
    clb_share(j->x->p->n_row, thread, n_thread, &first, &last);
    for (uint32_t r = first; r < last; r++)
        gather_row(j, r);
}

bool clb_cpu_moe_gather(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                        struct clb_err *err)
{
    struct clb_cpu_rows from = clb_cpu_norm_rows(x);
    struct job j = {
        .be = be,
        .x = x,
        .l = l,
        .shared = l->shared[CLB_GATE].tiles != NULL,
        .mlp = { .in = { .l = x->linear, .n = 1 }, .out = { .l = x->linear + 1, .n = 1 } },
        .gate = { .l = x->linear + 2, .n = l->shared_gate.tiles != NULL },
    };

    (void)err;
    if (j.shared) {
        clb_cpu_mlp_set(x, &j.mlp, 0, l->shared, &from, x->p->n_row, 0, x->branch);
        x->linear[2] = (struct clb_cpu_linear){
            .w = l->shared_gate, .x = from, .n_row = x->p->n_row, .y = x->score, .ldy = x->ld_expert
        };
        clb_cpu_mlp_plan(be, &j.mlp);
        clb_cpu_list_plan(be, &j.gate);
    }
    uint64_t sums = x->p->n_row * (x->routes.top_k + 2ull) * x->a->hidden_size * 8;
    clb_cpu_run(be, sums + j.mlp.in.cost + j.mlp.out.cost, gather, &j);
    return true;
}
