#include "lib/token/build.h"

#include "lib/base/mem.h"
#include "lib/token/encode.h"
#include "lib/token/trie.h"
#include "lib/token/utf8.h"

void clb_build_free(struct clb_build *b)
{
    clb_text_free(&b->bytes);
    clb_text_free(&b->strings);
    clb_text_free(&b->programs);
    clb_free(b->piece);
    clb_free(b->index.slot);
    clb_free(b->merge);
    clb_free(b->score);
    *b = (struct clb_build){ 0 };
}

static struct clb_span add(struct clb_text *t, struct clb_str s)
{
    struct clb_span span = { (uint32_t)t->n, (uint32_t)s.n };

    if (t->n + s.n >
        UINT32_MAX) /* ends like a lack of memory: such a vocabulary is no vocabulary */
        t->failed = true;
    else
        clb_text_add(t, s.p, s.n);
    return t->failed ? (struct clb_span){ 0, 0 } : span;
}

struct clb_span clb_build_string(struct clb_build *b, struct clb_str s)
{
    return add(&b->strings, s);
}

struct clb_span clb_build_bytes(struct clb_build *b, struct clb_str s)
{
    return add(&b->bytes, s);
}

void clb_build_normalise(const struct clb_build *b, struct clb_str s, struct clb_text *out)
{
    struct clb_tokenizer view = { .head = &b->head,
                                  .strings = b->strings.p ? b->strings.p : "",
                                  .programs = (const void *)b->programs.p };
    struct clb_text now = { 0 }, next = { 0 };
    uint64_t budget = CLB_BUILD_BUDGET;

    clb_text_add(&now, s.p, s.n);
    for (uint32_t i = 0; i < b->head.n_normalise; i++) {
        clb_text_clear(&next);
        if (now.n)
            clb_step_apply(&view, &b->step[i], (struct clb_part){ now.p, now.p + now.n, now.p },
                           &next, &budget);
        struct clb_text swap = now;
        now = next;
        next = swap;
    }
    clb_text_add(out, now.p, now.n);
    out->failed |= now.failed || next.failed || !budget;
    clb_text_free(&now);
    clb_text_free(&next);
}

/* -- layout ----------------------------------------------------------------------------------- */

struct writer {
    struct clb_build *b;
    struct clb_tables_head *head; /* start of the tables */
    char *base;
    struct clb_trie trie;
    struct clb_err *err;
};

static struct clb_str bytes_of(const struct clb_build *b, struct clb_span s)
{
    return (struct clb_str){ b->bytes.p + s.at, s.n };
}

static struct clb_str key_of(const struct clb_build *b, uint32_t id)
{
    bool level = b->head.model_flags & CLB_MODEL_BYTE_LEVEL;

    return bytes_of(b, level ? b->piece[id].text : b->piece[id].content);
}

/* Slots for n entries: filled to between 3/8 and 3/4. */
static uint64_t slots_for(uint64_t n)
{
    uint64_t slots = 16;

    while (slots * 3 < n * 4)
        slots *= 2;
    return slots;
}

static void measure(struct clb_build *b)
{
    struct clb_tables_head *h = &b->head;
    uint64_t content = 0, text = 0, keys = 0;

    for (uint32_t id = 0; id < b->n_piece; id++) {
        const struct clb_build_piece *p = &b->piece[id];
        content += p->content.n;
        text += p->text.n;
        if (p->content.n > h->max_text)
            h->max_text = p->content.n;
        if (p->text.n > h->max_text)
            h->max_text = p->text.n;
        if (p->flags & CLB_PIECE_MODEL) {
            keys++;
            if (key_of(b, id).n > h->max_key)
                h->max_key = (uint32_t)key_of(b, id).n;
        }
    }
    h->n_piece = b->n_piece;
    h->section[CLB_PIECE_AT].size = h->section[CLB_TEXT_AT].size = 4 * ((uint64_t)b->n_piece + 1);
    h->section[CLB_PIECE].size = content;
    h->section[CLB_TEXT].size = text;
    h->section[CLB_FLAGS].size = 2 * (uint64_t)b->n_piece;
    h->section[CLB_KEYS].size = slots_for(keys) * sizeof(struct clb_key_slot);
    h->section[CLB_MERGES].size = slots_for(b->n_merge) * sizeof(struct clb_merge_slot);
    h->section[CLB_SINGLE].size = h->section[CLB_BYTES].size = 256 * 4;
    h->section[CLB_TEMPLATE].size = 4 * (uint64_t)(h->n_before + h->n_after);
    h->section[CLB_STEPS].size = sizeof(struct clb_step) * (uint64_t)(h->n_normalise + h->n_split);
    h->section[CLB_STRINGS].size = b->strings.n;
    h->section[CLB_PROGRAMS].size = b->programs.n;
    if (h->model == CLB_MODEL_UNIGRAM)
        h->section[CLB_SCORES].size = sizeof(double) * ((uint64_t)b->n_piece + 1);
}

