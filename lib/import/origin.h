/* origin.h - the weights of a planned conversion as the checkpoint has them, row by row: what a
 * finished file is compared with. */
#ifndef CLB_IMPORT_ORIGIN_H
#define CLB_IMPORT_ORIGIN_H

#include "lib/format/arch.h"
#include "lib/import/convert.h"
#include "lib/import/convert_io.h"

struct clb_origin {
    const char *dtype; /* static: "BF16" */
    uint32_t rows, cols;
    const struct clb_mapfile *file; /* NULL: computed by convert, in `values` */
    uint64_t at;                    /* of the first row */
    enum clb_dtype kind;            /* of the stored values */
    const struct clb_pack_kernels *kernels;
    const float *values;
    struct clb_kv_b kv_b; /* of k_up and v_up, which lie in one tensor; n_head 0: another one */
};

const struct clb_arch *clb_convert_arch(const struct clb_conversion *c);
/* The i-th tensor that the descriptor demands. */
void clb_origin_dense(const struct clb_conversion *c, uint32_t i, struct clb_origin *out);
void clb_origin_expert(const struct clb_conversion *c, uint32_t layer, uint32_t expert,
                       enum clb_part part, struct clb_origin *out);
/* One row as f32, exact; read explicitly, so that a shard cut short is an error. Thread safe. */
bool clb_origin_row(const struct clb_origin *o, uint32_t row, float *out, struct clb_err *err);

#endif
