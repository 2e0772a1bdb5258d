#include "lib/import/quantise.h"

#include <float.h>
#include <math.h>

#include "lib/base/fmath.h"
#include "lib/base/half.h"

enum { STEP = 64, LANES = 16, BLOCK = 32 };

/* Adding it to |x| < 2^22 rounds to a whole number, half to even, which then stands in the low
 * bits. */
#define ROUNDER 12582912.0f /* 1.5 * 2^23 */

void clb_loss_add(struct clb_loss *sum, const struct clb_loss *l)
{
    sum->values += l->values;
    sum->signal += l->signal;
    sum->noise += l->noise;
    sum->underflows += l->underflows;
}

double clb_loss_sqnr(const struct clb_loss *l)
{
    return l->noise > 0 ? 10 * clb_log(l->signal / l->noise) / clb_log(10) : INFINITY;
}

uint32_t clb_pack_stride(uint32_t cols)
{
    return (cols + BLOCK - 1) / BLOCK * BLOCK;
}

float clb_int8_scale(float max_abs)
{
    float s = max_abs / 127.0f;

    return s < FLT_MIN ? 0 : s;
}

/* Squared error of a row's codes in units of 1 / inverse^2. */
static float code_noise(const float *w, uint32_t n, float inverse)
{
    float lane[LANES] = { 0 }, sum = 0;

    for (uint32_t i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float x = w[i + k] * inverse, q = x + ROUNDER - ROUNDER;

            q = q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
            lane[k] += (x - q) * (x - q);
        }
    for (int k = 0; k < LANES; k++)
        sum += lane[k];
    return sum;
}

float clb_int8_row_scale(const float *w, uint32_t n)
{
    static const float steps[] = { 127.0f, 127.5f, 128.0f, 128.5f };
    float max = clb_max_abs(w, n), best = clb_int8_scale(max), least = FLT_MAX;

    for (size_t i = 0; i < sizeof steps / sizeof *steps && best > 0; i++) {
        float noise = code_noise(w, n, steps[i] / max) / (steps[i] * steps[i]);

        if (noise < least && max / steps[i] >= FLT_MIN) {
            least = noise;
            best = max / steps[i];
        }
    }
    return best;
}

float clb_pack_limit(enum clb_dtype t)
{
    if (t == CLB_F16)
        return 65504.0f;
    if (t == CLB_BF16)
        return 0x1.FEp127f;
    return t == CLB_INT4 ? CLB_INT4_LIMIT : FLT_MAX;
}

float clb_max_abs(const float *x, size_t n)
{
    float most[LANES] = { 0 };
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++)
            most[k] = most[k] > fabsf(x[i + k]) ? most[k] : fabsf(x[i + k]);
    for (; i < n; i++)
        most[0] = most[0] > fabsf(x[i]) ? most[0] : fabsf(x[i]);
    for (int k = 1; k < LANES; k++)
        most[0] = most[0] > most[k] ? most[0] : most[k];
    return most[0];
}

bool clb_find_beyond(const float *x, size_t n, float limit, size_t *at)
{
    int32_t most;

    memcpy(&most, &limit, sizeof most);
    for (size_t i = 0; i < n;) {
        int32_t beyond = 0, b;
        size_t start = i;

        if (n - i >= BLOCK) {
            for (int k = 0; k < BLOCK; k++) {
                memcpy(&b, &x[start + k], sizeof b);
                beyond |= (b & 0x7fffffff) > most;
            }
            if (!beyond) {
                i += BLOCK;
                continue;
            }
        }
        memcpy(&b, &x[i], sizeof b);
        if ((b & 0x7fffffff) > most) {
            *at = i;
            return true;
        }
        i++;
    }
    return false;
}

void clb_widen_bf16(float *y, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t b = (uint32_t)x[i] << 16;

        memcpy(&y[i], &b, sizeof b);
    }
}

void clb_widen_f16(float *y, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t h = x[i], special = (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
        float f =
            clb_f32_from_bits((h & 0x7fff) << 13) * 0x1p112f; /* moves the exponent, exactly */

        y[i] = clb_f32_from_bits(clb_f32_bits(f) | special | (h & 0x8000) << 16);
    }
}

/* -- int8 ------------------------------------------------------------------------------------ */

/* Codes of one row. The sums are in units of the scale, so that tiny weights do not vanish in them.
 */
static void code_row(uint8_t *code, const float *w, uint32_t n, float scale, struct clb_loss *loss)
{
    float signal[LANES] = { 0 }, noise[LANES] = { 0 };
    double s = 0, e = 0;

    if (scale == 0) {
        memset(code, 128, n);
        return;
    }
    for (uint32_t i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float x = w[i + k] / scale, near = x > 127.0f ? 127.0f : x < -127.0f ? -127.0f : x;
            float up = near + ROUNDER, d = x - (up - ROUNDER);
            uint32_t b;

            memcpy(&b, &up, sizeof b);
            code[i + k] = (uint8_t)(b + 128);
            signal[k] += x * x;
            noise[k] += d * d;
        }
    for (int k = 0; k < LANES; k++) {
        s += (double)signal[k];
        e += (double)noise[k];
    }
    loss->signal += s * scale * scale;
    loss->noise += e * scale * scale;
}

