/* opt.h - one table per program gives the parser, --help, the bash completion and the OPTIONS of
 * the man page.
 *
 * Options may stand anywhere before "--"; letters group ("-qv"), values may follow "=" or a space.
 * Numbers are parsed whole and range-checked, and the message shows the range. */
#ifndef CLB_CLI_OPT_H
#define CLB_CLI_OPT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "lib/base/err.h"

enum clb_opt_kind {
    CLB_OPT_END,
    CLB_OPT_GROUP,  /* a heading in --help; no option */
    CLB_OPT_FLAG,   /* bool *: set to true */
    CLB_OPT_COUNT,  /* int *: +1 each time (-v -v) */
    CLB_OPT_STRING, /* const char ** */
    CLB_OPT_FILE,   /* the same; not empty */
    CLB_OPT_LIST,   /* struct clb_opt_list *: may be given several times */
    CLB_OPT_UINT,   /* uint32_t * within [lo, hi] */
    CLB_OPT_U64,    /* uint64_t *: any; lo and hi do not count */
    CLB_OPT_FLOAT,  /* float * within [lo, hi] */
    CLB_OPT_SIZE,   /* uint64_t *: bytes; not 0; K M G T are powers of 1024 ("8G", "1.5G") */
    CLB_OPT_CHOICE, /* const char **: one of the words in `arg`, "a|b|c" */
    CLB_OPT_UINTS,  /* struct clb_opt_uints *: "1,4,16", each within [lo, hi] */
};

enum { CLB_OPT_MANY = 32 };
struct clb_opt_list {
    const char *value[CLB_OPT_MANY];
    uint32_t n;
};
struct clb_opt_uints {
    uint32_t value[CLB_OPT_MANY];
    uint32_t n;
};

struct clb_opt {
    enum clb_opt_kind kind;
    char letter;      /* 0: long form only */
    const char *name; /* "threads"; for a group, the heading */
    const char *arg;  /* "N"; NULL when the option takes nothing; for CHOICE the words; "[50]": a
                         number that may be left out, and then is 50 */
    const char *help; /* one line; says the default when there is one */
    void *dst;
    double lo, hi; /* UINT, FLOAT, UINTS */
    bool hidden;   /* not in --help and completion (tests) */
};

struct clb_program {
    const char *name, *synopsis, *summary;
    const struct clb_opt *opts;
    const char *example; /* printed at the end of --help; one or two lines */
};

/* Rows every program shares (-q -v -h -V --completions); defined as a macro so that tables stay
 * const arrays. */
struct clb_common {
    bool quiet, help, version, completions;
    int verbose;
};
#define CLB_OPT_COMMON(c)                                                                          \
    { CLB_OPT_COUNT, 'v', "verbose", NULL, "say more; twice for where errors arose",               \
      &(c)->verbose, 0, 0, false },                                                                \
    { CLB_OPT_FLAG, 'q', "quiet", NULL, "say nothing but errors", &(c)->quiet, 0, 0, false },      \
    { CLB_OPT_FLAG, 'h', "help", NULL, "print this and exit", &(c)->help, 0, 0, false },           \
    { CLB_OPT_FLAG, 'V', "version", NULL, "print the version and exit", &(c)->version, 0, 0,       \
      false },                                                                                     \
    { CLB_OPT_FLAG, 0, "completions", NULL, "print the options for a shell", &(c)->completions, 0, \
      0, true }

/* argv is permuted so that operands come last; *operand is the index of the first one. Operands are
 * files and are not empty. */
bool clb_opt_parse(const struct clb_program *p, int argc, char **argv, int *operand,
                   struct clb_err *err);
/* Fits one screen: at most 46 lines of 80. */
void clb_opt_help(const struct clb_program *p, FILE *out);
/* One option a line, '=' behind those with a value, then the words of a CHOICE. */
void clb_opt_completions(const struct clb_program *p, FILE *out);

/* Parses, then handles --help, --version and --completions. Returns -1 to go on, else the exit
 * status: 0 after help, 2 after a usage error was printed as "NAME: what is wrong" and "NAME: try
 * 'NAME --help'". A file size limit no longer kills: writing fails instead, with EFBIG. */
int clb_opt_start(const struct clb_program *p, const struct clb_common *c, int argc, char **argv,
                  int *operand);

/* The same forms for operands and fields. */
bool clb_parse_size(const char *text, uint64_t *out);
bool clb_parse_uint(const char *text, uint64_t lo, uint64_t hi, uint64_t *out);

#endif
