/* vec.h - the vector words of kernels/wide for NEON: 4 lanes of f32 (kernels/avx2/vec.h says what
 * each means). Comparisons and selections follow the x86 rules: min(a, b) is a < b ? a : b, which
 * the instructions of that name do not do for NaN and for zeros of both signs. */
#ifndef CLB_KERNELS_NEON_VEC_H
#define CLB_KERNELS_NEON_VEC_H

#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define VEC_FN static inline __attribute__((always_inline, unused))

enum { LANES = 4, VECS = 4 };
typedef float32x4_t vf;
typedef uint32x4_t vmask;

VEC_FN vf vf_zero(void)
{
    return vdupq_n_f32(0.0f);
}
VEC_FN vf vf_set1(float x)
{
    return vdupq_n_f32(x);
}
VEC_FN vf vf_iota(void)
{
    return (vf){ 0, 1, 2, 3 };
}
VEC_FN vf vf_load(const float *p)
{
    return vld1q_f32(p);
}
VEC_FN void vf_store(float *p, vf x)
{
    vst1q_f32(p, x);
}

/* The first n lanes, 0 <= n <= 4. */
VEC_FN vmask vf_first(uint32_t n)
{
    return vcgtq_u32(vdupq_n_u32(n), (uint32x4_t){ 0, 1, 2, 3 });
}
VEC_FN vf vf_load_n(const float *p, uint32_t n)
{
    vf x = vf_zero();
    if (n > 0)
        x = vld1q_lane_f32(p, x, 0);
    if (n > 1)
        x = vld1q_lane_f32(p + 1, x, 1);
    if (n > 2)
        x = vld1q_lane_f32(p + 2, x, 2);
    if (n > 3)
        x = vld1q_lane_f32(p + 3, x, 3);
    return x;
}
VEC_FN void vf_store_n(float *p, uint32_t n, vf x)
{
    if (n > 0)
        vst1q_lane_f32(p, x, 0);
    if (n > 1)
        vst1q_lane_f32(p + 1, x, 1);
    if (n > 2)
        vst1q_lane_f32(p + 2, x, 2);
    if (n > 3)
        vst1q_lane_f32(p + 3, x, 3);
}
VEC_FN vf vf_keep_n(vf x, uint32_t n)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vf_first(n)));
}

VEC_FN vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}
VEC_FN vf vf_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}
VEC_FN vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}
VEC_FN vf vf_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}
VEC_FN vf vf_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}
VEC_FN vmask vf_less(vf a, vf b)
{
    return vcltq_f32(a, b);
}
VEC_FN vf vf_select(vmask m, vf yes, vf no)
{
    return vbslq_f32(m, yes, no);
}
VEC_FN vf vf_min(vf a, vf b)
{
    return vf_select(vf_less(a, b), a, b);
}
VEC_FN vf vf_max(vf a, vf b)
{
    return vf_select(vf_less(b, a), a, b);
}
VEC_FN vf vf_rint(vf x)
{
    return vrndnq_f32(x);
}
VEC_FN vf vf_neg(vf x)
{
    return vnegq_f32(x);
}
VEC_FN vf vf_abs(vf x)
{
    return vabsq_f32(x);
}
VEC_FN vf vf_copysign(vf magnitude, vf sign)
{
    return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude);
}
/* Beyond the range of integers the conversion gives other numbers than on x86; vf_exp selects
 * them away. */
VEC_FN vf vf_scale2(vf x, vf n)
{
    int32x4_t shift = vshlq_n_s32(vcvtnq_s32_f32(n), 23);
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x), shift));
}

VEC_FN vf vf_from_f16(const void *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
VEC_FN void vf_to_f16(uint16_t *p, vf x)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}
VEC_FN vf vf_from_bf16(const uint16_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
/* Four bytes, in the low half of a short register: one load. */
VEC_FN uint64x1_t load_four(const void *p)
{
    uint32_t four;
    memcpy(&four, p, 4);
    return vcreate_u64(four);
}
VEC_FN vf vf_from_i8(const int8_t *p)
{
    int8x8_t x = vreinterpret_s8_u64(load_four(p));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(x))));
}
VEC_FN vf vf_from_e8m0(const uint8_t *p)
{
    uint8x8_t x = vreinterpret_u8_u64(load_four(p));
    int32x4_t e = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(x))));
    int32x4_t one = vdupq_n_s32(1);
    int32x4_t normal = vshlq_n_s32(vsubq_s32(e, one), 23);
    int32x4_t tiny = vshlq_n_s32(vaddq_s32(e, one), 21);
    return vreinterpretq_f32_s32(vmaxq_s32(normal, tiny));
}
VEC_FN vf vf_from_f32_step(const uint8_t *p, int i)
{
    (void)i;
    return vld1q_f32((const float *)(const void *)p);
}
VEC_FN vf vf_from_bf16_step(const uint8_t *p, int i)
{
    uint32x4_t x = vld1q_u32((const uint32_t *)(const void *)p);
    x = i ? vandq_u32(x, vdupq_n_u32(0xffff0000u)) : vshlq_n_u32(x, 16);
    return vreinterpretq_f32_u32(x);
}
VEC_FN vf vf_from_f16_step(const uint8_t *p, int i)
{
    uint32x4_t x = vld1q_u32((const uint32_t *)(const void *)p);
    return vcvt_f32_f16(vreinterpret_f16_u16(i ? vshrn_n_u32(x, 16) : vmovn_u32(x)));
}
VEC_FN void vf_split_pairs(vf *even, vf *odd, const float *p)
{
    float32x4x2_t x = vld2q_f32(p);
    *even = x.val[0];
    *odd = x.val[1];
}
VEC_FN void vf_join_pairs(float *p, vf even, vf odd)
{
    float32x4x2_t x = { { even, odd } };
    vst2q_f32(p, x);
}

/* The tree over 16 lanes: 8 apart, 4 apart, 2 apart, 1 apart. */
VEC_FN float vf_tree(const vf lane[VECS])
{
    vf s = vaddq_f32(vaddq_f32(lane[0], lane[2]), vaddq_f32(lane[1], lane[3]));
    float32x2_t h = vadd_f32(vget_low_f32(s), vget_high_f32(s));
    return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}
/* The largest lane; no lane is NaN. Of two zeros the later lane's stays, as on x86. */
VEC_FN float vf_largest(vf x)
{
    float32x2_t a = vget_low_f32(x), b = vget_high_f32(x);
    float32x2_t h = vbsl_f32(vclt_f32(b, a), a, b);
    float low = vget_lane_f32(h, 0), high = vget_lane_f32(h, 1);
    return low > high ? low : high;
}

#endif
