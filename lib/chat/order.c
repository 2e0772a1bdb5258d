/* Truth, equality, order, membership; sorting. */
#include <string.h>

#include "lib/chat/vm.h"

bool clb_truth(const struct clb_value *v)
{
    switch (v->kind) {
    case CLB_V_ABSENT:
    case CLB_V_UNDEFINED:
    case CLB_V_NONE:
        return false;
    case CLB_V_BOOL:
        return v->u.b;
    case CLB_V_INT:
        return v->u.i != 0;
    case CLB_V_FLOAT:
        return v->u.f != 0;
    case CLB_V_STRING:
        return v->u.s->n > 0;
    case CLB_V_LIST:
    case CLB_V_TUPLE:
        return v->u.list->n > 0;
    case CLB_V_DICT:
        return v->u.dict->n > 0;
    case CLB_V_ITER:
        return !v->u.iter->label || v->u.iter->list.n > 0;
    default:
        return true;
    }
}

static bool is_number(const struct clb_value *v)
{
    return v->kind == CLB_V_BOOL || v->kind == CLB_V_INT || v->kind == CLB_V_FLOAT;
}

/* Below, at or above 0. */
static int order_numbers(const struct clb_value *a, const struct clb_value *b)
{
    if (a->kind != CLB_V_FLOAT && b->kind != CLB_V_FLOAT) {
        int64_t x = a->kind == CLB_V_BOOL ? a->u.b : a->u.i;
        int64_t y = b->kind == CLB_V_BOOL ? b->u.b : b->u.i;
        return (x > y) - (x < y);
    }
    double x = a->kind == CLB_V_FLOAT ? a->u.f : a->kind == CLB_V_BOOL ? a->u.b : (double)a->u.i;
    double y = b->kind == CLB_V_FLOAT ? b->u.f : b->kind == CLB_V_BOOL ? b->u.b : (double)b->u.i;
    return (x > y) - (x < y);
}

static bool equal_lists(struct clb_vm *vm, const struct clb_list *a, const struct clb_list *b,
                        bool *equal)
{
    *equal = a->n == b->n;
    for (size_t i = 0; *equal && i < a->n; i++)
        if (!clb_equal(vm, &a->v[i], &b->v[i], equal))
            return false;
    return true;
}

static bool equal_dicts(struct clb_vm *vm, const struct clb_dict *a, const struct clb_dict *b,
                        bool *equal)
{
    struct clb_value *other;

    *equal = a->n == b->n;
    for (size_t i = 0; *equal && i < a->n; i++) {
        if (!clb_dict_get(vm, b, &a->pair[i].key, &other) ||
            (other && !clb_equal(vm, &a->pair[i].value, other, equal)))
            return false;
        *equal &= other != NULL;
    }
    return true;
}

bool clb_equal(struct clb_vm *vm, const struct clb_value *a, const struct clb_value *b, bool *equal)
{
    bool ok = true;

    if (!clb_vm_charge(vm, 1) || !clb_vm_deeper(vm))
        return false;
    if (is_number(a) && is_number(b)) {
        bool nan = (a->kind == CLB_V_FLOAT && a->u.f != a->u.f) ||
                   (b->kind == CLB_V_FLOAT && b->u.f != b->u.f);
        *equal = !nan && order_numbers(a, b) == 0;
    } else if (a->kind != b->kind) {
        *equal = false;
    } else if (a->kind == CLB_V_STRING) {
        *equal = clb_str_eq(clb_view(a->u.s), clb_view(b->u.s));
    } else if (a->kind == CLB_V_LIST || a->kind == CLB_V_TUPLE) {
        ok = equal_lists(vm, a->u.list, b->u.list, equal);
    } else if (a->kind == CLB_V_DICT) {
        ok = equal_dicts(vm, a->u.dict, b->u.dict, equal);
    } else if (a->kind == CLB_V_NONE || a->kind == CLB_V_UNDEFINED) {
        *equal = true;
    } else {
        *equal = a->u.list == b->u.list; /* the same object */
    }
    vm->depth--;
    return ok;
}

static int order_strings(const struct clb_string *a, const struct clb_string *b)
{
    size_t n = a->n < b->n ? a->n : b->n;
    int order = n ? memcmp(a->p, b->p, n) : 0;

    return order ? order : (a->n > b->n) - (a->n < b->n);
}

