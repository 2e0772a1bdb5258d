/* peak_words.h - words for the peak loops of NEON. */
#ifndef CLB_KERNELS_NEON_PEAK_WORDS_H
#define CLB_KERNELS_NEON_PEAK_WORDS_H

#include "kernels/neon/vec.h"
#include "kernels/peak.h"

#define UNROLL _Pragma("GCC unroll 32")
#define PIN(x) __asm__ volatile("" : "+w"(x))

/* Wide cores start four a cycle, each done after four. */
#define FMA_CHAINS 16
enum { PEAK_STEPS = 512, DOT_CHAINS = 16 };

typedef int32x4_t vi;
struct operand {
    int8x16_t value;
};

VEC_FN vi vi_zero(void)
{
    return vdupq_n_s32(0);
}
VEC_FN vi vi_load(const void *p)
{
    return vreinterpretq_s32_s8(vld1q_s8(p));
}
VEC_FN vi vi_add(vi a, vi b)
{
    return vaddq_s32(a, b);
}
VEC_FN vi vi_xor(vi a, vi b)
{
    return veorq_s32(a, b);
}
VEC_FN uint32_t vi_sum(vi x)
{
    return (uint32_t)vaddvq_s32(x);
}

#endif
