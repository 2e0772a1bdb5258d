/* Filters on lists and dicts. Those that give a generator in Jinja give one here. */
#include <string.h>

#include "lib/chat/vm.h"

#define FILTER(name)                                                                               \
    static bool name(struct clb_vm *vm, const struct clb_call *c, const struct clb_value *v,       \
                     struct clb_value *out)

static bool given(const struct clb_value *v)
{
    return v->kind != CLB_V_ABSENT && v->kind != CLB_V_NONE;
}

/* A generator of these items. */
static bool generator(struct clb_vm *vm, const struct clb_list *l, struct clb_value *out)
{
    if (!clb_vm_got(vm, clb_iter_make(&vm->arena, out, NULL)))
        return false;
    out->u.iter->list = *l;
    return true;
}

static bool push(struct clb_vm *vm, struct clb_list *l, const struct clb_value *v)
{
    return clb_vm_got(vm, clb_list_push(&vm->arena, l, v));
}

static bool copy_list(struct clb_vm *vm, const struct clb_list *l, struct clb_value *out)
{
    if (!clb_vm_got(vm, clb_list_make(&vm->arena, out, CLB_V_LIST, l->n)))
        return false;
    if (l->n)
        memcpy(out->u.list->v, l->v, l->n * sizeof *l->v);
    out->u.list->n = l->n;
    return true;
}

/* The first or the last item. */
static bool end_of(struct clb_vm *vm, const struct clb_value *v, bool last, struct clb_value *out)
{
    static const struct clb_undefined none = { CLB_V_ABSENT,
                                               { "an item of an empty sequence", 28 } };
    struct clb_list l;

    if (!clb_vm_items(vm, v, &l))
        return false;
    if (l.n)
        *out = l.v[last ? l.n - 1 : 0];
    else
        *out = (struct clb_value){ .kind = CLB_V_UNDEFINED, .u.undefined = &none };
    return true;
}

FILTER(first)
{
    (void)c;
    if (v->kind != CLB_V_ITER || v->u.iter->label)
        return end_of(vm, v, false, out);
    struct clb_iter *i = v->u.iter; /* takes one of a generator */
    size_t at = i->at;
    bool ok = end_of(vm, v, false, out);
    i->at = at < i->list.n ? at + 1 : at;
    return ok;
}
FILTER(last)
{
    (void)c;
    if (v->kind == CLB_V_ITER && !v->u.iter->label)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "'generator' object is not reversible");
    return end_of(vm, v, true, out);
}

FILTER(length)
{
    size_t n = 0;

    (void)c;
    if (!clb_vm_length(vm, v, &n))
        return false;
    *out = clb_v_int((int64_t)n);
    return true;
}

FILTER(list)
{
    struct clb_list l;

    (void)c;
    return clb_vm_items(vm, v, &l) && copy_list(vm, &l, out);
}

FILTER(reverse)
{
    bool once = v->kind == CLB_V_ITER && !v->u.iter->label;
    struct clb_list l, turned = { 0 };
    struct clb_out b = { .arena = &vm->arena };

    (void)c;
    if (!clb_vm_items(vm, v, &l))
        return false;
    for (size_t i = l.n; i-- > 0;) {
        if (v->kind == CLB_V_STRING)
            clb_out_string(&b, l.v[i].u.s);
        else if (!push(vm, &turned, &l.v[i]))
            return false;
    }
    if (v->kind == CLB_V_STRING)
        return clb_vm_got(vm, clb_out_done(&b, out));
    return once ? copy_list(vm, &turned, out) : generator(vm, &turned, out);
}

/* {key: value} as a list of pairs. */
static bool pairs(struct clb_vm *vm, const struct clb_dict *d, struct clb_list *l)
{
    for (size_t i = 0; d && i < d->n; i++) {
        struct clb_value pair;
        if (!clb_vm_got(vm, clb_list_make(&vm->arena, &pair, CLB_V_TUPLE, 2)))
            return false;
        pair.u.list->v[0] = d->pair[i].key;
        pair.u.list->v[1] = d->pair[i].value;
        pair.u.list->n = 2;
        if (!push(vm, l, &pair))
            return false;
    }
    return true;
}

FILTER(items)
{
    struct clb_list l = { 0 };

    (void)c;
    if (v->kind != CLB_V_DICT && v->kind != CLB_V_UNDEFINED)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "Can only get item pairs from a mapping.");
    return pairs(vm, v->kind == CLB_V_DICT ? v->u.dict : NULL, &l) && generator(vm, &l, out);
}

