/* reader.h - an open colibri.bin: mapped, parsed, every number checked once.
 *
 * After clb_reader_open succeeds, every pointer it hands out lies inside the mapping with its whole
 * extent, is aligned, and has the dtype and shape that the descriptor demands: nobody checks again.
 * man/colibri.bin.5 specifies the file. Written for hostile input: no arithmetic without overflow
 * checks, no allocation from an unchecked length, time and memory bounded by the size of the
 * header. */
#ifndef CLB_FORMAT_READER_H
#define CLB_FORMAT_READER_H

#include <stdint.h>

#include "lib/base/mapfile.h"
#include "lib/format/arch.h"
#include "lib/format/dtype.h"

#define CLB_MAGIC "COLIBRI" /* and a NUL: 8 bytes */
enum { CLB_FORMAT_VERSION = 1, CLB_PREFIX_BYTES = 24 };

struct clb_tensor {
    struct clb_tensor_spec spec;
    char name[64];
    enum clb_dtype dtype;
    uint64_t offset, size; /* of the whole block: tiles (or rows), row scales, padding */
    uint64_t scale_offset; /* absolute; int8 only, else 0 */
    uint32_t crc32;
};

struct clb_expert_part {
    enum clb_dtype dtype;
    uint32_t rows, cols;
    uint64_t at;                /* inside the expert's block */
    uint64_t scale_at, bias_at; /* inside the block; 0: none */
};

/* The experts of one layer; every expert of a layer has the same parts. */
struct clb_expert_layer {
    uint32_t layer, count;
    uint64_t *offset; /* [count] owned */
    uint64_t *size;   /* [count] owned; with the padding of parts, without that to the page */
    uint32_t *crc32; /* [count] owned */
    struct clb_expert_part part[CLB_PARTS];
};

struct clb_section {
    char name[64]; /* "tokenizer.source", "tokenizer.tables", "chat_template" */
    uint64_t offset, size;
    uint32_t crc32;
};

struct clb_source_file {
    char *file; /* owned */
    uint64_t size;
    uint32_t crc32;
};

/* Defaults for generation that the publisher shipped; negative or NAN: not given. */
struct clb_generation {
    int32_t bos_token; /* -1: none */
    int32_t eos_token[16];
    uint32_t n_eos;
    uint32_t n_text_eos; /* so many at the end only the tokenizer names: text ends there, not ids */
    float temperature, top_p, min_p, repetition_penalty; /* NAN: not given */
    int32_t top_k;                                       /* -1: not given */
};

struct clb_reader {
    struct clb_mapfile map; /* size 0 when opened from memory */
    const uint8_t *data;    /* the whole file */
    uint64_t size;
    const char *path;    /* for messages */
    struct clb_str json; /* the header text, padding trimmed; borrowed from the mapping */
    char converter[128]; /* what wrote the file */
    char scale[16];      /* information: int8 scales are per "row", "expert" or "tensor" */
    struct clb_arch arch;
    struct clb_generation generation;
    int8_t code_int4[16], code_mxfp4[16]; /* the books */
    struct clb_tensor *tensors;           /* [n_tensors] owned, in the order of clb_arch_tensor */
    uint32_t n_tensors;
    struct clb_expert_layer *experts; /* [n_expert_layers] owned, ascending layers */
    uint32_t n_expert_layers;
    struct clb_section *sections; /* owned */
    uint32_t n_sections;
    struct clb_source_file *sources; /* owned */
    uint32_t n_sources;
    struct clb_str *ignored_keys; /* [n_ignored] owned, texts too, terminated (--ignore-key) */
    uint32_t n_ignored;
};

bool clb_reader_open(struct clb_reader *r, const char *path, struct clb_err *err);
/* `bytes` stay the caller's and must outlive the reader; 64-byte alignment is required. */
bool clb_reader_open_memory(struct clb_reader *r, const void *bytes, size_t n, struct clb_err *err);
void clb_reader_close(struct clb_reader *r); /* safe on a zeroed struct */

/* NULL when the descriptor demands no such tensor. */
const struct clb_tensor *clb_reader_find(const struct clb_reader *r, enum clb_role role,
                                         uint32_t layer);
const void *clb_reader_data(const struct clb_reader *r, const struct clb_tensor *t);
/* A tiled tensor as a matrix (bias NULL: it is a tensor of its own); NULL gives tiles NULL. */
struct clb_matrix clb_reader_matrix(const struct clb_reader *r, const struct clb_tensor *t);
/* NULL for a dense layer. */
const struct clb_expert_layer *clb_reader_experts(const struct clb_reader *r, uint32_t layer);
/* One projection of an expert, given where the expert's block lies in memory (mapping or cache). */
struct clb_matrix clb_expert_matrix(const struct clb_reader *r, const struct clb_expert_layer *l,
                                    enum clb_part part, const uint8_t *block);
const struct clb_section *clb_reader_section(const struct clb_reader *r, const char *name);

/* Reads everything, compares every checksum and demands zero gaps: every changed byte of the file
 * is found. Reports each block, and each gap that is not zero, through `each` (may be NULL; called
 * by one thread at a time, in any order) and goes on; false with the first failure in err. */
typedef void clb_verify_fn(void *arg, const char *what, uint64_t offset, uint64_t size, bool ok);
bool clb_reader_verify(const struct clb_reader *r, clb_verify_fn *each, void *arg,
                       struct clb_err *err);

#endif
