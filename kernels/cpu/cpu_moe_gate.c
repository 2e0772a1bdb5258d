/* cpu_moe_gate.c - the router: norm, logits of all experts, the top-k and their weights. */
#include "kernels/cpu/cpu.h"

#include "lib/base/fmath.h"

struct job {
    struct clb_backend *be;
    struct clb_acts *x;
    const struct clb_layer *l;
    uint32_t top_k;
    bool quantised; /* experts want records */
    struct clb_cpu_list router_in, router;
};

static void choose(const struct job *j, uint32_t row, unsigned thread)
{
    struct clb_acts *x = j->x;

    clb_cpu_choose(&j->be->k, x->a, j->l->router_correction, &x->choice[thread],
                   x->score + row * x->ld_expert, j->l->n_expert, j->top_k,
                   x->chosen + (size_t)row * j->top_k, x->weight + (size_t)row * j->top_k);
}

/* LLaMA-MoE: another product and tanh come first. */
static void first_layer(struct job *j, unsigned thread, uint32_t first, uint32_t last)
{
    struct clb_acts *x = j->x;

    clb_cpu_list_run(j->be, x, &j->router_in, thread);
    clb_pool_barrier(j->be->pool);
    for (uint32_t r = first; r < last; r++)
        for (uint32_t e = 0; e < j->l->n_expert; e++) {
            float *y = x->score_in + r * x->ld_expert + e;

            *y = clb_tanhf(*y);
        }
    clb_pool_barrier(j->be->pool);
}

static void gate(void *arg, unsigned thread, unsigned n_thread)
{
    struct job *j = arg;
    struct clb_acts *x = j->x;
    uint32_t first, last;

    clb_share(x->p->n_row, thread, n_thread, &first, &last);
    for (uint32_t r = first; r < last; r++)
        clb_cpu_branch_row(j->be, x, r, clb_cpu_mlp_norm(j->l), j->quantised);
    clb_pool_barrier(j->be->pool);
    if (j->router_in.n)
        first_layer(j, thread, first, last);
    clb_cpu_list_run(j->be, x, &j->router, thread);
    clb_pool_barrier(j->be->pool);
    for (uint32_t r = first; r < last; r++)
        choose(j, r, thread);
}

static bool wants_records(const struct clb_layer *l)
{
    for (int p = CLB_GATE; p <= CLB_UP; p++)
        if (!clb_dtype_is_float(l->experts->part[p].dtype) || clb_cpu_quantised(&l->shared[p]))
            return true;
    return clb_cpu_quantised(&l->shared_gate);
}

bool clb_cpu_moe_gate(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                      struct clb_err *err)
{
    uint32_t top_k = x->p->top_k ? x->p->top_k : l->top_k;
    struct job j = {
        .be = be,
        .x = x,
        .l = l,
        .top_k = top_k < l->n_expert ? top_k : l->n_expert,
        .quantised = wants_records(l),
        .router = { .l = x->linear, .n = 1 },
        .router_in = { .l = x->linear + 1, .n = l->router_in.tiles != NULL },
    };

    (void)err;
    x->linear[0] = (struct clb_cpu_linear){
        .w = l->router,
        .x = clb_cpu_norm_rows(x),
        .n_row = x->p->n_row,
        .y = x->score,
        .ldy = x->ld_expert,
    };
    if (j.router_in.n) {
        x->linear[1] = x->linear[0];
        x->linear[1].w = l->router_in;
        x->linear[1].y = x->score_in;
        x->linear[0].x = (struct clb_cpu_rows){ .f32 = x->score_in, .ld = x->ld_expert };
        clb_cpu_list_plan(be, &j.router_in);
    }
    x->routes = (struct clb_routes){
        .n_row = x->p->n_row,
        .top_k = j.top_k,
        .n_expert = l->n_expert,
        .expert = x->chosen,
        .weight = x->weight,
    };
    clb_cpu_list_plan(be, &j.router);
    clb_cpu_run(be, j.router_in.cost + j.router.cost, gate, &j);
    return true;
}
