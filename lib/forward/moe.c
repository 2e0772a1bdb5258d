/* moe.c - the four stages of a mixture-of-experts layer. */
#include "lib/forward/stages.h"

bool clb_moe(struct clb_run *r, const struct clb_layer *l, struct clb_err *err)
{
    const struct clb_backend_ops *op = r->e->op;
    struct clb_backend *be = r->e->be;
    const struct clb_routes *routes;

    if (!clb_lap(r, CLB_STAGE_GATE, op->moe_gate(be, r->x, l, err)) ||
        !clb_lap(r, CLB_STAGE_SCATTER, op->moe_scatter(be, r->x, l, &routes, err)) ||
        !clb_lap(r, CLB_STAGE_EXPERTS,
                 routes && !routes->at_hand ? clb_moe_experts(r, l, routes, err)
                                            : op->moe_experts(be, r->x, l, NULL, err)) ||
        !clb_lap(r, CLB_STAGE_GATHER, op->moe_gather(be, r->x, l, err)))
        return false;
    if (r->profile && routes)
        clb_profile_routes(r->profile, r->e->w, l, routes);
    return true;
}
