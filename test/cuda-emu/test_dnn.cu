// test_dnn.cu - attention as a graph of cuDNN: the graph against the formula, what stands around
// it, and the fake of the library, in which every mistake that it knows is planted.
#include <cmath>

#include "emu_control.h"
#include "emu_test.h"
#include "kernels/cuda/cuda_kernels.h"

extern "C" {
#include "kernels/cuda/cuda_dnn.h"
}

static float random_value(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) * 0x1p-31f;
}

static std::vector<uint16_t> halves(size_t n, uint64_t seed)
{
    std::vector<uint16_t> v(n);
    for (uint16_t &h : v)
        h = clb_f32_to_f16(random_value(&seed));
    return v;
}

// The library with a handle and a plan.
struct opened {
    struct clb_cuda_dnn dnn;
    void *handle = nullptr;
    struct clb_dnn_plan plan;
    stream s;

    explicit opened(const struct clb_dnn_shape &shape)
    {
        struct clb_err err = {};
        emu_library("libcudnn.so.9", true, NULL);
        CHECK(clb_cuda_dnn_open(&dnn));
        CHECK_EQ(dnn.create(&handle), 0);
        CHECK_EQ(dnn.set_stream(handle, s.s), 0);
        CHECK(clb_dnn_plan_new(&plan, &dnn, handle, &shape, 1 << 20, &err));
    }
    ~opened()
    {
        clb_dnn_plan_free(&plan, &dnn);
        CHECK_EQ(dnn.destroy(handle), 0);
        clb_cuda_dnn_close(&dnn);
    }
};

// -- the graph -----------------------------------------------------------------------------------

static void check_shape(struct clb_dnn_shape s, int32_t n_query, int32_t n_key)
{
    const uint32_t h = s.n_head, hk = s.n_kv_head, d = s.key_dim, dv = s.value_dim;
    const std::vector<uint16_t> q = halves((size_t)s.n_query * h * d, 1),
                                k = halves((size_t)hk * s.n_key * d, 2),
                                v = halves((size_t)hk * s.n_key * dv, 3);
    opened o(s);
    device<uint16_t> dq(q), dk(k), dev(v), out((size_t)s.n_query * h * dv);
    device<int32_t> count(std::vector<int32_t>{ n_query, 0, 0, 0, n_key, 0, 0, 0 });
    device<uint8_t> space(256);
    const struct clb_dnn_args a = { dq.p, dk.p, dev.p, out.p, count.p, 0.5f, space.p };
    struct clb_err err = {};

    CHECK(clb_dnn_plan_run(&o.plan, &o.dnn, o.handle, &a, &err));
    const std::vector<uint16_t> got = out.get();
    double worst = 0;
    for (int32_t i = 0; i < n_query; i++)
        for (uint32_t j = 0; j < h; j++) {
            const uint32_t group = j / (h / hk);
            const int32_t seen = n_key - n_query + i + 1;
            std::vector<double> p(seen), sum(dv);
            double all = 0;
            for (int32_t t = 0; t < seen; t++) {
                double score = 0;
                for (uint32_t c = 0; c < d; c++)
                    score += (double)clb_f16_to_f32(q[((size_t)i * h + j) * d + c]) *
                             clb_f16_to_f32(k[((size_t)group * s.n_key + t) * d + c]);
                all += p[t] = exp(0.5 * score);
            }
            for (int32_t t = 0; t < seen; t++)
                for (uint32_t c = 0; c < dv; c++)
                    sum[c] +=
                        p[t] / all * clb_f16_to_f32(v[((size_t)group * s.n_key + t) * dv + c]);
            for (uint32_t c = 0; c < dv; c++)
                worst =
                    fmax(worst, fabs(sum[c] - clb_f16_to_f32(got[((size_t)i * h + j) * dv + c])));
        }
    printf("# %u and %u heads, %d of %u queries, %d of %u keys: %.2g\n", h, hk, n_query, s.n_query,
           n_key, s.n_key, worst);
    CHECK(worst < 2e-3);
}

static void graph_is_attention(void)
{
    check_shape({ 4, 2, 16, 16, 64, 64 }, 64, 64);
    check_shape({ 3, 1, 40, 24, 64, 128 }, 37, 101);
    check_shape({ 2, 2, 8, 8, 64, 64 }, 1, 64);
}

// -- around it -----------------------------------------------------------------------------------

