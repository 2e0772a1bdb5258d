/* Expressions. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/chat/lex.h"
#include "lib/chat/vm.h"

/* -- errors and limits ------------------------------------------------------------------------- */

bool clb_vm_fail(struct clb_vm *vm, enum clb_code code, const char *fmt, ...)
{
    const struct clb_text *s = &vm->t->source;
    char why[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    return clb_template_fail(vm->err, vm->t->name, (struct clb_str){ s->p, s->n }, vm->at, code,
                             "%s", why);
}

bool clb_vm_nomem(struct clb_vm *vm)
{
    if (vm->arena.used > vm->arena.limit / 2)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "the template needs more than %llu MB of memory",
                           (unsigned long long)vm->arena.limit >> 20);
    return clb_fail_nomem(vm->err, 1);
}

bool clb_vm_charge(struct clb_vm *vm, uint64_t steps)
{
    if (steps >= vm->steps)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "the template takes too many steps");
    vm->steps -= steps;
    return true;
}

bool clb_vm_deeper(struct clb_vm *vm)
{
    if (vm->depth++ < CLB_VM_DEPTH)
        return true;
    return clb_vm_fail(vm, CLB_BAD_INPUT, "nested or recursing more than %d levels deep",
                       CLB_VM_DEPTH);
}

const char *clb_type_name(const struct clb_value *v)
{
    static const char *const name[] = { "absent", "Undefined", "NoneType",  "bool",
                                        "int",    "float",     "str",       "list",
                                        "tuple",  "dict",      "generator", "Namespace",
                                        "loop",   "Macro",     "function",  "method" };

    return v->kind == CLB_V_ITER && v->u.iter->label ? v->u.iter->label : name[v->kind];
}

bool clb_vm_undefined(struct clb_vm *vm, const struct clb_value *v)
{
    const struct clb_undefined *u = v->u.undefined;
    int n = u->name.n > 100 ? 100 : (int)u->name.n;
    struct clb_value of = { .kind = u->of };

    if (u->of == CLB_V_ABSENT)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "'%.*s' is undefined", n, u->name.p);
    return clb_vm_fail(vm, CLB_BAD_INPUT, "'%s object' has no attribute '%.*s'",
                       u->of == CLB_V_ITER ? "iterator" : clb_type_name(&of), n, u->name.p);
}

/* -- arithmetic -------------------------------------------------------------------------------- */

static const char *const op_name[] = { "+", "-", "*", "/", "//", "%", "**" };

static bool fail_operands(struct clb_vm *vm, enum clb_op op, const struct clb_value *a,
                          const struct clb_value *b)
{
    if (a->kind == CLB_V_UNDEFINED || b->kind == CLB_V_UNDEFINED)
        return clb_vm_undefined(vm, a->kind == CLB_V_UNDEFINED ? a : b);
    return clb_vm_fail(vm, CLB_BAD_INPUT, "unsupported operand types for %s: '%s' and '%s'",
                       op_name[op], clb_type_name(a), clb_type_name(b));
}

static bool is_number(const struct clb_value *v)
{
    return v->kind == CLB_V_BOOL || v->kind == CLB_V_INT || v->kind == CLB_V_FLOAT;
}
static int64_t as_int(const struct clb_value *v)
{
    return v->kind == CLB_V_BOOL ? v->u.b : v->u.i;
}
static double as_float(const struct clb_value *v)
{
    return v->kind == CLB_V_FLOAT ? v->u.f : (double)as_int(v);
}

static bool overflow(struct clb_vm *vm)
{
    return clb_vm_fail(vm, CLB_UNSUPPORTED, "an integer beyond 64 bits");
}

static bool int_power(struct clb_vm *vm, int64_t x, int64_t n, int64_t *r)
{
    *r = 1;
    if (x == 0 || x == 1 || x == -1) {
        *r = n == 0 || x == 1 || (x == -1 && n % 2 == 0) ? 1 : x;
        return true;
    }
    for (int64_t i = 0; i < n; i++)
        if (__builtin_mul_overflow(*r, x, r))
            return overflow(vm);
    return true;
}

