/* layout.h - how big blocks are and how they are ordered: what writer and reader must agree on. */
#ifndef CLB_FORMAT_LAYOUT_H
#define CLB_FORMAT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/format/arch.h"
#include "lib/format/dtype.h"
#include "lib/format/reader.h"

/* Vectors and routers are f32, the embedding is any float, matrices are anything. */
bool clb_form_takes(enum clb_form form, enum clb_dtype t);
/* "rows" or "tiles", the value of `layout` in the header. */
const char *clb_form_layout(enum clb_form form);
/* "none", "row" or "group", the value of `scale` of an expert's part. */
const char *clb_scale_word(enum clb_dtype t);
/* Bytes of a dense tensor's block, a multiple of 64; *scale_at: where row scales start in it, 0:
 * none. No overflow for specs of a descriptor that clb_arch_check accepted. */
uint64_t clb_block_bytes(const struct clb_tensor_spec *s, enum clb_dtype t, uint64_t *scale_at);
/* Fills dtype, shape and the tightest places of the three parts; returns the bytes of the block. */
uint64_t clb_expert_layout(const struct clb_arch *a, enum clb_dtype t,
                           struct clb_expert_part part[CLB_PARTS]);
/* Bytes of one part from `at`: tiles, row scales, bias, each padded to 64. */
uint64_t clb_part_bytes(const struct clb_expert_part *p);

/* Everything behind the header, as one list in ascending order of offsets. */
struct clb_extent {
    uint64_t offset, size;
    uint32_t crc32;
    enum { CLB_EXTENT_TENSOR, CLB_EXTENT_EXPERT, CLB_EXTENT_SECTION } kind;
    uint32_t a, b; /* index of the tensor or section; index into experts[] and expert */
};
bool clb_extents_new(const struct clb_reader *r, struct clb_extent **out, size_t *n,
                     struct clb_err *err);
/* "tensor 'embed'", "layer 3 expert 17", "section 'chat_template'" */
const char *clb_extent_name(const struct clb_reader *r, const struct clb_extent *e,
                            char buf[static 96]);

#endif
