/* A conversation as JSON becomes the variables of a template, and the template its text. */
#include <string.h>
#include <time.h>

#include "lib/base/json.h"
#include "lib/chat/number.h"
#include "lib/chat/template.h"
#include "lib/chat/vm.h"

/* What a rendering may cost: a fixed part, and one by the length of template and conversation. */
#define STEPS  20000000u
#define MEMORY (128u << 20)
enum { STEPS_PER_BYTE = 64, MEMORY_PER_BYTE = 64 };

/* -- JSON to values ---------------------------------------------------------------------------- */

/* A role is part of special tokens in some templates ('<|' + role + '|>'), so the usual ones count
 * as the template's. */
static bool usual_role(struct clb_str s)
{
    static const char *const role[] = { "system",    "user",        "assistant",    "tool",
                                        "developer", "model",       "function",     "ipython",
                                        "context",   "observation", "tool_response" };

    for (size_t i = 0; i < sizeof role / sizeof *role; i++)
        if (clb_str_is(s, role[i]))
            return true;
    return false;
}

struct reader {
    struct clb_json j;
    struct clb_vm *vm;
    bool trusted; /* texts count as the template's */
};

static void no_memory(struct reader *r)
{
    clb_json_fail(&r->j, "the values need too much memory");
}

static bool copy_string(struct reader *r, struct clb_str s, bool trusted, struct clb_value *out)
{
    char *p = clb_arena_get(&r->vm->arena, s.n);

    if (!p || !clb_string_make(&r->vm->arena, out, p, s.n, trusted ? clb_of_template : NULL)) {
        no_memory(r);
        return false;
    }
    if (s.n)
        memcpy(p, s.p, s.n);
    return true;
}

static bool read_value(struct reader *r, struct clb_value *out, bool role);

static void read_number(struct reader *r, struct clb_value *out)
{
    struct clb_str raw;

    if (!clb_json_skip(&r->j, &raw))
        return;
    bool real = memchr(raw.p, '.', raw.n) || memchr(raw.p, 'e', raw.n) || memchr(raw.p, 'E', raw.n);
    if (real) {
        *out = clb_v_float(clb_number_read(raw.p, raw.n));
        if (raw.n > 1000)
            clb_json_fail(&r->j, "a number of %zu digits", raw.n);
    } else {
        *out = clb_v_int(0);
        if (!clb_integer_read(raw.p, raw.n, &out->u.i))
            clb_json_fail(&r->j, "an integer beyond 64 bits");
    }
}

static void read_array(struct reader *r, struct clb_value *out)
{
    struct clb_value v;

    if (!clb_list_make(&r->vm->arena, out, CLB_V_LIST, 0)) {
        no_memory(r);
        return;
    }
    clb_json_array(&r->j);
    while (clb_json_item(&r->j))
        if (read_value(r, &v, false) && !clb_list_push(&r->vm->arena, out->u.list, &v))
            no_memory(r);
}

static void read_object(struct reader *r, struct clb_value *out)
{
    struct clb_value key, v;
    struct clb_str name;

    if (!clb_dict_make(&r->vm->arena, out, CLB_V_DICT)) {
        no_memory(r);
        return;
    }
    clb_json_object(&r->j);
    while (clb_json_key(&r->j, &name))
        if (copy_string(r, name, r->trusted, &key) &&
            read_value(r, &v, clb_str_is(clb_view(key.u.s), "role")) &&
            !clb_dict_push(&r->vm->arena, out->u.dict, &key, &v))
            no_memory(r);
}

/* `role`: of a member of that name. */
static bool read_value(struct reader *r, struct clb_value *out, bool role)
{
    struct clb_str s;

    switch (clb_json_peek(&r->j)) {
    case CLB_JSON_NULL:
        clb_json_null(&r->j);
        *out = clb_v_none();
        break;
    case CLB_JSON_BOOL:
        *out = clb_v_bool(clb_json_bool(&r->j));
        break;
    case CLB_JSON_NUMBER:
        read_number(r, out);
        break;
    case CLB_JSON_STRING:
        s = clb_json_string(&r->j);
        copy_string(r, s, r->trusted || (role && usual_role(s)), out);
        break;
    case CLB_JSON_ARRAY:
        read_array(r, out);
        break;
    case CLB_JSON_OBJECT:
        read_object(r, out);
        break;
    default:
        break;
    }
    return clb_json_ok(&r->j);
}

/* -- the request ------------------------------------------------------------------------------- */

static bool is_set(const struct clb_scope *s, uint32_t symbol)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->name[i].symbol == symbol)
            return true;
    return false;
}