/* Python rounds quotients down, and remainders have the sign of the divisor. */
static bool int_divide(struct clb_vm *vm, enum clb_op op, int64_t x, int64_t y, int64_t *r)
{
    if (y == -1) {
        if (op == CLB_OP_MOD)
            *r = 0;
        else if (__builtin_sub_overflow((int64_t)0, x, r))
            return overflow(vm);
        return true;
    }
    int64_t q = x / y, m = x % y;
    bool down = m != 0 && (m < 0) != (y < 0);
    *r = op == CLB_OP_FLOOR ? q - down : m + (down ? y : 0);
    return true;
}

static bool int_math(struct clb_vm *vm, enum clb_op op, int64_t x, int64_t y, int64_t *r)
{
    bool over = false;

    if (op == CLB_OP_ADD)
        over = __builtin_add_overflow(x, y, r);
    else if (op == CLB_OP_SUB)
        over = __builtin_sub_overflow(x, y, r);
    else if (op == CLB_OP_MUL)
        over = __builtin_mul_overflow(x, y, r);
    else if (op == CLB_OP_POW)
        return int_power(vm, x, y, r);
    else
        return int_divide(vm, op, x, y, r);
    return !over || overflow(vm);
}

static double float_math(enum clb_op op, double x, double y)
{
    switch (op) {
    case CLB_OP_ADD:
        return x + y;
    case CLB_OP_SUB:
        return x - y;
    case CLB_OP_MUL:
        return x * y;
    case CLB_OP_DIV:
        return x / y;
    case CLB_OP_POW:
        return pow(x, y);
    default:
        break;
    }
    double m = fmod(x, y);
    double q = (x - m) / y;
    if (m != 0 && (m < 0) != (y < 0)) {
        m += y;
        q -= 1;
    }
    if (op == CLB_OP_MOD)
        return m != 0 ? m : copysign(0, y);
    double f = floor(q);
    return f + (q - f > 0.5);
}

static bool number_math(struct clb_vm *vm, enum clb_op op, const struct clb_value *a,
                        const struct clb_value *b, struct clb_value *out)
{
    bool whole = a->kind != CLB_V_FLOAT && b->kind != CLB_V_FLOAT;
    bool divides = op == CLB_OP_DIV || op == CLB_OP_FLOOR || op == CLB_OP_MOD;

    if (divides && as_float(b) == 0)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "division by zero");
    if (whole && op != CLB_OP_DIV && !(op == CLB_OP_POW && as_int(b) < 0)) {
        *out = clb_v_int(0);
        return int_math(vm, op, as_int(a), as_int(b), &out->u.i);
    }
    if (whole && (fabs(as_float(a)) > 0x1p53 || fabs(as_float(b)) > 0x1p53))
        return clb_vm_fail(vm, CLB_UNSUPPORTED, "the quotient of integers beyond 53 bits");
    *out = clb_v_float(float_math(op, as_float(a), as_float(b)));
    if (op == CLB_OP_POW && !isfinite(out->u.f))
        return clb_vm_fail(vm, CLB_BAD_INPUT, "the power is not a finite number");
    return true;
}

static bool add_strings(struct clb_vm *vm, const struct clb_value *a, const struct clb_value *b,
                        struct clb_value *out)
{
    struct clb_value x = *a, y = *b;
    struct clb_out t = { .arena = &vm->arena };

    if (a->safe != b->safe && !clb_escape_html(vm, a->safe ? b : a, a->safe ? &y : &x))
        return false;
    clb_out_string(&t, x.u.s);
    clb_out_string(&t, y.u.s);
    if (!clb_vm_charge(vm, t.n / 64) || !clb_vm_got(vm, clb_out_done(&t, out)))
        return false;
    out->safe = a->safe || b->safe;
    return true;
}

static bool add_lists(struct clb_vm *vm, const struct clb_value *a, const struct clb_value *b,
                      struct clb_value *out)
{
    const struct clb_list *x = a->u.list, *y = b->u.list;

    if (!clb_vm_charge(vm, x->n + y->n) ||
        !clb_vm_got(vm, clb_list_make(&vm->arena, out, a->kind, x->n + y->n)))
        return false;
    struct clb_list *l = out->u.list;
    for (size_t i = 0; i < x->n + y->n; i++)
        l->v[l->n++] = i < x->n ? x->v[i] : y->v[i - x->n];
    return true;
}

static bool repeat(struct clb_vm *vm, const struct clb_value *what, int64_t times,
                   struct clb_value *out)
{
    bool text = what->kind == CLB_V_STRING;
    size_t n = text ? what->u.s->n : what->u.list->n;
    struct clb_out b = { .arena = &vm->arena };

