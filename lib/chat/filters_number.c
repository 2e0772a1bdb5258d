/* Filters that make numbers. */
#include <math.h>

#include "lib/chat/lex.h"
#include "lib/chat/number.h"
#include "lib/chat/vm.h"

#define FILTER(name)                                                                               \
    static bool name(struct clb_vm *vm, const struct clb_call *c, const struct clb_value *v,       \
                     struct clb_value *out)

/* Python's float(v). */
static bool to_float(const struct clb_value *v, double *x)
{
    struct clb_str s;

    switch (v->kind) {
    case CLB_V_BOOL:
        *x = v->u.b;
        return true;
    case CLB_V_INT:
        *x = (double)v->u.i;
        return true;
    case CLB_V_FLOAT:
        *x = v->u.f;
        return true;
    case CLB_V_STRING:
        s = clb_strip(clb_view(v->u.s), true, true);
        return clb_float_read(s.p, s.n, x);
    default:
        return false;
    }
}

FILTER(to_int)
{
    int64_t base = 10;
    double x;

    (void)c;
    if (v->kind == CLB_V_UNDEFINED)
        return clb_vm_undefined(vm, v);
    if (!clb_want_int(vm, &v[2], "the base of 'int'", &base))
        return false;
    if (base != 10)
        return clb_vm_fail(vm, CLB_UNSUPPORTED, "'int' with base %lld is not supported",
                           (long long)base);
    *out = clb_v_int(0);
    if (v->kind == CLB_V_INT || v->kind == CLB_V_BOOL)
        return clb_want_int(vm, v, "", &out->u.i);
    if (v->kind == CLB_V_STRING) {
        struct clb_str s = clb_strip(clb_view(v->u.s), true, true);
        if (clb_integer_read(s.p, s.n, &out->u.i))
            return true;
    }
    if (to_float(v, &x) && !isnan(x) && !isinf(x)) {
        if (!(fabs(x) < 0x1p63))
            return clb_vm_fail(vm, CLB_UNSUPPORTED, "an integer beyond 64 bits");
        *out = clb_v_int((int64_t)x);
        return true;
    }
    if (v->kind == CLB_V_FLOAT && isinf(v->u.f))
        return clb_vm_fail(vm, CLB_BAD_INPUT, "cannot convert float infinity to integer");
    *out = v[1].kind == CLB_V_ABSENT ? clb_v_int(0) : v[1];
    return true;
}

FILTER(to_float_filter)
{
    double x;

    (void)c;
    if (v->kind == CLB_V_UNDEFINED)
        return clb_vm_undefined(vm, v);
    *out = to_float(v, &x) ? clb_v_float(x) : v[1].kind == CLB_V_ABSENT ? clb_v_float(0) : v[1];
    return true;
}

FILTER(absolute)
{
    struct clb_value zero = clb_v_int(0);

    (void)c;
    if (v->kind == CLB_V_FLOAT) {
        *out = clb_v_float(fabs(v->u.f));
        return true;
    }
    if (v->kind == CLB_V_INT && v->u.i < 0)
        return clb_math(vm, CLB_OP_SUB, &zero, v, out);
    if (v->kind != CLB_V_INT && v->kind != CLB_V_BOOL)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "bad operand type for abs(): '%s'", clb_type_name(v));
    *out = clb_v_int(v->kind == CLB_V_BOOL ? v->u.b : v->u.i);
    return true;
}

FILTER(round_filter)
{
    int64_t digits = 0;
    double x;

    (void)c;
    bool common = v[2].kind == CLB_V_ABSENT || clb_v_is(&v[2], "common");
    bool up = clb_v_is(&v[2], "ceil");
    if (!common && !up && !clb_v_is(&v[2], "floor"))
        return clb_vm_fail(vm, CLB_BAD_INPUT, "method must be common, ceil or floor");
    if (v->kind == CLB_V_UNDEFINED)
        return clb_vm_undefined(vm, v);
    if (v->kind == CLB_V_STRING || !to_float(v, &x))
        return clb_vm_fail(vm, CLB_BAD_INPUT, "'round' needs a number, not '%s'", clb_type_name(v));
    if (!clb_want_int(vm, &v[1], "the precision of 'round'", &digits))
        return false;
    if (digits < 0 || digits > 20)
        return clb_vm_fail(vm, CLB_UNSUPPORTED, "'round' to %lld digits is not supported",
                           (long long)digits);
    if (common && v->kind != CLB_V_FLOAT) {
        *out = clb_v_int(v->kind == CLB_V_BOOL ? v->u.b : v->u.i);
        return true;
    }
    if (common && isfinite(x)) {
        char text[CLB_NUMBER_TEXT];
        clb_number_fixed(text, x, (int)digits);
        clb_float_read(text, strlen(text), &x);
    } else if (!common) {
        double scale = pow(10, (double)digits);
        x = (up ? ceil(x * scale) : floor(x * scale)) / scale;
    }
    *out = clb_v_float(x);
    return true;
}

const struct clb_builtin clb_number_filters[] = {
    { "int", "[default base", to_int },
    { "float", "[default", to_float_filter },
    { "abs", "", absolute },
    { "round", "[precision method", round_filter },
    { NULL, NULL, NULL },
};
