/* half.h - 16-bit floats, by bit operations only (same result on every machine). */
#ifndef CLB_BASE_HALF_H
#define CLB_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline float clb_f32_from_bits(uint32_t b)
{
    float f;
    memcpy(&f, &b, 4);
    return f;
}
static inline uint32_t clb_f32_bits(float f)
{
    uint32_t b;
    memcpy(&b, &f, 4);
    return b;
}

static inline float clb_bf16_to_f32(uint16_t h)
{
    return clb_f32_from_bits((uint32_t)h << 16);
}

/* Round to nearest, ties to even; NaN stays NaN. */
static inline uint16_t clb_f32_to_bf16(float f)
{
    uint32_t b = clb_f32_bits(f);
    if ((b & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(b >> 16 | 0x40);
    return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

static inline float clb_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3ff;
    if (e == 31)
        return clb_f32_from_bits(sign | 0x7f800000u | m << 13);
    if (e == 0) { /* zero or subnormal: m * 2^-24 is exact */
        float f = (float)m * 0x1p-24f;
        return clb_f32_from_bits(clb_f32_bits(f) | sign);
    }
    return clb_f32_from_bits(sign | (e + 112) << 23 | m << 13);
}

/* Round to nearest, ties to even; overflow becomes infinity, subnormals are kept. */
static inline uint16_t clb_f32_to_f16(float f)
{
    uint32_t b = clb_f32_bits(f), sign = b >> 16 & 0x8000, a = b & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (a >= 0x477ff000u) /* 65520 and more */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000u) { /* below 2^-14: a multiple of 2^-24, rounded by the addition */
        float r = clb_f32_from_bits(a) + 0.5f; /* ulp of 0.5 is 2^-24 */
        return (uint16_t)(sign | (clb_f32_bits(r) - 0x3f000000u));
    }
    uint32_t r = a + 0xfff + (a >> 13 & 1);
    return (uint16_t)(sign | ((r - 0x38000000u) >> 13));
}

/* The same, but beyond the range of a half the largest half, not infinity. */
#define CLB_F16_MOST 65504.0f
static inline uint16_t clb_f32_to_f16_within(float f)
{
    return clb_f32_to_f16(f > CLB_F16_MOST    ? CLB_F16_MOST
                          : f < -CLB_F16_MOST ? -CLB_F16_MOST
                                              : f);
}

#endif
