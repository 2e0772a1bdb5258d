/* Statements, and what all of the parser shares. */
#include "lib/chat/parse.h"

#include <stdarg.h>
#include <stdio.h>

#include "lib/base/mem.h"
#include "lib/chat/template.h"
#include "lib/token/utf8.h"

enum { MOST_SOURCE = 1 << 20, MOST_DEPTH = 64 };

/* -- tokens ------------------------------------------------------------------------------------ */

size_t clb_parse_at(const struct clb_parser *p)
{
    return (size_t)(p->tok.text.p - p->x.src.p);
}

uint32_t clb_parse_fail(struct clb_parser *p, enum clb_code code, size_t at, const char *fmt, ...)
{
    char why[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    clb_template_fail(p->err, p->x.name, p->x.src, at, code, "%s", why);
    return 0;
}

uint32_t clb_parse_unexpected(struct clb_parser *p, const char *wanted)
{
    struct clb_str s = p->tok.text;

    if (p->tok.type == CLB_T_END)
        return clb_parse_fail(p, CLB_BAD_INPUT, p->x.src.n,
                              "the template ends, but %s was expected", wanted);
    if (p->tok.type == CLB_T_BLOCK_END || p->tok.type == CLB_T_PRINT_END)
        return clb_parse_fail(p, CLB_BAD_INPUT, clb_parse_at(p),
                              "the tag ends, but %s was expected", wanted);
    return clb_parse_fail(p, CLB_BAD_INPUT, clb_parse_at(p), "found '%.*s', expected %s",
                          s.n > 60 ? 60 : (int)s.n, s.p, wanted);
}

bool clb_parse_next(struct clb_parser *p)
{
    if (p->has_ahead) {
        p->tok = p->ahead;
        p->has_ahead = false;
        return true;
    }
    return clb_lex_next(&p->x, &p->tok);
}

static bool look_ahead(struct clb_parser *p)
{
    struct clb_lexer before = p->x;

    if (!p->has_ahead && !(p->has_ahead = clb_lex_next(&p->x, &p->ahead)))
        p->x = before; /* said when it is taken */
    return p->has_ahead;
}

bool clb_parse_ahead_is(struct clb_parser *p, uint16_t op)
{
    return look_ahead(p) && p->ahead.type == CLB_T_OP && p->ahead.op == op;
}

bool clb_parse_ahead_is_name(struct clb_parser *p, const char *name)
{
    return look_ahead(p) && p->ahead.type == CLB_T_NAME && clb_str_is(p->ahead.text, name);
}

bool clb_parse_is_op(const struct clb_parser *p, uint16_t op)
{
    return p->tok.type == CLB_T_OP && p->tok.op == op;
}

bool clb_parse_is_name(const struct clb_parser *p, const char *name)
{
    return p->tok.type == CLB_T_NAME && clb_str_is(p->tok.text, name);
}

bool clb_parse_skip_op(struct clb_parser *p, uint16_t op)
{
    return clb_parse_is_op(p, op) && clb_parse_next(p);
}

bool clb_parse_skip_name(struct clb_parser *p, const char *name)
{
    return clb_parse_is_name(p, name) && clb_parse_next(p);
}

bool clb_parse_want_op(struct clb_parser *p, uint16_t op)
{
    char wanted[8];

    if (clb_parse_is_op(p, op))
        return clb_parse_next(p);
    snprintf(wanted, sizeof wanted, "'%c%s'", op & 255,
             op >> 8 ? (char[]){ (char)(op >> 8), 0 } : "");
    return clb_parse_unexpected(p, wanted);
}

uint32_t clb_parse_node(struct clb_parser *p, enum clb_node_kind kind, size_t at)
{
    return clb_node_new(p->t, kind, at, p->err);
}

bool clb_parse_symbol(struct clb_parser *p, uint32_t *symbol)
{
    if (p->tok.type != CLB_T_NAME)
        return clb_parse_unexpected(p, "a name");
    *symbol = clb_symbol_of(p->t, p->tok.text, p->err);
    return *symbol != UINT32_MAX && clb_parse_next(p);
}

bool clb_parse_deeper(struct clb_parser *p)
{
    if (p->depth >= MOST_DEPTH)
        return clb_parse_fail(p, CLB_BAD_INPUT, clb_parse_at(p), "nested more than %d levels deep",
                              MOST_DEPTH);
    p->depth++;
    return true;
}

bool clb_nodes_add(struct clb_parser *p, struct clb_nodes *list, uint32_t node)
{
    if (!node)
        return false;
    if (list->last)
        p->t->node[list->last].next = node;
    else
        list->first = node;
    list->last = node;
    return true;
}

/* -- statements -------------------------------------------------------------------------------- */

static bool parse_body(struct clb_parser *p, const char *const *ends, uint32_t *first);

static bool want_block_end(struct clb_parser *p)
{
    return p->tok.type == CLB_T_BLOCK_END ? clb_parse_next(p)
                                          : clb_parse_unexpected(p, "the end of the tag");
}

/* The body of a block up to one of the tags that end it, which is the next token then. */
static bool block(struct clb_parser *p, const char *const *ends, uint32_t *first)
{
    return want_block_end(p) && parse_body(p, ends, first);
}

/* The body, and the one tag that ends it. */
static bool whole_block(struct clb_parser *p, const char *end, uint32_t *first)
{
    const char *ends[] = { end, NULL };

    return block(p, ends, first) && clb_parse_next(p);
}

static uint32_t parse_if(struct clb_parser *p, size_t at)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    static const char *const last[] = { "endif", NULL };
    uint32_t node = clb_parse_node(p, CLB_N_IF, at);
    struct clb_nodes branches = { 0 };
    bool more = node != 0;

    while (more) {
        bool otherwise = clb_parse_is_name(p, "else");
        uint32_t branch = clb_parse_node(p, CLB_N_BRANCH, clb_parse_at(p)), test = 0, body = 0;

        if (!branch || !clb_parse_next(p) || (!otherwise && !(test = clb_parse_tuple(p, false))) ||
            !block(p, otherwise ? last : ends, &body) || !clb_nodes_add(p, &branches, branch))
            return 0;
        p->t->node[branch].a = test;
        p->t->node[branch].b = body;
        more = !clb_parse_is_name(p, "endif");
    }
    if (!node || !clb_parse_next(p))
        return 0;
    p->t->node[node].a = branches.first;
    return node;
}

