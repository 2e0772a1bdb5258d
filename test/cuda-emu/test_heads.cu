// test_heads.cu - embedding, angles, norms and rotation of heads against f64; and the products of
// MLA's heads, which are experts of their own.
#include "test/cuda-emu/matrix_rig.h"

static std::vector<float> reals(generator &r, size_t n, float most)
{
    std::vector<float> v(n);

    for (float &f : v)
        f = r.real(most);
    return v;
}

// -- embedding -----------------------------------------------------------------------------------

static void check_embed(enum clb_dtype t, float scale, uint32_t rope_dim)
{
    generator r = { 3 };
    stream s;
    const uint32_t n = 70, vocab = 9, rows = 4, ld = 80, half = rope_dim / 2;
    std::vector<float> table = reals(r, vocab * n, 2), freq = reals(r, 64, 1),
                       freq2 = reals(r, 64, 1);
    std::vector<uint16_t> bits;
    for (float &f : table)
        if (t != CLB_F32) {
            bits.push_back(narrow(t, f));
            f = widen(t, bits.back());
        }
    device<float> wide(table), df(freq), df2(freq2);
    device<uint16_t> half_(bits);
    device<float> x(rows * ld), c(rows * half), si(rows * half),
        rope_scale(std::vector<float>{ 0, 1.5f });
    device<const float *> inv(std::vector<const float *>{ df.p, df2.p });
    const std::vector<int32_t> token = { 8, 0, 3, 3 };
    const std::vector<uint32_t> position = { 0, 7, 100, 5000 }, sequence = { 0, 1, 1, 0 };
    device<int32_t> dt(token);
    device<uint32_t> dp(position), ds(sequence);
    struct clb_cuda_embed e = {
        rows,         n,     t,    t == CLB_F32 ? (const void *)wide.p : half_.p,
        dt.p,         scale, x.p,  ld,
        rope_dim,     dp.p,  ds.p, inv.p,
        rope_scale.p, c.p,   si.p
    };
    int wrong = 0;

    clb_cuda_run_embed(&e, s.s);
    std::vector<float> got = x.get(), cosine = c.get(), sine = si.get();
    for (uint32_t i = 0; i < rows; i++) {
        for (uint32_t k = 0; k < n; k++)
            wrong += got[i * ld + k] != table[(uint32_t)token[i] * n + k] * (scale > 0 ? scale : 1);
        for (uint32_t k = 0; k < half; k++) {
            float angle = (float)position[i] * (sequence[i] ? freq2 : freq)[k];
            double by = sequence[i] ? 1.5 : 1;
            wrong += !(fabs(cosine[i * half + k] - cos((double)angle) * by) < 2e-7);
            wrong += !(fabs(sine[i * half + k] - sin((double)angle) * by) < 2e-7);
        }
    }
    CHECK_EQ(wrong, 0);
}

static void embedding_and_angles(void)
{
    check_embed(CLB_F32, 0, 16);
    check_embed(CLB_F16, 2.5f, 128);
    check_embed(CLB_BF16, 0, 0);
}

// -- heads ---------------------------------------------------------------------------------------

struct heads_case {
    uint32_t n_row, n_head, dim;
    enum clb_qk_norm norm;
    uint32_t norm_dim;
    bool weighted;
    float clip;
    enum clb_rope_kind rope;
    uint32_t rope_at, rope_dim;
    float temperature;
};

static void norm(std::vector<double> &y, size_t at, size_t n, const float *w)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += y[at + i] * y[at + i] / (double)n;
    for (size_t i = 0; i < n; i++)
        y[at + i] *= (w ? w[i] : 1) / sqrt(sum + 1e-6);
}

