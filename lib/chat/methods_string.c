/* Methods of text: making other texts, and lists of them. */
#include <string.h>

#include "lib/chat/lex.h"
#include "lib/chat/vm.h"

#define METHOD(name)                                                                               \
    static bool name(struct clb_vm *vm, const struct clb_call *c, const struct clb_value *v,       \
                     struct clb_value *out)

METHOD(upper)
{
    (void)c;
    return clb_recase(vm, v->u.s, CLB_UPPER, out);
}
METHOD(lower)
{
    (void)c;
    return clb_recase(vm, v->u.s, CLB_LOWER, out);
}
METHOD(title)
{
    (void)c;
    return clb_recase(vm, v->u.s, CLB_TITLE, out);
}
METHOD(capitalize)
{
    (void)c;
    return clb_recase(vm, v->u.s, CLB_CAPITAL, out);
}

static bool strip_sides(struct clb_vm *vm, const struct clb_value *v, bool left, bool right,
                        struct clb_value *out)
{
    const struct clb_string *chars = NULL;

    return (v[1].kind == CLB_V_NONE ||
            clb_want_string(vm, &v[1], "the characters to strip", &chars)) &&
           clb_trim(vm, v->u.s, chars, left, right, out);
}
METHOD(strip)
{
    (void)c;
    return strip_sides(vm, v, true, true, out);
}
METHOD(lstrip)
{
    (void)c;
    return strip_sides(vm, v, true, false, out);
}
METHOD(rstrip)
{
    (void)c;
    return strip_sides(vm, v, false, true, out);
}

METHOD(replace)
{
    const struct clb_string *old = NULL, *with = NULL;
    int64_t most = -1;

    (void)c;
    return clb_want_string(vm, &v[1], "what 'replace' looks for", &old) &&
           clb_want_string(vm, &v[2], "what 'replace' puts", &with) &&
           clb_want_int(vm, &v[3], "the count of 'replace'", &most) &&
           clb_replace(vm, v->u.s, old, with, most, out);
}

static bool remove_end(struct clb_vm *vm, const struct clb_value *v, bool suffix,
                       struct clb_value *out)
{
    const struct clb_string *s = v->u.s, *part = NULL;

    if (!clb_want_string(vm, &v[1], "what is removed", &part))
        return false;
    bool has = s->n >= part->n && !memcmp(suffix ? s->p + s->n - part->n : s->p, part->p, part->n);
    size_t cut = has ? part->n : 0;
    return clb_vm_got(vm, clb_string_part(&vm->arena, out, s, suffix ? 0 : cut, s->n - cut));
}
METHOD(removeprefix)
{
    (void)c;
    return remove_end(vm, v, false, out);
}
METHOD(removesuffix)
{
    (void)c;
    return remove_end(vm, v, true, out);
}

/* To a width, with a character in front (left of it) or behind. */
static bool justify(struct clb_vm *vm, const struct clb_value *v, bool right, struct clb_value *out)
{
    const struct clb_string blank = { " ", clb_of_template, 1 }, *fill = &blank, *s = v->u.s;
    struct clb_out b = { .arena = &vm->arena };
    int64_t width = 0;

    if (!clb_want_int(vm, &v[1], "the width", &width) ||
        !clb_want_string(vm, &v[2], "the character to fill with", &fill) ||
        !clb_vm_charge(vm, width > 0 ? (uint64_t)width : 0))
        return false;
    if (clb_count_chars(fill->p, fill->n) != 1)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "the fill is not one character");
    int64_t gap = width - (int64_t)clb_count_chars(s->p, s->n);
    if (!right)
        clb_out_string(&b, s);
    for (int64_t i = 0; i < gap; i++)
        clb_out_string(&b, fill);
    if (right)
        clb_out_string(&b, s);
    return clb_vm_got(vm, clb_out_done(&b, out));
}
METHOD(ljust)
{
    (void)c;
    return justify(vm, v, false, out);
}
METHOD(rjust)
{
    (void)c;
    return justify(vm, v, true, out);
}

