/* Methods of text: finding and asking. */
#include <string.h>

#include "lib/chat/lex.h"
#include "lib/chat/vm.h"
#include "lib/token/unicode.h"
#include "lib/token/utf8.h"

#define METHOD(name)                                                                               \
    static bool name(struct clb_vm *vm, const struct clb_call *c, const struct clb_value *v,       \
                     struct clb_value *out)

/* One text, or a tuple of which one is enough. */
static bool at_end(struct clb_vm *vm, const struct clb_value *v, bool suffix, struct clb_value *out)
{
    const struct clb_string *s = v->u.s, *part = NULL;
    bool many = v[1].kind == CLB_V_TUPLE, is = false;
    size_t n = many ? v[1].u.list->n : 1;

    for (size_t i = 0; i < n && !is; i++) {
        if (!clb_vm_charge(vm, 1) ||
            !clb_want_string(vm, many ? &v[1].u.list->v[i] : &v[1], "what is looked for", &part))
            return false;
        is = s->n >= part->n && !memcmp(suffix ? s->p + s->n - part->n : s->p, part->p, part->n);
    }
    *out = clb_v_bool(is);
    return true;
}
METHOD(startswith)
{
    (void)c;
    return at_end(vm, v, false, out);
}
METHOD(endswith)
{
    (void)c;
    return at_end(vm, v, true, out);
}

/* Where the first or last occurrence begins, in characters; -1: nowhere. */
static bool find(struct clb_vm *vm, const struct clb_value *v, bool last, struct clb_value *out)
{
    const struct clb_string *s = v->u.s, *part = NULL;
    const char *at, *next;

    if (!clb_want_string(vm, &v[1], "what is looked for", &part))
        return false;
    at = memmem(s->p, s->n, part->p, part->n);
    if (last && part->n == 0)
        at = s->p + s->n;
    while (last && at && part->n && at < s->p + s->n &&
           (next = memmem(at + 1, s->n - (size_t)(at + 1 - s->p), part->p, part->n))) {
        at = next;
        if (!clb_vm_charge(vm, 1))
            return false;
    }
    *out = clb_v_int(at ? (int64_t)clb_count_chars(s->p, (size_t)(at - s->p)) : -1);
    return clb_vm_charge(vm, s->n / 32);
}
METHOD(find_method)
{
    (void)c;
    return find(vm, v, false, out);
}
METHOD(rfind)
{
    (void)c;
    return find(vm, v, true, out);
}

static bool index_of(struct clb_vm *vm, const struct clb_value *v, bool last, struct clb_value *out)
{
    return find(vm, v, last, out) &&
           (out->u.i >= 0 || clb_vm_fail(vm, CLB_BAD_INPUT, "substring not found"));
}
METHOD(index_method)
{
    (void)c;
    return index_of(vm, v, false, out);
}
METHOD(rindex_method)
{
    (void)c;
    return index_of(vm, v, true, out);
}

METHOD(count)
{
    const struct clb_string *s = v->u.s, *part = NULL;
    const char *end = s->p + s->n;
    int64_t n = 0;

    (void)c;
    if (!clb_want_string(vm, &v[1], "what is counted", &part))
        return false;
    if (part->n == 0)
        n = (int64_t)clb_count_chars(s->p, s->n) + 1;
    for (const char *p = s->p; part->n && (p = memmem(p, (size_t)(end - p), part->p, part->n)); n++)
        p += part->n;
    *out = clb_v_int(n);
    return clb_vm_charge(vm, s->n / 32);
}

/* -- what characters they are ------------------------------------------------------------------ */

/* There are some, and all are of the categories; `refused` ones would need more data. */
static bool all_in(struct clb_vm *vm, const struct clb_value *v, uint32_t set, uint32_t refused,
                   struct clb_value *out)
{
    const char *p = v->u.s->p, *end = p + v->u.s->n;
    bool all = p < end;
    unsigned n;

    for (; p < end && all; p += n) {
        uint32_t c = clb_utf8_get(p, end, &n);
        if (clb_uc_in(c, refused))
            return clb_vm_fail(vm, CLB_UNSUPPORTED, "asking this of U+%04X is not supported", c);
        all = clb_uc_in(c, set);
    }
    *out = clb_v_bool(all);
    return clb_vm_charge(vm, v->u.s->n / 8);
}
METHOD(is_alpha)
{
    (void)c;
    return all_in(vm, v, CLB_SET_L, 0, out);
}
METHOD(is_digit)
{
    (void)c;
    return all_in(vm, v, CLB_SET(CLB_ND), CLB_SET(CLB_NO), out);
}
METHOD(is_alnum)
{
    (void)c;
    return all_in(vm, v, CLB_SET_L | CLB_SET_N, 0, out);
}

METHOD(is_space)
{
    const struct clb_string *s = v->u.s;

    (void)c;
    *out = clb_v_bool(s->n && clb_strip(clb_view(s), true, false).n == 0);
    return clb_vm_charge(vm, s->n / 8);
}
METHOD(is_ascii)
{
    const struct clb_string *s = v->u.s;

    (void)c;
    *out = clb_v_bool(clb_count_chars(s->p, s->n) == s->n);
    return clb_vm_charge(vm, s->n / 32);
}

static bool in_case(struct clb_vm *vm, const struct clb_value *v, const char *test,
                    struct clb_value *out)
{
    static const struct clb_dict none;
    const struct clb_call c = { NULL, 0, &none };
    const struct clb_builtin *f =
        clb_builtin_at(CLB_TESTS, clb_builtin_find(CLB_TESTS, clb_str(test)));

    return clb_vm_apply(vm, f, v, &c, out);
}
METHOD(is_lower)
{
    (void)c;
    return in_case(vm, v, "lower", out);
}
METHOD(is_upper)
{
    (void)c;
    return in_case(vm, v, "upper", out);
}

const struct clb_builtin clb_search_methods[] = {
    { "startswith", "prefix", startswith },
    { "endswith", "suffix", endswith },
    { "find", "sub", find_method },
    { "rfind", "sub", rfind },
    { "index", "sub", index_method },
    { "rindex", "sub", rindex_method },
    { "count", "sub", count },
    { "isalpha", "", is_alpha },
    { "isdigit", "", is_digit },
    { "isalnum", "", is_alnum },
    { "isspace", "", is_space },
    { "isascii", "", is_ascii },
    { "islower", "", is_lower },
    { "isupper", "", is_upper },
    { NULL, NULL, NULL },
};
