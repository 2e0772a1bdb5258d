/* cuda_moe.c - Gate, Scatter, ExpertCompute, Gather; and the MLP of dense layers. Routing stays on
 * the device, unless experts lie elsewhere or somebody counts. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_call.h"

#include <string.h>

/* -- Gate -------------------------------------------------------------------------------------- */

static struct clb_cuda_product_f32 router(const struct clb_acts *x, const struct clb_matrix *w,
                                          const float *in, size_t ld, float *y)
{
    return (struct clb_cuda_product_f32){
        .tiles = w->tiles,
        .bias = w->bias,
        .rows = w->rows,
        .cols = w->cols,
        .n_row = x->p->n_row,
        .x = in,
        .ldx = ld,
        .y = y,
        .ldy = x->ld_expert,
    };
}

bool clb_cuda_gate(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                   struct clb_err *err)
{
    const struct clb_arch *a = be->host->arch;
    const struct clb_layer *w = &be->layer[l->index].w;
    uint32_t top_k = x->p->top_k ? x->p->top_k : l->top_k;
    struct clb_cuda_gate g = {
        .product = router(x, &w->router, x->in.wide, x->in.ld, x->score),
        .correction = w->router_correction,
        .choice = w->router_correction || a->n_group > 1 ? x->choice : NULL,
        .arrived = x->arrived,
        .expert = x->chosen,
        .weight = x->weight,
        .top_k = top_k < l->n_expert ? top_k : l->n_expert,
        .n_group = a->n_group,
        .top_groups = a->top_groups,
        .router = a->router,
        .group_score = a->group_score,
        .normalise = a->topk_normalise,
        .normalise_min = a->topk_normalise_min,
        .clip = a->router_clip,
        .scale = a->routed_scale,
        .jitter = a->router_jitter,
    };

    if (w->router_in.tiles) {
        struct clb_cuda_product_f32 in =
            router(x, &w->router_in, x->in.wide, x->in.ld, x->score_in);

        in.tanh = true;
        clb_cuda_run_product_f32(&in, x->stream);
        g.product.x = x->score_in;
        g.product.ldx = x->ld_expert;
    }
    clb_cuda_moe_gate(&g, x->stream);
    x->routes =
        (struct clb_routes){ .n_row = x->p->n_row, .top_k = g.top_k, .n_expert = l->n_expert };
    return clb_cuda_launched(be, x, err, "Gate");
}

/* -- Scatter ----------------------------------------------------------------------------------- */

static bool fetch(struct clb_acts *x, void *to, const void *from, size_t n, struct clb_err *err)
{
    return clb_cuda_ok(cudaMemcpyAsync(to, from, n * 4, cudaMemcpyDeviceToHost, x->stream), err,
                       "Scatter: fetching routes");
}

/* Waits for them: experts cannot be asked for before. */
static bool fetch_routes(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                         struct clb_err *err)
{
    const struct clb_cuda_map *m = &x->map[l->index];
    struct clb_routes *r = &x->routes;
    size_t slots = (size_t)r->n_row * r->top_k;

    if (!clb_cuda_host_fetch(be, x, l, err) || !fetch(x, x->r_expert, x->chosen, slots, err) ||
        !fetch(x, x->r_weight, x->weight, slots, err) || !fetch(x, x->r_row, m->row, slots, err) ||
        !fetch(x, x->r_slot, m->slot, slots, err) ||
        !fetch(x, x->r_first, m->first, r->n_expert + 1, err) ||
        !fetch(x, x->r_reused, m->reused, 1, err) ||
        !clb_cuda_ok(cudaStreamSynchronize(x->stream), err, "Scatter"))
        return false;
    r->expert = x->r_expert;
    r->weight = x->r_weight;
    r->row = x->r_row;
    r->slot = x->r_slot;
    r->first = x->r_first;
    r->active = x->r_active;
    r->reused = *x->r_reused;
    for (uint32_t e = 0; e < r->n_expert; e++)
        if (r->first[e + 1] > r->first[e])
            x->r_active[r->n_active++] = e;
    clb_cuda_host_routed(be, x, l);
    return true;
}

