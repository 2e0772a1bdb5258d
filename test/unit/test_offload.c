/* Whether experts that do not fit on a device are copied or multiplied by the CPU: the guess. */
#include <math.h>

#include "lib/backend/offload.h"
#include "test/check.h"

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fabs(b);
}

/* 128 experts in 48 layers, 8 for a token, 2 MB each, half of them there. */
static const struct clb_offload_facts half = { .n_expert = 6144,
                                               .n_slot = 3072,
                                               .per_token = 384,
                                               .expert_bytes = 2000000,
                                               .link = 12e9,
                                               .host = 24e9 };

static void the_faster_way_wins(void)
{
    struct clb_offload_facts f = half;
    struct clb_offload_guess g = clb_offload_guess(&f);

    CHECK(near(g.hits, 0.5));
    CHECK(near(g.copy, 192 * 2e6 / 12e9));
    CHECK(near(g.cpu, 192 * 2e6 / 24e9));
    CHECK(g.use_cpu);
    f.link = 30e9;
    CHECK(!clb_offload_guess(&f).use_cpu);
    f.link = f.host;
    CHECK(!clb_offload_guess(&f).use_cpu); /* a tie: no bits change */
}

/* Fewer slots than a token wants: copies find nothing, the CPU has its fixed share. */
static void few_slots_are_of_no_use_to_copies(void)
{
    struct clb_offload_facts f = half;

    f.n_slot = 383;
    f.host = 12e9;
    struct clb_offload_guess g = clb_offload_guess(&f);
    CHECK(g.hits == 0);
    CHECK(near(g.copy, 384 * 2e6 / 12e9));
    CHECK(near(g.cpu, 384 * (1 - 383 / 6144.) * 2e6 / 12e9));
    CHECK(g.use_cpu);
    f.n_slot = 384;
    CHECK(!clb_offload_guess(&f).use_cpu);
}

static void without_two_slots_nothing_is_copied(void)
{
    struct clb_offload_facts f = half;

    for (f.n_slot = 0; f.n_slot < 2; f.n_slot++) {
        f.link = 1e15;
        CHECK(clb_offload_guess(&f).use_cpu);
        CHECK(clb_offload_guess(&f).copy == (double)INFINITY);
        f.host = 0;
        CHECK(clb_offload_guess(&f).use_cpu);
    }
}

static void what_is_unknown_decides_for_copies(void)
{
    struct clb_offload_facts f = half;

    f.host = 0;
    CHECK(!clb_offload_guess(&f).use_cpu);
    f.link = 0;
    CHECK(!clb_offload_guess(&f).use_cpu);
    f.host = half.host;
    CHECK(!clb_offload_guess(&f).use_cpu);
    f.n_expert = 0; /* other devices have all */
    f.n_slot = 2;
    CHECK(clb_offload_guess(&f).cpu == 0 && !clb_offload_guess(&f).use_cpu);
}

int main(void)
{
    TEST(the_faster_way_wins);
    TEST(few_slots_are_of_no_use_to_copies);
    TEST(without_two_slots_nothing_is_copied);
    TEST(what_is_unknown_decides_for_copies);
    return test_result();
}
