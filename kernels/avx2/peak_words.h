/* peak_words.h - words for the peak loops of 256 bits. */
#ifndef CLB_KERNELS_AVX2_PEAK_WORDS_H
#define CLB_KERNELS_AVX2_PEAK_WORDS_H

#include "kernels/avx2/vec.h"
#include "kernels/peak.h"

#define UNROLL _Pragma("GCC unroll 32")
#define PIN(x) __asm__ volatile("" : "+x"(x))

enum { PEAK_STEPS = 512 };

typedef __m256i vi;

VEC_FN vi vi_zero(void)
{
    return _mm256_setzero_si256();
}
VEC_FN vi vi_load(const void *p)
{
    return _mm256_loadu_si256(p);
}
VEC_FN vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
VEC_FN vi vi_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}
VEC_FN uint32_t vi_sum(vi x)
{
    uint32_t lane[8], sum = 0;
    memcpy(lane, &x, sizeof lane);
    for (int i = 0; i < 8; i++)
        sum += lane[i];
    return sum;
}

#endif