bool clb_cuda_scatter(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                      const struct clb_routes **routes, struct clb_err *err)
{
    const struct clb_cuda_map *m = &x->map[l->index];
    const struct clb_cuda_scatter s = {
        .n_row = x->routes.n_row,
        .top_k = x->routes.top_k,
        .n_expert = x->routes.n_expert,
        .expert = x->chosen,
        .kept = m->kept,
        .first = m->first,
        .row = m->row,
        .slot = m->slot,
        .chunks = m->chunks,
        .reused = m->reused,
    };

    *routes = NULL;
    if (be->no_routing_cache &&
        !clb_cuda_ok(cudaMemsetAsync(m->kept, 0, sizeof *m->kept, x->stream), err, "Scatter"))
        return false;
    clb_cuda_moe_scatter(&s, x->stream);
    if (!clb_cuda_launched(be, x, err, "Scatter"))
        return false;
    x->is_spread = false;
    x->routes.at_hand = clb_cuda_alone(be);
    if (x->routes.at_hand && !x->p->want_routes && !be->n_peer)
        return true;
    *routes = &x->routes;
    if (!fetch_routes(be, x, l, err))
        return false;
    /* active is ascending; peers have the last experts, the first device has those before */
    uint32_t held = clb_cuda_share(be, l->index, !clb_cuda_resident(be)), n = x->routes.n_active;
    while (x->routes.n_held < n && x->r_active[n - 1 - x->routes.n_held] >= held)
        x->routes.n_held++;
    x->routes.at_hand = x->routes.n_held == n;
    return true;
}

/* -- ExpertCompute ----------------------------------------------------------------------------- */

static struct clb_cuda_part part_of(const struct clb_expert_part *p)
{
    return (struct clb_cuda_part){ p->at, p->scale_at, p->bias_at ? p->bias_at : CLB_CUDA_NONE };
}

static const int8_t *book_of(const struct clb_backend *be, enum clb_dtype t)
{
    return t == CLB_INT4 ? be->host->reader->code_int4 : NULL;
}

/* Experts whose blocks the table names, all their rows. */
void clb_cuda_run_experts(const struct clb_backend *be, const struct clb_acts *x,
                          const struct clb_layer *l, const struct clb_cuda_site *s)
{
    const struct clb_expert_part *part = l->experts->part;
    struct clb_cuda_product p =
        clb_cuda_product_of(be, part[CLB_GATE].dtype, part[CLB_GATE].rows, part[CLB_GATE].cols,
                            book_of(be, part[CLB_GATE].dtype));

    p.gated = true;
    p.block = s->table;
    p.part[0] = part_of(&part[CLB_GATE]);
    p.part[1] = part_of(&part[CLB_UP]);
    p.x = s->in;
    p.ldx = x->in.ld;
    p.index = s->row;
    p.chunks = &s->chunks;
    p.n_row = x->p->n_row;
    p.y = s->inner;
    p.ldy = x->inner.ld;
    p.n_cta = s->n_cta;
    clb_cuda_run_product(&p, s->stream);

    p = clb_cuda_product_of(be, part[CLB_DOWN].dtype, part[CLB_DOWN].rows, part[CLB_DOWN].cols,
                            book_of(be, part[CLB_DOWN].dtype));
    p.block = s->table;
    p.part[0] = part_of(&part[CLB_DOWN]);
    p.x = s->inner;
    p.ldx = x->inner.ld;
    p.chunks = &s->chunks;
    p.n_row = x->p->n_row;
    p.y = s->out;
    p.ldy = x->ld_hidden;
    p.n_cta = s->n_cta;
    clb_cuda_run_product(&p, s->stream);
}

static struct clb_cuda_site own_site(struct clb_backend *be, struct clb_acts *x,
                                     const struct clb_layer *l)
{
    enum clb_dtype dtype = l->experts->part[CLB_GATE].dtype;
    const struct clb_matrix gate = { .dtype = dtype };
    const struct clb_cuda_map *m = &x->map[l->index];
    bool scaled = be->host->arch->scale_expert_input;

    return (struct clb_cuda_site){
        .in =
            scaled ? clb_cuda_as(&x->slot_in, clb_cuda_kind(dtype)) : clb_cuda_input(be, x, &gate),
        .row = scaled ? NULL : m->row,
        .chunks = m->chunks,
        .table = be->layer[l->index].block,
        .inner = clb_cuda_as(&x->inner, clb_cuda_kind(dtype)),
        .out = x->slot_out,
        .n_cta = be->n_cta,
        .stream = x->stream,
    };
}

