/* pack.h - leaf kernels of conversion: rows as they were published to tiles of the file.
 *
 * The rules of kernels.h hold: the scalar implementation is the definition, every level gives the
 * same bits (sums of the loss included), and each sum has 16 lanes and one tree. Weights are finite
 * and within the type's limit: `largest` tells beforehand. */
#ifndef CLB_KERNELS_PACK_H
#define CLB_KERNELS_PACK_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "lib/format/dtype.h"

/* Up to 16 rows, which become one tile: [n_row][cols] of f32, fp16 or bf16, side by side. */
struct clb_rows {
    const void *x;
    enum clb_dtype from;
    uint32_t n_row, cols;
};

/* What storing lost: sums over the values of a tensor. */
struct clb_loss {
    uint64_t values;
    double signal, noise; /* sums of w^2 and (w - w')^2 */
    uint64_t underflows;  /* fp16: non-zero values that became zero, or lost bits as subnormals */
};

/* A book of 16 values, ascending, and how the nearest of them is found. A number on the scale of
 * the book is rounded down to 1/32; floor(number / 8), cut to -16 ... 15, is its bin, and inside a
 * bin there is at most one midpoint of two values: code = base[bin & 31] + (place within the bin >=
 * edge[bin & 31]). */
enum { CLB_INT4_STARTS = 26 };
struct clb_int4_book {
    int8_t value[16];
    int8_t base[32];
    uint8_t edge[32];
    uint8_t zero; /* the code of the smallest magnitude */
    /* Where the search begins: 64 times what the largest weight becomes in the book. */
    int16_t start[CLB_INT4_STARTS];
};
/* value: ascending, with 0 among them; values two places apart differ by 16 or more. */
void clb_int4_book_init(struct clb_int4_book *b, const int8_t value[16]);

/* Magnitudes up to this have a finite f16 scale wherever the search may put them (81 and more). */
#define CLB_INT4_LIMIT (65504.0f * 80)

enum { CLB_INT8_TRIES = 4 };

struct clb_pack_kernels {
    /* The largest magnitude, as the bits of a f32: above 0x7f7fffff when an element is not finite.
     * n >= 0. */
    uint32_t (*largest)(const void *x, enum clb_dtype from, size_t n);
    /* To f32, exactly. */
    void (*widen)(float *y, const void *x, enum clb_dtype from, size_t n);
    /* Squared errors of the codes of a row, for four scales at once: x = w * inverse; lanes of
     * (x - q)^2, q = rint(x) within +-127; the tree. */
    void (*int8_noise)(float noise[CLB_INT8_TRIES], const void *x, enum clb_dtype from, uint32_t n,
                       const float inverse[CLB_INT8_TRIES]);
    /* x = w / scale of the row; q = rint(x), within +-127; the byte is q + 128. A row with scale 0
     * is zero. Loss, for at most 256 columns at a time: lanes of x^2 and (x - q)^2, each tree times
     * scale^2. */
    void (*int8)(uint8_t *tile, const struct clb_rows *m, const float scale[CLB_TILE],
                 struct clb_loss *loss);
    /* Group by group (pack_int4_scalar.c says how a scale is found). */
    void (*int4)(uint8_t *tile, const struct clb_rows *m, const struct clb_int4_book *book,
                 struct clb_loss *loss);
    /* To f32, fp16 or bf16, rounded to nearest even. */
    void (*floats)(uint8_t *tile, const struct clb_rows *m, enum clb_dtype to,
                   struct clb_loss *loss);
};

/* Fills every slot for exactly `isa`: a pure function. */
void clb_pack_kernels_for(struct clb_pack_kernels *k, enum clb_isa isa);

/* One per folder, as in kernels.h. */
void clb_fill_pack_scalar(struct clb_pack_kernels *k);
void clb_fill_pack_int4_scalar(struct clb_pack_kernels *k);
void clb_fill_pack_avx2(struct clb_pack_kernels *k);
void clb_fill_pack_int4_avx2(struct clb_pack_kernels *k);
void clb_fill_pack_neon(struct clb_pack_kernels *k);
void clb_fill_pack_int4_neon(struct clb_pack_kernels *k);

/* Shared by the levels: a group that no scale can hold is lost whole. */
void clb_int4_lost(const float w[CLB_GROUP], struct clb_loss *loss);

#endif
