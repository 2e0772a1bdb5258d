/* Statements. */
#include <string.h>

#include "lib/chat/vm.h"

enum flow { GO_ON, BREAK, CONTINUE, FAILED };

static enum flow run(struct clb_vm *vm, uint32_t first);

/* -- scopes ------------------------------------------------------------------------------------ */

bool clb_vm_enter(struct clb_vm *vm)
{
    struct clb_scope *s = vm->spare;

    if (s)
        vm->spare = s->up;
    else if (!(s = clb_arena_get(&vm->arena, sizeof *s)))
        return clb_vm_nomem(vm);
    s->up = vm->scope;
    s->n = 0;
    vm->scope = s;
    return true;
}

void clb_vm_leave(struct clb_vm *vm, struct clb_scope *scope)
{
    struct clb_scope *s = vm->scope;

    if (s != scope && !s->kept) {
        s->up = vm->spare;
        vm->spare = s;
    }
    vm->scope = scope;
}

bool clb_vm_set(struct clb_vm *vm, uint32_t symbol, const struct clb_value *v)
{
    struct clb_scope *s = vm->scope;

    for (uint32_t i = 0; i < s->n; i++)
        if (s->name[i].symbol == symbol) {
            s->name[i].value = *v;
            return true;
        }
    if (s->n == s->room) {
        uint32_t room = s->room ? s->room * 2 : 4;
        struct clb_binding *more = clb_arena_get(&vm->arena, room * sizeof *more);
        if (!more)
            return clb_vm_nomem(vm);
        if (s->n)
            memcpy(more, s->name, s->n * sizeof *more);
        s->name = more;
        s->room = room;
    }
    s->name[s->n++] = (struct clb_binding){ symbol, *v };
    return clb_vm_charge(vm, s->n / 8);
}

static struct clb_value *lookup(const struct clb_vm *vm, uint32_t symbol)
{
    for (struct clb_scope *s = vm->scope; s; s = s->up)
        for (uint32_t i = 0; i < s->n; i++)
            if (s->name[i].symbol == symbol)
                return &s->name[i].value;
    return NULL;
}

static bool assign(struct clb_vm *vm, uint32_t target, const struct clb_value *v);

static bool unpack(struct clb_vm *vm, uint32_t target, const struct clb_value *v)
{
    struct clb_list items;
    size_t n = 0, i = 0;

    for (uint32_t k = vm->t->node[target].a; k; k = vm->t->node[k].next)
        n++;
    if (!clb_vm_items(vm, v, &items))
        return false;
    if (items.n != n)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "%zu values for %zu names", items.n, n);
    for (uint32_t k = vm->t->node[target].a; k; k = vm->t->node[k].next)
        if (!assign(vm, k, &items.v[i++]))
            return false;
    return true;
}

static bool assign(struct clb_vm *vm, uint32_t target, const struct clb_value *v)
{
    const struct clb_node *n = &vm->t->node[target];
    struct clb_value key = { .kind = CLB_V_STRING };

    vm->at = n->at;
    if (n->kind == CLB_N_NAME)
        return clb_vm_set(vm, n->a, v);
    if (n->kind == CLB_N_TUPLE)
        return unpack(vm, target, v);
    struct clb_value *of = lookup(vm, n->a);
    key.u.s = &vm->t->symbol[n->b];
    if (!of || of->kind != CLB_V_NAMESPACE)
        return clb_vm_fail(vm, CLB_BAD_INPUT, "cannot assign an attribute of what is no namespace");
    if (key.u.s->p[0] == '_')
        return clb_vm_fail(vm, CLB_BAD_INPUT, "a namespace has no names that begin with '_'");
    return clb_vm_charge(vm, of->u.dict->n / 8) &&
           clb_vm_got(vm, clb_dict_set(&vm->arena, of->u.dict, &key, v));
}

/* -- blocks ------------------------------------------------------------------------------------ */

