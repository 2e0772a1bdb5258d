/* pack_scalar.c - rows to int8 and float tiles: the definition. Loops of fixed length, so that
 * compilers use vectors. */
#include <string.h>

#include "kernels/pack.h"
#include "kernels/scalar/scalar.h"
#include "lib/base/half.h"

enum { STEP = 64, LANES = 16, CHUNK = 256 }; /* CHUNK: columns at a time */

/* Adding it to |x| < 2^22 rounds to a whole number, half to even. */
#define ROUNDER 12582912.0f /* 1.5 * 2^23 */

static size_t bytes_of(enum clb_dtype t)
{
    return t == CLB_F32 ? 4 : 2;
}

static uint32_t largest(const void *x, enum clb_dtype from, size_t n)
{
    const uint16_t *h = x;
    uint32_t most = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t b;

        if (from == CLB_F32)
            memcpy(&b, (const float *)x + i, sizeof b);
        else
            b = h[i];
        b &= from == CLB_F32 ? 0x7fffffff : 0x7fff;
        most = most > b ? most : b;
    }
    if (from == CLB_F16)
        return clb_f32_bits(clb_f16_to_f32((uint16_t)most));
    return from == CLB_F32 ? most : most << 16;
}

static void widen_bf16(float *y, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t b = (uint32_t)x[i] << 16;

        memcpy(&y[i], &b, sizeof b);
    }
}

static void widen_f16(float *y, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t h = x[i], special = (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
        float f =
            clb_f32_from_bits((h & 0x7fff) << 13) * 0x1p112f; /* moves the exponent, exactly */

        y[i] = clb_f32_from_bits(clb_f32_bits(f) | special | (h & 0x8000) << 16);
    }
}

static void widen(float *y, const void *x, enum clb_dtype from, size_t n)
{
    if (from == CLB_BF16)
        widen_bf16(y, x, n);
    else if (from == CLB_F16)
        widen_f16(y, x, n);
    else
        memcpy(y, x, n * sizeof *y);
}

/* Columns [at, at + CHUNK) of a row, as far as there are any, and zeros up to a multiple of 32;
 * returns how many that are. */
static uint32_t chunk(float y[CHUNK], const struct clb_rows *m, uint32_t row, uint32_t at)
{
    uint32_t n = m->cols - at < CHUNK ? m->cols - at : CHUNK;
    uint32_t padded = (n + CLB_GROUP - 1) / CLB_GROUP * CLB_GROUP;

    if (row >= m->n_row)
        n = 0;
    else
        widen(y, (const char *)m->x + ((size_t)row * m->cols + at) * bytes_of(m->from), m->from, n);
    memset(y + n, 0, (padded - n) * sizeof *y);
    return padded;
}

/* -- int8 ------------------------------------------------------------------------------------ */

/* Whole numbers within +-127, and ROUNDER. */
static float round_code(float x)
{
    x = x > 127.0f ? 127.0f : x;
    return (x < -127.0f ? -127.0f : x) + ROUNDER;
}

static void int8_noise(float noise[CLB_INT8_TRIES], const void *x, enum clb_dtype from, uint32_t n,
                       const float inverse[CLB_INT8_TRIES])
{
    const struct clb_rows m = { x, from, 1, n };
    float lane[CLB_INT8_TRIES][LANES] = { 0 }, w[CHUNK];

    for (uint32_t at = 0; at < n; at += CHUNK) {
        uint32_t some = chunk(w, &m, 0, at);

        for (int t = 0; t < CLB_INT8_TRIES; t++)
            for (uint32_t i = 0; i < some; i += LANES)
                for (int k = 0; k < LANES; k++) {
                    float y = w[i + k] * inverse[t], d = y - (round_code(y) - ROUNDER);

                    lane[t][k] += d * d;
                }
    }
    for (int t = 0; t < CLB_INT8_TRIES; t++)
        noise[t] = clb_tree16(lane[t]);
}

static void code_row(uint8_t *code, const float *w, uint32_t n, float scale, struct clb_loss *loss)
{
    float signal[LANES] = { 0 }, noise[LANES] = { 0 };
    double square = (double)scale * (double)scale;

    if (scale == 0) {
        memset(code, 128, n);
        return;
    }
    for (uint32_t i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float x = w[i + k] / scale, q = round_code(x), d = x - (q - ROUNDER);

            code[i + k] = (uint8_t)(clb_f32_bits(q) + 128); /* q stands in the low bits */
            signal[k] += x * x;
            noise[k] += d * d;
        }
    loss->signal += (double)clb_tree16(signal) * square;
    loss->noise += (double)clb_tree16(noise) * square;
}

