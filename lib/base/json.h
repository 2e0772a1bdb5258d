/* json.h - pull reader for JSON from outside: no tree, no recursion, exact.
 *
 * The caller walks the document and asks for what it expects:
 *
 *     struct clb_json j;
 *     struct clb_str key;
 *     clb_json_open(&j, text, n, "config.json");
 *     clb_json_object(&j);
 *     while (clb_json_key(&j, &key)) {
 *         if (clb_str_is(key, "hidden_size")) hidden = clb_json_u64(&j, UINT32_MAX);
 *         else clb_json_skip(&j);
 *     }
 *     clb_json_end(&j);
 *     bool ok = clb_json_close(&j, err);
 *
 * The first error sticks: every later call returns false / 0 / an empty string, and clb_json_close
 * reports it with file, byte offset and the path of keys ("model.safetensors: byte 123:
 * 'a.b': ...", code CLB_BAD_INPUT). Refused: bytes that are not strict UTF-8 (surrogates,
 * overlong), anything outside RFC 8259, duplicate keys in one object (also when spelled with
 * escapes), depth over 128, lone surrogate escapes, anything but white space after the document. */
#ifndef CLB_BASE_JSON_H
#define CLB_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/base/str.h"

enum { CLB_JSON_DEPTH = 128 };

enum clb_json_type {
    CLB_JSON_ERROR,
    CLB_JSON_NULL,
    CLB_JSON_BOOL,
    CLB_JSON_NUMBER,
    CLB_JSON_STRING,
    CLB_JSON_ARRAY,
    CLB_JSON_OBJECT,
};

struct clb_json {
    const char *text; /* borrowed */
    size_t n, at;
    const char *file; /* borrowed; for messages */
    size_t value_at;  /* offset of the value read last (or peeked at) */
    uint64_t base;    /* where text[0] lies in the file (for messages); 0 after open */
    uint32_t depth;
    struct clb_json_state *state; /* owned: scratch, key sets, path; released by close */
    struct clb_err fault;         /* fault.code == CLB_OK while all is well */
};

/* Leaves *j in a state in which every other call is safe, also when memory ran out. */
void clb_json_open(struct clb_json *j, const char *text, size_t n, const char *file);
/* Checks that the document is complete and only white space follows; releases what the reader owns.
 * Must be called exactly once after open. True when no error occurred. */
bool clb_json_close(struct clb_json *j, struct clb_err *err);
/* Releases without the check for completeness (for callers that stop early). */
void clb_json_abandon(struct clb_json *j);
bool clb_json_ok(const struct clb_json *j);

/* Type of the next value, without consuming it. */
enum clb_json_type clb_json_peek(struct clb_json *j);
const char *clb_json_type_name(enum clb_json_type t); /* "a number", "an object", ... */

bool clb_json_object(struct clb_json *j);                   /* consumes '{' */
bool clb_json_key(struct clb_json *j, struct clb_str *key); /* false: '}' consumed, or an error */
bool clb_json_array(struct clb_json *j);                    /* consumes '[' */
bool clb_json_item(struct clb_json *j);                     /* false: ']' consumed, or an error */

/* `key` and strings are UTF-8 without a terminator, escapes resolved (NUL possible), borrowed:
 * valid until the next call of clb_json_key or clb_json_string on this reader. */
struct clb_str clb_json_string(struct clb_json *j);
/* Integers are exact or an error ("1.0" and "1e3" are not integers; range is checked). */
uint64_t clb_json_u64(struct clb_json *j, uint64_t max);
/* A key that is a whole number of at most nine digits; `what` it should be stands in the error. */
bool clb_json_number_key(struct clb_json *j, struct clb_str key, const char *what, uint32_t *n);
int64_t clb_json_i64(struct clb_json *j, int64_t min, int64_t max);
double clb_json_f64(struct clb_json *j); /* finite; correctly rounded */
bool clb_json_bool(struct clb_json *j);
bool clb_json_null(struct clb_json *j);
/* Skips one value of any kind with full validation; its raw text is put in *raw if not NULL. */
bool clb_json_skip(struct clb_json *j, struct clb_str *raw);

/* For the caller's own complaints about the value read last: sets the sticky error with the usual
 * coordinates. Always returns false. */
bool clb_json_fail(struct clb_json *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
