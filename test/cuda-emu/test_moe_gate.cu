// test_moe_gate.cu - the f32 product against f64, and the choice of experts against the CPU's, for
// every kind of router.
#include "test/cuda-emu/matrix_rig.h"
#include "test/cuda-emu/reference.h"

static void check_product(uint32_t rows, uint32_t cols, uint32_t n, bool bias, bool tanh_)
{
    generator r = { rows + cols + n };
    stream s;
    host_matrix m(r, CLB_F32, rows, cols, bias);
    std::vector<float> x(n * (cols + 1));
    for (float &f : x)
        f = r.real(2);
    device<float> dx(x), y(n * (rows + 2)), z(n * (rows + 2));
    device<uint8_t> w(m.bytes);
    struct clb_cuda_product_f32 p = {
        w.p,      bias ? (const float *)(w.p + m.part.bias_at) : nullptr,
        rows,     cols,
        n,        dx.p,
        cols + 1, y.p,
        rows + 2, tanh_
    };

    clb_cuda_run_product_f32(&p, s.s);
    p.n_row = 1;
    for (uint32_t i = 0; i < n; i++) {
        p.x = dx.p + i * (cols + 1);
        p.y = z.p + i * (rows + 2);
        clb_cuda_run_product_f32(&p, s.s);
    }
    std::vector<float> got = y.get(), alone = z.get();
    CHECK(!memcmp(got.data(), alone.data(), got.size() * sizeof(float)));
    int wrong = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t o = 0; o < rows + 2; o++) {
            double size, want = o < rows ? m.times(o, &x[i * (cols + 1)], &size) : 0;
            double v = got[i * (rows + 2) + o];
            if (o >= rows)
                wrong += !std::isnan(v);
            else
                wrong += !(fabs(v - (tanh_ ? tanh(want) : want)) <= size * cols * 0x1p-24 + 1e-6);
        }
    CHECK_EQ(wrong, 0);
}

static void product_in_f32(void)
{
    check_product(16, 64, 1, false, false);
    check_product(60, 33, 9, true, false);
    check_product(128, 200, 3, false, false);
    check_product(8, 130, 17, true, true);
}

// Logits that are exact in any order: multiples of 1/8, with many ties.
struct gate_case {
    const char *name;
    struct clb_arch a;
    uint32_t n_expert, top_k, n_row;
    bool correction, nan;
};

static void check_gate(const gate_case &c)
{
    const uint32_t cols = 24, n = c.n_expert, k = c.top_k, rows = c.n_row;
    generator r = { n * 31 + k * 7 + rows };
    stream s;
    host_matrix m(r, CLB_F32, n, cols, c.a.router_bias);
    std::vector<float> x(rows * cols), correction(n), logits(rows * n);

    for (uint32_t o = 0; o < n; o++) {
        for (uint32_t i = 0; i < cols; i++)
            m.set(o / 16 * cols * 64 + i * 64 + o % 16 * 4, (float)((int)r.next(5) - 2) / 8);
        m.set(m.part.bias_at == CLB_CUDA_NONE ? m.part.scale_at : m.part.bias_at + 4 * o, 0.25f);
        correction[o] = r.real(0.3f);
    }
    for (float &f : x)
        f = (float)((int)r.next(3) - 1);
    if (c.nan)
        x[0] = NAN;
    device<uint8_t> w(m.bytes);
    device<float> dx(x), y(rows * n), choice(rows * n), dc(correction), weight(rows * k);
    device<uint32_t> arrived(std::vector<uint32_t>((rows + 7) / 8)), expert(rows * k);
    struct clb_cuda_gate g = {};
    g.product = { w.p,  c.a.router_bias ? (const float *)(w.p + m.part.bias_at) : nullptr,
                  n,    cols,
                  rows, dx.p,
                  cols, y.p,
                  n,    false };
    g.correction = c.correction ? dc.p : nullptr;
    g.choice = c.correction || c.a.n_group > 1 ? choice.p : nullptr;
    g.arrived = arrived.p;
    g.expert = expert.p;
    g.weight = weight.p;
    g.top_k = k;
    g.n_group = c.a.n_group;
    g.top_groups = c.a.top_groups;
    g.router = c.a.router;
    g.group_score = c.a.group_score;
    g.normalise = c.a.topk_normalise;
    g.normalise_min = c.a.topk_normalise_min;
    g.clip = c.a.router_clip;
    g.scale = c.a.routed_scale;
    g.jitter = c.a.router_jitter;

    clb_cuda_run_product_f32(&g.product, s.s);
    logits = y.get();
    for (int times = 0; times < (n < 64 ? 2 : 1); times++) // blocks come in either order
        clb_cuda_moe_gate(&g, s.s);
    std::vector<uint32_t> id = expert.get(), want(k);
    std::vector<float> got = weight.get(), want_weight(k);
    int wrong = 0;
    for (uint32_t i = 0; i < rows; i++) {
        reference_choose(&c.a, c.correction ? correction.data() : nullptr, &logits[i * n], n, k,
                         want.data(), want_weight.data());
        for (uint32_t j = 0; j < k; j++) {
            uint32_t e = id[i * k + j];
            wrong += e >= n; // of any row, whatever is in it
            for (uint32_t b = 0; b < j; b++)
                wrong += e == id[i * k + b];
            if (c.nan && !i)
                continue;
            wrong += e != want[j];
            wrong +=
                !(fabsf(got[i * k + j] - want_weight[j]) <= 2e-6f * (1 + fabsf(want_weight[j])));
        }
    }
    for (uint32_t left : arrived.get())
        wrong += left != 0;
    if (wrong)
        printf("# %s, %u of %u experts, %u rows: %d wrong\n", c.name, k, n, rows, wrong);
    CHECK_EQ(wrong, 0);
}

