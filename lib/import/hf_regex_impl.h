/* hf_regex_impl.h - what the two files of the regex compiler share. Nobody else includes this. */
#ifndef CLB_IMPORT_HF_REGEX_IMPL_H
#define CLB_IMPORT_HF_REGEX_IMPL_H

#include "lib/base/err.h"
#include "lib/base/str.h"

enum {
    CLB_REGEX_CODE = 8192,
    CLB_REGEX_SETS = 64,
    CLB_REGEX_SET_WORDS = 4096,
    CLB_REGEX_DEPTH = 32,
};

struct clb_regex {
    struct clb_str pattern;
    const char *p, *end;
    struct clb_err *err;
    bool fold;          /* inside (?i: */
    bool failed;        /* err is filled */
    int depth;          /* of groups */
    int nested;         /* of looks and atomic groups */
    uint32_t last_fold; /* the literal before, if it was folded; 0: none */
    uint32_t code[CLB_REGEX_CODE], n;
    uint32_t set_at[CLB_REGEX_SETS], n_set;
    uint32_t set[CLB_REGEX_SET_WORDS], n_word;
};

/* Fills err, once, and ends the reading: r->p is at the end from here on. */
void clb_regex_refuse(struct clb_regex *r, const char *at, const char *what);

/* A set in the making: the words of lib/token/program.h, ranges at the end. NULL: refused. */
uint32_t *clb_regex_set_new(struct clb_regex *r);
void clb_regex_set_range(struct clb_regex *r, uint32_t *set, uint32_t low, uint32_t high);
/* With the other case of ASCII letters inside (?i: */
void clb_regex_set_folded(struct clb_regex *r, uint32_t *set, uint32_t low, uint32_t high);
/* After the last range: the answers for ASCII. */
void clb_regex_set_done(uint32_t *set);

/* The character of an escape that stands for one, r->p behind it; UINT32_MAX: it does not. r->p is
 * behind the backslash. */
uint32_t clb_regex_escaped_char(struct clb_regex *r);
/* An escape that is a set: \s \S \d \D \p \P. r->p is behind the backslash. */
void clb_regex_escaped_set(struct clb_regex *r, uint32_t *set);
/* [...]; r->p is on the bracket. False: refused. */
bool clb_regex_read_set(struct clb_regex *r);

#endif