    times = times < 0 || n == 0 ? 0 : times;
    if (!clb_vm_charge(vm, times > 1 << 28 ? UINT64_MAX / 2 : (uint64_t)times * (n / 64 + 1)))
        return false;
    if (!text && !clb_vm_got(vm, clb_list_make(&vm->arena, out, what->kind, 0)))
        return false;
    for (int64_t i = 0; i < times; i++) {
        if (text)
            clb_out_string(&b, what->u.s);
        for (size_t k = 0; !text && k < n; k++)
            if (!clb_vm_got(vm, clb_list_push(&vm->arena, out->u.list, &what->u.list->v[k])))
                return false;
        if (b.failed)
            return clb_vm_nomem(vm);
    }
    return !text || clb_vm_got(vm, clb_out_done(&b, out));
}

static bool is_sequence(const struct clb_value *v)
{
    return v->kind == CLB_V_STRING || v->kind == CLB_V_LIST || v->kind == CLB_V_TUPLE;
}

bool clb_math(struct clb_vm *vm, enum clb_op op, const struct clb_value *a,
              const struct clb_value *b, struct clb_value *out)
{
    if (is_number(a) && is_number(b))
        return number_math(vm, op, a, b, out);
    if (op == CLB_OP_ADD && a->kind == b->kind && a->kind == CLB_V_STRING)
        return add_strings(vm, a, b, out);
    if (op == CLB_OP_ADD && a->kind == b->kind && is_sequence(a))
        return add_lists(vm, a, b, out);
    if (op == CLB_OP_MUL && is_sequence(a) && (b->kind == CLB_V_INT || b->kind == CLB_V_BOOL))
        return repeat(vm, a, as_int(b), out);
    if (op == CLB_OP_MUL && is_sequence(b) && (a->kind == CLB_V_INT || a->kind == CLB_V_BOOL))
        return repeat(vm, b, as_int(a), out);
    if (op == CLB_OP_MOD && a->kind == CLB_V_STRING) {
        bool many = b->kind == CLB_V_TUPLE;
        return clb_percent(vm, a->u.s, many ? b->u.list->v : b, many ? b->u.list->n : 1,
                           b->kind == CLB_V_DICT ? b->u.dict : NULL, out);
    }
    return fail_operands(vm, op, a, b);
}

/* -- nodes ------------------------------------------------------------------------------------- */

static bool eval_name(struct clb_vm *vm, uint32_t symbol, struct clb_value *out)
{
    const struct clb_string *name = &vm->t->symbol[symbol];
    uint64_t looked = 0;

    for (const struct clb_scope *s = vm->scope; s; s = s->up, looked++)
        for (uint32_t i = 0; i < s->n; i++, looked++)
            if (s->name[i].symbol == symbol) {
                *out = s->name[i].value;
                return clb_vm_charge(vm, looked / 16);
            }
    uint32_t f = clb_builtin_find(CLB_FUNCTIONS, clb_view(name));
    if (f != CLB_NO_BUILTIN) {
        *out = (struct clb_value){ .kind = CLB_V_FUNCTION,
                                   .u.function = clb_builtin_at(CLB_FUNCTIONS, f) };
        return true;
    }
    struct clb_undefined *u = clb_arena_get(&vm->arena, sizeof *u);
    if (!u)
        return clb_vm_nomem(vm);
    u->name = clb_view(name);
    *out = (struct clb_value){ .kind = CLB_V_UNDEFINED, .u.undefined = u };
    return true;
}

static bool eval_list(struct clb_vm *vm, const struct clb_node *n, struct clb_value *out)
{
    enum clb_kind kind = n->kind == CLB_N_LIST ? CLB_V_LIST : CLB_V_TUPLE;
    struct clb_value v;

    if (!clb_vm_got(vm, clb_list_make(&vm->arena, out, kind, 0)))
        return false;
    for (uint32_t i = n->a; i; i = vm->t->node[i].next)
        if (!clb_eval(vm, i, &v) || !clb_vm_got(vm, clb_list_push(&vm->arena, out->u.list, &v)))
            return false;
    return true;
}

