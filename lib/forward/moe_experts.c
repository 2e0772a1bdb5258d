/* moe_experts.c - where the weights of the active experts are, is the store's business. It may hold
 * fewer than the pass needs; then the stage runs in several calls, with the same results, and the
 * next ones are announced while the ones at hand are multiplied. */
#include "lib/forward/stages.h"

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

bool clb_moe_experts(const struct clb_run *r, const struct clb_layer *l,
                     const struct clb_routes *routes, struct clb_err *err)
{
    const struct clb_engine *e = r->e;
    uint32_t n_active = routes->n_active - routes->n_held, most = clb_experts_max_get(e->experts);

    for (uint32_t i = 0; i < n_active; i++)
        e->block[i] = NULL; /* not in this call */
    for (uint32_t i = 0, next; i < n_active; i = next) {
        next = i + smaller(most, n_active - i);
        if (!clb_experts_get(e->experts, l->index, routes->active + i, next - i, e->block + i, err))
            return false;
        clb_experts_prefetch(e->experts, l->index, routes->active + next,
                             smaller(most, n_active - next));
        if (!e->op->moe_experts(e->be, r->x, l, e->block, err))
            return false;
        for (uint32_t k = i; k < next; k++)
            e->block[k] = NULL;
    }
    return true;
}
