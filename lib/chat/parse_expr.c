/* Expressions: values, and what is behind them: . [] () | is. */
#include <string.h>

#include "lib/chat/builtin.h"
#include "lib/chat/parse.h"
#include "lib/token/utf8.h"

/* -- literals ---------------------------------------------------------------------------------- */

static int hex_value(char c)
{
    int low = c | 0x20;

    return c >= '0' && c <= '9' ? c - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : -1;
}

/* "\x41", "A", "\U00000041", "\101" at s (behind the backslash); bytes taken, 0: none. */
static size_t unescape_code(const char *s, size_t n, uint32_t *c)
{
    size_t want = *s == 'x' ? 2 : *s == 'u' ? 4 : *s == 'U' ? 8 : 0, i;

    *c = 0;
    if (!want) {
        for (i = 0; i < n && i < 3 && s[i] >= '0' && s[i] <= '7'; i++)
            *c = *c * 8 + (uint32_t)(s[i] - '0');
        return i;
    }
    for (i = 1; i <= want; i++) {
        if (i >= n || hex_value(s[i]) < 0)
            return 0;
        *c = *c << 4 | (uint32_t)hex_value(s[i]);
    }
    return *c < 0x110000 && (*c < 0xd800 || *c >= 0xe000) ? i : 0;
}

/* The escape at s (behind the backslash): bytes taken, 0: not a valid one. */
static size_t unescape(const char *s, size_t n, char out[4], size_t *len)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *f = *s ? strchr(from, *s) : NULL;
    uint32_t c;

    *len = 1;
    if (*s == '\n') {
        *len = 0;
        return 1;
    }
    if (f) {
        *out = to[f - from];
        return 1;
    }
    if (strchr("xuU01234567", *s) && *s) {
        size_t took = unescape_code(s, n, &c);
        *len = took ? clb_utf8_put(out, c) : 0;
        return took;
    }
    if (*s == 'N')
        return 0;
    *out = '\\'; /* not an escape: both characters stay */
    return (size_t)-1;
}

/* Appends the text between the quotes. */
static bool add_literal(struct clb_parser *p, struct clb_out *b, struct clb_str raw)
{
    const char *s = raw.p + 1, *end = raw.p + raw.n - 1;

    while (s < end) {
        const char *slash = memchr(s, '\\', (size_t)(end - s));
        char out[4];
        size_t len;

        clb_out_add(b, s, (size_t)((slash ? slash : end) - s), clb_of_template);
        if (!slash)
            break;
        s = slash + 1;
        size_t took = unescape(s, (size_t)(end - s), out, &len);
        if (!took) {
            clb_parse_fail(p, CLB_UNSUPPORTED, (size_t)(slash - p->x.src.p),
                           "the escape '\\%c' is not valid here", *s);
            return false;
        }
        clb_out_add(b, out, len, clb_of_template);
        s += took == (size_t)-1 ? 0 : took;
    }
    return true;
}

/* One string, or several side by side, which are one. */
static uint32_t parse_string(struct clb_parser *p)
{
    uint32_t node = clb_parse_node(p, CLB_N_STRING, clb_parse_at(p));
    struct clb_str first = p->tok.text;
    struct clb_out b = { .arena = &p->t->decoded };
    bool plain = !memchr(first.p, '\\', first.n);
    struct clb_str text = { first.p + 1, first.n - 2 };

    if (!node)
        return 0;
    if (!plain && !add_literal(p, &b, first))
        return 0;
    if (!clb_parse_next(p))
        return 0;
    for (; p->tok.type == CLB_T_STRING; plain = false) {
        if (plain)
            clb_out_add(&b, text.p, text.n, clb_of_template);
        if (!add_literal(p, &b, p->tok.text) || !clb_parse_next(p))
            return 0;
    }
    if (b.failed) {
        clb_fail_nomem(p->err, first.n);
        return 0;
    }
    if (!plain)
        text = (struct clb_str){ b.n ? b.p : "", b.n };
    uint32_t s = clb_string_of(p->t, text, p->err);
    p->t->node[node].a = s;
    return s == UINT32_MAX ? 0 : node;
}

static uint32_t parse_number(struct clb_parser *p)
{
    bool real = p->tok.type == CLB_T_FLOAT;
    uint32_t node = clb_parse_node(p, real ? CLB_N_FLOAT : CLB_N_INT, clb_parse_at(p));
    uint64_t bits;

    if (!node)
        return 0;
    memcpy(&bits, &p->tok.u, sizeof bits);
    p->t->node[node].a = (uint32_t)bits;
    p->t->node[node].b = (uint32_t)(bits >> 32);
    return clb_parse_next(p) ? node : 0;
}