bool clb_order(struct clb_vm *vm, const struct clb_value *a, const struct clb_value *b, int *order)
{
    if (!clb_vm_charge(vm, 1) || !clb_vm_deeper(vm))
        return false;
    bool ok = true, equal = true;
    if (is_number(a) && is_number(b)) {
        *order = order_numbers(a, b);
    } else if (a->kind == CLB_V_STRING && b->kind == CLB_V_STRING) {
        *order = order_strings(a->u.s, b->u.s);
    } else if (a->kind == b->kind && (a->kind == CLB_V_LIST || a->kind == CLB_V_TUPLE)) {
        const struct clb_list *x = a->u.list, *y = b->u.list;
        size_t i = 0;
        while (ok && i < x->n && i < y->n) {
            ok = clb_equal(vm, &x->v[i], &y->v[i], &equal);
            if (!equal)
                break;
            i++;
        }
        *order = (x->n > y->n) - (x->n < y->n);
        if (ok && !equal)
            ok = clb_order(vm, &x->v[i], &y->v[i], order);
    } else if (a->kind == CLB_V_UNDEFINED || b->kind == CLB_V_UNDEFINED) {
        ok = clb_vm_undefined(vm, a->kind == CLB_V_UNDEFINED ? a : b);
    } else {
        ok = clb_vm_fail(vm, CLB_BAD_INPUT, "'%s' and '%s' have no order", clb_type_name(a),
                         clb_type_name(b));
    }
    vm->depth--;
    return ok;
}

/* Lists and dicts change, so they and what holds them are no keys. */
static bool hashable(const struct clb_value *v, int depth)
{
    if (v->kind == CLB_V_LIST || v->kind == CLB_V_DICT || depth > 100)
        return false;
    for (size_t i = 0; v->kind == CLB_V_TUPLE && i < v->u.list->n; i++)
        if (!hashable(&v->u.list->v[i], depth + 1))
            return false;
    return true;
}

bool clb_want_hashable(struct clb_vm *vm, const struct clb_value *v)
{
    return hashable(v, 0) ||
           clb_vm_fail(vm, CLB_BAD_INPUT, "unhashable type: '%s'", clb_type_name(v));
}

bool clb_dict_get(struct clb_vm *vm, const struct clb_dict *d, const struct clb_value *key,
                  struct clb_value **value)
{
    *value = NULL;
    if (!clb_vm_charge(vm, d->n / 8))
        return false;
    if (key->kind == CLB_V_STRING) {
        *value = clb_dict_find(d, clb_view(key->u.s));
        return true;
    }
    if (!clb_want_hashable(vm, key))
        return false;
    for (size_t i = 0; i < d->n; i++) {
        bool equal;
        if (!clb_equal(vm, &d->pair[i].key, key, &equal))
            return false;
        if (equal) {
            *value = &d->pair[i].value;
            return true;
        }
    }
    return true;
}

bool clb_contains(struct clb_vm *vm, const struct clb_value *in, const struct clb_value *item,
                  bool *found)
{
    struct clb_list items;
    struct clb_value *v;

    *found = false;
    if (in->kind == CLB_V_STRING) {
        const struct clb_string *s = in->u.s, *part = item->u.s;
        if (item->kind == CLB_V_UNDEFINED)
            return clb_vm_undefined(vm, item);
        if (item->kind != CLB_V_STRING)
            return clb_vm_fail(vm, CLB_BAD_INPUT, "a '%s' cannot be in a text",
                               clb_type_name(item));
        *found = part->n == 0 || memmem(s->p, s->n, part->p, part->n) != NULL;
        return clb_vm_charge(vm, (s->n + part->n) / 64);
    }
    if (in->kind == CLB_V_DICT) {
        bool ok = clb_dict_get(vm, in->u.dict, item, &v);
        *found = v != NULL;
        return ok;
    }
    if (!clb_vm_items(vm, in, &items))
        return false;
    for (size_t i = 0; i < items.n && !*found; i++)
        if (!clb_equal(vm, &items.v[i], item, found))
            return false;
    return true;
}

/* Merges the sorted halves [0, half) and [half, n) of keys and v by way of `spare`, twice n. */
static bool merge(struct clb_vm *vm, struct clb_value *keys, struct clb_value *v, size_t half,
                  size_t n, bool reverse, struct clb_value *spare)
{
    size_t a = 0, b = half, k = 0;

    while (a < half || b < n) {
        int order = a == half ? 1 : b == n ? -1 : 0;
        if (order == 0) {
            if (!clb_order(vm, &keys[a], &keys[b], &order))
                return false;
            order = reverse ? -order : order;
        }
        size_t from = order > 0 ? b++ : a++;
        spare[k] = keys[from];
        spare[n + k++] = v[from];
    }
    memcpy(keys, spare, n * sizeof *keys);
    memcpy(v, spare + n, n * sizeof *v);
    return true;
}

static bool sort(struct clb_vm *vm, struct clb_value *keys, struct clb_value *v, size_t n,
                 bool reverse, struct clb_value *spare)
{
    size_t half = n / 2;

    return n < 2 || (sort(vm, keys, v, half, reverse, spare) &&
                     sort(vm, keys + half, v + half, n - half, reverse, spare) &&
                     merge(vm, keys, v, half, n, reverse, spare));
}

bool clb_vm_sort(struct clb_vm *vm, struct clb_value *keys, struct clb_value *v, size_t n,
                 bool reverse)
{
    struct clb_value *spare = clb_arena_get(&vm->arena, 2 * n * sizeof *spare);

    return clb_vm_got(vm, spare != NULL) && sort(vm, keys, v, n, reverse, spare);
}
