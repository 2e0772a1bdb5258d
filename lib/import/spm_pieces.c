/* spm_pieces.c - what becomes of the pieces of a SentencePiece model.
 *
 * A BPE model has no list of merges: two neighbours merge if together they spell a piece, the one
 * of the best score first. Listing every cut of every piece into two pieces gives the same. */
#include <float.h>
#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/import/spm_tokenizer_impl.h"
#include "lib/token/utf8.h"

static const char mark[] = "\xe2\x96\x81"; /* U+2581 stands for a space */
enum { MOST_IN_MERGE = 1024 };

/* -- pieces ----------------------------------------------------------------------------------- */

/* The byte of <0xNN>, as SentencePiece spells it, or -1. */
static int byte_of(struct clb_str s)
{
    static const char digits[] = "0123456789ABCDEF";
    const char *high = s.n == 6 && s.p[3] ? strchr(digits, s.p[3]) : NULL,
               *low = s.n == 6 && s.p[4] ? strchr(digits, s.p[4]) : NULL;

    if (!high || !low || memcmp(s.p, "<0x", 3) || s.p[5] != '>')
        return -1;
    return (int)(high - digits) * 16 + (int)(low - digits);
}

/* What the piece decodes to. */
static struct clb_span text_of(struct spm *s, const struct spm_piece *p, struct clb_span content)
{
    struct clb_text text = { 0 };
    const char *at = p->name.p, *end = at + p->name.n, *found;

    if (p->type == SPM_CONTROL)
        return (struct clb_span){ 0, 0 };
    if (p->type == SPM_UNKNOWN)
        return clb_build_bytes(&s->b, s->unk_surface);
    if (p->type == SPM_BYTE)
        return clb_build_bytes(&s->b, (struct clb_str){ &(char){ (char)byte_of(p->name) }, 1 });
    if (!memmem(at, p->name.n, mark, 3))
        return content;
    for (; (found = memmem(at, (size_t)(end - at), mark, 3)); at = found + 3) {
        clb_text_add(&text, at, (size_t)(found - at));
        clb_text_add(&text, " ", 1);
    }
    clb_text_add(&text, at, (size_t)(end - at));
    struct clb_span span = clb_build_bytes(&s->b, (struct clb_str){ text.p, text.n });
    s->b.bytes.failed |= text.failed;
    clb_text_free(&text);
    return span;
}

static uint32_t flags_of(const struct spm *s, const struct spm_piece *p)
{
    switch (p->type) {
    case SPM_NORMAL:
        return CLB_PIECE_MODEL;
    case SPM_UNKNOWN:
    case SPM_CONTROL:
        return CLB_PIECE_ADDED | CLB_PIECE_SPECIAL | CLB_PIECE_SKIP;
    case SPM_USER_DEFINED: /* in Unigram a piece like others, only better */
        return CLB_PIECE_ADDED | CLB_PIECE_NORMALISED |
               (s->kind == SPM_UNIGRAM ? CLB_PIECE_MODEL : 0u);
    case SPM_BYTE:
        return CLB_PIECE_BYTE;
    case SPM_UNUSED:
        break;
    }
    return 0;
}

static bool check_piece(const struct spm *s, const struct spm_piece *p, uint32_t id)
{
    int n = (int)(p->name.n < 80 ? p->name.n : 80);

    if (id >= s->source->vocab_size)
        return clb_spm_fail(s, "piece %u, but the model has a vocabulary of %u", id,
                            s->source->vocab_size);
    if (clb_build_find(&s->b, p->name) != CLB_NO_ID)
        return clb_spm_fail(s, "piece %u: '%.*s' is piece %u already", id, n, p->name.p,
                            clb_build_find(&s->b, p->name));
    if (p->type == SPM_BYTE && (!s->byte_fallback || byte_of(p->name) < 0))
        return clb_spm_fail(s, "piece %u: '%.*s' is said to be a byte%s", id, n, p->name.p,
                            s->byte_fallback ? "" : ", but byte_fallback is off");
    if (s->kind != SPM_BPE)
        return true;
    if (p->type == SPM_UNUSED)
        return clb_spm_fail(s, "piece %u: '%.*s' is unused, which BPE does not support", id, n,
                            p->name.p);
    return p->type != SPM_CONTROL || clb_utf8_step(p->name.p, p->name.n) != (int)p->name.n ||
           clb_spm_fail(s, "piece %u: the control piece '%.*s' of one character is not supported",
                        id, n, p->name.p);
}

static bool add_piece(struct spm *s, uint32_t id)
{
    const struct spm_piece *p = &s->piece[id];

    if (!check_piece(s, p, id))
        return false;
    if (p->type == SPM_UNKNOWN && s->b.head.unk != CLB_NO_ID)
        return clb_spm_fail(s, "pieces %u and %u are both for what is unknown", s->b.head.unk, id);
    if (p->type == SPM_UNKNOWN)
        s->b.head.unk = id;
    if (!clb_build_add(&s->b, p->name, id, s->err))
        return clb_fail_in(s->err, "%s", s->source->file);
    struct clb_build_piece *to = &s->b.piece[id];
    to->flags |= flags_of(s, p);
    to->find = to->content;
    to->text = text_of(s, p, to->content);
    return !s->b.bytes.failed || clb_fail_nomem(s->err, s->b.bytes.n);
}

