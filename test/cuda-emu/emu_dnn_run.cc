/* emu_dnn_run.cc - the interpreter of graphs of cuDNN, in f32: what an operation makes is rounded
 * to its type. Rows of a result that are no queries, which the real library leaves open, are NaN.
 */
#include <algorithm>
#include <cmath>

#include "emu_call.h"
#include "emu_dnn.h"
#include "lib/base/half.h"

std::vector<int> emu_dnn_ports(const desc *o, int *result)
{
    *result = o->type == CLB_DNN_OPERATION_MATMUL      ? CLB_DNN_MATMUL_C
              : o->type == CLB_DNN_OPERATION_REDUCTION ? CLB_DNN_REDUCTION_Y
                                                       : CLB_DNN_POINTWISE_Y;
    if (o->type == CLB_DNN_OPERATION_MATMUL)
        return { CLB_DNN_MATMUL_A, CLB_DNN_MATMUL_B, CLB_DNN_MATMUL_M, CLB_DNN_MATMUL_N,
                 CLB_DNN_MATMUL_K };
    if (o->type == CLB_DNN_OPERATION_REDUCTION)
        return { CLB_DNN_REDUCTION_X };
    return { CLB_DNN_POINTWISE_X, CLB_DNN_POINTWISE_B, CLB_DNN_POINTWISE_T };
}

/* A value as one of shape `shape` reads it: sizes of 1 are repeated, and heads of a group. */
struct view {
    const float *at;
    int64_t batch, head, group, row, column;

    view() : at(nullptr), batch(0), head(0), group(1), row(0), column(0)
    {
    }
    view(const value &of, const dims &shape) : view()
    {
        const dims &d = of.d;
        at = of.v.data();
        group = shape[1] / d[1];
        batch = d[0] == 1 ? 0 : d[1] * d[2] * d[3];
        head = d[2] * d[3];
        row = d[2] == 1 ? 0 : d[3];
        column = d[3] == 1 ? 0 : 1;
    }
    float operator()(int64_t b, int64_t h, int64_t r, int64_t c) const
    {
        return at ? at[b * batch + h / group * head + r * row + c * column] : 0;
    }
};

static size_t element(int type)
{
    return type == CLB_DNN_HALF ? 2 : type == CLB_DNN_BOOL ? 1 : 4;
}
static float load(int type, const void *from, int64_t i)
{
    return type == CLB_DNN_HALF    ? clb_f16_to_f32(((const uint16_t *)from)[i])
           : type == CLB_DNN_INT32 ? (float)((const int32_t *)from)[i]
                                   : ((const float *)from)[i];
}

template <class F> static void each(const dims &d, F f)
{
    for (int64_t b = 0; b < d[0]; b++)
        for (int64_t h = 0; h < d[1]; h++)
            for (int64_t r = 0; r < d[2]; r++)
                for (int64_t c = 0; c < d[3]; c++)
                    f(b, h, r, c);
}

static value read(const dnn_run &w, const desc *t)
{
    value v = { dims_of(t), {} };
    const dims s = t->one<dims>(CLB_DNN_TENSOR_STRIDES);

    if (is(t, CLB_DNN_TENSOR_VIRTUAL))
        return w.made.at(id_of(t));
    if (is(t, CLB_DNN_TENSOR_BY_VALUE)) {
        v.v = { w.by_value.at(id_of(t)) };
        return v;
    }
    v.v.reserve((size_t)count_of(v.d));
    const void *from = w.at.at(id_of(t));
    each(v.d, [&](int64_t b, int64_t h, int64_t r, int64_t c) {
        v.v.push_back(load(type_of(t), from, b * s[0] + h * s[1] + r * s[2] + c * s[3]));
    });
    return v;
}

static void write(dnn_run &w, const desc *t, value &&v)
{
    const dims s = t->one<dims>(CLB_DNN_TENSOR_STRIDES);
    size_t i = 0;

    if (type_of(t) == CLB_DNN_HALF)
        for (float &f : v.v)
            f = clb_f16_to_f32(clb_f32_to_f16(f));
    if (is(t, CLB_DNN_TENSOR_VIRTUAL)) {
        w.made[id_of(t)] = std::move(v);
        return;
    }
    uint16_t *to = (uint16_t *)w.at.at(id_of(t));
    each(v.d, [&](int64_t b, int64_t h, int64_t r, int64_t c) {
        to[b * s[0] + h * s[1] + r * s[2] + c * s[3]] = clb_f32_to_f16(v.v[i++]);
    });
}

static float apply(int mode, float x, float b, float t)
{
    switch (mode) {
    case CLB_DNN_ADD:
        return x + b;
    case CLB_DNN_SUB:
        return x - b;
    case CLB_DNN_MUL:
        return x * b;
    case CLB_DNN_DIV:
        return x / b;
    case CLB_DNN_EXP:
        return expf(x);
    case CLB_DNN_CMP_GE:
        return x >= b;
    case CLB_DNN_CMP_LT:
        return x < b;
    case CLB_DNN_AND:
        return x != 0 && b != 0;
    }
    return t != 0 ? x : b; /* CLB_DNN_SELECT */
}

