/* Calls: macros, and what is built in. */
#include <string.h>

#include "lib/chat/vm.h"

/* -- arguments --------------------------------------------------------------------------------- */

struct arguments {
    struct clb_list pos;
    struct clb_dict named;
};

static bool eval_arguments(struct clb_vm *vm, uint32_t first, struct arguments *a)
{
    struct clb_value v, key = { .kind = CLB_V_STRING };

    *a = (struct arguments){ 0 };
    for (uint32_t i = first; i; i = vm->t->node[i].next) {
        const struct clb_node *n = &vm->t->node[i];
        bool named = n->kind == CLB_N_KEYWORD;
        if (!clb_eval(vm, named ? n->b : i, &v))
            return false;
        if (named) {
            key.u.s = &vm->t->symbol[n->a];
            if (clb_dict_find(&a->named, clb_view(key.u.s)))
                return clb_vm_fail(vm, CLB_BAD_INPUT, "the argument '%.*s' is given twice",
                                   (int)key.u.s->n, key.u.s->p);
        }
        if (!clb_vm_got(vm, named ? clb_dict_push(&vm->arena, &a->named, &key, &v)
                                  : clb_list_push(&vm->arena, &a->pos, &v)))
            return false;
    }
    return true;
}

/* Puts the arguments where f's parameters say. */
static bool bind(struct clb_vm *vm, const struct clb_builtin *f, const struct clb_call *c,
                 struct clb_value v[1 + CLB_MOST_PARAMS])
{
    const char *p = f->params;
    size_t i = 0, needed = SIZE_MAX, used = 0;

    while (*p) {
        if (*p == '[') {
            needed = i;
            p++;
        }
        size_t n = strcspn(p, " ");
        const struct clb_value *given = clb_dict_find(c->named, (struct clb_str){ p, n });
        if (i < c->n && given)
            return clb_vm_fail(vm, CLB_BAD_INPUT, "%s: '%.*s' is given twice", f->name, (int)n, p);
        used += given != NULL;
        v[1 + i] = i < c->n ? c->arg[i] : given ? *given : (struct clb_value){ 0 };
        if (v[1 + i].kind == CLB_V_ABSENT && needed == SIZE_MAX)
            return clb_vm_fail(vm, CLB_BAD_INPUT, "%s: '%.*s' is missing", f->name, (int)n, p);
        i++;
        p += n + (p[n] == ' ');
    }
    if (c->n > i)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "%s: %zu arguments, but at most %zu are known here",
                           f->name, c->n, i);
    if (used < c->named->n)
        return clb_vm_fail(vm, CLB_UNSUPPORTED,
                           "%s: there is a named argument that is not known here", f->name);
    return true;
}

bool clb_vm_apply(struct clb_vm *vm, const struct clb_builtin *f, const struct clb_value *self,
                  const struct clb_call *c, struct clb_value *out)
{
    struct clb_value v[1 + CLB_MOST_PARAMS] = { *self };

    if (f->params && !bind(vm, f, c, v))
        return false;
    return f->fn(vm, c, v, out);
}

bool clb_want_int(struct clb_vm *vm, const struct clb_value *v, const char *what, int64_t *x)
{
    if (v->kind == CLB_V_INT)
        *x = v->u.i;
    else if (v->kind == CLB_V_BOOL)
        *x = v->u.b;
    else if (v->kind != CLB_V_ABSENT)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "%s must be an integer, not '%s'", what,
                           clb_type_name(v));
    return true;
}

bool clb_want_bool(struct clb_vm *vm, const struct clb_value *v, bool *x)
{
    (void)vm;
    if (v->kind != CLB_V_ABSENT)
        *x = clb_truth(v);
    return true;
}

bool clb_want_string(struct clb_vm *vm, const struct clb_value *v, const char *what,
                     const struct clb_string **s)
{
    if (v->kind == CLB_V_UNDEFINED)
        return clb_vm_undefined(vm, v);
    if (v->kind == CLB_V_STRING)
        *s = v->u.s;
    else if (v->kind != CLB_V_ABSENT)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "%s must be a text, not '%s'", what,
                           clb_type_name(v));
    return true;
}

/* -- filters and tests ------------------------------------------------------------------------- */