// Rows 0 .. n - 1 of sequence 1 through pages in any order, and back.
static void pages_side_by_side(void)
{
    enum { N = 150, HEADS = 2, KEYS = 24, VALUES = 40, ROOM = 192, PAGES = 5 };
    const uint64_t head = clb_cuda_kv_head_bytes(CLB_KV_F16, KEYS, VALUES);
    std::vector<float> k(N * HEADS * KEYS), v(N * HEADS * VALUES);
    std::vector<uint32_t> position(N), sequence(N, 1);
    uint64_t state = 7;

    for (float &f : k)
        f = random_value(&state);
    for (float &f : v)
        f = random_value(&state);
    for (uint32_t i = 0; i < N; i++)
        position[i] = i;
    stream s;
    device<uint8_t> pages(std::vector<uint8_t>(PAGES * HEADS * head));
    device<uint32_t> table(std::vector<uint32_t>{ 0, 0, 0, 4, 1, 3 }), at(position), of(sequence);
    device<float> dk(k), dev(v);
    device<uint16_t> key(HEADS * ROOM * KEYS), value(HEADS * ROOM * VALUES);
    const struct clb_cuda_kv kv = { CLB_KV_F16, pages.p, HEADS * head, head, HEADS,
                                    KEYS,       VALUES,  table.p,      3 };
    struct clb_cuda_append append = {};
    append.kv = kv;
    append.n_row = N;
    append.key = dk.p;
    append.value = dev.p;
    append.ld_key = HEADS * KEYS;
    append.ld_value = HEADS * VALUES;
    append.position = at.p;
    append.sequence = of.p;
    clb_cuda_run_append(&append, s.s);
    const struct clb_cuda_unpage u = { kv, 1, (N + 63) / 64, ROOM, key.p, value.p };
    clb_cuda_run_unpage(&u, s.s);
    const std::vector<uint16_t> gk = key.get(), gv = value.get();
    int wrong = 0;
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t h = 0; h < HEADS; h++) {
            for (uint32_t c = 0; c < KEYS; c++)
                wrong +=
                    gk[(h * ROOM + i) * KEYS + c] != clb_f32_to_f16(k[(i * HEADS + h) * KEYS + c]);
            for (uint32_t c = 0; c < VALUES; c++)
                wrong += gv[(h * ROOM + i) * VALUES + c] !=
                         clb_f32_to_f16(v[(i * HEADS + h) * VALUES + c]);
        }
    CHECK_EQ(wrong, 0);
}

static void results_in_every_type(void)
{
    enum { ROWS = 3, N = 300, LD = 320 };
    const std::vector<uint16_t> from = halves(ROWS * N, 5);
    stream s;
    device<uint16_t> df(from), half(std::vector<uint16_t>(ROWS * LD, 7)),
        brain(std::vector<uint16_t>(ROWS * LD, 7));
    device<float> wide(std::vector<float>(ROWS * LD, 7));
    struct clb_cuda_convert c = { ROWS, N, df.p, NULL, half.p, LD, false };

    clb_cuda_run_convert(&c, s.s);
    c.half = brain.p;
    c.bf16 = true;
    clb_cuda_run_convert(&c, s.s);
    c.wide = wide.p;
    clb_cuda_run_convert(&c, s.s);
    const std::vector<uint16_t> h = half.get(), b = brain.get();
    const std::vector<float> w = wide.get();
    int wrong = 0;
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < LD; i++) {
            const bool in = i < N;
            const uint16_t v = in ? from[r * N + i] : 7;
            wrong += h[r * LD + i] != v;
            wrong += b[r * LD + i] != (in ? clb_f32_to_bf16(clb_f16_to_f32(v)) : 7);
            wrong += w[r * LD + i] != (in ? clb_f16_to_f32(v) : 7);
        }
    CHECK_EQ(wrong, 0);
}

// -- the fake: every mistake ---------------------------------------------------------------------

