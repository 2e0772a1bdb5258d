/* The peak loops of every level do the multiplications they claim to do, exactly, and the read
 * reads every word. */
#include "test/kernel/levels.h"

#include "kernels/peak.h"

void clb_emulated_peaks_avxvnni(struct clb_peaks *p) __attribute__((weak));
void clb_emulated_peaks_avx512(struct clb_peaks *p) __attribute__((weak));

static void check_dot(const char *level, const struct clb_peak_dot *d)
{
    for (int i = 0; i < 20; i++) {
        int8_t w[CLB_PEAK_VALUES], a[CLB_PEAK_VALUES];
        uint32_t dot = 0, rounds = i % 3;

        for (int v = 0; v < CLB_PEAK_VALUES; v++) {
            w[v] = (int8_t)(i < 4 ? (i & 1 ? -127 : 127) : (int)rnd_below(255) - 127);
            a[v] = (int8_t)(i < 4 ? (i & 2 ? -127 : 127) : (int)rnd_below(255) - 127);
            dot += (uint32_t)(w[v] * a[v]);
        }
        uint32_t want = dot * rounds * (d->macs / CLB_PEAK_VALUES);
        uint32_t got = d->run(w, a, rounds);
        if (got != want)
            printf("# %s, %s: %u rounds\n", level, d->name, rounds);
        CHECK_EQ(got, want);
    }
    CHECK_EQ(d->macs % CLB_PEAK_VALUES, 0);
}

static void check_level(const char *level, const struct clb_peaks *p)
{
    static _Alignas(64) uint64_t word[2048];

    for (uint32_t i = 0; i < p->n_dot; i++)
        check_dot(level, &p->dot[i]);
    CHECK(p->n_dot >= 1);
    CHECK(p->fma.run(3, -0.5f, 2) == 2 * -1.5f * (float)p->fma.macs);
    CHECK(p->fma.run(3, 2, 0) == 0);
    for (size_t bytes = 0; bytes <= sizeof word; bytes += 256) {
        uint64_t want = 0;

        for (size_t i = 0; i < bytes / sizeof *word; i++)
            want ^= word[i] = (uint64_t)rnd() << 32 | rnd();
        CHECK(p->read(word, bytes) == want);
    }
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Best of 20, one core. */
static void bench_level(const char *level, const struct clb_peaks *p)
{
    int8_t w[CLB_PEAK_VALUES] = { 1, 2, -3 }, a[CLB_PEAK_VALUES] = { 4, 5, -6 };

    for (uint32_t i = 0; i <= p->n_dot; i++) {
        bool fma = i == p->n_dot;
        uint64_t macs = fma ? p->fma.macs : p->dot[i].macs, rounds = 20000000 / macs + 1;
        double best = 1e9;

        for (int pass = 0; pass < 20; pass++) {
            double start = seconds();
            if (fma)
                p->fma.run(1, 1, rounds);
            else
                p->dot[i].run(w, a, rounds);
            double s = seconds() - start;
            best = s < best ? s : best;
        }
        printf("# %-8s %-32s %7.1f GMAC/s\n", level, fma ? p->fma.name : p->dot[i].name,
               (double)(macs * rounds) / best / 1e9);
    }
}

static void levels_are_exact(void)
{
    struct clb_peaks p;
    const char *why;

    for (int isa = 0; isa < CLB_ISA_COUNT; isa++)
        if (clb_isa_available((enum clb_isa)isa, &why)) {
            clb_peaks_for(&p, (enum clb_isa)isa);
            check_level(clb_isa_name((enum clb_isa)isa), &p);
            if (want_bench)
                bench_level(clb_isa_name((enum clb_isa)isa), &p);
        }
}

static void emulated_levels_are_exact(void)
{
    struct clb_peaks p;

    if (clb_emulated_peaks_avxvnni) {
        clb_emulated_peaks_avxvnni(&p);
        check_level("avxvnni, emulated", &p);
    }
    if (clb_emulated_peaks_avx512) {
        clb_emulated_peaks_avx512(&p);
        check_level("avx512, emulated", &p);
    }
}

int main(int argc, char **argv)
{
    start(argc, argv);
    TEST(levels_are_exact);
    TEST(emulated_levels_are_exact);
    return test_result();
}
