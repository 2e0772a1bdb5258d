/* cuda_dnn_graph.c - attention in the terms of cuDNN 9, for which it has fused kernels from compute
 * capability 8.0 on: the pattern that its own front end makes of "attention with padding and a
 * causal mask that is aligned to the last key". Names of virtual tensors are those of the comments;
 * B is 1, one sequence.
 *
 *     s = q kT                                        [B][heads][queries][keys]
 *     x = s * scale
 *     y = row < n_query && column < n_key ? x : -inf
 *     z = row + n_key - n_query >= column ? y : -inf
 *     p = exp(z - max(z)) / sum(exp(z - max(z)))      in f16
 *     out = p v */
#include "kernels/cuda/cuda_dnn.h"

#include <math.h>
#include <string.h>

#include "lib/base/mem.h"

/* Tensors with memory; their numbers are what a run names them by. */
enum { Q = 1, K, V, OUT, N_QUERY, N_KEY, SCALE, NEVER, FIRST_VIRTUAL };
enum { CONFIGS = 8 };

struct graph {
    const struct clb_cuda_dnn *dnn;
    void *handle;
    struct clb_dnn_plan *p; /* has the descriptors */
    int64_t next;           /* number of a virtual tensor */
    void *op[24];
    unsigned n_op;
    int64_t scores[4], score_strides[4]; /* of all that has a value per query and key */
    int64_t rows[4], row_strides[4];     /* a value per query */
    int failed;                          /* the first status that is no success */
    const char *what;
};

/* -- descriptors: after a failure nothing more is done ------------------------------------------
 */

static void note(struct graph *g, int status, const char *what)
{
    if (status != CLB_DNN_SUCCESS && !g->failed) {
        g->failed = status;
        g->what = what;
    }
}

static void *make(struct graph *g, int type)
{
    void *d = NULL;

    if (g->failed || g->p->n_desc == CLB_DNN_MOST)
        return NULL;
    note(g, g->dnn->make(type, &d), "a descriptor");
    if (d)
        g->p->desc[g->p->n_desc++] = d;
    return d;
}

static void set(struct graph *g, void *d, int what, int type, int64_t n, const void *value)
{
    if (!g->failed)
        note(g, g->dnn->set(d, what, type, n, value), "an attribute");
}

static void set_one(struct graph *g, void *d, int what, void *desc)
{
    if (desc)
        set(g, d, what, CLB_DNN_OF_DESCRIPTOR, 1, &desc);
}

static void *done(struct graph *g, void *d, const char *what)
{
    if (!g->failed)
        note(g, g->dnn->finalize(d), what);
    return d;
}

static void *tensor(struct graph *g, int64_t id, int type, const int64_t dims[4],
                    const int64_t strides[4])
{
    const int64_t alignment = 16;
    const bool yes = true;
    void *d = make(g, CLB_DNN_TENSOR);

    set(g, d, CLB_DNN_TENSOR_ID, CLB_DNN_OF_INT64, 1, &id);
    set(g, d, CLB_DNN_TENSOR_TYPE, CLB_DNN_OF_DATA_TYPE, 1, &type);
    set(g, d, CLB_DNN_TENSOR_ALIGNMENT, CLB_DNN_OF_INT64, 1, &alignment);
    set(g, d, CLB_DNN_TENSOR_DIMS, CLB_DNN_OF_INT64, 4, dims);
    set(g, d, CLB_DNN_TENSOR_STRIDES, CLB_DNN_OF_INT64, 4, strides);
    if (id >= FIRST_VIRTUAL)
        set(g, d, CLB_DNN_TENSOR_VIRTUAL, CLB_DNN_OF_BOOLEAN, 1, &yes);
    if (id == SCALE || id == NEVER)
        set(g, d, CLB_DNN_TENSOR_BY_VALUE, CLB_DNN_OF_BOOLEAN, 1, &yes);
    return done(g, d, "a tensor");
}

static void *scores(struct graph *g, int type)
{
    return tensor(g, g->next++, type, g->scores, g->score_strides);
}
static void *rows(struct graph *g)
{
    return tensor(g, g->next++, CLB_DNN_FLOAT, g->rows, g->row_strides);
}
static void *scalar(struct graph *g, int64_t id, int type)
{
    static const int64_t one[4] = { 1, 1, 1, 1 };

    return tensor(g, id, type, one, one);
}

/* -- operations -------------------------------------------------------------------------------- */

struct pointwise {
    int mode, math;
    void *x, *b, *t; /* NULL: the mode has no such input */
    int64_t axis;    /* of CLB_DNN_INDEX */
};

