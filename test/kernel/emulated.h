/* emulated.h - lets kernels/avx512 and the AVX-VNNI kernels run on a machine that has only
 * AVX2: SIMDe (package libsimde-dev) says in portable C what each instruction does. What SIMDe
 * 0.7.4 lacks is written out here, lane by lane. The compiler includes this file before the
 * kernel's source. */
#ifndef TEST_KERNEL_EMULATED_H
#define TEST_KERNEL_EMULATED_H

#include <immintrin.h> /* first, so that the kernels' own inclusion does nothing */
#include <math.h>
#include <string.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wundef"
#include <simde/x86/avx512.h>
#pragma GCC diagnostic pop

#include "lib/base/half.h"

/* Not inlined: kernels use some of them a hundred times, and the compiler would take minutes. */
#define EMULATED static __attribute__((noinline, unused))

/* -- 512 bits ------------------------------------------------------------------------------ */

EMULATED simde__m512i emulated_cvtps_epi32(simde__m512 x)
{
    float f[16];
    int32_t i[16];
    memcpy(f, &x, sizeof f);
    for (int l = 0; l < 16; l++) /* round to nearest even; out of range or NaN: the smallest int */
        i[l] = fabsf(f[l]) < 0x1p31f ? (int32_t)lrintf(f[l]) : INT32_MIN;
    return simde_mm512_loadu_si512(i);
}
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32 emulated_cvtps_epi32

EMULATED simde__m512 emulated_cvtepi32_ps(simde__m512i x)
{
    int32_t i[16];
    float f[16];
    memcpy(i, &x, sizeof i);
    for (int l = 0; l < 16; l++)
        f[l] = (float)i[l];
    return simde_mm512_loadu_ps(f);
}
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps emulated_cvtepi32_ps

EMULATED simde__m512 emulated_cvtph_ps(__m256i x)
{
    uint16_t h[16];
    float f[16];
    memcpy(h, &x, sizeof h);
    for (int l = 0; l < 16; l++)
        f[l] = clb_f16_to_f32(h[l]);
    return simde_mm512_loadu_ps(f);
}
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps emulated_cvtph_ps

#define EMULATED_NARROW(name, from, element, narrow)                                       \
    EMULATED __m256i emulated_##name(from x)                                               \
    {                                                                                      \
        element e[16];                                                                     \
        uint16_t h[16];                                                                    \
        __m256i out;                                                                       \
        memcpy(e, &x, sizeof e);                                                           \
        for (int l = 0; l < 16; l++)                                                       \
            h[l] = (uint16_t)narrow(e[l]);                                                 \
        memcpy(&out, h, sizeof out);                                                       \
        return out;                                                                        \
    }
EMULATED_NARROW(cvtps_ph, simde__m512, float, clb_f32_to_f16)
EMULATED_NARROW(cvtepi32_epi16, simde__m512i, uint32_t, )
#undef _mm512_cvtps_ph
#undef _mm512_cvtepi32_epi16
#define _mm512_cvtps_ph(x, rounding) emulated_cvtps_ph(x) /* to nearest even */
#define _mm512_cvtepi32_epi16        emulated_cvtepi32_epi16

#define EMULATED_WIDEN(name, from, element)                                                \
    EMULATED simde__m512i emulated_##name(from x)                                          \
    {                                                                                      \
        element e[sizeof x / sizeof(element)];                                             \
        int32_t i[16];                                                                     \
        memcpy(e, &x, sizeof e);                                                           \
        for (int l = 0; l < 16; l++)                                                       \
            i[l] = e[l];                                                                   \
        return simde_mm512_loadu_si512(i);                                                 \
    }
EMULATED_WIDEN(cvtepi8_epi32, __m128i, int8_t)
EMULATED_WIDEN(cvtepu8_epi32, __m128i, uint8_t)
EMULATED_WIDEN(cvtepu16_epi32, __m256i, uint16_t)
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepu8_epi32
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepi8_epi32  emulated_cvtepi8_epi32
#define _mm512_cvtepu8_epi32  emulated_cvtepu8_epi32
#define _mm512_cvtepu16_epi32 emulated_cvtepu16_epi32

/* A lane that is masked out touches no memory. */
EMULATED simde__m512 emulated_maskz_loadu_ps(unsigned mask, const float *p)
{
    float f[16] = { 0 };
    for (int l = 0; l < 16; l++)
        if (mask >> l & 1)
            f[l] = p[l];
    return simde_mm512_loadu_ps(f);
}
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps emulated_maskz_loadu_ps

EMULATED void emulated_mask_storeu_ps(float *p, unsigned mask, simde__m512 x)
{
    float f[16];
    memcpy(f, &x, sizeof f);
    for (int l = 0; l < 16; l++)
        if (mask >> l & 1)
            p[l] = f[l];
}
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps emulated_mask_storeu_ps

EMULATED __m256 emulated_extractf32x8_ps(simde__m512 x, int half)
{
    __m256 out;
    memcpy(&out, (const char *)&x + 32 * half, sizeof out);
    return out;
}
#undef _mm512_extractf32x8_ps
#define _mm512_extractf32x8_ps emulated_extractf32x8_ps

EMULATED simde__m512i emulated_dpbusd(simde__m512i acc, simde__m512i u, simde__m512i s)
{
    return simde_mm512_dpbusd_epi32(acc, u, s);
}
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32 emulated_dpbusd

EMULATED simde__m512i emulated_shuffle_epi8(simde__m512i x, simde__m512i index)
{
    return simde_mm512_shuffle_epi8(x, index);
}
#undef _mm512_shuffle_epi8
#define _mm512_shuffle_epi8 emulated_shuffle_epi8

/* -- AVX-VNNI ------------------------------------------------------------------------------ */

EMULATED __m256i emulated_dpbusd_avx(__m256i acc, __m256i u, __m256i s)
{
    uint8_t a[32];
    int8_t b[32];
    int32_t c[8];
    memcpy(a, &u, sizeof a);
    memcpy(b, &s, sizeof b);
    memcpy(c, &acc, sizeof c);
    for (int l = 0; l < 32; l++)
        c[l / 4] += a[l] * b[l];
    memcpy(&acc, c, sizeof c);
    return acc;
}
#undef _mm256_dpbusd_avx_epi32
#define _mm256_dpbusd_avx_epi32 emulated_dpbusd_avx

/* The fill functions under names of their own, beside the real ones. */
#define clb_kernels_fill_avx512      clb_emulated_fill_avx512
#define clb_kernels_fill_avxvnni     clb_emulated_fill_avxvnni
#define clb_peaks_fill_avx512        clb_emulated_peaks_avx512
#define clb_peaks_fill_avxvnni       clb_emulated_peaks_avxvnni
#define clb_fill_rows_avx512         clb_emulated_fill_rows_avx512
#define clb_fill_attn_avx512         clb_emulated_fill_attn_avx512
#define clb_fill_matmul_float_avx512 clb_emulated_fill_matmul_float_avx512
#define clb_fill_matmul_int_avx512   clb_emulated_fill_matmul_int_avx512

#endif
