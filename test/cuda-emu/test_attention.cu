// test_attention.cu - attention over pages against f64, with everything that a family can ask of
// it; and that neither splits nor neighbours change the bits of a row.
#include "test/cuda-emu/matrix_rig.h"

struct attention_case {
    uint32_t n_head, n_kv_head, key_dim, value_dim;
    std::vector<uint32_t> length,
        rows; // of each sequence: positions, how many of the last are rows
    uint32_t window, chunk;
    float softcap;
    bool sink, bf16;
};

// Sequences whose keys and values were appended, and their queries.
struct scene {
    const attention_case &c;
    std::vector<float> q, k, v, sink;
    std::vector<uint32_t> position, sequence, table;
    std::vector<struct clb_cuda_queries> tile;
    uint32_t n_row = 0, last = 0, pages = 0, ld_table = 0;
    struct clb_cuda_kv kv = {};

    scene(generator &r, const attention_case &from) : c(from)
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
        fill(r, k, position.size() * c.n_kv_head * c.key_dim, 1);
        fill(r, v, position.size() * c.n_kv_head * c.value_dim, 1);
        fill(r, sink, c.n_head, 2);
        kv.n_head = c.n_kv_head;
        kv.key_dim = c.key_dim;
        kv.value_dim = c.value_dim;
        kv.head_bytes = clb_cuda_kv_head_bytes(c.key_dim, c.value_dim);
        kv.page_bytes = kv.head_bytes * c.n_kv_head;
        kv.ld_table = ld_table;
    }
    static void fill(generator &r, std::vector<float> &x, size_t n, float most)
    {
        for (size_t i = 0; i < n; i++)
            x.push_back(clb_f16_to_f32(clb_f32_to_f16(r.real(most))));
    }
};

static void append_all(const scene &s, device<uint8_t> &pages, const device<uint32_t> &table)
{
    stream st;
    device<float> k(s.k), v(s.v);
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
    OK(cudaMemsetAsync(pages.p, 0, pages.n, st.s));
    clb_cuda_run_append(&a, st.s);
    OK(cudaDeviceSynchronize());
}

// The last rows of each sequence as queries; only one in `every`.
struct pass {
    std::vector<float> q;
    std::vector<uint32_t> position, of; // index into the scene's positions
    std::vector<struct clb_cuda_queries> tile;

    pass(generator r, const scene &s, uint32_t every)
    {
        const attention_case &c = s.c;
        uint32_t start = 0, group = c.n_head / c.n_kv_head;

        for (size_t n = 0; n < c.length.size(); start += c.length[n++]) {
            uint32_t first_row = (uint32_t)position.size(), kept = 0;
            for (uint32_t i = c.length[n] - c.rows[n]; i < c.length[n]; i++) {
                std::vector<float> row;
                scene::fill(r, row, c.n_head * c.key_dim, 3);
                if (i % every && i + 1 < c.length[n])
                    continue;
                q.insert(q.end(), row.begin(), row.end());
                position.push_back(i);
                of.push_back(start + i);
                kept++;
            }
            for (uint32_t at = 0; at < kept * group; at += CLB_CUDA_QUERIES)
                tile.push_back({ (uint32_t)n, first_row, at,
                                 std::min<uint32_t>(CLB_CUDA_QUERIES, kept * group - at) });
        }
    }
};

static std::vector<uint16_t> attend(const scene &s, const pass &p, bool split_first,
                                    device<uint8_t> &pages, const device<uint32_t> &table)
{
    const attention_case &c = s.c;
    const uint32_t tiles = (uint32_t)p.tile.size();
    stream st;
    device<float> q(p.q), sink(s.sink);
    device<float> partial(clb_cuda_partial_floats(tiles, c.n_kv_head, s.last, c.value_dim));
    device<uint32_t> position(p.position);
    device<struct clb_cuda_queries> tile(p.tile);
    device<uint16_t> out(p.position.size() * c.n_head * c.value_dim);
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
    a.out = out.p;
    a.ld_out = c.n_head * c.value_dim;
    a.ld_head = c.value_dim;
    a.bf16 = c.bf16;
    a.split_first = split_first;
    a.partial = split_first ? partial.p : nullptr;
    clb_cuda_run_attention(&a, st.s);
    return out.get();
}

