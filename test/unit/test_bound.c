/* What a phase was bound by: the arithmetic of colibri-bench. */
#include "cmd/colibri-bench/bound.c"

#include <math.h>

#include "test/check.h"

/* 20 GB/s, 100 GMAC/s of int8, 50 of f32; one thread half of that but for reading. */
static const struct bench_ceilings all = {
    .threads = 2,
    .rate = { { .median = 20e9 }, { .median = 100e9 }, { .median = 50e9 } },
};
static const struct bench_ceilings one = {
    .threads = 1,
    .rate = { { .median = 15e9 }, { .median = 50e9 }, { .median = 25e9 } },
};

static bool close_to(double a, double b)
{
    return fabs(a - b) < 1e-9 * (1 + fabs(b));
}

static void a_stage(void)
{
    struct bench_work w = { .seconds = 1, .bytes = 10000000000u, .macs = 20000000000u };
    struct bench_bound b = bench_bound_of(&w, &all, &one);

    CHECK(b.limit == BENCH_READ && close_to(b.seconds, 0.5) && close_to(b.of_ceiling, 0.5));
    w.macs = 80000000000u;
    b = bench_bound_of(&w, &all, &one);
    CHECK(b.limit == BENCH_INT8 && close_to(b.of_ceiling, 0.8));
    w.f32_macs = 10000000000u; /* 0.7 s + 0.2 s */
    b = bench_bound_of(&w, &all, &one);
    CHECK(b.limit == BENCH_INT8 && close_to(b.of_ceiling, 0.9));
    w.macs = w.f32_macs = 40000000000u; /* a router, or a float file */
    w.seconds = 2;
    b = bench_bound_of(&w, &all, &one);
    CHECK(b.limit == BENCH_F32 && close_to(b.seconds, 0.8) && close_to(b.of_ceiling, 0.4));
}

static void what_one_thread_does(void)
{
    struct bench_work w = { .seconds = 1, .bytes = 9000000000u, .alone = 1 };

    CHECK(close_to(bench_bound_of(&w, &all, &one).of_ceiling, 9 / 15.0));
    w.alone = 0.5;
    CHECK(close_to(bench_bound_of(&w, &all, &one).of_ceiling, 9 / 17.5));
    w.alone = 0;
    CHECK(close_to(bench_bound_of(&w, &all, &one).of_ceiling, 9 / 20.0));
}

static void nothing_to_compare(void)
{
    const struct bench_ceilings unknown = { .threads = 1 };
    struct bench_work w = { .seconds = 1 }, full = { .seconds = 1, .bytes = 5, .macs = 5 };

    CHECK_EQ(bench_bound_of(&w, &all, &one).limit, BENCH_LIMITS);
    CHECK(bench_bound_of(&w, &all, &one).of_ceiling == 0);
    CHECK_EQ(bench_bound_of(&full, &unknown, &unknown).limit, BENCH_LIMITS);
    full.seconds = 0;
    CHECK_EQ(bench_bound_of(&full, &all, &one).limit, BENCH_LIMITS);
    struct bench_verdict v = bench_verdict_of(&w, 1, 0, 0, &all, &one);
    CHECK(v.of_ceiling == 0 && !v.near);
}

static const char *text_of(const struct bench_verdict *v, bool cached)
{
    static struct clb_text t;

    clb_text_clear(&t);
    bench_verdict_text(&t, v, &all, &one, cached);
    return t.p;
}

static void a_phase(void)
{
    struct bench_work w[3] = {
        { .seconds = 6, .bytes = 100000000000u, .waited = 0.1 }, /* 5 s of reading */
        { .seconds = 3, .macs = 200000000000u },                 /* 2 s of int8 */
        { .seconds = 0.5 },
    };
    struct bench_verdict v = bench_verdict_of(w, 3, 0.5, 10, &all, &one);

    CHECK(v.limit == BENCH_READ && v.near && close_to(v.of_ceiling, 0.7));
    CHECK(close_to(v.by[BENCH_READ], 0.5) && close_to(v.by[BENCH_INT8], 0.2));
    CHECK(close_to(v.waited, 0.06) && close_to(v.outside, 0.05) && v.alone == 0);
    CHECK_STR(bench_bound_name(&v), "memory");
    CHECK_STR(text_of(&v, false), "bound by memory: 50 % of 20.0 GB/s streaming read; "
                                  "int8 arithmetic 20 %; waiting for threads 6 %; "
                                  "outside of stages 5 %");
    CHECK_HAS(text_of(&v, true), "50 % of 20.0 GB/s from cache;");
    w[1].f32_macs = w[1].macs;
    w[1].seconds = 4.9; /* 4 s of f32 */
    w[0].seconds = 5;
    w[0].bytes = 20000000000u;
    w[0].waited = 0;
    v = bench_verdict_of(w, 3, 0, 10, &all, &one);
    CHECK_STR(text_of(&v, false), "bound by f32 arithmetic: 40 % of 50.0 GMAC/s; memory 10 %");
}

static void neither_is_near(void)
{
    struct bench_work w = { .seconds = 10, .bytes = 40000000000u, .waited = 0.3 };
    struct bench_verdict v = bench_verdict_of(&w, 1, 0, 10, &all, &one);

    CHECK(!v.near && close_to(v.of_ceiling, 0.2));
    CHECK_STR(text_of(&v, false), "bound by waiting; nearest ceiling memory, "
                                  "20 % of 20.0 GB/s streaming read; waiting for threads 30 %");
    v.disk = 0.8e9; /* waiting for it is what the rest does */
    v.from_disk = 0.2;
    CHECK_STR(bench_bound_name(&v), "disk");
    CHECK_HAS(text_of(&v, false), "bound by disk; nearest ceiling memory, 20 %");
    CHECK_HAS(text_of(&v, false), "; 20 % of the bytes came from the disk, at 0.80 GB/s;");
    v.near = true;
    CHECK_STR(bench_bound_name(&v), "memory");
    w.waited = 0.01;
    w.alone = 1;
    v = bench_verdict_of(&w, 1, 0, 10, &all, &one);
    CHECK_STR(bench_bound_name(&v), "overhead");
    /* of what one thread can read */
    CHECK_STR(text_of(&v, false), "bound by overhead; nearest ceiling memory, "
                                  "27 % of 15.0 GB/s streaming read; one thread alone 100 %");
}

int main(void)
{
    TEST(a_stage);
    TEST(what_one_thread_does);
    TEST(nothing_to_compare);
    TEST(a_phase);
    TEST(neither_is_near);
    return test_result();
}
