/* Attributes, subscripts, slices; iterating and counting. */
#include <string.h>

#include "lib/chat/vm.h"

/* -- attributes -------------------------------------------------------------------------------- */

/* What Python's types have and we do not: a key of that name would be hidden, so it is an error. */
static const char str_others[] = " casefold encode expandtabs format_map isidentifier isprintable "
                                 "maketrans translate isdecimal isnumeric ";
static const char list_others[] = " clear remove sort ";
static const char dict_others[] = " clear fromkeys pop popitem setdefault ";
static const char number_others[] =
    " real imag numerator denominator bit_length bit_count conjugate "
    "to_bytes from_bytes as_integer_ratio is_integer hex fromhex ";

static bool listed(const char *words, struct clb_str name)
{
    char word[40];

    if (name.n > sizeof word - 3 || name.n == 0)
        return false;
    word[0] = ' ';
    memcpy(word + 1, name.p, name.n);
    memcpy(word + 1 + name.n, " ", 2);
    return strstr(words, word) != NULL;
}

static bool make_undefined(struct clb_vm *vm, const struct clb_value *of, struct clb_str name,
                           struct clb_value *out)
{
    struct clb_undefined *u = clb_arena_get(&vm->arena, sizeof *u);

    if (!u)
        return clb_vm_nomem(vm);
    *u = (struct clb_undefined){ of->kind, name };
    *out = (struct clb_value){ .kind = CLB_V_UNDEFINED, .u.undefined = u };
    return true;
}

static bool loop_member(struct clb_vm *vm, const struct clb_value *of, struct clb_str name,
                        struct clb_value *out)
{
    const struct clb_loop *l = of->u.loop;
    int64_t i = (int64_t)l->index0, n = (int64_t)l->over->n;
    const struct {
        const char *name;
        int64_t value;
    } number[] = { { "index", i + 1 },    { "index0", i },
                   { "revindex", n - i }, { "revindex0", n - i - 1 },
                   { "length", n },       { "depth", 1 },
                   { "depth0", 0 } }; /* there are no recursive loops */

    for (size_t k = 0; k < sizeof number / sizeof *number; k++)
        if (clb_str_is(name, number[k].name)) {
            *out = clb_v_int(number[k].value);
            return true;
        }
    bool previous = clb_str_is(name, "previtem");
    if (clb_str_is(name, "first") || clb_str_is(name, "last")) {
        *out = clb_v_bool(name.p[0] == 'f' ? i == 0 : i == n - 1);
    } else if ((previous && i > 0) || (clb_str_is(name, "nextitem") && i < n - 1)) {
        *out = l->over->v[previous ? i - 1 : i + 1];
    } else {
        return make_undefined(vm, of, name, out);
    }
    return true;
}

/* The method `name` of the value; *found false: its type has none. */
static bool find_method(struct clb_vm *vm, const struct clb_value *of, struct clb_str name,
                        struct clb_value *out, bool *found)
{
    enum clb_builtins table = of->kind == CLB_V_STRING ? CLB_STRING_METHODS
                              : of->kind == CLB_V_LOOP ? CLB_LOOP_METHODS
                              : of->kind == CLB_V_DICT ? CLB_DICT_METHODS
                                                       : CLB_LIST_METHODS;
    const char *others = of->kind == CLB_V_STRING                            ? str_others
                         : of->kind == CLB_V_LIST || of->kind == CLB_V_TUPLE ? list_others
                         : of->kind == CLB_V_DICT                            ? dict_others
                         : of->kind >= CLB_V_BOOL && of->kind <= CLB_V_FLOAT ? number_others
                                                                             : "";
    bool has = of->kind == CLB_V_STRING || of->kind == CLB_V_LIST || of->kind == CLB_V_TUPLE ||
               of->kind == CLB_V_DICT || of->kind == CLB_V_LOOP;
    uint32_t which = has ? clb_builtin_find(table, name) : CLB_NO_BUILTIN;