METHOD(zfill)
{
    const struct clb_string *s = v->u.s;
    struct clb_out b = { .arena = &vm->arena };
    int64_t width = 0;

    (void)c;
    if (!clb_want_int(vm, &v[1], "the width", &width) ||
        !clb_vm_charge(vm, width > 0 ? (uint64_t)width : 0))
        return false;
    size_t sign = s->n && (*s->p == '+' || *s->p == '-');
    clb_out_part(&b, s, 0, sign);
    for (int64_t i = (int64_t)clb_count_chars(s->p, s->n); i < width; i++)
        clb_out_puts(&b, "0");
    clb_out_part(&b, s, sign, s->n - sign);
    return clb_vm_got(vm, clb_out_done(&b, out));
}

METHOD(join)
{
    struct clb_out b = { .arena = &vm->arena };
    struct clb_list l;

    (void)c;
    if (v[1].kind == CLB_V_UNDEFINED)
        return clb_vm_undefined(vm, &v[1]);
    if (!clb_vm_items(vm, &v[1], &l))
        return false;
    for (size_t i = 0; i < l.n; i++) {
        if (l.v[i].kind != CLB_V_STRING)
            return clb_vm_fail(vm, CLB_BAD_INPUT, "sequence item %zu: expected str, found '%s'", i,
                               clb_type_name(&l.v[i]));
        if (i)
            clb_out_string(&b, v->u.s);
        clb_out_string(&b, l.v[i].u.s);
    }
    return clb_vm_charge(vm, l.n + b.n / 64) && clb_vm_got(vm, clb_out_done(&b, out));
}

METHOD(format)
{
    return clb_braces(vm, v->u.s, c, out);
}

/* -- splitting --------------------------------------------------------------------------------- */

static bool push_part(struct clb_vm *vm, struct clb_list *l, const struct clb_string *s,
                      const char *from, const char *to)
{
    struct clb_value part;

    return clb_vm_charge(vm, 1) &&
           clb_vm_got(vm, clb_string_part(&vm->arena, &part, s, (size_t)(from - s->p),
                                          (size_t)(to - from)) &&
                              clb_list_push(&vm->arena, l, &part));
}

/* At runs of white space. */
static bool split_words(struct clb_vm *vm, const struct clb_string *s, int64_t most,
                        struct clb_list *l)
{
    const char *p = s->p, *end = s->p + s->n;

    for (int64_t k = 0;; k++) {
        struct clb_str rest = clb_strip((struct clb_str){ p, (size_t)(end - p) }, true, false);
        if (!rest.n)
            return true;
        if (most >= 0 && k == most)
            return push_part(vm, l, s, rest.p, end);
        const char *stop = rest.p;
        while (stop < end && !clb_space_at(stop, end))
            stop++;
        if (!push_part(vm, l, s, rest.p, stop))
            return false;
        p = stop;
    }
}

/* The same from the end; the parts come out in reverse order. */
static bool rsplit_words(struct clb_vm *vm, const struct clb_string *s, int64_t most,
                         struct clb_list *l)
{
    const char *end = s->p + s->n;

    for (int64_t k = 0;; k++) {
        struct clb_str rest =
            clb_strip((struct clb_str){ s->p, (size_t)(end - s->p) }, false, true);
        if (!rest.n)
            return true;
        end = rest.p + rest.n;
        if (most >= 0 && k == most)
            return push_part(vm, l, s, s->p, end);
        const char *start = end;
        while (start > s->p && !clb_space_before(s->p, start))
            start--;
        if (!push_part(vm, l, s, start, end))
            return false;
        end = start;
    }
}

static const char *find_last(const char *p, size_t n, const struct clb_string *part)
{
    for (size_t at = n >= part->n ? n - part->n + 1 : 0; at-- > 0;)
        if (!memcmp(p + at, part->p, part->n))
            return p + at;
    return NULL;
}