struct lone { // a descriptor
    struct clb_cuda_dnn *d;
    void *p = nullptr;
    lone(struct clb_cuda_dnn *dnn, int type) : d(dnn)
    {
        CHECK_EQ(d->make(type, &p), 0);
    }
    ~lone()
    {
        CHECK_EQ(d->drop(p), 0);
    }
    int set(int name, int type, int64_t n, const void *v)
    {
        return d->set(p, name, type, n, v);
    }
    void tensor(int64_t id, int type, bool is_virtual)
    {
        const int64_t sizes[4] = { 1, 1, 4, 4 }, strides[4] = { 16, 16, 4, 1 }, alignment = 16;
        CHECK_EQ(set(CLB_DNN_TENSOR_ID, CLB_DNN_OF_INT64, 1, &id), 0);
        CHECK_EQ(set(CLB_DNN_TENSOR_TYPE, CLB_DNN_OF_DATA_TYPE, 1, &type), 0);
        CHECK_EQ(set(CLB_DNN_TENSOR_ALIGNMENT, CLB_DNN_OF_INT64, 1, &alignment), 0);
        CHECK_EQ(set(CLB_DNN_TENSOR_DIMS, CLB_DNN_OF_INT64, 4, sizes), 0);
        CHECK_EQ(set(CLB_DNN_TENSOR_STRIDES, CLB_DNN_OF_INT64, 4, strides), 0);
        if (is_virtual)
            CHECK_EQ(set(CLB_DNN_TENSOR_VIRTUAL, CLB_DNN_OF_BOOLEAN, 1, &is_virtual), 0);
        CHECK_EQ(d->finalize(p), 0);
    }
    void doubles(void *math, void *x, void *y) // y = x + x
    {
        CHECK_EQ(set(CLB_DNN_POINTWISE_DESC, CLB_DNN_OF_DESCRIPTOR, 1, &math), 0);
        CHECK_EQ(set(CLB_DNN_POINTWISE_X, CLB_DNN_OF_DESCRIPTOR, 1, &x), 0);
        CHECK_EQ(set(CLB_DNN_POINTWISE_B, CLB_DNN_OF_DESCRIPTOR, 1, &x), 0);
        CHECK_EQ(set(CLB_DNN_POINTWISE_Y, CLB_DNN_OF_DESCRIPTOR, 1, &y), 0);
        CHECK_EQ(d->finalize(p), 0);
    }
};

static void descriptors_are_checked(void)
{
    opened o({ 2, 1, 8, 8, 64, 64 });
    struct clb_cuda_dnn *d = &o.dnn;
    const int64_t one = 1, id = 5;
    const int half = CLB_DNN_HALF;
    lone t(d, CLB_DNN_TENSOR), op(d, CLB_DNN_OPERATION_POINTWISE), whole(d, CLB_DNN_TENSOR);

    whole.tensor(1, CLB_DNN_FLOAT, false);
    CHECK(dies("lacks attribute 901", [&] {
        t.set(CLB_DNN_TENSOR_ID, CLB_DNN_OF_INT64, 1, &id);
        d->finalize(t.p);
    }));
    CHECK(dies("has no attribute 1520",
               [&] { t.set(CLB_DNN_MATMUL_A, CLB_DNN_OF_DESCRIPTOR, 1, &whole.p); }));
    CHECK(dies("attribute 902: 3 values of type 3",
               [&] { t.set(CLB_DNN_TENSOR_DIMS, CLB_DNN_OF_INT64, 3, &one); }));
    CHECK(dies("attribute 901: 1 values of type 3",
               [&] { t.set(CLB_DNN_TENSOR_TYPE, CLB_DNN_OF_INT64, 1, &one); }));
    CHECK(dies("is finalized already",
               [&] { whole.set(CLB_DNN_TENSOR_TYPE, CLB_DNN_OF_DATA_TYPE, 1, &half); }));
    CHECK(dies("is finalized twice", [&] { d->finalize(whole.p); }));
    CHECK(dies("is no descriptor", [&] { d->finalize(o.handle); }));
    CHECK(dies("is no handle", [&] { d->set_stream(whole.p, o.s.s); }));
    CHECK_EQ(op.set(CLB_DNN_POINTWISE_X, CLB_DNN_OF_DESCRIPTOR, 1, &t.p), 2004); // not finalized
}

