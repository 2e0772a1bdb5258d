/* build_pieces.c - pieces, their names, and merges, as an importer collects them. */
#include <stdio.h>

#include "lib/base/mem.h"
#include "lib/token/build.h"

struct clb_str clb_build_name(const struct clb_build *b, uint32_t id)
{
    struct clb_span s = b->piece[id].content;

    return (struct clb_str){ b->bytes.p + s.at, s.n };
}

uint32_t clb_build_find(const struct clb_build *b, struct clb_str name)
{
    if (!b->index.slots)
        return CLB_NO_ID;
    uint32_t at = (uint32_t)clb_key_hash(name.p, name.n);
    for (uint32_t probe = 0; probe < CLB_MAX_PROBE; probe++, at++) {
        uint32_t id1 = b->index.slot[at & (b->index.slots - 1)];
        if (!id1)
            return CLB_NO_ID;
        if (clb_str_eq(clb_build_name(b, id1 - 1), name))
            return id1 - 1;
    }
    return CLB_NO_ID;
}

static bool put(const struct clb_build *b, struct clb_build_index *x, uint32_t id,
                struct clb_err *err)
{
    struct clb_str s = clb_build_name(b, id);
    uint32_t at = (uint32_t)clb_key_hash(s.p, s.n), probe = 0;

    for (; x->slot[at & (x->slots - 1)]; at++)
        if (++probe == CLB_MAX_PROBE)
            return clb_fail(err, CLB_BAD_INPUT,
                            "more than %d names have the same hash: made to be slow",
                            CLB_MAX_PROBE);
    x->slot[at & (x->slots - 1)] = id + 1;
    return true;
}

static bool index_name(struct clb_build *b, uint32_t id, struct clb_err *err)
{
    struct clb_build_index *x = &b->index;

    if (x->n * 2 >= x->slots) {
        struct clb_build_index more = { .slots = x->slots ? x->slots * 2 : 4096, .n = x->n };
        more.slot = clb_new(more.slots, sizeof *more.slot, err);
        if (!more.slot)
            return false;
        bool ok = true;
        for (uint32_t i = 0; ok && i < x->slots; i++)
            ok = !x->slot[i] || put(b, &more, x->slot[i] - 1, err);
        clb_free(x->slot);
        *x = more;
        if (!ok)
            return false;
    }
    x->n++;
    return put(b, x, id, err);
}

/* Pieces up to id, the new ones empty. */
static bool make_room(struct clb_build *b, uint32_t id, struct clb_err *err)
{
    uint32_t room = 1024; /* the powers of two above what there is */

    if (id < b->n_piece)
        return true;
    while (room < b->n_piece)
        room *= 2;
    if (!b->piece || id >= room) {
        while (room <= id)
            room *= 2;
        struct clb_build_piece *more = clb_grow(b->piece, room, sizeof *more, err);
        if (!more)
            return false;
        b->piece = more;
    }
    memset(b->piece + b->n_piece, 0, (id + 1 - b->n_piece) * sizeof *b->piece);
    b->n_piece = id + 1;
    return true;
}

bool clb_build_add(struct clb_build *b, struct clb_str name, uint32_t id, struct clb_err *err)
{
    if (!make_room(b, id, err))
        return false;
    b->piece[id].content = clb_build_bytes(b, name);
    b->piece[id].flags = CLB_PIECE_EXISTS;
    if (b->bytes.failed)
        return clb_fail_nomem(err, b->bytes.n + name.n);
    return index_name(b, id, err);
}

bool clb_build_add_merge(struct clb_build *b, struct clb_build_merge m, struct clb_err *err)
{
    if (b->n_merge == b->merge_room) {
        uint32_t room = b->merge_room ? b->merge_room * 2 : 4096;
        struct clb_build_merge *more = clb_grow(b->merge, room, sizeof *more, err);
        if (!more)
            return false;
        b->merge = more;
        b->merge_room = room;
    }
    b->merge[b->n_merge++] = m;
    return true;
}

void clb_build_find_bytes(struct clb_build *b)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[8];
        int n = snprintf(name, sizeof name, "<0x%02X>", byte);
        b->byte_id[byte] = clb_build_find(b, (struct clb_str){ name, (size_t)n });
    }
}
