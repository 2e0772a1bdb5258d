/* peak.h - what one core can do at best: loops over registers, and a read of memory, to be timed.
 * They are the ceilings that colibri-bench holds kernels against. Every level has its own, made of
 * the instructions that its kernels may use; like kernels, all of them give the same result. */
#ifndef CLB_KERNELS_PEAK_H
#define CLB_KERNELS_PEAK_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"

enum { CLB_PEAK_VALUES = 32, CLB_PEAK_DOTS = 3 };

/* Exact products of int8 as in a quantised matrix: independent chains that never leave their
 * registers. */
struct clb_peak_dot {
    const char *name; /* the instructions: "vpdpbusd" */
    uint32_t macs;    /* multiply-accumulates a round, a multiple of 32 */
    /* rounds * macs / 32 times the dot product of w[32] and a[32] (-127 to 127), mod 2^32 */
    uint32_t (*run)(const int8_t *w, const int8_t *a, uint64_t rounds);
};

/* Chains of fused multiply-adds in f32. */
struct clb_peak_fma {
    const char *name;
    uint32_t macs; /* a round */
    /* rounds * macs * x * y, where that is exact */
    float (*run)(float x, float y, uint64_t rounds);
};

struct clb_peaks {
    struct clb_peak_dot dot[CLB_PEAK_DOTS]; /* the level is as fast as the faster of them */
    uint32_t n_dot;
    struct clb_peak_fma fma;
    /* Reads [p, p + bytes) in ascending order, as fast as it goes: the xor of its 64-bit words. p
     * is 64-byte aligned, bytes a multiple of 256. */
    uint64_t (*read)(const void *p, size_t bytes);
};

/* For weights that enter as value + 128: the sum of `times` dot products, made right. */
static inline uint32_t clb_peak_without_offset(uint32_t sum, const int8_t *a, uint64_t times)
{
    uint32_t all = 0;

    for (int i = 0; i < CLB_PEAK_VALUES; i++)
        all += (uint32_t)a[i];
    return sum - 128 * all * (uint32_t)times;
}

/* Those of exactly this level, which must be available. */
void clb_peaks_for(struct clb_peaks *p, enum clb_isa isa);

/* 64 * rounds dependent operations of one cycle each: how fast the clock is. */
uint64_t clb_peak_clock(uint64_t rounds);

/* One per level; each fills everything. */
void clb_peaks_fill_scalar(struct clb_peaks *p);
void clb_peaks_fill_avx2(struct clb_peaks *p);
void clb_peaks_fill_avxvnni(struct clb_peaks *p);
void clb_peaks_fill_avx512(struct clb_peaks *p);
void clb_peaks_fill_neon(struct clb_peaks *p);
void clb_peaks_fill_i8mm(struct clb_peaks *p);

#endif
