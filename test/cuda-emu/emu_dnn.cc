/* emu_dnn.cc - a fake of cuDNN: descriptors of graphs that are strict about what they are told. A
 * mistake that a program can only make by being wrong ends it; what depends on the shape is an
 * error that is returned. */
#include <cstring>
#include <memory>

#include "emu_call.h"
#include "emu_dnn.h"
#include "emu_libs.h"

static const int OK = 0, BAD_PARAM = 2000, NOT_FINALIZED = 2004, UNSUPPORTED = 3000;
enum { ENGINES_MOST = 2, WORKSPACE = 256 };

/* -- what descriptors are told ----------------------------------------------------------------- */

struct attribute {
    int descriptor, name, type;
    int64_t least, most; /* values */
    bool needed;
};
static const attribute attributes[] = {
    { CLB_DNN_TENSOR, CLB_DNN_TENSOR_ID, CLB_DNN_OF_INT64, 1, 1, true },
    { CLB_DNN_TENSOR, CLB_DNN_TENSOR_TYPE, CLB_DNN_OF_DATA_TYPE, 1, 1, true },
    { CLB_DNN_TENSOR, CLB_DNN_TENSOR_ALIGNMENT, CLB_DNN_OF_INT64, 1, 1, true },
    { CLB_DNN_TENSOR, CLB_DNN_TENSOR_DIMS, CLB_DNN_OF_INT64, 4, 4, true },
    { CLB_DNN_TENSOR, CLB_DNN_TENSOR_STRIDES, CLB_DNN_OF_INT64, 4, 4, true },
    { CLB_DNN_TENSOR, CLB_DNN_TENSOR_VIRTUAL, CLB_DNN_OF_BOOLEAN, 1, 1, false },
    { CLB_DNN_TENSOR, CLB_DNN_TENSOR_BY_VALUE, CLB_DNN_OF_BOOLEAN, 1, 1, false },
    { CLB_DNN_POINTWISE, CLB_DNN_POINTWISE_MODE, CLB_DNN_OF_POINTWISE_MODE, 1, 1, true },
    { CLB_DNN_POINTWISE, CLB_DNN_POINTWISE_MATH, CLB_DNN_OF_DATA_TYPE, 1, 1, true },
    { CLB_DNN_POINTWISE, CLB_DNN_POINTWISE_AXIS, CLB_DNN_OF_INT64, 1, 1, false },
    { CLB_DNN_OPERATION_POINTWISE, CLB_DNN_POINTWISE_DESC, CLB_DNN_OF_DESCRIPTOR, 1, 1, true },
    { CLB_DNN_OPERATION_POINTWISE, CLB_DNN_POINTWISE_X, CLB_DNN_OF_DESCRIPTOR, 1, 1, true },
    { CLB_DNN_OPERATION_POINTWISE, CLB_DNN_POINTWISE_B, CLB_DNN_OF_DESCRIPTOR, 1, 1, false },
    { CLB_DNN_OPERATION_POINTWISE, CLB_DNN_POINTWISE_T, CLB_DNN_OF_DESCRIPTOR, 1, 1, false },
    { CLB_DNN_OPERATION_POINTWISE, CLB_DNN_POINTWISE_Y, CLB_DNN_OF_DESCRIPTOR, 1, 1, true },
    { CLB_DNN_MATMUL, CLB_DNN_MATMUL_MATH, CLB_DNN_OF_DATA_TYPE, 1, 1, true },
    { CLB_DNN_MATMUL, CLB_DNN_MATMUL_PADDING, CLB_DNN_OF_DOUBLE, 1, 1, false },
    { CLB_DNN_OPERATION_MATMUL, CLB_DNN_MATMUL_DESC, CLB_DNN_OF_DESCRIPTOR, 1, 1, true },
    { CLB_DNN_OPERATION_MATMUL, CLB_DNN_MATMUL_A, CLB_DNN_OF_DESCRIPTOR, 1, 1, true },
    { CLB_DNN_OPERATION_MATMUL, CLB_DNN_MATMUL_B, CLB_DNN_OF_DESCRIPTOR, 1, 1, true },
    { CLB_DNN_OPERATION_MATMUL, CLB_DNN_MATMUL_C, CLB_DNN_OF_DESCRIPTOR, 1, 1, true },
    { CLB_DNN_OPERATION_MATMUL, CLB_DNN_MATMUL_M, CLB_DNN_OF_DESCRIPTOR, 1, 1, false },
    { CLB_DNN_OPERATION_MATMUL, CLB_DNN_MATMUL_N, CLB_DNN_OF_DESCRIPTOR, 1, 1, false },
    { CLB_DNN_OPERATION_MATMUL, CLB_DNN_MATMUL_K, CLB_DNN_OF_DESCRIPTOR, 1, 1, false },
    { CLB_DNN_REDUCTION, CLB_DNN_REDUCTION_OP, CLB_DNN_OF_REDUCTION, 1, 1, true },
    { CLB_DNN_REDUCTION, CLB_DNN_REDUCTION_MATH, CLB_DNN_OF_DATA_TYPE, 1, 1, true },
    { CLB_DNN_OPERATION_REDUCTION, CLB_DNN_REDUCTION_DESC, CLB_DNN_OF_DESCRIPTOR, 1, 1, true },
    { CLB_DNN_OPERATION_REDUCTION, CLB_DNN_REDUCTION_X, CLB_DNN_OF_DESCRIPTOR, 1, 1, true },
    { CLB_DNN_OPERATION_REDUCTION, CLB_DNN_REDUCTION_Y, CLB_DNN_OF_DESCRIPTOR, 1, 1, true },
    { CLB_DNN_GRAPH, CLB_DNN_GRAPH_HANDLE, CLB_DNN_OF_HANDLE, 1, 1, true },
    { CLB_DNN_GRAPH, CLB_DNN_GRAPH_OPS, CLB_DNN_OF_DESCRIPTOR, 1, 64, true },
    { CLB_DNN_ENGINEHEUR, CLB_DNN_HEUR_MODE, CLB_DNN_OF_HEUR_MODE, 1, 1, true },
    { CLB_DNN_ENGINEHEUR, CLB_DNN_HEUR_GRAPH, CLB_DNN_OF_DESCRIPTOR, 1, 1, true },
    { CLB_DNN_PLAN, CLB_DNN_PLAN_HANDLE, CLB_DNN_OF_HANDLE, 1, 1, true },
    { CLB_DNN_PLAN, CLB_DNN_PLAN_CONFIG, CLB_DNN_OF_DESCRIPTOR, 1, 1, true },
    { CLB_DNN_PACK, CLB_DNN_PACK_IDS, CLB_DNN_OF_INT64, 1, 64, true },
    { CLB_DNN_PACK, CLB_DNN_PACK_POINTERS, CLB_DNN_OF_POINTER, 1, 64, true },
    { CLB_DNN_PACK, CLB_DNN_PACK_WORKSPACE, CLB_DNN_OF_POINTER, 1, 1, true },
};