static bool lay_out(struct writer *w, struct clb_text *out)
{
    struct clb_tables_head *h = &w->b->head;
    uint64_t at = sizeof *h;

    memcpy(h->magic, CLB_TABLES_MAGIC, sizeof h->magic);
    h->version = CLB_TABLES_VERSION;
    h->section[CLB_NODES].size = w->trie.n_node * sizeof(struct clb_trie_node);
    h->section[CLB_EDGES].size = w->trie.n_edge * sizeof(uint32_t);
    for (int i = 0; i < CLB_N_SECTION; i++) {
        if (!clb_round_up(at, 64, &at))
            return clb_fail(w->err, CLB_BAD_INPUT, "a vocabulary of this size cannot be written");
        h->section[i].at = at;
        at += h->section[i].size;
    }
    w->base = clb_new(at + 1, 1, w->err);
    if (!w->base)
        return false;
    *out = (struct clb_text){ .p = w->base, .n = at, .room = at + 1 };
    memcpy(w->base, h, sizeof *h);
    w->head = (struct clb_tables_head *)w->base;
    return true;
}

static void *section(const struct writer *w, enum clb_section s)
{
    return w->base + w->head->section[s].at;
}

static void put(const struct writer *w, enum clb_section s, const void *from)
{
    if (w->head->section[s].size)
        memcpy(section(w, s), from, w->head->section[s].size);
}

/* -- the big arrays --------------------------------------------------------------------------- */

static void write_pieces(const struct writer *w)
{
    const struct clb_build *b = w->b;
    uint32_t *at = section(w, CLB_PIECE_AT), *text_at = section(w, CLB_TEXT_AT);
    char *content = section(w, CLB_PIECE), *text = section(w, CLB_TEXT);
    uint16_t *flags = section(w, CLB_FLAGS);

    for (uint32_t id = 0; id < b->n_piece; id++) {
        const struct clb_build_piece *p = &b->piece[id];
        flags[id] = (uint16_t)p->flags;
        at[id + 1] = at[id] + p->content.n;
        text_at[id + 1] = text_at[id] + p->text.n;
        if (p->content.n)
            memcpy(content + at[id], b->bytes.p + p->content.at, p->content.n);
        if (p->text.n)
            memcpy(text + text_at[id], b->bytes.p + p->text.at, p->text.n);
    }
}

static bool collide(const struct writer *w, const char *what)
{
    return clb_fail(w->err, CLB_BAD_INPUT, "more than %d %s have the same hash: made to be slow",
                    CLB_MAX_PROBE, what);
}

/* Slots tried so far is the longest search. */
static bool write_keys(const struct writer *w)
{
    const struct clb_build *b = w->b;
    struct clb_key_slot *slot = section(w, CLB_KEYS);
    uint32_t mask = (uint32_t)(w->head->section[CLB_KEYS].size / sizeof *slot) - 1;
    uint32_t *single = section(w, CLB_SINGLE);

    for (int i = 0; i < 256; i++)
        single[i] = CLB_NO_ID;
    w->head->key_probe = 1;
    for (uint32_t id = 0; id < b->n_piece; id++) {
        struct clb_str key = key_of(b, id);
        if (!(b->piece[id].flags & CLB_PIECE_MODEL) || !key.n)
            continue;
        if (key.n == 1)
            single[(uint8_t)key.p[0]] = id;
        uint64_t h = clb_key_hash(key.p, key.n);
        uint32_t at = (uint32_t)h, probe = 1;
        for (; slot[at & mask].id1 && probe <= CLB_MAX_PROBE; at++)
            probe++;
        if (probe > CLB_MAX_PROBE)
            return collide(w, "pieces");
        slot[at & mask] = (struct clb_key_slot){ (uint32_t)(h >> 32), id + 1 };
        if (probe > w->head->key_probe)
            w->head->key_probe = probe;
    }
    return true;
}

