/* pack_int4_scalar.c - groups of 32 weights to codes of a book and one f16 scale: the definition.
 *
 * The search works on whole numbers, exact in any order: w' = rint(w * (16383 / e)), where e is the
 * weight of the largest magnitude (the positive one of two), so that e itself becomes 16383. A
 * factor f puts the weights on the scale of the book: (w' f + 2^14) >> 15 is 32 times the place in
 * the book. With the nearest codes
 *     scale = sum w'v / sum v^2, explained = sum w'v * scale
 * is the scale that fits these codes best, and how much of the squares it explains. Of all starts
 * of the book the first that explains most wins; then, twice, its scale becomes a factor, rint(2^20
 * / scale) within +-32767, and the scale of that wins if it explains more.
 *
 * The result, times e / 16383, is rounded to f16; the codes are then the nearest for the scale as
 * stored: x = w / scale, its place rounded down to 1/32. Loss of a group: lanes of x^2 and (x -
 * value)^2, each tree times scale^2. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/pack.h"
#include "kernels/scalar/scalar.h"
#include "lib/base/half.h"

enum { STEP = 64, LANES = 16, REFITS = 2 };

/* -- the book -------------------------------------------------------------------------------- */

/* Where the largest weight is tried, as a share of the ends of the book. */
static const float ratio[CLB_INT4_STARTS / 2] = { 0.80f, 0.84f, 0.88f, 0.91f, 0.94f, 0.97f, 1.00f,
                                                  1.03f, 1.06f, 1.09f, 1.12f, 1.16f, 1.20f };

void clb_int4_book_init(struct clb_int4_book *b, const int8_t value[16])
{
    int32_t code = 0; /* midpoints passed */

    memcpy(b->value, value, sizeof b->value);
    for (int bin = -16; bin < 16; bin++) {
        int32_t low = bin * 256, high = low + 256; /* in 1/32, as the midpoints */
        int32_t middle = code < 15 ? 16 * (value[code] + value[code + 1]) : high;

        if (middle < high) {
            b->base[bin & 31] = (int8_t)code++;
            b->edge[bin & 31] = (uint8_t)(middle - low);
            assert(code == 15 || 16 * (value[code] + value[code + 1]) >= high);
        } else { /* the edge is passed everywhere */
            b->base[bin & 31] = (int8_t)(code - 1);
            b->edge[bin & 31] = 0;
        }
    }
    b->zero = 0;
    for (uint8_t c = 1; c < 16; c++)
        if (abs(value[c]) < abs(value[b->zero]))
            b->zero = c;
    for (int i = 0; i < CLB_INT4_STARTS; i++) {
        float end = (float)value[i % 2 ? 15 : 0];

        b->start[i] = (int16_t)rintf(64 * end * ratio[i / 2]);
    }
}

/* place: in 1/32. Bins at the ends have no edge. */
static uint8_t nearest(const struct clb_int4_book *b, int32_t place)
{
    int32_t bin = place >> 8;

    bin = (bin > 15 ? 15 : bin < -16 ? -16 : bin) & 31;
    return (uint8_t)(b->base[bin] + ((place & 255) >= b->edge[bin]));
}

/* -- the search ------------------------------------------------------------------------------ */

static float fit(const struct clb_int4_book *b, const int16_t *w, int32_t factor, float *explained)
{
    int32_t dot = 0, square = 0;
    int16_t v[CLB_GROUP];
    float scale;

    for (int i = 0; i < CLB_GROUP; i++) {
        int32_t place = (w[i] * factor + (1 << 14)) >> 15;

        v[i] = b->value[nearest(b, place)];
    }
    for (int i = 0; i < CLB_GROUP; i++) {
        dot += w[i] * v[i];
        square += v[i] * v[i];
    }
    scale = (float)dot / (float)square;
    *explained = (float)dot * scale;
    return scale;
}

static float search(const struct clb_int4_book *b, const int16_t *w)
{
    float best = 0, most = -1;

    for (int k = 0; k < CLB_INT4_STARTS + REFITS; k++) {
        float factor = k < CLB_INT4_STARTS ? (float)b->start[k] : rintf(0x1p20f / best);
        float explained, scale;

        factor = factor > 32767.0f ? 32767.0f : factor < -32767.0f ? -32767.0f : factor;
        scale = fit(b, w, (int32_t)factor, &explained);
        if (explained > most) {
            most = explained;
            best = scale;
        }
    }
    return best;
}

