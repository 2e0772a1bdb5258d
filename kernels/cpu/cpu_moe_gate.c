/* cpu_moe_gate.c - the router: norm, logits of all experts, the top-k and their weights. */
#include "kernels/cpu/cpu.h"

struct job {
    struct clb_backend *be;
    struct clb_acts *x;
    const struct clb_layer *l;
    uint32_t top_k;
    bool quantised; /* experts want records */
    struct clb_cpu_list router;
};

/* The k largest of score[0..n), largest first, ties to the lowest id: a sorted list of k, into
 * which a better score is inserted. id has room for k. */
static void select_top(uint32_t *id, float *best, const float *score, uint32_t n, uint32_t k)
{
    uint32_t have = 0;

    for (uint32_t e = 0; e < n; e++) {
        if (have == k && !(score[e] > best[k - 1]))
            continue;
        uint32_t i = have < k ? have++ : k - 1;
        for (; i > 0 && score[e] > best[i - 1]; i--) {
            best[i] = best[i - 1];
            id[i] = id[i - 1];
        }
        best[i] = score[e];
        id[i] = e;
    }
}

/* w /= sum of w, in rank order. */
static void normalise(float *w, uint32_t k)
{
    float sum = w[0];

    for (uint32_t i = 1; i < k; i++)
        sum += w[i];
    for (uint32_t i = 0; i < k; i++)
        w[i] /= sum;
}

static void choose(const struct job *j, uint32_t row)
{
    struct clb_acts *x = j->x;
    const struct clb_arch *a = x->a;
    float *score = x->score + row * x->ld_expert, *weight = x->weight + (size_t)row * j->top_k;
    uint32_t n = j->l->n_expert;

    if (a->router_clip > 0)
        j->be->k.clip(score, a->router_clip, n);
    if (a->router == CLB_ROUTER_SOFTMAX_TOPK)
        j->be->k.softmax(score, n);
    select_top(x->chosen + (size_t)row * j->top_k, weight, score, n, j->top_k);
    if (a->router == CLB_ROUTER_TOPK_SOFTMAX)
        j->be->k.softmax(weight, j->top_k);
    else if (a->topk_normalise)
        normalise(weight, j->top_k);
    if (a->routed_scale > 0 && a->routed_scale != 1)
        j->be->k.scale(weight, a->routed_scale, j->top_k);
}

static void gate(void *arg, unsigned thread, unsigned n_thread)
{
    struct job *j = arg;
    struct clb_acts *x = j->x;
    uint32_t first, last;

    clb_share(x->p->n_row, thread, n_thread, &first, &last);
    for (uint32_t r = first; r < last; r++)
        clb_cpu_norm_row(j->be, x, r, x->x + r * x->ld_hidden, j->l->mlp_norm, j->quantised);
    clb_pool_barrier(j->be->pool);
    clb_cpu_list_run(j->be, x, &j->router, thread);
    clb_pool_barrier(j->be->pool);
    for (uint32_t r = first; r < last; r++)
        choose(j, r);
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
    };

    (void)err;
    x->linear[0] = (struct clb_cpu_linear){
        .w = l->router,
        .x = clb_cpu_norm_rows(x),
        .n_row = x->p->n_row,
        .y = x->score,
        .ldy = x->ld_expert,
    };
    x->routes = (struct clb_routes){
        .n_row = x->p->n_row,
        .top_k = j.top_k,
        .n_expert = l->n_expert,
        .expert = x->chosen,
        .weight = x->weight,
    };
    clb_cpu_list_plan(be, &j.router);
    clb_cpu_run(be, j.router.cost, gate, &j);
    return true;
}
