/* hf_tokenizer.h - compiles a Hugging Face tokenizer.json into `tokenizer.tables`. Anything in it
 * that is not understood is refused by name and byte offset, never defaulted. */
#ifndef CLB_IMPORT_HF_TOKENIZER_H
#define CLB_IMPORT_HF_TOKENIZER_H

#include "lib/base/err.h"
#include "lib/base/str.h"

/* json: the bytes of tokenizer.json; file: its name for messages; vocab_size: of the model (ids at
 * or above it are refused). out: the section's bytes; the same input gives the same bytes. */
bool clb_hf_tokenizer_compile(struct clb_text *out, const char *json, size_t n, const char *file,
                              uint32_t vocab_size, struct clb_err *err);

#endif