static bool eval_dict(struct clb_vm *vm, const struct clb_node *n, struct clb_value *out)
{
    struct clb_value key, v, *old;

    if (!clb_vm_got(vm, clb_dict_make(&vm->arena, out, CLB_V_DICT)))
        return false;
    for (uint32_t i = n->a; i; i = vm->t->node[vm->t->node[i].next].next) {
        if (!clb_eval(vm, i, &key) || !clb_eval(vm, vm->t->node[i].next, &v) ||
            !clb_dict_get(vm, out->u.dict, &key, &old))
            return false;
        if (old)
            *old = v;
        else if (!clb_vm_got(vm, clb_dict_push(&vm->arena, out->u.dict, &key, &v)))
            return false;
    }
    return true;
}

static bool eval_concat(struct clb_vm *vm, const struct clb_node *n, struct clb_value *out)
{
    struct clb_out b = { .arena = &vm->arena };
    struct clb_value v;

    for (uint32_t i = n->a; i; i = vm->t->node[i].next)
        if (!clb_eval(vm, i, &v) || !clb_print(vm, &b, &v))
            return false;
    return clb_vm_charge(vm, b.n / 64) && clb_vm_got(vm, clb_out_done(&b, out));
}

static bool eval_math(struct clb_vm *vm, const struct clb_node *n, struct clb_value *out)
{
    struct clb_value left, right;

    if (!clb_eval(vm, n->a, &left))
        return false;
    for (uint32_t i = n->b; i; i = vm->t->node[i].next) {
        const struct clb_node *o = &vm->t->node[i];
        if (!clb_eval(vm, o->a, &right))
            return false;
        vm->at = o->at;
        if (!clb_math(vm, o->op, &left, &right, out))
            return false;
        left = *out;
    }
    return true;
}

static bool compare(struct clb_vm *vm, enum clb_op op, const struct clb_value *a,
                    const struct clb_value *b, bool *is)
{
    int order = 0;

    if (op == CLB_OP_EQ || op == CLB_OP_NE) {
        if (!clb_equal(vm, a, b, is))
            return false;
        *is ^= op == CLB_OP_NE;
        return true;
    }
    if (op == CLB_OP_IN || op == CLB_OP_NOT_IN) {
        if (!clb_contains(vm, b, a, is))
            return false;
        *is ^= op == CLB_OP_NOT_IN;
        return true;
    }
    if (!clb_order(vm, a, b, &order))
        return false;
    bool nan =
        (a->kind == CLB_V_FLOAT && isnan(a->u.f)) || (b->kind == CLB_V_FLOAT && isnan(b->u.f));
    *is = !nan && (op == CLB_OP_LT   ? order < 0
                   : op == CLB_OP_LE ? order <= 0
                   : op == CLB_OP_GT ? order > 0
                                     : order >= 0);
    return true;
}

/* a < b < c: each value once, until one does not hold. */
static bool eval_compare(struct clb_vm *vm, const struct clb_node *n, struct clb_value *out)
{
    struct clb_value left, right;
    bool is = true;

    if (!clb_eval(vm, n->a, &left))
        return false;
    for (uint32_t i = n->b; i && is; i = vm->t->node[i].next) {
        const struct clb_node *o = &vm->t->node[i];
        if (!clb_eval(vm, o->a, &right))
            return false;
        vm->at = o->at;
        if (!compare(vm, o->op, &left, &right, &is))
            return false;
        left = right;
    }
    *out = clb_v_bool(is);
    return true;
}

static bool eval_logic(struct clb_vm *vm, const struct clb_node *n, struct clb_value *out)
{
    for (uint32_t i = n->a; i; i = vm->t->node[i].next) {
        if (!clb_eval(vm, i, out))
            return false;
        if (clb_truth(out) == (n->kind == CLB_N_OR))
            return true;
    }
    return true;
}

static bool eval_sign(struct clb_vm *vm, const struct clb_node *n, struct clb_value *out)
{
    struct clb_value v, zero = clb_v_int(0);

    if (!clb_eval(vm, n->a, &v))
        return false;
    vm->at = n->at;
    if (v.kind == CLB_V_UNDEFINED)
        return clb_vm_undefined(vm, &v);
    if (!is_number(&v))
        return clb_vm_fail(vm, CLB_BAD_INPUT, "bad operand type for unary %c: '%s'",
                           n->kind == CLB_N_NEG ? '-' : '+', clb_type_name(&v));
    if (v.kind == CLB_V_FLOAT) {
        *out = clb_v_float(n->kind == CLB_N_NEG ? -v.u.f : v.u.f);
        return true;
    }
    return clb_math(vm, n->kind == CLB_N_NEG ? CLB_OP_SUB : CLB_OP_ADD, &zero, &v, out);
}

