/* hf_regex.h - regular expressions of tokenizer.json files, compiled to the programs of
 * lib/token/program.h.
 *
 * The syntax is Oniguruma's (Ruby), as far as it is understood; anything else is refused by name
 * and place: captures that are referred to, look-behind, \w \b \h \X, named scripts but Han, set
 * operations but [...&&[^\p{Han}]]. */
#ifndef CLB_IMPORT_HF_REGEX_H
#define CLB_IMPORT_HF_REGEX_H

#include "lib/base/err.h"
#include "lib/base/str.h"

/* Appends the program's words to out. err says what is wrong and at which byte of the pattern. */
bool clb_hf_regex_compile(struct clb_text *out, struct clb_str pattern, struct clb_err *err);

#endif