/* Returns the result, of type `type`. */
static void *pointwise(struct graph *g, int type, struct pointwise o)
{
    void *d = make(g, CLB_DNN_POINTWISE), *op, *y;

    set(g, d, CLB_DNN_POINTWISE_MODE, CLB_DNN_OF_POINTWISE_MODE, 1, &o.mode);
    set(g, d, CLB_DNN_POINTWISE_MATH, CLB_DNN_OF_DATA_TYPE, 1, &o.math);
    if (o.mode == CLB_DNN_INDEX)
        set(g, d, CLB_DNN_POINTWISE_AXIS, CLB_DNN_OF_INT64, 1, &o.axis);
    done(g, d, "a pointwise operation");
    y = scores(g, type);
    op = make(g, CLB_DNN_OPERATION_POINTWISE);
    set_one(g, op, CLB_DNN_POINTWISE_DESC, d);
    set_one(g, op, CLB_DNN_POINTWISE_X, o.x);
    set_one(g, op, CLB_DNN_POINTWISE_B, o.b);
    set_one(g, op, CLB_DNN_POINTWISE_T, o.t);
    set_one(g, op, CLB_DNN_POINTWISE_Y, y);
    g->op[g->n_op++] = done(g, op, "a pointwise operation");
    return y;
}

static void *floats(struct graph *g, int mode, void *x, void *b)
{
    return pointwise(g, CLB_DNN_FLOAT,
                     (struct pointwise){ .mode = mode, .math = CLB_DNN_FLOAT, .x = x, .b = b });
}
static void *integers(struct graph *g, int mode, void *x, void *b)
{
    return pointwise(g, CLB_DNN_INT32,
                     (struct pointwise){ .mode = mode, .math = CLB_DNN_INT32, .x = x, .b = b });
}
static void *logic(struct graph *g, int mode, void *x, void *b)
{
    return pointwise(g, CLB_DNN_BOOL,
                     (struct pointwise){ .mode = mode, .math = CLB_DNN_BOOL, .x = x, .b = b });
}
/* The number of a value's query (2) or key (3). */
static void *position(struct graph *g, void *x, int64_t axis)
{
    return pointwise(
        g, CLB_DNN_INT32,
        (struct pointwise){ .mode = CLB_DNN_INDEX, .math = CLB_DNN_INT32, .x = x, .axis = axis });
}
/* x where `keep`, else `other`. */
static void *select_of(struct graph *g, void *x, void *other, void *keep)
{
    return pointwise(
        g, CLB_DNN_FLOAT,
        (struct pointwise){
            .mode = CLB_DNN_SELECT, .math = CLB_DNN_FLOAT, .x = x, .b = other, .t = keep });
}

/* Over the keys. */
static void *reduce(struct graph *g, int how, void *x)
{
    const int math = CLB_DNN_FLOAT;
    void *d = make(g, CLB_DNN_REDUCTION), *op, *y;

    set(g, d, CLB_DNN_REDUCTION_OP, CLB_DNN_OF_REDUCTION, 1, &how);
    set(g, d, CLB_DNN_REDUCTION_MATH, CLB_DNN_OF_DATA_TYPE, 1, &math);
    done(g, d, "a reduction");
    y = rows(g);
    op = make(g, CLB_DNN_OPERATION_REDUCTION);
    set_one(g, op, CLB_DNN_REDUCTION_DESC, d);
    set_one(g, op, CLB_DNN_REDUCTION_X, x);
    set_one(g, op, CLB_DNN_REDUCTION_Y, y);
    g->op[g->n_op++] = done(g, op, "a reduction");
    return y;
}

struct product {
    void *a, *b, *c, *m, *n, *k;
    bool pads; /* what is outside is 0 */
};

static void multiply(struct graph *g, struct product o)
{
    const int math = CLB_DNN_FLOAT;
    const double zero = 0;
    void *d = make(g, CLB_DNN_MATMUL), *op;

    set(g, d, CLB_DNN_MATMUL_MATH, CLB_DNN_OF_DATA_TYPE, 1, &math);
    if (o.pads)
        set(g, d, CLB_DNN_MATMUL_PADDING, CLB_DNN_OF_DOUBLE, 1, &zero);
    done(g, d, "a product");
    op = make(g, CLB_DNN_OPERATION_MATMUL);
    set_one(g, op, CLB_DNN_MATMUL_DESC, d);
    set_one(g, op, CLB_DNN_MATMUL_A, o.a);
    set_one(g, op, CLB_DNN_MATMUL_B, o.b);
    set_one(g, op, CLB_DNN_MATMUL_C, o.c);
    set_one(g, op, CLB_DNN_MATMUL_M, o.m);
    set_one(g, op, CLB_DNN_MATMUL_N, o.n);
    set_one(g, op, CLB_DNN_MATMUL_K, o.k);
    g->op[g->n_op++] = done(g, op, "a product");
}

