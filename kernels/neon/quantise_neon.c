/* quantise_neon.c - one row of activations to a record. The bound of +-127 needs no clamp: x times
 * the rounded 127 / amax stays below 127.5. */
#include <math.h>

#include "kernels/neon/neon.h"
#include "kernels/neon/vec.h"
#include "lib/base/half.h"

/* 16 values of four vectors, rounded half to even, as signed bytes */
VEC_FN int8x16_t round_bytes(const vf x[4], vf inverse)
{
    int32x4_t q[4];

    for (int i = 0; i < 4; i++)
        q[i] = vcvtnq_s32_f32(vf_mul(x[i], inverse));
    int16x8_t low = vcombine_s16(vmovn_s32(q[0]), vmovn_s32(q[1]));
    int16x8_t high = vcombine_s16(vmovn_s32(q[2]), vmovn_s32(q[3]));
    return vcombine_s8(vmovn_s16(low), vmovn_s16(high));
}

VEC_FN void quantise_group(int8_t *a, struct clb_group_info *info,
                           const vf x[CLB_GROUP / LANES])
{
    uint32x4_t bits = vdupq_n_u32(0);

    /* As integers, magnitudes sort like floats, infinity and NaN last. */
    for (int i = 0; i < 8; i++)
        bits = vmaxq_u32(bits, vreinterpretq_u32_f32(vf_abs(x[i])));
    uint32_t most = vmaxvq_u32(bits);
    float amax = clb_f32_from_bits(most), inverse = 127.0f / amax;
    bool finite = most < 0x7f800000u;

    if (!finite || !(inverse < INFINITY)) {
        memset(a, 0, CLB_GROUP);
        info->scale = finite ? 0.0f : NAN;
        info->minus128sum = 0;
        return;
    }
    int8x16_t low = round_bytes(x, vf_set1(inverse)), high = round_bytes(x + 4, vf_set1(inverse));
    int32x4_t sum = vdotq_s32(vdupq_n_s32(0), low, vdupq_n_s8(1));
    sum = vdotq_s32(sum, high, vdupq_n_s8(1));
    vst1q_s8(a, low);
    vst1q_s8(a + 16, high);
    info->scale = amax / 127.0f;
    info->minus128sum = -128 * vaddvq_s32(sum);
}

#include "kernels/wide/quantise.inc"

PLAIN_CODE void clb_fill_quantise_neon(struct clb_kernels *k)
{
    k->quantise = quantise;
}
