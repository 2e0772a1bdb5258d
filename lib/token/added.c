/* added.c - cutting added tokens out of a text.
 *
 * At every place the longest token that stands there wins; the search goes on behind it. */
#include "lib/token/encode.h"
#include "lib/token/unicode.h"
#include "lib/token/utf8.h"

/* The longest token that starts at p, without the special ones where `origin` (of p) has a 0. */
static uint32_t longest(const struct clb_tokenizer *t, uint32_t root, const char *p,
                        const char *end, const uint8_t *origin, const char **stop)
{
    uint32_t node = root, id = CLB_NO_ID;
    bool special = true;

    while (p < end && (node = clb_trie_walk(t, node, (uint8_t)*p)) != CLB_NO_ID) {
        uint32_t found = t->nodes[node].id;
        p++;
        special = special && (!origin || *origin++ != 0);
        if (found != CLB_NO_ID && (special || !(clb_piece_flags(t, found) & CLB_PIECE_SPECIAL))) {
            id = found;
            *stop = p;
        }
    }
    return id;
}

/* Texts with an origin: only the raw text has it, so special tokens of both tries are found there
 * and none in the normalised text. */
static uint32_t longest_of_origin(const struct clb_encoder *e, int trie, const char *p,
                                  const char *end, const char **stop)
{
    static const uint8_t nowhere[1] = { 0 };
    const struct clb_tokenizer *t = e->t;
    const uint32_t *root = t->head->trie_root;
    const uint8_t *origin = trie == 0 ? e->origin + (p - e->whole) : NULL;
    uint32_t id = CLB_NO_ID;

    if (trie == 1) {
        if (root[1] != CLB_NO_ID)
            id = longest(t, root[1], p, end, nowhere, stop);
        return id;
    }
    if (root[0] != CLB_NO_ID)
        id = longest(t, root[0], p, end, origin, stop);
    if (id != CLB_NO_ID || root[1] == CLB_NO_ID)
        return id;
    id = longest(t, root[1], p, end, origin, stop);
    return id != CLB_NO_ID && clb_piece_flags(t, id) & CLB_PIECE_SPECIAL ? id : CLB_NO_ID;
}

/* Which bytes tokens start with: adds those of one trie. */
static void first_bytes(const struct clb_tokenizer *t, uint32_t root, bool starts[256])
{
    if (root == CLB_NO_ID)
        return;
    uint32_t edge = t->nodes[root].edge, n = t->nodes[root].n_edge;
    if (edge <= t->n_edge && n <= t->n_edge - edge)
        for (uint32_t i = 0; i < n; i++)
            starts[t->edges[edge + i] & 255] = true;
}

static bool stands_alone(struct clb_part part, const char *from, const char *to)
{
    unsigned n;

    if (from > part.s && clb_uc(clb_utf8_before(part.s, from, &n)) & CLB_UC_WORD)
        return false;
    return to >= part.end || !(clb_uc(clb_utf8_get(to, part.end, &n)) & CLB_UC_WORD);
}

static const char *strip_left(const char *begin, const char *p)
{
    unsigned n;

    while (p > begin && clb_uc(clb_utf8_before(begin, p, &n)) & CLB_UC_SPACE)
        p -= n;
    return p;
}

static const char *strip_right(const char *p, const char *end)
{
    unsigned n;

    while (p < end && clb_uc(clb_utf8_get(p, end, &n)) & CLB_UC_SPACE)
        p += n;
    return p;
}

static bool give(struct clb_encoder *e, struct clb_part part, const char *from, const char *to,
                 bool (*rest)(struct clb_encoder *e, struct clb_part part))
{
    if (from >= to)
        return true;
    return rest(e, (struct clb_part){ from, to, part.zero });
}

bool clb_added_split(struct clb_encoder *e, int trie, struct clb_part part,
                     bool (*rest)(struct clb_encoder *e, struct clb_part part))
{
    const struct clb_tokenizer *t = e->t;
    uint32_t root = t->head->trie_root[trie];
    const char *done = part.s, *stop = part.s; /* done: everything before it was given */
    bool starts[256] = { false };

    if (root == CLB_NO_ID && !e->origin)
        return give(e, part, part.s, part.end, rest);
    first_bytes(t, root, starts);
    if (e->origin && trie == 0)
        first_bytes(t, t->head->trie_root[1], starts);
    for (const char *p = part.s; p < part.end;) {
        uint32_t id = !starts[(uint8_t)*p] ? CLB_NO_ID
                      : e->origin          ? longest_of_origin(e, trie, p, part.end, &stop)
                                           : longest(t, root, p, part.end, NULL, &stop);
        if (id == CLB_NO_ID) {
            p++;
            continue;
        }
        const char *from = p, *to = stop;
        unsigned flags = clb_piece_flags(t, id);
        p = stop;
        if ((flags & CLB_PIECE_SPECIAL && !e->parse_special) ||
            (flags & CLB_PIECE_SINGLE_WORD && !stands_alone(part, from, to)))
            continue;
        if (flags & CLB_PIECE_LSTRIP)
            from = done < from ? strip_left(done, from) : done;
        if (flags & CLB_PIECE_RSTRIP)
            to = strip_right(to, part.end);
        if (from >= to) /* all of it was taken along by the token before */
            continue;
        if (!give(e, part, done, from, rest) || !clb_push_id(e, id))
            return false;
        done = to;
    }
    return give(e, part, done, part.end, rest);
}
