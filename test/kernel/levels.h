/* levels.h - what the kernel checks share: the levels to compare with the scalar kernels, random
 * inputs that include the extremes, outputs between guards, timing.
 *
 * Every level of this machine is checked; levels it lacks are checked in emulation (emulated.h).
 * Arguments: --seed N, --level NAME, --bench. */
#ifndef TEST_KERNEL_LEVELS_H
#define TEST_KERNEL_LEVELS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <math.h>

#include "kernels/kernels.h"
#include "lib/base/half.h"
#include "test/check.h"

/* -- random numbers ------------------------------------------------------------------------ */

static uint64_t rng = 1;

static inline uint32_t rnd(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 24);
}

static inline uint32_t rnd_below(uint32_t n)
{
    return (uint32_t)((uint64_t)rnd() * n >> 32);
}

/* In [-1, 1). */
static inline float rnd_unit(void)
{
    return (float)(int32_t)rnd() * 0x1p-31f;
}

/* What a row of numbers looks like. */
enum values { PLAIN, MIXED, TINY, HUGE_VALUES, ZEROS, SPECIAL, VALUES_COUNT };

static inline float rnd_special(void)
{
    static const float special[] = { 0.0f,    -0.0f,   INFINITY, -INFINITY, NAN,   0x1p-149f,
                                     -1e-40f, 3.4e38f, -3.4e38f, 0x1p-126f, 88.7f, -87.3f };
    return special[rnd_below(sizeof special / sizeof *special)];
}

static inline float rnd_value(enum values v)
{
    int power = (int)rnd_below(32) - 20;

    switch (v) {
    case MIXED: /* magnitudes from 2^-20 to 2^11 and a few zeros */
        if (rnd_below(16))
            return ldexpf(rnd_unit(), power);
        return rnd() & 1 ? 0.0f : -0.0f;
    case TINY:
        return rnd_unit() * 0x1p-125f;
    case HUGE_VALUES:
        return rnd_unit() * 0x1p120f;
    case ZEROS:
        return rnd() & 1 ? 0.0f : -0.0f;
    case SPECIAL:
        return rnd_below(8) ? rnd_unit() * 4 : rnd_special();
    default:
        return rnd_unit() * 4;
    }
}

static inline void rnd_row(float *x, size_t n, enum values v)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rnd_value(v);
}

/* -- the levels ---------------------------------------------------------------------------- */

/* From the emulated build of kernels/avx2 and kernels/avx512; absent without SIMDe. */
void clb_emulated_fill_avxvnni(struct clb_kernels *k) __attribute__((weak));
void clb_emulated_fill_avx512(struct clb_kernels *k) __attribute__((weak));

struct level {
    char name[32];
    struct clb_kernels k;
    bool only_matmul; /* all other slots are the scalar ones */
};
static struct level levels[8];
static int n_level;
static struct clb_kernels ref; /* scalar */
static bool want_bench;

static inline void add_level(const char *only, const char *name, enum clb_isa isa,
                             void (*emulated)(struct clb_kernels *))
{
    struct level *l = &levels[n_level];

    if (*only && strcmp(only, name))
        return;
    snprintf(l->name, sizeof l->name, "%s", name);
    clb_kernels_for(&l->k, emulated ? CLB_ISA_SCALAR : isa);
    if (emulated)
        emulated(&l->k);
    l->only_matmul = l->k.add == ref.add;
    n_level++;
}

static inline void start(int argc, char **argv)
{
    const char *only = "", *why;
    uint64_t seed = 20240611;

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--bench"))
            want_bench = true;
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 0) | 1;
        else if (!strcmp(argv[i], "--level") && i + 1 < argc)
            only = argv[++i];
    }
    rng = seed;
    printf("# seed %llu\n", (unsigned long long)seed);
    clb_kernels_for(&ref, CLB_ISA_SCALAR);
    for (int isa = CLB_ISA_SCALAR + 1; isa < CLB_ISA_COUNT; isa++)
        if (clb_isa_available((enum clb_isa)isa, &why))
            add_level(only, clb_isa_name((enum clb_isa)isa), (enum clb_isa)isa, NULL);
        else
            printf("# %s: %s\n", clb_isa_name((enum clb_isa)isa), why);
    if (want_bench)
        add_level(only, "scalar", CLB_ISA_SCALAR, NULL);
    else if (clb_emulated_fill_avx512) {
        add_level(only, "avxvnni, emulated", CLB_ISA_AVXVNNI, clb_emulated_fill_avxvnni);
        add_level(only, "avx512, emulated", CLB_ISA_AVX512, clb_emulated_fill_avx512);
    } else {
        printf("# no emulated levels in this build (they need SIMDe and no sanitizer)\n");
    }
}

/* -- outputs between guards ---------------------------------------------------------------- */

enum { GUARD = 32 }; /* floats before and behind */

/* Two equal buffers, one for the definition and one for the level under test. */
struct pair {
    float *want, *got; /* n floats each, between guards */
    size_t n;
    float *block[2];
};

static inline struct pair pair_new(size_t n, size_t misalign)
{
    struct pair p = { .n = n };
    size_t all = n + 2 * GUARD + misalign;

    for (int i = 0; i < 2; i++)
        p.block[i] = aligned_alloc(64, (all * sizeof(float) + 63) & ~(size_t)63);
    for (size_t i = 0; i < all; i++)
        p.block[0][i] = p.block[1][i] = rnd_unit() * 4;
    p.want = p.block[0] + GUARD + misalign;
    p.got = p.block[1] + GUARD + misalign;
    return p;
}

static inline void pair_set(struct pair *p, const float *x)
{
    memcpy(p->want, x, p->n * sizeof *x);
    memcpy(p->got, x, p->n * sizeof *x);
}

/* Equal by bits, guards included; any NaN equals any NaN. Prints the first difference. */
static inline bool pair_equal(const struct pair *p, const char *what)
{
    for (size_t i = 0; i < p->n + 2 * GUARD; i++) {
        float w = p->want[i - GUARD], g = p->got[i - GUARD];
        if (memcmp(&w, &g, sizeof w) && !(w != w && g != g)) {
            printf("# %s: element %td of %zu is %a, not %a\n", what, (ptrdiff_t)i - GUARD, p->n, g,
                   w);
            return false;
        }
    }
    return true;
}

static inline void pair_free(struct pair *p)
{
    free(p->block[0]);
    free(p->block[1]);
}

/* -- reporting and timing ------------------------------------------------------------------ */

static inline void report(bool ok, const char *what, const char *level)
{
    printf("%s %d %s, %s\n", ok ? "ok" : "not ok", ++test_count, what, level);
    test_failed += !ok;
}

/* Time of this thread, so that a busy machine disturbs less. */
static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median seconds of one call: seven runs of as many calls as take some 20 ms. */
static inline double time_calls(void (*call)(void *arg), void *arg)
{
    double run[7], began = now();
    int n = 0;

    do {
        call(arg);
        n++;
    } while (now() - began < 0.02);
    for (int r = 0; r < 7; r++) {
        began = now();
        for (int i = 0; i < n; i++)
            call(arg);
        run[r] = (now() - began) / n;
    }
    qsort(run, 7, sizeof *run, compare_doubles);
    return run[3];
}

#endif
