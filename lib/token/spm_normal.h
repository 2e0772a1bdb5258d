/* spm_normal.h - the normaliser of SentencePiece models. */
#ifndef CLB_TOKEN_SPM_NORMAL_H
#define CLB_TOKEN_SPM_NORMAL_H

#include "lib/token/encode.h"

bool clb_spm_check(const struct clb_tokenizer *t, const struct clb_step *step, struct clb_err *err);
/* Appends what CLB_DO_SPM makes of the part. Tokens of the second trie stay as they are. */
void clb_spm_normalise(const struct clb_tokenizer *t, const struct clb_step *step,
                       struct clb_part part, struct clb_text *out);

#endif