static uint32_t parse_name(struct clb_parser *p)
{
    static const struct {
        const char *name;
        uint8_t kind, truth;
    } word[] = { { "true", CLB_V_BOOL, 1 },  { "True", CLB_V_BOOL, 1 }, { "false", CLB_V_BOOL, 0 },
                 { "False", CLB_V_BOOL, 0 }, { "none", CLB_V_NONE, 0 }, { "None", CLB_V_NONE, 0 } };
    static const char *const uses[] = { "varargs", "kwargs", "caller" };
    struct clb_str name = p->tok.text;
    uint32_t node = clb_parse_node(p, CLB_N_NAME, clb_parse_at(p));

    if (!node)
        return 0;
    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        if (clb_str_is(name, word[i].name)) {
            p->t->node[node].kind = CLB_N_CONST;
            p->t->node[node].op = word[i].kind;
            p->t->node[node].a = word[i].truth;
            return clb_parse_next(p) ? node : 0;
        }
    for (int i = 0; i < 3; i++)
        if (p->uses && clb_str_is(name, uses[i]))
            *p->uses |= (uint8_t)(1 << i);
    uint32_t symbol;
    if (!clb_parse_symbol(p, &symbol))
        return 0;
    p->t->node[node].a = symbol;
    return node;
}

static uint32_t parse_list(struct clb_parser *p)
{
    uint32_t node = clb_parse_node(p, CLB_N_LIST, clb_parse_at(p));
    struct clb_nodes items = { 0 };

    if (!node || !clb_parse_next(p))
        return 0;
    while (!clb_parse_is_op(p, ']')) {
        if (items.first && !clb_parse_want_op(p, ','))
            return 0;
        if (clb_parse_is_op(p, ']'))
            break;
        if (!clb_nodes_add(p, &items, clb_parse_expression(p)))
            return 0;
    }
    p->t->node[node].a = items.first;
    return clb_parse_next(p) ? node : 0;
}

static uint32_t parse_dict(struct clb_parser *p)
{
    uint32_t node = clb_parse_node(p, CLB_N_DICT, clb_parse_at(p));
    struct clb_nodes items = { 0 };

    if (!node || !clb_parse_next(p))
        return 0;
    while (!clb_parse_is_op(p, '}')) {
        if (items.first && !clb_parse_want_op(p, ','))
            return 0;
        if (clb_parse_is_op(p, '}'))
            break;
        if (!clb_nodes_add(p, &items, clb_parse_expression(p)) || !clb_parse_want_op(p, ':') ||
            !clb_nodes_add(p, &items, clb_parse_expression(p)))
            return 0;
    }
    p->t->node[node].a = items.first;
    return clb_parse_next(p) ? node : 0;
}

static uint32_t parse_primary(struct clb_parser *p)
{
    if (p->tok.type == CLB_T_NAME)
        return parse_name(p);
    if (p->tok.type == CLB_T_STRING)
        return parse_string(p);
    if (p->tok.type == CLB_T_INT || p->tok.type == CLB_T_FLOAT)
        return parse_number(p);
    if (clb_parse_is_op(p, '['))
        return parse_list(p);
    if (clb_parse_is_op(p, '{'))
        return parse_dict(p);
    if (!clb_parse_is_op(p, '('))
        return clb_parse_unexpected(p, "an expression");
    size_t at = clb_parse_at(p);
    if (!clb_parse_next(p))
        return 0;
    uint32_t node =
        clb_parse_is_op(p, ')') ? clb_parse_node(p, CLB_N_TUPLE, at) : clb_parse_tuple(p, true);
    return node && clb_parse_want_op(p, ')') ? node : 0;
}

/* -- what follows a value ---------------------------------------------------------------------- */