static bool eval_cond(struct clb_vm *vm, const struct clb_node *n, struct clb_value *out)
{
    static const struct clb_undefined nothing = { CLB_V_ABSENT,
                                                  { "the value of an 'if' without 'else'", 35 } };
    struct clb_value test;

    if (!clb_eval(vm, n->a, &test))
        return false;
    if (clb_truth(&test))
        return clb_eval(vm, n->b, out);
    if (n->c)
        return clb_eval(vm, n->c, out);
    *out = (struct clb_value){ .kind = CLB_V_UNDEFINED, .u.undefined = &nothing };
    return true;
}

static bool eval_subscript(struct clb_vm *vm, const struct clb_node *n, struct clb_value *out)
{
    struct clb_value of, key, bound[3] = { 0 };

    if (!clb_eval(vm, n->a, &of))
        return false;
    if (n->kind == CLB_N_ATTR) {
        vm->at = n->at;
        return clb_vm_attr(vm, &of, clb_view(&vm->t->symbol[n->b]), out);
    }
    if (n->kind == CLB_N_ITEM) {
        if (!clb_eval(vm, n->b, &key))
            return false;
        vm->at = n->at;
        return clb_vm_item(vm, &of, &key, out);
    }
    const struct clb_node *b = &vm->t->node[n->b];
    if ((b->a && !clb_eval(vm, b->a, &bound[0])) || (b->b && !clb_eval(vm, b->b, &bound[1])) ||
        (b->c && !clb_eval(vm, b->c, &bound[2])))
        return false;
    vm->at = n->at;
    return clb_vm_slice(vm, &of, bound, out);
}

static void eval_const(const struct clb_vm *vm, const struct clb_node *n, struct clb_value *out)
{
    uint64_t bits = n->a | (uint64_t)n->b << 32;

    if (n->kind == CLB_N_STRING) {
        *out = (struct clb_value){ .kind = CLB_V_STRING, .u.s = &vm->t->string[n->a] };
    } else if (n->kind == CLB_N_CONST) {
        *out = (struct clb_value){ .kind = n->op, .u.b = n->a };
    } else {
        *out = (struct clb_value){ .kind = n->kind == CLB_N_INT ? CLB_V_INT : CLB_V_FLOAT };
        memcpy(&out->u, &bits, sizeof bits);
    }
}

static bool eval_kind(struct clb_vm *vm, uint32_t node, const struct clb_node *n,
                      struct clb_value *out)
{
    switch (n->kind) {
    case CLB_N_NAME:
        return eval_name(vm, n->a, out);
    case CLB_N_LIST:
    case CLB_N_TUPLE:
        return eval_list(vm, n, out);
    case CLB_N_DICT:
        return eval_dict(vm, n, out);
    case CLB_N_ATTR:
    case CLB_N_ITEM:
    case CLB_N_SLICE:
        return eval_subscript(vm, n, out);
    case CLB_N_CALL:
        return clb_eval_call(vm, node, NULL, out);
    case CLB_N_FILTER:
    case CLB_N_TEST:
        return clb_eval(vm, n->a, out) && clb_eval_filter(vm, node, out);
    case CLB_N_NEG:
    case CLB_N_POS:
        return eval_sign(vm, n, out);
    case CLB_N_NOT:
        if (!clb_eval(vm, n->a, out))
            return false;
        *out = clb_v_bool(!clb_truth(out));
        return true;
    case CLB_N_AND:
    case CLB_N_OR:
        return eval_logic(vm, n, out);
    case CLB_N_CONCAT:
        return eval_concat(vm, n, out);
    case CLB_N_MATH:
        return eval_math(vm, n, out);
    case CLB_N_COMPARE:
        return eval_compare(vm, n, out);
    case CLB_N_COND:
        return eval_cond(vm, n, out);
    default:
        eval_const(vm, n, out);
        return true;
    }
}

bool clb_eval(struct clb_vm *vm, uint32_t node, struct clb_value *out)
{
    const struct clb_node *n = &vm->t->node[node];

    vm->at = n->at;
    if (!clb_vm_charge(vm, 1))
        return false;
    if (!clb_vm_deeper(vm))
        return false;
    bool ok = eval_kind(vm, node, n, out);
    vm->depth--;
    return ok;
}
