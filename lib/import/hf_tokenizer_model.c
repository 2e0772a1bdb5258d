/* hf_tokenizer_model.c - which model it is; BPE: vocabulary, merges, flags. */
#include <stdio.h>

#include "lib/base/mem.h"
#include "lib/import/hf_tokenizer_impl.h"

enum { MOST_IDS = 1 << 24 };

/* -- pieces ----------------------------------------------------------------------------------- */

static struct clb_str name_of(const struct hf *h, uint32_t id)
{
    return clb_build_name(&h->b, id);
}

bool clb_hf_add_piece(struct hf *h, struct clb_json *j, struct clb_str name, uint32_t id)
{
    if (id >= h->vocab_size)
        return clb_json_fail(j, "id %u, but the model has a vocabulary of %u", id, h->vocab_size);
    if (id >= MOST_IDS)
        return clb_json_fail(j, "id %u, but %d is the most", id, MOST_IDS - 1);
    if (id < h->b.n_piece && h->b.piece[id].flags & CLB_PIECE_EXISTS) {
        struct clb_str other = name_of(h, id);
        return clb_json_fail(j, "id %u belongs to '%.*s' already", id, (int)other.n, other.p);
    }
    return clb_build_add(&h->b, name, id, h->err) || clb_fail_in(h->err, "%s", h->file);
}

bool clb_hf_finish(struct hf *h, struct clb_json *j, bool ok)
{
    if (ok || !clb_json_ok(j))
        return clb_json_close(j, h->err);
    clb_json_abandon(j);
    return false;
}

static bool vocabulary(struct hf *h, struct clb_str raw)
{
    struct clb_json j;
    struct clb_str key;
    struct clb_text name = { 0 };
    bool ok = true;

    clb_hf_open(h, &j, raw);
    clb_json_object(&j);
    while (ok && clb_json_key(&j, &key)) {
        clb_text_clear(&name);
        clb_text_add(&name, key.p, key.n);
        uint32_t id = (uint32_t)clb_json_u64(&j, UINT32_MAX);
        ok = clb_json_ok(&j) && !name.failed &&
             clb_hf_add_piece(h, &j, (struct clb_str){ name.p ? name.p : "", name.n }, id);
        if (ok) {
            h->b.piece[id].flags |= CLB_PIECE_MODEL;
            h->n_model++;
        }
    }
    if (name.failed)
        clb_fail_nomem(h->err, name.n);
    clb_text_free(&name);
    return clb_hf_finish(h, &j, ok) || clb_hf_in(h, "vocab");
}

/* -- merges ----------------------------------------------------------------------------------- */

struct merges {
    struct hf *h;
    struct clb_json *j;
    struct clb_text joined;
    bool pairs, lines; /* spellings seen */
};

static bool part(struct merges *m, struct clb_str s, uint32_t *id)
{
    *id = clb_build_find(&m->h->b, s);
    if (*id == CLB_NO_ID && clb_json_ok(m->j))
        clb_json_fail(m->j, "'%.*s' is not in the vocabulary", (int)(s.n < 100 ? s.n : 100), s.p);
    return clb_json_ok(m->j);
}

/* The two halves of the line "left right". */
static bool read_line(struct merges *m, uint32_t *left, uint32_t *right, bool *is_merge)
{
    struct clb_str s = clb_json_string(m->j);
    const char *space = s.n ? memchr(s.p, ' ', s.n) : NULL;

    *is_merge = !clb_str_starts(s, "#version");
    if (!clb_json_ok(m->j) || !*is_merge)
        return clb_json_ok(m->j);
    size_t n = space ? (size_t)(space - s.p) : 0;
    if (!space || memchr(space + 1, ' ', s.n - n - 1))
        return clb_json_fail(m->j, "a merge has two pieces with one space between them, not '%.*s'",
                             (int)(s.n < 100 ? s.n : 100), s.p);
    return part(m, (struct clb_str){ s.p, n }, left) &&
           part(m, (struct clb_str){ space + 1, s.n - n - 1 }, right);
}

static bool read_pair(struct merges *m, uint32_t *left, uint32_t *right)
{
    clb_json_array(m->j);
    if (!clb_json_item(m->j) || !part(m, clb_json_string(m->j), left) || !clb_json_item(m->j) ||
        !part(m, clb_json_string(m->j), right))
        return clb_json_fail(m->j, "a merge has two pieces");
    return !clb_json_item(m->j) ? clb_json_ok(m->j) : clb_json_fail(m->j, "a merge has two pieces");
}