static void scale_inputs(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l)
{
    enum clb_cuda_kind kind = clb_cuda_kind(l->experts->part[CLB_GATE].dtype);
    struct clb_cuda_scale_rows s = {
        .n_row = x->p->n_row,
        .top_k = x->routes.top_k,
        .n = be->host->arch->hidden_size,
        .x = x->in.wide,
        .weight = x->weight,
        .slot = x->map[l->index].slot,
        .ld = x->in.ld,
        .bf16 = kind == CLB_CUDA_BRAIN,
    };

    if (kind == CLB_CUDA_WIDE)
        s.wide = x->slot_in.wide;
    else
        s.half = x->slot_in.half[kind];
    clb_cuda_run_scale_rows(&s, x->stream);
}

bool clb_cuda_moe_experts(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                          const uint8_t *const *block, struct clb_err *err)
{
    bool is_first = !x->is_spread;
    if (be->host->arch->scale_expert_input && is_first)
        scale_inputs(be, x, l); /* of all slots; peers are reading them in later calls */
    struct clb_cuda_site site = own_site(be, x, l);
    if (!clb_cuda_spread(be, x, l, err))
        return false;
    if (is_first && clb_cuda_resident(be))
        clb_cuda_run_experts(be, x, l, &site);
    site.table = x->call_block;
    for (uint32_t i = x->host.n_active; block && i < x->routes.n_active - x->routes.n_held;) {
        if (!clb_cuda_experts_group(be, x, l->index, block, &i, err))
            return false;
        clb_cuda_run_experts(be, x, l, &site);
        if (!clb_cuda_experts_computed(be, x, err))
            return false;
    }
    if (!clb_cuda_sent(&be->link, err))
        return false;
    if (block && !clb_cuda_host_run(be, x, l, block, err)) /* while devices multiply */
        return false;
    if (be->watched && !clb_cuda_join(be, x, err)) /* else Gather waits for others */
        return false;
    return clb_cuda_launched(be, x, err, "ExpertCompute");
}

/* -- Gather, dense layers ---------------------------------------------------------------------- */

/* What attention of the layer behind this one reads. */
static struct clb_cuda_branch behind(struct clb_backend *be, struct clb_acts *x, uint32_t layer)
{
    bool more = layer + 1 < be->host->arch->n_layer;

    return clb_cuda_next(be, x, more ? &be->layer[layer + 1].w : NULL, false);
}

bool clb_cuda_gather(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                     struct clb_err *err)
{
    const struct clb_arch *a = be->host->arch;
    const struct clb_layer *w = &be->layer[l->index].w;
    bool shared = w->shared[CLB_GATE].tiles != NULL, gate = shared && w->shared_gate.tiles;
    struct clb_cuda_gather g = {
        .n_row = x->p->n_row,
        .n = a->hidden_size,
        .top_k = x->routes.top_k,
        .ld = x->ld_hidden,
        .expert_out = x->slot_out,
        .slot = x->map[l->index].slot,
        .weight = a->scale_expert_input ? NULL : x->weight,
        .shared = shared ? x->out : NULL,
        .shared_gate = gate ? x->shared_gate : NULL,
        .x = x->x,
        .residual_scale = a->residual_scale,
        .after = clb_cuda_mlp_norm(be, w),
    };

    if (shared)
        clb_cuda_gated(be, x, w->shared, &x->shared_inner, x->out);
    if (gate)
        clb_cuda_linear(be, x,
                        &(struct clb_cuda_linear){ .w = &w->shared_gate,
                                                   .in = clb_cuda_input(be, x, &w->shared_gate),
                                                   .ld_in = x->in.ld,
                                                   .n_row = x->p->n_row,
                                                   .y = x->shared_gate,
                                                   .ldy = 1 });
    g.after.on = a->norm_place == CLB_NORM_AFTER;
    g.next = behind(be, x, l->index);
    if (!clb_cuda_join(be, x, err))
        return false;
    clb_cuda_moe_gather(&g, x->stream);
    return clb_cuda_launched(be, x, err, "Gather");
}

bool clb_cuda_mlp(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                  struct clb_err *err)
{
    const struct clb_layer *w = &be->layer[l->index].w;

    clb_cuda_gated(be, x, w->dense, &x->dense_inner, x->out);
    const struct clb_cuda_branch next = behind(be, x, l->index);
    clb_cuda_residual(be, x, x->out, clb_cuda_mlp_norm(be, w), &next);
    return clb_cuda_launched(be, x, err, "DenseMLP");
}