/* What items are sorted or compared by: the item or its attribute, without case unless wanted. */
static bool key_of(struct clb_vm *vm, const struct clb_value *item,
                   const struct clb_value *attribute, bool case_sensitive, struct clb_value *key)
{
    *key = *item;
    if (given(attribute) && !clb_vm_path(vm, item, attribute, key))
        return false;
    return case_sensitive || key->kind != CLB_V_STRING || clb_recase(vm, key->u.s, CLB_LOWER, key);
}

/* Keys of all items. */
static bool keys_of(struct clb_vm *vm, const struct clb_list *l, const struct clb_value *attribute,
                    const struct clb_value *case_sensitive, struct clb_list *keys)
{
    bool exact = false;

    clb_want_bool(vm, case_sensitive, &exact);
    for (size_t i = 0; i < l->n; i++) {
        struct clb_value key;
        if (!key_of(vm, &l->v[i], attribute, exact, &key) || !push(vm, keys, &key))
            return false;
    }
    return true;
}

/* The key of an item for `sort`: a list, for there may be several attributes ("a,b"). */
static bool sort_key(struct clb_vm *vm, const struct clb_value *item,
                     const struct clb_value *attribute, bool case_sensitive, struct clb_value *key)
{
    struct clb_value one, part = *attribute;
    const char *s = NULL, *end = NULL, *comma;

    if (!clb_vm_got(vm, clb_list_make(&vm->arena, key, CLB_V_LIST, 1)))
        return false;
    if (attribute->kind == CLB_V_STRING) {
        s = attribute->u.s->p;
        end = s + attribute->u.s->n;
    }
    do {
        comma = s ? memchr(s, ',', (size_t)(end - s)) : NULL;
        if (s && !clb_vm_got(vm, clb_string_make(&vm->arena, &part, s,
                                                 (size_t)((comma ? comma : end) - s), NULL)))
            return false;
        if (!clb_vm_charge(vm, 1) || !key_of(vm, item, &part, case_sensitive, &one) ||
            !push(vm, key->u.list, &one))
            return false;
        s = comma ? comma + 1 : s;
    } while (comma);
    return true;
}

FILTER(sort)
{
    struct clb_list l, keys = { 0 };
    bool reverse = false, exact = false;

    (void)c;
    clb_want_bool(vm, &v[1], &reverse);
    clb_want_bool(vm, &v[2], &exact);
    if (!clb_vm_items(vm, v, &l))
        return false;
    for (size_t i = 0; i < l.n; i++) {
        struct clb_value key;
        if (!sort_key(vm, &l.v[i], &v[3], exact, &key) || !push(vm, &keys, &key))
            return false;
    }
    return copy_list(vm, &l, out) && clb_vm_sort(vm, keys.v, out->u.list->v, l.n, reverse);
}

FILTER(dictsort)
{
    struct clb_list l = { 0 }, keys = { 0 };
    struct clb_value by = clb_v_int(0);
    bool reverse = false;

    (void)c;
    if (v->kind != CLB_V_DICT)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "'dictsort' needs a dict, not '%s'",
                           clb_type_name(v));
    if (given(&v[2]) && !clb_v_is(&v[2], "key") && !clb_v_is(&v[2], "value"))
        return clb_vm_fail(vm, CLB_BAD_INPUT, "'dictsort' is by 'key' or 'value'");
    by.u.i = clb_v_is(&v[2], "value");
    return clb_want_bool(vm, &v[3], &reverse) && pairs(vm, v->u.dict, &l) &&
           keys_of(vm, &l, &by, &v[1], &keys) && copy_list(vm, &l, out) &&
           clb_vm_sort(vm, keys.v, out->u.list->v, l.n, reverse);
}

FILTER(unique)
{
    struct clb_list l, keys = { 0 }, seen = { 0 }, kept = { 0 };

    (void)c;
    if (!clb_vm_items(vm, v, &l) || !keys_of(vm, &l, &v[2], &v[1], &keys))
        return false;
    for (size_t i = 0; i < l.n; i++) {
        bool known = false;
        if (!clb_want_hashable(vm, &keys.v[i]))
            return false;
        for (size_t k = 0; k < seen.n && !known; k++)
            if (!clb_equal(vm, &seen.v[k], &keys.v[i], &known))
                return false;
        if (!known && (!push(vm, &seen, &keys.v[i]) || !push(vm, &kept, &l.v[i])))
            return false;
    }
    return generator(vm, &kept, out);
}