    *found = which != CLB_NO_BUILTIN;
    if (!*found) {
        if (!listed(others, name) &&
            !(clb_str_starts(name, "__") && name.n > 4 && !memcmp(name.p + name.n - 2, "__", 2)))
            return true;
        return clb_vm_fail(vm, CLB_UNSUPPORTED, "'%.*s' of '%s' is not supported", (int)name.n,
                           name.p, clb_type_name(of));
    }
    struct clb_method *m = clb_arena_get(&vm->arena, sizeof *m);
    if (!m)
        return clb_vm_nomem(vm);
    *m = (struct clb_method){ *of, clb_builtin_at(table, which) };
    *out = (struct clb_value){ .kind = CLB_V_METHOD, .u.method = m };
    return true;
}

bool clb_vm_attr(struct clb_vm *vm, const struct clb_value *of, struct clb_str name,
                 struct clb_value *out)
{
    bool found = false;

    if (of->kind == CLB_V_UNDEFINED)
        return clb_vm_undefined(vm, of);
    if (of->kind != CLB_V_NAMESPACE && (!find_method(vm, of, name, out, &found) || found))
        return found;
    if (of->kind == CLB_V_LOOP)
        return loop_member(vm, of, name, out);
    if (of->kind == CLB_V_DICT || of->kind == CLB_V_NAMESPACE) {
        const struct clb_value *v = clb_dict_find(of->u.dict, name);
        if (!clb_vm_charge(vm, of->u.dict->n / 8))
            return false;
        if (v) {
            *out = *v;
            return true;
        }
    }
    return make_undefined(vm, of, name, out);
}

bool clb_vm_path(struct clb_vm *vm, const struct clb_value *of, const struct clb_value *path,
                 struct clb_value *out)
{
    struct clb_value at = *of, key;

    if (path->kind != CLB_V_STRING)
        return clb_vm_item(vm, of, path, out);
    const char *s = path->u.s->p, *end = s + path->u.s->n;
    for (;;) {
        const char *dot = memchr(s, '.', (size_t)(end - s)), *stop = dot ? dot : end;
        size_t digits = 0;
        int64_t index = 0;
        while (s + digits < stop && digits < 15 && s[digits] >= '0' && s[digits] <= '9')
            index = index * 10 + (s[digits++] - '0');
        if (digits > 0 && s + digits == stop)
            key = clb_v_int(index);
        else if (!clb_vm_got(vm, clb_string_make(&vm->arena, &key, s, (size_t)(stop - s), NULL)))
            return false;
        if (!clb_vm_item(vm, &at, &key, out))
            return false;
        at = *out;
        if (!dot)
            return true;
        s = dot + 1;
    }
}

/* -- subscripts -------------------------------------------------------------------------------- */

