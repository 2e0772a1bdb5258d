/* mm.h - words for products of 2 x 8 by 8 x 2 bytes. */
#ifndef CLB_KERNELS_NEON_MM_H
#define CLB_KERNELS_NEON_MM_H

#include "kernels/kernels.h"
#include "kernels/neon/dot.h"

/* Two steps of one vector, sorted: 8 inputs of rows 0 and 1, 8 inputs of rows 2 and 3. */
VEC_FN uint8x16x2_t two_steps(const uint8_t *w)
{
    uint32x4_t x = vreinterpretq_u32_u8(vld1q_u8(w)), y = vreinterpretq_u32_u8(vld1q_u8(w + 64));
    return (uint8x16x2_t){ { vreinterpretq_u8_u32(vzip1q_u32(x, y)),
                             vreinterpretq_u8_u32(vzip2q_u32(x, y)) } };
}

VEC_FN int8x16_t pair_of_eight(const int8_t *a, const int8_t *b, size_t at)
{
    return vcombine_s8(vld1_s8(a + at), vld1_s8(b + at));
}

/* Group g of two records: { a, b, a, b }. */
struct pair_info {
    vf scale;
    int32x4_t minus128sum;
};
VEC_FN struct pair_info pair_info(const int8_t *a, const int8_t *b, uint32_t g)
{
    const size_t at = g * sizeof(struct clb_group_info);
    int32x4_t x = vreinterpretq_s32_s8(vcombine_s8(vld1_s8(a + at), vld1_s8(b + at)));
    return (struct pair_info){ vreinterpretq_f32_s32(vuzp1q_s32(x, x)), vuzp2q_s32(x, x) };
}

/* Four rows of activation row i (0 or 1), from the 2 x 2 sums of rows 0 and 1 and of 2 and 3. */
VEC_FN vf one_row(vf a, vf b, int i)
{
    return i ? vuzp2q_f32(a, b) : vuzp1q_f32(a, b);
}

#endif
