/* value.h - the values of a template, in the memory of one rendering.
 *
 * They are Python's as far as a template can tell: integers are exact or refused (64 bits), text is
 * UTF-8 counted in code points, dicts keep their order. All memory comes from an arena that is
 * freed as a whole; it has a limit. */
#ifndef CLB_CHAT_VALUE_H
#define CLB_CHAT_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/str.h"

enum clb_kind {
    CLB_V_ABSENT, /* no value at all: an argument that was not given */
    CLB_V_UNDEFINED,
    CLB_V_NONE,
    CLB_V_BOOL,
    CLB_V_INT,
    CLB_V_FLOAT,
    CLB_V_STRING,
    CLB_V_LIST,
    CLB_V_TUPLE,
    CLB_V_DICT,
    CLB_V_ITER, /* a generator, a view of a dict, or a range */
    CLB_V_NAMESPACE,
    CLB_V_LOOP,
    CLB_V_MACRO,
    CLB_V_FUNCTION,
    CLB_V_METHOD,
};

/* Text and where it comes from. mark: NULL: all of it from a value; clb_of_template: all of it from
 * the template; else a byte for each of p, 1: from the template. */
struct clb_string {
    const char *p;
    const uint8_t *mark;
    size_t n;
};
extern const uint8_t clb_of_template[1];

struct clb_value {
    uint8_t kind;
    bool safe; /* of a string: the filter `safe` was applied, `+` escapes what it meets */
    union {
        bool b;
        int64_t i;
        double f;
        const struct clb_string *s;
        struct clb_list *list;
        struct clb_dict *dict; /* of a namespace too */
        struct clb_iter *iter;
        struct clb_loop *loop;
        const struct clb_macro *macro;
        const struct clb_builtin *function;
        const struct clb_method *method;
        const struct clb_undefined *undefined;
    } u;
};

struct clb_list {
    struct clb_value *v;
    size_t n, room;
};
struct clb_pair {
    struct clb_value key, value;
};
struct clb_dict {
    struct clb_pair *pair;
    size_t n, room;
};
struct clb_iter {
    struct clb_list list;
    size_t at;         /* of a generator: what was taken already */
    const char *label; /* "dict_items", "range"; NULL: a generator */
};
struct clb_undefined {
    uint8_t of; /* kind of the value that lacks it; CLB_V_ABSENT: a name */
    struct clb_str name;
};
struct clb_method {
    struct clb_value self;
    const struct clb_builtin *f;
};

/* -- memory ------------------------------------------------------------------------------------ */

struct clb_arena {
    struct clb_chunk *chunk;
    size_t left; /* bytes in it */
    uint64_t used, limit;
};
/* Zeroed; NULL: the limit is reached, or there is no memory. */
void *clb_arena_get(struct clb_arena *a, size_t n);
void clb_arena_free(struct clb_arena *a);

/* -- text in the making ------------------------------------------------------------------------ */

struct clb_out {
    struct clb_arena *arena;
    char *p;
    uint8_t *mark;
    size_t n, room;
    bool failed; /* no memory */
};
void clb_out_add(struct clb_out *b, const char *p, size_t n, const uint8_t *mark);
void clb_out_string(struct clb_out *b, const struct clb_string *s);
/* n bytes of s from byte `at`. */
void clb_out_part(struct clb_out *b, const struct clb_string *s, size_t at, size_t n);
/* Text of ours (numbers, brackets): of the template. */
void clb_out_puts(struct clb_out *b, const char *s);
void clb_out_printf(struct clb_out *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* -- making values; all false without memory --------------------------------------------------- */

bool clb_string_make(struct clb_arena *a, struct clb_value *out, const char *p, size_t n,
                     const uint8_t *mark); /* not copied */
bool clb_string_part(struct clb_arena *a, struct clb_value *out, const struct clb_string *s,
                     size_t at, size_t n);
bool clb_out_done(struct clb_out *b, struct clb_value *out);
bool clb_list_make(struct clb_arena *a, struct clb_value *out, enum clb_kind kind, size_t room);
bool clb_list_push(struct clb_arena *a, struct clb_list *l, const struct clb_value *v);
bool clb_iter_make(struct clb_arena *a, struct clb_value *out, const char *label);
bool clb_dict_make(struct clb_arena *a, struct clb_value *out, enum clb_kind kind);
bool clb_dict_push(struct clb_arena *a, struct clb_dict *d, const struct clb_value *key,
                   const struct clb_value *value); /* the key is not looked for */
/* The value of a text key; NULL: none. */
struct clb_value *clb_dict_find(const struct clb_dict *d, struct clb_str key);
bool clb_dict_set(struct clb_arena *a, struct clb_dict *d, const struct clb_value *key,
                  const struct clb_value *value); /* key: a string */

static inline struct clb_value clb_v_none(void)
{
    return (struct clb_value){ .kind = CLB_V_NONE };
}
static inline struct clb_value clb_v_bool(bool b)
{
    return (struct clb_value){ .kind = CLB_V_BOOL, .u.b = b };
}
static inline struct clb_value clb_v_int(int64_t i)
{
    return (struct clb_value){ .kind = CLB_V_INT, .u.i = i };
}
static inline struct clb_value clb_v_float(double f)
{
    return (struct clb_value){ .kind = CLB_V_FLOAT, .u.f = f };
}
static inline struct clb_str clb_view(const struct clb_string *s)
{
    return (struct clb_str){ s->p, s->n };
}
static inline bool clb_v_is(const struct clb_value *v, const char *text)
{
    return v->kind == CLB_V_STRING && clb_str_is(clb_view(v->u.s), text);
}
/* Mark of the bytes from `at` on. */
static inline const uint8_t *clb_mark_at(const uint8_t *mark, size_t at)
{
    return mark && mark != clb_of_template ? mark + at : mark;
}

#endif
