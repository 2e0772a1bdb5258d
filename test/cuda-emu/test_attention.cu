// test_attention.cu - attention over pages against f64, with everything that a family can ask of
// it, for every type of the KV cache; that pages hold what the CPU would store; and that neither
// splits nor neighbours change the bits of a row.
#include "test/cuda-emu/matrix_rig.h"
#include "test/cuda-emu/reference.h"

struct attention_case {
    uint32_t n_head, n_kv_head, key_dim, value_dim;
    std::vector<uint32_t> length,
        rows; // of each sequence: positions, how many of the last are rows
    uint32_t window, chunk;
    float softcap;
    bool sink, bf16;
};

// What is stored of keys or values, and what attention is to make of it.
struct stored {
    enum clb_kv_dtype kv;
    uint32_t n;
    std::vector<float> x; // [][n] as they are given
    std::vector<double> wide;
    std::vector<int8_t> code;
    std::vector<float> scale; // of each row of codes

    stored(enum clb_kv_dtype t, uint32_t width) : kv(t), n(width)
    {
    }
    void add_row(const std::vector<float> &row)
    {
        std::vector<int8_t> c(n);

        x.insert(x.end(), row.begin(), row.end());
        scale.push_back(reference_codes(row.data(), n, c.data()));
        code.insert(code.end(), c.begin(), c.end());
        for (uint32_t d = 0; d < n; d++)
            wide.push_back(kv == CLB_KV_F32   ? row[d]
                           : kv == CLB_KV_F16 ? clb_f16_to_f32(half(row[d]))
                                              : (double)c[d] * scale.back());
    }
    static uint16_t half(float f)
    {
        return clb_f32_to_f16(f > 65504 ? 65504 : f < -65504 ? -65504 : f);
    }
    // Whether number d of row r has its bits at `at`.
    bool is_at(const uint8_t *at, size_t r, uint32_t d) const
    {
        const float f = x[r * n + d];
        uint16_t h;

        memcpy(&h, at, 2);
        return kv == CLB_KV_F32   ? is_same(f, at)
               : kv == CLB_KV_F16 ? h == half(f) || (f != f && (h & 0x7fff) > 0x7c00)
                                  : *(const int8_t *)at == code[r * n + d];
    }
    static bool is_same(float f, const uint8_t *at)
    {
        float g;

        memcpy(&g, at, 4);
        return !memcmp(at, &f, 4) || (f != f && g != g);
    }
    // What stands for a value that is not finite, and for its key.
    void becomes_zero(size_t r)
    {
        std::fill_n(x.begin() + (ptrdiff_t)(r * n), n, 0.0f);
        std::fill_n(code.begin() + (ptrdiff_t)(r * n), n, (int8_t)0);
        scale[r] = 0;
    }
    void becomes_nan(size_t r)
    {
        x[r * n] = scale[r] = NAN;
    }
};

// Sequences whose keys and values were appended, and their queries.
struct scene {
    const attention_case &c;
    enum clb_kv_dtype t;
    std::vector<float> sink;
    stored k, v; // [position * n_kv_head]
    std::vector<uint32_t> position, sequence, table;
    uint32_t last = 0, pages = 0, ld_table = 0;
    struct clb_cuda_kv kv = {};

    scene(generator &r, const attention_case &from, enum clb_kv_dtype dtype)
        : c(from), t(dtype), k(dtype, from.key_dim), v(dtype, from.value_dim)
    {
        for (size_t s = 0; s < c.length.size(); s++) {
            ld_table = std::max(ld_table, (c.length[s] + 63) / 64);
            last = std::max(last, c.length[s] - 1);
            for (uint32_t i = 0; i < c.length[s]; i++) {
                position.push_back(i);
                sequence.push_back((uint32_t)s);
            }
        }
        for (size_t s = 0; s < c.length.size(); s++)
            for (uint32_t p = 0; p < ld_table; p++)
                table.push_back(p < (c.length[s] + 63) / 64 ? pages++ : UINT32_MAX);
        for (uint32_t &p : table) // pages are in any order
            p = p == UINT32_MAX ? p : pages - 1 - p;
        for (size_t i = 0; i < position.size() * c.n_kv_head; i++) {
            k.add_row(reals(r, c.key_dim, 1));
            v.add_row(reals(r, c.value_dim, i % 5 ? 1 : 0.001f * (float)i)); // scales of any size
        }
        sink = reals(r, c.n_head, 2);
        kv.dtype = t;
        kv.n_head = c.n_kv_head;
        kv.key_dim = c.key_dim;
        kv.value_dim = c.value_dim;
        kv.head_bytes = clb_cuda_kv_head_bytes(t, c.key_dim, c.value_dim);
        kv.page_bytes = kv.head_bytes * c.n_kv_head;
        kv.ld_table = ld_table;
    }
    static std::vector<float> reals(generator &r, size_t n, float most)
    {
        std::vector<float> x(n);

        for (float &f : x)
            f = r.real(most);
        return x;
    }
};

