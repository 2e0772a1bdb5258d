/* writer.h - writes a colibri.bin: first the plan (every offset is known before a weight is read),
 * then blocks in any order, at last the header with the checksums.
 *
 * The JSON header has a fixed length from the start: checksums are written as fixed-width numbers
 * (ten digits with leading spaces), so the data can be streamed before they are known. */
#ifndef CLB_FORMAT_WRITER_H
#define CLB_FORMAT_WRITER_H

#include <stdint.h>

#include "lib/format/arch.h"
#include "lib/format/dtype.h"
#include "lib/format/reader.h"

struct clb_write_plan;

struct clb_plan_options {
    const struct clb_arch *arch;             /* borrowed */
    const struct clb_generation *generation; /* borrowed */
    const char *converter;                   /* "colibri-convert 0.1.0 --dtype int8" */
    enum clb_dtype expert_dtype, dense_dtype, embed_dtype;
    const struct clb_source_file *sources; /* borrowed; crc32 comes by clb_plan_source_crc */
    uint32_t n_sources;
    const char *const *ignored_keys; /* borrowed */
    uint32_t n_ignored;
    const char *scale; /* "row", "expert", "tensor": recorded as information */
    struct {
        const char *name;
        uint64_t size;
    } section[8]; /* unused ones have name NULL */
};

bool clb_plan_new(struct clb_write_plan **out, const struct clb_plan_options *o,
                  struct clb_err *err);
void clb_plan_free(struct clb_write_plan *p);
uint64_t clb_plan_file_size(const struct clb_write_plan *p);
/* Same structs as the reader's; crc32 still 0. */
const struct clb_tensor *clb_plan_tensor(const struct clb_write_plan *p, uint32_t i);
const struct clb_expert_layer *clb_plan_experts(const struct clb_write_plan *p, uint32_t layer);
const struct clb_section *clb_plan_section(const struct clb_write_plan *p, const char *name);

/* Blocks must be written whole, with their padding, zeroed. Thread safe for different blocks. */
void clb_plan_tensor_crc(struct clb_write_plan *p, uint32_t i, uint32_t crc32);
void clb_plan_expert_crc(struct clb_write_plan *p, uint32_t layer, uint32_t expert, uint32_t crc32);
void clb_plan_section_crc(struct clb_write_plan *p, const char *name, uint32_t crc32);
void clb_plan_source_crc(struct clb_write_plan *p, uint32_t i, uint32_t crc32);
/* Prefix and JSON, padded to the page: write at offset 0. Fails when a checksum was never set (a
 * bug). */
bool clb_plan_header(const struct clb_write_plan *p, struct clb_text *out, struct clb_err *err);

#endif
