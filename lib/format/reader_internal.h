/* reader_internal.h - the steps of clb_reader_open, each in its own file. */
#ifndef CLB_FORMAT_READER_INTERNAL_H
#define CLB_FORMAT_READER_INTERNAL_H

#include "lib/base/json.h"
#include "lib/format/reader.h"

/* reader_header.c: the JSON in r->json to the structs of *r. Every count is as the descriptor
 * demands, every number within 63 bits; places are not checked yet. */
bool clb_header_parse(struct clb_reader *r, struct clb_err *err);
/* reader_check.c: every block has the type, size and alignment that its spec needs, lies behind the
 * header and inside the file, and no two overlap. */
bool clb_header_check(const struct clb_reader *r, uint64_t data_at, struct clb_err *err);

/* While the header is read. Errors stick to `j`, as everywhere with the JSON reader. */
struct clb_header {
    struct clb_reader *r;
    struct clb_json j;
    struct clb_err oom; /* code CLB_OK unless memory ran out */
    char field[128];    /* the descriptor's field at fault */
    uint32_t seen;      /* bit i: row i of `keys` was there */
    uint64_t size[5];   /* the sizes that the top level repeats from the descriptor */
    bool has_int4, has_mxfp4;
};

/* Sections of the header, in reader_blocks.c; the reader stands before their value. */
void clb_header_tensors(struct clb_header *h);
void clb_header_experts(struct clb_header *h);
void clb_header_sections(struct clb_header *h);
/* Helpers of both files. The first two set the sticky error and return false. */
bool clb_header_missing(struct clb_header *h, const char *what, const char *key);
bool clb_header_no_memory(struct clb_header *h);
/* Index of key in a list that ends with NULL; -1: not there. */
int clb_header_index(struct clb_str key, const char *const *list);
uint32_t clb_header_crc(struct clb_header *h);
uint64_t clb_header_place(struct clb_header *h); /* an offset or a size, within 63 bits */
/* Makes room for one more element of a list of n: 1, 2, 4, 8, ... in proportion to what was read.
 * NULL: failed. */
void *clb_header_grow(struct clb_header *h, void *list, uint32_t n, size_t size);

#endif
