/* Filters that make text. */
#include <string.h>

#include "lib/chat/vm.h"

#define FILTER(name)                                                                               \
    static bool name(struct clb_vm *vm, const struct clb_call *c, const struct clb_value *v,       \
                     struct clb_value *out)

/* The value as text, whatever it is. */
static bool text_of(struct clb_vm *vm, const struct clb_value *v, const struct clb_string **s)
{
    struct clb_value text;

    if (!clb_as_string(vm, v, &text))
        return false;
    *s = text.u.s;
    return true;
}

static bool recase(struct clb_vm *vm, const struct clb_value *v, enum clb_case how,
                   struct clb_value *out)
{
    const struct clb_string *s;

    return text_of(vm, v, &s) && clb_recase(vm, s, how, out);
}

FILTER(upper)
{
    (void)c;
    return recase(vm, v, CLB_UPPER, out);
}
FILTER(lower)
{
    (void)c;
    return recase(vm, v, CLB_LOWER, out);
}
FILTER(title)
{
    (void)c;
    return recase(vm, v, CLB_WORDS, out);
}
FILTER(capitalize)
{
    (void)c;
    return recase(vm, v, CLB_CAPITAL, out);
}

FILTER(trim)
{
    const struct clb_string *s, *chars = NULL;

    (void)c;
    if (!text_of(vm, v, &s) || (v[1].kind != CLB_V_NONE &&
                                !clb_want_string(vm, &v[1], "the characters of 'trim'", &chars)))
        return false;
    return clb_trim(vm, s, chars, true, true, out);
}

FILTER(replace)
{
    const struct clb_string *s, *old, *with;
    int64_t most = -1;

    (void)c;
    return text_of(vm, v, &s) && text_of(vm, &v[1], &old) && text_of(vm, &v[2], &with) &&
           (v[3].kind == CLB_V_NONE || clb_want_int(vm, &v[3], "the count of 'replace'", &most)) &&
           clb_replace(vm, s, old, with, most, out);
}

FILTER(string)
{
    (void)c;
    return clb_as_string(vm, v, out);
}

FILTER(safe)
{
    (void)c;
    if (!clb_as_string(vm, v, out))
        return false;
    out->safe = true;
    return true;
}

FILTER(escape)
{
    (void)c;
    return clb_escape_html(vm, v, out);
}

FILTER(center)
{
    const struct clb_string *s;
    struct clb_out b = { .arena = &vm->arena };
    int64_t width = 80;

    (void)c;
    if (!text_of(vm, v, &s) || !clb_want_int(vm, &v[1], "the width of 'center'", &width) ||
        !clb_vm_charge(vm, width > 0 ? (uint64_t)width : 0))
        return false;
    int64_t gap = width - (int64_t)clb_count_chars(s->p, s->n), left;
    gap = gap < 0 ? 0 : gap;
    left = gap / 2 + (gap & width & 1);
    for (int64_t i = 0; i < left; i++)
        clb_out_puts(&b, " ");
    clb_out_string(&b, s);
    for (int64_t i = left; i < gap; i++)
        clb_out_puts(&b, " ");
    return clb_vm_got(vm, clb_out_done(&b, out));
}

/* n spaces, at most 100. */
static bool spaces(struct clb_vm *vm, const struct clb_value *v, const char *what,
                   struct clb_str *to)
{
    static const char blank[] = "                                                  "
                                "                                                  ";
    int64_t n = 4;

    if (!clb_want_int(vm, v, what, &n))
        return false;
    if (n > 100)
        return clb_vm_fail(vm, CLB_UNSUPPORTED, "%s is %lld: at most 100", what, (long long)n);
    *to = (struct clb_str){ blank, n < 0 ? 0 : (size_t)n };
    return true;
}

