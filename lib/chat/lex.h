/* lex.h - a template as tokens.
 *
 * White space is cut as Jinja does it with trim_blocks and lstrip_blocks: the newline behind a
 * block or a comment goes, and so does the white space before one that begins its line; a `-` takes
 * all white space on its side, a `+` keeps it. Comments and raw blocks are dealt with here. */
#ifndef CLB_CHAT_LEX_H
#define CLB_CHAT_LEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/base/str.h"

enum clb_token_type {
    CLB_T_END,
    CLB_T_DATA,        /* text between tags */
    CLB_T_BLOCK_BEGIN, /* {% */
    CLB_T_BLOCK_END,
    CLB_T_PRINT_BEGIN, /* {{ */
    CLB_T_PRINT_END,
    CLB_T_NAME,
    CLB_T_STRING, /* with its quotes */
    CLB_T_INT,
    CLB_T_FLOAT,
    CLB_T_OP, /* op: its characters */
};

/* Operators as numbers: the first character, and the second in the next byte. */
#define CLB_OP2(a, b) ((uint16_t)((a) | (b) << 8))

struct clb_token {
    uint8_t type;
    uint16_t op;
    struct clb_str text; /* of the source */
    union {
        int64_t i;
        double f;
    } u;
};

struct clb_lexer {
    const char *name; /* of the template */
    struct clb_str src;
    size_t at;
    uint8_t mode;       /* the token type that began it; CLB_T_DATA between tags */
    bool line_starting; /* what came before ends a line */
    uint8_t depth;      /* open brackets */
    char open[64];
    uint8_t next_begin; /* behind the data given out: the tag that begins there; else 0 */
    struct clb_str next_text;
    struct clb_err *err;
};

void clb_lex_open(struct clb_lexer *x, struct clb_str src, const char *name, struct clb_err *err);
/* False: x->err says why. */
bool clb_lex_next(struct clb_lexer *x, struct clb_token *t);

/* Line and column (in characters), from 1, of a byte of the template. */
void clb_lex_place(struct clb_str src, size_t at, unsigned *line, unsigned *column);
/* "name: line 3, column 14: ..." Always false. */
bool clb_template_fail(struct clb_err *err, const char *name, struct clb_str src, size_t at,
                       enum clb_code code, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));

/* Bytes of the white space character (as Python's str.isspace has it) at s < end; 0: none. */
size_t clb_space_at(const char *s, const char *end);
/* Bytes of the white space character that ends before `end`. */
size_t clb_space_before(const char *s, const char *end);
struct clb_str clb_strip(struct clb_str s, bool left, bool right);

#endif
