/* peak_avx2.c - peak loops of AVX2. Without VNNI int8 is multiplied exactly as bytes with the sign
 * moved to one side (by a sign instruction, or by a shuffle that picks a or -a), or widened to 16
 * bits. All need two multiplications for 32 products; which way is the fastest depends on what
 * else the ports that multiply have to do. */
#include "kernels/avx2/peak_words.h"

enum { DOT_CHAINS = 8 };

/* -- maddubs on magnitudes: a vector is 32 values -- */

struct operand_bytes {
    vi magnitude, value;
};
VEC_FN struct operand_bytes bytes_w(const int8_t *w)
{
    vi x = vi_load(w);
    return (struct operand_bytes){ _mm256_abs_epi8(x), x };
}
VEC_FN vi bytes_step(vi acc, struct operand_bytes w, vi a)
{
    vi pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(a, w.value));
    return vi_add(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#define DOT       dot_bytes
#define WIDTH     32
#define operand   operand_bytes
#define operand_w bytes_w
#define operand_a vi_load
#define dot_step  bytes_step
#include "kernels/wide/peak_dot.inc"
#undef DOT
#undef WIDTH
#undef operand
#undef operand_w
#undef operand_a
#undef dot_step

/* -- the same with signs from a table: 16 values, each of them twice -- */

struct operand_picks {
    vi magnitude, pick; /* pick: 0 to 7 of the lane's a, 8 to 15 of its -a */
};
VEC_FN vi twice(const int8_t *p)
{
    int64_t half[2];
    memcpy(half, p, sizeof half);
    return _mm256_set_epi64x(half[1], half[1], half[0], half[0]);
}
VEC_FN struct operand_picks picks_w(const int8_t *w)
{
    const vi index = _mm256_set1_epi64x(0x0706050403020100), eight = _mm256_set1_epi8(8);
    vi x = twice(w), negative = _mm256_cmpgt_epi8(vi_zero(), x);
    return (struct operand_picks){ _mm256_abs_epi8(x),
                                   _mm256_or_si256(index, _mm256_and_si256(negative, eight)) };
}
VEC_FN vi picks_a(const int8_t *a)
{
    vi x = twice(a);
    return _mm256_unpacklo_epi64(x, _mm256_sub_epi8(vi_zero(), x));
}
VEC_FN vi picks_step(vi acc, struct operand_picks w, vi a)
{
    vi pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_shuffle_epi8(a, w.pick));
    return vi_add(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#define DOT       dot_picks
#define WIDTH     16
#define operand   operand_picks
#define operand_w picks_w
#define operand_a picks_a
#define dot_step  picks_step
#include "kernels/wide/peak_dot.inc"
#undef DOT
#undef WIDTH
#undef operand
#undef operand_w
#undef operand_a
#undef dot_step

/* -- madd on 16 bits: a vector is 16 values -- */

struct operand_words {
    vi value;
};
VEC_FN vi words_a(const int8_t *a)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)a));
}
VEC_FN struct operand_words words_w(const int8_t *w)
{
    return (struct operand_words){ words_a(w) };
}
VEC_FN vi words_step(vi acc, struct operand_words w, vi a)
{
    return vi_add(acc, _mm256_madd_epi16(w.value, a));
}

#define DOT       dot_words
#define WIDTH     16
#define operand   operand_words
#define operand_w words_w
#define operand_a words_a
#define dot_step  words_step
#include "kernels/wide/peak_dot.inc"

#include "kernels/wide/peak.inc"

PLAIN_CODE void clb_peaks_fill_avx2(struct clb_peaks *p)
{
    *p = (struct clb_peaks){
        .dot = { { "vpsignb, vpmaddubsw, vpmaddwd", PEAK_STEPS * DOT_CHAINS * 32, dot_bytes },
                 { "vpshufb, vpmaddubsw, vpmaddwd", PEAK_STEPS * DOT_CHAINS * 32, dot_picks },
                 { "vpmaddwd", PEAK_STEPS * DOT_CHAINS * 16, dot_words } },
        .n_dot = 3,
        .fma = { "vfmadd ymm", FMA_MACS, peak_fma },
        .read = peak_read,
    };
}
