/* Operators, loosest first: a if b else c, or, and, not, comparisons, + -, ~, * / // %, **; signs
 * and what is tighter are in parse_expr.c. */
#include "lib/chat/parse.h"

static uint32_t unary(struct clb_parser *p)
{
    return clb_parse_unary(p, true);
}

/* The operators of one level, all of the same binding: left to right in one node. */
static uint32_t chain(struct clb_parser *p, const uint16_t *ops, const uint8_t *codes,
                      uint32_t (*inner)(struct clb_parser *p))
{
    uint32_t first = inner(p), node = 0;
    struct clb_nodes list = { 0 };

    while (first) {
        size_t at = clb_parse_at(p);
        int i = 0;
        while (ops[i] && !clb_parse_is_op(p, ops[i]))
            i++;
        if (!ops[i])
            break;
        uint32_t operand, value;
        if (!node && !(node = clb_parse_node(p, CLB_N_MATH, at)))
            return 0;
        if (!clb_parse_next(p) || !(operand = clb_parse_node(p, CLB_N_OPERAND, at)) ||
            !(value = inner(p)) || !clb_nodes_add(p, &list, operand))
            return 0;
        p->t->node[operand].op = codes[i];
        p->t->node[operand].a = value;
    }
    if (!node)
        return first;
    p->t->node[node].a = first;
    p->t->node[node].b = list.first;
    return first ? node : 0;
}

static uint32_t power(struct clb_parser *p)
{
    static const uint16_t ops[] = { CLB_OP2('*', '*'), 0 };
    static const uint8_t codes[] = { CLB_OP_POW };

    return chain(p, ops, codes, unary);
}

static uint32_t product(struct clb_parser *p)
{
    static const uint16_t ops[] = { '*', '/', CLB_OP2('/', '/'), '%', 0 };
    static const uint8_t codes[] = { CLB_OP_MUL, CLB_OP_DIV, CLB_OP_FLOOR, CLB_OP_MOD };

    return chain(p, ops, codes, power);
}

/* Items of the same kind between words or operators that only join them. */
static uint32_t join(struct clb_parser *p, enum clb_node_kind kind, const char *word,
                     uint32_t (*inner)(struct clb_parser *p))
{
    size_t at = clb_parse_at(p);
    uint32_t first = inner(p), node = 0;
    struct clb_nodes list = { 0 };

    while (first && (word ? clb_parse_is_name(p, word) : clb_parse_is_op(p, '~'))) {
        if (!node && (!(node = clb_parse_node(p, kind, at)) || !clb_nodes_add(p, &list, first)))
            return 0;
        if (!clb_parse_next(p) || !clb_nodes_add(p, &list, inner(p)))
            return 0;
    }
    if (!node)
        return first;
    p->t->node[node].a = list.first;
    return node;
}

static uint32_t concat(struct clb_parser *p)
{
    return join(p, CLB_N_CONCAT, NULL, product);
}

static uint32_t sum(struct clb_parser *p)
{
    static const uint16_t ops[] = { '+', '-', 0 };
    static const uint8_t codes[] = { CLB_OP_ADD, CLB_OP_SUB };

    return chain(p, ops, codes, concat);
}

/* The comparison that comes next, taken; -1: none. */
static int comparison(struct clb_parser *p)
{
    static const uint16_t ops[] = {
        CLB_OP2('=', '='), CLB_OP2('!', '='), '<', CLB_OP2('<', '='), '>', CLB_OP2('>', '='), 0
    };

    for (int i = 0; ops[i]; i++)
        if (clb_parse_skip_op(p, ops[i]))
            return CLB_OP_EQ + i;
    if (clb_parse_skip_name(p, "in"))
        return CLB_OP_IN;
    if (clb_parse_is_name(p, "not") && clb_parse_ahead_is_name(p, "in") && clb_parse_next(p) &&
        clb_parse_next(p))
        return CLB_OP_NOT_IN;
    return -1;
}

static uint32_t compare(struct clb_parser *p)
{
    size_t at = clb_parse_at(p);
    uint32_t first = sum(p), node = 0;
    struct clb_nodes list = { 0 };

    while (first) {
        size_t op_at = clb_parse_at(p);
        int op = comparison(p);
        if (op < 0)
            break;
        uint32_t operand, value;
        if ((!node && !(node = clb_parse_node(p, CLB_N_COMPARE, at))) ||
            !(operand = clb_parse_node(p, CLB_N_OPERAND, op_at)) || !(value = sum(p)) ||
            !clb_nodes_add(p, &list, operand))
            return 0;
        p->t->node[operand].op = (uint8_t)op;
        p->t->node[operand].a = value;
    }
    if (!node)
        return first;
    p->t->node[node].a = first;
    p->t->node[node].b = list.first;
    return node;
}

static uint32_t parse_not(struct clb_parser *p)
{
    size_t at = clb_parse_at(p);
    uint32_t node, inner;

    if (!clb_parse_is_name(p, "not"))
        return compare(p);
    if (!clb_parse_deeper(p) || !clb_parse_next(p) || !(inner = parse_not(p)) ||
        !(node = clb_parse_node(p, CLB_N_NOT, at)))
        return 0;
    p->depth--;
    p->t->node[node].a = inner;
    return node;
}

static uint32_t parse_and(struct clb_parser *p)
{
    return join(p, CLB_N_AND, "and", parse_not);
}

uint32_t clb_parse_or(struct clb_parser *p)
{
    return join(p, CLB_N_OR, "or", parse_and);
}

uint32_t clb_parse_expression(struct clb_parser *p)
{
    size_t at = clb_parse_at(p);
    uint32_t value, test, other = 0;

    if (!clb_parse_deeper(p))
        return 0;
    value = clb_parse_or(p);
    while (value && clb_parse_is_name(p, "if")) {
        if (!clb_parse_next(p) || !(test = clb_parse_or(p)))
            return 0;
        if (clb_parse_is_name(p, "else")) {
            if (!clb_parse_next(p) || !(other = clb_parse_expression(p)))
                return 0;
        } else {
            other = 0;
        }
        uint32_t node = clb_parse_node(p, CLB_N_COND, at);
        if (!node)
            return 0;
        p->t->node[node].a = test;
        p->t->node[node].b = value;
        p->t->node[node].c = other;
        value = node;
    }
    p->depth--;
    return value;
}

/* What may follow a tuple. */
static bool ends_tuple(const struct clb_parser *p)
{
    return p->tok.type == CLB_T_PRINT_END || p->tok.type == CLB_T_BLOCK_END ||
           clb_parse_is_op(p, ')') || clb_parse_is_name(p, "recursive");
}

uint32_t clb_parse_items(struct clb_parser *p, clb_parse_item *item, clb_parse_end *ends)
{
    size_t at = clb_parse_at(p);
    uint32_t node = 0, first = item(p);
    struct clb_nodes list = { 0 };

    while (first && clb_parse_is_op(p, ',')) {
        if (!node &&
            (!(node = clb_parse_node(p, CLB_N_TUPLE, at)) || !clb_nodes_add(p, &list, first)))
            return 0;
        if (!clb_parse_next(p))
            return 0;
        if (ends(p))
            break;
        if (!clb_nodes_add(p, &list, item(p)))
            return 0;
    }
    if (!node)
        return first;
    p->t->node[node].a = list.first;
    return node;
}

uint32_t clb_parse_tuple(struct clb_parser *p, bool conditional)
{
    return clb_parse_items(p, conditional ? clb_parse_expression : clb_parse_or, ends_tuple);
}