/* "(...)": the arguments. */
static bool parse_arguments(struct clb_parser *p, uint32_t *first)
{
    struct clb_nodes list = { 0 };
    bool named = false;

    if (!clb_parse_next(p))
        return false;
    while (!clb_parse_is_op(p, ')')) {
        if (list.first && !clb_parse_want_op(p, ','))
            return false;
        if (clb_parse_is_op(p, ')'))
            break;
        size_t at = clb_parse_at(p);
        if (clb_parse_is_op(p, '*') || clb_parse_is_op(p, CLB_OP2('*', '*')))
            return clb_parse_fail(p, CLB_UNSUPPORTED, at,
                                  "arguments from a list or a dict ('*') are not supported");
        uint32_t keyword = 0, symbol = 0;
        if (p->tok.type == CLB_T_NAME && clb_parse_ahead_is(p, '=')) {
            if (!(keyword = clb_parse_node(p, CLB_N_KEYWORD, at)) ||
                !clb_parse_symbol(p, &symbol) || !clb_parse_next(p))
                return false;
            named = true;
        } else if (named) {
            return clb_parse_unexpected(p, "a named argument");
        }
        uint32_t value = clb_parse_expression(p);
        if (keyword) {
            p->t->node[keyword].a = symbol;
            p->t->node[keyword].b = value;
        }
        if (!value || !clb_nodes_add(p, &list, keyword ? keyword : value))
            return false;
    }
    *first = list.first;
    return clb_parse_next(p);
}

static uint32_t parse_call(struct clb_parser *p, uint32_t what)
{
    static const char *const not_ours[] = { "lipsum", "cycler", "joiner" };
    const struct clb_node *callee = &p->t->node[what];
    uint32_t node = clb_parse_node(p, CLB_N_CALL, callee->at), args = 0;

    if (!node)
        return 0;
    callee = &p->t->node[what];
    for (int i = 0; i < 3 && callee->kind == CLB_N_NAME; i++)
        if (clb_str_is(clb_view(&p->t->symbol[callee->a]), not_ours[i]))
            return clb_parse_fail(p, CLB_UNSUPPORTED, callee->at,
                                  "the function '%s' is not supported", not_ours[i]);
    if (!parse_arguments(p, &args))
        return 0;
    p->t->node[node].a = what;
    p->t->node[node].b = args;
    return node;
}

static uint32_t parse_attribute(struct clb_parser *p, uint32_t of)
{
    size_t at = clb_parse_at(p);

    if (!clb_parse_next(p))
        return 0;
    uint32_t node = clb_parse_node(p, CLB_N_ATTR, at), symbol;
    if (!node)
        return 0;
    if (p->tok.type == CLB_T_INT) {
        uint32_t number = parse_number(p);
        p->t->node[node].kind = CLB_N_ITEM;
        p->t->node[node].a = of;
        p->t->node[node].b = number;
        return number ? node : 0;
    }
    if (!clb_parse_symbol(p, &symbol))
        return 0;
    p->t->node[node].a = of;
    p->t->node[node].b = symbol;
    return node;
}

/* One bound of a slice, if there is one before the next ":" or "]". */
static bool parse_bound(struct clb_parser *p, uint32_t *bound)
{
    *bound = 0;
    if (clb_parse_is_op(p, ':') || clb_parse_is_op(p, ']'))
        return true;
    return (*bound = clb_parse_expression(p)) != 0;
}

static uint32_t parse_subscript(struct clb_parser *p, uint32_t of)
{
    size_t at = clb_parse_at(p);
    uint32_t bound[3] = { 0 };

    if (!clb_parse_next(p))
        return 0;
    if (clb_parse_is_op(p, ']'))
        return clb_parse_unexpected(p, "a subscript");
    if (!parse_bound(p, &bound[0]))
        return 0;
    bool slice = clb_parse_is_op(p, ':');
    for (int i = 1; i < 3 && clb_parse_is_op(p, ':'); i++)
        if (!clb_parse_next(p) || !parse_bound(p, &bound[i]))
            return 0;
    if (clb_parse_is_op(p, ','))
        return clb_parse_fail(p, CLB_UNSUPPORTED, clb_parse_at(p),
                              "a subscript with a comma is not supported");
    if (!clb_parse_want_op(p, ']'))
        return 0;
    uint32_t node = clb_parse_node(p, slice ? CLB_N_SLICE : CLB_N_ITEM, at);
    uint32_t range = slice && node ? clb_parse_node(p, CLB_N_BOUNDS, at) : bound[0];
    if (!node || !range)
        return 0;
    if (slice) {
        p->t->node[range].a = bound[0];
        p->t->node[range].b = bound[1];
        p->t->node[range].c = bound[2];
    }
    p->t->node[node].a = of;
    p->t->node[node].b = range;
    return node;
}

uint32_t clb_parse_postfix(struct clb_parser *p, uint32_t node)
{
    while (node) {
        if (clb_parse_is_op(p, '.'))
            node = parse_attribute(p, node);
        else if (clb_parse_is_op(p, '['))
            node = parse_subscript(p, node);
        else if (clb_parse_is_op(p, '('))
            node = parse_call(p, node);
        else
            break;
    }
    return node;
}

