/* program.h - compiled patterns: the words that lib/import/hf_regex.c writes and program.c runs.
 *
 *   n_code, n_set, set_at[n_set] (from the start of the program), code[n_code], sets
 *
 * An instruction is operation | argument << 8; distances count words from the instruction itself.
 * A set is: flags, categories (bit c: clb_uc_category c), ascii[4] (the answer for 0..127, negation
 * included), n_range, n_range times {low, high}. */
#ifndef CLB_TOKEN_PROGRAM_H
#define CLB_TOKEN_PROGRAM_H

#include "lib/token/tables.h"

enum clb_program_op {
    CLB_P_END = 1,    /* matched */
    CLB_P_CHAR,       /* this code point */
    CLB_P_SET,        /* one character of the set */
    CLB_P_REPEAT,     /* characters of the set; words: enum clb_greed, least, most */
    CLB_P_SPLIT,      /* go on here, and if that fails at the distance */
    CLB_P_SPLIT_LAZY, /* the other way round */
    CLB_P_JUMP,       /* forward by the distance */
    CLB_P_BACK,       /* back by the distance */
    CLB_P_LOOK,       /* what follows, to its END, matches here; then go on at the distance */
    CLB_P_LOOK_NOT,
    CLB_P_ATOMIC, /* what follows, to its END, is matched once and for all */
    CLB_P_LINE_START,
    CLB_P_LINE_END,
    CLB_P_TEXT_START,
    CLB_P_TEXT_END,
    CLB_P_TEXT_LINE_END, /* at the end, or before a newline that ends it */
    CLB_P_N,
};
enum clb_greed { CLB_GREEDY, CLB_LAZY, CLB_POSSESSIVE };
enum clb_set_flags {
    CLB_SET_NEGATED = 1 << 0,
    CLB_SET_SPACE = 1 << 1,
    CLB_SET_NOT_SPACE = 1 << 2,
    CLB_SET_HAN = 1 << 3,
    CLB_SET_NOT_HAN = 1 << 4,
    CLB_SET_SORTED = 1 << 5,  /* ranges ascend and leave gaps between them */
    CLB_SET_BUT_HAN = 1 << 6, /* Han is not in it, whatever the rest says */
};
enum { CLB_SET_WORDS = 7, CLB_PROGRAM_MOST = 1 << 14, CLB_PROGRAM_NESTED = 8 };

/* The words `at`, `n` of PROGRAMS are a program that can be run without a further check. */
bool clb_program_check(const struct clb_tokenizer *t, struct clb_span words, struct clb_err *err);
/* Bytes taken at p, 0: no match there. [begin, end) is the text. Every step takes one from *budget;
 * when it is used up the answer is 0. */
size_t clb_program_run(const uint32_t *program, const char *begin, const char *p, const char *end,
                       uint64_t *budget);
/* The leftmost match of the program in [begin, end) from *from on: sets *from and *to. */
bool clb_program_find(const uint32_t *program, const char *begin, const char *end,
                      const char **from, const char **to, uint64_t *budget);
bool clb_set_has(const uint32_t *set, uint32_t c);

#endif