static bool split_at(struct clb_vm *vm, const struct clb_string *s, const struct clb_string *sep,
                     int64_t most, bool last, struct clb_list *l)
{
    const char *p = s->p, *end = s->p + s->n;

    for (int64_t k = 0; most < 0 || k < most; k++) {
        const char *found = last ? find_last(p, (size_t)(end - p), sep)
                                 : memmem(p, (size_t)(end - p), sep->p, sep->n);
        if (!found)
            break;
        if (!push_part(vm, l, s, last ? found + sep->n : p, last ? end : found))
            return false;
        p = last ? p : found + sep->n;
        end = last ? found : end;
    }
    return push_part(vm, l, s, p, end);
}

static bool split(struct clb_vm *vm, const struct clb_value *v, bool last, struct clb_value *out)
{
    const struct clb_string *s = v->u.s, *sep = NULL;
    int64_t most = -1;

    if ((v[1].kind != CLB_V_NONE && !clb_want_string(vm, &v[1], "the separator", &sep)) ||
        !clb_want_int(vm, &v[2], "the limit of 'split'", &most) ||
        !clb_vm_charge(vm, s->n / 8 * (last && sep ? sep->n / 16 + 1 : 1)) ||
        !clb_vm_got(vm, clb_list_make(&vm->arena, out, CLB_V_LIST, 0)))
        return false;
    if (sep && sep->n == 0)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "empty separator");
    struct clb_list *l = out->u.list;
    bool ok = sep    ? split_at(vm, s, sep, most, last, l)
              : last ? rsplit_words(vm, s, most, l)
                     : split_words(vm, s, most, l);
    for (size_t i = 0; last && i < l->n / 2; i++) {
        const struct clb_value x = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = x;
    }
    return ok;
}
METHOD(split_method)
{
    (void)c;
    return split(vm, v, false, out);
}
METHOD(rsplit)
{
    (void)c;
    return split(vm, v, true, out);
}

METHOD(splitlines)
{
    bool keep = false;

    (void)c;
    return clb_want_bool(vm, &v[1], &keep) && clb_split_lines(vm, v->u.s, keep, out);
}

/* What stands before, the separator, what stands behind. */
static bool partition(struct clb_vm *vm, const struct clb_value *v, bool last,
                      struct clb_value *out)
{
    const struct clb_string *s = v->u.s, *sep = NULL;
    const char *end = s->p + s->n;

    if (!clb_want_string(vm, &v[1], "the separator", &sep) ||
        !clb_vm_got(vm, clb_list_make(&vm->arena, out, CLB_V_TUPLE, 3)))
        return false;
    if (sep->n == 0)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "empty separator");
    const char *at = last ? find_last(s->p, s->n, sep) : memmem(s->p, s->n, sep->p, sep->n);
    const char *from = at ? at : last ? s->p : end, *to = at ? at + sep->n : from;
    return clb_vm_charge(vm, s->n / 8 * (sep->n / 16 + 1)) &&
           push_part(vm, out->u.list, s, s->p, from) && push_part(vm, out->u.list, s, from, to) &&
           push_part(vm, out->u.list, s, to, end);
}
METHOD(partition_method)
{
    (void)c;
    return partition(vm, v, false, out);
}
METHOD(rpartition)
{
    (void)c;
    return partition(vm, v, true, out);
}

const struct clb_builtin clb_string_methods[] = {
    { "upper", "", upper },
    { "lower", "", lower },
    { "title", "", title },
    { "capitalize", "", capitalize },
    { "strip", "[chars", strip },
    { "lstrip", "[chars", lstrip },
    { "rstrip", "[chars", rstrip },
    { "replace", "old new [count", replace },
    { "removeprefix", "prefix", removeprefix },
    { "removesuffix", "suffix", removesuffix },
    { "ljust", "width [fillchar", ljust },
    { "rjust", "width [fillchar", rjust },
    { "zfill", "width", zfill },
    { "join", "iterable", join },
    { "format", NULL, format },
    { "split", "[sep maxsplit", split_method },
    { "rsplit", "[sep maxsplit", rsplit },
    { "splitlines", "[keepends", splitlines },
    { "partition", "sep", partition_method },
    { "rpartition", "sep", rpartition },
    { NULL, NULL, NULL },
};