static void pack_int8(const struct clb_pack *p, uint8_t *tile, float *row_scale, const float *rows,
                      uint32_t n_row, struct clb_loss *loss)
{
    uint32_t stride = clb_pack_stride(p->cols);
    uint8_t code[CLB_TILE][256];

    for (uint32_t r = 0; r < CLB_TILE && !p->given_scale; r++)
        row_scale[r] = r < n_row ? clb_int8_row_scale(rows + (size_t)r * stride, stride) : 0;
    for (uint32_t at = 0; at < stride; at += 256) {
        uint32_t n = stride - at < 256 ? stride - at : 256;

        for (uint32_t r = 0; r < CLB_TILE; r++)
            code_row(code[r], rows + (size_t)r * stride + at, n, r < n_row ? row_scale[r] : 0,
                     loss);
        for (uint32_t i = 0; i < n; i += 4, tile += STEP)
            for (uint32_t r = 0; r < CLB_TILE; r++)
                memcpy(tile + 4 * r, &code[r][i], 4);
    }
}

/* -- 4 bits ---------------------------------------------------------------------------------- */

static void pack_int4(const struct clb_pack *p, uint8_t *tile, const float *rows, uint32_t n_row,
                      struct clb_loss *loss)
{
    uint32_t stride = clb_pack_stride(p->cols), groups = stride / CLB_GROUP;
    uint64_t steps_at = clb_tile_steps_at(CLB_INT4, p->cols);

    memset(tile, 0, steps_at);
    for (uint32_t g = 0; g < groups; g++)
        for (uint32_t r = 0; r < CLB_TILE; r++) {
            uint8_t code[CLB_GROUP], *step = tile + steps_at + (size_t)g * 4 * STEP + 4 * r;
            uint16_t scale = 0;

            if (r < n_row)
                scale = clb_int4_group(p->nearest, code,
                                       rows + (size_t)r * stride + (size_t)g * CLB_GROUP, loss);
            else
                memset(code, p->nearest->zero, sizeof code);
            memcpy(tile + ((size_t)g * CLB_TILE + r) * 2, &scale, 2);
            for (int s = 0; s < 4; s++, step += STEP)
                for (int j = 0; j < 4; j++)
                    step[j] = (uint8_t)(code[4 * s + j] | code[16 + 4 * s + j] << 4);
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
static void narrow_row(enum clb_dtype t, uint16_t *h, float *back, const float *w, uint32_t n)
{
    if (t == CLB_F16) {
        for (uint32_t i = 0; i < n; i++)
            h[i] = narrow_f16(w[i]);
        clb_widen_f16(back, h, n);
    } else {
        for (uint32_t i = 0; i < n; i++) {
            uint32_t b = clb_f32_bits(w[i]);

            h[i] = (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
        }
        clb_widen_bf16(back, h, n);
    }
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
    for (int k = 0; k < LANES; k++) {
        loss->signal += (double)signal[k];
        loss->noise += (double)noise[k];
        loss->underflows += f16 ? small[k] : 0;
    }
}

static void pack_16(const struct clb_pack *p, uint8_t *tile, const float *rows,
                    struct clb_loss *loss)
{
    uint32_t stride = clb_pack_stride(p->cols), cols = clb_cols_padded(p->dtype, p->cols);
    uint16_t h[CLB_TILE][256];
    float back[256];

    for (uint32_t at = 0; at < stride; at += 256) {
        uint32_t n = stride - at < 256 ? stride - at : 256;

        for (uint32_t r = 0; r < CLB_TILE; r++) {
            const float *w = rows + (size_t)r * stride + at;

            narrow_row(p->dtype, h[r], back, w, n);
            count_loss(loss, w, back, h[r], n, p->dtype == CLB_F16);
        }
        for (uint32_t i = 0; i < n && at + i < cols; i += 2, tile += STEP)
            for (uint32_t r = 0; r < CLB_TILE; r++)
                memcpy(tile + 4 * r, &h[r][i], 4);
    }
}

static void pack_f32(const struct clb_pack *p, uint8_t *tile, const float *rows)
{
    uint32_t stride = clb_pack_stride(p->cols);

    for (uint32_t i = 0; i < p->cols; i++)
        for (uint32_t r = 0; r < CLB_TILE; r++, tile += 4)
            memcpy(tile, rows + (size_t)r * stride + i, 4);
}

void clb_pack_tile(const struct clb_pack *p, uint8_t *tile, float *row_scale, const float *rows,
                   uint32_t n_row, struct clb_loss *loss)
{
    loss->values += (uint64_t)n_row * p->cols;
    if (p->dtype == CLB_INT8)
        pack_int8(p, tile, row_scale, rows, n_row, loss);
    else if (p->dtype == CLB_INT4)
        pack_int4(p, tile, rows, n_row, loss);
    else if (p->dtype == CLB_F32)
        pack_f32(p, tile, rows);
    else
        pack_16(p, tile, rows, loss);
}
