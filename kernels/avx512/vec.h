/* vec.h - the vector words of kernels/wide for AVX-512: 16 lanes of f32 (kernels/avx2/vec.h
 * says what each means). */
#ifndef CLB_KERNELS_AVX512_VEC_H
#define CLB_KERNELS_AVX512_VEC_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define VEC_FN static inline __attribute__((always_inline, unused))

enum { LANES = 16, VECS = 1 };
typedef __m512 vf;
typedef __mmask16 vmask;

VEC_FN vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
VEC_FN vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
VEC_FN vf vf_iota(void)
{
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
VEC_FN vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
VEC_FN void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}
VEC_FN __mmask16 vf_first(uint32_t n)
{
    return (__mmask16)((1u << n) - 1);
}
VEC_FN vf vf_load_n(const float *p, uint32_t n)
{
    return _mm512_maskz_loadu_ps(vf_first(n), p);
}
VEC_FN void vf_store_n(float *p, uint32_t n, vf x)
{
    _mm512_mask_storeu_ps(p, vf_first(n), x);
}
VEC_FN vf vf_keep_n(vf x, uint32_t n)
{
    return _mm512_maskz_mov_ps(vf_first(n), x);
}

VEC_FN vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
VEC_FN vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
VEC_FN vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
VEC_FN vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
VEC_FN vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
VEC_FN vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
VEC_FN vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
VEC_FN vf vf_rint(vf x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
VEC_FN vf vf_neg(vf x)
{
    return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
}
VEC_FN vf vf_abs(vf x)
{
    return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x);
}
VEC_FN vf vf_copysign(vf magnitude, vf sign)
{
    return _mm512_or_ps(vf_abs(magnitude), _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
}
VEC_FN vmask vf_less(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
VEC_FN vf vf_select(vmask m, vf yes, vf no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}
VEC_FN vf vf_scale2(vf x, vf n)
{
    __m512i shift = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), shift));
}

VEC_FN vf vf_from_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
VEC_FN void vf_to_f16(uint16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
VEC_FN vf vf_from_bf16(const uint16_t *p)
{
    __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
VEC_FN vf vf_from_i8(const int8_t *p)
{
    __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x));
}
VEC_FN vf vf_from_e8m0(const uint8_t *p)
{
    __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m512i one = _mm512_set1_epi32(1);
    __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
    __m512i tiny = _mm512_slli_epi32(_mm512_add_epi32(e, one), 21);
    return _mm512_castsi512_ps(_mm512_max_epi32(normal, tiny));
}
VEC_FN vf vf_from_f32_step(const uint8_t *p, int i)
{
    (void)i;
    return _mm512_load_ps((const void *)p);
}
VEC_FN vf vf_from_bf16_step(const uint8_t *p, int i)
{
    __m512i x = _mm512_load_si512((const void *)p);
    x = i ? _mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000)) : _mm512_slli_epi32(x, 16);
    return _mm512_castsi512_ps(x);
}
VEC_FN vf vf_from_f16_step(const uint8_t *p, int i)
{
    __m512i x = _mm512_load_si512((const void *)p);
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(i ? _mm512_srli_epi32(x, 16) : x));
}
VEC_FN void vf_split_pairs(vf *even, vf *odd, const float *p)
{
    const __m512i index =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 16);
    *even = _mm512_permutex2var_ps(a, index, b);
    *odd = _mm512_permutex2var_ps(a, _mm512_add_epi32(index, _mm512_set1_epi32(1)), b);
}
VEC_FN void vf_join_pairs(float *p, vf even, vf odd)
{
    const __m512i index = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(index, _mm512_set1_epi32(8));
    _mm512_storeu_ps(p, _mm512_permutex2var_ps(even, index, odd));
    _mm512_storeu_ps(p + 16, _mm512_permutex2var_ps(even, high, odd));
}

VEC_FN float vf_tree(const vf lane[VECS])
{
    __m256 s = _mm256_add_ps(_mm512_castps512_ps256(lane[0]), _mm512_extractf32x8_ps(lane[0], 1));
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
VEC_FN float vf_largest(vf x)
{
    __m256 s = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}

#endif