static std::vector<double> expected(const heads_case &c, const float *y, const float *w,
                                    const float *cosine, const float *sine, uint32_t position)
{
    const uint32_t width = c.n_head * c.dim, half = c.rope_dim / 2;
    std::vector<double> v(y, y + width);

    if (c.norm == CLB_QK_NORM_FULL)
        norm(v, 0, width, w);
    for (uint32_t h = 0; h < c.n_head; h++) {
        double *head = &v[h * c.dim];
        if (c.norm == CLB_QK_NORM_HEAD)
            norm(v, h * c.dim, c.norm_dim, w);
        for (uint32_t i = 0; i < c.dim && c.clip > 0; i++)
            head[i] = fmax(fmin(head[i], c.clip), -c.clip);
        for (uint32_t i = 0; i < half && c.rope != CLB_ROPE_NONE; i++) {
            double *a = head + c.rope_at + (c.rope == CLB_ROPE_HALF ? i : 2 * i);
            double *b = a + (c.rope == CLB_ROPE_HALF ? half : 1), old = *a;
            *a = old * cosine[i] - *b * sine[i];
            *b = *b * cosine[i] + old * sine[i];
        }
        if (c.norm == CLB_QK_NORM_HEAD_AFTER_ROPE || c.norm == CLB_QK_NORM_L2)
            norm(v, h * c.dim, c.norm_dim, w);
        for (uint32_t i = 0; i < c.dim && c.temperature > 0; i++)
            head[i] *= 1 + c.temperature * log(1 + floor((position + 1.0) / 8));
    }
    return v;
}

static void check_heads(const heads_case &c)
{
    generator r = { c.dim + c.n_head };
    stream s;
    const uint32_t width = c.n_head * c.dim, half = c.rope_dim / 2, ld = width + 4;
    std::vector<float> y = reals(r, c.n_row * ld, 3), w = reals(r, width, 1);
    std::vector<float> cosine = reals(r, c.n_row * half, 1), sine = reals(r, c.n_row * half, 1);
    std::vector<uint32_t> position;
    for (uint32_t i = 0; i < c.n_row; i++)
        position.push_back(i * 13);
    device<float> dy(y), dw(w), dc(cosine), ds(sine);
    device<uint32_t> dp(position);
    struct clb_cuda_heads h = { c.n_row,    c.n_head, c.dim,      dy.p,
                                ld,         c.norm,   c.norm_dim, c.weighted ? dw.p : nullptr,
                                1e-6f,      c.clip,   c.rope,     c.rope_at,
                                c.rope_dim, dc.p,     ds.p,       c.temperature,
                                8,          dp.p };
    int wrong = 0;

    clb_cuda_run_heads(&h, s.s);
    std::vector<float> got = dy.get();
    for (uint32_t i = 0; i < c.n_row; i++) {
        std::vector<double> want =
            expected(c, &y[i * ld], c.weighted ? w.data() : nullptr, cosine.data() + i * half,
                     sine.data() + i * half, position[i]);
        for (uint32_t k = 0; k < width; k++)
            wrong += !(fabs(got[i * ld + k] - want[k]) <= 1e-5 + 2e-6 * fabs(want[k]));
        wrong += got[i * ld + width] != y[i * ld + width];
    }
    CHECK_EQ(wrong, 0);
}

static void norms_and_rotation(void)
{
    check_heads({ 3, 4, 64, CLB_QK_NORM_NONE, 0, false, 0, CLB_ROPE_HALF, 0, 64, 0 });
    check_heads({ 2, 9, 32, CLB_QK_NORM_HEAD, 32, true, 0, CLB_ROPE_INTERLEAVED, 0, 32, 0 });
    check_heads({ 2, 3, 40, CLB_QK_NORM_FULL, 0, true, 0.8f, CLB_ROPE_HALF, 0, 20, 0 });
    check_heads(
        { 1, 16, 128, CLB_QK_NORM_HEAD_AFTER_ROPE, 128, true, 0, CLB_ROPE_HALF, 0, 128, 0 });
    check_heads({ 4, 2, 24, CLB_QK_NORM_L2, 24, false, 0, CLB_ROPE_INTERLEAVED, 0, 24, 0 });
    check_heads({ 5, 2, 16, CLB_QK_NORM_NONE, 0, false, 2, CLB_ROPE_NONE, 0, 0, 0.1f });
    check_heads(
        { 3, 1, 96, CLB_QK_NORM_HEAD, 64, true, 0, CLB_ROPE_INTERLEAVED, 64, 32, 0 }); // MLA
}