static bool extreme(struct clb_vm *vm, const struct clb_value *v, bool most, struct clb_value *out)
{
    struct clb_list l, keys = { 0 };
    size_t best = 0;
    int order;

    if (!clb_vm_items(vm, v, &l) || !keys_of(vm, &l, &v[2], &v[1], &keys))
        return false;
    if (l.n == 0)
        return end_of(vm, v, false, out);
    for (size_t i = 1; i < l.n; i++) {
        if (!clb_order(vm, &keys.v[i], &keys.v[best], &order))
            return false;
        if (most ? order > 0 : order < 0)
            best = i;
    }
    *out = l.v[best];
    return true;
}
FILTER(min)
{
    (void)c;
    return extreme(vm, v, false, out);
}
FILTER(max)
{
    (void)c;
    return extreme(vm, v, true, out);
}

FILTER(sum)
{
    struct clb_value total = v[2].kind == CLB_V_ABSENT ? clb_v_int(0) : v[2], item;
    struct clb_list l;

    (void)c;
    if (!clb_vm_items(vm, v, &l))
        return false;
    for (size_t i = 0; i < l.n; i++) {
        item = l.v[i];
        if (given(&v[1]) && !clb_vm_path(vm, &l.v[i], &v[1], &item))
            return false;
        if (!clb_math(vm, CLB_OP_ADD, &total, &item, out))
            return false;
        total = *out;
    }
    *out = total;
    return true;
}

/* Lists of n items each (batch). */
FILTER(batch)
{
    struct clb_list l, all = { 0 };
    struct clb_value part = { 0 };
    int64_t n = 0;

    (void)c;
    if (!clb_want_int(vm, &v[1], "the size of 'batch'", &n) || !clb_vm_items(vm, v, &l))
        return false;
    if (n < 1)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "the size of 'batch' is %lld", (long long)n);
    for (size_t i = 0; i < l.n; i++) {
        if (i % (uint64_t)n == 0 &&
            (!clb_vm_got(vm, clb_list_make(&vm->arena, &part, CLB_V_LIST, 0)) ||
             !push(vm, &all, &part)))
            return false;
        if (!push(vm, part.u.list, &l.v[i]))
            return false;
    }
    while (given(&v[2]) && all.n && part.u.list->n < (uint64_t)n)
        if (!clb_vm_charge(vm, 1) || !push(vm, part.u.list, &v[2]))
            return false;
    return generator(vm, &all, out);
}

/* n lists of about the same length (slice). */
FILTER(slice)
{
    struct clb_list l, all = { 0 };
    int64_t n = 0;
    size_t at = 0;

    (void)c;
    if (!clb_want_int(vm, &v[1], "the number of 'slice'", &n) || !clb_vm_items(vm, v, &l))
        return false;
    if (n < 1)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "the number of 'slice' is %lld", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        struct clb_value part;
        size_t size = l.n / (uint64_t)n, extra = l.n % (uint64_t)n;
        bool longer = (uint64_t)i < extra;
        if (!clb_vm_charge(vm, 1) ||
            !clb_vm_got(vm, clb_list_make(&vm->arena, &part, CLB_V_LIST, 0)))
            return false;
        for (size_t k = 0; k < size + longer; k++)
            if (!push(vm, part.u.list, &l.v[at++]))
                return false;
        if ((given(&v[2]) && !longer && !push(vm, part.u.list, &v[2])) || !push(vm, &all, &part))
            return false;
    }
    return generator(vm, &all, out);
}

/* -- with a filter or a test inside ------------------------------------------------------------ */

/* Finds the filter or test that the argument names. */
static const struct clb_builtin *named(struct clb_vm *vm, enum clb_builtins table,
                                       const struct clb_value *name)
{
    uint32_t i =
        name->kind == CLB_V_STRING ? clb_builtin_find(table, clb_view(name->u.s)) : CLB_NO_BUILTIN;

    if (i != CLB_NO_BUILTIN)
        return clb_builtin_at(table, i);
    if (name->kind != CLB_V_STRING)
        clb_vm_fail(vm, CLB_BAD_INPUT, "the name of a %s is missing",
                    table == CLB_TESTS ? "test" : "filter");
    else
        clb_vm_fail(vm, CLB_UNSUPPORTED, "the %s '%.*s' is not supported",
                    table == CLB_TESTS ? "test" : "filter",
                    name->u.s->n > 60 ? 60 : (int)name->u.s->n, name->u.s->p);
    return NULL;
}

