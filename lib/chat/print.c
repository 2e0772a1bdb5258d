/* Values as text: str, repr, JSON. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/chat/number.h"
#include "lib/chat/vm.h"
#include "lib/token/unicode.h"
#include "lib/token/utf8.h"

/* -- Python's text ----------------------------------------------------------------------------- */

static bool printable(uint32_t c)
{
    uint32_t hidden = CLB_SET_C | CLB_SET_Z;

    return c == ' ' || !clb_uc_in(c, hidden);
}

/* Quotes and escapes as Python chooses them; what is not escaped keeps its origin. */
static void repr_string(struct clb_out *b, const struct clb_string *s)
{
    bool single = memchr(s->p, '\'', s->n), twice = memchr(s->p, '"', s->n);
    const char *quote = single && !twice ? "\"" : "'", *end = s->p + s->n;
    unsigned n;

    clb_out_puts(b, quote);
    for (const char *p = s->p; p < end; p += n) {
        uint32_t c = clb_utf8_get(p, end, &n);
        if (c == (uint32_t)*quote || c == '\\')
            clb_out_printf(b, "\\%c", (int)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            clb_out_puts(b, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        else if (printable(c))
            clb_out_part(b, s, (size_t)(p - s->p), n);
        else
            clb_out_printf(b, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    }
    clb_out_puts(b, quote);
}

static bool repr_items(struct clb_vm *vm, struct clb_out *b, const struct clb_list *l,
                       const char *open, const char *close)
{
    clb_out_puts(b, open);
    for (size_t i = 0; i < l->n; i++) {
        clb_out_puts(b, i ? ", " : "");
        if (!clb_repr(vm, b, &l->v[i]))
            return false;
    }
    clb_out_puts(b, close);
    return true;
}

static bool repr_dict(struct clb_vm *vm, struct clb_out *b, const struct clb_dict *d)
{
    for (size_t i = 0; i < d->n; i++) {
        clb_out_puts(b, i ? ", " : "{");
        if (!clb_repr(vm, b, &d->pair[i].key))
            return false;
        clb_out_puts(b, ": ");
        if (!clb_repr(vm, b, &d->pair[i].value))
            return false;
    }
    clb_out_puts(b, d->n ? "}" : "{}");
    return true;
}

static bool repr_iter(struct clb_vm *vm, struct clb_out *b, const struct clb_value *v)
{
    const struct clb_iter *i = v->u.iter;

    if (!i->label || !strcmp(i->label, "range"))
        return clb_vm_fail(vm, CLB_UNSUPPORTED, "a %s as text is not supported; use '| list'",
                           clb_type_name(v));
    clb_out_puts(b, i->label);
    return repr_items(vm, b, &i->list, "([", "])");
}

static bool repr_simple(struct clb_vm *vm, struct clb_out *b, const struct clb_value *v)
{
    char number[CLB_NUMBER_TEXT];

    switch (v->kind) {
    case CLB_V_UNDEFINED:
        clb_out_puts(b, "Undefined");
        return true;
    case CLB_V_NONE:
        clb_out_puts(b, "None");
        return true;
    case CLB_V_BOOL:
        clb_out_puts(b, v->u.b ? "True" : "False");
        return true;
    case CLB_V_INT:
        clb_out_printf(b, "%lld", (long long)v->u.i);
        return true;
    case CLB_V_FLOAT:
        clb_number_repr(number, v->u.f);
        clb_out_puts(b, number);
        return true;
    default:
        return clb_vm_fail(vm, CLB_UNSUPPORTED, "a '%s' as text is not supported",
                           clb_type_name(v));
    }
}

bool clb_repr(struct clb_vm *vm, struct clb_out *b, const struct clb_value *v)
{
    bool ok = true;

    if (!clb_vm_deeper(vm))
        return false;
    if (v->kind == CLB_V_STRING) {
        clb_out_puts(b, v->safe ? "Markup(" : "");
        repr_string(b, v->u.s);
        clb_out_puts(b, v->safe ? ")" : "");
        ok = clb_vm_charge(vm, v->u.s->n / 8);
    } else if (v->kind == CLB_V_LIST) {
        ok = repr_items(vm, b, v->u.list, "[", "]");
    } else if (v->kind == CLB_V_TUPLE) {
        ok = repr_items(vm, b, v->u.list, "(", v->u.list->n == 1 ? ",)" : ")");
    } else if (v->kind == CLB_V_DICT) {
        ok = repr_dict(vm, b, v->u.dict);
    } else if (v->kind == CLB_V_ITER) {
        ok = repr_iter(vm, b, v);
    } else {
        ok = repr_simple(vm, b, v);
    }
    vm->depth--;
    return ok && clb_vm_got(vm, !b->failed);
}

bool clb_print(struct clb_vm *vm, struct clb_out *b, const struct clb_value *v)
{
    if (v->kind == CLB_V_STRING) {
        clb_out_string(b, v->u.s);
        return clb_vm_charge(vm, v->u.s->n / 64) && clb_vm_got(vm, !b->failed);
    }
    return v->kind == CLB_V_UNDEFINED || clb_repr(vm, b, v);
}

bool clb_as_string(struct clb_vm *vm, const struct clb_value *v, struct clb_value *out)
{
    struct clb_out b = { .arena = &vm->arena };

    if (v->kind == CLB_V_STRING) {
        *out = *v;
        return true;
    }
    return clb_print(vm, &b, v) && clb_vm_got(vm, clb_out_done(&b, out));
}

/* -- JSON -------------------------------------------------------------------------------------- */

/* All of it comes from a value, whatever it was: no special token is meant inside JSON. */
static void put(struct clb_out *b, const char *s)
{
    clb_out_add(b, s, strlen(s), NULL);
}

static void put_str(struct clb_out *b, struct clb_str s)
{
    clb_out_add(b, s.p, s.n, NULL);
}

static void json_escape(struct clb_out *b, uint32_t c)
{
    static const char names[] = "\bb\ff\nn\rr\tt\"\"\\\\";
    const char *name = c && c < 0x80 ? strchr(names, (int)c) : NULL;
    char s[16];

    if (name)
        snprintf(s, sizeof s, "\\%c", name[(name - names) % 2 == 0]);
    else if (c < 0x10000)
        snprintf(s, sizeof s, "\\u%04x", c);
    else
        snprintf(s, sizeof s, "\\u%04x\\u%04x", 0xd7c0 + (c >> 10), 0xdc00 + (c & 0x3ff));
    put(b, s);
}

static bool json_string(struct clb_vm *vm, struct clb_out *b, const struct clb_string *s,
                        bool ascii)
{
    const char *end = s->p + s->n, *plain = s->p;
    unsigned n;

    put(b, "\"");
    for (const char *p = s->p; p < end; p += n) {
        uint32_t c = clb_utf8_get(p, end, &n);
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x80 || !ascii) && !(ascii && c == 0x7f))
            continue;
        put_str(b, (struct clb_str){ plain, (size_t)(p - plain) });
        json_escape(b, c);
        plain = p + n;
    }
    put_str(b, (struct clb_str){ plain, (size_t)(end - plain) });
    put(b, "\"");
    return clb_vm_charge(vm, s->n / 16);
}

static bool json_simple(struct clb_vm *vm, struct clb_out *b, const struct clb_value *v)
{
    char s[CLB_NUMBER_TEXT];

    if (v->kind == CLB_V_NONE) {
        put(b, "null");
    } else if (v->kind == CLB_V_BOOL) {
        put(b, v->u.b ? "true" : "false");
    } else if (v->kind == CLB_V_INT) {
        snprintf(s, sizeof s, "%lld", (long long)v->u.i);
        put(b, s);
    } else if (v->kind == CLB_V_FLOAT && isfinite(v->u.f)) {
        clb_number_repr(s, v->u.f);
        put(b, s);
    } else if (v->kind == CLB_V_FLOAT) {
        put(b, isnan(v->u.f) ? "NaN" : v->u.f < 0 ? "-Infinity" : "Infinity");
    } else {
        return clb_vm_fail(vm, CLB_BAD_INPUT, "Object of type %s is not JSON serializable",
                           clb_type_name(v));
    }
    return true;
}

static void json_line(struct clb_out *b, const struct clb_json_style *style, unsigned depth)
{
    if (!style->indent.p)
        return;
    put(b, "\n");
    for (unsigned i = 0; i < depth; i++)
        put_str(b, style->indent);
}

static bool json_key(struct clb_vm *vm, struct clb_out *b, const struct clb_value *key,
                     const struct clb_json_style *style)
{
    if (key->kind == CLB_V_STRING)
        return json_string(vm, b, key->u.s, style->ascii);
    if (key->kind < CLB_V_NONE || key->kind > CLB_V_FLOAT)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "a '%s' cannot be a key in JSON", clb_type_name(key));
    put(b, "\"");
    bool ok = json_simple(vm, b, key);
    put(b, "\"");
    return ok;
}