/* What the template brings along does not replace what the request says. */
static bool set_name(struct reader *r, struct clb_str name, const struct clb_value *v)
{
    /* Names that the template does not mention need no symbol, and the template is shared. */
    const struct clb_template *t = r->vm->t;

    for (uint32_t i = 0; i < t->n_symbol; i++)
        if (clb_str_eq(clb_view(&t->symbol[i]), name))
            return (r->trusted && is_set(r->vm->scope, i)) || clb_vm_set(r->vm, i, v);
    return true;
}

static void set(struct reader *r, const char *name, const struct clb_value *v)
{
    if (!set_name(r, clb_str(name), v))
        no_memory(r);
}

/* An object whose members become variables. */
static void read_variables(struct reader *r, bool trusted)
{
    struct clb_str key;
    struct clb_value name, v;

    r->trusted = trusted;
    clb_json_object(&r->j);
    while (clb_json_key(&r->j, &key))
        if (copy_string(r, key, false, &name) && read_value(r, &v, false) &&
            !set_name(r, clb_view(name.u.s), &v))
            no_memory(r);
    r->trusted = false;
}

/* "2025-06-15T12:30:45" */
static void read_now(struct reader *r)
{
    struct clb_str s = clb_json_string(&r->j);
    static const struct {
        uint8_t at, n;
        int lo, hi;
    } part[] = { { 0, 4, 1, 9999 }, { 5, 2, 1, 12 },  { 8, 2, 1, 31 },
                 { 11, 2, 0, 23 },  { 14, 2, 0, 59 }, { 17, 2, 0, 59 } };
    struct clb_moment *now = &r->vm->now;
    int *to[] = { &now->year, &now->month, &now->day, &now->hour, &now->minute, &now->second };

    for (int i = 0; i < 6; i++) {
        int64_t x = -1;
        if (s.n < 19 || !clb_integer_read(s.p + part[i].at, part[i].n, &x) || x < part[i].lo ||
            x > part[i].hi) {
            clb_json_fail(&r->j, "is not a time like 2025-06-15T12:30:45");
            return;
        }
        *to[i] = (int)x;
    }
    now->known = true;
}

/* As transformers does: members that are null are dropped, and what a message reasons about is
 * found under `reasoning_content` and `thinking`, whichever of three names it came by. */
static bool normalise(struct clb_vm *vm, struct clb_value *message)
{
    static const char *const field[] = { "reasoning_content", "thinking", "reasoning" };
    const struct clb_dict *d = message->u.dict;
    const struct clb_value *reasoning = NULL, *own;
    struct clb_value name, to;

    if (!clb_dict_make(&vm->arena, &to, CLB_V_DICT))
        return false;
    for (int i = 0; i < 3 && !reasoning; i++) {
        reasoning = clb_dict_find(d, clb_str(field[i]));
        reasoning = reasoning && reasoning->kind == CLB_V_NONE ? NULL : reasoning;
    }
    own = clb_dict_find(d, clb_str("thinking"));
    own = !own || own->kind == CLB_V_NONE ? reasoning : own;
    if (reasoning && (!clb_string_make(&vm->arena, &name, "thinking", 8, NULL) ||
                      !clb_dict_push(&vm->arena, to.u.dict, &name, own)))
        return false;
    for (size_t i = 0; i < d->n; i++)
        if (d->pair[i].value.kind != CLB_V_NONE && !clb_v_is(&d->pair[i].key, "thinking") &&
            !clb_dict_push(&vm->arena, to.u.dict, &d->pair[i].key, &d->pair[i].value))
            return false;
    *message = to;
    return !reasoning || (clb_string_make(&vm->arena, &name, "reasoning_content", 17, NULL) &&
                          clb_dict_set(&vm->arena, to.u.dict, &name, reasoning));
}

static void take_messages(struct reader *r, struct clb_value *messages)
{
    struct clb_list *l = messages->kind == CLB_V_LIST ? messages->u.list : NULL;

    for (size_t i = 0; l && i < l->n && clb_json_ok(&r->j); i++) {
        if (l->v[i].kind != CLB_V_DICT)
            clb_json_fail(&r->j, "message %zu is not an object", i + 1);
        else if (!normalise(r->vm, &l->v[i]))
            no_memory(r);
    }
}

