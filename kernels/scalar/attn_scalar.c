/* attn_scalar.c - attention over one KV block, and the fold of its result, by definition. */
#include <math.h>

#include "kernels/scalar/scalar.h"
#include "lib/backend/kv.h"
#include "lib/base/fmath.h"
#include "lib/base/half.h"

static float kv_at(const void *p, enum clb_kv_dtype t, size_t i)
{
    switch (t) {
    case CLB_KV_F16:
        return clb_f16_to_f32(((const uint16_t *)p)[i]);
    case CLB_KV_INT8:
        return ((const int8_t *)p)[i];
    default:
        return ((const float *)p)[i];
    }
}

static float score(const struct clb_attn_tile *a, enum clb_kv_dtype t, const float *q, uint32_t j)
{
    float s = 0;
    for (uint32_t d = 0; d < a->key_dim; d++)
        s = fmaf(q[d], kv_at(a->k, t, (size_t)d * CLB_KV_BLOCK + j), s);
    if (t == CLB_KV_INT8)
        s *= a->k_scale[j];
    s *= a->scale;
    return a->softcap > 0 ? a->softcap * clb_tanhf(s / a->softcap) : s;
}

/* Folds (m_b, l_b) into (m, l); what o and o_b are multiplied by. */
static void fold_weights(float *m, float *l, float m_b, float l_b, float *a, float *b)
{
    float max = m_b > *m ? m_b : *m;

    *a = *m == -INFINITY ? 0.0f : clb_expf(*m - max); /* -inf - -inf would be NaN */
    *b = clb_expf(m_b - max);
    *m = max;
    *l = fmaf(*l, *a, l_b * *b);
}

static void attend(const struct clb_attn_tile *a, enum clb_kv_dtype t, uint32_t i)
{
    float p[CLB_KV_BLOCK] = { 0 }, lane[16], max = -INFINITY, l, old, new;

    for (uint32_t j = a->first[i]; j < a->last[i]; j++) {
        p[j] = score(a, t, a->q[i], j);
        max = p[j] > max ? p[j] : max;
    }
    max += 0.0f; /* -0 becomes 0: the order of the comparisons must not show */
    for (uint32_t j = a->first[i]; j < a->last[i]; j++)
        p[j] = clb_expf(p[j] - max);
    for (int j = 0; j < 16; j++)
        lane[j] = ((p[j] + p[16 + j]) + p[32 + j]) + p[48 + j];
    l = clb_tree16(lane);
    if (a->fold) {
        fold_weights(a->m + i, a->l + i, max, l, &old, &new);
    } else {
        a->m[i] = max;
        a->l[i] = l;
    }

    for (uint32_t j = a->first[i]; j < a->last[i] && t == CLB_KV_INT8; j++)
        p[j] *= a->v_scale[j];
    for (uint32_t d = 0; d < a->value_dim; d++) {
        float o = 0;
        for (uint32_t j = a->first[i]; j < a->last[i]; j++)
            o = fmaf(p[j], kv_at(a->v, t, (size_t)j * a->value_dim + d), o);
        a->o[i][d] = a->fold ? fmaf(a->o[i][d], old, o * new) : o;
    }
}

static void attn_tile_f32(const struct clb_attn_tile *a)
{
    for (uint32_t i = 0; i < a->n_query; i++)
        attend(a, CLB_KV_F32, i);
}

static void attn_tile_f16(const struct clb_attn_tile *a)
{
    for (uint32_t i = 0; i < a->n_query; i++)
        attend(a, CLB_KV_F16, i);
}

static void attn_tile_int8(const struct clb_attn_tile *a)
{
    for (uint32_t i = 0; i < a->n_query; i++)
        attend(a, CLB_KV_INT8, i);
}

static void attn_fold(float *m, float *l, float *o, float m_b, float l_b, const float *o_b,
                      uint32_t n)
{
    float a, b;

    fold_weights(m, l, m_b, l_b, &a, &b);
    for (uint32_t i = 0; i < n; i++)
        o[i] = fmaf(o[i], a, o_b[i] * b);
}

void clb_fill_attn_scalar(struct clb_kernels *k)
{
    k->attn_tile[CLB_KV_F32] = attn_tile_f32;
    k->attn_tile[CLB_KV_F16] = attn_tile_f16;
    k->attn_tile[CLB_KV_INT8] = attn_tile_int8;
    k->attn_fold = attn_fold;
}
