/* inspect.h - what colibri-inspect can say about a model file; one function a question. All print
 * to stdout. */
#ifndef COLIBRI_INSPECT_H
#define COLIBRI_INSPECT_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/base/str.h"
#include "lib/cli/engine.h"
#include "lib/format/reader.h"

#define PROGRAM "colibri-inspect"

struct inspect_options {
    bool json; /* for programs */
    bool quiet;
    bool many;       /* several files: say which one */
    bool verbose;
    uint64_t memory; /* --plan: limit, 0: none */
    uint32_t context, batch, threads, experts_per_token;
    const char *kv_dtype;
    struct clb_where where; /* --plan: GPUs */
    const char *source_dir; /* --against */
    const char *map;        /* --map: of the checkpoint; NULL: none */
    bool *differs;          /* set to true when the answer is no (--diff, --against) */
};

/* False: the file is bad or cannot be read, or stdout cannot be written. *differs (where there is
 * one): the question was answered, with no. */
bool inspect_header(const struct clb_reader *r, const struct inspect_options *o,
                    struct clb_err *err);
bool inspect_summary(const struct clb_reader *r, const struct inspect_options *o,
                     struct clb_err *err);
/* The lines of the summary that say what a descriptor describes. */
void inspect_describe(const struct clb_arch *a);
bool inspect_experts(const struct clb_reader *r, const struct inspect_options *o,
                     struct clb_err *err);
bool inspect_tensors(const struct clb_reader *r, const struct inspect_options *o,
                     struct clb_err *err);
bool inspect_verify(const struct clb_reader *r, const struct inspect_options *o,
                    struct clb_err *err);
bool inspect_plan(const struct clb_reader *r, const struct inspect_options *o, struct clb_err *err);
bool inspect_diff(const struct clb_reader *a, const struct clb_reader *b,
                  const struct inspect_options *o, struct clb_err *err);
bool inspect_against(const struct clb_reader *r, const struct inspect_options *o,
                     struct clb_err *err);
/* Where the architectures differ: as items of a JSON array, or (json NULL) as a table of three
 * columns on stdout. */
bool inspect_diff_fields(const struct clb_arch *a, const struct clb_arch *b, const char *columns,
                         struct clb_text *json, bool *differs, struct clb_err *err);
/* Prints a text that is complete, so that an error in the middle leaves no half of it. Frees
 * it. */
bool inspect_print(struct clb_text *t, struct clb_err *err);

/* Where the bytes are. */
enum inspect_kind {
    KIND_EMBEDDING,
    KIND_ATTENTION,
    KIND_NORMS,
    KIND_ROUTERS,
    KIND_EXPERTS,
    KIND_SHARED,
    KIND_DENSE,
    KIND_OUTPUT,
    KINDS
};
extern const char *const inspect_kind_name[KINDS];
enum inspect_kind inspect_kind_of(enum clb_role role); /* of a dense tensor */

/* "int8"; of the experts, and of the first dense matrix. */
const char *inspect_expert_dtype(const struct clb_reader *r);
const char *inspect_dense_dtype(const struct clb_reader *r);
/* "46.7 B", "3.9 M", "512"; buf has 32 bytes. */
const char *inspect_amount(char buf[static 32], double n);
/* A copy of text from a file that is safe on a terminal: control characters become '?'. */
const char *inspect_safe(char *buf, size_t room, const char *text);
/* Appends a JSON string without U+0085, U+2028 and U+2029: to some readers these end a line. */
void inspect_json(struct clb_text *out, struct clb_str s);
/* The name of the file, safe in the same way. */
enum { INSPECT_PATH = 512 };
const char *inspect_name(char buf[static INSPECT_PATH], const struct clb_reader *r);

#endif
