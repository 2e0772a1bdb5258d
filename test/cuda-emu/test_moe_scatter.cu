// test_moe_scatter.cu - the map of slots against a sort on the host, and its chunks.
#include "test/cuda-emu/matrix_rig.h"

struct map {
    uint32_t n_row, top_k, n_expert;
    device<uint32_t> expert, kept, first, row, slot, n, reused;
    device<struct clb_cuda_chunk> l0, l1, l2;

    map(uint32_t rows, uint32_t k, uint32_t experts)
        : n_row(rows), top_k(k), n_expert(experts), expert(rows * k),
          kept(std::vector<uint32_t>(2 + rows * k)), first(experts + 1), row(rows * k),
          slot(rows * k), n(CLB_CUDA_CLASSES), reused(1), l0(room()), l1(room()), l2(room())
    {
    }
    size_t room(void) const
    {
        return clb_cuda_chunks_most(n_expert, n_row * top_k);
    }
    uint32_t run(const std::vector<uint32_t> &ids, uint32_t rows)
    {
        stream s;
        struct clb_cuda_scatter a = { rows,     top_k,  n_expert,
                                      expert.p, kept.p, first.p,
                                      row.p,    slot.p, { { l0.p, l1.p, l2.p }, n.p },
                                      reused.p };

        OK(cudaMemcpy(expert.p, ids.data(), ids.size() * 4, cudaMemcpyHostToDevice));
        OK(cudaDeviceSynchronize()); // s does not wait for that copy
        clb_cuda_moe_scatter(&a, s.s);
        return reused.get()[0];
    }
};

// Every expert's slots are cut without gaps; small rests go to the class that fits.
static int wrong_chunks(const map &m, const std::vector<uint32_t> &first)
{
    const std::vector<struct clb_cuda_chunk> list[] = { m.l0.get(), m.l1.get(), m.l2.get() };
    const uint32_t most[] = { 8, 32, 64 };
    std::vector<uint32_t> n = m.n.get(), covered(first.back());
    int wrong = 0;

    for (int k = 0; k < CLB_CUDA_CLASSES; k++)
        for (uint32_t i = 0; i < n[(size_t)k]; i++) {
            const struct clb_cuda_chunk &c = list[k][i];
            wrong += !c.n || c.n > most[k] || (k && c.n <= most[k - 1]);
            wrong += c.first < first[c.expert] || c.first + c.n > first[c.expert + 1];
            wrong += i && (list[k][i - 1].expert > c.expert || list[k][i - 1].first >= c.first);
            for (uint32_t s = 0; s < c.n; s++)
                covered[c.first + s]++;
        }
    for (uint32_t c : covered)
        wrong += c != 1;
    return wrong;
}

static int wrong_map(const map &m, const std::vector<uint32_t> &ids)
{
    std::vector<uint32_t> first = m.first.get(), row = m.row.get(), slot = m.slot.get();
    uint32_t at = 0;
    int wrong = 0;

    for (uint32_t e = 0; e < m.n_expert; e++) {
        wrong += first[e] != at;
        for (uint32_t i = 0; i < ids.size(); i++)
            if (ids[i] == e) {
                wrong += slot[i] != at || row[at] != i / m.top_k;
                at++;
            }
    }
    wrong += first[m.n_expert] != at;
    return wrong + wrong_chunks(m, first);
}

// spread 1: all rows on one expert.
static void check_map(uint32_t rows, uint32_t k, uint32_t experts, uint32_t spread)
{
    generator r = { rows + k + experts };
    map m(rows, k, experts);
    std::vector<uint32_t> ids(rows * k);

    for (uint32_t i = 0; i < ids.size(); i++)
        ids[i] = (r.next(spread) + i % k * (experts / k)) % experts;
    CHECK_EQ(m.run(ids, rows), 0);
    int wrong = wrong_map(m, ids);
    if (wrong)
        printf("# %u rows, %u of %u experts: %d wrong\n", rows, k, experts, wrong);
    CHECK_EQ(wrong, 0);
}

static void maps_and_chunks(void)
{
    check_map(1, 2, 8, 8);
    check_map(1, 8, 128, 16);
    check_map(3, 1, 5, 5);
    check_map(7, 4, 60, 15);
    check_map(300, 2, 8, 3);
    check_map(129, 1, 8, 1);
    check_map(97, 8, 256, 32);
    check_map(40, 6, 1000, 160);
    check_map(10, 2, 4096, 2000);
}

static void the_same_routing_keeps_its_map(void)
{
    map m(5, 2, 8);
    std::vector<uint32_t> ids = { 1, 2, 7, 0, 1, 3, 1, 2, 5, 6 };

    CHECK_EQ(m.run(ids, 5), 0);
    CHECK_EQ(m.run(ids, 5), 1);
    CHECK_EQ(wrong_map(m, ids), 0);
    ids[9] = 4;
    CHECK_EQ(m.run(ids, 5), 0);
    CHECK_EQ(wrong_map(m, ids), 0);
    ids.resize(8); // fewer rows that begin alike
    CHECK_EQ(m.run(ids, 4), 0);
    CHECK_EQ(wrong_map(m, ids), 0);
}

int main(void)
{
    TEST(maps_and_chunks);
    TEST(the_same_routing_keeps_its_map);
    CHECK_EQ(emu_leaks(), 0);
    return test_result() || test_bad;
}