/* A name, or several with commas, in parentheses or not. With `attribute` a name may have one. */
static uint32_t parse_target(struct clb_parser *p, bool attribute)
{
    size_t at = clb_parse_at(p);
    uint32_t node, symbol, member;

    if (clb_parse_is_op(p, '(')) {
        struct clb_nodes list = { 0 };
        if (!clb_parse_deeper(p) || !(node = clb_parse_node(p, CLB_N_TUPLE, at)))
            return 0;
        do {
            if (!clb_parse_next(p) || (list.first && clb_parse_is_op(p, ')')))
                break;
            if (!clb_nodes_add(p, &list, parse_target(p, attribute)))
                return 0;
        } while (clb_parse_is_op(p, ','));
        p->t->node[node].a = list.first;
        p->depth--;
        return clb_parse_want_op(p, ')') ? node : 0;
    }
    if (clb_parse_is_name(p, "true") || clb_parse_is_name(p, "false") ||
        clb_parse_is_name(p, "none"))
        return clb_parse_unexpected(p, "a name that can be assigned to");
    if (!clb_parse_symbol(p, &symbol) || !(node = clb_parse_node(p, CLB_N_NAME, at)))
        return 0;
    p->t->node[node].a = symbol;
    if (!attribute || !clb_parse_is_op(p, '.'))
        return node;
    if (!clb_parse_next(p) || !clb_parse_symbol(p, &member))
        return 0;
    p->t->node[node].kind = CLB_N_ATTR_TARGET;
    p->t->node[node].b = member;
    return node;
}

static uint32_t parse_name_target(struct clb_parser *p)
{
    return parse_target(p, false);
}

static uint32_t parse_any_target(struct clb_parser *p)
{
    return parse_target(p, true);
}

/* What may follow the targets of a loop or an assignment. */
static bool ends_targets(const struct clb_parser *p)
{
    return clb_parse_is_name(p, "in") || clb_parse_is_op(p, '=');
}

