/* pack_neon.c - rows to int8 and float tiles. */
#include "kernels/neon/neon.h"
#include "kernels/neon/vec.h"
#include "kernels/wide/pack_words.inc"

static uint32_t largest_f32(const float *x, size_t n)
{
    uint32x4_t most = vdupq_n_u32(0);
    uint32_t all;
    size_t i = 0;

    for (; i + 4 <= n; i += 4)
        most = vmaxq_u32(most, vreinterpretq_u32_f32(vf_abs(vf_load(x + i))));
    all = vmaxvq_u32(most);
    for (; i < n; i++) {
        uint32_t b = clb_f32_bits(x[i]) & 0x7fffffff;

        all = all > b ? all : b;
    }
    return all;
}

static uint32_t largest_16(const uint16_t *x, size_t n)
{
    const uint16x8_t magnitude = vdupq_n_u16(0x7fff);
    uint16x8_t most = vdupq_n_u16(0);
    uint32_t all;
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        most = vmaxq_u16(most, vandq_u16(vld1q_u16(x + i), magnitude));
    all = vmaxvq_u16(most);
    for (; i < n; i++)
        all = all > (x[i] & 0x7fffu) ? all : x[i] & 0x7fffu;
    return all;
}

static uint32_t largest(const void *x, enum clb_dtype from, size_t n)
{
    if (from == CLB_F32)
        return largest_f32(x, n);
    uint32_t all = largest_16(x, n);
    return from == CLB_BF16 ? all << 16 : clb_f32_bits(clb_f16_to_f32((uint16_t)all));
}

VEC_FN void put_codes(uint8_t *code, const vf q[8])
{
    for (int i = 0; i < 8; i += 4) {
        int16x8_t low =
            vcombine_s16(vmovn_s32(vcvtnq_s32_f32(q[i])), vmovn_s32(vcvtnq_s32_f32(q[i + 1])));
        int16x8_t high =
            vcombine_s16(vmovn_s32(vcvtnq_s32_f32(q[i + 2])), vmovn_s32(vcvtnq_s32_f32(q[i + 3])));
        uint8x16_t all = vreinterpretq_u8_s8(vcombine_s8(vmovn_s16(low), vmovn_s16(high)));

        vst1q_u8(code + 4 * i, veorq_u8(all, vdupq_n_u8(0x80)));
    }
}

VEC_FN void narrow(uint16_t *h, vf back[VECS], const vf x[VECS], enum clb_dtype to)
{
    for (int k = 0; k < VECS; k++) {
        uint32x4_t b = vreinterpretq_u32_f32(x[k]), odd;

        if (to == CLB_F16) {
            float16x4_t half = vcvt_f16_f32(x[k]);

            back[k] = vcvt_f32_f16(half);
            vst1_u16(h + k * LANES, vreinterpret_u16_f16(half));
            continue;
        }
        odd = vandq_u32(vshrq_n_u32(b, 16), vdupq_n_u32(1));
        b = vaddq_u32(b, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
        vst1_u16(h + k * LANES, vshrn_n_u32(b, 16));
        back[k] = vreinterpretq_f32_u32(vandq_u32(b, vdupq_n_u32(0xffff0000u)));
    }
}

/* Four steps of four rows at a time. */
VEC_FN void put_steps(uint8_t *tile, const void *rows, size_t stride, uint32_t n)
{
    const uint8_t *from = rows;
    uint32_t i = 0;

    for (; i + 4 <= n; i += 4)
        for (uint32_t r = 0; r < CLB_TILE; r += 4) {
            const uint8_t *p = from + r * stride + 4 * i;
            uint32x4x2_t a = vtrnq_u32(vreinterpretq_u32_u8(vld1q_u8(p)),
                                       vreinterpretq_u32_u8(vld1q_u8(p + stride)));
            uint32x4x2_t b = vtrnq_u32(vreinterpretq_u32_u8(vld1q_u8(p + 2 * stride)),
                                       vreinterpretq_u32_u8(vld1q_u8(p + 3 * stride)));

            for (int k = 0; k < 2; k++) {
                uint8_t *to = tile + (size_t)(i + k) * STEP + 4 * r;
                uint32x4_t low = vcombine_u32(vget_low_u32(a.val[k]), vget_low_u32(b.val[k]));
                uint32x4_t high = vcombine_u32(vget_high_u32(a.val[k]), vget_high_u32(b.val[k]));

                vst1q_u8(to, vreinterpretq_u8_u32(low));
                vst1q_u8(to + 2 * STEP, vreinterpretq_u8_u32(high));
            }
        }
    for (; i < n; i++)
        for (uint32_t k = 0; k < CLB_TILE; k++)
            memcpy(tile + (size_t)i * STEP + 4 * k, from + k * stride + 4 * i, 4);
}

#include "kernels/wide/pack.inc"

PLAIN_CODE void clb_fill_pack_neon(struct clb_pack_kernels *k)
{
    fill_pack(k);
    k->largest = largest;
}