static size_t size_of(int type)
{
    return type == CLB_DNN_OF_BOOLEAN ? 1
           : type == CLB_DNN_OF_INT64 || type == CLB_DNN_OF_DOUBLE || type == CLB_DNN_OF_POINTER ||
                   type == CLB_DNN_OF_DESCRIPTOR || type == CLB_DNN_OF_HANDLE
               ? 8
               : 4;
}

enum { HANDLE_MARK = 0x646e6e68 };
struct handle {
    int mark = HANDLE_MARK;
    CUstream_st *stream = nullptr;
};
static int objects;

static desc *check(void *p, const char *call)
{
    desc *d = (desc *)p;

    if (!d || d->mark != DESC_MARK)
        emu_die("%s: what is given is no descriptor", call);
    return d;
}

static handle *check_handle(void *p, const char *call)
{
    handle *h = (handle *)p;

    if (!h || h->mark != HANDLE_MARK)
        emu_die("%s: what is given is no handle", call);
    return h;
}

int emu_dnn_leaks(void)
{
    if (objects)
        printf("# emu: %d objects of cuDNN were not destroyed\n", objects);
    return objects;
}

#define DNN_CALL(name)                                                                             \
    emu_turn turn_;                                                                                \
    if (emu_refuses("cudnn" name, true))                                                           \
    return failure

