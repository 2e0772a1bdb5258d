/* matmul_scalar.c - y = W x over whole tiles, by definition. The 16 rows of a tile are lanes: step
 * by step, the next inputs of every row. */
#include <math.h>
#include <string.h>

#include "kernels/scalar/scalar.h"
#include "lib/base/half.h"

static void matmul_f32(const struct clb_matmul *m)
{
    for (uint32_t tile = 0; tile < m->n_tile; tile++)
        for (uint32_t t = 0; t < m->n_row; t++) {
            const float *w = (const float *)(const void *)(m->tiles + tile * m->tile_bytes);
            const float *x = m->x[t];
            float acc[CLB_TILE] = { 0 };

            for (uint32_t c = 0; c < m->cols; c++, w += CLB_TILE)
                for (int r = 0; r < CLB_TILE; r++)
                    acc[r] = fmaf(w[r], x[c], acc[r]);
            memcpy(m->y + t * m->ldy + tile * CLB_TILE, acc, sizeof acc);
        }
}

typedef float widen_fn(uint16_t h);

/* A step holds two inputs of each row. */
static void matmul_half(const struct clb_matmul *m, widen_fn *widen)
{
    for (uint32_t tile = 0; tile < m->n_tile; tile++)
        for (uint32_t t = 0; t < m->n_row; t++) {
            const uint16_t *w = (const uint16_t *)(const void *)(m->tiles + tile * m->tile_bytes);
            const float *x = m->x[t];
            float acc[CLB_TILE] = { 0 };

            for (uint32_t c = 0; c < m->cols; c += 2, w += 2 * CLB_TILE)
                for (int r = 0; r < CLB_TILE; r++) {
                    acc[r] = fmaf(widen(w[2 * r]), x[c], acc[r]);
                    acc[r] = fmaf(widen(w[2 * r + 1]), x[c + 1], acc[r]);
                }
            memcpy(m->y + t * m->ldy + tile * CLB_TILE, acc, sizeof acc);
        }
}

static void matmul_f16(const struct clb_matmul *m)
{
    matmul_half(m, clb_f16_to_f32);
}

static void matmul_bf16(const struct clb_matmul *m)
{
    matmul_half(m, clb_bf16_to_f32);
}

/* Behind the bytes of an activation record: scale and -128 * sum of each group. */
static const struct clb_group_info *groups_of(const void *record, uint32_t cols)
{
    return (const struct clb_group_info *)((const char *)record + cols);
}

static void matmul_int8(const struct clb_matmul *m)
{
    for (uint32_t tile = 0; tile < m->n_tile; tile++)
        for (uint32_t t = 0; t < m->n_row; t++) {
            const uint8_t *w = m->tiles + tile * m->tile_bytes;
            const int8_t *a = m->x[t];
            const struct clb_group_info *info = groups_of(a, m->cols);
            float acc[CLB_TILE] = { 0 }, *y = m->y + t * m->ldy + tile * CLB_TILE;

            for (uint32_t g = 0; g < m->cols / CLB_GROUP; g++, a += CLB_GROUP) {
                int32_t dot[CLB_TILE] = { 0 };
                for (int q = 0; q < CLB_GROUP; q += 4, w += 4 * CLB_TILE)
                    for (int r = 0; r < CLB_TILE; r++)
                        for (int j = 0; j < 4; j++)
                            dot[r] += (w[4 * r + j] - 128) * a[q + j];
                for (int r = 0; r < CLB_TILE; r++)
                    acc[r] = fmaf((float)dot[r], info[g].scale, acc[r]);
            }
            for (int r = 0; r < CLB_TILE; r++)
                y[r] = acc[r] * m->row_scale[tile * CLB_TILE + r];
        }
}

/* One group of 32 inputs: byte j of step s holds input 4 s + j (low) and 16 + 4 s + j (high). */
static void dot_4bit(int32_t dot[static CLB_TILE], const uint8_t *w, const int8_t *book,
                     const int8_t *a)
{
    for (int q = 0; q < CLB_GROUP / 2; q += 4, w += 4 * CLB_TILE)
        for (int r = 0; r < CLB_TILE; r++)
            for (int j = 0; j < 4; j++) {
                dot[r] += book[w[4 * r + j] & 15] * a[q + j];
                dot[r] += book[w[4 * r + j] >> 4] * a[16 + q + j];
            }
}

typedef float scale_fn(const uint8_t *scales, uint32_t i);

static float scale_f16(const uint8_t *scales, uint32_t i)
{
    uint16_t h;
    memcpy(&h, scales + 2 * i, 2);
    return clb_f16_to_f32(h);
}

static float scale_e8m0(const uint8_t *scales, uint32_t i)
{
    return clb_e8m0(scales[i]);
}

static void matmul_4bit(const struct clb_matmul *m, enum clb_dtype dtype, scale_fn *scale)
{
    uint64_t steps_at = clb_tile_steps_at(dtype, m->cols);

    for (uint32_t tile = 0; tile < m->n_tile; tile++)
        for (uint32_t t = 0; t < m->n_row; t++) {
            const uint8_t *scales = m->tiles + tile * m->tile_bytes, *w = scales + steps_at;
            const int8_t *a = m->x[t];
            const struct clb_group_info *info = groups_of(a, m->cols);
            float acc[CLB_TILE] = { 0 };

            for (uint32_t g = 0; g < m->cols / CLB_GROUP; g++, a += CLB_GROUP, w += 256) {
                int32_t dot[CLB_TILE] = { 0 };
                dot_4bit(dot, w, m->book, a);
                for (uint32_t r = 0; r < CLB_TILE; r++)
                    acc[r] = fmaf((float)dot[r], scale(scales, g * CLB_TILE + r) * info[g].scale,
                                  acc[r]);
            }
            memcpy(m->y + t * m->ldy + tile * CLB_TILE, acc, sizeof acc);
        }
}

static void matmul_int4(const struct clb_matmul *m)
{
    matmul_4bit(m, CLB_INT4, scale_f16);
}

static void matmul_mxfp4(const struct clb_matmul *m)
{
    matmul_4bit(m, CLB_MXFP4, scale_e8m0);
}

void clb_fill_matmul_scalar(struct clb_kernels *k)
{
    k->matmul[CLB_F32] = matmul_f32;
    k->matmul[CLB_F16] = matmul_f16;
    k->matmul[CLB_BF16] = matmul_bf16;
    k->matmul[CLB_INT8] = matmul_int8;
    k->matmul[CLB_INT4] = matmul_int4;
    k->matmul[CLB_MXFP4] = matmul_mxfp4;
}
