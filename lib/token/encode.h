/* encode.h - the state of one call of clb_encode, and the stages it goes through:
 *
 *   text -> added.c    added tokens of the raw text are cut out
 *        -> normal.c   the rest is normalised; then normalised added tokens are cut out
 *        -> pretok.c   the rest is split into words
 *        -> bpe.c or unigram.c   a word becomes ids
 *
 * Each stage calls the next for every part it finds. All return false when e->err is filled. */
#ifndef CLB_TOKEN_ENCODE_H
#define CLB_TOKEN_ENCODE_H

#include "lib/token/tables.h"

/* A part of the text. What stands before `zero` was made of the first character of the text given
 * by the caller: a part that starts there counts as its beginning. */
struct clb_part {
    const char *s, *end, *zero;
};
static inline bool clb_is_first(struct clb_part p)
{
    return p.s < p.zero;
}

/* A word that was encoded before. Of most texts nine words in ten were. */
struct clb_seen_word {
    uint8_t n_text, n_id; /* n_text 0: empty */
    char text[30];
    uint32_t id[8];
};
enum { CLB_SEEN_WORDS = 1 << 12 };
_Static_assert(sizeof(struct clb_seen_word) == 64, "a line of the cache");

struct clb_encoder {
    const struct clb_tokenizer *t;
    bool parse_special;
    bool no_special; /* merging must not give special tokens, and could */
    const uint8_t *origin; /* of clb_encode_options; NULL: none */
    const char *whole;     /* the text that it belongs to */
    struct clb_ids *ids;
    size_t stop; /* no more than so many in ids */
    struct clb_err *err;
    uint64_t budget; /* steps that compiled patterns may still take: they could take for ever */
    struct clb_text text[2];             /* normaliser: from one into the other */
    struct clb_text step[CLB_MAX_STEPS]; /* pre-tokeniser: what step i made of its part */
    struct {
        uint32_t *id, *next, *prev; /* owned; room each */
        size_t room;
        uint64_t *heap; /* owned; rank << 32 | position */
        size_t n_heap, heap_room;
    } word;
    struct clb_seen_word *seen; /* [CLB_SEEN_WORDS] owned; NULL: the text is too short for it */
    struct clb_best *best;      /* owned; unigram.c */
    size_t best_room;
};

/* Finds added tokens of the trie (0 raw text, 1 normalised text); what lies between goes to `rest`.
 */
bool clb_added_split(struct clb_encoder *e, int trie, struct clb_part part,
                     bool (*rest)(struct clb_encoder *e, struct clb_part part));
/* The parts between raw added tokens. */
bool clb_normalise_part(struct clb_encoder *e, struct clb_part part);
bool clb_pretok_part(struct clb_encoder *e, struct clb_part part);
bool clb_bpe_word(struct clb_encoder *e, const char *s, size_t n);
bool clb_unigram_word(struct clb_encoder *e, const char *s, size_t n);
/* A word, or a part of one over whose borders nothing merges. */
bool clb_bpe_part(struct clb_encoder *e, const char *s, size_t n);
void clb_encoder_done(struct clb_encoder *e); /* releases what e owns, but not ids */

/* One step that changes text (CLB_DO_*): appends the result to out, which is empty, and says what
 * part that is (of out; with p NULL if memory ended). Shared by normaliser and pre-tokeniser. */
struct clb_part clb_step_apply(const struct clb_tokenizer *t, const struct clb_step *step,
                               struct clb_part part, struct clb_text *out, uint64_t *budget);

bool clb_ids_grow(struct clb_ids *ids, size_t more, struct clb_err *err);
bool clb_too_long(const struct clb_encoder *e); /* the budget is used up: fills err */
/* A special token of the model, which text must not become. */
static inline bool clb_is_barred(const struct clb_encoder *e, uint32_t id)
{
    return e->no_special && clb_piece_flags(e->t, id) & CLB_PIECE_SPECIAL && id != e->t->head->unk;
}
/* The id of a word that is a piece, or CLB_NO_ID. */
static inline uint32_t clb_word_id(const struct clb_encoder *e, const char *s, size_t n)
{
    uint32_t id = clb_key_find(e->t, s, n);

    return id != CLB_NO_ID && clb_is_barred(e, id) ? CLB_NO_ID : id;
}
/* Ids of the bytes of s, if each has a piece <0xNN>: fills out[n]. */
bool clb_fall_back(const struct clb_encoder *e, const char *s, size_t n, uint32_t *out);

bool clb_damaged(const struct clb_encoder *e, const char *what, uint32_t value);

static inline bool clb_push_id(struct clb_encoder *e, uint32_t id)
{
    struct clb_ids *ids = e->ids;

    if (ids->n == ids->room && !clb_ids_grow(ids, 1, e->err))
        return false;
    if (id >= e->t->head->n_piece)
        return clb_damaged(e, "id", id);
    ids->id[ids->n++] = (int32_t)id;
    return ids->n < e->stop;
}

#endif