static int failure = 5000;

void emu_dnn_fails_with(int status)
{
    failure = status;
}

/* -- calls ------------------------------------------------------------------------------------- */

static size_t version(void)
{
    return emu_library_version_of("libcudnn.so.9", 91900);
}
static const char *status_text(int status)
{
    return status == 0               ? "CUDNN_STATUS_SUCCESS"
           : status == UNSUPPORTED   ? "CUDNN_STATUS_NOT_SUPPORTED"
           : status == BAD_PARAM     ? "CUDNN_STATUS_BAD_PARAM"
           : status == NOT_FINALIZED ? "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED"
                                     : "CUDNN_STATUS_EXECUTION_FAILED";
}
static int create(void **out)
{
    DNN_CALL("Create");
    *out = new handle;
    objects++;
    return OK;
}
static int destroy(void *p)
{
    handle *h = check_handle(p, "cudnnDestroy");

    h->mark = 0;
    delete h;
    objects--;
    return OK;
}
static int set_stream(void *p, CUstream_st *stream)
{
    DNN_CALL("SetStream");
    emu_check_stream(stream, "cudnnSetStream");
    check_handle(p, "cudnnSetStream")->stream = stream;
    return OK;
}
static int make(int type, void **out)
{
    DNN_CALL("BackendCreateDescriptor");
    desc *d = new desc;
    d->type = type;
    *out = d;
    objects++;
    return OK;
}
static int drop(void *p)
{
    desc *d = check(p, "cudnnBackendDestroyDescriptor");

    if (*d->waiting && !emu_is_lost())
        emu_die("cudnnBackendDestroyDescriptor: a stream still needs the plan");
    d->mark = 0;
    delete d;
    objects--;
    return OK;
}

static int set(void *p, int name, int type, int64_t n, const void *values)
{
    const char *call = "cudnnBackendSetAttribute";
    DNN_CALL("BackendSetAttribute");
    desc *d = check(p, call);
    const uint8_t *from = (const uint8_t *)values;

    if (d->final)
        emu_die("%s: descriptor of type %d is finalized already", call, d->type);
    for (const attribute &a : attributes) {
        if (a.descriptor != d->type || a.name != name)
            continue;
        if (a.type != type || n < a.least || n > a.most)
            emu_die("%s: attribute %d: %lld values of type %d", call, name, (long long)n, type);
        d->told[name].assign(from, from + (size_t)n * size_of(type));
        if (type == CLB_DNN_OF_DESCRIPTOR)
            for (desc *other : d->all<desc *>(name))
                if (!check(other, call)->final)
                    return NOT_FINALIZED;
        if (type == CLB_DNN_OF_HANDLE)
            check_handle(d->one<void *>(name), call);
        return OK;
    }
    emu_die("%s: a descriptor of type %d has no attribute %d", call, d->type, name);
}

/* -- tensors ----------------------------------------------------------------------------------- */

/* Each size is that of the other, or 1 (or, of heads, a divisor). */
static bool spreads(const dims &from, const dims &to)
{
    for (int i = 0; i < 4; i++)
        if (from[i] != to[i] && (i == 1 ? to[1] % from[1] : from[i] != 1))
            return false;
    return true;
}

static int check_tensor(const desc *t)
{
    const dims d = dims_of(t), s = t->one<dims>(CLB_DNN_TENSOR_STRIDES);
    const int64_t alignment = t->one<int64_t>(CLB_DNN_TENSOR_ALIGNMENT);

    for (int i = 0; i < 4; i++)
        if (d[i] < 1 || s[i] < 1)
            return BAD_PARAM;
    if (is(t, CLB_DNN_TENSOR_VIRTUAL) && is(t, CLB_DNN_TENSOR_BY_VALUE))
        return BAD_PARAM;
    return alignment >= 1 && !(alignment & (alignment - 1)) ? OK : BAD_PARAM;
}

/* -- operations -------------------------------------------------------------------------------- */

static int inputs_of(int mode)
{
    return mode == CLB_DNN_EXP || mode == CLB_DNN_INDEX ? 1 : mode == CLB_DNN_SELECT ? 3 : 2;
}