static void write_scores(const struct writer *w)
{
    double *score = section(w, CLB_SCORES);

    if (w->b->head.model != CLB_MODEL_UNIGRAM)
        return;
    for (uint32_t id = 0; id < w->b->n_score; id++)
        score[id] = w->b->score[id];
    score[w->b->n_piece] = w->b->unknown_score;
}

/* Of two merges of one pair the later one counts, as in the reference. */
static bool write_merges(const struct writer *w)
{
    struct clb_merge_slot *slot = section(w, CLB_MERGES);
    uint32_t slots = (uint32_t)(w->head->section[CLB_MERGES].size / sizeof *slot);

    for (uint32_t i = 0; i < slots; i++)
        slot[i].left = CLB_NO_ID;
    w->head->merge_probe = 1;
    for (uint32_t i = 0; i < w->b->n_merge; i++) {
        const struct clb_build_merge *m = &w->b->merge[i];
        uint32_t at = clb_pair_hash(m->left, m->right), probe = 1;
        struct clb_merge_slot *s = &slot[at & (slots - 1)];
        while (s->left != CLB_NO_ID && (s->left != m->left || s->right != m->right)) {
            s = &slot[++at & (slots - 1)];
            if (++probe > CLB_MAX_PROBE)
                return collide(w, "merges");
        }
        *s = (struct clb_merge_slot){ m->left, m->right, m->rank, m->id };
        if (probe > w->head->merge_probe)
            w->head->merge_probe = probe;
    }
    return true;
}

/* -- what the tables know about themselves ---------------------------------------------------- */

/* Nothing merges over the start of a run of `cut` if no result of a merge has it inside, behind
 * something else. */
static bool cut_holds(const struct clb_build *b, struct clb_str cut)
{
    for (uint32_t i = 0; i < b->n_merge; i++) {
        struct clb_str key = key_of(b, b->merge[i].id);
        const char *end = key.p + key.n, *p = key.p;
        while ((p = memmem(p, (size_t)(end - p), cut.p, cut.n))) {
            if (p > key.p && (p - key.p < (ptrdiff_t)cut.n || memcmp(p - cut.n, cut.p, cut.n)))
                return false;
            p += cut.n;
        }
    }
    return true;
}

/* Nothing that is unknown disappears from a word, which would make neighbours of what is not. */
static bool keeps_all(const struct clb_build *b)
{
    unsigned n = 0;

    for (unsigned i = 0; i < 256; i++)
        n += b->byte_id[i] != CLB_NO_ID;
    return b->head.unk != CLB_NO_ID || (b->head.model_flags & CLB_MODEL_BYTE_FALLBACK && n == 256);
}

static void find_cut(struct clb_build *b)
{
    const struct clb_str cut = clb_str("\xe2\x96\x81"); /* U+2581 stands for a space */
    struct clb_tables_head *h = &b->head;
    bool is_piece = false;

    if (h->model != CLB_MODEL_BPE || h->model_flags & CLB_MODEL_BYTE_LEVEL || h->word_prefix.n ||
        h->word_suffix.n || !keeps_all(b))
        return;
    for (uint32_t id = 0; id < b->n_piece && !is_piece; id++)
        is_piece = b->piece[id].flags & CLB_PIECE_MODEL && clb_str_eq(key_of(b, id), cut);
    if (is_piece && cut_holds(b, cut)) {
        h->cut = clb_build_string(b, cut);
        h->model_flags |= CLB_MODEL_CUT;
    }
}