/* The weight of the largest magnitude. */
static float extreme_of(const float *w)
{
    float high = 0, low = 0;

    for (int i = 0; i < CLB_GROUP; i++) {
        high = w[i] > high ? w[i] : high;
        low = w[i] < low ? w[i] : low;
    }
    return high >= -low ? high : low;
}

static uint16_t find_scale(const struct clb_int4_book *b, const float *w)
{
    float extreme = extreme_of(w), factor, scale;
    int16_t whole[CLB_GROUP];

    if (fabsf(extreme) < 0x1p-30f) /* far below what an f16 can scale */
        return 0;
    factor = 16383.0f / extreme;
    for (int i = 0; i < CLB_GROUP; i++)
        whole[i] = (int16_t)rintf(w[i] * factor);
    scale = search(b, whole) * (extreme * (1 / 16383.0f));
    scale = scale > 65504.0f ? 65504.0f : scale < -65504.0f ? -65504.0f : scale;
    return clb_f32_to_f16(scale);
}

/* -- codes ----------------------------------------------------------------------------------- */

void clb_int4_lost(const float w[CLB_GROUP], struct clb_loss *loss)
{
    double sum = 0;

    for (int i = 0; i < CLB_GROUP; i++)
        sum += (double)w[i] * (double)w[i];
    loss->signal += sum;
    loss->noise += sum;
}

static void encode(const struct clb_int4_book *b, uint8_t *code, const float *w, float scale,
                   struct clb_loss *loss)
{
    float signal[LANES] = { 0 }, noise[LANES] = { 0 };
    double square = (double)scale * (double)scale;

    for (int i = 0; i < CLB_GROUP; i++) {
        float x = w[i] / scale, place = floorf(x * 32), d;

        place = place > 4095.0f ? 4095.0f : place < -4096.0f ? -4096.0f : place;
        code[i] = nearest(b, (int32_t)place);
        d = x - (float)b->value[code[i]];
        signal[i % LANES] += x * x;
        noise[i % LANES] += d * d;
    }
    loss->signal += (double)clb_tree16(signal) * square;
    loss->noise += (double)clb_tree16(noise) * square;
}

static uint16_t pack_group(const struct clb_int4_book *b, uint8_t *code, const float *w,
                           struct clb_loss *loss)
{
    uint16_t scale = find_scale(b, w);

    if (scale & 0x7fff) {
        encode(b, code, w, clb_f16_to_f32(scale), loss);
        return scale;
    }
    memset(code, b->zero, CLB_GROUP);
    clb_int4_lost(w, loss);
    return 0;
}

/* Columns of a group, as far as there are any, then zeros. */
static void widen_group(float w[CLB_GROUP], const struct clb_rows *m, uint32_t row, uint32_t at)
{
    uint32_t n = m->cols - at < CLB_GROUP ? m->cols - at : CLB_GROUP;
    size_t first = (size_t)row * m->cols + at;

    memset(w, 0, CLB_GROUP * sizeof *w);
    for (uint32_t i = 0; i < n && row < m->n_row; i++)
        if (m->from == CLB_F32)
            w[i] = ((const float *)m->x)[first + i];
        else if (m->from == CLB_BF16)
            w[i] = clb_bf16_to_f32(((const uint16_t *)m->x)[first + i]);
        else
            w[i] = clb_f16_to_f32(((const uint16_t *)m->x)[first + i]);
}

static void pack_int4(uint8_t *tile, const struct clb_rows *m, const struct clb_int4_book *book,
                      struct clb_loss *loss)
{
    uint64_t steps_at = clb_tile_steps_at(CLB_INT4, m->cols);
    uint8_t *step = tile + steps_at;

    memset(tile, 0, steps_at);
    for (uint32_t at = 0; at < m->cols; at += CLB_GROUP, step += 4 * STEP)
        for (uint32_t r = 0; r < CLB_TILE; r++) {
            float w[CLB_GROUP];
            uint8_t code[CLB_GROUP];
            uint16_t scale;

            widen_group(w, m, r, at);
            scale = pack_group(book, code, w, loss);
            memcpy(tile + ((size_t)at / CLB_GROUP * CLB_TILE + r) * 2, &scale, 2);
            for (int s = 0; s < 4; s++)
                for (int j = 0; j < 4; j++)
                    step[s * STEP + (int)(4 * r) + j] =
                        (uint8_t)(code[4 * s + j] | code[16 + 4 * s + j] << 4);
        }
}

void clb_fill_pack_int4_scalar(struct clb_pack_kernels *k)
{
    k->int4 = pack_int4;
}