static int check_pointwise(const desc *o)
{
    const desc *p = o->of(CLB_DNN_POINTWISE_DESC), *x = o->of(CLB_DNN_POINTWISE_X),
               *b = o->of(CLB_DNN_POINTWISE_B), *t = o->of(CLB_DNN_POINTWISE_T),
               *y = o->of(CLB_DNN_POINTWISE_Y);
    const int mode = p->one<int>(CLB_DNN_POINTWISE_MODE),
              math = p->one<int>(CLB_DNN_POINTWISE_MATH), n = inputs_of(mode), xt = type_of(x),
              yt = type_of(y);

    if (p->type != CLB_DNN_POINTWISE || (b != nullptr) != (n > 1) || (t != nullptr) != (n > 2))
        return BAD_PARAM;
    if (!spreads(dims_of(x), dims_of(y)) || (b && !spreads(dims_of(b), dims_of(y))) ||
        (t && !spreads(dims_of(t), dims_of(y))))
        return BAD_PARAM;
    switch (mode) {
    case CLB_DNN_INDEX:
        return yt == CLB_DNN_INT32 && math == CLB_DNN_INT32 ? OK : BAD_PARAM;
    case CLB_DNN_CMP_GE:
    case CLB_DNN_CMP_LT:
        return yt == CLB_DNN_BOOL && math == CLB_DNN_BOOL && xt == CLB_DNN_INT32 &&
                       type_of(b) == CLB_DNN_INT32
                   ? OK
                   : BAD_PARAM;
    case CLB_DNN_AND:
        return yt == CLB_DNN_BOOL && xt == CLB_DNN_BOOL && type_of(b) == CLB_DNN_BOOL ? OK
                                                                                      : BAD_PARAM;
    case CLB_DNN_SELECT:
        return type_of(t) == CLB_DNN_BOOL && math == CLB_DNN_FLOAT ? OK : BAD_PARAM;
    case CLB_DNN_ADD:
    case CLB_DNN_SUB:
    case CLB_DNN_MUL:
    case CLB_DNN_DIV:
    case CLB_DNN_EXP:
        return math == (xt == CLB_DNN_INT32 ? CLB_DNN_INT32 : CLB_DNN_FLOAT) ? OK : BAD_PARAM;
    }
    return UNSUPPORTED;
}

static int check_matmul(const desc *o)
{
    const desc *p = o->of(CLB_DNN_MATMUL_DESC), *a = o->of(CLB_DNN_MATMUL_A),
               *b = o->of(CLB_DNN_MATMUL_B), *c = o->of(CLB_DNN_MATMUL_C);
    const dims da = dims_of(a), db = dims_of(b), dc = dims_of(c);

    if (p->type != CLB_DNN_MATMUL || p->one<int>(CLB_DNN_MATMUL_MATH) != CLB_DNN_FLOAT)
        return BAD_PARAM;
    for (int name : { CLB_DNN_MATMUL_M, CLB_DNN_MATMUL_N, CLB_DNN_MATMUL_K })
        if (o->has(name) && (type_of(o->of(name)) != CLB_DNN_INT32 ||
                             dims_of(o->of(name)) != dims{ da[0], 1, 1, 1 }))
            return BAD_PARAM;
    bool fits = da[0] == db[0] && da[0] == dc[0] && da[1] == dc[1] && da[1] % db[1] == 0 &&
                da[2] == dc[2] && da[3] == db[2] && db[3] == dc[3];
    return fits && type_of(a) == CLB_DNN_HALF && type_of(b) == CLB_DNN_HALF ? OK : BAD_PARAM;
}

static int check_reduction(const desc *o)
{
    const desc *p = o->of(CLB_DNN_REDUCTION_DESC), *x = o->of(CLB_DNN_REDUCTION_X),
               *y = o->of(CLB_DNN_REDUCTION_Y);
    const int how = p->one<int>(CLB_DNN_REDUCTION_OP);
    dims d = dims_of(x);

    d[3] = 1; /* over the last one: attention needs no other */
    if (p->type != CLB_DNN_REDUCTION || p->one<int>(CLB_DNN_REDUCTION_MATH) != CLB_DNN_FLOAT)
        return BAD_PARAM;
    return dims_of(y) == d && (how == CLB_DNN_REDUCE_ADD || how == CLB_DNN_REDUCE_MAX)
               ? OK
               : UNSUPPORTED;
}

