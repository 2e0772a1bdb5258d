/* vec.h - the vector words of kernels/wide for AVX2: 8 lanes of f32. kernels/avx512/vec.h has the
 * same words. Comparisons and selections follow the x86 rules that the scalar kernels spell out:
 * min(a, b) is a < b ? a : b, so a NaN in b stays and one in a goes. */
#ifndef CLB_KERNELS_AVX2_VEC_H
#define CLB_KERNELS_AVX2_VEC_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define VEC_FN static inline __attribute__((always_inline, unused))

enum { LANES = 8, VECS = 2 }; /* vectors per 16 lanes */
typedef __m256 vf;
typedef __m256 vmask;

VEC_FN vf vf_zero(void)
{
    return _mm256_setzero_ps();
}
VEC_FN vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}
VEC_FN vf vf_iota(void) /* 0, 1, 2, ... */
{
    return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
}
VEC_FN vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
VEC_FN void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}

/* The first n lanes, 0 <= n <= 8. */
VEC_FN __m256i vf_first(uint32_t n)
{
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), index);
}
VEC_FN vf vf_load_n(const float *p, uint32_t n)
{
    return _mm256_maskload_ps(p, vf_first(n)); /* other lanes are 0 */
}
VEC_FN void vf_store_n(float *p, uint32_t n, vf x)
{
    _mm256_maskstore_ps(p, vf_first(n), x);
}
VEC_FN vf vf_keep_n(vf x, uint32_t n)
{
    return _mm256_and_ps(x, _mm256_castsi256_ps(vf_first(n)));
}

VEC_FN vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
VEC_FN vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
VEC_FN vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
VEC_FN vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
VEC_FN vf vf_fma(vf a, vf b, vf c) /* a b + c */
{
    return _mm256_fmadd_ps(a, b, c);
}
VEC_FN vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
VEC_FN vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
VEC_FN vf vf_rint(vf x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VEC_FN vf vf_neg(vf x)
{
    return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
}
VEC_FN vf vf_abs(vf x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}
VEC_FN vf vf_copysign(vf magnitude, vf sign)
{
    return _mm256_or_ps(vf_abs(magnitude), _mm256_and_ps(sign, _mm256_set1_ps(-0.0f)));
}
VEC_FN vmask vf_less(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
VEC_FN vf vf_select(vmask m, vf yes, vf no)
{
    return _mm256_blendv_ps(no, yes, m);
}
/* x 2^n for integral n, by adding to the exponent field */
VEC_FN vf vf_scale2(vf x, vf n)
{
    __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), shift));
}

VEC_FN vf vf_from_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
VEC_FN void vf_to_f16(uint16_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
VEC_FN vf vf_from_bf16(const uint16_t *p)
{
    __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
VEC_FN vf vf_from_i8(const int8_t *p)
{
    __m128i x = _mm_loadl_epi64((const __m128i *)(const void *)p);
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x));
}
/* 2^(e-128) for 8 codes; e below 2 gives subnormal numbers: (e+1) 2^-128, larger than (e-1) <<
 * 23. */
VEC_FN vf vf_from_e8m0(const uint8_t *p)
{
    __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
    __m256i one = _mm256_set1_epi32(1);
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    __m256i tiny = _mm256_slli_epi32(_mm256_add_epi32(e, one), 21);
    return _mm256_castsi256_ps(_mm256_max_epi32(normal, tiny));
}
/* Input i of the rows in one vector of a step: 64-byte aligned; f32 has one, the others a pair in
 * each lane. */
VEC_FN vf vf_from_f32_step(const uint8_t *p, int i)
{
    (void)i;
    return _mm256_load_ps((const float *)(const void *)p);
}
VEC_FN vf vf_from_bf16_step(const uint8_t *p, int i)
{
    __m256i x = _mm256_load_si256((const __m256i *)(const void *)p);
    x = i ? _mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000)) : _mm256_slli_epi32(x, 16);
    return _mm256_castsi256_ps(x);
}
VEC_FN vf vf_from_f16_step(const uint8_t *p, int i)
{
    const __m256i split = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    __m256i x = _mm256_load_si256((const __m256i *)(const void *)p);
    x = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(x, split), 0xd8); /* the same for both i */
    return _mm256_cvtph_ps(i ? _mm256_extracti128_si256(x, 1) : _mm256_castsi256_si128(x));
}
/* Even and odd elements of 2 LANES floats, and back. */
VEC_FN void vf_split_pairs(vf *even, vf *odd, const float *p)
{
    __m256 a = _mm256_loadu_ps(p), b = _mm256_loadu_ps(p + 8);
    __m256 x = _mm256_permute2f128_ps(a, b, 0x20), y = _mm256_permute2f128_ps(a, b, 0x31);
    *even = _mm256_shuffle_ps(x, y, 0x88);
    *odd = _mm256_shuffle_ps(x, y, 0xdd);
}
VEC_FN void vf_join_pairs(float *p, vf even, vf odd)
{
    __m256 x = _mm256_unpacklo_ps(even, odd), y = _mm256_unpackhi_ps(even, odd);
    _mm256_storeu_ps(p, _mm256_permute2f128_ps(x, y, 0x20));
    _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(x, y, 0x31));
}

/* The tree over 16 lanes. */
VEC_FN float vf_tree(const vf lane[VECS])
{
    __m256 s = _mm256_add_ps(lane[0], lane[1]);
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
/* The largest lane; no lane is NaN. */
VEC_FN float vf_largest(vf x)
{
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}

#endif