/* Nothing at all has no items here, whatever it is. */
static bool items_of(struct clb_vm *vm, const struct clb_value *v, struct clb_list *l)
{
    *l = (struct clb_list){ 0 };
    return !clb_truth(v) || clb_vm_items(vm, v, l);
}

FILTER(map)
{
    const struct clb_value *attribute = clb_dict_find(c->named, clb_str("attribute"));
    const struct clb_value *other = clb_dict_find(c->named, clb_str("default"));
    const struct clb_builtin *f = NULL;
    struct clb_list l, made = { 0 };
    struct clb_value x;

    if (!c->n && (!attribute || c->named->n > 1 + (other != NULL)))
        return clb_vm_fail(vm, CLB_BAD_INPUT, "'map' needs a filter or an attribute");
    if ((c->n && !(f = named(vm, CLB_FILTERS, &c->arg[0]))) || !items_of(vm, v, &l))
        return false;
    const struct clb_call inner = { c->arg ? c->arg + 1 : NULL, c->n ? c->n - 1 : 0, c->named };
    for (size_t i = 0; i < l.n; i++) {
        if (!clb_vm_charge(vm, 1) || !(f ? clb_vm_apply(vm, f, &l.v[i], &inner, &x)
                                         : clb_vm_path(vm, &l.v[i], attribute, &x)))
            return false;
        if (!f && other && x.kind == CLB_V_UNDEFINED)
            x = *other;
        if (!push(vm, &made, &x))
            return false;
    }
    return generator(vm, &made, out);
}

/* The items for which the test says `want`; with `by_attribute` the first argument says of what. */
static bool sift(struct clb_vm *vm, const struct clb_call *c, const struct clb_value *v,
                 struct clb_value *out, bool by_attribute, bool want)
{
    const struct clb_builtin *f = NULL;
    struct clb_list l, kept = { 0 };
    size_t skip = by_attribute;

    if (c->n < skip)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "the name of an attribute is missing");
    if ((c->n > skip && !(f = named(vm, CLB_TESTS, &c->arg[skip]))) || !items_of(vm, v, &l))
        return false;
    size_t used = skip + (f != NULL);
    const struct clb_call inner = { used ? c->arg + used : NULL, c->n - used, c->named };
    for (size_t i = 0; i < l.n; i++) {
        struct clb_value x = l.v[i], is;
        if (!clb_vm_charge(vm, 1) || (by_attribute && !clb_vm_path(vm, &l.v[i], &c->arg[0], &x)))
            return false;
        is = x;
        if (f && !clb_vm_apply(vm, f, &x, &inner, &is))
            return false;
        if (clb_truth(&is) == want && !push(vm, &kept, &l.v[i]))
            return false;
    }
    return generator(vm, &kept, out);
}

FILTER(select)
{
    return sift(vm, c, v, out, false, true);
}
FILTER(reject)
{
    return sift(vm, c, v, out, false, false);
}
FILTER(selectattr)
{
    return sift(vm, c, v, out, true, true);
}
FILTER(rejectattr)
{
    return sift(vm, c, v, out, true, false);
}

FILTER(default_value)
{
    bool falsy = false;

    (void)c;
    clb_want_bool(vm, &v[2], &falsy);
    if (v->kind != CLB_V_UNDEFINED && (!falsy || clb_truth(v)))
        *out = *v;
    else if (v[1].kind != CLB_V_ABSENT)
        *out = v[1];
    else
        return clb_vm_got(vm, clb_string_make(&vm->arena, out, "", 0, NULL));
    return true;
}

const struct clb_builtin clb_sequence_filters[] = {
    { "first", "", first },
    { "last", "", last },
    { "length", "", length },
    { "count", "", length },
    { "list", "", list },
    { "reverse", "", reverse },
    { "items", "", items },
    { "sort", "[reverse case_sensitive attribute", sort },
    { "dictsort", "[case_sensitive by reverse", dictsort },
    { "unique", "[case_sensitive attribute", unique },
    { "min", "[case_sensitive attribute", min },
    { "max", "[case_sensitive attribute", max },
    { "sum", "[attribute start", sum },
    { "batch", "linecount [fill_with", batch },
    { "slice", "slices [fill_with", slice },
    { "map", NULL, map },
    { "select", NULL, select },
    { "reject", NULL, reject },
    { "selectattr", NULL, selectattr },
    { "rejectattr", NULL, rejectattr },
    { "default", "[default_value boolean", default_value },
    { "d", "[default_value boolean", default_value },
    { NULL, NULL, NULL },
};