static void find_special(struct clb_build *b)
{
    struct clb_tables_head *h = &b->head;

    for (uint32_t id = 0; id < b->n_piece; id++) {
        struct clb_str key = key_of(b, id);
        unsigned want = CLB_PIECE_SPECIAL | CLB_PIECE_MODEL;
        if ((b->piece[id].flags & want) != want || !key.n)
            continue;
        if (h->model == CLB_MODEL_UNIGRAM)
            h->model_flags |= CLB_MODEL_SPECIAL_REACHABLE;
        if (id == h->unk)
            continue;
        if (h->model_flags & CLB_MODEL_IGNORE_MERGES || clb_utf8_step(key.p, key.n) == (int)key.n ||
            key.n == 1)
            h->model_flags |= CLB_MODEL_SPECIAL_REACHABLE;
    }
    for (uint32_t i = 0; i < b->n_merge; i++)
        if (b->piece[b->merge[i].id].flags & CLB_PIECE_SPECIAL && b->merge[i].id != h->unk)
            h->model_flags |= CLB_MODEL_SPECIAL_REACHABLE;
}

/* Marks the pieces that need no merging. */
static bool find_whole(const struct writer *w)
{
    const struct clb_build *b = w->b;
    uint16_t *flags = section(w, CLB_FLAGS);
    uint64_t size = w->head->section[CLB_SCORES].at + w->head->section[CLB_SCORES].size;
    struct clb_tokenizer t;
    struct clb_ids ids = { 0 };
    bool ok = clb_tables_open(&t, w->base, size, w->err);
    struct clb_encoder e = { .t = &t, .ids = &ids, .stop = SIZE_MAX, .err = w->err };

    if (b->head.model != CLB_MODEL_BPE || b->head.word_prefix.n || b->head.word_suffix.n)
        return ok;
    for (uint32_t id = 0; ok && id < b->n_piece; id++) {
        struct clb_str key = key_of(b, id);
        if (!(flags[id] & CLB_PIECE_MODEL) || !key.n)
            continue;
        ids.n = 0;
        ok = clb_bpe_part(&e, key.p, key.n);
        if (ok && ids.n == 1 && ids.id[0] == (int32_t)id)
            flags[id] |= CLB_PIECE_WHOLE;
    }
    clb_encoder_done(&e);
    clb_ids_free(&ids);
    return ok;
}

/* The trie of all pieces, which is not the first one: 0 means that there is none. */
static bool add_pieces(struct writer *w)
{
    struct clb_tables_head *h = &w->b->head;

    if (h->model != CLB_MODEL_UNIGRAM)
        return true;
    if (w->trie.n_node == 0 && !clb_trie_add_node(&w->trie, &h->piece_root, w->err))
        return false;
    if (!clb_trie_add(&w->trie, w->b, CLB_TRIE_PIECES, &h->piece_root, w->err))
        return false;
    return h->piece_root != CLB_NO_ID ||
           clb_fail(w->err, CLB_BAD_INPUT, "the vocabulary has no piece to encode with");
}

bool clb_build_write(struct clb_build *b, struct clb_text *out, struct clb_err *err)
{
    struct writer w = { .b = b, .err = err };
    bool ok = false;

    find_cut(b);
    find_special(b);
    measure(b);
    if (b->bytes.failed || b->strings.failed || b->programs.failed) {
        clb_fail_nomem(err, b->bytes.n);
        goto done;
    }
    if (!clb_trie_add(&w.trie, b, CLB_TRIE_RAW, &b->head.trie_root[0], err) ||
        !clb_trie_add(&w.trie, b, CLB_TRIE_NORMALISED, &b->head.trie_root[1], err) ||
        !add_pieces(&w) || !lay_out(&w, out))
        goto done;
    write_pieces(&w);
    if (!write_keys(&w) || !write_merges(&w))
        goto done;
    put(&w, CLB_NODES, w.trie.node);
    put(&w, CLB_EDGES, w.trie.edge);
    put(&w, CLB_BYTES, b->byte_id);
    put(&w, CLB_STEPS, b->step);
    put(&w, CLB_STRINGS, b->strings.p);
    put(&w, CLB_PROGRAMS, b->programs.p);
    write_scores(&w);
    memcpy(section(&w, CLB_TEMPLATE), b->before, b->head.n_before * sizeof *b->before);
    memcpy((uint32_t *)section(&w, CLB_TEMPLATE) + b->head.n_before, b->after,
           b->head.n_after * sizeof *b->after);
    ok = find_whole(&w);
done:
    if (!ok)
        clb_text_free(out);
    clb_trie_free(&w.trie);
    return ok;
}
