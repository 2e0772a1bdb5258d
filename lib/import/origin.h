/* origin.h - the weights of a planned conversion as the checkpoint has them, row by row: what a
 * finished file is compared with. */
#ifndef CLB_IMPORT_ORIGIN_H
#define CLB_IMPORT_ORIGIN_H

#include "lib/format/arch.h"
#include "lib/import/convert.h"
#include "lib/import/convert_io.h"

/* One matrix. Not to be moved once a row was read. */
struct clb_origin {
    const struct clb_conversion *c; /* borrowed */
    const char *dtype;              /* static: "BF16" */
    uint32_t rows, cols;
    const float *values;         /* borrowed: computed by convert; NULL: in the checkpoint */
    const struct clb_view *view; /* borrowed */
    struct clb_convert_io io;
    struct clb_worker w; /* owned */
    struct clb_source in;
    uint32_t first, n; /* the rows that are in w.in */
};

const struct clb_arch *clb_convert_arch(const struct clb_conversion *c);
/* The i-th tensor that the descriptor demands. */
void clb_origin_dense(const struct clb_conversion *c, uint32_t i, struct clb_origin *out);
void clb_origin_expert(const struct clb_conversion *c, uint32_t layer, uint32_t expert,
                       enum clb_part part, bool bias, struct clb_origin *out);
/* One row as f32, exact; read explicitly, so that a shard cut short is an error. Rows in ascending
 * order are read fastest. */
bool clb_origin_row(struct clb_origin *o, uint32_t row, float *out, struct clb_err *err);
void clb_origin_done(struct clb_origin *o); /* safe on a zeroed struct */

#endif
