/* vm.h - one rendering: what its files share. Functions that return bool fail with vm->err filled;
 * the message names the place in the template that is at work (vm->at). */
#ifndef CLB_CHAT_VM_H
#define CLB_CHAT_VM_H

#include "lib/base/err.h"
#include "lib/chat/builtin.h"
#include "lib/chat/tree.h"

/* Statements, expressions and values within each other; with it the stack stays below 64 KB. */
enum { CLB_VM_DEPTH = 100 };

/* A date and a time of day, as strftime_now shows them. */
struct clb_moment {
    int year, month, day, hour, minute, second; /* month and day from 1 */
    int microsecond;
    bool known;
};

struct clb_binding {
    uint32_t symbol;
    struct clb_value value;
};
/* Names: those of a scope, then those of the scopes around it. */
struct clb_scope {
    struct clb_scope *up;
    struct clb_binding *name;
    uint32_t n, room;
    bool kept; /* a macro was written in it: it may be asked later */
};

struct clb_macro {
    uint32_t node;           /* MACRO or CALL_BLOCK */
    struct clb_scope *scope; /* where it was written */
};

/* The variable `loop`. */
struct clb_loop {
    const struct clb_list *over;
    size_t index0;
    struct clb_value changed; /* what `changed` was given last; CLB_V_ABSENT: nothing */
};

struct clb_vm {
    const struct clb_template *t;
    struct clb_arena arena;
    struct clb_scope *scope, *spare; /* spare: left, to be entered again */
    struct clb_out *out;
    uint64_t steps; /* that may still be taken */
    unsigned depth;
    uint32_t at;
    struct clb_moment now;
    struct clb_text *raised;
    struct clb_err *err;
};

/* -- errors and limits ------------------------------------------------------------------------- */

