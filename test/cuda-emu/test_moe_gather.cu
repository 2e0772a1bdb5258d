// test_moe_gather.cu - sums of experts, residual and norms against f64.
#include "test/cuda-emu/matrix_rig.h"

struct gather_case {
    uint32_t n_row, n, top_k;
    bool weighted, shared, shared_gate, after, next;
    enum clb_norm_kind kind;
    float residual_scale;
    bool bf16;
};

static std::vector<float> reals(generator &r, size_t n, float most)
{
    std::vector<float> v(n);

    for (float &f : v)
        f = r.real(most);
    return v;
}

static std::vector<double> norm_of(const std::vector<double> &x, enum clb_norm_kind kind,
                                   const float *w, const float *b)
{
    double mean = 0, square = 0;
    std::vector<double> y;

    for (double v : x)
        mean += kind == CLB_NORM_LAYER ? v / (double)x.size() : 0;
    for (double v : x)
        square += (v - mean) * (v - mean) / (double)x.size();
    for (size_t i = 0; i < x.size(); i++)
        y.push_back((x[i] - mean) / sqrt(square + 1e-5) * w[i] + (b ? b[i] : 0));
    return y;
}

static void check_gather(const gather_case &c)
{
    generator r = { c.n_row * 3 + c.n + c.top_k };
    stream s;
    const size_t ld = c.n + 5, half = clb_cuda_ld(c.n), slots = c.n_row * c.top_k;
    std::vector<uint32_t> slot(slots);
    std::vector<float> weight = reals(r, slots, 1), out = reals(r, slots * ld, 3);
    std::vector<float> shared = reals(r, c.n_row * ld, 2), gate = reals(r, c.n_row, 2);
    std::vector<float> x = reals(r, c.n_row * ld, 4), w = reals(r, c.n, 1), b = reals(r, c.n, 1);
    for (uint32_t i = 0; i < slots; i++)
        slot[i] = (i * 7 + 3) % (uint32_t)slots; // 7 divides no number of slots here
    device<uint32_t> dslot(slot);
    device<float> dweight(weight), dout(out), dshared(shared), dgate(gate), dx(x), dw(w), db(b);
    device<float> wide(c.n_row * ld);
    device<uint16_t> narrow_(c.n_row * half);
    struct clb_cuda_gather g = {};

    g.n_row = c.n_row;
    g.n = c.n;
    g.top_k = c.top_k;
    g.ld = ld;
    g.expert_out = dout.p;
    g.slot = dslot.p;
    g.weight = c.weighted ? dweight.p : nullptr;
    g.shared = c.shared ? dshared.p : nullptr;
    g.shared_gate = c.shared_gate ? dgate.p : nullptr;
    g.x = dx.p;
    g.residual_scale = c.residual_scale;
    g.after = { c.after, c.kind, dw.p, c.kind == CLB_NORM_LAYER ? db.p : nullptr, 1e-5f };
    if (c.next) {
        g.next.norm = { !c.after, c.kind, dw.p, c.kind == CLB_NORM_LAYER ? db.p : nullptr, 1e-5f };
        g.next.wide = wide.p;
        g.next.ld_wide = ld;
        g.next.half = narrow_.p;
        g.next.ld_half = half;
        g.next.bf16 = c.bf16;
    }
    clb_cuda_moe_gather(&g, s.s);

    std::vector<float> got = dx.get(), got_wide = wide.get();
    std::vector<uint16_t> got_half = narrow_.get();
    enum clb_dtype t = c.bf16 ? CLB_BF16 : CLB_F16;
    int wrong = 0;
    for (uint32_t i = 0; i < c.n_row; i++) {
        std::vector<double> sum(c.n), row(c.n);
        for (uint32_t k = 0; k < c.n; k++) {
            for (uint32_t j = 0; j < c.top_k; j++)
                sum[k] += (c.weighted ? weight[i * c.top_k + j] : 1.0) *
                          out[slot[i * c.top_k + j] * ld + k];
            if (c.shared)
                sum[k] += (c.shared_gate ? 1 / (1 + exp(-gate[i])) : 1.0) * shared[i * ld + k];
        }
        if (c.after)
            sum = norm_of(sum, c.kind, w.data(), c.kind == CLB_NORM_LAYER ? b.data() : nullptr);
        for (uint32_t k = 0; k < c.n; k++) {
            row[k] = x[i * ld + k] + (c.residual_scale > 0 ? c.residual_scale : 1) * sum[k];
            wrong += !(fabs(got[i * ld + k] - row[k]) <= 2e-5);
        }
        wrong += got[i * ld + c.n] != x[i * ld + c.n];
        if (!c.next)
            continue;
        if (!c.after)
            row = norm_of(row, c.kind, w.data(), c.kind == CLB_NORM_LAYER ? b.data() : nullptr);
        for (uint32_t k = 0; k < half; k++) {
            double want = k < c.n ? row[k] : 0, h = widen(t, got_half[i * half + k]);
            wrong += !(fabs(h - want) <= fabs(want) * (c.bf16 ? 0x1p-8 : 0x1p-11) + 2e-5);
            wrong += k < c.n && !(fabs(got_wide[i * ld + k] - want) <= 2e-5);
        }
    }
    CHECK_EQ(wrong, 0);
}

static void sums_and_norms(void)
{
    const enum clb_norm_kind rms = CLB_NORM_RMS, layer = CLB_NORM_LAYER;

    check_gather({ 1, 64, 2, true, false, false, false, true, rms, 0, false });
    check_gather({ 3, 300, 8, true, true, false, false, true, layer, 0.5f, true });
    check_gather({ 2, 96, 1, false, true, true, false, false, rms, 1, false });
    check_gather({ 4, 257, 4, true, true, true, true, true, rms, 2, false });
    check_gather({ 2, 130, 6, false, false, false, true, true, layer, 0, true });
    check_gather({ 5, 40, 0, false, true, false, false, true, rms, 0, false });
    check_gather({ 3, 40, 0, false, true, false, true, true, rms, 0, false });
}

// The first branch of a pass has no Gather before it.
static void a_branch_alone(void)
{
    generator r = { 5 };
    stream s;
    const uint32_t n = 100, ld = 104;
    std::vector<float> x = reals(r, 3 * ld, 2), w = reals(r, n, 1);
    device<float> dx(x), dw(w), wide(3 * n);
    struct clb_cuda_branch b = { { true, CLB_NORM_RMS, dw.p, nullptr, 1e-5f },
                                 wide.p,
                                 n,
                                 nullptr,
                                 clb_cuda_ld(n),
                                 false,
                                 nullptr };
    int wrong = 0;

    clb_cuda_run_branch(&b, dx.p, ld, n, 3, s.s);
    std::vector<float> got = wide.get();
    for (uint32_t i = 0; i < 3; i++) {
        std::vector<double> row(&x[i * ld], &x[i * ld] + n);
        row = norm_of(row, CLB_NORM_RMS, w.data(), nullptr);
        for (uint32_t k = 0; k < n; k++)
            wrong += !(fabs(got[i * n + k] - row[k]) <= 1e-5);
    }
    CHECK_EQ(wrong, 0);
}

int main(void)
{
    TEST(sums_and_norms);
    TEST(a_branch_alone);
    CHECK_EQ(emu_leaks(), 0);
    return test_result() || test_bad;
}
