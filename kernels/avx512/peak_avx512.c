/* peak_avx512.c - peak loops of AVX-512 with VNNI. */
#include "kernels/avx512/vec.h"
#include "kernels/peak.h"

#define UNROLL _Pragma("GCC unroll 32")
#if defined(__AVX512F__)
#define PIN(x) __asm__ volatile("" : "+v"(x))
#else /* test/kernel/emulated.h: a vector is no register */
#define PIN(x) __asm__ volatile("" : "+m"(x))
#endif

enum { PEAK_STEPS = 512, DOT_CHAINS = 12 };

typedef __m512i vi;

VEC_FN vi vi_zero(void)
{
    return _mm512_setzero_si512();
}
VEC_FN vi vi_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
VEC_FN vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
VEC_FN vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}
VEC_FN uint32_t vi_sum(vi x)
{
    uint32_t lane[16], sum = 0;
    memcpy(lane, &x, sizeof lane);
    for (int i = 0; i < 16; i++)
        sum += lane[i];
    return sum;
}

struct operand {
    vi offset; /* value + 128 */
};
VEC_FN vi operand_a(const int8_t *a)
{
    int8_t twice[64];
    memcpy(twice, a, 32);
    memcpy(twice + 32, a, 32);
    return vi_load(twice);
}
VEC_FN struct operand operand_w(const int8_t *w)
{
    return (struct operand){ vi_xor(operand_a(w), _mm512_set1_epi32((int)0x80808080)) };
}
VEC_FN vi dot_step(vi acc, struct operand w, vi a)
{
    return _mm512_dpbusd_epi32(acc, w.offset, a);
}

#define DOT   dot_offset
#define WIDTH 64
#include "kernels/wide/peak_dot.inc"

#include "kernels/wide/peak.inc"

enum { DOT_MACS = PEAK_STEPS * DOT_CHAINS * WIDTH };

static uint32_t dot(const int8_t *w, const int8_t *a, uint64_t rounds)
{
    return clb_peak_without_offset(dot_offset(w, a, rounds), a, rounds * (DOT_MACS / 32));
}

PLAIN_CODE void clb_peaks_fill_avx512(struct clb_peaks *p)
{
    *p = (struct clb_peaks){
        .dot = { { "vpdpbusd zmm", DOT_MACS, dot } },
        .n_dot = 1,
        .fma = { "vfmadd zmm", FMA_MACS, peak_fma },
        .read = peak_read,
    };
}