static bool all_pieces(struct spm *s)
{
    unsigned n_byte = 0;

    for (uint32_t id = 0; id < s->n_piece; id++) {
        if (!add_piece(s, id))
            return false;
        n_byte += s->piece[id].type == SPM_BYTE;
    }
    if (s->b.head.unk == CLB_NO_ID)
        return clb_spm_fail(s, "there is no piece for what is unknown");
    if (s->byte_fallback && n_byte != 256)
        return clb_spm_fail(s, "byte_fallback with %u pieces for bytes instead of 256", n_byte);
    clb_build_find_bytes(&s->b);
    return true;
}

/* -- Unigram ---------------------------------------------------------------------------------- */

/* User-defined pieces are better than nearly all: a tenth for each byte but the first, whatever
 * score the file gives them. (Asked of the library, version 0.2.3: older ones had -0.1.) */
static bool scores(struct spm *s)
{
    float worst = FLT_MAX;

    s->b.score = clb_new(s->n_piece, sizeof *s->b.score, s->err);
    if (!s->b.score)
        return false;
    s->b.n_score = s->n_piece;
    for (uint32_t id = 0; id < s->n_piece; id++) {
        const struct spm_piece *p = &s->piece[id];
        float defined = (float)((double)((float)p->name.n * 0.1f) - 0.1);
        s->b.score[id] = p->type == SPM_USER_DEFINED ? defined : p->score;
        if (p->type == SPM_NORMAL && p->score < worst)
            worst = p->score;
    }
    float unknown = worst - 10.0f;
    s->b.unknown_score = unknown;
    return worst < FLT_MAX || clb_spm_fail(s, "there are no normal pieces");
}

/* -- BPE -------------------------------------------------------------------------------------- */

static int by_score(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x < y) - (x > y);
}

/* The different scores of normal pieces, the best first. Owned by the caller. */
static float *ranks(const struct spm *s, uint32_t *n)
{
    float *score = clb_new(s->n_piece, sizeof *score, s->err);
    uint32_t all = 0;

    *n = 0;
    if (!score)
        return NULL;
    for (uint32_t id = 0; id < s->n_piece; id++)
        if (s->piece[id].type == SPM_NORMAL)
            score[all++] = s->piece[id].score;
    qsort(score, all, sizeof *score, by_score);
    for (uint32_t i = 0; i < all; i++)
        if (*n == 0 || score[i] < score[*n - 1])
            score[(*n)++] = score[i];
    return score;
}

static uint32_t rank_of(const float *score, uint32_t n, float wanted)
{
    uint32_t low = 0, high = n;

    while (low + 1 < high) {
        uint32_t mid = (low + high) / 2;
        if (score[mid] >= wanted)
            low = mid;
        else
            high = mid;
    }
    return low;
}

static uint32_t normal_piece(const struct spm *s, const char *p, size_t n)
{
    uint32_t id = clb_build_find(&s->b, (struct clb_str){ p, n });

    return id != CLB_NO_ID && s->piece[id].type == SPM_NORMAL ? id : CLB_NO_ID;
}

/* Symbols that are no pieces could merge in the reference; trained models have no such pieces. */
static bool has_all_characters(const struct spm *s, uint32_t id)
{
    struct clb_str name = s->piece[id].name;
    unsigned n;

    for (size_t at = 0; at < name.n; at += n) {
        clb_utf8_get(name.p + at, name.p + name.n, &n);
        uint32_t c = clb_build_find(&s->b, (struct clb_str){ name.p + at, n });
        if (c == CLB_NO_ID ||
            (s->piece[c].type != SPM_NORMAL && s->piece[c].type != SPM_USER_DEFINED))
            return clb_spm_fail(
                s, "piece %u has the character '%.*s', which is no piece: not supported", id,
                (int)n, name.p + at);
    }
    return true;
}

static bool merges_of(struct spm *s, uint32_t id, uint32_t rank)
{
    struct clb_str name = s->piece[id].name;
    unsigned n;

    clb_utf8_get(name.p, name.p + name.n, &n);
    if (n == name.n)
        return true;
    if (name.n > MOST_IN_MERGE)
        return clb_spm_fail(s, "piece %u has %zu bytes, but BPE supports %d", id, name.n,
                            MOST_IN_MERGE);
    if (!has_all_characters(s, id))
        return false;
    for (size_t at = n; at < name.n; at += n) {
        uint32_t left = normal_piece(s, name.p, at),
                 right = normal_piece(s, name.p + at, name.n - at);
        if (left != CLB_NO_ID && right != CLB_NO_ID &&
            !clb_build_add_merge(&s->b, (struct clb_build_merge){ left, right, id, rank }, s->err))
            return false;
        clb_utf8_get(name.p + at, name.p + name.n, &n);
    }
    return true;
}

static bool merges(struct spm *s)
{
    uint32_t n;
    float *score = ranks(s, &n);
    bool ok = score;

    for (uint32_t id = 0; ok && id < s->n_piece; id++)
        if (s->piece[id].type == SPM_NORMAL)
            ok = merges_of(s, id, rank_of(score, n, s->piece[id].score));
    clb_free(score);
    return ok;
}

bool clb_spm_pieces(struct spm *s)
{
    return all_pieces(s) && (s->kind == SPM_UNIGRAM ? scores(s) : merges(s));
}
