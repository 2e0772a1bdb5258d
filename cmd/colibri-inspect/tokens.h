/* tokens.h - colibri-inspect --encode and --decode: a tokenizer on lines of JSON.
 *
 * `path` is a colibri.bin, a tokenizer.json, a tokenizer.model, or a folder with one of the two.
 * Lines are read from `in`, each is answered on stdout by one line, flushed at once; empty lines
 * are passed over. The first line that is not as described ends it with an error that names the
 * line. */
#ifndef CLB_INSPECT_TOKENS_H
#define CLB_INSPECT_TOKENS_H

#include <stdbool.h>
#include <stdio.h>

#include "lib/base/err.h"

/* {"text": "...", "add_special": true} -> {"ids": [...]}; add_special may be absent: true. */
bool inspect_encode(const char *path, bool parse_special, FILE *in, struct clb_err *err);
/* {"ids": [...]} -> {"text": "...", "pieces": [...]}: the decode of all, and what a stream prints,
 * piece by piece (also pieces that are empty) and at the end. */
bool inspect_decode(const char *path, bool skip_special, FILE *in, struct clb_err *err);

#endif
