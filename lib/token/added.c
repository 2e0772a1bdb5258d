/* added.c - cutting added tokens out of a text.
 *
 * At every place the longest token that stands there wins; the search goes on behind it. */
#include "lib/token/encode.h"
#include "lib/token/unicode.h"
#include "lib/token/utf8.h"

/* The node behind the edge of byte b, or CLB_NO_ID. */
static uint32_t walk(const struct clb_tokenizer *t, uint32_t node, uint8_t b)
{
    uint32_t low = t->nodes[node].edge, n = t->nodes[node].n_edge;

    if (low > t->n_edge || n > t->n_edge - low)
        return CLB_NO_ID;
    while (n) {
        uint32_t half = n / 2, edge = t->edges[low + half];
        if ((edge & 255) == b)
            return edge >> 8 < t->n_node ? edge >> 8 : CLB_NO_ID;
        if ((edge & 255) < b) {
            low += half + 1;
            n -= half + 1;
        } else {
            n = half;
        }
    }
    return CLB_NO_ID;
}

/* The longest token that starts at p. */
static uint32_t longest(const struct clb_tokenizer *t, uint32_t root, const char *p,
                        const char *end, const char **stop)
{
    uint32_t node = root, id = CLB_NO_ID;

    while (p < end && (node = walk(t, node, (uint8_t)*p)) != CLB_NO_ID) {
        p++;
        if (t->nodes[node].id != CLB_NO_ID) {
            id = t->nodes[node].id;
            *stop = p;
        }
    }
    return id;
}

/* Which bytes tokens start with. */
static void first_bytes(const struct clb_tokenizer *t, uint32_t root, bool starts[256])
{
    memset(starts, 0, 256 * sizeof *starts);
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
    return rest(e, (struct clb_part){ from, to, part.first && from == part.s });
}

bool clb_added_split(struct clb_encoder *e, int trie, struct clb_part part,
                     bool (*rest)(struct clb_encoder *e, struct clb_part part))
{
    const struct clb_tokenizer *t = e->t;
    uint32_t root = t->head->trie_root[trie];
    const char *done = part.s, *stop = part.s; /* done: everything before it was given */
    bool starts[256];

    if (root == CLB_NO_ID)
        return give(e, part, part.s, part.end, rest);
    first_bytes(t, root, starts);
    for (const char *p = part.s; p < part.end;) {
        uint32_t id = starts[(uint8_t)*p] ? longest(t, root, p, part.end, &stop) : CLB_NO_ID;
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
            from = strip_left(done < from ? done : from, from);
        if (flags & CLB_PIECE_RSTRIP)
            to = strip_right(to, part.end);
        if (!give(e, part, done, from, rest) || !clb_push_id(e, id))
            return false;
        done = to;
    }
    return give(e, part, done, part.end, rest);
}
