/* peak_i8mm.c - peak loops of NEON with the matrix instructions: smmla multiplies 2 x 8 by 8 x 2
 * values. Both rows and both columns are the same 8 here, so that the four sums add up to four
 * times their dot product. */
#include "kernels/neon/peak_words.h"

VEC_FN int8x16_t twice(const int8_t *p)
{
    return vcombine_s8(vld1_s8(p), vld1_s8(p));
}
VEC_FN struct operand operand_w(const int8_t *w)
{
    return (struct operand){ twice(w) };
}
VEC_FN vi operand_a(const int8_t *a)
{
    return vreinterpretq_s32_s8(twice(a));
}
VEC_FN vi dot_step(vi acc, struct operand w, vi a)
{
    return vmmlaq_s32(acc, w.value, vreinterpretq_s8_s32(a));
}

#define DOT   dot_mm
#define WIDTH 8
#include "kernels/wide/peak_dot.inc"

#include "kernels/wide/peak.inc"

PLAIN_CODE void clb_peaks_fill_i8mm(struct clb_peaks *p)
{
    *p = (struct clb_peaks){
        .dot = { { "smmla", PEAK_STEPS * DOT_CHAINS * 4 * WIDTH, dot_mm } },
        .n_dot = 1,
        .fma = { "fmla", FMA_MACS, peak_fma },
        .read = peak_read,
    };
}