static void pack_int8(uint8_t *tile, const struct clb_rows *m, const float scale[CLB_TILE],
                      struct clb_loss *loss)
{
    uint8_t code[CLB_TILE][CHUNK];
    float w[CHUNK];

    for (uint32_t at = 0, n = 0; at < m->cols; at += CHUNK) {
        for (uint32_t r = 0; r < CLB_TILE; r++) {
            n = chunk(w, m, r, at);
            code_row(code[r], w, n, r < m->n_row ? scale[r] : 0, loss);
        }
        for (uint32_t i = 0; i < n; i += 4, tile += STEP)
            for (uint32_t r = 0; r < CLB_TILE; r++)
                memcpy(tile + 4 * r, &code[r][i], 4);
    }
}

/* -- floats ---------------------------------------------------------------------------------- */

/* clb_f32_to_f16 without branches, for magnitudes up to 65504. */
static uint16_t narrow_f16(float w)
{
    uint32_t b = clb_f32_bits(w), a = b & 0x7fffffffu;
    uint32_t normal = (a + 0xfff + (a >> 13 & 1) - 0x38000000u) >> 13;
    uint32_t small = clb_f32_bits(clb_f32_from_bits(a) + 0.5f) - 0x3f000000u;

    return (uint16_t)((a < 0x38800000u ? small : normal) | (b >> 16 & 0x8000));
}

/* One row to fp16 or bf16. back: the same values, widened again. */
static void narrow_row(enum clb_dtype to, uint16_t *h, float *back, const float *w, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = clb_f32_bits(w[i]);

        h[i] = to == CLB_F16 ? narrow_f16(w[i]) : (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
    }
    widen(back, h, to, n);
}

/* Compares the n values of a row (a multiple of 16) with what they became. */
static void count_loss(struct clb_loss *loss, const float *w, const float *back, const uint16_t *h,
                       uint32_t n, bool f16)
{
    float signal[LANES] = { 0 }, noise[LANES] = { 0 };
    uint32_t small[LANES] = { 0 };

    for (uint32_t i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float d = w[i + k] - back[i + k];

            signal[k] += w[i + k] * w[i + k];
            noise[k] += d * d;
            small[k] += (d != 0) & ((h[i + k] & 0x7c00) == 0);
        }
    for (int k = 0; k < LANES && f16; k++)
        loss->underflows += small[k];
    loss->signal += (double)clb_tree16(signal);
    loss->noise += (double)clb_tree16(noise);
}

static void pack_16(uint8_t *tile, const struct clb_rows *m, enum clb_dtype to,
                    struct clb_loss *loss)
{
    uint32_t cols = clb_cols_padded(to, m->cols);
    uint16_t h[CLB_TILE][CHUNK];
    float w[CHUNK], back[CHUNK];

    for (uint32_t at = 0, n = 0; at < m->cols; at += CHUNK) {
        for (uint32_t r = 0; r < CLB_TILE; r++) {
            n = chunk(w, m, r, at);
            narrow_row(to, h[r], back, w, n);
            count_loss(loss, w, back, h[r], n, to == CLB_F16);
        }
        for (uint32_t i = 0; i < n && at + i < cols; i += 2, tile += STEP)
            for (uint32_t r = 0; r < CLB_TILE; r++)
                memcpy(tile + 4 * r, &h[r][i], 4);
    }
}

static void pack_f32(uint8_t *tile, const struct clb_rows *m)
{
    float w[CHUNK];

    for (uint32_t at = 0; at < m->cols; at += CHUNK)
        for (uint32_t r = 0; r < CLB_TILE; r++) {
            uint32_t n = m->cols - at < CHUNK ? m->cols - at : CHUNK;

            chunk(w, m, r, at);
            for (uint32_t i = 0; i < n; i++)
                memcpy(tile + (size_t)(at + i) * STEP + 4 * r, &w[i], 4);
        }
}

static void pack_floats(uint8_t *tile, const struct clb_rows *m, enum clb_dtype to,
                        struct clb_loss *loss)
{
    if (to == CLB_F32)
        pack_f32(tile, m);
    else
        pack_16(tile, m, to, loss);
}

void clb_fill_pack_scalar(struct clb_pack_kernels *k)
{
    k->largest = largest;
    k->widen = widen;
    k->int8_noise = int8_noise;
    k->int8 = pack_int8;
    k->floats = pack_floats;
}
