#include "lib/chat/value.h"

#include <stdarg.h>
#include <stdio.h>

#include "lib/base/mem.h"

const uint8_t clb_of_template[1] = { 1 };

/* -- memory ------------------------------------------------------------------------------------ */

struct clb_chunk {
    struct clb_chunk *before;
    size_t pad;
};
enum { CHUNK = 1 << 16, ALIGN = 16 };

void *clb_arena_get(struct clb_arena *a, size_t n)
{
    if (n > SIZE_MAX / 2 || a->used + n > a->limit)
        return NULL;
    n = (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    a->used += n;
    if (n > a->left) {
        struct clb_err err;
        size_t room = n > CHUNK / 4 ? n : CHUNK;
        struct clb_chunk *c = clb_new(1, sizeof *c + room, &err);

        if (!c)
            return NULL;
        if (room == n && a->chunk) { /* behind the chunk in use, which goes on */
            c->before = a->chunk->before;
            a->chunk->before = c;
            return c + 1;
        }
        c->before = a->chunk;
        a->chunk = c;
        c->pad = room;
        a->left = room;
    }
    char *p = (char *)(a->chunk + 1) + a->chunk->pad - a->left;
    a->left -= n;
    return p;
}

void clb_arena_free(struct clb_arena *a)
{
    while (a->chunk) {
        struct clb_chunk *before = a->chunk->before;
        clb_free(a->chunk);
        a->chunk = before;
    }
    a->left = 0;
}

/* -- text -------------------------------------------------------------------------------------- */

/* Text and marks are one block, the marks behind the text. */
static bool reserve(struct clb_out *b, size_t more)
{
    if (b->failed)
        return false;
    if (b->room - b->n >= more)
        return true;
    size_t room = b->room ? b->room * 2 : 128;
    room = room - b->n < more ? b->n + more : room;
    char *p = clb_arena_get(b->arena, room * 2);
    if (!p) {
        b->failed = true;
        return false;
    }
    if (b->n > 0) {
        memcpy(p, b->p, b->n);
        memcpy(p + room, b->mark, b->n);
    }
    b->p = p;
    b->mark = (uint8_t *)p + room;
    b->room = room;
    return true;
}

void clb_out_add(struct clb_out *b, const char *p, size_t n, const uint8_t *mark)
{
    if (n == 0 || !reserve(b, n))
        return;
    memcpy(b->p + b->n, p, n);
    if (!mark || mark == clb_of_template)
        memset(b->mark + b->n, mark != NULL, n);
    else
        memcpy(b->mark + b->n, mark, n);
    b->n += n;
}

void clb_out_string(struct clb_out *b, const struct clb_string *s)
{
    clb_out_add(b, s->p, s->n, s->mark);
}

void clb_out_part(struct clb_out *b, const struct clb_string *s, size_t at, size_t n)
{
    clb_out_add(b, s->p + at, n, clb_mark_at(s->mark, at));
}

void clb_out_puts(struct clb_out *b, const char *s)
{
    clb_out_add(b, s, strlen(s), clb_of_template);
}

void clb_out_printf(struct clb_out *b, const char *fmt, ...)
{
    char s[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(s, sizeof s, fmt, ap);
    va_end(ap);
    clb_out_puts(b, s);
}

bool clb_string_make(struct clb_arena *a, struct clb_value *out, const char *p, size_t n,
                     const uint8_t *mark)
{
    struct clb_string *s = clb_arena_get(a, sizeof *s);

    if (!s)
        return false;
    *s = (struct clb_string){ p, mark, n };
    *out = (struct clb_value){ .kind = CLB_V_STRING, .u.s = s };
    return true;
}

bool clb_string_part(struct clb_arena *a, struct clb_value *out, const struct clb_string *s,
                     size_t at, size_t n)
{
    return clb_string_make(a, out, s->p + at, n, clb_mark_at(s->mark, at));
}

bool clb_out_done(struct clb_out *b, struct clb_value *out)
{
    return !b->failed && clb_string_make(b->arena, out, b->n ? b->p : "", b->n, b->mark);
}

/* -- lists and dicts --------------------------------------------------------------------------- */

bool clb_list_make(struct clb_arena *a, struct clb_value *out, enum clb_kind kind, size_t room)
{
    struct clb_list *l = clb_arena_get(a, sizeof *l);

    if (!l || (room && !(l->v = clb_arena_get(a, room * sizeof *l->v))))
        return false;
    l->room = room;
    *out = (struct clb_value){ .kind = (uint8_t)kind, .u.list = l };
    return true;
}

bool clb_list_push(struct clb_arena *a, struct clb_list *l, const struct clb_value *v)
{
    if (l->n == l->room) {
        size_t room = l->room ? l->room * 2 : 8;
        struct clb_value *more = clb_arena_get(a, room * sizeof *more);

        if (!more)
            return false;
        if (l->n)
            memcpy(more, l->v, l->n * sizeof *more);
        l->v = more;
        l->room = room;
    }
    l->v[l->n++] = *v;
    return true;
}

bool clb_iter_make(struct clb_arena *a, struct clb_value *out, const char *label)
{
    struct clb_iter *i = clb_arena_get(a, sizeof *i);

    if (!i)
        return false;
    i->label = label;
    *out = (struct clb_value){ .kind = CLB_V_ITER, .u.iter = i };
    return true;
}

bool clb_dict_make(struct clb_arena *a, struct clb_value *out, enum clb_kind kind)
{
    struct clb_dict *d = clb_arena_get(a, sizeof *d);

    *out = (struct clb_value){ .kind = (uint8_t)kind, .u.dict = d };
    return d != NULL;
}

bool clb_dict_push(struct clb_arena *a, struct clb_dict *d, const struct clb_value *key,
                   const struct clb_value *value)
{
    if (d->n == d->room) {
        size_t room = d->room ? d->room * 2 : 8;
        struct clb_pair *more = clb_arena_get(a, room * sizeof *more);

        if (!more)
            return false;
        if (d->n)
            memcpy(more, d->pair, d->n * sizeof *more);
        d->pair = more;
        d->room = room;
    }
    d->pair[d->n++] = (struct clb_pair){ *key, *value };
    return true;
}

struct clb_value *clb_dict_find(const struct clb_dict *d, struct clb_str key)
{
    for (size_t i = 0; i < d->n; i++) {
        const struct clb_value *k = &d->pair[i].key;

        if (k->kind == CLB_V_STRING && clb_str_eq(clb_view(k->u.s), key))
            return &d->pair[i].value;
    }
    return NULL;
}

bool clb_dict_set(struct clb_arena *a, struct clb_dict *d, const struct clb_value *key,
                  const struct clb_value *value)
{
    struct clb_value *old = clb_dict_find(d, clb_view(key->u.s));

    if (!old)
        return clb_dict_push(a, d, key, value);
    *old = *value;
    return true;
}
