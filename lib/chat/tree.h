/* tree.h - a parsed template: nodes in one array, linked by index (0: none). */
#ifndef CLB_CHAT_TREE_H
#define CLB_CHAT_TREE_H

#include "lib/base/err.h"
#include "lib/chat/value.h"

enum clb_node_kind {
    CLB_N_END, /* index 0 */
    /* expressions */
    CLB_N_CONST,   /* op: enum clb_kind; a: the truth of a bool */
    CLB_N_INT,     /* a, b: low and high half */
    CLB_N_FLOAT,   /* a, b: low and high half */
    CLB_N_STRING,  /* a: string */
    CLB_N_NAME,    /* a: symbol */
    CLB_N_LIST,    /* a: items */
    CLB_N_TUPLE,   /* a: items */
    CLB_N_DICT,    /* a: key, value, key, value, ... */
    CLB_N_ATTR,    /* a: object, b: symbol */
    CLB_N_ITEM,    /* a: object, b: subscript */
    CLB_N_SLICE,   /* a: object, b: BOUNDS */
    CLB_N_BOUNDS,  /* a: start, b: stop, c: step; each may be 0 */
    CLB_N_CALL,    /* a: what, b: arguments, of which the named are KEYWORD */
    CLB_N_KEYWORD, /* a: symbol, b: value */
    CLB_N_FILTER,  /* a: value (0 in a block), b: arguments, c: which */
    CLB_N_TEST,    /* a: value, b: arguments, c: which */
    CLB_N_NEG,     /* a */
    CLB_N_POS,     /* a */
    CLB_N_NOT,     /* a */
    CLB_N_AND,     /* a: items */
    CLB_N_OR,      /* a: items */
    CLB_N_CONCAT,  /* a: items */
    CLB_N_MATH,    /* a: first, b: OPERANDs, from left to right */
    CLB_N_COMPARE, /* a: first, b: OPERANDs */
    CLB_N_OPERAND, /* op: enum clb_op, a: value */
    CLB_N_COND,    /* a: condition, b: then, c: else or 0 */
    /* statements */
    CLB_N_TEXT,         /* a: string */
    CLB_N_OUTPUT,       /* a: expression */
    CLB_N_IF,           /* a: BRANCHes */
    CLB_N_BRANCH,       /* a: condition (0: else), b: body */
    CLB_N_FOR,          /* a: target, b: what over, c: PARTS */
    CLB_N_PARTS,        /* a: condition or 0, b: body, c: else */
    CLB_N_SET,          /* a: target, b: expression */
    CLB_N_SET_BLOCK,    /* a: target, b: FILTERs or 0, c: body */
    CLB_N_ATTR_TARGET,  /* a: symbol of a namespace, b: symbol */
    CLB_N_MACRO,        /* op: CLB_USES_*, a: symbol, b: parameters, c: body */
    CLB_N_PARAM,        /* a: symbol, b: default or 0 */
    CLB_N_CALL_BLOCK,   /* a: CALL, b: parameters, c: body */
    CLB_N_FILTER_BLOCK, /* a: FILTERs, b: body */
    CLB_N_WITH,         /* a: SETs, b: body */
    CLB_N_SCOPE,        /* a: body, in a scope of its own */
    CLB_N_BREAK,
    CLB_N_CONTINUE,
};

enum clb_op { /* clang-format off */
    CLB_OP_ADD, CLB_OP_SUB, CLB_OP_MUL, CLB_OP_DIV, CLB_OP_FLOOR, CLB_OP_MOD, CLB_OP_POW,
    CLB_OP_EQ, CLB_OP_NE, CLB_OP_LT, CLB_OP_LE, CLB_OP_GT, CLB_OP_GE, CLB_OP_IN, CLB_OP_NOT_IN,
}; /* clang-format on */

/* What the body of a macro mentions, so that its caller may give it. */
enum { CLB_USES_VARARGS = 1, CLB_USES_KWARGS = 2, CLB_USES_CALLER = 4 };

struct clb_node {
    uint8_t kind, op;
    uint32_t at;   /* byte of the template */
    uint32_t next; /* in the list it belongs to */
    uint32_t a, b, c;
};

/* The first symbols of every template. */
enum { CLB_SYMBOL_LOOP, CLB_SYMBOL_VARARGS, CLB_SYMBOL_KWARGS, CLB_SYMBOL_CALLER };

struct clb_template {
    char *name;             /* owned */
    struct clb_text source; /* as lexed: newlines are "\n", the last one is gone */
    struct clb_node *node;
    uint32_t n_node, node_room;
    struct clb_string *string; /* texts and literals; those with escapes lie in decoded */
    uint32_t n_string, string_room;
    struct clb_string *symbol;
    uint32_t *chain; /* of each symbol: the next of the same bucket, + 1 */
    uint32_t n_symbol, symbol_room, bucket[64];
    struct clb_arena decoded;
    uint32_t body; /* first statement */
};

uint32_t clb_node_new(struct clb_template *t, enum clb_node_kind kind, size_t at,
                      struct clb_err *err); /* 0: no memory */
/* Symbols and strings: UINT32_MAX: no memory. */
uint32_t clb_symbol_of(struct clb_template *t, struct clb_str name, struct clb_err *err);
uint32_t clb_string_of(struct clb_template *t, struct clb_str text, struct clb_err *err);

#endif
