/* cpu_append.c - writes keys and values of a pass into the blocks of their sequences: keys
 * transposed (positions are the lanes of a score), values one row per position. */
#include "kernels/cpu/cpu.h"

#include <math.h>

/* n values to at[0], at[stride], at[2 * stride], ...; int8 sets *scale. */
static void put_f32(float *at, size_t stride, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        at[i * stride] = x[i];
}

static void put_f16(const struct clb_kernels *k, uint16_t *at, size_t stride, const float *x,
                    uint32_t n)
{
    uint16_t half[64];

    for (uint32_t i = 0; i < n; i += 64) {
        uint32_t m = n - i < 64 ? n - i : 64;

        k->narrow(half, x + i, m);
        for (uint32_t j = 0; j < m; j++)
            at[(i + j) * stride] = half[j];
    }
}

/* As activations are quantised, with one scale for the row. */
static float put_int8(int8_t *at, size_t stride, const float *x, uint32_t n)
{
    float amax = 0;

    for (uint32_t i = 0; i < n; i++)
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    float inverse = 127 / amax;
    bool zero = !isfinite(inverse);
    for (uint32_t i = 0; i < n; i++) {
        float q = zero ? 0 : rintf(x[i] * inverse);
        at[i * stride] = (int8_t)(q > 127 ? 127 : q >= -127 ? q : -127); /* NaN: -127 */
    }
    return zero ? 0 : amax / 127;
}

static void put(const struct clb_kernels *k, enum clb_kv_dtype t, uint8_t *part, uint64_t scale_at,
                size_t at, size_t stride, uint32_t position, const float *x, uint32_t n)
{
    if (t == CLB_KV_F32)
        put_f32((float *)(void *)part + at, stride, x, n);
    else if (t == CLB_KV_F16)
        put_f16(k, (uint16_t *)(void *)part + at, stride, x, n);
    else
        ((float *)(void *)(part + scale_at))[position] =
            put_int8((int8_t *)part + at, stride, x, n);
}

/* Head by head, so that the lines of a transposed block stay in the cache from row to row. */
void clb_cpu_append(const struct clb_backend *be, const struct clb_acts *x, uint32_t layer,
                    uint32_t first, uint32_t last)
{
    const struct clb_pass *p = x->p;

    for (uint32_t head = 0; head < x->n_kv_head; head++)
        for (uint32_t r = first; r < last; r++) {
            const struct clb_kv_seq *s = p->seq[p->sequence[r]];
            const struct clb_kv_shape *shape = clb_kv_pool_shape(s->pool);
            uint32_t block = s->block[p->position[r] / CLB_KV_BLOCK];
            uint32_t at = p->position[r] % CLB_KV_BLOCK;
            uint8_t *bytes = clb_kv_pool_block(s->pool, block);

            put(&be->k, shape->dtype, clb_kv_k(shape, bytes, layer, head), shape->k_scale_at, at,
                CLB_KV_BLOCK, at, x->k + r * x->ld_k + head * shape->key_dim, shape->key_dim);
            put(&be->k, shape->dtype, clb_kv_v(shape, bytes, layer, head), shape->v_scale_at,
                (size_t)at * shape->value_dim, 1, at, x->v + r * x->ld_v + head * shape->value_dim,
                shape->value_dim);
        }
}
