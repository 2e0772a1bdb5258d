/* forward.c - the whole pass on one screen. */
#include "lib/forward/forward.h"

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/forward/stages.h"

static bool attention(struct clb_run *r, const struct clb_layer *l, struct clb_err *err)
{
    const struct clb_backend_ops *op = r->e->op;
    struct clb_backend *be = r->e->be;

    return clb_lap(r, CLB_STAGE_PROJECT, op->attn_project(be, r->x, l, err)) &&
           clb_lap(r, CLB_STAGE_MIX, op->attn_mix(be, r->x, l, err)) &&
           clb_lap(r, CLB_STAGE_OUTPUT, op->attn_output(be, r->x, l, err));
}

static bool layer(struct clb_run *r, const struct clb_layer *l, struct clb_err *err)
{
    bool ok = attention(r, l, err) &&
              (l->n_expert ? clb_moe(r, l, err)
                           : clb_lap(r, CLB_STAGE_MLP, r->e->op->mlp(r->e->be, r->x, l, err)));

    return ok || clb_fail_in(err, "layer %u", l->index);
}

static bool run(struct clb_run *r, float *logits, struct clb_err *err)
{
    const struct clb_backend_ops *op = r->e->op;
    struct clb_backend *be = r->e->be;
    const struct clb_weights *w = r->e->w;

    if (!op->begin(be, r->x, w, r->p, err) ||
        !clb_lap(r, CLB_STAGE_EMBED, op->embed(be, r->x, err)))
        return false;
    for (uint32_t l = 0; l < w->arch->n_layer; l++)
        if (!layer(r, &w->layer[l], err))
            return false;
    return clb_lap(r, CLB_STAGE_LOGITS, op->logits(be, r->x, logits, err));
}

bool clb_forward(const struct clb_engine *e, struct clb_acts *x, const struct clb_pass *p,
                 float *logits, struct clb_profile *profile, struct clb_err *err)
{
    struct clb_run r = { .e = e, .x = x, .p = p, .profile = profile };

    if (!p->n_row)
        return true;
    clb_alloc_guard_lock();
    if (profile) {
        e->op->watch(e->be, &r.use);
        r.mark = clb_now();
    }
    bool ok = run(&r, logits, err);
    if (profile)
        e->op->watch(e->be, NULL);
    if (profile && ok)
        clb_profile_pass(profile, e->w, p);
    clb_alloc_guard_unlock();
    return ok;
}