static value pointwise(const dnn_run &w, const desc *o)
{
    const desc *p = o->of(CLB_DNN_POINTWISE_DESC), *b = o->of(CLB_DNN_POINTWISE_B),
               *t = o->of(CLB_DNN_POINTWISE_T);
    const int mode = p->one<int>(CLB_DNN_POINTWISE_MODE);
    const int64_t axis = mode == CLB_DNN_INDEX ? p->one<int64_t>(CLB_DNN_POINTWISE_AXIS) : 0;
    value y = { dims_of(o->of(CLB_DNN_POINTWISE_Y)), {} };
    const value vx = read(w, o->of(CLB_DNN_POINTWISE_X)), vb = b ? read(w, b) : value{},
                vt = t ? read(w, t) : value{};
    const view ax(vx, y.d), ab = b ? view(vb, y.d) : view(), at = t ? view(vt, y.d) : view();

    y.v.reserve((size_t)count_of(y.d));
    each(y.d, [&](int64_t n, int64_t h, int64_t r, int64_t c) {
        y.v.push_back(mode == CLB_DNN_INDEX
                          ? (float)(axis == 2 ? r : c)
                          : apply(mode, ax(n, h, r, c), ab(n, h, r, c), at(n, h, r, c)));
    });
    return y;
}

static value reduction(const dnn_run &w, const desc *o)
{
    const desc *p = o->of(CLB_DNN_REDUCTION_DESC);
    const bool sum = p->one<int>(CLB_DNN_REDUCTION_OP) == CLB_DNN_REDUCE_ADD;
    const value x = read(w, o->of(CLB_DNN_REDUCTION_X));
    const view ax(x, x.d);
    value y = { dims_of(o->of(CLB_DNN_REDUCTION_Y)), {} };

    each(y.d, [&](int64_t b, int64_t h, int64_t r, int64_t) {
        float all = sum ? 0 : -INFINITY;
        for (int64_t c = 0; c < x.d[3]; c++)
            all = sum ? all + ax(b, h, r, c) : fmaxf(all, ax(b, h, r, c));
        y.v.push_back(all);
    });
    return y;
}

static value matmul(const dnn_run &w, const desc *o)
{
    const desc *p = o->of(CLB_DNN_MATMUL_DESC);
    const value a = read(w, o->of(CLB_DNN_MATMUL_A)), b = read(w, o->of(CLB_DNN_MATMUL_B));
    const float outside =
        p->has(CLB_DNN_MATMUL_PADDING) ? (float)p->one<double>(CLB_DNN_MATMUL_PADDING) : NAN;
    value y = { dims_of(o->of(CLB_DNN_MATMUL_C)), {} };
    auto most = [&](int name, int64_t all) {
        return o->has(name) ? std::min((int64_t)read(w, o->of(name)).v[0], all) : all;
    };
    const int64_t m = most(CLB_DNN_MATMUL_M, y.d[2]), n = most(CLB_DNN_MATMUL_N, y.d[3]),
                  k = most(CLB_DNN_MATMUL_K, a.d[3]);
    const view va(a, a.d), vb(b, { b.d[0], y.d[1], b.d[2], b.d[3] });

    y.v.reserve((size_t)count_of(y.d));
    each(y.d, [&](int64_t s, int64_t h, int64_t r, int64_t c) {
        float sum = 0;
        for (int64_t i = 0; r < m && c < n && i < k; i++)
            sum += va(s, h, r, i) * vb(s, h, i, c);
        y.v.push_back(r < m && c < n ? sum : outside);
    });
    return y;
}

void emu_dnn_interpret(const desc *graph, dnn_run &w)
{
    for (const desc *o : graph->all<desc *>(CLB_DNN_GRAPH_OPS)) {
        int result;
        emu_dnn_ports(o, &result);
        write(w, o->of(result),
              o->type == CLB_DNN_OPERATION_MATMUL      ? matmul(w, o)
              : o->type == CLB_DNN_OPERATION_REDUCTION ? reduction(w, o)
                                                       : pointwise(w, o));
    }
}

void emu_dnn_bind(dnn_run &w, const desc *t, void *p)
{
    const char *call = "cudnnBackendExecute";
    const dims d = dims_of(t), s = t->one<dims>(CLB_DNN_TENSOR_STRIDES);
    int64_t last = 0;

    if (is(t, CLB_DNN_TENSOR_BY_VALUE)) {
        w.by_value[id_of(t)] = load(type_of(t), p, 0);
        return;
    }
    for (int i = 0; i < 4; i++)
        last += (d[i] - 1) * s[i];
    if ((uint64_t)p % (uint64_t)t->one<int64_t>(CLB_DNN_TENSOR_ALIGNMENT))
        emu_die("%s: tensor %lld is not aligned", call, (long long)id_of(t));
    if (emu_memory_of(p, ((size_t)last + 1) * element(type_of(t)), call) != EMU_DEVICE)
        emu_die("%s: tensor %lld is not in memory of the device", call, (long long)id_of(t));
    w.at[id_of(t)] = p;
}
