/* What can stand behind `is`. */
#include <string.h>

#include "lib/chat/vm.h"
#include "lib/token/unicode.h"
#include "lib/token/utf8.h"

#define TEST_OF(name)                                                                              \
    static bool name(struct clb_vm *vm, const struct clb_call *c, const struct clb_value *v,       \
                     struct clb_value *out)
/* A test that only looks at the kind. */
#define KIND_TEST(name, condition)                                                                 \
    TEST_OF(name)                                                                                  \
    {                                                                                              \
        (void)vm;                                                                                  \
        (void)c;                                                                                   \
        *out = clb_v_bool(condition);                                                              \
        return true;                                                                               \
    }

static bool is_range(const struct clb_value *v)
{
    return v->kind == CLB_V_ITER && v->u.iter->label && !strcmp(v->u.iter->label, "range");
}

KIND_TEST(is_defined, v->kind != CLB_V_UNDEFINED)
KIND_TEST(is_undefined, v->kind == CLB_V_UNDEFINED)
KIND_TEST(is_none, v->kind == CLB_V_NONE)
KIND_TEST(is_boolean, v->kind == CLB_V_BOOL)
KIND_TEST(is_true, v->kind == CLB_V_BOOL && v->u.b)
KIND_TEST(is_false, v->kind == CLB_V_BOOL && !v->u.b)
KIND_TEST(is_integer, v->kind == CLB_V_INT)
KIND_TEST(is_float, v->kind == CLB_V_FLOAT)
KIND_TEST(is_number, v->kind >= CLB_V_BOOL && v->kind <= CLB_V_FLOAT)
KIND_TEST(is_string, v->kind == CLB_V_STRING)
KIND_TEST(is_mapping, v->kind == CLB_V_DICT)
KIND_TEST(is_sequence, v->kind == CLB_V_UNDEFINED ||
                           (v->kind >= CLB_V_STRING && v->kind <= CLB_V_DICT) || is_range(v))
KIND_TEST(is_iterable, v->kind == CLB_V_UNDEFINED ||
                           (v->kind >= CLB_V_STRING && v->kind <= CLB_V_ITER) ||
                           v->kind == CLB_V_LOOP)
KIND_TEST(is_callable, v->kind == CLB_V_UNDEFINED || v->kind >= CLB_V_LOOP)
KIND_TEST(is_escaped, v->kind == CLB_V_STRING && v->safe)

/* All letters with case in the given one, and at least one of them. */
static bool in_case(struct clb_vm *vm, const struct clb_value *v, uint32_t category,
                    struct clb_value *out)
{
    struct clb_value text;
    unsigned n;
    bool all = true, some = false;

    if (!clb_as_string(vm, v, &text))
        return false;
    const char *p = text.u.s->p, *end = p + text.u.s->n;
    for (; p < end; p += n) {
        uint32_t ch = clb_utf8_get(p, end, &n);
        bool is = clb_uc_in(ch, CLB_SET(category));
        all &= is || !clb_uc_in(ch, CLB_SET(CLB_LU) | CLB_SET(CLB_LL) | CLB_SET(CLB_LT));
        some |= is;
    }
    *out = clb_v_bool(all && some);
    return clb_vm_charge(vm, text.u.s->n / 8);
}
TEST_OF(is_lower)
{
    (void)c;
    return in_case(vm, v, CLB_LL, out);
}
TEST_OF(is_upper)
{
    (void)c;
    return in_case(vm, v, CLB_LU, out);
}

/* The remainder of a division; fails as % does. */
static bool remainder_is(struct clb_vm *vm, const struct clb_value *v, const struct clb_value *by,
                         int64_t wanted, struct clb_value *out)
{
    struct clb_value rest, want = clb_v_int(wanted);
    bool equal;

    if (!clb_math(vm, CLB_OP_MOD, v, by, &rest) || !clb_equal(vm, &rest, &want, &equal))
        return false;
    *out = clb_v_bool(equal);
    return true;
}
TEST_OF(is_even)
{
    const struct clb_value two = clb_v_int(2);

    (void)c;
    return remainder_is(vm, v, &two, 0, out);
}
TEST_OF(is_odd)
{
    const struct clb_value two = clb_v_int(2);

    (void)c;
    return remainder_is(vm, v, &two, 1, out);
}
TEST_OF(is_divisible)
{
    (void)c;
    return remainder_is(vm, v, &v[1], 0, out);
}

