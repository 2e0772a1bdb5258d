/* safetensors.h - one safetensors file: 8 bytes of header length, a JSON header, raw tensors.
 *
 * Written for hostile files. After open succeeds every tensor lies inside the file, its shape times
 * its dtype is exactly its bytes, and the tensors cover the data without overlap, hole or rest. */
#ifndef CLB_IMPORT_SAFETENSORS_H
#define CLB_IMPORT_SAFETENSORS_H

#include <stdint.h>

#include "lib/base/err.h"
#include "lib/base/mapfile.h"
#include "lib/base/str.h"
#include "lib/format/dtype.h"

/* Every dtype the format names; convert reads only some of them. */
enum clb_st_dtype {
    CLB_ST_F32,
    CLB_ST_F16,
    CLB_ST_BF16,
    CLB_ST_F64,
    CLB_ST_F8_E4M3,
    CLB_ST_F8_E5M2,
    CLB_ST_F8_E8M0,
    CLB_ST_I8,
    CLB_ST_U8,
    CLB_ST_I16,
    CLB_ST_U16,
    CLB_ST_I32,
    CLB_ST_U32,
    CLB_ST_I64,
    CLB_ST_U64,
    CLB_ST_BOOL,
    CLB_ST_COUNT,
};
enum { CLB_ST_RANK = 8 };

struct clb_st_tensor {
    const char *name; /* borrowed from its clb_safetensors */
    enum clb_st_dtype dtype;
    uint32_t rank;
    uint64_t shape[CLB_ST_RANK];
    uint64_t begin, end; /* bytes of the file */
};

struct clb_safetensors {
    struct clb_mapfile map;
    uint64_t data_at;             /* where the header ends */
    struct clb_st_tensor *tensor; /* [n_tensor] owned, as the header lists them */
    uint32_t n_tensor;
    const struct clb_st_tensor **order; /* [n_tensor] owned, by ascending offset */
    struct clb_text names;              /* owned: all names, each terminated */
};

bool clb_safetensors_open(struct clb_safetensors *st, const char *path, struct clb_err *err);
void clb_safetensors_close(struct clb_safetensors *st); /* safe on a zeroed struct */

const char *clb_st_dtype_name(enum clb_st_dtype t); /* "F32", "BF16", ... */
uint32_t clb_st_dtype_bytes(enum clb_st_dtype t);
/* F32, F16 and BF16 as a type of the file. */
enum clb_dtype clb_st_as_dtype(enum clb_st_dtype t);
/* "[8, 96]" into buf; a shape that does not fit ends in "...". Returns buf. */
enum { CLB_ST_SHAPE_TEXT = 80 };
const char *clb_st_shape_text(char buf[static CLB_ST_SHAPE_TEXT], const uint64_t *shape,
                              uint32_t rank);

/* What people often have instead of the file they wanted: a sentence when the bytes are a Git LFS
 * pointer or an HTML page, else NULL. */
const char *clb_import_not_the_file(const void *bytes, size_t n);

#endif
