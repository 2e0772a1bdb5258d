/* dot.h - words for weights of four rows by 4 inputs in a register. */
#ifndef CLB_KERNELS_NEON_DOT_H
#define CLB_KERNELS_NEON_DOT_H

#include "kernels/neon/vec.h"

/* 16 values, stored with an offset of 128. */
VEC_FN int8x16_t int8_weights(const uint8_t *p)
{
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p), vdupq_n_u8(128)));
}
/* The low and the high nibbles of 16 bytes, looked up. */
VEC_FN int8x16_t book_low(int8x16_t book, uint8x16_t codes)
{
    return vqtbl1q_s8(book, vandq_u8(codes, vdupq_n_u8(15)));
}
VEC_FN int8x16_t book_high(int8x16_t book, uint8x16_t codes)
{
    return vqtbl1q_s8(book, vshrq_n_u8(codes, 4));
}

/* Adds two steps, 8 inputs; the activations are lanes 0 and 1 of a short register. */
VEC_FN int32x4_t dot_two(int32x4_t acc, int8x16_t w0, int8x16_t w1, int8x8_t a)
{
    return vdotq_lane_s32(vdotq_lane_s32(acc, w0, a, 0), w1, a, 1);
}

#endif
