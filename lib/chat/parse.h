/* parse.h - from tokens to the tree; expressions in parse_operator.c and parse_expr.c, statements
 * in parse.c. Functions return a node, 0 when p->err was filled. */
#ifndef CLB_CHAT_PARSE_H
#define CLB_CHAT_PARSE_H

#include "lib/chat/lex.h"
#include "lib/chat/tree.h"

struct clb_parser {
    struct clb_template *t;
    struct clb_lexer x;
    struct clb_token tok, ahead; /* the next token, and the one behind it */
    bool has_ahead;
    unsigned depth, loops;
    uint8_t *uses; /* of the macro around; NULL: none */
    struct clb_err *err;
};

size_t clb_parse_at(const struct clb_parser *p); /* where the next token stands */
bool clb_parse_next(struct clb_parser *p);       /* takes the token */
/* The token behind the next one is the operator `op`, the name. */
bool clb_parse_ahead_is(struct clb_parser *p, uint16_t op);
bool clb_parse_ahead_is_name(struct clb_parser *p, const char *name);
bool clb_parse_is_op(const struct clb_parser *p, uint16_t op);
bool clb_parse_is_name(const struct clb_parser *p, const char *name);
/* Takes it if it is there; false: it is not, or (p->err has a code then) the next is no token. */
bool clb_parse_skip_op(struct clb_parser *p, uint16_t op);
bool clb_parse_skip_name(struct clb_parser *p, const char *name);
bool clb_parse_want_op(struct clb_parser *p, uint16_t op);
/* All fail at the next token, or at `at`. */
uint32_t clb_parse_fail(struct clb_parser *p, enum clb_code code, size_t at, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
uint32_t clb_parse_unexpected(struct clb_parser *p, const char *wanted);
uint32_t clb_parse_node(struct clb_parser *p, enum clb_node_kind kind, size_t at);
bool clb_parse_symbol(struct clb_parser *p, uint32_t *symbol); /* takes a name */
bool clb_parse_deeper(struct clb_parser *p);                   /* p->depth-- afterwards */

/* A list of nodes in the making: `first` is what its owner points to. */
struct clb_nodes {
    uint32_t first, last;
};
bool clb_nodes_add(struct clb_parser *p, struct clb_nodes *list, uint32_t node);

uint32_t clb_parse_expression(struct clb_parser *p);
/* Without "a if b else c" at the top. */
uint32_t clb_parse_or(struct clb_parser *p);
/* One item, or several with commas: a tuple. After a comma `ends` says whether one more follows. */
typedef uint32_t clb_parse_item(struct clb_parser *p);
typedef bool clb_parse_end(const struct clb_parser *p);
uint32_t clb_parse_items(struct clb_parser *p, clb_parse_item *item, clb_parse_end *ends);
/* The same of expressions. */
uint32_t clb_parse_tuple(struct clb_parser *p, bool conditional);
/* "| name(...) | ...": around `node`, which may be 0. With `bare` the first has no "|". */
uint32_t clb_parse_filters(struct clb_parser *p, uint32_t node, bool bare);
/* A value with its sign and all that follows it; without `filters` neither filters nor tests. */
uint32_t clb_parse_unary(struct clb_parser *p, bool filters);
uint32_t clb_parse_postfix(struct clb_parser *p, uint32_t node);

#endif
