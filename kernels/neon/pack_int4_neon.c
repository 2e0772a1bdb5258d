/* pack_int4_neon.c - groups of 32 weights to codes of a book (pack_int4_scalar.c is the
 * definition). The search takes one group at a time, and four of its starts side by side. */
#include <math.h>

#include "kernels/neon/neon.h"
#include "kernels/neon/vec.h"
#include "kernels/wide/pack_words.inc"

enum { REFITS = 2, SIDE_BY_SIDE = 4, WORDS = CLB_GROUP / 8 };

/* A book in registers. */
struct book {
    uint8x16x2_t base, edge;
    int8x16_t value;
};

VEC_FN struct book load_book(const struct clb_int4_book *b)
{
    const uint8_t *base = (const uint8_t *)b->base;

    return (struct book){ { { vld1q_u8(base), vld1q_u8(base + 16) } },
                          { { vld1q_u8(b->edge), vld1q_u8(b->edge + 16) } },
                          vld1q_s8(b->value) };
}

/* Codes of 16 places in 1/32. Bins at the ends have no edge, so that places beyond need no cutting.
 */
VEC_FN uint8x16_t nearest(const struct book *b, int16x8_t low, int16x8_t high)
{
    int8x16_t first = vreinterpretq_s8_s16(low), second = vreinterpretq_s8_s16(high);
    uint8x16_t place = vreinterpretq_u8_s8(vuzp1q_s8(first, second));
    int8x16_t bin = vminq_s8(vmaxq_s8(vuzp2q_s8(first, second), vdupq_n_s8(-16)), vdupq_n_s8(15));
    uint8x16_t at = vandq_u8(vreinterpretq_u8_s8(bin), vdupq_n_u8(31));
    uint8x16_t passed = vcgeq_u8(place, vqtbl2q_u8(b->edge, at));

    return vsubq_u8(vqtbl2q_u8(b->base, at), passed);
}

/* -- the search ------------------------------------------------------------------------------ */

/* Sums of w v and of v v, each in four lanes. */
VEC_FN void sums(const struct book *b, const int16x8_t w[WORDS], int16x8_t factor, int32x4_t *dot,
                 int32x4_t *square)
{
    *dot = *square = vdupq_n_s32(0);
#pragma GCC unroll 2
    for (int i = 0; i < WORDS; i += 2) {
        uint8x16_t code = nearest(b, vqrdmulhq_s16(w[i], factor), vqrdmulhq_s16(w[i + 1], factor));
        int8x16_t v = vqtbl1q_s8(b->value, code);
        int16x8_t low = vmovl_s8(vget_low_s8(v)), high = vmovl_s8(vget_high_s8(v));

        *dot = vmlal_s16(*dot, vget_low_s16(w[i]), vget_low_s16(low));
        *dot = vmlal_s16(*dot, vget_high_s16(w[i]), vget_high_s16(low));
        *dot = vmlal_s16(*dot, vget_low_s16(w[i + 1]), vget_low_s16(high));
        *dot = vmlal_s16(*dot, vget_high_s16(w[i + 1]), vget_high_s16(high));
        *square = vdotq_s32(*square, v, v);
    }
}

/* Four vectors, each summed to a lane. */
VEC_FN vf sum_each(const int32x4_t x[SIDE_BY_SIDE])
{
    return vcvtq_f32_s32(vpaddq_s32(vpaddq_s32(x[0], x[1]), vpaddq_s32(x[2], x[3])));
}

/* The scales of four factors, and what each explains. */
VEC_FN void fit(const struct book *b, const int16x8_t w[WORDS], const int16_t *factor,
                float scale[SIDE_BY_SIDE], float explained[SIDE_BY_SIDE])
{
    int32x4_t dot[SIDE_BY_SIDE], square[SIDE_BY_SIDE];
    vf sum, fits;

    for (int k = 0; k < SIDE_BY_SIDE; k++)
        sums(b, w, vdupq_n_s16(factor[k]), &dot[k], &square[k]);
    sum = sum_each(dot);
    fits = vf_div(sum, sum_each(square));
    vf_store(scale, fits);
    vf_store(explained, vf_mul(sum, fits));
}

static float search(const struct clb_int4_book *book, const struct book *b,
                    const int16x8_t w[WORDS])
{
    float best = 0, most = -1, scale[SIDE_BY_SIDE], explained[SIDE_BY_SIDE];
    int16_t factor[SIDE_BY_SIDE];

    for (int at = 0; at < CLB_INT4_STARTS; at += SIDE_BY_SIDE) {
        int n = CLB_INT4_STARTS - at < SIDE_BY_SIDE ? CLB_INT4_STARTS - at : SIDE_BY_SIDE;

        for (int k = 0; k < SIDE_BY_SIDE; k++) /* the last ones twice: no better than once */
            factor[k] = book->start[at + (k < n ? k : 0)];
        fit(b, w, factor, scale, explained);
        for (int k = 0; k < n; k++)
            if (explained[k] > most) {
                most = explained[k];
                best = scale[k];
            }
    }
    for (int k = 0; k < REFITS; k++) {
        float f = vrndns_f32(0x1p20f / best);

        f = f > 32767.0f ? 32767.0f : f < -32767.0f ? -32767.0f : f;
        for (int i = 0; i < SIDE_BY_SIDE; i++)
            factor[i] = (int16_t)f;
        fit(b, w, factor, scale, explained);
        if (explained[0] > most) {
            most = explained[0];
            best = scale[0];
        }
    }
    return best;
}