/* The pairs of a dict in the order of their keys. */
static bool sorted(struct clb_vm *vm, const struct clb_dict **d)
{
    struct clb_dict *copy = clb_arena_get(&vm->arena, sizeof *copy);
    struct clb_value *keys = clb_arena_get(&vm->arena, 2 * (*d)->n * sizeof *keys);

    if (!copy || !keys)
        return clb_vm_nomem(vm);
    for (size_t i = 0; i < (*d)->n; i++) {
        keys[i] = (*d)->pair[i].key;
        keys[(*d)->n + i] = (*d)->pair[i].value;
    }
    if (!clb_vm_sort(vm, keys, keys + (*d)->n, (*d)->n, false))
        return false;
    for (size_t i = 0; i < (*d)->n; i++)
        if (!clb_vm_got(vm, clb_dict_push(&vm->arena, copy, &keys[i], &keys[(*d)->n + i])))
            return false;
    *d = copy;
    return true;
}

static bool json_container(struct clb_vm *vm, struct clb_out *b, const struct clb_value *v,
                           const struct clb_json_style *style, unsigned depth)
{
    const struct clb_dict *d = v->kind == CLB_V_DICT ? v->u.dict : NULL;
    size_t n = d ? d->n : v->u.list->n;

    if (d && style->sort && !sorted(vm, &d))
        return false;
    put(b, d ? "{" : "[");
    for (size_t i = 0; i < n; i++) {
        if (i)
            put_str(b, style->item);
        json_line(b, style, depth + 1);
        if (d) {
            if (!json_key(vm, b, &d->pair[i].key, style))
                return false;
            put_str(b, style->key);
        }
        if (!clb_print_json(vm, b, d ? &d->pair[i].value : &v->u.list->v[i], style, depth + 1))
            return false;
    }
    if (n)
        json_line(b, style, depth);
    put(b, d ? "}" : "]");
    return true;
}

bool clb_print_json(struct clb_vm *vm, struct clb_out *b, const struct clb_value *v,
                    const struct clb_json_style *style, unsigned depth)
{
    bool ok;

    if (!clb_vm_deeper(vm))
        return false;
    if (v->kind == CLB_V_STRING)
        ok = json_string(vm, b, v->u.s, style->ascii);
    else if (v->kind == CLB_V_LIST || v->kind == CLB_V_TUPLE || v->kind == CLB_V_DICT)
        ok = json_container(vm, b, v, style, depth);
    else
        ok = json_simple(vm, b, v);
    vm->depth--;
    return ok && clb_vm_got(vm, !b->failed);
}