bool clb_vm_fail(struct clb_vm *vm, enum clb_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool clb_vm_nomem(struct clb_vm *vm);
bool clb_vm_charge(struct clb_vm *vm, uint64_t steps);
/* One level down; vm->depth-- afterwards. */
bool clb_vm_deeper(struct clb_vm *vm);
/* "'x' is undefined" and the like. */
bool clb_vm_undefined(struct clb_vm *vm, const struct clb_value *v);
const char *clb_type_name(const struct clb_value *v); /* as Python calls it */
/* True: not NULL, or says that there is no memory. */
static inline bool clb_vm_got(struct clb_vm *vm, bool made)
{
    return made || clb_vm_nomem(vm);
}

/* -- eval.c, access.c, exec.c, call.c ---------------------------------------------------------- */

bool clb_eval(struct clb_vm *vm, uint32_t node, struct clb_value *out);
bool clb_vm_run(struct clb_vm *vm, uint32_t body); /* statements, to vm->out */
bool clb_vm_set(struct clb_vm *vm, uint32_t symbol, const struct clb_value *v);
bool clb_vm_enter(struct clb_vm *vm); /* a new scope */
/* Leaves the innermost one, if it is not `scope`, which is at work afterwards. */
void clb_vm_leave(struct clb_vm *vm, struct clb_scope *scope);
/* One filter or test, applied to *v; all filters of a block. */
bool clb_eval_filter(struct clb_vm *vm, uint32_t node, struct clb_value *v);
bool clb_eval_filters(struct clb_vm *vm, uint32_t node, struct clb_value *v);
bool clb_eval_call(struct clb_vm *vm, uint32_t node, const struct clb_value *caller,
                   struct clb_value *out);
bool clb_math(struct clb_vm *vm, enum clb_op op, const struct clb_value *a,
              const struct clb_value *b, struct clb_value *out);

/* obj.name and obj[key], as Jinja looks them up. What is not there is undefined. */
bool clb_vm_attr(struct clb_vm *vm, const struct clb_value *of, struct clb_str name,
                 struct clb_value *out);
bool clb_vm_item(struct clb_vm *vm, const struct clb_value *of, const struct clb_value *key,
                 struct clb_value *out);
/* of[start:stop:step]; absent bounds are CLB_V_ABSENT or none. */
bool clb_vm_slice(struct clb_vm *vm, const struct clb_value *of, const struct clb_value bound[3],
                  struct clb_value *out);
/* What iterating gives, in a list that is not to be changed. Uses up a generator. */
bool clb_vm_items(struct clb_vm *vm, const struct clb_value *of, struct clb_list *out);
/* Python's len(). */
bool clb_vm_length(struct clb_vm *vm, const struct clb_value *v, size_t *n);

bool clb_vm_call(struct clb_vm *vm, const struct clb_value *what, const struct clb_call *c,
                 struct clb_value *out);
bool clb_vm_apply(struct clb_vm *vm, const struct clb_builtin *f, const struct clb_value *self,
                  const struct clb_call *c, struct clb_value *out);

/* -- order.c ----------------------------------------------------------------------------------- */

bool clb_truth(const struct clb_value *v);
bool clb_equal(struct clb_vm *vm, const struct clb_value *a, const struct clb_value *b,
               bool *equal);
/* *order: below, at or above 0. Fails for what Python cannot order. */
bool clb_order(struct clb_vm *vm, const struct clb_value *a, const struct clb_value *b, int *order);
bool clb_contains(struct clb_vm *vm, const struct clb_value *in, const struct clb_value *item,
                  bool *found);
/* The value of a key; NULL: none. Fails for keys that cannot be hashed. */
bool clb_dict_get(struct clb_vm *vm, const struct clb_dict *d, const struct clb_value *key,
                  struct clb_value **value);
bool clb_want_hashable(struct clb_vm *vm, const struct clb_value *v);
/* Sorts in place, keeping the order of equals; keys[i] belongs to v[i]. */
bool clb_vm_sort(struct clb_vm *vm, struct clb_value *keys, struct clb_value *v, size_t n,
                 bool reverse);

/* -- print.c ----------------------------------------------------------------------------------- */

/* Appends str(v) and repr(v). */
bool clb_print(struct clb_vm *vm, struct clb_out *b, const struct clb_value *v);
bool clb_repr(struct clb_vm *vm, struct clb_out *b, const struct clb_value *v);
/* v as a string: itself if it is one. */
bool clb_as_string(struct clb_vm *vm, const struct clb_value *v, struct clb_value *out);
struct clb_json_style {
    struct clb_str indent, item, key; /* indent.p NULL: all on one line */
    bool ascii, sort;
};
bool clb_print_json(struct clb_vm *vm, struct clb_out *b, const struct clb_value *v,
                    const struct clb_json_style *style, unsigned depth);
bool clb_strftime(struct clb_vm *vm, struct clb_out *b, const struct clb_string *format);
/* format % arguments; format.format(arguments) */
bool clb_percent(struct clb_vm *vm, const struct clb_string *format, const struct clb_value *args,
                 size_t n, const struct clb_dict *named, struct clb_value *out);
bool clb_braces(struct clb_vm *vm, const struct clb_string *format, const struct clb_call *c,
                struct clb_value *out);

/* -- for the builtins -------------------------------------------------------------------------- */

/* Arguments with a type; absent ones leave *x alone. */
bool clb_want_int(struct clb_vm *vm, const struct clb_value *v, const char *what, int64_t *x);
bool clb_want_bool(struct clb_vm *vm, const struct clb_value *v, bool *x);
bool clb_want_string(struct clb_vm *vm, const struct clb_value *v, const char *what,
                     const struct clb_string **s);
/* "a.b.0" of a value: what the filters' attribute= means. */
bool clb_vm_path(struct clb_vm *vm, const struct clb_value *of, const struct clb_value *path,
                 struct clb_value *out);
/* Code points. */
size_t clb_count_chars(const char *s, size_t n);
size_t clb_skip_chars(const char *s, size_t n, size_t chars); /* bytes of that many */
/* Case; letters beyond ASCII that have one are refused. */
enum clb_case {
    CLB_LOWER,
    CLB_UPPER,
    CLB_CAPITAL, /* the first character only */
    CLB_TITLE,   /* of every run of letters, as str.title has it */
    CLB_WORDS,   /* behind white space, '-' and opening brackets, as the filter has it */
};
bool clb_recase(struct clb_vm *vm, const struct clb_string *s, enum clb_case how,
                struct clb_value *out);
/* Without the given characters (NULL: white space) on either side. */
bool clb_trim(struct clb_vm *vm, const struct clb_string *s, const struct clb_string *chars,
              bool left, bool right, struct clb_value *out);
bool clb_replace(struct clb_vm *vm, const struct clb_string *s, const struct clb_string *old,
                 const struct clb_string *with, int64_t most, struct clb_value *out);
bool clb_escape_html(struct clb_vm *vm, const struct clb_value *v, struct clb_value *out);
bool clb_split_lines(struct clb_vm *vm, const struct clb_string *s, bool keep,
                     struct clb_value *out);

#endif
