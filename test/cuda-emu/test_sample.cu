// test_sample.cu - candidates against a sort of the whole row.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/cuda_kernels.h"
#include "test/cuda-emu/matrix_rig.h"

// What a row is made of: every kind has its trap.
enum kind { ANY, FEW, EQUAL, RISING, FALLING, ZEROS, NO_NUMBER, NOT_ALL, LAST, KINDS };

static float logit_of(enum kind kind, generator &r, uint32_t id, uint32_t n)
{
    switch (kind) {
    case FEW: // ties in every slice
        return floorf(r.real(2));
    case EQUAL:
        return -7.5f;
    case RISING:
        return (float)id - 1000;
    case FALLING:
        return -(float)id;
    case ZEROS: // one order for both
        return id % 3 ? -0.0f : 0.0f;
    case NO_NUMBER:
        return id % 2 ? -INFINITY : id % 4 ? NAN : -NAN;
    case NOT_ALL: // fewer numbers than are wanted
        return id % 97 == 5 ? r.real(3) : id % 2 ? -INFINITY : NAN;
    case LAST: // the best of all are the last ones
        return id + 3 > n ? INFINITY : r.real(9) - 20;
    default:
        return r.real(30);
    }
}

// NaN last, -0 as 0, equal ones by id.
static bool is_before(const float *logit, uint32_t a, uint32_t b)
{
    float x = logit[a], y = logit[b];

    if (std::isnan(x) || std::isnan(y))
        return std::isnan(x) && std::isnan(y) ? a < b : std::isnan(y);
    return x != y ? x > y : a < b;
}

static std::vector<uint32_t> best_of(const float *logit, uint32_t n, uint32_t k)
{
    std::vector<uint32_t> id(n);

    for (uint32_t i = 0; i < n; i++)
        id[i] = i;
    std::sort(id.begin(), id.end(), [=](uint32_t a, uint32_t b) { return is_before(logit, a, b); });
    id.resize(k);
    std::sort(id.begin(), id.end());
    return id;
}

// Row i is of kind kinds[i] and wants want[i] candidates.
static void check_rows(uint32_t n, const std::vector<enum kind> &kinds,
                       const std::vector<uint32_t> &want)
{
    const uint32_t n_row = (uint32_t)kinds.size();
    generator r = { n + n_row };
    std::vector<float> logits;
    std::vector<struct clb_cuda_want> wants;
    uint32_t sum = 0, wrong = 0;
    stream s;

    for (uint32_t i = 0; i < n_row; i++) {
        for (uint32_t id = 0; id < n; id++)
            logits.push_back(logit_of(kinds[i], r, id, n));
        wants.push_back({ want[i], sum });
        sum += want[i];
    }
    device<float> dlogits(logits);
    device<struct clb_cuda_want> dwant(wants);
    device<uint64_t> kept((size_t)sum * clb_cuda_slices(n));
    device<struct clb_candidate> out(sum);
    const struct clb_cuda_choose c = { n_row, n, dlogits.p, dwant.p, kept.p, out.p };
    clb_cuda_run_choose(&c, s.s);
    std::vector<struct clb_candidate> got = out.get();
    for (uint32_t i = 0; i < n_row; i++) {
        const float *row = &logits[(size_t)i * n];
        std::vector<uint32_t> ids = best_of(row, n, want[i]);

        for (uint32_t k = 0; k < want[i]; k++) {
            struct clb_candidate g = got[wants[i].at + k];
            wrong += g.id != ids[k] || (g.logit != row[g.id] && !std::isnan(row[g.id])) ||
                     std::isnan(g.logit) != std::isnan(row[g.id]);
        }
    }
    if (wrong)
        printf("# %u logits: %u candidates of %u are wrong\n", n, wrong, sum);
    CHECK_EQ(wrong, 0);
}

static void check_size(uint32_t n)
{
    std::vector<enum kind> kinds;
    std::vector<uint32_t> want;

    for (int k = 0; k < KINDS; k++)
        for (uint32_t w : { 1u, 0u, 40u, 128u }) {
            if (w == 40 && k % 2)
                continue;
            kinds.push_back((enum kind)k);
            want.push_back(std::min(w, n));
        }
    check_rows(n, kinds, want);
}

static void small_vocabularies(void)
{
    for (uint32_t n : { 1u, 2u, 31u, 99u, 128u, 130u })
        check_size(n);
}

static void slices_of_any_length(void)
{
    for (uint32_t n : { 4095u, 4096u, 4097u, 4223u })
        check_size(n);
}

// Ties across slices, and the best ones where slices meet.
static void many_slices(void)
{
    check_rows(3 * 4096 + 17, { ANY, FEW, EQUAL, LAST, RISING, NOT_ALL },
               { 128, 127, 3, 5, 1, 64 });
}

// As many as one block chooses from, and fewer candidates where there are more slices.
static void large_vocabularies(void)
{
    CHECK_EQ(clb_cuda_most_candidates(1), 128);
    CHECK_EQ(clb_cuda_most_candidates(262144), 128);
    CHECK_EQ(clb_cuda_most_candidates(262145), 126);
    CHECK_EQ(clb_cuda_most_candidates(4096u * 8192), 1);
    CHECK_EQ(clb_cuda_most_candidates(4096u * 8192 + 1), 0);
    check_rows(70 * 4096 - 5, { FEW, ANY }, { 117, 1 });
}

int main(void)
{
    TEST(small_vocabularies);
    TEST(slices_of_any_length);
    TEST(many_slices);
    TEST(large_vocabularies);
    CHECK_EQ(emu_leaks(), 0);
    return test_result() || test_bad;
}