// -- MLA -----------------------------------------------------------------------------------------

// Each head's query through its own k_up, beside its rotated part, all heads in one launch: they
// are experts, whose blocks hold a head each, and slots lie head by head.
static void heads_as_experts(void)
{
    const uint32_t heads = 3, rows = 5, nope = 48, rope = 16, rank = 80, key = rank + rope;
    const size_t ld = clb_cuda_ld(nope);
    generator r = { 77 };
    stream s;
    std::vector<host_matrix> m;
    std::vector<device<uint8_t> *> w;
    std::vector<const uint8_t *> block;
    std::vector<struct clb_cuda_chunk> list;
    std::vector<uint32_t> index;
    std::vector<float> q = reals(r, rows * heads * (nope + rope), 2);

    for (uint32_t h = 0; h < heads; h++) {
        m.emplace_back(r, CLB_INT8, rank, nope, false);
        w.push_back(new device<uint8_t>(m[h].bytes));
        block.push_back(w[h]->p);
        list.push_back({ h, h * rows, rows });
        for (uint32_t i = 0; i < rows; i++)
            index.push_back(i * heads + h);
    }
    device<float> dq(q), up(heads * rows * rank), query(rows * heads * key);
    device<uint16_t> half(std::vector<uint16_t>(rows * heads * ld));
    device<struct clb_cuda_chunk> dl(list);
    device<uint32_t> dn(std::vector<uint32_t>{ heads, 0, 0 }), di(index);
    device<const uint8_t *> db(block);
    struct clb_cuda_chunks chunks = { { dl.p, nullptr, nullptr }, dn.p };
    struct clb_cuda_slice nope_part = {
        rows,   heads,      nope, dq.p, heads * (nope + rope), nope + rope, nullptr,
        half.p, heads * ld, ld,   false
    };
    struct clb_cuda_slice latent = { rows,    heads,   rank,        up.p, rank, rows * rank,
                                     query.p, nullptr, heads * key, key,  false };
    struct clb_cuda_slice rotated = {
        rows,    heads,       rope, dq.p + nope, heads * (nope + rope), nope + rope, query.p + rank,
        nullptr, heads * key, key,  false
    };
    struct clb_cuda_product p = {};
    p.dtype = CLB_INT8;
    p.block = db.p;
    p.part[0] = m[0].part;
    p.rows = rank;
    p.cols = nope;
    p.x = half.p;
    p.ldx = ld;
    p.n_cta = 4;
    p.index = di.p;
    p.chunks = &chunks;
    p.n_row = rows;
    p.y = up.p;
    p.ldy = rank;
    clb_cuda_run_slice(&nope_part, s.s);
    clb_cuda_run_product(&p, s.s);
    clb_cuda_run_slice(&latent, s.s);
    clb_cuda_run_slice(&rotated, s.s);
    std::vector<float> got = query.get();
    int wrong = 0;
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t h = 0; h < heads; h++) {
            const float *from = &q[(i * heads + h) * (nope + rope)],
                        *to = &got[(i * heads + h) * key];
            std::vector<float> x(from, from + nope);
            for (float &f : x)
                f = clb_f16_to_f32(clb_f32_to_f16(f));
            for (uint32_t k = 0; k < rank; k++) {
                double size, want = m[h].times(k, x.data(), &size);
                wrong += !(fabs(to[k] - want) <= size * product_bound(CLB_INT8, nope));
            }
            wrong += memcmp(to + rank, from + nope, rope * 4) != 0;
        }
    CHECK_EQ(wrong, 0);
    for (device<uint8_t> *d : w)
        delete d;
}

int main(void)
{
    TEST(embedding_and_angles);
    TEST(norms_and_rotation);
    TEST(heads_as_experts);
    CHECK_EQ(emu_leaks(), 0);
    return test_result() || test_bad;
}
