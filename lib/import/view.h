/* view.h - a matrix or a vector as it lies inside a tensor of the checkpoint.
 *
 * Checkpoints keep several matrices in one tensor (all experts of a layer, gate beside up), rows
 * and columns swapped, or codes that need a scale. A view says where element (row, column) is: at
 * index  first + row / group_rows * group_step + row % group_rows * row_step + column * col_step
 * of the tensor. Made by bind.c, read by convert_read.c. */
#ifndef CLB_IMPORT_VIEW_H
#define CLB_IMPORT_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/import/checkpoint.h"

struct clb_view {
    const struct clb_ckpt_tensor *t;     /* borrowed; NULL: there is none */
    const struct clb_ckpt_tensor *scale; /* of the blocks of FP8, of the groups of MXFP4, or NULL */
    uint32_t rows, cols;                 /* a vector has one row */
    uint32_t group_rows;
    uint64_t first, group_step, row_step, col_step;
    uint32_t line;                   /* elements of the tensor's own rows */
    uint32_t block_rows, block_cols; /* FP8: what shares a scale */
    /* Equal parts of the tensor (and of its scales), and the one that this view lies in. */
    uint32_t slices, slice;
    /* This view is the one that reads its slice (of the scales) for the checksum of the source. */
    bool counts, scale_counts;
};

/* The type of its values: of FP8 f32, of MXFP4 that, else the one that is stored. */
enum clb_dtype clb_view_dtype(const struct clb_view *v);
/* Bits of a stored element: 4, 8, 16 or 32. */
uint32_t clb_view_bits(const struct clb_view *v);
/* Index in the tensor of an element. */
uint64_t clb_view_index(const struct clb_view *v, uint32_t row, uint32_t col);
/* Bytes of the tensor before the element with this index; a whole number wherever rows start. */
uint64_t clb_view_byte(const struct clb_view *v, uint64_t index);
/* Rows follow each other without a gap. */
bool clb_view_is_dense(const struct clb_view *v);
/* Reading it row by row is reading its slice from start to end. */
bool clb_view_is_slice(const struct clb_view *v);
/* Row and column swapped: a row is spread over the slice. */
bool clb_view_is_turned(const struct clb_view *v);

/* Bytes of all of its elements. */
uint64_t clb_view_bytes(const struct clb_view *v);

#endif
