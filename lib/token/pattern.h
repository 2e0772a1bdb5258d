/* pattern.h - finding what a pre-tokeniser splits at.
 *
 * The patterns that models are published with are written out as C (pattern.c), others are compiled
 * (program.h). Which it is, is decided once, when a tokenizer.json is read (clb_pattern_known). */
#ifndef CLB_TOKEN_PATTERN_H
#define CLB_TOKEN_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/token/encode.h"

/* The published regular expression, letter for letter, or CLB_FIND_NONE. */
enum clb_find clb_pattern_known(struct clb_str regex);

/* The leftmost match of s->find in the part from *from on: sets *from and *to. False: there is
 * none, or *budget (steps of compiled patterns) came to 0. Never empty. */
bool clb_pattern_find(const struct clb_tokenizer *t, const struct clb_step *s,
                      const struct clb_part *part, const char **from, const char **to,
                      uint64_t *budget);

#endif
