/* pattern.h - finding what a pre-tokeniser splits at.
 *
 * The patterns that models are published with are written out as C; which text a pattern is, is
 * decided once, when a tokenizer.json is compiled (clb_pattern_known). */
#ifndef CLB_TOKEN_PATTERN_H
#define CLB_TOKEN_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/token/tables.h"

/* The published regular expression, letter for letter, or CLB_FIND_NONE. */
enum clb_find clb_pattern_known(struct clb_str regex);

/* The leftmost match of s->find in [*from, end): sets *from and *to. False: there is none. Never
 * empty. */
bool clb_pattern_find(const struct clb_tokenizer *t, const struct clb_step *s, const char *end,
                      const char **from, const char **to);

/* The words `at`, `n` of PROGRAMS are a program that can be run. */
bool clb_program_check(const struct clb_tokenizer *t, struct clb_span words, struct clb_err *err);

#endif
