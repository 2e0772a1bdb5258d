/* peak_scalar.c - peak loops in plain C: what the compiler makes of the scalar kernels' inner
 * loops when all operands lie in L1. */
#include <math.h>
#include <string.h>

#include "kernels/peak.h"

enum { LANES = 16, STEPS = 64 };

/* The empty asm statements make the compiler believe that an operand has changed, so that every
 * step is computed anew. */

/* A tile of 16 rows in which every row is w, and every group of activations is a. */
static uint32_t peak_dot(const int8_t *w, const int8_t *a, uint64_t rounds)
{
    uint8_t tile[CLB_PEAK_VALUES / 4][LANES][4];
    uint32_t sum = 0;

    for (int q = 0; q < CLB_PEAK_VALUES / 4; q++)
        for (int r = 0; r < LANES; r++)
            for (int j = 0; j < 4; j++)
                tile[q][r][j] = (uint8_t)(w[4 * q + j] + 128);
    for (uint64_t round = 0; round < rounds; round++)
        for (int step = 0; step < STEPS; step++) {
            int32_t dot[LANES] = { 0 };

            __asm__ volatile("" : "+m"(tile));
            for (int q = 0; q < CLB_PEAK_VALUES / 4; q++)
                for (int r = 0; r < LANES; r++)
                    for (int j = 0; j < 4; j++)
                        dot[r] += (tile[q][r][j] - 128) * a[4 * q + j];
            for (int r = 0; r < LANES; r++)
                sum += (uint32_t)dot[r];
        }
    return sum;
}

static float peak_fma(float x, float y, uint64_t rounds)
{
    float sum = 0;

    for (uint64_t round = 0; round < rounds; round++) {
        float acc[LANES] = { 0 };

        for (int step = 0; step < STEPS; step++) {
            __asm__ volatile("" : "+m"(x));
            for (int r = 0; r < LANES; r++)
                acc[r] = fmaf(x, y, acc[r]);
        }
        for (int r = 0; r < LANES; r++)
            sum += acc[r];
    }
    return sum;
}

static uint64_t peak_read(const void *p, size_t bytes)
{
    uint64_t word[4] = { 0 };

    for (const char *at = p, *end = at + bytes; at < end; at += sizeof word) {
        uint64_t next[4];

        memcpy(next, at, sizeof next);
        for (int i = 0; i < 4; i++)
            word[i] ^= next[i];
    }
    return word[0] ^ word[1] ^ word[2] ^ word[3];
}

void clb_peaks_fill_scalar(struct clb_peaks *p)
{
    *p = (struct clb_peaks){
        .dot = { { "plain C", STEPS * LANES * CLB_PEAK_VALUES, peak_dot } },
        .n_dot = 1,
        .fma = { "fmaf", STEPS * LANES, peak_fma },
        .read = peak_read,
    };
}