static int wrong_head(const scene &s, const pass &p, size_t row, uint32_t head, const uint16_t *got)
{
    const attention_case &c = s.c;
    const uint32_t position = p.position[row], kv_head = head / (c.n_head / c.n_kv_head);
    const float *q = &p.q[(row * c.n_head + head) * c.key_dim];
    double most = c.sink ? s.sink[head] : -INFINITY, sum = 0;
    std::vector<double> score(position + 1, -INFINITY), o(c.value_dim);
    int wrong = 0;

    for (uint32_t j = 0; j <= position; j++) {
        const float *k = &s.k[((p.of[row] - position + j) * c.n_kv_head + kv_head) * c.key_dim];
        if ((c.window && j + c.window <= position) ||
            (c.chunk && j / c.chunk != position / c.chunk))
            continue;
        score[j] = 0;
        for (uint32_t d = 0; d < c.key_dim; d++)
            score[j] += (double)q[d] * k[d];
        score[j] *= 0.3f;
        if (c.softcap > 0)
            score[j] = c.softcap * tanh(score[j] / c.softcap);
        most = fmax(most, score[j]);
    }
    sum = c.sink ? exp(s.sink[head] - most) : 0;
    for (uint32_t j = 0; j <= position; j++) {
        const float *v = &s.v[((p.of[row] - position + j) * c.n_kv_head + kv_head) * c.value_dim];
        double w = exp(score[j] - most);
        sum += w;
        for (uint32_t d = 0; d < c.value_dim; d++)
            o[d] += w * v[d];
    }
    for (uint32_t d = 0; d < c.value_dim; d++)
        wrong += !(fabs(widen(c.bf16 ? CLB_BF16 : CLB_F16, got[d]) - o[d] / sum) <=
                   (c.bf16 ? 0x1p-8 : 0x1p-10));
    return wrong;
}

static void check_attention(const attention_case &c)
{
    generator r = { c.n_head + c.key_dim * 7 + c.length[0] };
    scene s(r, c);
    device<uint8_t> pages(s.pages * s.kv.page_bytes);
    device<uint32_t> table(s.table);
    pass all(r, s, 1), some(r, s, 3);
    const size_t width = c.n_head * c.value_dim;
    int wrong = 0;

    append_all(s, pages, table);
    std::vector<uint16_t> one = attend(s, all, false, pages, table);
    std::vector<uint16_t> two = attend(s, all, true, pages, table);
    std::vector<uint16_t> few = attend(s, some, true, pages, table);
    CHECK(one == two);
    for (size_t i = 0, j = 0; i < all.position.size(); i++) {
        for (uint32_t h = 0; h < c.n_head; h++)
            wrong += wrong_head(s, all, i, h, &one[i * width + h * c.value_dim]);
        if (j < some.of.size() && some.of[j] == all.of[i])
            wrong += memcmp(&few[j++ * width], &one[i * width], width * 2) != 0;
    }
    if (wrong)
        printf("# %u heads of %u, %u and %u wide: %d wrong\n", c.n_head, c.n_kv_head, c.key_dim,
               c.value_dim, wrong);
    CHECK_EQ(wrong, 0);
}

static void one_query_and_many(void)
{
    check_attention({ 4, 4, 16, 16, { 1 }, { 1 }, 0, 0, 0, false, false });
    check_attention({ 8, 2, 64, 64, { 70, 3, 130 }, { 1, 3, 20 }, 0, 0, 0, false, false });
    check_attention({ 6, 2, 32, 24, { 65 }, { 65 }, 0, 0, 0, false, true });
    check_attention({ 3, 1, 8, 20, { 40 }, { 7 }, 0, 0, 0, false, false });
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

int main(void)
{
    TEST(one_query_and_many);
    TEST(splits);
    TEST(windows_chunks_sinks_caps);
    TEST(wide_heads);
    CHECK_EQ(emu_leaks(), 0);
    return test_result() || test_bad;
}
