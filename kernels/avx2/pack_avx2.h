/* pack_avx2.h - words of the packing kernels: 4-byte units of rows turned into steps of a tile. */
#ifndef CLB_KERNELS_AVX2_PACK_AVX2_H
#define CLB_KERNELS_AVX2_PACK_AVX2_H

#include "kernels/avx2/vec.h"
#include "kernels/wide/pack_words.inc"

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
