/* Functions that every template has, and the methods of loops, lists and dicts. */
#include <string.h>

#include "lib/chat/vm.h"

#define FUNCTION(name)                                                                             \
    static bool name(struct clb_vm *vm, const struct clb_call *c, const struct clb_value *v,       \
                     struct clb_value *out)

enum { MOST_RANGE = 100000 }; /* as the sandbox has it */

FUNCTION(range)
{
    int64_t n[3] = { 0, 0, 1 };

    (void)v;
    if (c->n < 1 || c->n > 3 || c->named->n)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "'range' takes one to three integers");
    for (size_t i = 0; i < c->n; i++)
        if (!clb_want_int(vm, &c->arg[i], "an argument of 'range'", &n[c->n == 1 ? 1 : i]))
            return false;
    if (n[2] == 0)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "range() arg 3 must not be zero");
    uint64_t span = n[2] > 0 ? (n[1] > n[0] ? (uint64_t)n[1] - (uint64_t)n[0] : 0)
                             : (n[0] > n[1] ? (uint64_t)n[0] - (uint64_t)n[1] : 0);
    uint64_t step = n[2] > 0 ? (uint64_t)n[2] : 0 - (uint64_t)n[2];
    uint64_t count = span / step + (span % step != 0);
    if (count > MOST_RANGE)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "a range of %llu items: at most %d",
                           (unsigned long long)count, MOST_RANGE);
    if (!clb_vm_charge(vm, count / 8) || !clb_vm_got(vm, clb_iter_make(&vm->arena, out, "range")))
        return false;
    for (uint64_t i = 0; i < count; i++) {
        const struct clb_value x = clb_v_int((int64_t)((uint64_t)n[0] + i * (uint64_t)n[2]));
        if (!clb_vm_got(vm, clb_list_push(&vm->arena, &out->u.iter->list, &x)))
            return false;
    }
    return true;
}

/* Adds what a dict or a list of pairs holds. */
static bool add_pairs(struct clb_vm *vm, struct clb_dict *d, const struct clb_value *from)
{
    struct clb_list l;
    struct clb_value *old;

    if (!clb_vm_items(vm, from, &l))
        return false;
    for (size_t i = 0; i < l.n; i++) {
        struct clb_pair p;
        struct clb_list pair;
        if (from->kind == CLB_V_DICT) {
            p = from->u.dict->pair[i];
        } else {
            if (!clb_vm_items(vm, &l.v[i], &pair))
                return false;
            if (pair.n != 2)
                return clb_vm_fail(vm, CLB_BAD_INPUT, "a dict is made of pairs, not of %zu values",
                                   pair.n);
            p = (struct clb_pair){ pair.v[0], pair.v[1] };
        }
        if (!clb_dict_get(vm, d, &p.key, &old))
            return false;
        if (old)
            *old = p.value;
        else if (!clb_vm_got(vm, clb_dict_push(&vm->arena, d, &p.key, &p.value)))
            return false;
    }
    return true;
}

static bool make(struct clb_vm *vm, const struct clb_call *c, enum clb_kind kind,
                 struct clb_value *out)
{
    struct clb_value named = { .kind = CLB_V_DICT };

    if (c->n > 1)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "a dict is made from one value, not from %zu", c->n);
    if (c->n && c->arg[0].kind == CLB_V_UNDEFINED)
        return clb_vm_undefined(vm, &c->arg[0]);
    named.u.dict = clb_arena_get(&vm->arena, sizeof *named.u.dict);
    if (!clb_vm_got(vm, named.u.dict && clb_dict_make(&vm->arena, out, kind)))
        return false;
    *named.u.dict = *c->named;
    for (size_t i = 0; kind == CLB_V_NAMESPACE && i < c->named->n; i++)
        if (c->named->pair[i].key.u.s->p[0] == '_')
            return clb_vm_fail(vm, CLB_BAD_INPUT, "a namespace has no names that begin with '_'");
    return (c->n == 0 || add_pairs(vm, out->u.dict, &c->arg[0])) &&
           add_pairs(vm, out->u.dict, &named);
}

FUNCTION(dict)
{
    (void)v;
    return make(vm, c, CLB_V_DICT, out);
}
FUNCTION(namespace)
{
    (void)v;
    return make(vm, c, CLB_V_NAMESPACE, out);
}