size_t clb_count_chars(const char *s, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

size_t clb_skip_chars(const char *s, size_t n, size_t chars)
{
    size_t i = 0;

    for (; i < n && (chars > 0 || ((unsigned char)s[i] & 0xc0) == 0x80); i++)
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            chars--;
    while (i < n && ((unsigned char)s[i] & 0xc0) == 0x80)
        i++;
    return i;
}

/* The items of what can be indexed; NULL: it cannot. */
static const struct clb_list *indexed(const struct clb_value *of)
{
    if (of->kind == CLB_V_LIST || of->kind == CLB_V_TUPLE)
        return of->u.list;
    if (of->kind == CLB_V_ITER && of->u.iter->label && !strcmp(of->u.iter->label, "range"))
        return &of->u.iter->list;
    return NULL;
}

static bool char_at(struct clb_vm *vm, const struct clb_string *s, int64_t i, struct clb_value *out,
                    bool *found)
{
    int64_t n = (int64_t)clb_count_chars(s->p, s->n);

    i += i < 0 ? n : 0;
    *found = i >= 0 && i < n;
    if (!clb_vm_charge(vm, s->n / 64) || !*found)
        return !*found;
    size_t at = clb_skip_chars(s->p, s->n, (size_t)i);
    size_t len = clb_skip_chars(s->p + at, s->n - at, 1);
    return clb_vm_got(vm, clb_string_part(&vm->arena, out, s, at, len));
}

static bool get_index(struct clb_vm *vm, const struct clb_value *of, int64_t i,
                      struct clb_value *out, bool *found)
{
    const struct clb_list *l = indexed(of);

    *found = false;
    if (of->kind == CLB_V_STRING)
        return char_at(vm, of->u.s, i, out, found);
    if (l) {
        i += i < 0 ? (int64_t)l->n : 0;
        *found = i >= 0 && i < (int64_t)l->n;
        if (*found)
            *out = l->v[i];
    }
    return true;
}

bool clb_vm_item(struct clb_vm *vm, const struct clb_value *of, const struct clb_value *key,
                 struct clb_value *out)
{
    struct clb_value *v = NULL;
    bool found = false;
    struct clb_str name = { "", 0 };

    if (of->kind == CLB_V_UNDEFINED)
        return clb_vm_undefined(vm, of);
    if (of->kind == CLB_V_DICT && key->kind != CLB_V_LIST && key->kind != CLB_V_DICT) {
        if (!clb_dict_get(vm, of->u.dict, key, &v))
            return false;
        if (v) {
            *out = *v;
            return true;
        }
    }
    if (key->kind == CLB_V_INT || key->kind == CLB_V_BOOL) {
        if (!get_index(vm, of, key->kind == CLB_V_INT ? key->u.i : key->u.b, out, &found) || found)
            return found;
        name = clb_str("element");
    }
    if (key->kind != CLB_V_STRING)
        return make_undefined(vm, of, name, out);
    name = clb_view(key->u.s);
    if (of->kind == CLB_V_NAMESPACE || of->kind == CLB_V_LOOP)
        return clb_vm_attr(vm, of, name, out);
    if (!find_method(vm, of, name, out, &found) || found)
        return found;
    return make_undefined(vm, of, name, out);
}

/* -- slices ------------------------------------------------------------------------------------ */

/* A bound between lo and hi; negative ones count from the end. */
static bool bound_of(struct clb_vm *vm, const struct clb_value *v, int64_t n, int64_t lo,
                     int64_t hi, int64_t *x)
{
    if (v->kind == CLB_V_ABSENT || v->kind == CLB_V_NONE)
        return true;
    if (v->kind != CLB_V_INT && v->kind != CLB_V_BOOL)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "the bounds of a slice are integers, not '%s'",
                           clb_type_name(v));
    int64_t i = v->kind == CLB_V_INT ? v->u.i : v->u.b;
    i = i < -n ? -n - 1 : i; /* far enough */
    i += i < 0 ? n : 0;
    *x = i < lo ? lo : i > hi ? hi : i;
    return true;
}

static bool slice_string(struct clb_vm *vm, const struct clb_string *s, int64_t start, int64_t stop,
                         int64_t step, struct clb_value *out)
{
    struct clb_out b = { .arena = &vm->arena };

    if (step == 1) {
        size_t from = clb_skip_chars(s->p, s->n, (size_t)start);
        size_t to = stop > start ? clb_skip_chars(s->p, s->n, (size_t)stop) : from;
        return clb_vm_got(vm, clb_string_part(&vm->arena, out, s, from, to - from));
    }
    for (int64_t i = start; step > 0 ? i < stop : i > stop; i += step) {
        size_t at = clb_skip_chars(s->p, s->n, (size_t)i);
        if (!clb_vm_charge(vm, at / 64 + 1))
            return false;
        clb_out_part(&b, s, at, clb_skip_chars(s->p + at, s->n - at, 1));
    }
    return clb_vm_got(vm, clb_out_done(&b, out));
}

bool clb_vm_slice(struct clb_vm *vm, const struct clb_value *of, const struct clb_value bound[3],
                  struct clb_value *out)
{
    const struct clb_list *l = indexed(of);
    int64_t step = 1, n;

