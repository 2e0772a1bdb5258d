/* peak_neon.c - peak loops of NEON with the dot product instructions. */
#include "kernels/neon/peak_words.h"

VEC_FN struct operand operand_w(const int8_t *w)
{
    return (struct operand){ vld1q_s8(w) };
}
VEC_FN vi dot_step(vi acc, struct operand w, vi a)
{
    return vdotq_s32(acc, w.value, vreinterpretq_s8_s32(a));
}

#define DOT       dot
#define WIDTH     16
#define operand_a vi_load
#include "kernels/wide/peak_dot.inc"

#include "kernels/wide/peak.inc"

PLAIN_CODE void clb_peaks_fill_neon(struct clb_peaks *p)
{
    *p = (struct clb_peaks){
        .dot = { { "sdot", PEAK_STEPS * DOT_CHAINS * WIDTH, dot } },
        .n_dot = 1,
        .fma = { "fmla", FMA_MACS, peak_fma },
        .read = peak_read,
    };
}
