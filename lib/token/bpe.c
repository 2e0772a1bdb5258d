/* bpe.c - byte pair encoding of one word.
 *
 * A word starts as its characters (byte-level: bytes). Of all neighbours that have a merge, the one
 * of the lowest rank is joined, the leftmost of equals first, until none is left. Short words do
 * that by looking through an array, long ones with a linked list and a heap: O(n log n). Most words
 * never get there: they are a piece, and compiling the tables found that merging gives just that
 * piece. */
#include "lib/base/mem.h"
#include "lib/token/encode.h"
#include "lib/token/utf8.h"

enum { SHORT = 48 };

/* -- symbols ---------------------------------------------------------------------------------- */

bool clb_fall_back(const struct clb_encoder *e, const char *s, size_t n, uint32_t *out)
{
    for (size_t i = 0; i < n; i++)
        if ((out[i] = e->t->bytes[(uint8_t)s[i]]) == CLB_NO_ID)
            return false;
    return true;
}

/* The character [s, s + n) with the prefix of all but the first and the suffix of the last. */
static struct clb_str dress(const struct clb_encoder *e, const char *s, unsigned n, bool first,
                            bool last, char out[2 * CLB_MAX_AFFIX + 4])
{
    const struct clb_tables_head *h = e->t->head;
    size_t at = 0;

    if (!first) {
        memcpy(out, e->t->strings + h->word_prefix.at, h->word_prefix.n);
        at = h->word_prefix.n;
    }
    memcpy(out + at, s, n);
    at += n;
    if (last) {
        memcpy(out + at, e->t->strings + h->word_suffix.at, h->word_suffix.n);
        at += h->word_suffix.n;
    }
    return (struct clb_str){ out, at };
}

/* Ids of the characters of a word. What is in no vocabulary becomes bytes, the unknown token, or
 * nothing. An unknown token waits for the next known character, so that neighbours can be one
 * (fuse_unk); fallen-back bytes do not end the wait: the reference has it so. */
static size_t first_symbols(const struct clb_encoder *e, const char *s, size_t n, uint32_t *out)
{
    const struct clb_tables_head *h = e->t->head;
    const bool bytes = h->model_flags & CLB_MODEL_BYTE_LEVEL;
    const bool dressed = h->word_prefix.n || h->word_suffix.n;
    const char *end = s + n;
    char dress_text[2 * CLB_MAX_AFFIX + 4];
    bool unknown = false;
    size_t count = 0;
    unsigned len = 1;

    for (const char *p = s; p < end; p += len) {
        if (!bytes)
            clb_utf8_get(p, end, &len);
        struct clb_str key = { p, len };
        if (dressed)
            key = dress(e, p, len, p == s, p + len == end, dress_text);
        uint32_t id = clb_word_id(e, key.p, key.n);
        if (id != CLB_NO_ID) {
            if (unknown)
                out[count++] = h->unk;
            unknown = false;
            out[count++] = id;
        } else if (h->model_flags & CLB_MODEL_BYTE_FALLBACK &&
                   clb_fall_back(e, key.p, key.n, out + count)) {
            count += key.n;
        } else if (h->unk != CLB_NO_ID) {
            if (unknown && !(h->model_flags & CLB_MODEL_FUSE_UNK))
                out[count++] = h->unk;
            unknown = true;
        }
    }
    if (unknown)
        out[count++] = h->unk;
    return count;
}

static inline const struct clb_merge_slot *merge_of(const struct clb_encoder *e, uint32_t left,
                                                    uint32_t right)
{
    const struct clb_merge_slot *m = clb_merge_find(e->t, left, right);

    return m && clb_is_barred(e, m->id) ? NULL : m;
}

/* -- short words ------------------------------------------------------------------------------ */

static size_t merge_short(const struct clb_encoder *e, uint32_t *id, size_t n)
{
    uint32_t rank[SHORT], into[SHORT]; /* of id[i] and id[i + 1]; UINT32_MAX: no merge */

    for (size_t i = 0; i + 1 < n; i++) {
        const struct clb_merge_slot *m = merge_of(e, id[i], id[i + 1]);
        rank[i] = m ? m->rank : UINT32_MAX;
        into[i] = m ? m->id : 0;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == UINT32_MAX)
            break;
        id[best] = into[best];
        n--;
        memmove(id + best + 1, id + best + 2, (n - best - 1) * sizeof *id);
        if (best + 1 < n) {
            memmove(rank + best + 1, rank + best + 2, (n - best - 2) * sizeof *rank);
            memmove(into + best + 1, into + best + 2, (n - best - 2) * sizeof *into);
        }
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct clb_merge_slot *m = merge_of(e, id[i], id[i + 1]);
            rank[i] = m ? m->rank : UINT32_MAX;
            into[i] = m ? m->id : 0;
        }
    }
    return n;
}

/* -- long words ------------------------------------------------------------------------------- */

static bool heap_push(struct clb_encoder *e, uint64_t item)
{
    size_t i = e->word.n_heap;

    if (i == e->word.heap_room) {
        size_t room = i ? i * 2 : 256;
        uint64_t *more = clb_grow(e->word.heap, room, sizeof *more, e->err);
        if (!more)
            return false;
        e->word.heap = more;
        e->word.heap_room = room;
    }
    uint64_t *h = e->word.heap;
    for (; i && h[(i - 1) / 2] > item; i = (i - 1) / 2)
        h[i] = h[(i - 1) / 2];
    h[i] = item;
    e->word.n_heap++;
    return true;
}

static uint64_t heap_pop(struct clb_encoder *e)
{
    uint64_t *h = e->word.heap, top = h[0], item = h[--e->word.n_heap];
    size_t n = e->word.n_heap, i = 0, child;

    for (; (child = 2 * i + 1) < n; i = child) {
        child += child + 1 < n && h[child + 1] < h[child];
        if (h[child] >= item)
            break;
        h[i] = h[child];
    }
    h[i] = item;
    return top;
}