/* Virtual tensors are made once, before they are read; numbers are those of one tensor. */
static int check_graph(const desc *g)
{
    std::map<int64_t, const desc *> seen, made;

    for (const desc *o : g->all<desc *>(CLB_DNN_GRAPH_OPS)) {
        int result;
        if (o->type != CLB_DNN_OPERATION_MATMUL && o->type != CLB_DNN_OPERATION_REDUCTION &&
            o->type != CLB_DNN_OPERATION_POINTWISE)
            return BAD_PARAM;
        for (int port : emu_dnn_ports(o, &result)) {
            const desc *t = o->of(port);
            if (!t)
                continue;
            if (is(t, CLB_DNN_TENSOR_VIRTUAL) && !made.count(id_of(t)))
                emu_die("cuDNN: tensor %lld is read before it is made", (long long)id_of(t));
            if (seen.count(id_of(t)) && seen[id_of(t)] != t)
                emu_die("cuDNN: two tensors have number %lld", (long long)id_of(t));
            seen[id_of(t)] = t;
        }
        const desc *y = o->of(result);
        if (seen.count(id_of(y)) || made.count(id_of(y)))
            emu_die("cuDNN: tensor %lld is made twice, or read before", (long long)id_of(y));
        seen[id_of(y)] = made[id_of(y)] = y;
    }
    return OK;
}

/* The fused kernels of attention: two products, f16 in memory, heads of whole 16 bytes up to 256.
 */
static int check_attention(const desc *g)
{
    int products = 0;

    for (const desc *o : g->all<desc *>(CLB_DNN_GRAPH_OPS)) {
        if (o->type != CLB_DNN_OPERATION_MATMUL)
            continue;
        products++;
        int64_t width = dims_of(o->of(CLB_DNN_MATMUL_A))[3],
                out = dims_of(o->of(CLB_DNN_MATMUL_C))[3];
        int64_t head = products == 1 ? width : out;
        if (head % 8 || head > 256)
            return UNSUPPORTED;
    }
    return products == 2 ? OK : UNSUPPORTED;
}

static int check_pack(const desc *p)
{
    return p->all<int64_t>(CLB_DNN_PACK_IDS).size() == p->all<void *>(CLB_DNN_PACK_POINTERS).size()
               ? OK
               : BAD_PARAM;
}

static int finalize(void *p)
{
    const char *call = "cudnnBackendFinalize";
    DNN_CALL("BackendFinalize");
    desc *d = check(p, call);
    int status = OK;

    if (d->final)
        emu_die("%s: a descriptor of type %d is finalized twice", call, d->type);
    for (const attribute &a : attributes)
        if (a.descriptor == d->type && a.needed && !d->has(a.name))
            emu_die("%s: a descriptor of type %d lacks attribute %d", call, d->type, a.name);
    switch (d->type) {
    case CLB_DNN_TENSOR:
        status = check_tensor(d);
        break;
    case CLB_DNN_OPERATION_POINTWISE:
        status = check_pointwise(d);
        break;
    case CLB_DNN_OPERATION_MATMUL:
        status = check_matmul(d);
        break;
    case CLB_DNN_OPERATION_REDUCTION:
        status = check_reduction(d);
        break;
    case CLB_DNN_GRAPH:
        status = check_graph(d);
        break;
    case CLB_DNN_PACK:
        status = check_pack(d);
        break;
    case CLB_DNN_PLAN:
        status = emu_refuses("cudnn compiles", false) ? failure : OK;
        d->graph = d->of(CLB_DNN_PLAN_CONFIG)->graph;
        d->workspace = d->of(CLB_DNN_PLAN_CONFIG)->workspace;
        break;
    }
    d->final = status == OK;
    return status;
}

