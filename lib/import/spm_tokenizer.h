/* spm_tokenizer.h - compiles a SentencePiece model (tokenizer.model) into `tokenizer.tables`: BPE
 * and Unigram. For checkpoints without a tokenizer.json. What is not understood is refused. */
#ifndef CLB_IMPORT_SPM_TOKENIZER_H
#define CLB_IMPORT_SPM_TOKENIZER_H

#include "lib/base/err.h"
#include "lib/base/str.h"

struct clb_spm_source {
    struct clb_str model; /* bytes of tokenizer.model */
    const char *file;     /* its name for messages */
    /* tokenizer_config.json beside it, which says what stands around a text and which tokens were
     * added; p NULL: there is none */
    struct clb_str config;
    const char *config_file;
    uint32_t vocab_size; /* of the model; ids at or above it are refused */
};
/* out: the section's bytes; the same input gives the same bytes. */
bool clb_spm_tokenizer_compile(struct clb_text *out, const struct clb_spm_source *s,
                               struct clb_err *err);

#endif