static void clear(device<uint8_t> &pages)
{
    stream st;

    OK(cudaMemsetAsync(pages.p, 0, pages.n, st.s));
    OK(cudaDeviceSynchronize());
}

static void append_all(const scene &s, device<uint8_t> &pages, const device<uint32_t> &table)
{
    stream st;
    device<float> k(s.k.x), v(s.v.x);
    device<uint32_t> position(s.position), sequence(s.sequence);
    struct clb_cuda_append a = { s.kv,
                                 (uint32_t)s.position.size(),
                                 k.p,
                                 v.p,
                                 s.c.n_kv_head * s.c.key_dim,
                                 s.c.n_kv_head * s.c.value_dim,
                                 position.p,
                                 sequence.p };

    a.kv.pages = pages.p;
    a.kv.table = table.p;
    clb_cuda_run_append(&a, st.s);
    OK(cudaDeviceSynchronize());
}

// -- what pages hold -----------------------------------------------------------------------------

// Row r of keys or values is position `at` of a part of a page.
static int wrong_numbers(const stored &x, size_t r, const uint8_t *part, uint32_t at, bool is_key)
{
    const uint32_t width =
        is_key ? clb_cuda_kv_keys(x.kv, x.n) : clb_cuda_kv_values(x.kv, x.n);
    const uint32_t bytes = clb_cuda_kv_numbers_bytes(x.kv, 1) / 64;
    const uint8_t *scale = part + clb_cuda_kv_numbers_bytes(x.kv, width) + 4 * at;
    int wrong = 0;

    for (uint32_t d = 0; d < x.n; d++)
        wrong += !x.is_at(
            part + bytes * (is_key == (x.kv != CLB_KV_F32) ? at * width + d : d * 64 + at), r, d);
    return wrong + (x.kv == CLB_KV_INT8 && !stored::is_same(x.scale[r], scale));
}

static int wrong_pages(const scene &s, const std::vector<uint8_t> &pages)
{
    int wrong = 0;

    for (size_t i = 0; i < s.position.size(); i++)
        for (uint32_t h = 0; h < s.c.n_kv_head; h++) {
            const uint32_t page = s.table[s.sequence[i] * s.ld_table + s.position[i] / 64];
            const uint8_t *head = &pages[page * s.kv.page_bytes + h * s.kv.head_bytes];
            const size_t r = i * s.c.n_kv_head + h;

            wrong += wrong_numbers(s.k, r, head, s.position[i] % 64, true);
            wrong += wrong_numbers(s.v, r, head + clb_cuda_kv_values_at(s.t, s.c.key_dim),
                                   s.position[i] % 64, false);
        }
    return wrong;
}

// -- outputs -------------------------------------------------------------------------------------

// The last rows of each sequence as queries, only one in `every`; each in a tile of its own or not.
struct pass {
    std::vector<float> q;
    std::vector<uint32_t> position, of; // index into the scene's positions
    std::vector<struct clb_cuda_queries> tile;

    pass(generator r, const scene &s, uint32_t every, bool alone)
    {
        const attention_case &c = s.c;
        uint32_t start = 0, group = c.n_head / c.n_kv_head;

        for (size_t n = 0; n < c.length.size(); start += c.length[n++]) {
            uint32_t first_row = (uint32_t)position.size(), kept = 0;
            for (uint32_t i = c.length[n] - c.rows[n]; i < c.length[n]; i++) {
                std::vector<float> row = scene::reals(r, c.n_head * c.key_dim, 3);
                if (s.t != CLB_KV_F32)
                    for (float &f : row)
                        f = clb_f16_to_f32(clb_f32_to_f16(f));
                if (i % every && i + 1 < c.length[n])
                    continue;
                q.insert(q.end(), row.begin(), row.end());
                position.push_back(i);
                of.push_back(start + i);
                kept++;
            }
            const uint32_t rows = alone ? 1 : kept;
            for (uint32_t row = 0; row < kept; row += rows)
                for (uint32_t at = 0; at < rows * group; at += CLB_CUDA_QUERIES)
                    tile.push_back({ (uint32_t)n, first_row + row, at,
                                     std::min<uint32_t>(CLB_CUDA_QUERIES, rows * group - at) });
        }
    }
};

