/* dot.h - integer products for AVX2: 8 rows by 4 inputs at a time.
 *
 * maddubs multiplies unsigned by signed bytes and saturates sums of pairs to 16 bits. With |w|
 * as the unsigned operand and a carrying the sign of w a pair is at most 2 * 128 * 127 =
 * 32512: exact for any weights, because activations are never -128. kernels/avx512 has the same
 * words for VNNI. */
#ifndef CLB_KERNELS_AVX2_DOT_H
#define CLB_KERNELS_AVX2_DOT_H

#include "kernels/avx2/vec.h"
#include "kernels/kernels.h"

typedef __m256i vi;
struct weights {
    vi magnitude, value;
};

/* Four activations in every lane. */
VEC_FN vi vi_four(const int8_t *a)
{
    int32_t four;
    memcpy(&four, a, 4);
    return _mm256_set1_epi32(four);
}
VEC_FN vf vf_from_i32(vi x)
{
    return _mm256_cvtepi32_ps(x);
}

VEC_FN vi dot_start(const struct clb_group_info *info)
{
    (void)info; /* values are signed here: no offset to take back */
    return _mm256_setzero_si256();
}
VEC_FN struct weights int8_weights(const uint8_t *p)
{
    vi x = _mm256_load_si256((const __m256i *)(const void *)p);
    x = _mm256_xor_si256(x, _mm256_set1_epi8((char)0x80));
    return (struct weights){ _mm256_abs_epi8(x), x };
}
/* Keeps the compiler from collecting all products of a group before it adds any: there are only 16
 * registers. */
VEC_FN vi in_order(vi acc)
{
    __asm__("" : "+x"(acc));
    return acc;
}
VEC_FN vi dot_add(vi acc, struct weights w, vi a)
{
    vi pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(a, w.value));
    return in_order(_mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))));
}
/* For books of small values (mxfp4: 12): the 16 products of a 16-bit lane in a group of 32 inputs
 * reach 16 * 12 * 127 = 24384, so their sum is widened once per group. */
VEC_FN vi dot_add_small(vi acc, struct weights w, vi a)
{
    vi pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(a, w.value));
    return in_order(_mm256_add_epi16(acc, pairs));
}
/* The same for one row of 4-bit weights: here the sign goes to the weights, which a book promises
 * not to be -128. Then magnitudes are those of the activations, there once for all vectors of
 * weights, and need not be looked up. */
VEC_FN vi dot_add_one(vi acc, struct weights w, vi a)
{
    vi pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(w.value, a));
    return in_order(_mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))));
}
VEC_FN vi dot_add_small_one(vi acc, struct weights w, vi a)
{
    vi pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(w.value, a));
    return in_order(_mm256_add_epi16(acc, pairs));
}
/* A group of a single row of activations, for weights as they are stored (block_row.inc). */
struct row_group {
    int8_t magnitude[CLB_GROUP];
    int8_t flip[CLB_GROUP]; /* of weights: their offset, and all bits where a is negative */
} __attribute__((aligned(CLB_GROUP)));
/* Returns what sums start from: the magnitudes of all negative activations. */
VEC_FN vi row_group(struct row_group *x, const int8_t *a)
{
    vi value = _mm256_loadu_si256((const __m256i *)(const void *)a);
    vi magnitude = _mm256_abs_epi8(value);
    vi negative = _mm256_cmpgt_epi8(_mm256_setzero_si256(), value);
    _mm256_store_si256((__m256i *)(void *)x->magnitude, magnitude);
    _mm256_store_si256((__m256i *)(void *)x->flip,
                       _mm256_xor_si256(negative, _mm256_set1_epi8((char)0x80)));
    vi sums = _mm256_sad_epu8(_mm256_and_si256(magnitude, negative), _mm256_setzero_si256());
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    return _mm256_broadcastd_epi32(_mm_add_epi32(h, _mm_unpackhi_epi64(h, h)));
}
/* w: 32 bytes of weights; magnitude and flip of their four inputs, in every lane. */
VEC_FN vi dot_add_flipped(vi acc, vi magnitude, vi flip, const uint8_t *w)
{
    vi x = _mm256_xor_si256(flip, _mm256_load_si256((const __m256i *)(const void *)w));
    vi pairs = _mm256_maddubs_epi16(magnitude, x);
    return in_order(_mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))));
}
VEC_FN vi dot_end(vi acc)
{
    return acc;
}
VEC_FN vi dot_end_small(vi acc)
{
    return _mm256_madd_epi16(acc, _mm256_set1_epi16(1));
}

/* 16 values, found by code. */
struct book {
    vi magnitude, value;
};
VEC_FN struct book book_load(const int8_t *values)
{
    vi v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)values));
    return (struct book){ _mm256_abs_epi8(v), v };
}
/* The low and the high nibbles of 32 bytes. */
VEC_FN void book_weights(struct weights *low, struct weights *high, const struct book *b,
                         const uint8_t *p)
{
    vi x = _mm256_load_si256((const __m256i *)(const void *)p), nibble = _mm256_set1_epi8(15);
    vi l = _mm256_and_si256(x, nibble), h = _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble);
    low->magnitude = _mm256_shuffle_epi8(b->magnitude, l);
    low->value = _mm256_shuffle_epi8(b->value, l);
    high->magnitude = _mm256_shuffle_epi8(b->magnitude, h);
    high->value = _mm256_shuffle_epi8(b->value, h);
}

#endif