static bool offer(struct clb_encoder *e, uint32_t at)
{
    const uint32_t *id = e->word.id;
    const struct clb_merge_slot *m = merge_of(e, id[at], id[e->word.next[at]]);

    return !m || heap_push(e, (uint64_t)m->rank << 32 | at);
}

/* The list is in e->word: next[i] is n behind the last, prev[0] is n. An item of the heap that no
 * longer tells the rank of its place is stale. */
static bool merge_long(struct clb_encoder *e, size_t count, size_t *left)
{
    uint32_t *id = e->word.id, *next = e->word.next, *prev = e->word.prev, n = (uint32_t)count;

    e->word.n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        next[i] = i + 1;
        prev[i] = i ? i - 1 : n;
    }
    for (uint32_t i = 0; i + 1 < n; i++)
        if (!offer(e, i))
            return false;
    while (e->word.n_heap) {
        uint64_t top = heap_pop(e);
        uint32_t at = (uint32_t)top, gone = next[at];
        if (gone >= n) /* the last one, or joined to its left neighbour */
            continue;
        const struct clb_merge_slot *m = merge_of(e, id[at], id[gone]);
        if (!m || m->rank != top >> 32)
            continue;
        id[at] = m->id;
        next[at] = next[gone];
        next[gone] = UINT32_MAX;
        if (next[at] < n)
            prev[next[at]] = at;
        if ((prev[at] < n && !offer(e, prev[at])) || (next[at] < n && !offer(e, at)))
            return false;
    }
    size_t kept = 0;
    for (uint32_t i = 0; i < n; i = next[i])
        id[kept++] = id[i];
    *left = kept;
    return true;
}

static bool grow_word(struct clb_encoder *e, size_t room)
{
    uint32_t **list[] = { &e->word.id, &e->word.next, &e->word.prev };

    if (room <= e->word.room)
        return true;
    for (int i = 0; i < 3; i++) {
        uint32_t *more = clb_grow(*list[i], room, sizeof *more, e->err);
        if (!more)
            return false;
        *list[i] = more;
    }
    e->word.room = room;
    return true;
}

/* -- words ------------------------------------------------------------------------------------ */

static bool push_all(struct clb_encoder *e, const uint32_t *id, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!clb_push_id(e, id[i]))
            return false;
    return true;
}

static bool merge_part(struct clb_encoder *e, const char *s, size_t n)
{
    const struct clb_tables_head *h = e->t->head;
    const bool by_name =
        (h->model_flags & (CLB_MODEL_IGNORE_MERGES | CLB_MODEL_CUT)) == CLB_MODEL_IGNORE_MERGES;
    uint32_t whole = clb_word_id(e, s, n);

    if (whole != CLB_NO_ID && (by_name || clb_piece_flags(e->t, whole) & CLB_PIECE_WHOLE))
        return clb_push_id(e, whole);
    size_t most = n * (1 + (size_t)h->word_prefix.n) + h->word_suffix.n;
    if (most <= SHORT) {
        uint32_t id[SHORT];
        return push_all(e, id, merge_short(e, id, first_symbols(e, s, n, id)));
    }
    if (!grow_word(e, most))
        return false;
    size_t count = first_symbols(e, s, n, e->word.id);
    if (count <= SHORT)
        count = merge_short(e, e->word.id, count);
    else if (!merge_long(e, count, &count))
        return false;
    return push_all(e, e->word.id, count);
}

/* What becomes of a word depends on nothing but its bytes. */
bool clb_bpe_part(struct clb_encoder *e, const char *s, size_t n)
{
    struct clb_seen_word *w;
    size_t before = e->ids->n;

    if (!e->seen || n > sizeof w->text || n == 0)
        return merge_part(e, s, n);
    w = &e->seen[clb_key_hash(s, n) >> 20 & (CLB_SEEN_WORDS - 1)];
    if (w->n_text == n && !memcmp(w->text, s, n))
        return push_all(e, w->id, w->n_id);
    if (!merge_part(e, s, n))
        return false;
    size_t n_id = e->ids->n - before;
    if (n_id <= sizeof w->id / sizeof *w->id) {
        w->n_text = (uint8_t)n;
        w->n_id = (uint8_t)n_id;
        memcpy(w->text, s, n);
        memcpy(w->id, e->ids->id + before, n_id * sizeof *w->id);
    }
    return true;
}

/* The first place after s before which nothing merges: the start of a run of `cut`. */
static const char *cut_after(const char *s, const char *end, struct clb_str cut)
{
    const char *p = s;

    while (end - p >= (ptrdiff_t)cut.n && !memcmp(p, cut.p, cut.n)) /* the run that s starts with */
        p += cut.n;
    if (p == end)
        return end;
    p = memmem(p, (size_t)(end - p), cut.p, cut.n);
    return p ? p : end;
}

bool clb_bpe_word(struct clb_encoder *e, const char *s, size_t n)
{
    const struct clb_tables_head *h = e->t->head;
    const char *end = s + n;

    if (!(h->model_flags & CLB_MODEL_CUT))
        return clb_bpe_part(e, s, n);
    if (h->model_flags & CLB_MODEL_IGNORE_MERGES) {
        uint32_t id = clb_word_id(e, s, n);
        if (id != CLB_NO_ID)
            return clb_push_id(e, id);
    }
    while (s < end) {
        const char *next = cut_after(s, end, clb_tables_string(e->t, h->cut));
        if (!clb_bpe_part(e, s, (size_t)(next - s)))
            return false;
        s = next;
    }
    return true;
}