TEST_OF(is_equal)
{
    bool equal;

    (void)c;
    if (!clb_equal(vm, v, &v[1], &equal))
        return false;
    *out = clb_v_bool(equal);
    return true;
}
TEST_OF(is_unequal)
{
    (void)c;
    if (!is_equal(vm, c, v, out))
        return false;
    out->u.b = !out->u.b;
    return true;
}

TEST_OF(is_same)
{
    bool equal = false;

    (void)c;
    bool plain = v->kind <= CLB_V_STRING && v->kind != CLB_V_UNDEFINED;
    if (v->kind == v[1].kind && plain && !clb_equal(vm, v, &v[1], &equal))
        return false;
    if (v->kind == v[1].kind && !plain)
        equal = v->u.list == v[1].u.list;
    *out = clb_v_bool(equal);
    return true;
}

static bool ordered(struct clb_vm *vm, const struct clb_value *v, struct clb_value *out, bool less,
                    bool or_equal)
{
    int order;

    if (!clb_order(vm, v, &v[1], &order))
        return false;
    *out = clb_v_bool(order == 0 ? or_equal : (order < 0) == less);
    return true;
}
TEST_OF(is_less)
{
    (void)c;
    return ordered(vm, v, out, true, false);
}
TEST_OF(is_at_most)
{
    (void)c;
    return ordered(vm, v, out, true, true);
}
TEST_OF(is_greater)
{
    (void)c;
    return ordered(vm, v, out, false, false);
}
TEST_OF(is_at_least)
{
    (void)c;
    return ordered(vm, v, out, false, true);
}

TEST_OF(is_in)
{
    bool found;

    (void)c;
    if (!clb_contains(vm, &v[1], v, &found))
        return false;
    *out = clb_v_bool(found);
    return true;
}

static bool known(enum clb_builtins table, const struct clb_value *v, struct clb_value *out)
{
    *out = clb_v_bool(v->kind == CLB_V_STRING &&
                      clb_builtin_find(table, clb_view(v->u.s)) != CLB_NO_BUILTIN);
    return true;
}
TEST_OF(is_filter)
{
    (void)vm;
    (void)c;
    return known(CLB_FILTERS, v, out);
}
TEST_OF(is_test)
{
    (void)vm;
    (void)c;
    return known(CLB_TESTS, v, out);
}

const struct clb_builtin clb_tests[] = {
    { "defined", "", is_defined },
    { "undefined", "", is_undefined },
    { "none", "", is_none },
    { "boolean", "", is_boolean },
    { "true", "", is_true },
    { "false", "", is_false },
    { "integer", "", is_integer },
    { "float", "", is_float },
    { "number", "", is_number },
    { "string", "", is_string },
    { "mapping", "", is_mapping },
    { "sequence", "", is_sequence },
    { "iterable", "", is_iterable },
    { "callable", "", is_callable },
    { "escaped", "", is_escaped },
    { "lower", "", is_lower },
    { "upper", "", is_upper },
    { "even", "", is_even },
    { "odd", "", is_odd },
    { "divisibleby", "num", is_divisible },
    { "eq", "other", is_equal },
    { "==", "other", is_equal },
    { "equalto", "other", is_equal },
    { "ne", "other", is_unequal },
    { "!=", "other", is_unequal },
    { "sameas", "other", is_same },
    { "lt", "other", is_less },
    { "<", "other", is_less },
    { "lessthan", "other", is_less },
    { "le", "other", is_at_most },
    { "<=", "other", is_at_most },
    { "gt", "other", is_greater },
    { ">", "other", is_greater },
    { "greaterthan", "other", is_greater },
    { "ge", "other", is_at_least },
    { ">=", "other", is_at_least },
    { "in", "seq", is_in },
    { "filter", "", is_filter },
    { "test", "", is_test },
    { NULL, NULL, NULL },
};
