/* peak_avxvnni.c - peak loops of AVX-VNNI. */
#include "kernels/avx2/peak_words.h"

enum { DOT_CHAINS = 12 };

struct operand {
    vi offset; /* value + 128 */
};
VEC_FN struct operand operand_w(const int8_t *w)
{
    return (struct operand){ vi_xor(vi_load(w), _mm256_set1_epi8((char)0x80)) };
}
VEC_FN vi dot_step(vi acc, struct operand w, vi a)
{
    return _mm256_dpbusd_avx_epi32(acc, w.offset, a);
}

#define DOT       dot_offset
#define WIDTH     32
#define operand_a vi_load
#include "kernels/wide/peak_dot.inc"

#include "kernels/wide/peak.inc"

enum { DOT_MACS = PEAK_STEPS * DOT_CHAINS * WIDTH };

static uint32_t dot(const int8_t *w, const int8_t *a, uint64_t rounds)
{
    return clb_peak_without_offset(dot_offset(w, a, rounds), a, rounds * (DOT_MACS / 32));
}

PLAIN_CODE void clb_peaks_fill_avxvnni(struct clb_peaks *p)
{
    *p = (struct clb_peaks){
        .dot = { { "vpdpbusd ymm", DOT_MACS, dot } },
        .n_dot = 1,
        .fma = { "vfmadd ymm", FMA_MACS, peak_fma },
        .read = peak_read,
    };
}
