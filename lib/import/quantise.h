/* quantise.h - rows of f32 to tiles of any stored type (lib/format/dtype.h draws the tiles), and
 * what that loses. Results depend on nothing but the values: same bytes on every machine, in every
 * order. */
#ifndef CLB_IMPORT_QUANTISE_H
#define CLB_IMPORT_QUANTISE_H

#include <stddef.h>
#include <stdint.h>

#include "lib/format/dtype.h"
#include "lib/import/quantise_int4.h"

/* Sums over the values of a tensor; add up with clb_loss_add. */
struct clb_loss {
    uint64_t values;
    double signal, noise; /* sums of w^2 and (w - w')^2 */
    uint64_t underflows;  /* fp16: non-zero values that became zero, or lost bits as subnormals */
};
void clb_loss_add(struct clb_loss *sum, const struct clb_loss *l);
/* 10 log10(signal / noise); INFINITY when nothing was lost. */
double clb_loss_sqnr(const struct clb_loss *l);

/* The distance of rows in the buffer that clb_pack_tile reads: a multiple of 32. */
uint32_t clb_pack_stride(uint32_t cols);
/* The scale of a row (or of several) with this largest magnitude: max / 127, but 0 below the normal
 * numbers. */
float clb_int8_scale(float max_abs);
/* The scale of row w[n], n a multiple of 16: of max / 127 and three that are up to 1.2 % smaller
 * (and clip the largest weight by at most 1.5 codes), the one of the least squared error. */
float clb_int8_row_scale(const float *w, uint32_t n);
float clb_max_abs(const float *x, size_t n);
/* The largest magnitude that the type takes (infinity and NaN are above it). */
float clb_pack_limit(enum clb_dtype t);
/* True when an element is not finite or beyond the limit; *at is the first one. */
bool clb_find_beyond(const float *x, size_t n, float limit, size_t *at);

/* Packs n_row <= 16 rows: rows[16][clb_pack_stride(cols)], everything outside n_row x cols is zero.
 * int8: row_scale[16] is read when given_scale, else filled. Adds to *loss. */
struct clb_pack {
    enum clb_dtype dtype;
    uint32_t cols;
    bool given_scale;
    const struct clb_nearest *nearest; /* int4: borrowed */
};
void clb_pack_tile(const struct clb_pack *p, uint8_t *tile, float *row_scale, const float *rows,
                   uint32_t n_row, struct clb_loss *loss);

/* Widens stored values exactly. */
void clb_widen_bf16(float *y, const uint16_t *x, size_t n);
void clb_widen_f16(float *y, const uint16_t *x, size_t n);

#endif