/* The weight of the largest magnitude, the positive one of two. */
VEC_FN float extreme_of(const float *w)
{
    vf high = vf_zero(), low = vf_zero();

    for (int i = 0; i < CLB_GROUP; i += LANES) {
        high = vf_max(vf_load(w + i), high);
        low = vf_min(vf_load(w + i), low);
    }
    float most = vmaxvq_f32(high), least = vminvq_f32(low);
    return most >= -least ? most : least;
}

static uint16_t find_scale(const struct clb_int4_book *book, const struct book *b, const float *w)
{
    float extreme = extreme_of(w), scale;
    int16x8_t whole[WORDS];

    if (fabsf(extreme) < 0x1p-30f)
        return 0;
    vf factor = vf_set1(16383.0f / extreme);
    for (int i = 0; i < WORDS; i++) {
        const float *at = w + 8 * i;
        int32x4_t low = vcvtnq_s32_f32(vf_mul(vf_load(at), factor));
        int32x4_t high = vcvtnq_s32_f32(vf_mul(vf_load(at + LANES), factor));

        whole[i] = vcombine_s16(vmovn_s32(low), vmovn_s32(high));
    }
    scale = search(book, b, whole) * (extreme * (1 / 16383.0f));
    scale = scale > 65504.0f ? 65504.0f : scale < -65504.0f ? -65504.0f : scale;
    return clb_f32_to_f16(scale);
}

/* -- codes ----------------------------------------------------------------------------------- */

/* Codes of a row in order: low 16 and high 16. */
VEC_FN void encode(const struct book *b, uint8x16_t code[2], const float *w, float scale,
                   struct clb_loss *loss)
{
    vf signal[VECS], noise[VECS];
    double square = (double)scale * (double)scale;

    for (int i = 0; i < VECS; i++)
        signal[i] = noise[i] = vf_zero();
    for (int half = 0; half < 2; half++, w += 16) {
        int16x4_t place[VECS];
        int8_t value[16];
        vf x[VECS];

        for (int i = 0; i < VECS; i++) {
            x[i] = vf_div(vf_load(w + i * LANES), vf_set1(scale));
            vf p = vrndmq_f32(vf_mul(x[i], vf_set1(32)));
            p = vf_max(vf_min(p, vf_set1(4095)), vf_set1(-4096));
            place[i] = vmovn_s32(vcvtnq_s32_f32(p));
        }
        code[half] = nearest(b, vcombine_s16(place[0], place[1]), vcombine_s16(place[2], place[3]));
        vst1q_s8(value, vqtbl1q_s8(b->value, code[half]));
        for (int i = 0; i < VECS; i++) {
            vf d = vf_sub(x[i], vf_from_i8(value + i * LANES));

            signal[i] = vf_add(signal[i], vf_mul(x[i], x[i]));
            noise[i] = vf_add(noise[i], vf_mul(d, d));
        }
    }
    loss->signal += (double)vf_tree(signal) * square;
    loss->noise += (double)vf_tree(noise) * square;
}

VEC_FN void pack_row(const struct clb_int4_book *book, const struct book *b, uint8_t *step,
                     uint16_t *scale, const float *w, struct clb_loss *loss)
{
    uint8x16_t code[2] = { vdupq_n_u8(book->zero), vdupq_n_u8(book->zero) };
    uint8_t both[16];

    *scale = find_scale(book, b, w);
    if (*scale & 0x7fff)
        encode(b, code, w, clb_f16_to_f32(*scale), loss);
    else {
        clb_int4_lost(w, loss);
        *scale = 0;
    }
    vst1q_u8(both, vorrq_u8(code[0], vshlq_n_u8(code[1], 4)));
    for (int s = 0; s < 4; s++)
        memcpy(step + s * STEP, both + 4 * s, 4);
}

static void pack_int4(uint8_t *tile, const struct clb_rows *m, const struct clb_int4_book *book,
                      struct clb_loss *loss)
{
    uint64_t steps_at = clb_tile_steps_at(CLB_INT4, m->cols);
    uint8_t *step = tile + steps_at;
    const struct book b = load_book(book);

    memset(tile, 0, steps_at);
    for (uint32_t at = 0; at < m->cols; at += CLB_GROUP, step += 4 * STEP) {
        uint16_t scale[CLB_TILE];
        float w[CLB_GROUP];

        for (uint32_t r = 0; r < CLB_TILE; r++) {
            widen_part(w, m, r, at, CLB_GROUP);
            pack_row(book, &b, step + 4 * r, &scale[r], w, loss);
        }
        memcpy(tile, scale, sizeof scale);
        tile += sizeof scale;
    }
}

PLAIN_CODE void clb_fill_pack_int4_neon(struct clb_pack_kernels *k)
{
    k->int4 = pack_int4;
}