/* -- the graph --------------------------------------------------------------------------------- */

static void *mask(struct graph *g, void *x, void *n_query, void *n_key)
{
    void *never = scalar(g, NEVER, CLB_DNN_FLOAT);
    void *row = position(g, x, 2), *column = position(g, x, 3);
    void *is_row = logic(g, CLB_DNN_CMP_LT, row, n_query);
    void *is_column = logic(g, CLB_DNN_CMP_LT, column, n_key);
    void *y = select_of(g, x, never, logic(g, CLB_DNN_AND, is_row, is_column));

    row = position(g, y, 2);
    column = position(g, y, 3);
    row = integers(g, CLB_DNN_SUB, integers(g, CLB_DNN_ADD, row, n_key), n_query);
    return select_of(g, y, never, logic(g, CLB_DNN_CMP_GE, row, column));
}

static void describe(struct graph *g, const struct clb_dnn_shape *s)
{
    const int64_t h = s->n_head, hk = s->n_kv_head, d = s->key_dim, dv = s->value_dim;
    const int64_t n = s->n_query, m = s->n_key;
    void *q = tensor(g, Q, CLB_DNN_HALF, (int64_t[]){ 1, h, n, d },
                     (int64_t[]){ n * h * d, d, h * d, 1 });
    void *k = tensor(g, K, CLB_DNN_HALF, (int64_t[]){ 1, hk, d, m },
                     (int64_t[]){ hk * m * d, m * d, 1, d });
    void *v = tensor(g, V, CLB_DNN_HALF, (int64_t[]){ 1, hk, m, dv },
                     (int64_t[]){ hk * m * dv, m * dv, dv, 1 });
    void *out = tensor(g, OUT, CLB_DNN_HALF, (int64_t[]){ 1, h, n, dv },
                       (int64_t[]){ n * h * dv, dv, h * dv, 1 });
    void *n_query = scalar(g, N_QUERY, CLB_DNN_INT32), *n_key = scalar(g, N_KEY, CLB_DNN_INT32);
    void *x = scores(g, CLB_DNN_FLOAT);

    multiply(g, (struct product){ .a = q, .b = k, .c = x, .m = n_query, .n = n_key, .pads = true });
    x = floats(g, CLB_DNN_MUL, x, scalar(g, SCALE, CLB_DNN_FLOAT));
    x = mask(g, x, n_query, n_key);
    x = floats(g, CLB_DNN_EXP, floats(g, CLB_DNN_SUB, x, reduce(g, CLB_DNN_REDUCE_MAX, x)), NULL);
    void *sum = reduce(g, CLB_DNN_REDUCE_ADD, x);
    x = pointwise(
        g, CLB_DNN_HALF,
        (struct pointwise){ .mode = CLB_DNN_DIV, .math = CLB_DNN_FLOAT, .x = x, .b = sum });
    multiply(g, (struct product){ .a = x, .b = v, .c = out, .m = n_query, .k = n_key });
}

static void *finish(struct graph *g)
{
    void *d = make(g, CLB_DNN_GRAPH);

    set(g, d, CLB_DNN_GRAPH_HANDLE, CLB_DNN_OF_HANDLE, 1, &g->handle);
    set(g, d, CLB_DNN_GRAPH_OPS, CLB_DNN_OF_DESCRIPTOR, g->n_op, g->op);
    return done(g, d, "the graph of attention");
}

/* -- a plan ------------------------------------------------------------------------------------ */

static bool fits(struct graph *g, void *config, uint64_t workspace_most)
{
    void *plan = make(g, CLB_DNN_PLAN);
    int64_t bytes = 0, got = 0;

    set(g, plan, CLB_DNN_PLAN_HANDLE, CLB_DNN_OF_HANDLE, 1, &g->handle);
    set_one(g, plan, CLB_DNN_PLAN_CONFIG, config);
    done(g, plan, "compiling");
    if (!g->failed)
        note(g, g->dnn->get(plan, CLB_DNN_PLAN_WORKSPACE, CLB_DNN_OF_INT64, 1, &got, &bytes),
             "the size of a workspace");
    if (g->failed || bytes < 0 || (uint64_t)bytes > workspace_most)
        return false;
    g->p->plan = plan;
    g->p->workspace = (uint64_t)bytes;
    return true;
}