uint32_t clb_parse_filters(struct clb_parser *p, uint32_t node, bool bare)
{
    while (bare || clb_parse_is_op(p, '|')) {
        if (!bare && !clb_parse_next(p))
            return 0;
        bare = false;
        size_t at = clb_parse_at(p);
        struct clb_str name = p->tok.text;
        uint32_t which = clb_builtin_find(CLB_FILTERS, name), args = 0;
        if (p->tok.type == CLB_T_NAME && which == CLB_NO_BUILTIN)
            return clb_parse_fail(p, CLB_UNSUPPORTED, at, "the filter '%.*s' is not supported",
                                  name.n > 60 ? 60 : (int)name.n, name.p);
        if (p->tok.type != CLB_T_NAME)
            return clb_parse_unexpected(p, "the name of a filter");
        uint32_t filter = clb_parse_node(p, CLB_N_FILTER, at);
        if (!filter || !clb_parse_next(p) ||
            (clb_parse_is_op(p, '(') && !parse_arguments(p, &args)))
            return 0;
        p->t->node[filter].a = node;
        p->t->node[filter].b = args;
        p->t->node[filter].c = which;
        node = filter;
    }
    return node;
}

/* A test may have one argument without parentheses. */
static bool starts_argument(const struct clb_parser *p)
{
    switch (p->tok.type) {
    case CLB_T_STRING:
    case CLB_T_INT:
    case CLB_T_FLOAT:
        return true;
    case CLB_T_NAME:
        return !clb_parse_is_name(p, "else") && !clb_parse_is_name(p, "or") &&
               !clb_parse_is_name(p, "and");
    default:
        return clb_parse_is_op(p, '[') || clb_parse_is_op(p, '{');
    }
}

static uint32_t parse_test(struct clb_parser *p, uint32_t value)
{
    size_t at = clb_parse_at(p);
    uint32_t args = 0;

    if (!clb_parse_next(p))
        return 0;
    bool negated = clb_parse_skip_name(p, "not");
    struct clb_str name = p->tok.text;
    uint32_t which = clb_builtin_find(CLB_TESTS, name);
    if (p->tok.type != CLB_T_NAME)
        return clb_parse_unexpected(p, "the name of a test");
    if (which == CLB_NO_BUILTIN)
        return clb_parse_fail(p, CLB_UNSUPPORTED, clb_parse_at(p),
                              "the test '%.*s' is not supported", name.n > 60 ? 60 : (int)name.n,
                              name.p);
    uint32_t node = clb_parse_node(p, CLB_N_TEST, at);
    if (!node || !clb_parse_next(p))
        return 0;
    if (clb_parse_is_op(p, '(')) {
        if (!parse_arguments(p, &args))
            return 0;
    } else if (starts_argument(p)) {
        if (clb_parse_is_name(p, "is"))
            return clb_parse_unexpected(p, "no second 'is'");
        if (!(args = clb_parse_postfix(p, parse_primary(p))))
            return 0;
    }
    p->t->node[node].a = value;
    p->t->node[node].b = args;
    p->t->node[node].c = which;
    if (!negated)
        return node;
    uint32_t not = clb_parse_node(p, CLB_N_NOT, at);
    p->t->node[not ].a = node;
    return not ;
}

uint32_t clb_parse_unary(struct clb_parser *p, bool filters)
{
    size_t at = clb_parse_at(p);
    bool minus = clb_parse_is_op(p, '-'), plus = clb_parse_is_op(p, '+');
    uint32_t node, inner;

    if (!clb_parse_deeper(p))
        return 0;
    if (minus || plus) {
        if (!clb_parse_next(p) || !(inner = clb_parse_unary(p, false)) ||
            !(node = clb_parse_node(p, minus ? CLB_N_NEG : CLB_N_POS, at)))
            return 0;
        p->t->node[node].a = inner;
    } else {
        node = parse_primary(p);
    }
    node = clb_parse_postfix(p, node);
    while (node && filters) {
        if (clb_parse_is_op(p, '|'))
            node = clb_parse_filters(p, node, false);
        else if (clb_parse_is_name(p, "is"))
            node = parse_test(p, node);
        else if (clb_parse_is_op(p, '('))
            node = parse_call(p, node);
        else
            break;
    }
    p->depth--;
    return node;
}