static void graphs_are_checked(void)
{
    opened o({ 2, 1, 8, 8, 64, 64 });
    struct clb_cuda_dnn *d = &o.dnn;
    const int add = CLB_DNN_ADD, math = CLB_DNN_FLOAT, integers = CLB_DNN_INT32;
    lone x(d, CLB_DNN_TENSOR), y(d, CLB_DNN_TENSOR), z(d, CLB_DNN_TENSOR), same(d, CLB_DNN_TENSOR);
    lone sum(d, CLB_DNN_POINTWISE), bad(d, CLB_DNN_POINTWISE);
    lone first(d, CLB_DNN_OPERATION_POINTWISE), second(d, CLB_DNN_OPERATION_POINTWISE),
        third(d, CLB_DNN_OPERATION_POINTWISE), wrong(d, CLB_DNN_OPERATION_POINTWISE);
    lone g(d, CLB_DNN_GRAPH);

    x.tensor(1, CLB_DNN_FLOAT, false);
    y.tensor(2, CLB_DNN_FLOAT, true);
    z.tensor(3, CLB_DNN_FLOAT, true);
    same.tensor(2, CLB_DNN_FLOAT, true);
    CHECK_EQ(sum.set(CLB_DNN_POINTWISE_MODE, CLB_DNN_OF_POINTWISE_MODE, 1, &add), 0);
    CHECK_EQ(sum.set(CLB_DNN_POINTWISE_MATH, CLB_DNN_OF_DATA_TYPE, 1, &math), 0);
    CHECK_EQ(d->finalize(sum.p), 0);
    CHECK_EQ(bad.set(CLB_DNN_POINTWISE_MODE, CLB_DNN_OF_POINTWISE_MODE, 1, &add), 0);
    CHECK_EQ(bad.set(CLB_DNN_POINTWISE_MATH, CLB_DNN_OF_DATA_TYPE, 1, &integers), 0);
    CHECK_EQ(d->finalize(bad.p), 0);
    first.doubles(sum.p, x.p, y.p);
    second.doubles(sum.p, y.p, z.p);
    third.doubles(sum.p, same.p, z.p);
    wrong.set(CLB_DNN_POINTWISE_DESC, CLB_DNN_OF_DESCRIPTOR, 1, &bad.p);
    wrong.set(CLB_DNN_POINTWISE_X, CLB_DNN_OF_DESCRIPTOR, 1, &x.p);
    wrong.set(CLB_DNN_POINTWISE_B, CLB_DNN_OF_DESCRIPTOR, 1, &x.p);
    wrong.set(CLB_DNN_POINTWISE_Y, CLB_DNN_OF_DESCRIPTOR, 1, &y.p);
    CHECK_EQ(d->finalize(wrong.p), 2000); // floats are not added as integers
    CHECK_EQ(g.set(CLB_DNN_GRAPH_HANDLE, CLB_DNN_OF_HANDLE, 1, &o.handle), 0);
    auto graph_of = [&](std::vector<void *> ops) {
        g.set(CLB_DNN_GRAPH_OPS, CLB_DNN_OF_DESCRIPTOR, (int64_t)ops.size(), ops.data());
        d->finalize(g.p);
    };
    CHECK(dies("tensor 2 is read before it is made", [&] { graph_of({ second.p, first.p }); }));
    CHECK(dies("tensor 2 is made twice", [&] { graph_of({ first.p, first.p }); }));
    CHECK(dies("two tensors have number 2", [&] { graph_of({ first.p, third.p }); }));
    graph_of({ first.p, second.p });
}

static void runs_are_checked(void)
{
    opened o({ 2, 1, 8, 8, 64, 64 });
    device<uint16_t> q(64 * 16), k(64 * 8), small(64), out(64 * 16);
    device<int32_t> count(std::vector<int32_t>{ 64, 0, 0, 0, 64, 0, 0, 0 });
    device<uint8_t> space(256), little(16);
    std::vector<uint16_t> host(64 * 16);
    const struct clb_dnn_args good = { q.p, k.p, k.p, out.p, count.p, 1, space.p };
    auto runs = [&](struct clb_dnn_args a) {
        struct clb_err err = {};
        return clb_dnn_plan_run(&o.plan, &o.dnn, o.handle, &a, &err);
    };
    struct clb_dnn_args a = good;

    a.q = host.data();
    CHECK(dies("tensor 1 is not in memory of the device", [&] { runs(a); }));
    a = good;
    a.k = small.p;
    CHECK(dies("cudnnBackendExecute", [&] { runs(a); }));
    a = good;
    a.v = k.p + 1;
    CHECK(dies("tensor 3 is not aligned", [&] { runs(a); }));
    a = good;
    a.workspace = little.p;
    CHECK(dies("cudnnBackendExecute", [&] { runs(a); }));
    CHECK(runs(good));
    OK(cudaDeviceSynchronize());
    emu_fail("cudnnBackendExecute", 1, cudaErrorUnknown);
    CHECK(!runs(good));
    struct clb_err err = {};
    const struct clb_dnn_shape odd = { 2, 1, 12, 8, 64, 64 }, wide = { 2, 1, 264, 8, 64, 64 };
    struct clb_dnn_plan p;
    CHECK(!clb_dnn_plan_new(&p, &o.dnn, o.handle, &odd, 1 << 20, &err));
    CHECK_HAS(err.text, "cuDNN: kernels for 2 and 1 heads of 12 and 8, 64 queries, 64 keys: none");
    CHECK_EQ(err.code, CLB_UNSUPPORTED);
    CHECK(!clb_dnn_plan_new(&p, &o.dnn, o.handle, &wide, 1 << 20, &err));
    CHECK(!clb_dnn_plan_new(&p, &o.dnn, o.handle, &o.plan.shape, 255, &err)); // of workspace
}

int main(void)
{
    TEST(graph_is_attention);
    TEST(pages_side_by_side);
    TEST(results_in_every_type);
    TEST(descriptors_are_checked);
    TEST(graphs_are_checked);
    TEST(runs_are_checked);
    CHECK_EQ(emu_leaks(), 0);
    return test_result() || test_bad;
}