static bool add_merge(struct merges *m, uint32_t left, uint32_t right)
{
    struct clb_build *b = &m->h->b;
    struct clb_str l = name_of(m->h, left), r = name_of(m->h, right);
    uint32_t prefix = b->head.word_prefix.n, id;

    if (r.n < prefix)
        return clb_json_fail(m->j, "'%.*s' is shorter than continuing_subword_prefix", (int)r.n,
                             r.p);
    clb_text_clear(&m->joined);
    clb_text_add(&m->joined, l.p, l.n);
    clb_text_add(&m->joined, r.p + prefix, r.n - prefix);
    if (m->joined.failed)
        return clb_fail_nomem(m->h->err, l.n + r.n);
    if (!part(m, (struct clb_str){ m->joined.p ? m->joined.p : "", m->joined.n }, &id))
        return false;
    return clb_build_add_merge(b, (struct clb_build_merge){ left, right, id, b->n_merge },
                               m->h->err);
}

static bool merges(struct hf *h, struct clb_str raw)
{
    struct clb_json j;
    struct merges m = { .h = h, .j = &j };
    bool ok = true;

    clb_hf_open(h, &j, raw);
    clb_json_array(&j);
    while (ok && clb_json_item(&j)) {
        uint32_t left, right;
        bool is_merge = true;
        if (clb_json_peek(&j) == CLB_JSON_ARRAY) {
            m.pairs = true;
            ok = read_pair(&m, &left, &right);
        } else {
            m.lines = true;
            ok = read_line(&m, &left, &right, &is_merge);
        }
        if (ok && m.pairs && m.lines)
            ok = clb_json_fail(&j, "merges are lines or pairs, not both");
        ok = ok && (!is_merge || add_merge(&m, left, right));
    }
    clb_text_free(&m.joined);
    return clb_hf_finish(h, &j, ok) || clb_hf_in(h, "merges");
}

/* -- model ------------------------------------------------------------------------------------ */

struct model {
    struct clb_str vocab, merges;
    struct clb_text unk;
    bool has_unk;
};

/* Prefix or suffix of the pieces of a word: null or a short text. */
static void read_affix(struct hf *h, struct clb_json *j, struct clb_span *out)
{
    if (clb_json_peek(j) == CLB_JSON_NULL) {
        clb_json_null(j);
        return;
    }
    struct clb_str s = clb_json_string(j);
    if (s.n > CLB_MAX_AFFIX)
        clb_json_fail(j, "%zu bytes, but %d are the most", s.n, CLB_MAX_AFFIX);
    else if (s.n)
        *out = clb_build_string(&h->b, s);
}

/* null counts as false. */
static void read_flag(struct hf *h, struct clb_json *j, uint32_t flag)
{
    if (clb_json_peek(j) == CLB_JSON_NULL)
        clb_json_null(j);
    else if (clb_json_bool(j))
        h->b.head.model_flags |= flag;
}

static void read_dropout(struct clb_json *j)
{
    if (clb_json_peek(j) == CLB_JSON_NULL)
        clb_json_null(j);
    else if (clb_json_f64(j) != 0)
        clb_json_fail(j, "dropout is for training: it makes every run differ");
}

static void read_unk(struct clb_json *j, struct model *m)
{
    if (clb_json_peek(j) == CLB_JSON_NULL) {
        clb_json_null(j);
        return;
    }
    struct clb_str s = clb_json_string(j);
    clb_text_add(&m->unk, s.p, s.n);
    m->has_unk = true;
}

static void read_type(struct clb_json *j)
{
    struct clb_str s = clb_json_string(j);

    if (clb_json_ok(j) && !clb_str_is(s, "BPE"))
        clb_json_fail(j, "the model '%.*s' is not supported: BPE and Unigram are", (int)s.n, s.p);
}