FUNCTION(raise_exception)
{
    struct clb_value text;

    (void)c;
    if (!clb_as_string(vm, &v[1], &text))
        return false;
    const struct clb_string *s = text.u.s;
    clb_text_clear(vm->raised);
    clb_text_add(vm->raised, s->p, s->n);
    *out = clb_v_none();
    return clb_vm_fail(vm, CLB_BAD_INPUT, "the template refuses the conversation: %.*s",
                       s->n > 300 ? (int)clb_skip_chars(s->p, 300, 298) : (int)s->n, s->p);
}

FUNCTION(strftime_now)
{
    struct clb_out b = { .arena = &vm->arena };
    const struct clb_string *format = NULL;

    (void)c;
    return clb_want_string(vm, &v[1], "the format of 'strftime_now'", &format) &&
           clb_strftime(vm, &b, format) && clb_vm_got(vm, clb_out_done(&b, out));
}

const struct clb_builtin clb_functions[] = {
    { "range", NULL, range },
    { "dict", NULL, dict },
    { "namespace", NULL, namespace },
    { "raise_exception", "message", raise_exception },
    { "strftime_now", "format", strftime_now },
    { NULL, NULL, NULL },
};

/* -- loop -------------------------------------------------------------------------------------- */

FUNCTION(cycle)
{
    if (c->n == 0)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "no items for cycling given");
    *out = c->arg[v->u.loop->index0 % c->n];
    return true;
}

FUNCTION(changed)
{
    struct clb_value now;
    bool equal = false;

    if (!clb_vm_got(vm, clb_list_make(&vm->arena, &now, CLB_V_TUPLE, c->n)))
        return false;
    for (size_t i = 0; i < c->n; i++)
        now.u.list->v[now.u.list->n++] = c->arg[i];
    struct clb_loop *l = v->u.loop;
    if (l->changed.kind != CLB_V_ABSENT && !clb_equal(vm, &l->changed, &now, &equal))
        return false;
    l->changed = now;
    *out = clb_v_bool(!equal);
    return true;
}

const struct clb_builtin clb_loop_methods[] = {
    { "cycle", NULL, cycle },
    { "changed", NULL, changed },
    { NULL, NULL, NULL },
};

/* -- lists ------------------------------------------------------------------------------------- */

/* The sandbox of transformers forbids what changes a list, yet published templates do it. */
static bool may_change(struct clb_vm *vm, const struct clb_value *v, const char *what)
{
    return v->kind == CLB_V_LIST ||
           clb_vm_fail(vm, CLB_BAD_INPUT, "'%s object' has no attribute '%s'", clb_type_name(v),
                       what);
}

FUNCTION(list_append)
{
    (void)c;
    *out = clb_v_none();
    return may_change(vm, v, "append") &&
           clb_vm_got(vm, clb_list_push(&vm->arena, v->u.list, &v[1]));
}

FUNCTION(list_extend)
{
    struct clb_list l;

    (void)c;
    *out = clb_v_none();
    if (!may_change(vm, v, "extend") || !clb_vm_items(vm, &v[1], &l))
        return false;
    for (size_t i = 0; i < l.n; i++)
        if (!clb_vm_got(vm, clb_list_push(&vm->arena, v->u.list, &l.v[i])))
            return false;
    return true;
}

FUNCTION(list_insert)
{
    int64_t at = 0;

    (void)c;
    *out = clb_v_none();
    if (!may_change(vm, v, "insert") || !clb_want_int(vm, &v[1], "the place of 'insert'", &at) ||
        !clb_vm_charge(vm, v->u.list->n / 8) ||
        !clb_vm_got(vm, clb_list_push(&vm->arena, v->u.list, &v[2])))
        return false;
    struct clb_list *l = v->u.list;
    int64_t n = (int64_t)l->n - 1;
    at = at < -n ? 0 : at < 0 ? at + n : at > n ? n : at;
    memmove(l->v + at + 1, l->v + at, (size_t)(n - at) * sizeof *l->v);
    l->v[at] = v[2];
    return true;
}

FUNCTION(list_pop)
{
    int64_t at = -1;

    (void)c;
    if (!may_change(vm, v, "pop") || !clb_want_int(vm, &v[1], "the place of 'pop'", &at))
        return false;
    struct clb_list *l = v->u.list;
    at += at < 0 ? (int64_t)l->n : 0;
    if (at < 0 || at >= (int64_t)l->n)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "pop index out of range");
    *out = l->v[at];
    l->n--;
    memmove(l->v + at, l->v + at + 1, (l->n - (size_t)at) * sizeof *l->v);
    return clb_vm_charge(vm, l->n / 8);
}

