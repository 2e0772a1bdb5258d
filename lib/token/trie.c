#include "lib/token/trie.h"

#include <stdlib.h>

#include "lib/base/mem.h"

enum { MOST_NODES = 1 << 24 }; /* an edge has 24 bits for its node */

struct token {
    struct clb_str text;
    uint32_t id;
};

static int by_text(const void *a, const void *b)
{
    const struct token *x = a, *y = b;
    size_t n = x->text.n < y->text.n ? x->text.n : y->text.n;
    int order = memcmp(x->text.p, y->text.p, n);

    return order ? order : (x->text.n > y->text.n) - (x->text.n < y->text.n);
}

bool clb_trie_add_node(struct clb_trie *t, uint32_t *index, struct clb_err *err)
{
    if (t->n_node == t->node_room) {
        uint32_t room = t->node_room ? t->node_room * 2 : 256;
        struct clb_trie_node *more = clb_grow(t->node, room, sizeof *more, err);
        if (!more)
            return false;
        t->node = more;
        t->node_room = room;
    }
    if (t->n_node == MOST_NODES)
        return clb_fail(err, CLB_BAD_INPUT, "the added tokens need a trie of more than %d nodes",
                        MOST_NODES);
    *index = t->n_node++;
    t->node[*index] = (struct clb_trie_node){ .id = CLB_NO_ID };
    return true;
}

static bool add_edge(struct clb_trie *t, uint8_t byte, uint32_t node, struct clb_err *err)
{
    if (t->n_edge == t->edge_room) {
        uint32_t room = t->edge_room ? t->edge_room * 2 : 256;
        uint32_t *more = clb_grow(t->edge, room, sizeof *more, err);
        if (!more)
            return false;
        t->edge = more;
        t->edge_room = room;
    }
    t->edge[t->n_edge++] = node << 8 | byte;
    return true;
}

/* The tokens [from, to) agree in their first `depth` bytes. */
struct range {
    uint32_t from, to, depth;
};

/* Room in the queue for every node that there is room for. */
static bool grow_queue(struct range **queue, uint32_t *room, uint32_t want, struct clb_err *err)
{
    if (want <= *room)
        return true;
    struct range *more = clb_grow(*queue, want, sizeof *more, err);
    if (!more)
        return false;
    *queue = more;
    *room = want;
    return true;
}

/* Nodes are made level by level: queue[node - root] says which tokens go through a node. */
static bool fill(struct clb_trie *t, const struct token *token, uint32_t n, uint32_t root,
                 struct clb_err *err)
{
    struct range *queue = NULL;
    uint32_t room = 0;
    bool ok = false;

    if (!grow_queue(&queue, &room, t->node_room - root, err))
        goto done;
    queue[0] = (struct range){ 0, n, 0 };
    for (uint32_t node = root; node < t->n_node; node++) {
        struct range r = queue[node - root];
        if (r.from < r.to && token[r.from].text.n == r.depth)
            t->node[node].id = token[r.from++].id;
        t->node[node].edge = t->n_edge;
        while (r.from < r.to) {
            char byte = token[r.from].text.p[r.depth];
            uint32_t end = r.from, child;
            while (end < r.to && token[end].text.p[r.depth] == byte)
                end++;
            if (!clb_trie_add_node(t, &child, err) || !add_edge(t, (uint8_t)byte, child, err) ||
                !grow_queue(&queue, &room, t->node_room - root, err))
                goto done;
            queue[child - root] = (struct range){ r.from, end, r.depth + 1 };
            t->node[node].n_edge++;
            r.from = end;
        }
    }
    ok = true;
done:
    clb_free(queue);
    return ok;
}

static bool check_tokens(const struct token *token, uint32_t n, struct clb_err *err)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!token[i].text.n)
            return clb_fail(err, CLB_BAD_INPUT,
                            "nothing is left of added token %u after the normaliser", token[i].id);
        if (i && !by_text(&token[i - 1], &token[i]))
            return clb_fail(err, CLB_BAD_INPUT,
                            "added tokens %u and %u are both looked for as '%.*s'", token[i - 1].id,
                            token[i].id, (int)token[i].text.n, token[i].text.p);
    }
    return true;
}

/* What is looked for of piece p, which belongs into the trie; p NULL otherwise. */
static struct clb_str text_of(const struct clb_build *b, const struct clb_build_piece *p,
                              enum clb_trie_kind kind)
{
    bool added = p->flags & CLB_PIECE_ADDED, normalised = p->flags & CLB_PIECE_NORMALISED;
    bool wanted = kind == CLB_TRIE_PIECES ? p->flags & CLB_PIECE_MODEL
                                          : added && normalised == (kind == CLB_TRIE_NORMALISED);
    struct clb_span s = kind == CLB_TRIE_PIECES ? p->content : p->find;

    return (struct clb_str){ wanted ? b->bytes.p + s.at : NULL, s.n };
}

bool clb_trie_add(struct clb_trie *t, const struct clb_build *b, enum clb_trie_kind kind,
                  uint32_t *root, struct clb_err *err)
{
    struct token *token = clb_new(b->n_piece, sizeof *token, err);
    uint32_t n = 0;
    bool ok = false;

    *root = CLB_NO_ID;
    if (!token)
        return false;
    for (uint32_t id = 0; id < b->n_piece; id++) {
        struct clb_str text = text_of(b, &b->piece[id], kind);
        if (text.p)
            token[n++] = (struct token){ text, id };
    }
    if (n == 0) {
        ok = true;
        goto done;
    }
    qsort(token, n, sizeof *token, by_text);
    ok = check_tokens(token, n, err) && clb_trie_add_node(t, root, err) &&
         fill(t, token, n, *root, err);
done:
    clb_free(token);
    return ok;
}

void clb_trie_free(struct clb_trie *t)
{
    clb_free(t->node);
    clb_free(t->edge);
    *t = (struct clb_trie){ 0 };
}