static bool read_model(struct hf *h, struct clb_str raw, struct model *m)
{
    struct clb_tables_head *head = &h->b.head;
    struct clb_json j;
    struct clb_str key;

    clb_hf_open(h, &j, raw);
    clb_json_object(&j);
    while (clb_json_key(&j, &key)) {
        if (clb_str_is(key, "type"))
            read_type(&j);
        else if (clb_str_is(key, "vocab"))
            clb_json_skip(&j, &m->vocab);
        else if (clb_str_is(key, "merges"))
            clb_json_skip(&j, &m->merges);
        else if (clb_str_is(key, "dropout"))
            read_dropout(&j);
        else if (clb_str_is(key, "unk_token"))
            read_unk(&j, m);
        else if (clb_str_is(key, "continuing_subword_prefix"))
            read_affix(h, &j, &head->word_prefix);
        else if (clb_str_is(key, "end_of_word_suffix"))
            read_affix(h, &j, &head->word_suffix);
        else if (clb_str_is(key, "fuse_unk"))
            read_flag(h, &j, CLB_MODEL_FUSE_UNK);
        else if (clb_str_is(key, "byte_fallback"))
            read_flag(h, &j, CLB_MODEL_BYTE_FALLBACK);
        else if (clb_str_is(key, "ignore_merges"))
            read_flag(h, &j, CLB_MODEL_IGNORE_MERGES);
        else
            clb_hf_unknown(&j, key);
    }
    if (!clb_json_close(&j, h->err))
        return clb_hf_in(h, "model");
    if (!m->vocab.p || !m->merges.p)
        return clb_hf_refuse(h, raw, "the model has no '%s': only BPE is supported",
                             m->vocab.p ? "merges" : "vocab");
    return true;
}

/* Whether every byte has a piece, so that nothing is ever unknown to a byte-level model. */
static bool has_all_bytes(const struct hf *h)
{
    bool seen[256] = { false };
    unsigned n = 0;
    struct clb_text byte = { 0 };

    for (uint32_t id = 0; id < h->b.n_piece; id++) {
        clb_text_clear(&byte);
        if (h->b.piece[id].content.n <= 2 && clb_byte_level_read(name_of(h, id), &byte) &&
            byte.n == 1) {
            n += !seen[(uint8_t)byte.p[0]];
            seen[(uint8_t)byte.p[0]] = true;
        }
    }
    clb_text_free(&byte);
    return n == 256;
}

static bool unknown_token(struct hf *h, struct clb_str raw, const struct model *m)
{
    struct clb_tables_head *head = &h->b.head;

    if (head->model_flags & CLB_MODEL_BYTE_LEVEL && has_all_bytes(h) && !head->word_prefix.n &&
        !head->word_suffix.n) {
        head->model_flags &= ~(uint32_t)CLB_MODEL_BYTE_FALLBACK;
        return true;
    }
    if (head->model_flags & CLB_MODEL_BYTE_LEVEL && head->model_flags & CLB_MODEL_BYTE_FALLBACK)
        return clb_hf_refuse(h, raw,
                             "byte_fallback with the pre-tokenizer ByteLevel is not supported");
    if (!m->has_unk)
        return true;
    head->unk = clb_build_find(&h->b, (struct clb_str){ m->unk.p ? m->unk.p : "", m->unk.n });
    return head->unk != CLB_NO_ID ||
           clb_hf_refuse(h, raw, "the unk_token '%s' is not in the vocabulary",
                         m->unk.p ? m->unk.p : "");
}

static bool read_bpe(struct hf *h, struct clb_str raw)
{
    struct model m = { 0 };
    bool ok = false;

    h->b.head.model = CLB_MODEL_BPE;
    if (!read_model(h, raw, &m))
        goto done;
    if (m.unk.failed) {
        clb_fail_nomem(h->err, m.unk.n);
        goto done;
    }
    ok = vocabulary(h, m.vocab) && merges(h, m.merges) && unknown_token(h, raw, &m);
    clb_build_find_bytes(&h->b);
done:
    clb_text_free(&m.unk);
    return ok;
}

bool clb_hf_model(struct hf *h, struct clb_str raw)
{
    struct clb_json j;
    struct clb_str key;
    bool unigram = false;

    clb_hf_open(h, &j, raw);
    clb_json_object(&j);
    while (clb_json_key(&j, &key))
        if (clb_str_is(key, "type") && clb_json_peek(&j) == CLB_JSON_STRING)
            unigram = clb_str_is(clb_json_string(&j), "Unigram");
        else
            clb_json_skip(&j, NULL);
    if (!clb_json_close(&j, h->err))
        return clb_hf_in(h, "model");
    return unigram ? clb_hf_unigram(h, raw) : read_bpe(h, raw);
}