FILTER(indent)
{
    const struct clb_string *s;
    struct clb_out b = { .arena = &vm->arena }, lined = { .arena = &vm->arena };
    struct clb_value lines;
    struct clb_str by;
    bool first = false, blank = false;

    (void)c;
    if (!text_of(vm, v, &s) || !clb_want_bool(vm, &v[2], &first) ||
        !clb_want_bool(vm, &v[3], &blank))
        return false;
    if (v[1].kind == CLB_V_STRING)
        by = clb_view(v[1].u.s);
    else if (!spaces(vm, &v[1], "the width of 'indent'", &by))
        return false;
    clb_out_string(&lined, s);
    clb_out_puts(&lined, "\n");
    if (!clb_vm_got(vm, clb_out_done(&lined, &lines)) ||
        !clb_split_lines(vm, lines.u.s, false, &lines))
        return false;
    for (size_t i = 0; i < lines.u.list->n; i++) {
        const struct clb_string *line = lines.u.list->v[i].u.s;
        clb_out_puts(&b, i ? "\n" : "");
        if (i == 0 ? first : blank || line->n)
            clb_out_add(&b, by.p, by.n, clb_of_template);
        clb_out_string(&b, line);
    }
    return clb_vm_charge(vm, b.n / 16) && clb_vm_got(vm, clb_out_done(&b, out));
}

static bool separators(struct clb_vm *vm, const struct clb_value *v, struct clb_json_style *style)
{
    struct clb_list l;

    if (v->kind == CLB_V_ABSENT || v->kind == CLB_V_NONE)
        return true;
    if (!clb_vm_items(vm, v, &l))
        return false;
    if (l.n != 2 || l.v[0].kind != CLB_V_STRING || l.v[1].kind != CLB_V_STRING)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "the separators of 'tojson' are two texts");
    style->item = clb_view(l.v[0].u.s);
    style->key = clb_view(l.v[1].u.s);
    return true;
}

FILTER(tojson)
{
    struct clb_json_style style = { .key = clb_str(": ") };
    struct clb_out b = { .arena = &vm->arena };

    (void)c;
    if (v[2].kind == CLB_V_STRING)
        style.indent = clb_view(v[2].u.s);
    else if (v[2].kind != CLB_V_ABSENT && v[2].kind != CLB_V_NONE &&
             !spaces(vm, &v[2], "the indent of 'tojson'", &style.indent))
        return false;
    style.item = clb_str(style.indent.p ? "," : ", ");
    return clb_want_bool(vm, &v[1], &style.ascii) && clb_want_bool(vm, &v[4], &style.sort) &&
           separators(vm, &v[3], &style) && clb_print_json(vm, &b, v, &style, 0) &&
           clb_vm_got(vm, clb_out_done(&b, out));
}

FILTER(join)
{
    struct clb_out b = { .arena = &vm->arena };
    const struct clb_string *glue = NULL;
    struct clb_list l;
    struct clb_value item;

    (void)c;
    if (!clb_vm_items(vm, v, &l) || (v[1].kind != CLB_V_ABSENT && !text_of(vm, &v[1], &glue)))
        return false;
    for (size_t i = 0; i < l.n; i++) {
        item = l.v[i];
        if (v[2].kind > CLB_V_NONE && !clb_vm_path(vm, &l.v[i], &v[2], &item))
            return false;
        if (i && glue)
            clb_out_string(&b, glue);
        if (!clb_print(vm, &b, &item))
            return false;
    }
    return clb_vm_charge(vm, l.n) && clb_vm_got(vm, clb_out_done(&b, out));
}

FILTER(format)
{
    const struct clb_string *s;

    if (c->n && c->named->n)
        return clb_vm_fail(vm, CLB_BAD_INPUT,
                           "'format' takes values by place or by name, not both");
    return text_of(vm, v, &s) &&
           clb_percent(vm, s, c->arg, c->n, c->named->n ? c->named : NULL, out);
}

const struct clb_builtin clb_text_filters[] = {
    { "upper", "", upper },
    { "lower", "", lower },
    { "title", "", title },
    { "capitalize", "", capitalize },
    { "trim", "[chars", trim },
    { "replace", "old new [count", replace },
    { "string", "", string },
    { "safe", "", safe },
    { "escape", "", escape },
    { "e", "", escape },
    { "center", "[width", center },
    { "indent", "[width first blank", indent },
    { "tojson", "[ensure_ascii indent separators sort_keys", tojson },
    { "join", "[d attribute", join },
    { "format", NULL, format },
    { NULL, NULL, NULL },
};
