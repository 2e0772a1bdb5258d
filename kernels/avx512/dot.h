/* dot.h - integer products for AVX-512 VNNI: 16 rows by 4 inputs at a time (the same words as
 * kernels/avx2/dot.h). dpbusd multiplies unsigned by signed bytes and adds four products to 32
 * bits without saturation, so values stored with an offset of 128 are used as they are and
 * sums start at -128 * sum(a). */
#ifndef CLB_KERNELS_AVX512_DOT_H
#define CLB_KERNELS_AVX512_DOT_H

#include "kernels/avx512/vec.h"
#include "kernels/kernels.h"

typedef __m512i vi;
struct weights {
    vi offset; /* value + 128 */
};

VEC_FN vi vi_four(const int8_t *a)
{
    int32_t four;
    memcpy(&four, a, 4);
    return _mm512_set1_epi32(four);
}
VEC_FN vf vf_from_i32(vi x)
{
    return _mm512_cvtepi32_ps(x);
}

VEC_FN vi dot_start(const struct clb_group_info *info)
{
    return _mm512_set1_epi32(info->minus128sum);
}
VEC_FN struct weights int8_weights(const uint8_t *p)
{
    return (struct weights){ _mm512_load_si512((const void *)p) };
}
VEC_FN vi dot_add(vi acc, struct weights w, vi a)
{
    return _mm512_dpbusd_epi32(acc, w.offset, a);
}
VEC_FN vi dot_add_small(vi acc, struct weights w, vi a)
{
    return dot_add(acc, w, a);
}
VEC_FN vi dot_add_one(vi acc, struct weights w, vi a) /* one row of 4-bit weights */
{
    return dot_add(acc, w, a);
}
VEC_FN vi dot_add_small_one(vi acc, struct weights w, vi a)
{
    return dot_add(acc, w, a);
}
VEC_FN vi dot_end(vi acc)
{
    return acc;
}
VEC_FN vi dot_end_small(vi acc)
{
    return acc;
}

struct book {
    vi offset;
};
VEC_FN struct book book_load(const int8_t *values)
{
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)values);
    v = _mm_xor_si128(v, _mm_set1_epi8((char)0x80));
    return (struct book){ _mm512_broadcast_i32x4(v) };
}
VEC_FN void book_weights(struct weights *low, struct weights *high, const struct book *b,
                         const uint8_t *p)
{
    vi x = _mm512_load_si512((const void *)p), nibble = _mm512_set1_epi8(15);
    low->offset = _mm512_shuffle_epi8(b->offset, _mm512_and_si512(x, nibble));
    high->offset =
        _mm512_shuffle_epi8(b->offset, _mm512_and_si512(_mm512_srli_epi16(x, 4), nibble));
}

#endif