FUNCTION(list_index)
{
    bool equal = false;

    (void)c;
    for (size_t i = 0; i < v->u.list->n; i++) {
        if (!clb_equal(vm, &v->u.list->v[i], &v[1], &equal))
            return false;
        *out = clb_v_int((int64_t)i);
        if (equal)
            return true;
    }
    return clb_vm_fail(vm, CLB_BAD_INPUT, "the value is not in the list");
}

FUNCTION(list_count)
{
    bool equal;

    (void)c;
    *out = clb_v_int(0);
    for (size_t i = 0; i < v->u.list->n; i++) {
        if (!clb_equal(vm, &v->u.list->v[i], &v[1], &equal))
            return false;
        out->u.i += equal;
    }
    return true;
}

FUNCTION(list_copy)
{
    *out = clb_v_none();
    if (!may_change(vm, v, "copy") ||
        !clb_vm_got(vm, clb_list_make(&vm->arena, out, CLB_V_LIST, 0)))
        return false;
    const struct clb_value to[] = { *out, *v };
    struct clb_value none;
    return list_extend(vm, c, to, &none);
}

FUNCTION(list_reverse)
{
    struct clb_list *l = v->u.list;

    (void)c;
    *out = clb_v_none();
    if (!may_change(vm, v, "reverse"))
        return false;
    for (size_t i = 0; i < l->n / 2; i++) {
        const struct clb_value x = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = x;
    }
    return clb_vm_charge(vm, l->n / 8);
}

const struct clb_builtin clb_list_methods[] = {
    { "append", "object", list_append },
    { "extend", "iterable", list_extend },
    { "insert", "index object", list_insert },
    { "pop", "[index", list_pop },
    { "index", "value", list_index },
    { "count", "value", list_count },
    { "copy", "", list_copy },
    { "reverse", "", list_reverse },
    { NULL, NULL, NULL },
};

/* -- dicts ------------------------------------------------------------------------------------- */

FUNCTION(dict_get_method)
{
    struct clb_value *found;

    (void)c;
    if (!clb_dict_get(vm, v->u.dict, &v[1], &found))
        return false;
    *out = found ? *found : v[2].kind == CLB_V_ABSENT ? clb_v_none() : v[2];
    return true;
}

/* keys (1), values (2) or both (3). */
static bool view(struct clb_vm *vm, const struct clb_value *v, const char *label, int what,
                 struct clb_value *out)
{
    const struct clb_dict *d = v->u.dict;

    if (!clb_vm_charge(vm, d->n / 4) || !clb_vm_got(vm, clb_iter_make(&vm->arena, out, label)))
        return false;
    for (size_t i = 0; i < d->n; i++) {
        struct clb_value x = what == 1 ? d->pair[i].key : d->pair[i].value;
        if (what == 3) {
            if (!clb_vm_got(vm, clb_list_make(&vm->arena, &x, CLB_V_TUPLE, 2)))
                return false;
            x.u.list->v[0] = d->pair[i].key;
            x.u.list->v[1] = d->pair[i].value;
            x.u.list->n = 2;
        }
        if (!clb_vm_got(vm, clb_list_push(&vm->arena, &out->u.iter->list, &x)))
            return false;
    }
    return true;
}
FUNCTION(dict_keys)
{
    (void)c;
    return view(vm, v, "dict_keys", 1, out);
}
FUNCTION(dict_values)
{
    (void)c;
    return view(vm, v, "dict_values", 2, out);
}
FUNCTION(dict_items)
{
    (void)c;
    return view(vm, v, "dict_items", 3, out);
}

FUNCTION(dict_copy)
{
    (void)c;
    return clb_vm_got(vm, clb_dict_make(&vm->arena, out, CLB_V_DICT)) &&
           add_pairs(vm, out->u.dict, v);
}

/* Forbidden by the sandbox as append is, and used. */
FUNCTION(dict_update)
{
    struct clb_dict named = *c->named;
    const struct clb_value more = { .kind = CLB_V_DICT, .u.dict = &named };

    *out = clb_v_none();
    if (c->n > 1)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "'update' takes one value, not %zu", c->n);
    if (c->n && c->arg[0].kind == CLB_V_UNDEFINED)
        return clb_vm_undefined(vm, &c->arg[0]);
    return (c->n == 0 || add_pairs(vm, v->u.dict, &c->arg[0])) && add_pairs(vm, v->u.dict, &more);
}

const struct clb_builtin clb_dict_methods[] = {
    { "get", "key [default", dict_get_method },
    { "keys", "", dict_keys },
    { "values", "", dict_values },
    { "items", "", dict_items },
    { "copy", "", dict_copy },
    { "update", NULL, dict_update },
    { NULL, NULL, NULL },
};