/* The text of a body, in a scope of its own. */
static bool capture(struct clb_vm *vm, uint32_t body, struct clb_value *out)
{
    struct clb_out b = { .arena = &vm->arena }, *before = vm->out;
    struct clb_scope *scope = vm->scope;

    vm->out = &b;
    bool ok = clb_vm_enter(vm) && clb_vm_run(vm, body);
    clb_vm_leave(vm, scope);
    vm->out = before;
    return ok && clb_vm_got(vm, clb_out_done(&b, out));
}

/* Which items of a loop pass its condition. */
static bool sift(struct clb_vm *vm, const struct clb_node *loop, uint32_t test,
                 struct clb_list *items)
{
    struct clb_list kept = { 0 };
    struct clb_value v;

    for (size_t i = 0; i < items->n; i++) {
        struct clb_scope *scope = vm->scope;
        bool ok = clb_vm_enter(vm) && assign(vm, loop->a, &items->v[i]) && clb_eval(vm, test, &v);
        clb_vm_leave(vm, scope);
        if (!ok ||
            (clb_truth(&v) && !clb_vm_got(vm, clb_list_push(&vm->arena, &kept, &items->v[i]))))
            return false;
    }
    *items = kept;
    return true;
}

/* *through: a body was run to its end (Jinja's `else` asks for that). */
static enum flow run_items(struct clb_vm *vm, const struct clb_node *n, struct clb_loop *loop,
                           bool *through)
{
    struct clb_value self = { .kind = CLB_V_LOOP, .u.loop = loop };
    uint32_t body = vm->t->node[n->c].b;
    enum flow flow = GO_ON;

    for (; loop->index0 < loop->over->n && flow != BREAK; loop->index0++) {
        struct clb_scope *scope = vm->scope;
        bool ok = clb_vm_enter(vm) && clb_vm_set(vm, CLB_SYMBOL_LOOP, &self) &&
                  assign(vm, n->a, &loop->over->v[loop->index0]);
        flow = ok ? run(vm, body) : FAILED;
        clb_vm_leave(vm, scope);
        if (flow == FAILED)
            return FAILED;
        *through |= flow == GO_ON;
    }
    return GO_ON;
}

static enum flow run_scope(struct clb_vm *vm, uint32_t body)
{
    struct clb_scope *scope = vm->scope;
    enum flow flow = clb_vm_enter(vm) ? run(vm, body) : FAILED;

    clb_vm_leave(vm, scope);
    return flow;
}

static enum flow run_for(struct clb_vm *vm, const struct clb_node *n)
{
    const struct clb_node *parts = &vm->t->node[n->c];
    struct clb_list *items = clb_arena_get(&vm->arena, sizeof *items);
    struct clb_loop *loop = clb_arena_get(&vm->arena, sizeof *loop);
    struct clb_value over;
    bool through = false;

    if (!items || !loop)
        return clb_vm_nomem(vm) ? GO_ON : FAILED;
    if (!clb_eval(vm, n->b, &over))
        return FAILED;
    vm->at = vm->t->node[n->b].at;
    if (!clb_vm_items(vm, &over, items) || (parts->a && !sift(vm, n, parts->a, items)))
        return FAILED;
    loop->over = items;
    enum flow flow = run_items(vm, n, loop, &through);
    return flow == GO_ON && !through ? run_scope(vm, parts->c) : flow;
}

static enum flow run_if(struct clb_vm *vm, const struct clb_node *n)
{
    struct clb_value v;

    for (uint32_t i = n->a; i; i = vm->t->node[i].next) {
        const struct clb_node *branch = &vm->t->node[i];
        if (branch->a && !clb_eval(vm, branch->a, &v))
            return FAILED;
        if (!branch->a || clb_truth(&v))
            return run(vm, branch->b);
    }
    return GO_ON;
}

static bool run_set_block(struct clb_vm *vm, const struct clb_node *n)
{
    struct clb_value v;

    return capture(vm, n->c, &v) && (!n->b || clb_eval_filters(vm, n->b, &v)) &&
           assign(vm, n->a, &v);
}