/* Conversations of users: messages with a role each. */
static void check_messages(struct reader *r, const struct clb_value *messages)
{
    if (messages->kind != CLB_V_LIST || messages->u.list->n == 0) {
        clb_json_fail(&r->j, "must be an array of at least one message");
        return;
    }
    for (size_t i = 0; i < messages->u.list->n; i++) {
        const struct clb_dict *m = messages->u.list->v[i].u.dict;
        const struct clb_value *role = clb_dict_find(m, clb_str("role"));
        if (!role || role->kind != CLB_V_STRING) {
            clb_json_fail(&r->j, "message %zu %s", i + 1,
                          role ? "has a 'role' that is not a text" : "has no 'role'");
            return;
        }
    }
}

static void read_member(struct reader *r, struct clb_str key, bool lenient, bool *has_messages)
{
    static const char *const plain[] = { "messages", "tools", "documents",
                                         "add_generation_prompt" };
    struct clb_value v;

    for (int i = 0; i < 4; i++)
        if (clb_str_is(key, plain[i])) {
            if (!read_value(r, &v, false))
                return;
            *has_messages |= i == 0;
            if (i == 0)
                take_messages(r, &v);
            if (i == 0 && !lenient && clb_json_ok(&r->j))
                check_messages(r, &v);
            set(r, plain[i], &v);
            return;
        }
    if (clb_str_is(key, "chat_template_kwargs") || clb_str_is(key, "kwargs"))
        read_variables(r, false);
    else if (lenient && clb_str_is(key, "vars"))
        read_variables(r, true);
    else if (lenient && clb_str_is(key, "now"))
        read_now(r);
    else if (lenient)
        clb_json_skip(&r->j, NULL);
    else
        clb_json_fail(&r->j, "is not known; known are messages, tools, documents, "
                             "add_generation_prompt and chat_template_kwargs");
}

static bool read_request(struct clb_vm *vm, const struct clb_render_request *q, struct clb_err *err)
{
    struct reader r = { .vm = vm };
    struct clb_value none = clb_v_none(), yes = clb_v_bool(true);
    bool has_messages = false;
    struct clb_str key;

    if (q->vars.n) {
        clb_json_open(&r.j, q->vars.p, q->vars.n, "variables of the chat template");
        read_variables(&r, true);
        if (!clb_json_close(&r.j, err))
            return false;
    }
    clb_json_open(&r.j, q->json.p, q->json.n, q->json_name);
    set(&r, "tools", &none);
    set(&r, "documents", &none);
    set(&r, "add_generation_prompt", &yes);
    clb_json_object(&r.j);
    while (clb_json_key(&r.j, &key))
        read_member(&r, key, q->lenient, &has_messages);
    if (!clb_json_close(&r.j, err))
        return false;
    return has_messages || clb_fail(err, CLB_BAD_INPUT, "%s: 'messages' is missing", q->json_name);
}

static void set_now(struct clb_moment *now)
{
    time_t t = time(NULL);
    struct tm tm;

    if (now->known || !localtime_r(&t, &tm))
        return;
    *now = (struct clb_moment){ tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour,
                                tm.tm_min,         tm.tm_sec,     0,          true };
}

/* -- the whole --------------------------------------------------------------------------------- */

bool clb_template_render(const struct clb_template *t, const struct clb_render_request *q,
                         struct clb_rendered *out, struct clb_err *err)
{
    uint64_t bytes = (uint64_t)q->json.n + q->vars.n + t->source.n;
    struct clb_vm vm = {
        .t = t,
        .arena = { .limit = MEMORY + MEMORY_PER_BYTE * bytes },
        .steps = STEPS + STEPS_PER_BYTE * bytes,
        .now = { 1970, 1, 1, 0, 0, 0, 0, false },
        .raised = &out->raised,
        .err = err,
    };
    struct clb_out b = { .arena = &vm.arena };

    *out = (struct clb_rendered){ 0 };
    vm.out = &b;
    bool ok = clb_vm_enter(&vm) && read_request(&vm, q, err);
    if (ok) {
        set_now(&vm.now);
        ok = clb_vm_run(&vm, t->body) && clb_vm_got(&vm, !b.failed);
    }
    if (ok) {
        clb_text_add(&out->text, b.p, b.n);
        clb_text_add(&out->origin, b.mark, b.n);
        if (out->text.failed || out->origin.failed)
            ok = clb_fail_nomem(err, b.n);
    }
    if (!ok && out->raised.failed)
        clb_text_clear(&out->raised);
    clb_arena_free(&vm.arena);
    return ok;
}

void clb_rendered_free(struct clb_rendered *r)
{
    clb_text_free(&r->text);
    clb_text_free(&r->origin);
    clb_text_free(&r->raised);
}