static uint32_t parse_for(struct clb_parser *p, size_t at)
{
    static const char *const ends[] = { "else", "endfor", NULL };
    uint32_t node = clb_parse_node(p, CLB_N_FOR, at), parts = clb_parse_node(p, CLB_N_PARTS, at);
    uint32_t target, over, test = 0, body = 0, otherwise = 0;

    if (!node || !parts || !clb_parse_next(p) ||
        !(target = clb_parse_items(p, parse_name_target, ends_targets)))
        return 0;
    if (!clb_parse_is_name(p, "in"))
        return clb_parse_unexpected(p, "'in'");
    if (!clb_parse_next(p) || !(over = clb_parse_tuple(p, false)))
        return 0;
    if (clb_parse_is_name(p, "if") && (!clb_parse_next(p) || !(test = clb_parse_expression(p))))
        return 0;
    if (clb_parse_is_name(p, "recursive"))
        return clb_parse_fail(p, CLB_UNSUPPORTED, clb_parse_at(p),
                              "a 'recursive' loop is not supported");
    p->loops++;
    if (!block(p, ends, &body))
        return 0;
    p->loops--;
    if (clb_parse_skip_name(p, "else") && !block(p, ends + 1, &otherwise))
        return 0;
    p->t->node[node].a = target;
    p->t->node[node].b = over;
    p->t->node[node].c = parts;
    p->t->node[parts].a = test;
    p->t->node[parts].b = body;
    p->t->node[parts].c = otherwise;
    return clb_parse_next(p) ? node : 0;
}

static uint32_t parse_set(struct clb_parser *p, size_t at)
{
    uint32_t target, value, filters = 0, body = 0, node;

    if (!clb_parse_next(p) || !(target = clb_parse_items(p, parse_any_target, ends_targets)))
        return 0;
    bool simple = clb_parse_is_op(p, '=');
    if (!(node = clb_parse_node(p, simple ? CLB_N_SET : CLB_N_SET_BLOCK, at)))
        return 0;
    p->t->node[node].a = target;
    if (simple) {
        if (!clb_parse_next(p) || !(value = clb_parse_tuple(p, true)))
            return 0;
        p->t->node[node].b = value;
        return node;
    }
    if (clb_parse_is_op(p, '|') && !(filters = clb_parse_filters(p, 0, false)))
        return 0;
    if (!whole_block(p, "endset", &body))
        return 0;
    p->t->node[node].b = filters;
    p->t->node[node].c = body;
    return node;
}

/* "(a, b=1)" */
static bool parse_params(struct clb_parser *p, uint32_t *first)
{
    struct clb_nodes list = { 0 };
    bool defaults = false;

    if (!clb_parse_want_op(p, '('))
        return false;
    while (!clb_parse_is_op(p, ')')) {
        size_t at = clb_parse_at(p);
        uint32_t param, symbol, value = 0;
        if (list.first && (!clb_parse_want_op(p, ',') || clb_parse_is_op(p, ')')))
            break;
        if (!clb_parse_symbol(p, &symbol) || !(param = clb_parse_node(p, CLB_N_PARAM, at)))
            return false;
        if (clb_parse_is_op(p, '=')) {
            if (!clb_parse_next(p) || !(value = clb_parse_expression(p)))
                return false;
            defaults = true;
        } else if (defaults) {
            return clb_parse_unexpected(p, "a default, as the parameter before has one");
        }
        p->t->node[param].a = symbol;
        p->t->node[param].b = value;
        if (!clb_nodes_add(p, &list, param))
            return false;
    }
    *first = list.first;
    return clb_parse_want_op(p, ')');
}

/* Body of a macro: loops around it are out of reach of its break. */
static bool macro_body(struct clb_parser *p, const char *end, uint32_t node)
{
    uint8_t uses = 0, *before = p->uses;
    unsigned loops = p->loops;
    uint32_t body = 0;

    p->uses = &uses;
    p->loops = 0;
    bool ok = whole_block(p, end, &body);
    p->uses = before;
    p->loops = loops;
    p->t->node[node].op = uses;
    p->t->node[node].c = body;
    if (before) /* what an inner body mentions, the outer one may have to give */
        *before |= uses;
    return ok;
}

static uint32_t parse_macro(struct clb_parser *p, size_t at)
{
    uint32_t node = clb_parse_node(p, CLB_N_MACRO, at), symbol, params = 0;

    if (!node || !clb_parse_next(p) || !clb_parse_symbol(p, &symbol) || !parse_params(p, &params))
        return 0;
    p->t->node[node].a = symbol;
    p->t->node[node].b = params;
    return macro_body(p, "endmacro", node) ? node : 0;
}

