/* tiktoken_impl.h - what the files that read a tiktoken.model share. Nobody else includes this. */
#ifndef CLB_IMPORT_TIKTOKEN_IMPL_H
#define CLB_IMPORT_TIKTOKEN_IMPL_H

#include "lib/import/tiktoken.h"
#include "lib/token/build.h"

/* What the code of a class says and its files do not. */
struct tik_class {
    const char *name;     /* module.class, as auto_map has it */
    const char *pattern;  /* how text is split */
    uint32_t n_special;   /* ids behind the ranks */
    const char *reserved; /* an id that the configuration does not name is this, the id and "|>" */
};

struct tik {
    const struct clb_tiktoken_source *source;
    const struct tik_class *class;
    struct clb_str added; /* raw added_tokens_decoder; p NULL: absent */
    uint32_t n_rank;      /* tokens of the file */
    struct clb_build b;
    struct clb_err *err;
};

/* -- tiktoken_config.c: tokenizer_config.json -- */
/* Finds the class and the added tokens. */
bool clb_tik_class(struct tik *t);
/* The ids behind the ranks, which are all there. */
bool clb_tik_special(struct tik *t);

/* Always false: "FILE: why". */
bool clb_tik_fail(const struct tik *t, const char *file, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