// Outputs of all rows: bf16 where that is wanted, f16 from f16 pages, else f32, which shows the
// last bit of a sum.
struct outputs {
    std::vector<float> wide;
    std::vector<uint16_t> half;

    bool same(size_t i, const outputs &o, size_t at, size_t n) const
    {
        return wide.empty() ? !memcmp(&half[i], &o.half[at], n * 2)
                            : !memcmp(&wide[i], &o.wide[at], n * 4);
    }
    double at(size_t i, bool bf16) const
    {
        return wide.empty() ? ::widen(bf16 ? CLB_BF16 : CLB_F16, half[i]) : wide[i];
    }
};

static outputs attend(const scene &s, const pass &p, bool split_first, device<uint8_t> &pages,
                      const device<uint32_t> &table)
{
    const attention_case &c = s.c;
    const uint32_t tiles = (uint32_t)p.tile.size();
    const size_t n = p.position.size() * c.n_head * c.value_dim;
    const bool is_wide = s.t != CLB_KV_F16 && !c.bf16;
    stream st;
    device<float> q(p.q), sink(s.sink), wide(is_wide ? n : 0);
    device<float> partial(clb_cuda_partial_floats(tiles, c.n_kv_head, s.last, c.value_dim));
    device<uint32_t> position(p.position);
    device<struct clb_cuda_queries> tile(p.tile);
    device<uint16_t> out(is_wide ? 0 : n);
    struct clb_cuda_attention a = {};

    a.kv = s.kv;
    a.kv.pages = pages.p;
    a.kv.table = table.p;
    a.tile = tile.p;
    a.n_tile = tiles;
    a.n_head = c.n_head;
    a.q = q.p;
    a.ld_q = c.n_head * c.key_dim;
    a.position = position.p;
    a.last_position = s.last;
    a.window = c.window;
    a.chunk = c.chunk;
    a.scale = 0.3f;
    a.softcap = c.softcap;
    a.sink = c.sink ? sink.p : nullptr;
    a.out = is_wide ? nullptr : out.p;
    a.wide = is_wide ? wide.p : nullptr;
    a.ld_out = c.n_head * c.value_dim;
    a.ld_head = c.value_dim;
    a.bf16 = c.bf16;
    a.split_first = split_first;
    a.partial = split_first ? partial.p : nullptr;
    clb_cuda_run_attention(&a, st.s);
    return { wide.get(), out.get() };
}

// How far outputs may be off: their own rounding, p in 16 bits, f32 sums.
static double bound_of(const scene &s)
{
    return s.c.bf16 ? 0x1p-8 : s.t == CLB_KV_F32 ? 0x1p-18 : 0x1p-10;
}

static double off_head(const scene &s, const pass &p, size_t row, uint32_t head,
                       const outputs &got)
{
    const attention_case &c = s.c;
    const uint32_t position = p.position[row], kv_head = head / (c.n_head / c.n_kv_head);
    const float *q = &p.q[(row * c.n_head + head) * c.key_dim];
    double most = c.sink ? s.sink[head] : -INFINITY, sum = 0, off = 0;
    std::vector<double> score(position + 1, -INFINITY), o(c.value_dim);

    for (uint32_t j = 0; j <= position; j++) {
        const double *k =
            &s.k.wide[((p.of[row] - position + j) * c.n_kv_head + kv_head) * c.key_dim];
        if ((c.window && j + c.window <= position) ||
            (c.chunk && j / c.chunk != position / c.chunk))
            continue;
        score[j] = 0;
        for (uint32_t d = 0; d < c.key_dim; d++)
            score[j] += q[d] * k[d];
        score[j] *= 0.3f;
        if (c.softcap > 0)
            score[j] = c.softcap * tanh(score[j] / c.softcap);
        most = fmax(most, score[j]);
    }
    sum = c.sink ? exp(s.sink[head] - most) : 0;
    for (uint32_t j = 0; j <= position; j++) {
        const double *v =
            &s.v.wide[((p.of[row] - position + j) * c.n_kv_head + kv_head) * c.value_dim];
        double w = exp(score[j] - most);
        sum += w;
        for (uint32_t d = 0; d < c.value_dim; d++)
            o[d] += w * v[d];
    }
    for (uint32_t d = 0; d < c.value_dim; d++) {
        double one = fabs(got.at((row * c.n_head + head) * c.value_dim + d, c.bf16) - o[d] / sum);
        off = one <= off ? off : one == one ? one : INFINITY;
    }
    return off;
}