bool clb_eval_filter(struct clb_vm *vm, uint32_t node, struct clb_value *v)
{
    const struct clb_node *n = &vm->t->node[node];
    enum clb_builtins table = n->kind == CLB_N_FILTER ? CLB_FILTERS : CLB_TESTS;
    struct arguments a;
    struct clb_value out;

    if (!eval_arguments(vm, n->b, &a))
        return false;
    vm->at = n->at;
    const struct clb_call c = { a.pos.v, a.pos.n, &a.named };
    if (!clb_vm_apply(vm, clb_builtin_at(table, n->c), v, &c, &out))
        return false;
    *v = out;
    return true;
}

bool clb_eval_filters(struct clb_vm *vm, uint32_t node, struct clb_value *v)
{
    uint32_t inner = vm->t->node[node].a;

    return (!inner || clb_eval_filters(vm, inner, v)) && clb_eval_filter(vm, node, v);
}

/* -- macros ------------------------------------------------------------------------------------ */

static bool give_extras(struct clb_vm *vm, const struct clb_node *n, const struct clb_call *c,
                        size_t n_param, size_t used, const struct clb_value *caller)
{
    struct clb_value rest;

    if (n->op & CLB_USES_VARARGS) {
        if (!clb_vm_got(vm, clb_list_make(&vm->arena, &rest, CLB_V_TUPLE, 0)))
            return false;
        for (size_t i = n_param; i < c->n; i++)
            if (!clb_vm_got(vm, clb_list_push(&vm->arena, rest.u.list, &c->arg[i])))
                return false;
        if (!clb_vm_set(vm, CLB_SYMBOL_VARARGS, &rest))
            return false;
    } else if (c->n > n_param) {
        return clb_vm_fail(vm, CLB_BAD_INPUT, "a macro with %zu parameters is called with %zu",
                           n_param, c->n);
    }
    if (caller && !(n->op & CLB_USES_CALLER))
        return clb_vm_fail(vm, CLB_BAD_INPUT, "the macro does not use 'caller'");
    if (caller && !clb_vm_set(vm, CLB_SYMBOL_CALLER, caller))
        return false;
    if (!(n->op & CLB_USES_KWARGS))
        return used == c->named->n ||
               clb_vm_fail(vm, CLB_BAD_INPUT, "a macro is called with a name it does not have");
    if (!clb_vm_got(vm, clb_dict_make(&vm->arena, &rest, CLB_V_DICT)))
        return false;
    for (size_t i = 0; i < c->named->n; i++) {
        const struct clb_pair *p = &c->named->pair[i];
        bool param = false;
        for (uint32_t k = n->b; k; k = vm->t->node[k].next)
            param |= clb_str_eq(clb_view(&vm->t->symbol[vm->t->node[k].a]), clb_view(p->key.u.s));
        if (!param && !clb_vm_got(vm, clb_dict_push(&vm->arena, rest.u.dict, &p->key, &p->value)))
            return false;
    }
    return clb_vm_set(vm, CLB_SYMBOL_KWARGS, &rest);
}

/* Until it has its value, a parameter is undefined; defaults may mention the ones before. */
static bool hide_param(struct clb_vm *vm, const struct clb_node *p)
{
    struct clb_undefined *u = clb_arena_get(&vm->arena, sizeof *u);
    const struct clb_value v = { .kind = CLB_V_UNDEFINED, .u.undefined = u };

    if (!u)
        return clb_vm_nomem(vm);
    u->name = clb_view(&vm->t->symbol[p->a]);
    return clb_vm_set(vm, p->a, &v);
}

static bool give_param(struct clb_vm *vm, const struct clb_node *p, const struct clb_call *c,
                       size_t i, size_t *used)
{
    const struct clb_string *name = &vm->t->symbol[p->a];
    const struct clb_value *named = clb_dict_find(c->named, clb_view(name));
    struct clb_value v;

    *used += named != NULL;
    if (i < c->n && named)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "the argument '%.*s' is given twice", (int)name->n,
                           name->p);
    if (i < c->n || named)
        return clb_vm_set(vm, p->a, i < c->n ? &c->arg[i] : named);
    return !p->b || (clb_eval(vm, p->b, &v) && clb_vm_set(vm, p->a, &v));
}