/* The first of the library's choices that compiles and needs no more memory than there is. */
static void choose(struct graph *g, void *graph, int mode, uint64_t workspace_most)
{
    void *heuristic = make(g, CLB_DNN_ENGINEHEUR), *config[CONFIGS];
    int64_t n = 0;

    set(g, heuristic, CLB_DNN_HEUR_MODE, CLB_DNN_OF_HEUR_MODE, 1, &mode);
    set_one(g, heuristic, CLB_DNN_HEUR_GRAPH, graph);
    done(g, heuristic, "asking for kernels");
    for (int i = 0; i < CONFIGS; i++)
        config[i] = make(g, CLB_DNN_ENGINECFG);
    if (g->failed)
        return;
    note(g,
         g->dnn->get(heuristic, CLB_DNN_HEUR_RESULTS, CLB_DNN_OF_DESCRIPTOR, CONFIGS, &n, config),
         "asking for kernels");
    for (int64_t i = 0; i < n && !g->p->plan; i++) {
        g->failed = CLB_DNN_SUCCESS; /* of the one before */
        fits(g, config[i], workspace_most);
    }
}

/* It says so, or offers nothing. */
static bool cannot(const struct graph *g)
{
    return !g->failed || g->failed / 1000 * 1000 == CLB_DNN_NOT_SUPPORTED;
}

static bool tell(const struct graph *g, const struct clb_dnn_shape *s, struct clb_err *err)
{
    return clb_fail(err, cannot(g) ? CLB_UNSUPPORTED : CLB_DEVICE,
                    "cuDNN: %s for %u and %u heads of %u and %u, %u queries, %u keys: %s",
                    g->what ? g->what : "kernels", s->n_head, s->n_kv_head, s->key_dim,
                    s->value_dim, s->n_query, s->n_key,
                    g->failed ? g->dnn->status_text(g->failed) : "none fits");
}

bool clb_dnn_plan_new(struct clb_dnn_plan *p, const struct clb_cuda_dnn *dnn, void *handle,
                      const struct clb_dnn_shape *s, uint64_t workspace_most, struct clb_err *err)
{
    const int64_t h = s->n_head, n = s->n_query, m = s->n_key;
    struct graph g = { .dnn = dnn,
                       .handle = handle,
                       .p = p,
                       .next = FIRST_VIRTUAL,
                       .scores = { 1, h, n, m },
                       .score_strides = { h * n * m, n * m, m, 1 },
                       .rows = { 1, h, n, 1 },
                       .row_strides = { h * n, n, 1, 1 } };

    *p = (struct clb_dnn_plan){ .shape = *s };
    describe(&g, s);
    void *graph = finish(&g);
    if (!g.failed) {
        choose(&g, graph, CLB_DNN_HEUR_A, workspace_most);
        if (!p->plan && cannot(&g)) {
            g.failed = CLB_DNN_SUCCESS;
            choose(&g, graph, CLB_DNN_HEUR_FALLBACK, workspace_most);
        }
    }
    if (p->plan)
        return true;
    tell(&g, s, err);
    clb_dnn_plan_free(p, dnn);
    return false;
}

void clb_dnn_plan_free(struct clb_dnn_plan *p, const struct clb_cuda_dnn *dnn)
{
    while (p->n_desc)
        dnn->drop(p->desc[--p->n_desc]);
    *p = (struct clb_dnn_plan){ .plan = NULL };
}

bool clb_dnn_plan_run(struct clb_dnn_plan *p, const struct clb_cuda_dnn *dnn, void *handle,
                      const struct clb_dnn_args *a, struct clb_err *err)
{
    float scale = a->scale, never = -INFINITY;
    const int64_t id[] = { Q, K, V, OUT, N_QUERY, N_KEY, SCALE, NEVER };
    const void *const at[] = { a->q,   a->k,  a->v, a->out, a->count, a->count + CLB_DNN_APART,
                               &scale, &never };
    const int64_t n = sizeof id / sizeof *id;
    void *pack = NULL;
    int status = dnn->make(CLB_DNN_PACK, &pack);

    if (!status)
        status = dnn->set(pack, CLB_DNN_PACK_IDS, CLB_DNN_OF_INT64, n, id);
    if (!status)
        status = dnn->set(pack, CLB_DNN_PACK_POINTERS, CLB_DNN_OF_POINTER, n, at);
    if (!status)
        status = dnn->set(pack, CLB_DNN_PACK_WORKSPACE, CLB_DNN_OF_POINTER, 1, &a->workspace);
    if (!status)
        status = dnn->finalize(pack);
    if (!status)
        status = dnn->execute(handle, p->plan, pack);
    if (pack)
        dnn->drop(pack);
    return status == CLB_DNN_SUCCESS ||
           clb_fail(err, CLB_DEVICE, "cuDNN: attention: %s", dnn->status_text(status));
}