static void check_type(const attention_case &c, enum clb_kv_dtype t)
{
    generator r = { c.n_head + c.key_dim * 7 + c.length[0] };
    scene s(r, c, t);
    device<uint8_t> pages(s.pages * s.kv.page_bytes);
    device<uint32_t> table(s.table);
    pass all(r, s, 1, false), some(r, s, 3, false), alone(r, s, 1, true);
    const size_t width = c.n_head * c.value_dim;
    int other_bits = 0;
    double off = 0;

    clear(pages);
    append_all(s, pages, table);
    CHECK_EQ(wrong_pages(s, pages.get()), 0);
    const outputs one = attend(s, all, false, pages, table);
    const outputs two = attend(s, all, true, pages, table);
    const outputs few = attend(s, some, true, pages, table);
    const outputs each = attend(s, alone, false, pages, table);
    CHECK(one.same(0, two, 0, all.position.size() * width));
    CHECK(one.same(0, each, 0, all.position.size() * width));
    for (size_t i = 0, j = 0; i < all.position.size(); i++) {
        for (uint32_t h = 0; h < c.n_head; h++)
            off = fmax(off, off_head(s, all, i, h, one));
        if (j < some.of.size() && some.of[j] == all.of[i])
            other_bits += !few.same(j++ * width, one, i * width, width);
    }
    CHECK_EQ(other_bits, 0);
    if (!(off <= bound_of(s)))
        printf("# type %d: %u heads of %u, %u and %u wide: off by %g, at most %g\n", t, c.n_head,
               c.n_kv_head, c.key_dim, c.value_dim, off, bound_of(s));
    CHECK(off <= bound_of(s));
}

static void check_attention(const attention_case &c)
{
    for (enum clb_kv_dtype t : { CLB_KV_F32, CLB_KV_F16, CLB_KV_INT8 })
        check_type(c, t);
}

static void one_query_and_many(void)
{
    check_attention({ 4, 4, 16, 16, { 1 }, { 1 }, 0, 0, 0, false, false });
    check_attention({ 8, 2, 64, 64, { 70, 3, 130 }, { 1, 3, 20 }, 0, 0, 0, false, false });
    check_attention({ 6, 2, 32, 24, { 65 }, { 65 }, 0, 0, 0, false, true });
    check_attention({ 3, 1, 9, 20, { 40 }, { 7 }, 0, 0, 0, false, false });
    check_attention({ 32, 32, 8, 8, { 70 }, { 8 }, 0, 0, 0, false, false });
}

static void splits(void)
{
    check_attention({ 4, 2, 32, 32, { 1100, 512, 513 }, { 3, 4, 4 }, 0, 0, 0, false, false });
    check_attention({ 2, 1, 16, 16, { 1030 }, { 4 }, 600, 0, 0, true, false });
}

static void windows_chunks_sinks_caps(void)
{
    check_attention({ 4, 2, 16, 16, { 150 }, { 40 }, 50, 0, 0, false, false });
    check_attention({ 4, 2, 16, 16, { 150 }, { 70 }, 0, 64, 0, false, false });
    check_attention({ 4, 1, 16, 16, { 90 }, { 5 }, 0, 0, 2, true, false });
}

// Wide heads, and MLA: one KV head, values narrower than keys.
static void wide_heads(void)
{
    check_attention({ 2, 1, 128, 128, { 80 }, { 3 }, 0, 0, 0, false, false });
    check_attention({ 2, 2, 192, 160, { 66 }, { 2 }, 0, 0, 0, false, false });
    check_attention({ 16, 1, 576, 512, { 70 }, { 2 }, 0, 0, 0, false, true });
}

// -- numbers at the ends of what a type holds ----------------------------------------------------

static void rows_of_any_size_are_stored_as_on_the_cpu(void)
{
    const attention_case c = { 1, 1, 40, 40, { 8 }, { 1 }, 0, 0, 0, false, false };
    const std::vector<float> ends = { 0,    1e-40f,   3.7e-37f, 3.8e-37f,
                                      1e6f, 3.3e38f, INFINITY, NAN };

    for (enum clb_kv_dtype t : { CLB_KV_F32, CLB_KV_F16, CLB_KV_INT8 }) {
        generator r = { 5 };
        scene s(r, c, t);

        s.k = stored(t, c.key_dim);
        s.v = stored(t, c.value_dim);
        for (float most : ends) {
            std::vector<float> row = scene::reals(r, 40, std::isfinite(most) ? most : 1);
            row[33] = -most;
            row[7] = row[33] / 127 * 2.5f; // half way between two codes
            s.k.add_row(row);
            row[0] = most;
            s.v.add_row(row);
        }
        device<uint8_t> pages(s.pages * s.kv.page_bytes);
        device<uint32_t> table(s.table);
        clear(pages);
        append_all(s, pages, table);
        for (size_t i = 0; i < ends.size(); i++) { // codes of NaN are -127, f16 ends at 65504
            if (std::isfinite(ends[i]) || (t == CLB_KV_F16 && std::isinf(ends[i])) ||
                (t == CLB_KV_INT8 && std::isnan(ends[i])))
                continue;
            s.v.becomes_zero(i);
            s.k.becomes_nan(i);
        }
        CHECK_EQ(wrong_pages(s, pages.get()), 0);
    }
}