    if (of->kind == CLB_V_UNDEFINED)
        return clb_vm_undefined(vm, of);
    if (!l && of->kind != CLB_V_STRING)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "'%s' cannot be sliced", clb_type_name(of));
    n = l ? (int64_t)l->n : (int64_t)clb_count_chars(of->u.s->p, of->u.s->n);
    if (bound[2].kind != CLB_V_NONE && !clb_want_int(vm, &bound[2], "the step of a slice", &step))
        return false;
    step = step < INT32_MIN ? INT32_MIN : step > INT32_MAX ? INT32_MAX : step;
    if (step == 0)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "the step of a slice is zero");
    bool up = step > 0;
    int64_t lo = up ? 0 : -1, hi = up ? n : n - 1, start = up ? lo : hi, stop = up ? hi : lo;
    if (!bound_of(vm, &bound[0], n, lo, hi, &start) || !bound_of(vm, &bound[1], n, lo, hi, &stop) ||
        !clb_vm_charge(vm, (uint64_t)n / 8))
        return false;
    if (!l)
        return slice_string(vm, of->u.s, start, stop, step, out);
    enum clb_kind kind = of->kind == CLB_V_ITER ? CLB_V_LIST : of->kind;
    if (!clb_vm_got(vm, clb_list_make(&vm->arena, out, kind, 0)))
        return false;
    for (int64_t i = start; up ? i < stop : i > stop; i += step)
        if (!clb_vm_got(vm, clb_list_push(&vm->arena, out->u.list, &l->v[i])))
            return false;
    return true;
}

/* -- iterating --------------------------------------------------------------------------------- */

static bool characters(struct clb_vm *vm, const struct clb_string *s, struct clb_list *out)
{
    struct clb_value c;

    for (size_t at = 0, len; at < s->n; at += len) {
        len = clb_skip_chars(s->p + at, s->n - at, 1);
        if (!clb_vm_got(vm, clb_string_part(&vm->arena, &c, s, at, len) &&
                                clb_list_push(&vm->arena, out, &c)))
            return false;
    }
    return true;
}

bool clb_vm_items(struct clb_vm *vm, const struct clb_value *of, struct clb_list *out)
{
    *out = (struct clb_list){ 0 };
    switch (of->kind) {
    case CLB_V_UNDEFINED:
        return true;
    case CLB_V_LIST:
    case CLB_V_TUPLE:
        *out = *of->u.list;
        break;
    case CLB_V_STRING:
        return clb_vm_charge(vm, of->u.s->n) && characters(vm, of->u.s, out);
    case CLB_V_DICT:
        for (size_t i = 0; i < of->u.dict->n; i++)
            if (!clb_vm_got(vm, clb_list_push(&vm->arena, out, &of->u.dict->pair[i].key)))
                return false;
        break;
    case CLB_V_ITER:
        *out = of->u.iter->list;
        if (!of->u.iter->label && out->n > 0) {
            out->v += of->u.iter->at;
            out->n -= of->u.iter->at;
            of->u.iter->at = of->u.iter->list.n;
        }
        break;
    default:
        return clb_vm_fail(vm, CLB_BAD_INPUT, "'%s' object is not iterable", clb_type_name(of));
    }
    out->room = out->n; /* shared: a push copies */
    return clb_vm_charge(vm, out->n / 8);
}

bool clb_vm_length(struct clb_vm *vm, const struct clb_value *v, size_t *n)
{
    if (v->kind == CLB_V_STRING)
        *n = clb_count_chars(v->u.s->p, v->u.s->n);
    else if (v->kind == CLB_V_LIST || v->kind == CLB_V_TUPLE)
        *n = v->u.list->n;
    else if (v->kind == CLB_V_DICT)
        *n = v->u.dict->n;
    else if (v->kind == CLB_V_ITER && v->u.iter->label)
        *n = v->u.iter->list.n;
    else if (v->kind == CLB_V_UNDEFINED)
        *n = 0;
    else
        return clb_vm_fail(vm, CLB_BAD_INPUT, "object of type '%s' has no len()", clb_type_name(v));
    return clb_vm_charge(vm, v->kind == CLB_V_STRING ? *n / 64 : 0);
}
