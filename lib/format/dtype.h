/* dtype.h - element types of stored matrices, and the tile layout of matrices that are multiplied.
 *
 * A tile is 16 output rows. Inside it one step is 64 bytes: 4 bytes of each of the 16 rows, rows in
 * order. The 4 bytes hold, of one row:
 *
 *     f32          1 input
 *     fp16, bf16   2 inputs, ascending
 *     int8         4 inputs, ascending, each stored as q + 128 (1..255; padding is 0x80)
 *     int4, mxfp4  8 inputs: in step s = 0..3 of a group of 32 inputs, byte j holds the code of
 *                  input 4s+j in its low and of input 16+4s+j in its high nibble
 *
 * Steps follow in ascending input order, tiles in ascending row order. Rows are padded to 16,
 * inputs to CLB_GROUP for int8 and 4-bit, to one step for floats; padded weights are zero (4-bit:
 * the code of the smallest magnitude in the book). int4 tiles begin with their f16 scales
 * [group][16 rows], mxfp4 tiles with their e8m0 scales (one byte each, [group][16 rows]), padded to
 * 64 bytes. int8 row scales are f32[rows padded to 16], after the tiles of the matrix, 64-byte
 * aligned. */
#ifndef CLB_FORMAT_DTYPE_H
#define CLB_FORMAT_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/str.h"

enum clb_dtype {
    CLB_F32,
    CLB_F16,
    CLB_BF16,
    CLB_INT8,
    CLB_INT4,
    CLB_MXFP4,
    CLB_DTYPE_COUNT,
};

enum {
    CLB_TILE = 16,  /* rows of a tile */
    CLB_GROUP = 32, /* inputs that share an activation scale: `activation_group` of the header */
    CLB_ALIGN = 64, /* of every part */
    CLB_PAGE = 4096 /* of the data section and of every expert block */
};

const char *clb_dtype_name(enum clb_dtype t); /* "f32", "fp16", "bf16", "int8", "int4", "mxfp4" */
bool clb_dtype_parse(struct clb_str name, enum clb_dtype *out);
/* f32, fp16, bf16: row-major is possible, activations are f32. */
bool clb_dtype_is_float(enum clb_dtype t);

/* Inputs padded as the layout asks. rows, cols >= 1 and < 2^31. */
uint32_t clb_cols_padded(enum clb_dtype t, uint32_t cols);
uint32_t clb_rows_padded(uint32_t rows);
/* Bytes of one tile for `cols` inputs (padded inside), 4-bit scales included. */
uint64_t clb_tile_bytes(enum clb_dtype t, uint32_t cols);
/* Where the steps start inside a tile (4-bit: behind the scales; else 0). */
uint64_t clb_tile_steps_at(enum clb_dtype t, uint32_t cols);
/* Bytes of all tiles, without int8 row scales. Fits in 64 bits for all legal rows and cols. */
uint64_t clb_tiles_bytes(enum clb_dtype t, uint32_t rows, uint32_t cols);
/* Bytes of the row scales (int8: 4 * padded rows; else 0). */
uint64_t clb_row_scale_bytes(enum clb_dtype t, uint32_t rows);
/* Row-major storage of a vector or of the embedding; only float types. */
uint64_t clb_rows_bytes(enum clb_dtype t, uint32_t rows, uint32_t cols);

/* A matrix as kernels see it: y = W x. All pointers borrowed. */
struct clb_matrix {
    enum clb_dtype dtype;
    uint32_t rows, cols;    /* outputs, inputs; not padded */
    const uint8_t *tiles;   /* tiles of 16 rows; NULL: there is no such matrix */
    const float *row_scale; /* int8: [rows padded to 16]; else NULL */
    const float *bias;      /* [rows], or NULL */
    const int8_t *book;     /* 4-bit: 16 values; else NULL */
};

/* One weight of a tiled matrix, dequantised (slow; for tests, inspect --diff and repacking). */
float clb_matrix_at(const struct clb_matrix *m, uint32_t row, uint32_t col);
/* One row, dequantised into out[cols]. */
void clb_matrix_row(const struct clb_matrix *m, uint32_t row, float *out);

/* The book of mxfp4: twice the e2m1 values, {0,1,2,3,4,6,8,12, -0.. -12}; a scale of e8m0 byte e is
 * 2^(e-127) and meets the doubled book, so the factor is 2^(e-128). */
extern const int8_t clb_book_mxfp4[16];
/* The default book of int4: not uniform (see doc/decisions.md for how it was chosen). It reaches
 * farther on its negative side, so group scales may be negative: the search for a scale tries both
 * signs. */
extern const int8_t clb_book_int4[16];
/* 2^(e-128) as a f32, subnormals included; e = 255 (NaN) must be refused by whoever reads the
 * source. */
float clb_e8m0(uint8_t e);

#endif