// -- what is not seen ----------------------------------------------------------------------------

// No number, as the type would hold it.
static float none_of(enum clb_kv_dtype t)
{
    return t == CLB_KV_INT8 ? INFINITY : NAN;
}

// Outputs of all rows of a scene: of a head of row r, how many are other than they were.
struct seen_outputs {
    const scene &s;
    const pass all;
    device<uint8_t> &pages;
    device<uint32_t> table;

    seen_outputs(const scene &from, device<uint8_t> &in)
        : s(from), all({ 3 }, from, 1, false), pages(in), table(from.table)
    {
    }
    outputs get(bool split_first)
    {
        append_all(s, pages, table);
        return attend(s, all, split_first, pages, table);
    }
    bool is_nan(const outputs &o, size_t r, uint32_t head) const
    {
        bool nan = true;

        for (uint32_t d = 0; d < s.c.value_dim; d++)
            nan = nan && std::isnan(o.at((r * s.c.n_head + head) * s.c.value_dim + d, s.c.bf16));
        return nan;
    }
};

// Pages that somebody left, with a number that is none in every place of keys and values.
static void spoil(const scene &like, device<uint8_t> &pages)
{
    generator r = { 1 };
    attention_case c = like.c;

    for (uint32_t &n : c.length)
        n = (n + 63) / 64 * 64;
    scene s(r, c, like.t);
    std::fill(s.k.x.begin(), s.k.x.end(), none_of(s.t));
    std::fill(s.v.x.begin(), s.v.x.end(), none_of(s.t));
    device<uint32_t> table(s.table);
    append_all(s, pages, table);
}

// A value at position `at` that is no number, of KV head 0: rows before it keep their bits, also in
// its tile, and so does the other KV head; rows that see it become NaN.
static void check_unseen(const attention_case &c, enum clb_kv_dtype t, uint32_t at)
{
    generator r = { c.length[0] };
    scene s(r, c, t);
    device<uint8_t> pages(s.pages * s.kv.page_bytes);
    const size_t width = (size_t)c.n_head * c.value_dim;
    seen_outputs of(s, pages);

    clear(pages);
    const outputs want = of.get(false);
    for (bool split_first : { false, true }) {
        spoil(s, pages);
        CHECK(want.same(0, of.get(split_first), 0, of.all.position.size() * width));
    }
    s.v.x[at * c.n_kv_head * c.value_dim + 5] = none_of(t);
    for (bool split_first : { false, true }) {
        const outputs got = of.get(split_first);
        int wrong = 0;
        for (size_t i = 0; i < of.all.position.size(); i++)
            for (uint32_t h = 0; h < c.n_head; h++) {
                const size_t one = i * width + h * c.value_dim;
                const bool sees = of.all.position[i] >= at && h / (c.n_head / c.n_kv_head) == 0;
                wrong += sees ? !of.is_nan(got, i, h) : !want.same(one, got, one, c.value_dim);
            }
        CHECK_EQ(wrong, 0);
    }
}

static void what_is_not_seen_does_not_count(void)
{
    for (enum clb_kv_dtype t : { CLB_KV_F32, CLB_KV_F16, CLB_KV_INT8 }) {
        check_unseen({ 4, 2, 16, 24, { 80 }, { 60 }, 0, 0, 0, false, false }, t, 40);
        check_unseen({ 4, 2, 16, 16, { 516 }, { 6 }, 0, 0, 0, false, false }, t, 513);
        check_unseen({ 2, 2, 16, 16, { 514 }, { 3 }, 0, 512, 0, true, true }, t, 512); // alone
    }
}

int main(void)
{
    TEST(one_query_and_many);
    TEST(splits);
    TEST(windows_chunks_sinks_caps);
    TEST(wide_heads);
    TEST(rows_of_any_size_are_stored_as_on_the_cpu);
    TEST(what_is_not_seen_does_not_count);
    CHECK_EQ(emu_leaks(), 0);
    return test_result() || test_bad;
}
