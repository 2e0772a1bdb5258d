/* pack_avx2.h - words of the packing kernels: rows widened, 4-byte units of rows turned into steps
 * of a tile. */
#ifndef CLB_KERNELS_AVX2_PACK_AVX2_H
#define CLB_KERNELS_AVX2_PACK_AVX2_H

#include "kernels/avx2/vec.h"
#include "kernels/pack.h"
#include "lib/base/half.h"

enum { STEP = 64 };

VEC_FN size_t source_bytes(enum clb_dtype from)
{
    return from == CLB_F32 ? 4 : 2;
}

VEC_FN void widen(float *y, const void *x, enum clb_dtype from, size_t n)
{
    const uint16_t *h = x;
    const float *f = x;
    size_t i = 0;

    if (from == CLB_F32) {
        memcpy(y, f, n * sizeof *y);
        return;
    }
    for (; i + LANES <= n; i += LANES)
        vf_store(y + i, from == CLB_BF16 ? vf_from_bf16(h + i) : vf_from_f16(h + i));
    for (; i < n; i++)
        y[i] = from == CLB_BF16 ? clb_bf16_to_f32(h[i]) : clb_f16_to_f32(h[i]);
}

/* Columns [at, at + most) of a row, as far as there are any, and zeros up to a multiple of 32;
 * returns how many that are. */
VEC_FN uint32_t widen_part(float *y, const struct clb_rows *m, uint32_t row, uint32_t at,
                           uint32_t most)
{
    uint32_t n = m->cols - at < most ? m->cols - at : most;
    uint32_t padded = (n + CLB_GROUP - 1) / CLB_GROUP * CLB_GROUP;
    size_t first = (size_t)row * m->cols + at;

    if (row >= m->n_row)
        n = 0;
    else
        widen(y, (const char *)m->x + first * source_bytes(m->from), m->from, n);
    if (n < padded)
        memset(y + n, 0, (padded - n) * sizeof *y);
    return padded;
}

/* 8 x 8 elements of 4 bytes */
VEC_FN void transpose8(__m256i r[8])
{
    __m256i a[8], b[8];

    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            b[i + 2 * k] = _mm256_unpacklo_epi64(a[i + k], a[i + k + 2]);
            b[i + 2 * k + 1] = _mm256_unpackhi_epi64(a[i + k], a[i + k + 2]);
        }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        r[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

/* Steps of a tile from 16 rows of n 4-byte units, `stride` bytes apart. */
VEC_FN void put_steps(uint8_t *tile, const void *rows, size_t stride, uint32_t n)
{
    const uint8_t *from = rows;
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8)
        for (int half = 0; half < 2; half++) {
            __m256i r[8];

            for (int k = 0; k < 8; k++)
                r[k] = _mm256_loadu_si256(
                    (const void *)(from + (size_t)(8 * half + k) * stride + 4 * i));
            transpose8(r);
            for (uint32_t k = 0; k < 8; k++)
                _mm256_storeu_si256((void *)(tile + (size_t)(i + k) * STEP + 32 * half), r[k]);
        }
    for (; i < n; i++)
        for (uint32_t k = 0; k < CLB_TILE; k++)
            memcpy(tile + (size_t)i * STEP + 4 * k, from + k * stride + 4 * i, 4);
}

#endif
