#include "lib/chat/tree.h"

#include "lib/base/mem.h"
#include "lib/chat/template.h"

/* Room for one more of *n. */
static bool more(void *list, uint32_t n, uint32_t *room, size_t size, struct clb_err *err)
{
    void *old, *block;

    if (n < *room)
        return true;
    memcpy(&old, list, sizeof old);
    uint32_t twice = *room ? *room * 2 : 64;
    if (!(block = clb_grow(old, twice, size, err)))
        return false;
    memcpy(list, &block, sizeof block);
    *room = twice;
    return true;
}

uint32_t clb_node_new(struct clb_template *t, enum clb_node_kind kind, size_t at,
                      struct clb_err *err)
{
    if (!more(&t->node, t->n_node, &t->node_room, sizeof *t->node, err))
        return 0;
    if (t->n_node == 0)
        t->node[t->n_node++] = (struct clb_node){ .kind = CLB_N_END };
    t->node[t->n_node] = (struct clb_node){ .kind = (uint8_t)kind, .at = (uint32_t)at };
    return t->n_node++;
}

uint32_t clb_symbol_of(struct clb_template *t, struct clb_str name, struct clb_err *err)
{
    uint32_t hash = 2166136261u, room = t->symbol_room;

    for (size_t i = 0; i < name.n; i++)
        hash = (hash ^ (unsigned char)name.p[i]) * 16777619u;
    uint32_t *bucket = &t->bucket[hash % 64];
    for (uint32_t i = *bucket; i; i = t->chain[i - 1])
        if (clb_str_eq(clb_view(&t->symbol[i - 1]), name))
            return i - 1;
    if (!more(&t->chain, t->n_symbol, &room, sizeof *t->chain, err) ||
        !more(&t->symbol, t->n_symbol, &t->symbol_room, sizeof *t->symbol, err))
        return UINT32_MAX;
    t->symbol[t->n_symbol] = (struct clb_string){ name.p, clb_of_template, name.n };
    t->chain[t->n_symbol] = *bucket;
    *bucket = ++t->n_symbol;
    return t->n_symbol - 1;
}

uint32_t clb_string_of(struct clb_template *t, struct clb_str text, struct clb_err *err)
{
    if (!more(&t->string, t->n_string, &t->string_room, sizeof *t->string, err))
        return UINT32_MAX;
    t->string[t->n_string] = (struct clb_string){ text.p, clb_of_template, text.n };
    return t->n_string++;
}

void clb_template_free(struct clb_template *t)
{
    if (!t)
        return;
    clb_free(t->name);
    clb_text_free(&t->source);
    clb_free(t->node);
    clb_free(t->string);
    clb_free(t->symbol);
    clb_free(t->chain);
    clb_arena_free(&t->decoded);
    clb_free(t);
}
