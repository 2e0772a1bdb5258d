/* cuda_graph.c - decoding as one launch. A pass of one row for each sequence has the same kernels
 * with the same arguments as the last one of its shape: what differs lies in device memory. Such a
 * pass is put off (x->deferred): its stages enqueue nothing, and its end launches the graph of the
 * shape. The second pass of a shape in a row records it. The number of splits of attention, which
 * grows with the context, is rounded up to a power of two: splits without keys change nothing. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_call.h"

#include <string.h>

enum { MOST_ROWS = 64 }; /* of a pass that is worth a graph */
enum { TRIES = 3 };      /* to record one: what failed once, as code that was not loaded, may go */

/* Room for `splits` and for all that fit in the same graph, as far as the context goes. */
static uint32_t round_splits(const struct clb_acts *x, uint32_t splits)
{
    uint32_t most = clb_cuda_splits(x->shape.max_context), n = 1;

    while (n < splits)
        n *= 2;
    return n < most ? n : most;
}

static bool is_equal(const struct clb_cuda_shape *a, const struct clb_cuda_shape *b)
{
    return a->n_row == b->n_row && a->n_logit == b->n_logit && a->n_tile == b->n_tile &&
           a->splits == b->splits && a->top_k == b->top_k && a->chooses == b->chooses &&
           a->pool == b->pool;
}

static struct clb_cuda_graph *find(struct clb_acts *x)
{
    for (int i = 0; i < CLB_CUDA_GRAPHS; i++)
        if (x->graph[i].exec && is_equal(&x->graph[i].shape, &x->pass_shape))
            return &x->graph[i];
    return NULL;
}

/* A free one, or the least recently used. */
static struct clb_cuda_graph *replace(struct clb_acts *x)
{
    struct clb_cuda_graph *oldest = &x->graph[0];

    for (int i = 1; i < CLB_CUDA_GRAPHS; i++)
        if (x->graph[i].used < oldest->used)
            oldest = &x->graph[i];
    if (oldest->exec)
        cudaGraphExecDestroy(oldest->exec);
    *oldest = (struct clb_cuda_graph){ .shape = x->pass_shape };
    return oldest;
}

void clb_cuda_graph_begin(struct clb_backend *be, struct clb_acts *x)
{
    const struct clb_pass *p = x->p;
    const struct clb_cuda_shape shape = {
        .n_row = p->n_row,
        .n_logit = p->n_logit,
        .n_tile = x->n_tile,
        .splits = round_splits(x, clb_cuda_splits(x->last_position)),
        .top_k = p->top_k,
        .chooses = x->n_candidate > 0,
        .pool = x->pool,
    };
    bool again = is_equal(&shape, &x->pass_shape);

    x->pass_shape = shape;
    x->deferred = !be->no_graphs && !x->no_graphs && !be->watched && !p->want_routes &&
                  clb_cuda_alone(be) && p->n_row == p->n_seq && p->n_row <= MOST_ROWS &&
                  (again || find(x));
    if (x->deferred)
        x->last_position = shape.splits * CLB_CUDA_SPLIT - 1;
}

/* All stages but the wait. */
static bool enqueue(struct clb_backend *be, struct clb_acts *x, struct clb_err *err)
{
    const struct clb_weights *w = be->host;
    const struct clb_routes *routes;

    if (!clb_cuda_embed(be, x, err))
        return false;
    for (uint32_t i = 0; i < w->arch->n_layer; i++) {
        const struct clb_layer *l = &w->layer[i];

        if (!clb_cuda_attn_project(be, x, l, err) || !clb_cuda_attn_mix(be, x, l, err) ||
            !clb_cuda_attn_output(be, x, l, err))
            return clb_fail_in(err, "layer %u", i);
        if (l->n_expert
                ? !clb_cuda_gate(be, x, l, err) || !clb_cuda_scatter(be, x, l, &routes, err) ||
                      !clb_cuda_moe_experts(be, x, l, NULL, err) || !clb_cuda_gather(be, x, l, err)
                : !clb_cuda_mlp(be, x, l, err))
            return clb_fail_in(err, "layer %u", i);
    }
    return clb_cuda_output(be, x, err);
}

/* NULL: it cannot be recorded; nothing was run. */
static struct clb_cuda_graph *record(struct clb_backend *be, struct clb_acts *x)
{
    struct clb_cuda_graph *g = replace(x);
    struct clb_err err = { 0 };
    cudaGraph_t graph = NULL;

    if (cudaStreamBeginCapture(x->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    bool ok = enqueue(be, x, &err);
    ok = cudaStreamEndCapture(x->stream, &graph) == cudaSuccess && ok && graph &&
         cudaGraphInstantiateWithFlags(&g->exec, graph, 0) == cudaSuccess;
    if (graph)
        cudaGraphDestroy(graph);
    cudaGetLastError(); /* the pass runs without a graph, and says what is wrong */
    if (!ok)
        g->exec = NULL;
    return ok ? g : NULL;
}

bool clb_cuda_graph_run(struct clb_backend *be, struct clb_acts *x, struct clb_err *err)
{
    struct clb_cuda_graph *g = find(x);

    x->deferred = false;
    if (!g)
        g = record(be, x);
    if (!g) {
        x->no_graphs = ++x->n_unrecorded == TRIES;
        return enqueue(be, x, err);
    }
    g->used = ++x->n_replay;
    return clb_cuda_ok(cudaGraphLaunch(g->exec, x->stream), err, "launching a pass");
}

void clb_cuda_graph_free(struct clb_acts *x)
{
    for (int i = 0; i < CLB_CUDA_GRAPHS; i++)
        if (x->graph[i].exec)
            cudaGraphExecDestroy(x->graph[i].exec);
}