static uint32_t parse_call_block(struct clb_parser *p, size_t at)
{
    uint32_t node = clb_parse_node(p, CLB_N_CALL_BLOCK, at), params = 0, call;

    if (!node || !clb_parse_next(p) || (clb_parse_is_op(p, '(') && !parse_params(p, &params)))
        return 0;
    size_t call_at = clb_parse_at(p);
    if (!(call = clb_parse_expression(p)))
        return 0;
    if (p->t->node[call].kind != CLB_N_CALL)
        return clb_parse_fail(p, CLB_BAD_INPUT, call_at, "'call' needs the call of a macro");
    p->t->node[node].a = call;
    p->t->node[node].b = params;
    return macro_body(p, "endcall", node) ? node : 0;
}

static uint32_t parse_filter_block(struct clb_parser *p, size_t at)
{
    uint32_t node = clb_parse_node(p, CLB_N_FILTER_BLOCK, at), filters, body = 0;

    if (!node || !clb_parse_next(p) || !(filters = clb_parse_filters(p, 0, true)) ||
        !whole_block(p, "endfilter", &body))
        return 0;
    p->t->node[node].a = filters;
    p->t->node[node].b = body;
    return node;
}

static uint32_t parse_with(struct clb_parser *p, size_t at)
{
    uint32_t node = clb_parse_node(p, CLB_N_WITH, at), set, target, value, body = 0;
    struct clb_nodes list = { 0 };

    if (!node || !clb_parse_next(p))
        return 0;
    while (p->tok.type != CLB_T_BLOCK_END) {
        if (list.first && !clb_parse_want_op(p, ','))
            return 0;
        if (!(set = clb_parse_node(p, CLB_N_SET, clb_parse_at(p))) ||
            !(target = parse_target(p, false)) || !clb_parse_want_op(p, '=') ||
            !(value = clb_parse_expression(p)) || !clb_nodes_add(p, &list, set))
            return 0;
        p->t->node[set].a = target;
        p->t->node[set].b = value;
    }
    if (!whole_block(p, "endwith", &body))
        return 0;
    p->t->node[node].a = list.first;
    p->t->node[node].b = body;
    return node;
}

/* transformers' tag around what the assistant says: a scope, and else nothing. */
static uint32_t parse_generation(struct clb_parser *p, size_t at)
{
    uint32_t node = clb_parse_node(p, CLB_N_SCOPE, at), body = 0;
    unsigned loops = p->loops;

    p->loops = 0;
    if (!node || !clb_parse_next(p) || !whole_block(p, "endgeneration", &body))
        return 0;
    p->loops = loops;
    p->t->node[node].a = body;
    return node;
}

static uint32_t parse_jump(struct clb_parser *p, size_t at)
{
    bool leave = clb_parse_is_name(p, "break");

    if (!p->loops)
        return clb_parse_fail(p, CLB_BAD_INPUT, at, "'%s' outside of a loop",
                              leave ? "break" : "continue");
    uint32_t node = clb_parse_node(p, leave ? CLB_N_BREAK : CLB_N_CONTINUE, at);
    return node && clb_parse_next(p) ? node : 0;
}

/* The tag whose name comes next, with all that belongs to it but its last "%}". */
static uint32_t parse_statement(struct clb_parser *p)
{
    static const struct {
        const char *name;
        uint32_t (*parse)(struct clb_parser *p, size_t at);
    } word[] = {
        { "if", parse_if },           { "for", parse_for },
        { "set", parse_set },         { "macro", parse_macro },
        { "call", parse_call_block }, { "filter", parse_filter_block },
        { "with", parse_with },       { "generation", parse_generation },
        { "break", parse_jump },      { "continue", parse_jump },
    };
    static const char *const others[] = { "include", "import", "from",       "extends", "block",
                                          "do",      "trans",  "autoescape", "debug",   "print" };
    struct clb_str name = p->tok.text;

    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        if (clb_parse_is_name(p, word[i].name))
            return word[i].parse(p, clb_parse_at(p));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (clb_parse_is_name(p, others[i]))
            return clb_parse_fail(p, CLB_UNSUPPORTED, clb_parse_at(p),
                                  "the tag '%s' is not supported", others[i]);
    if (p->tok.type == CLB_T_NAME)
        return clb_parse_fail(p, CLB_BAD_INPUT, clb_parse_at(p), "the tag '%.*s' is not known here",
                              name.n > 60 ? 60 : (int)name.n, name.p);
    return clb_parse_unexpected(p, "the name of a tag");
}

