/* hf_tokenizer_unigram.c - the Unigram model: pieces with scores. */
#include <math.h>

#include "lib/base/mem.h"
#include "lib/import/hf_tokenizer_impl.h"

/* How much worse than the worst piece an unknown character is. */
static const double unknown_penalty = 10;

struct scores {
    uint32_t room;
    double worst;
};

static bool add_score(struct hf *h, struct scores *s, uint32_t id, double score)
{
    if (id == s->room) {
        uint32_t room = s->room ? s->room * 2 : 4096;
        double *more = clb_grow(h->b.score, room, sizeof *more, h->err);
        if (!more)
            return false;
        h->b.score = more;
        s->room = room;
    }
    h->b.score[id] = score;
    h->b.n_score = id + 1;
    s->worst = fmin(s->worst, score);
    return true;
}

/* ["piece", -12.5] */
static bool read_piece(struct hf *h, struct clb_json *j, uint32_t id, struct scores *s)
{
    struct clb_str name;
    double score = 0;
    bool full = false;

    clb_text_clear(&h->scratch);
    clb_json_array(j);
    if (clb_json_item(j)) {
        name = clb_json_string(j);
        clb_text_add(&h->scratch, name.p, name.n);
        if (clb_json_item(j)) {
            score = clb_json_f64(j);
            full = !clb_json_item(j);
        }
    }
    if (!clb_json_ok(j))
        return false;
    if (h->scratch.failed)
        return clb_fail_nomem(h->err, h->scratch.n);
    name = (struct clb_str){ h->scratch.p, h->scratch.n };
    if (!full || !name.n)
        return clb_json_fail(j, "a piece is a text that is not empty and its score");
    uint32_t other = clb_build_find(&h->b, name);
    if (other != CLB_NO_ID)
        return clb_json_fail(j, "'%.*s' is piece %u already", (int)name.n, name.p, other);
    if (!clb_hf_add_piece(h, j, name, id) || !add_score(h, s, id, score))
        return false;
    h->b.piece[id].flags |= CLB_PIECE_MODEL;
    return true;
}

static bool vocabulary(struct hf *h, struct clb_str raw)
{
    struct scores s = { .worst = INFINITY };
    struct clb_json j;
    bool ok = true;

    clb_hf_open(h, &j, raw);
    clb_json_array(&j);
    while (ok && clb_json_item(&j))
        if ((ok = read_piece(h, &j, h->n_model, &s)))
            h->n_model++;
    if (!clb_hf_finish(h, &j, ok))
        return clb_hf_in(h, "vocab");
    if (!h->n_model)
        return clb_hf_refuse(h, raw, "the vocabulary is empty");
    h->b.unknown_score = s.worst - unknown_penalty;
    return true;
}

static void read_flag(struct clb_json *j, struct hf *h)
{
    if (clb_json_peek(j) == CLB_JSON_NULL)
        clb_json_null(j);
    else if (clb_json_bool(j))
        h->b.head.model_flags |= CLB_MODEL_BYTE_FALLBACK;
}

static void read_unk(struct clb_json *j, struct hf *h)
{
    if (clb_json_peek(j) == CLB_JSON_NULL)
        clb_json_null(j);
    else
        h->b.head.unk = (uint32_t)clb_json_u64(j, INT32_MAX);
}

bool clb_hf_unigram(struct hf *h, struct clb_str raw)
{
    struct clb_json j;
    struct clb_str key, vocab = { NULL, 0 };

    h->b.head.model = CLB_MODEL_UNIGRAM;
    clb_hf_open(h, &j, raw);
    clb_json_object(&j);
    while (clb_json_key(&j, &key)) {
        if (clb_str_is(key, "type"))
            clb_json_string(&j);
        else if (clb_str_is(key, "vocab"))
            clb_json_skip(&j, &vocab);
        else if (clb_str_is(key, "unk_id"))
            read_unk(&j, h);
        else if (clb_str_is(key, "byte_fallback"))
            read_flag(&j, h);
        else
            clb_hf_unknown(&j, key);
    }
    if (!clb_json_close(&j, h->err))
        return clb_hf_in(h, "model");
    if (!vocab.p)
        return clb_hf_refuse(h, raw, "the model has no 'vocab'");
    if (h->b.head.model_flags & CLB_MODEL_BYTE_LEVEL)
        return clb_hf_refuse(h, raw, "Unigram with the pre-tokenizer ByteLevel is not supported");
    if (!vocabulary(h, vocab))
        return false;
    if (h->b.head.unk != CLB_NO_ID && h->b.head.unk >= h->n_model)
        return clb_hf_refuse(h, raw, "unk_id is %u, but there are %u pieces", h->b.head.unk,
                             h->n_model);
    clb_build_find_bytes(&h->b);
    return true;
}
