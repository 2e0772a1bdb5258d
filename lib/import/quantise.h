/* quantise.h - rows as they were published to tiles of any stored type (lib/format/dtype.h draws
 * the tiles), and what that loses. Which scale a row gets is decided here; the arithmetic is that
 * of kernels/pack.h. Results depend on nothing but the values: same bytes on every machine, in
 * every order. */
#ifndef CLB_IMPORT_QUANTISE_H
#define CLB_IMPORT_QUANTISE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/pack.h"

void clb_loss_add(struct clb_loss *sum, const struct clb_loss *l);
/* 10 log10(signal / noise); INFINITY when nothing was lost. */
double clb_loss_sqnr(const struct clb_loss *l);

/* The scale of a row (or of several) with this largest magnitude: max / 127, but 0 below the normal
 * numbers. */
float clb_int8_scale(float max_abs);
/* The scale of a row of n elements: of max / 127 and three that are up to 1.2 % smaller (and clip
 * the largest weight by at most 1.5 codes), the one of the least squared error. */
float clb_int8_row_scale(const struct clb_pack_kernels *k, const void *x, enum clb_dtype from,
                         uint32_t n);
/* The largest magnitude that the type takes (infinity and NaN are above it). */
float clb_pack_limit(enum clb_dtype t);
/* True when an element is not finite or beyond the limit; *at is the first one and *value what it
 * is. */
bool clb_find_beyond(const struct clb_pack_kernels *k, const void *x, enum clb_dtype from, size_t n,
                     float limit, size_t *at, float *value);

/* Packs rows. int8: row_scale[16] is read when given_scale, else filled. Adds to *loss. False when
 * an element is beyond the limit of the type: clb_find_beyond says which. */
struct clb_pack {
    const struct clb_pack_kernels *kernels;
    enum clb_dtype dtype;
    bool given_scale;
    const struct clb_int4_book *book; /* int4 */
};
bool clb_pack_tile(const struct clb_pack *p, uint8_t *tile, float *row_scale,
                   const struct clb_rows *m, struct clb_loss *loss);

#endif
