/* stages.h - what the files of lib/forward share: the pass that is running and its clock. */
#ifndef CLB_FORWARD_STAGES_H
#define CLB_FORWARD_STAGES_H

#include "lib/forward/forward.h"

struct clb_run {
    const struct clb_engine *e;
    struct clb_acts *x;
    const struct clb_pass *p;
    struct clb_profile *profile; /* NULL: no clock is read */
    double mark;                 /* when the last stage ended */
    struct clb_pool_use use;     /* of this pass, when there is a profile */
    struct clb_pool_use before;  /* what it was when the last stage ended */
};

/* moe.c: Gate, Scatter, ExpertCompute, Gather of one layer. */
bool clb_moe(struct clb_run *r, const struct clb_layer *l, struct clb_err *err);
/* moe_experts.c: asks the store for the active experts and runs them, in several calls when it
 * cannot hold them all. */
bool clb_moe_experts(const struct clb_run *r, const struct clb_layer *l,
                     const struct clb_routes *routes, struct clb_err *err);

/* profile.c. Ends a stage: the time since the last one ended is its own. Returns `ok`. */
bool clb_lap(struct clb_run *r, enum clb_stage stage, bool ok);
/* What the pass had to read and multiply, without what depends on routes. */
void clb_profile_pass(struct clb_profile *f, const struct clb_weights *w, const struct clb_pass *p);
/* The experts of one layer. */
void clb_profile_routes(struct clb_profile *f, const struct clb_weights *w,
                        const struct clb_layer *l, const struct clb_routes *routes);

#endif