static struct clb_arch arch(enum clb_router_kind kind, bool normalise)
{
    struct clb_arch a = {};

    a.router = kind;
    a.topk_normalise = normalise;
    return a;
}

static void every_router(void)
{
    const uint32_t shapes[][3] = { { 8, 2, 1 },   { 60, 4, 3 },  { 64, 8, 9 }, { 128, 8, 2 },
                                   { 256, 8, 8 }, { 10, 1, 17 }, { 40, 40, 2 } };

    for (const auto &n : shapes) {
        check_gate(
            { "softmax", arch(CLB_ROUTER_SOFTMAX_TOPK, false), n[0], n[1], n[2], false, false });
        check_gate(
            { "normalised", arch(CLB_ROUTER_SOFTMAX_TOPK, true), n[0], n[1], n[2], false, false });
        check_gate({ "softmax of k", arch(CLB_ROUTER_TOPK_SOFTMAX, false), n[0], n[1], n[2], false,
                     false });
        check_gate({ "sigmoid", arch(CLB_ROUTER_SIGMOID, true), n[0], n[1], n[2], true, false });
    }
    for (uint32_t k = 1; k <= 8; k++)
        check_gate({ "sigmoid", arch(CLB_ROUTER_SIGMOID, false), 16, k, 5, false, false });
}

static void details_of_routers(void)
{
    struct clb_arch a = arch(CLB_ROUTER_SIGMOID, true);

    a.n_group = 8;
    a.top_groups = 3;
    a.group_score = CLB_GROUP_TOP2_SUM;
    a.routed_scale = 2.5f;
    check_gate({ "groups by two", a, 64, 6, 9, true, false });
    a.group_score = CLB_GROUP_MAX;
    a.router = CLB_ROUTER_SOFTMAX_TOPK;
    a.topk_normalise = false;
    check_gate({ "groups by one", a, 64, 4, 3, false, false });
    a = arch(CLB_ROUTER_SPARSEMIXER, false);
    a.router_jitter = 0.1f;
    check_gate({ "sparsemixer", a, 16, 2, 10, false, false });
    a = arch(CLB_ROUTER_TOPK_SOFTMAX, false);
    a.router_clip = 0.5f;
    a.router_bias = true;
    check_gate({ "clip and bias", a, 32, 4, 4, false, false });
    a = arch(CLB_ROUTER_SIGMOID, true);
    a.topk_normalise_min = 100;
    check_gate({ "a least sum", a, 32, 4, 4, false, false });
    check_gate({ "not a number", arch(CLB_ROUTER_SOFTMAX_TOPK, true), 64, 8, 3, false, true });
    check_gate({ "not a number", arch(CLB_ROUTER_SIGMOID, true), 64, 8, 3, true, true });
}

int main(void)
{
    TEST(product_in_f32);
    TEST(every_router);
    TEST(details_of_routers);
    CHECK_EQ(emu_leaks(), 0);
    return test_result() || test_bad;
}