static bool run_filter_block(struct clb_vm *vm, const struct clb_node *n)
{
    struct clb_value v;

    return capture(vm, n->b, &v) && clb_eval_filters(vm, n->a, &v) && clb_print(vm, vm->out, &v);
}

static bool run_macro(struct clb_vm *vm, uint32_t node, struct clb_value *out)
{
    struct clb_macro *m = clb_arena_get(&vm->arena, sizeof *m);

    if (!m)
        return clb_vm_nomem(vm);
    *m = (struct clb_macro){ node, vm->scope };
    for (struct clb_scope *s = vm->scope; s && !s->kept; s = s->up)
        s->kept = true;
    *out = (struct clb_value){ .kind = CLB_V_MACRO, .u.macro = m };
    return true;
}

static bool run_call_block(struct clb_vm *vm, uint32_t node)
{
    struct clb_value caller, v;

    return run_macro(vm, node, &caller) && clb_eval_call(vm, vm->t->node[node].a, &caller, &v) &&
           clb_print(vm, vm->out, &v);
}

/* The values are of the scope around. */
static enum flow run_with(struct clb_vm *vm, const struct clb_node *n)
{
    struct clb_scope *outer = vm->scope, *inner;
    struct clb_value v;

    if (!clb_vm_enter(vm))
        return FAILED;
    inner = vm->scope;
    for (uint32_t i = n->a; i; i = vm->t->node[i].next) {
        vm->scope = outer;
        bool ok = clb_eval(vm, vm->t->node[i].b, &v);
        vm->scope = inner;
        if (!ok || !assign(vm, vm->t->node[i].a, &v))
            return FAILED;
    }
    enum flow flow = run(vm, n->b);
    clb_vm_leave(vm, outer);
    return flow;
}

static bool run_output(struct clb_vm *vm, const struct clb_node *n)
{
    struct clb_value v;

    return clb_eval(vm, n->a, &v) && clb_print(vm, vm->out, &v) && clb_vm_got(vm, !vm->out->failed);
}

static enum flow step(struct clb_vm *vm, uint32_t node)
{
    const struct clb_node *n = &vm->t->node[node];
    struct clb_value v;
    bool ok = true;

    vm->at = n->at;
    switch (n->kind) {
    case CLB_N_TEXT:
        clb_out_string(vm->out, &vm->t->string[n->a]);
        ok = clb_vm_got(vm, !vm->out->failed);
        break;
    case CLB_N_OUTPUT:
        ok = run_output(vm, n);
        break;
    case CLB_N_IF:
        return run_if(vm, n);
    case CLB_N_FOR:
        return run_for(vm, n);
    case CLB_N_SET:
        ok = clb_eval(vm, n->b, &v) && assign(vm, n->a, &v);
        break;
    case CLB_N_SET_BLOCK:
        ok = run_set_block(vm, n);
        break;
    case CLB_N_MACRO:
        ok = run_macro(vm, node, &v) && clb_vm_set(vm, n->a, &v);
        break;
    case CLB_N_CALL_BLOCK:
        ok = run_call_block(vm, node);
        break;
    case CLB_N_FILTER_BLOCK:
        ok = run_filter_block(vm, n);
        break;
    case CLB_N_WITH:
        return run_with(vm, n);
    case CLB_N_SCOPE:
        return run_scope(vm, n->a);
    default:
        return n->kind == CLB_N_BREAK ? BREAK : CONTINUE;
    }
    return ok ? GO_ON : FAILED;
}

static enum flow run(struct clb_vm *vm, uint32_t first)
{
    enum flow flow = clb_vm_deeper(vm) ? GO_ON : FAILED;

    for (uint32_t i = first; i && flow == GO_ON; i = vm->t->node[i].next)
        flow = clb_vm_charge(vm, 1) ? step(vm, i) : FAILED;
    vm->depth--;
    return flow;
}

bool clb_vm_run(struct clb_vm *vm, uint32_t body)
{
    return run(vm, body) != FAILED;
}
