/* unigram.c - the likeliest way to cut a word into pieces, each of which has a score.
 *
 * best[i] is the best path that ends i bytes behind `base`: Viterbi's algorithm, in the order and
 * with the sums of the reference, so that ties are broken as there: by the piece that starts first.
 * Where no piece reaches over a place, every path goes through it, so what lies before it is given
 * at once and the array stays as short as a word. A path's score goes on through such a place: sums
 * are rounded as if there were none. */
#include "lib/base/mem.h"
#include "lib/token/encode.h"
#include "lib/token/utf8.h"

struct clb_best {
    double score;
    uint32_t from; /* where its last piece starts, bytes behind `base`; NONE: no path ends here */
    uint32_t id;
};
#define NONE UINT32_MAX

struct search {
    struct clb_encoder *e;
    const char *s;
    size_t base, reach; /* no piece so far ends behind `reach` */
    size_t unknown;     /* where the run of unknown characters before `base` starts; SIZE_MAX */
};

static bool grow(struct clb_encoder *e, size_t want)
{
    size_t room = e->best_room ? e->best_room : 256;

    while (room <= want)
        room *= 2;
    struct clb_best *more = clb_grow(e->best, room, sizeof *more, e->err);
    if (!more)
        return false;
    for (size_t i = e->best_room; i < room; i++)
        more[i] = (struct clb_best){ .from = NONE };
    e->best = more;
    e->best_room = room;
    return true;
}

/* A path with `score` whose last piece is [from, to). */
static bool offer(struct search *v, size_t from, size_t to, double score, uint32_t id)
{
    struct clb_encoder *e = v->e;
    size_t i = to - v->base;

    if (i >= e->best_room && !grow(e, i))
        return false;
    struct clb_best *b = &e->best[i];
    if (b->from != NONE && !(score > b->score))
        return true;
    *b = (struct clb_best){ score, (uint32_t)(from - v->base), id };
    if (to > v->reach)
        v->reach = to;
    return true;
}

/* A special token that the text spells. The unknown one is in the vocabulary, too. */
static bool is_barred(const struct clb_encoder *e, uint32_t id)
{
    return e->no_special && clb_piece_flags(e->t, id) & CLB_PIECE_SPECIAL;
}

static bool has_bytes(const struct clb_encoder *e, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (e->t->bytes[(uint8_t)s[i]] == CLB_NO_ID)
            return false;
    return true;
}

/* The run of unknown characters up to `end`. It may be a piece as a whole that scored worse. */
static bool give_unknown(struct search *v, size_t end)
{
    struct clb_encoder *e = v->e;
    const struct clb_tables_head *h = e->t->head;
    const char *s = v->s + v->unknown;
    size_t n = end - v->unknown;
    uint32_t id = CLB_NO_ID;

    if (v->unknown == SIZE_MAX)
        return true;
    v->unknown = SIZE_MAX;
    if (!(h->model_flags & CLB_MODEL_SPM))
        id = clb_key_find(e->t, s, n);
    if (id != CLB_NO_ID && is_barred(e, id))
        id = CLB_NO_ID;
    if (id != CLB_NO_ID || !(h->model_flags & CLB_MODEL_BYTE_FALLBACK) || !has_bytes(e, s, n))
        return clb_push_id(e, id != CLB_NO_ID ? id : h->unk);
    for (size_t i = 0; i < n; i++)
        if (!clb_push_id(e, e->t->bytes[(uint8_t)s[i]]))
            return false;
    return true;
}

/* Gives the best path to `to`, which becomes the base. */
static bool give(struct search *v, size_t to)
{
    struct clb_encoder *e = v->e;
    struct clb_best *best = e->best;
    uint32_t last = (uint32_t)(to - v->base), next = NONE;
    double score = best[last].score;

    for (uint32_t i = last, from;; i = from) { /* turns the links round */
        from = best[i].from;
        best[i].from = next;
        next = i;
        if (i == 0)
            break;
        if (from >= i)
            return clb_damaged(e, "path", from);
    }
    for (uint32_t i = 0; best[i].from != NONE; i = best[i].from) {
        uint32_t id = best[best[i].from].id;
        if (id == e->t->head->unk) {
            if (v->unknown == SIZE_MAX)
                v->unknown = v->base + i;
        } else if (!give_unknown(v, v->base + i) || !clb_push_id(e, id)) {
            return false;
        }
    }
    for (uint32_t i = 0; i <= last; i++)
        best[i].from = NONE;
    best[0].score = score;
    v->base = to;
    return true;
}

/* SentencePiece adds in f32, the tokenizers library in f64. The scores fit. */
static double sum(const struct clb_tokenizer *t, double path, double piece)
{
    return t->head->model_flags & CLB_MODEL_SPM ? (double)((float)path + (float)piece)
                                                : path + piece;
}

/* All pieces that start at `at`, where a character of len bytes stands. */
static bool extend(struct search *v, size_t at, size_t n, unsigned len)
{
    const struct clb_tokenizer *t = v->e->t;
    double score = v->e->best[at - v->base].score;
    bool single = false;
    uint32_t node = t->head->piece_root;

    for (size_t p = at; p < n && (node = clb_trie_walk(t, node, (uint8_t)v->s[p])) != CLB_NO_ID;) {
        uint32_t id = t->nodes[node].id;
        p++;
        if (id == CLB_NO_ID || is_barred(v->e, id))
            continue;
        if (id >= t->head->n_piece)
            return clb_damaged(v->e, "id", id);
        if (!offer(v, at, p, sum(t, score, t->scores[id]), id))
            return false;
        single |= p == at + len;
    }
    if (single)
        return true;
    return offer(v, at, at + len, sum(t, score, t->scores[t->head->n_piece]), t->head->unk);
}

/* Without an unknown token a character that is in no piece has no path. */
static bool check_known(const struct clb_encoder *e, const char *s, unsigned len, uint32_t id)
{
    if (id != CLB_NO_ID)
        return true;
    return clb_fail(e->err, CLB_BAD_INPUT,
                    "the tokenizer has no piece for '%.*s' and no unknown token", (int)len, s);
}

bool clb_unigram_word(struct clb_encoder *e, const char *s, size_t n)
{
    struct search v = { .e = e, .s = s, .unknown = SIZE_MAX };
    unsigned len = 1;

    if (!e->best_room && !grow(e, 0))
        return false;
    e->best[0] = (struct clb_best){ .from = NONE };
    for (size_t at = 0; at < n; at += len) {
        if (at == v.reach && at > 0 && !give(&v, at))
            return false;
        clb_utf8_get(s + at, s + n, &len);
        if (!extend(&v, at, n, len) || !check_known(e, s + at, len, e->best[at + len - v.base].id))
            return false;
    }
    return (n == v.base || give(&v, n)) && give_unknown(&v, n);
}
