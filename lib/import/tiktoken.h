/* tiktoken.h - compiles a tiktoken.model (lines of base64 and rank) into `tokenizer.tables`. For
 * checkpoints with neither tokenizer.json nor tokenizer.model.
 *
 * The file says how bytes merge. How text is split, and what the ids behind the ranks are, is code
 * of the checkpoint; what is known here is chosen by the class that tokenizer_config.json names,
 * and every other class is refused. */
#ifndef CLB_IMPORT_TIKTOKEN_H
#define CLB_IMPORT_TIKTOKEN_H

#include "lib/base/err.h"
#include "lib/base/str.h"

struct clb_tiktoken_source {
    struct clb_str model; /* bytes of tiktoken.model */
    const char *file;     /* its name for messages */
    /* tokenizer_config.json beside it, which names the class and the special tokens; p NULL: there
     * is none, which is refused */
    struct clb_str config;
    const char *config_file;
    uint32_t vocab_size; /* of the model; ids at or above it are refused */
};
/* out: the section's bytes; the same input gives the same bytes. */
bool clb_tiktoken_compile(struct clb_text *out, const struct clb_tiktoken_source *s,
                          struct clb_err *err);
/* Always false: the file is a tiktoken vocabulary that cannot be used. why: what it lacks. */
bool clb_tiktoken_refuse(const char *file, const char *why, struct clb_err *err);

#endif