static uint32_t parse_print(struct clb_parser *p)
{
    uint32_t node = clb_parse_node(p, CLB_N_OUTPUT, clb_parse_at(p)), value;

    if (!node || !clb_parse_next(p) || !(value = clb_parse_tuple(p, true)))
        return 0;
    p->t->node[node].a = value;
    if (p->tok.type != CLB_T_PRINT_END)
        return clb_parse_unexpected(p, "'}}'");
    return clb_parse_next(p) ? node : 0;
}

static uint32_t parse_text(struct clb_parser *p)
{
    uint32_t node = clb_parse_node(p, CLB_N_TEXT, clb_parse_at(p));
    uint32_t s = node ? clb_string_of(p->t, p->tok.text, p->err) : UINT32_MAX;

    if (s == UINT32_MAX)
        return 0;
    p->t->node[node].a = s;
    return clb_parse_next(p) ? node : 0;
}

static bool parse_body(struct clb_parser *p, const char *const *ends, uint32_t *first)
{
    struct clb_nodes list = { 0 };
    size_t opened = clb_parse_at(p);

    if (!clb_parse_deeper(p))
        return false;
    while (p->tok.type != CLB_T_END) {
        uint32_t node;
        if (p->tok.type == CLB_T_DATA) {
            node = parse_text(p);
        } else if (p->tok.type == CLB_T_PRINT_BEGIN) {
            node = parse_print(p);
        } else {
            if (!clb_parse_next(p))
                return false;
            for (int i = 0; ends && ends[i]; i++)
                if (clb_parse_is_name(p, ends[i])) {
                    *first = list.first;
                    p->depth--;
                    return true;
                }
            node = parse_statement(p);
            if (node && !want_block_end(p))
                return false;
        }
        if (!clb_nodes_add(p, &list, node))
            return false;
    }
    *first = list.first;
    p->depth--;
    return !ends || clb_parse_fail(p, CLB_BAD_INPUT, opened > p->x.src.n ? 0 : opened,
                                   "the template ends before the '%s' of what begins here",
                                   ends[1] ? ends[2] ? ends[2] : ends[1] : ends[0]);
}

/* -- the whole --------------------------------------------------------------------------------- */

/* Newlines become "\n", and one at the end goes. */
static bool take_source(struct clb_template *t, struct clb_str text)
{
    for (size_t i = 0; i < text.n; i++) {
        char c = text.p[i];
        if (c == '\r' && i + 1 < text.n && text.p[i + 1] == '\n')
            continue;
        c = c == '\r' ? '\n' : c;
        clb_text_add(&t->source, &c, 1);
    }
    if (t->source.n && t->source.p[t->source.n - 1] == '\n')
        t->source.n--;
    return !t->source.failed;
}

/* CLB_SYMBOL_*, in their order. */
static bool known_symbols(struct clb_template *t, struct clb_err *err)
{
    static const char *const name[] = { "loop", "varargs", "kwargs", "caller" };

    for (int i = 0; i < 4; i++)
        if (clb_symbol_of(t, clb_str(name[i]), err) == UINT32_MAX)
            return false;
    return true;
}

bool clb_template_parse(struct clb_template **out, struct clb_str text, const char *name,
                        struct clb_err *err)
{
    struct clb_parser p = { .err = err };
    size_t valid = clb_utf8_valid(text.p, text.n);

    if (text.n > MOST_SOURCE)
        return clb_fail(err, CLB_UNSUPPORTED, "%s: a template of %zu bytes: at most %d", name,
                        text.n, MOST_SOURCE);
    if (valid < text.n)
        return clb_fail(err, CLB_BAD_INPUT, "%s: byte %zu is not valid UTF-8", name, valid);
    if (!(p.t = clb_new(1, sizeof *p.t, err)))
        return false;
    p.t->decoded.limit = 16 * MOST_SOURCE;
    if (!(p.t->name = clb_strdup(name, err)))
        goto failed;
    if (!take_source(p.t, text)) {
        clb_fail_nomem(err, text.n);
        goto failed;
    }
    clb_lex_open(&p.x, (struct clb_str){ p.t->source.n ? p.t->source.p : "", p.t->source.n },
                 p.t->name, err);
    if (!known_symbols(p.t, err) || !clb_parse_next(&p) || !parse_body(&p, NULL, &p.t->body))
        goto failed;
    *out = p.t;
    return true;
failed:
    clb_template_free(p.t);
    return false;
}