static bool run_body(struct clb_vm *vm, const struct clb_node *n, const struct clb_call *c,
                     const struct clb_value *caller)
{
    size_t i = 0, used = 0;

    for (uint32_t k = n->b; k; k = vm->t->node[k].next)
        if (!hide_param(vm, &vm->t->node[k]))
            return false;
    for (uint32_t k = n->b; k; k = vm->t->node[k].next)
        if (!give_param(vm, &vm->t->node[k], c, i++, &used))
            return false;
    return give_extras(vm, n, c, i, used, caller) && clb_vm_run(vm, n->c);
}

static bool call_macro(struct clb_vm *vm, const struct clb_macro *m, const struct clb_call *c,
                       const struct clb_value *caller, struct clb_value *out)
{
    const struct clb_node *n = &vm->t->node[m->node];
    struct clb_out b = { .arena = &vm->arena }, *before = vm->out;
    struct clb_scope *scope = vm->scope;

    vm->scope = m->scope;
    vm->out = &b;
    bool ok = clb_vm_enter(vm) && run_body(vm, n, c, caller);
    vm->out = before;
    clb_vm_leave(vm, m->scope);
    vm->scope = scope;
    return ok && clb_vm_got(vm, clb_out_done(&b, out));
}

/* -- calls ------------------------------------------------------------------------------------- */

static bool call(struct clb_vm *vm, const struct clb_value *what, const struct clb_call *c,
                 const struct clb_value *caller, struct clb_value *out)
{
    const struct clb_value none = { 0 };

    if (what->kind == CLB_V_MACRO)
        return call_macro(vm, what->u.macro, c, caller, out);
    if (caller)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "'call' needs a macro, not '%s'",
                           clb_type_name(what));
    if (what->kind == CLB_V_FUNCTION)
        return clb_vm_apply(vm, what->u.function, &none, c, out);
    if (what->kind == CLB_V_METHOD)
        return clb_vm_apply(vm, what->u.method->f, &what->u.method->self, c, out);
    if (what->kind == CLB_V_UNDEFINED)
        return clb_vm_undefined(vm, what);
    return clb_vm_fail(vm, CLB_BAD_INPUT, "'%s' object is not callable", clb_type_name(what));
}

bool clb_vm_call(struct clb_vm *vm, const struct clb_value *what, const struct clb_call *c,
                 struct clb_value *out)
{
    return call(vm, what, c, NULL, out);
}

bool clb_eval_call(struct clb_vm *vm, uint32_t node, const struct clb_value *caller,
                   struct clb_value *out)
{
    const struct clb_node *n = &vm->t->node[node];
    struct clb_value what;
    struct arguments a;

    if (!clb_eval(vm, n->a, &what) || !eval_arguments(vm, n->b, &a))
        return false;
    vm->at = n->at;
    const struct clb_call c = { a.pos.v, a.pos.n, &a.named };
    return call(vm, &what, &c, caller, out);
}

/* -- tables ------------------------------------------------------------------------------------ */

/* The parts of each table; numbers go through all of them. */
static const struct clb_builtin *const part[][3] = {
    [CLB_FILTERS] = { clb_text_filters, clb_sequence_filters, clb_number_filters },
    [CLB_TESTS] = { clb_tests },
    [CLB_FUNCTIONS] = { clb_functions },
    [CLB_STRING_METHODS] = { clb_string_methods, clb_search_methods },
    [CLB_LIST_METHODS] = { clb_list_methods },
    [CLB_DICT_METHODS] = { clb_dict_methods },
    [CLB_LOOP_METHODS] = { clb_loop_methods },
};

uint32_t clb_builtin_find(enum clb_builtins table, struct clb_str name)
{
    for (uint32_t k = 0; k < 3 && part[table][k]; k++)
        for (uint32_t i = 0; part[table][k][i].name; i++)
            if (clb_str_is(name, part[table][k][i].name))
                return k << 8 | i;
    return CLB_NO_BUILTIN;
}

const struct clb_builtin *clb_builtin_at(enum clb_builtins table, uint32_t i)
{
    return &part[table][i >> 8][i & 255];
}