static int get(void *p, int name, int type, int64_t n, int64_t *got, void *values)
{
    const char *call = "cudnnBackendGetAttribute";
    DNN_CALL("BackendGetAttribute");
    desc *d = check(p, call);

    if (!d->final)
        return NOT_FINALIZED;
    if (d->type == CLB_DNN_PLAN && name == CLB_DNN_PLAN_WORKSPACE && type == CLB_DNN_OF_INT64 &&
        n == 1) {
        *got = 1;
        memcpy(values, &d->workspace, 8);
        return OK;
    }
    if (d->type != CLB_DNN_ENGINEHEUR || name != CLB_DNN_HEUR_RESULTS ||
        type != CLB_DNN_OF_DESCRIPTOR)
        emu_die("%s: a descriptor of type %d has no attribute %d", call, d->type, name);
    *got = 0;
    if (check_attention(d->of(CLB_DNN_HEUR_GRAPH)))
        return OK; /* no kernel at all */
    for (int64_t i = 0; i < n && i < ENGINES_MOST; i++, ++*got) {
        desc *config = check(((desc **)values)[i], call);
        if (config->type != CLB_DNN_ENGINECFG || config->final)
            emu_die("%s: results are no empty configurations", call);
        config->final = true;
        config->graph = d->of(CLB_DNN_HEUR_GRAPH);
        config->workspace =
            i ? (int64_t)WORKSPACE : (int64_t)1 << 40; /* the first choice needs too much */
    }
    return OK;
}

/* -- execution --------------------------------------------------------------------------------- */

static int execute(void *h, void *p, void *v)
{
    const char *call = "cudnnBackendExecute";
    DNN_CALL("BackendExecute");
    CUstream_st *stream = check_handle(h, call)->stream;
    desc *plan = check(p, call), *pack = check(v, call);
    const auto w = std::make_shared<dnn_run>();

    if (plan->type != CLB_DNN_PLAN || pack->type != CLB_DNN_PACK || !plan->final || !pack->final)
        emu_die("%s: no finalized plan and pack", call);
    emu_check_stream(stream, call);
    const auto ids = pack->all<int64_t>(CLB_DNN_PACK_IDS);
    const auto pointers = pack->all<void *>(CLB_DNN_PACK_POINTERS);
    std::map<int64_t, void *> given;
    for (size_t i = 0; i < ids.size(); i++)
        given[ids[i]] = pointers[i];
    for (const desc *o : plan->graph->all<desc *>(CLB_DNN_GRAPH_OPS)) {
        int result;
        std::vector<int> ports = emu_dnn_ports(o, &result);
        ports.push_back(result);
        for (int port : ports) {
            const desc *t = o->of(port);
            if (!t || is(t, CLB_DNN_TENSOR_VIRTUAL))
                continue;
            if (!given.count(id_of(t)))
                emu_die("%s: no memory for tensor %lld", call, (long long)id_of(t));
            emu_dnn_bind(*w, t, given[id_of(t)]);
        }
    }
    void *workspace = pack->one<void *>(CLB_DNN_PACK_WORKSPACE);
    if (emu_memory_of(workspace, (size_t)plan->workspace, call) != EMU_DEVICE)
        emu_die("%s: the workspace is too small", call);
    const desc *graph = plan->graph;
    const int device = stream->device;
    const auto waiting = plan->waiting;
    emu_step step;
    ++*waiting;
    step.run = [=] {
        emu_open_device(device);
        memset(workspace, 0xff, (size_t)plan->workspace);
        emu_dnn_interpret(graph, *w);
        emu_close_device();
        --*waiting;
    };
    emu_enqueue(stream, step);
    return OK;
}

void *emu_dnn_function(const char *name)
{
    static const std::map<std::string, void *> functions = {
        { "cudnnGetVersion", (void *)version },
        { "cudnnGetErrorString", (void *)status_text },
        { "cudnnCreate", (void *)create },
        { "cudnnDestroy", (void *)destroy },
        { "cudnnSetStream", (void *)set_stream },
        { "cudnnBackendCreateDescriptor", (void *)make },
        { "cudnnBackendDestroyDescriptor", (void *)drop },
        { "cudnnBackendSetAttribute", (void *)set },
        { "cudnnBackendFinalize", (void *)finalize },
        { "cudnnBackendGetAttribute", (void *)get },
        { "cudnnBackendExecute", (void *)execute },
    };
    const auto f = functions.find(name);

    return f == functions.end() ? nullptr : f->second;
}
