// test_moe_experts.cu - products of rows and tiles, plain and gated, of every dtype that CUDA has,
// against f64; and that the bits of a row do not depend on the rows beside it.
#include "test/cuda-emu/matrix_rig.h"

static const enum clb_dtype dtypes[] = { CLB_INT8, CLB_INT4, CLB_MXFP4, CLB_F16, CLB_BF16 };

static double activation(enum clb_act act, double g, double u, double limit, double alpha)
{
    switch (act) {
    case CLB_ACT_SILU:
        return g / (1 + exp(-g)) * u;
    case CLB_ACT_GELU:
        return 0.5 * g * (1 + erf(g / sqrt(2))) * u;
    case CLB_ACT_GELU_TANH:
        return 0.5 * g * (1 + tanh(sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * u;
    case CLB_ACT_RELU:
        return fmax(g, 0) * u;
    default:
        g = fmin(g, limit);
        u = fmin(fmax(u, -limit), limit);
        return g / (1 + exp(-alpha * g)) * (u + 1);
    }
}

// The matrices of one expert in one block.
struct expert {
    host_matrix one, two;
    std::vector<uint8_t> bytes;
    struct clb_cuda_part part[2];

    expert(generator &r, enum clb_dtype t, uint32_t rows, uint32_t cols, bool bias)
        : one(r, t, rows, cols, bias), two(r, t, rows, cols, bias), bytes(one.bytes)
    {
        uint64_t at = (bytes.size() + 63) / 64 * 64;

        bytes.resize(at);
        bytes.insert(bytes.end(), two.bytes.begin(), two.bytes.end());
        part[0] = one.part;
        part[1] = { at, two.part.scale_at + at, bias ? two.part.bias_at + at : CLB_CUDA_NONE };
    }
};

static struct clb_cuda_product product_of(const expert &e, bool gated, const host_rows &x,
                                          const uint16_t *device_x, void *y, size_t ldy)
{
    struct clb_cuda_product p = {};

    p.dtype = e.one.dtype;
    p.gated = gated;
    p.part[0] = e.part[0];
    p.part[1] = e.part[1];
    p.rows = e.one.rows;
    p.cols = e.one.cols;
    pack_book(p.book);
    p.x = device_x;
    p.ldx = x.ld;
    p.y = y;
    p.ldy = ldy;
    p.limit = 1.5f;
    p.alpha = 1.702f;
    p.n_cta = 5;
    return p;
}

// Output row y of input row x; how many values are off.
static int wrong_values(const expert &e, bool gated, enum clb_act act, const float *x,
                        const float *y)
{
    int wrong = 0;

    for (uint32_t r = 0; r < e.one.rows; r++) {
        double size, size2, want = e.one.times(r, x, &size);
        double bound = size * product_bound(e.one.dtype, e.one.cols) + 1e-30;
        if (gated) {
            double up = e.two.times(r, x, &size2), g = want;
            double b = size2 * product_bound(e.one.dtype, e.one.cols);
            want = activation(act, g, up, 1.5, 1.702);
            bound = 1.2 * bound * (fabs(up) + 1) + fabs(g) * b + 3e-6 * fabs(g) * (fabs(up) + 1);
            bound += fabs(want) * (is_bf16(e.one.dtype) ? 0x1p-8 : 0x1p-11) + 1e-7;
        }
        wrong += !(fabs(y[r] - want) <= bound);
    }
    return wrong;
}

static std::vector<float> widened(const std::vector<uint8_t> &bytes, bool gated, enum clb_dtype t)
{
    std::vector<float> v(bytes.size() / (gated ? 2 : 4));

    for (size_t i = 0; i < v.size(); i++) {
        uint16_t h = 0;
        if (gated) {
            memcpy(&h, &bytes[2 * i], 2);
            v[i] = widen(t, h);
        } else {
            memcpy(&v[i], &bytes[4 * i], 4);
        }
    }
    return v;
}

// n rows of one matrix as one product, and some of them alone: the same bits, and right.
static void check_dense(enum clb_dtype t, bool gated, uint32_t rows, uint32_t cols, uint32_t n,
                        enum clb_act act, bool bias)
{
    generator r = { rows * 7919 + cols * 31 + n + (uint64_t)t };
    stream s;
    expert e(r, t, rows, cols, bias);
    host_rows x(r, t, n, cols);
    size_t ldy = rows + 3, bytes = n * ldy * (gated ? 2 : 4);
    device<uint8_t> block(e.bytes), y(bytes), z(bytes);
    device<uint16_t> dx(x.bits);
    struct clb_cuda_product p = product_of(e, gated, x, dx.p, y.p, ldy);
    int wrong = 0;

    p.base = block.p;
    p.act = act;
    p.n_row = n;
    clb_cuda_run_product(&p, s.s);
    p.n_row = 1;
    for (uint32_t i = 0; i < n; i += i + 4 < n && i > 0 ? 4 : 1) {
        p.x = dx.p + i * x.ld;
        p.y = z.p + i * ldy * (gated ? 2 : 4);
        clb_cuda_run_product(&p, s.s);
    }
    std::vector<uint8_t> got = y.get();
    std::vector<float> v = widened(got, gated, t), alone = widened(z.get(), gated, t);
    for (uint32_t i = 0; i < n; i++) {
        wrong += wrong_values(e, gated, act, x.row(i), &v[i * ldy]);
        if (!std::isnan(alone[i * ldy])) // it was computed alone as well
            wrong += memcmp(&v[i * ldy], &alone[i * ldy], rows * sizeof(float)) != 0;
        for (size_t k = i * ldy + rows; k < (i + 1) * ldy; k++)
            wrong += !std::isnan(v[k]); // nobody writes beside the rows
    }
    if (wrong)
        printf("# %s%s %u x %u, %u rows: %d wrong\n", clb_dtype_name(t), gated ? " gated" : "",
               rows, cols, n, wrong);
    CHECK_EQ(wrong, 0);
}

static void one_matrix(void)
{
    for (enum clb_dtype t : dtypes) {
        check_dense(t, false, 40, 96, 1, CLB_ACT_SILU, false);
        check_dense(t, false, 80, 1120, 3, CLB_ACT_SILU, true); // three pieces, the last short
        check_dense(t, false, 17, 30, 9, CLB_ACT_SILU, false);
        check_dense(t, false, 176, 544, 37, CLB_ACT_SILU, true);
        check_dense(t, false, 16, 64, 71, CLB_ACT_SILU, false);
    }
}

static void more_pieces_than_a_turn_has(void)
{
    check_dense(CLB_INT8, false, 16, 2592, 10, CLB_ACT_SILU, false);
    check_dense(CLB_INT4, true, 16, 2080, 33, CLB_ACT_SILU, false);
}

static void two_matrices_and_an_activation(void)
{
    for (enum clb_dtype t : dtypes) {
        check_dense(t, true, 48, 64, 8, CLB_ACT_SILU, true);
        check_dense(t, true, 24, 608, 20, CLB_ACT_SILU, false);
        check_dense(t, true, 80, 96, 64, CLB_ACT_CLAMPED_SWIGLU, true);
    }
    check_dense(CLB_INT8, true, 16, 32, 2, CLB_ACT_GELU, false);
    check_dense(CLB_INT8, true, 16, 32, 40, CLB_ACT_GELU_TANH, false);
    check_dense(CLB_INT8, true, 16, 32, 5, CLB_ACT_RELU, true);
}

// Experts with 5, no, 41, 33 and (but not in this call) 7 rows, which they find through the index.
static void experts_and_chunks(enum clb_dtype t, bool gated)
{
    const uint32_t count[] = { 5, 0, 41, 33, 7 }, rows = 48, cols = 160;
    generator r = { 99 + (uint64_t)t };
    stream s;
    std::vector<expert> experts;
    std::vector<device<uint8_t> *> blocks;
    std::vector<const uint8_t *> block;
    std::vector<struct clb_cuda_chunk> list[3];
    std::vector<uint32_t> index, n_list;
    host_rows x(r, t, 50, cols);

    for (uint32_t e = 0, slot = 0; e < 5; slot += count[e++]) {
        experts.emplace_back(r, t, rows, cols, true);
        blocks.push_back(new device<uint8_t>(experts[e].bytes));
        block.push_back(e == 4 ? NULL : blocks[e]->p);
        if (count[e])
            list[count[e] > 32 ? 2 : count[e] > 8].push_back({ e, slot, count[e] });
        for (uint32_t i = 0; i < count[e]; i++)
            index.push_back(r.next(50));
    }
    for (auto &l : list) {
        n_list.push_back((uint32_t)l.size());
        l.resize(5);
    }
    size_t ldy = rows;
    device<uint8_t> y(index.size() * ldy * (gated ? 2 : 4));
    device<const uint8_t *> dblock(block);
    device<uint32_t> dindex(index), dn(n_list);
    device<struct clb_cuda_chunk> l0(list[0]), l1(list[1]), l2(list[2]);
    device<uint16_t> dx(x.bits);
    struct clb_cuda_chunks chunks = { { l0.p, l1.p, l2.p }, dn.p };
    struct clb_cuda_product p = product_of(experts[0], gated, x, dx.p, y.p, ldy);

    p.block = dblock.p;
    p.index = dindex.p;
    p.chunks = &chunks;
    p.n_row = 41;
    clb_cuda_run_product(&p, s.s);
    std::vector<float> v = widened(y.get(), gated, t);
    int wrong = 0;
    for (uint32_t e = 0, slot = 0; e < 5; e++)
        for (uint32_t i = 0; i < count[e]; i++, slot++)
            wrong += e == 4 ? !std::isnan(v[slot * ldy])
                            : wrong_values(experts[e], gated, CLB_ACT_SILU, x.row(index[slot]),
                                           &v[slot * ldy]);
    CHECK_EQ(wrong, 0);
    for (device<uint8_t> *b : blocks)
        delete b;
}

static void experts(void)
{
    experts_and_chunks(CLB_INT8, true);
    experts_and_chunks(CLB_INT4, false);
    experts_and_chunks(CLB_MXFP4, true);
    experts_and_chunks(CLB_BF16, false);
}

int main(void)
{
    OK((cudaError_t)clb_cuda_product_setup());
    TEST(one_matrix);
    TEST(more_pieces_than_a_turn_has);
    TEST(two_matrices_and_an_activation);
    TEST(experts);
    CHECK_EQ(emu_leaks(), 0);
    return test_result() || test_bad;
}
