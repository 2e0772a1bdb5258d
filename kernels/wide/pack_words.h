/* pack_words.h - what the packing kernels of every width share: rows of a source as f32. A level
 * includes it after its vec.h. */
#ifndef CLB_KERNELS_WIDE_PACK_WORDS_H
#define CLB_KERNELS_WIDE_PACK_WORDS_H

#include "kernels/pack.h"
#include "lib/base/half.h"

enum { STEP = 64 };

VEC_FN size_t source_bytes(enum clb_dtype from)
{
    return from == CLB_F32 ? 4 : 2;
}

VEC_FN void widen(float *y, const void *x, enum clb_dtype from, size_t n)
{
    const uint16_t *h = x;
    const float *f = x;
    size_t i = 0;

    if (from == CLB_F32) {
        memcpy(y, f, n * sizeof *y);
        return;
    }
    for (; i + LANES <= n; i += LANES)
        vf_store(y + i, from == CLB_BF16 ? vf_from_bf16(h + i) : vf_from_f16(h + i));
    for (; i < n; i++)
        y[i] = from == CLB_BF16 ? clb_bf16_to_f32(h[i]) : clb_f16_to_f32(h[i]);
}

/* Columns [at, at + most) of a row, as far as there are any, and zeros up to a multiple of 32;
 * returns how many that are. */
VEC_FN uint32_t widen_part(float *y, const struct clb_rows *m, uint32_t row, uint32_t at,
                           uint32_t most)
{
    uint32_t n = m->cols - at < most ? m->cols - at : most;
    uint32_t padded = (n + CLB_GROUP - 1) / CLB_GROUP * CLB_GROUP;
    size_t first = (size_t)row * m->cols + at;

    if (row >= m->n_row)
        n = 0;
    else
        widen(y, (const char *)m->x + first * source_bytes(m->from), m->from, n);
    if (n < padded)
        memset(y + n, 0, (padded - n) * sizeof *y);
    return padded;
}

#endif
