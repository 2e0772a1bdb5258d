#include "lib/import/tiktoken.h"

#include <stdarg.h>
#include <stdio.h>

#include "lib/base/mem.h"
#include "lib/import/hf_regex.h"
#include "lib/import/tiktoken_impl.h"

enum { MOST_IN_TOKEN = 1024, MOST_RANKS = 1 << 24 };

bool clb_tik_fail(const struct tik *t, const char *file, const char *fmt, ...)
{
    char why[384];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    clb_fail(t->err, CLB_BAD_INPUT, "%s: %s", file, why);
    return clb_err_place(t->err, file, NULL, CLB_NO_OFFSET);
}

bool clb_tiktoken_refuse(const char *file, const char *why, struct clb_err *err)
{
    clb_fail(err, CLB_BAD_INPUT,
             "%s: a tiktoken vocabulary does not say how text is split, and %s; put a "
             "tokenizer.json beside it, or take it out of the folder to use token ids only",
             file, why);
    return clb_err_place(err, file, NULL, CLB_NO_OFFSET);
}

/* -- lines ------------------------------------------------------------------------------------ */

/* The six bits of a letter, or -1. */
static int six_bits(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Appends the bytes that s stands for. False if it is not base64, or not as an encoder writes it.
 */
static bool add_base64(struct clb_text *out, struct clb_str s)
{
    size_t n = s.n;

    if (n == 0 || n % 4)
        return false;
    n -= s.p[n - 1] == '=';
    n -= n < s.n && s.p[n - 1] == '=';
    uint32_t bits = 0;
    for (size_t i = 0; i < n; i++) {
        int six = six_bits(s.p[i]);
        if (six < 0)
            return false;
        bits = bits << 6 | (uint32_t)six;
        if (i % 4)
            clb_text_add(out, &(char){ (char)(bits >> (6 - 2 * (i % 4))) }, 1);
    }
    /* the bits that a padded end has too many are 0 */
    return (bits & ((1u << 2 * (s.n - n)) - 1)) == 0;
}

/* Digits only, nothing in front. */
static bool read_rank(struct clb_str s, uint32_t *rank)
{
    uint64_t v = 0;

    if (s.n == 0 || s.n > 9 || (s.n > 1 && *s.p == '0'))
        return false;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
        v = v * 10 + (uint64_t)(s.p[i] - '0');
    }
    *rank = (uint32_t)v;
    return true;
}

/* The next line that is not empty, without its end. */
static bool next_line(struct clb_str *rest, struct clb_str *line, uint32_t *number)
{
    do {
        if (!rest->n)
            return false;
        const char *end = memchr(rest->p, '\n', rest->n);
        size_t n = end ? (size_t)(end - rest->p) : rest->n, used = n + (end != NULL);
        *line = (struct clb_str){ rest->p, n };
        *rest = (struct clb_str){ rest->p + used, rest->n - used };
        line->n -= n && line->p[n - 1] == '\r';
        ++*number;
    } while (!line->n);
    return true;
}

static bool count_ranks(struct tik *t)
{
    const struct clb_tiktoken_source *s = t->source;
    struct clb_str rest = s->model, line;
    uint32_t number = 0, most = s->vocab_size < MOST_RANKS ? s->vocab_size : MOST_RANKS;

    while (next_line(&rest, &line, &number))
        t->n_rank++;
    if (!t->n_rank)
        return clb_tik_fail(t, s->file, "has no tokens");
    if (t->n_rank <= most)
        return true;
    if (most == MOST_RANKS)
        return clb_tik_fail(t, s->file, "%u tokens, but %u are the most", t->n_rank, most);
    return clb_tik_fail(t, s->file, "%u tokens, but the model has a vocabulary of %u", t->n_rank,
                        most);
}

/* -- tokens ----------------------------------------------------------------------------------- */

/* raw: the token's bytes; name: the same as byte-level vocabularies spell it. */
static bool add_token(struct tik *t, struct clb_str raw, struct clb_str name, uint32_t rank,
                      uint32_t number)
{
    const char *file = t->source->file;
    struct clb_build *b = &t->b;

    if (raw.n > MOST_IN_TOKEN)
        return clb_tik_fail(t, file, "line %u: a token of %zu bytes, but %d are supported", number,
                            raw.n, MOST_IN_TOKEN);
    if (rank >= t->n_rank)
        return clb_tik_fail(t, file, "line %u: rank %u, but there are only %u tokens", number, rank,
                            t->n_rank);
    if (rank < b->n_piece && b->piece[rank].flags & CLB_PIECE_EXISTS)
        return clb_tik_fail(t, file, "line %u: rank %u is there twice", number, rank);
    if (clb_build_find(b, name) != CLB_NO_ID)
        return clb_tik_fail(t, file, "line %u: the token has rank %u already", number,
                            clb_build_find(b, name));
    if (!clb_build_add(b, name, rank, t->err))
        return clb_fail_in(t->err, "%s", file);
    struct clb_build_piece *p = &b->piece[rank];
    p->flags |= CLB_PIECE_MODEL;
    p->text = clb_str_eq(raw, name) ? p->content : clb_build_bytes(b, raw);
    return !b->bytes.failed || clb_fail_nomem(t->err, b->bytes.n);
}

static bool read_line(struct tik *t, struct clb_str line, uint32_t number, struct clb_text *raw,
                      struct clb_text *name)
{
    const char *space = memchr(line.p, ' ', line.n);
    size_t n = space ? (size_t)(space - line.p) : line.n;
    uint32_t rank;

    clb_text_clear(raw);
    clb_text_clear(name);
    if (!space)
        return clb_tik_fail(t, t->source->file,
                            "line %u: a token in base64, a space and its rank are expected",
                            number);
    if (!add_base64(raw, (struct clb_str){ line.p, n }))
        return clb_tik_fail(t, t->source->file, "line %u: '%.*s' is no base64", number,
                            (int)(n < 80 ? n : 80), line.p);
    if (!read_rank((struct clb_str){ space + 1, line.n - n - 1 }, &rank))
        return clb_tik_fail(t, t->source->file, "line %u: '%.*s' is no rank", number,
                            (int)(line.n - n - 1 < 80 ? line.n - n - 1 : 80), space + 1);
    clb_byte_level_write((struct clb_str){ raw->p, raw->n }, name);
    if (raw->failed || name->failed)
        return clb_fail_nomem(t->err, line.n);
    return add_token(t, (struct clb_str){ raw->p, raw->n }, (struct clb_str){ name->p, name->n },
                     rank, number);
}

static bool all_bytes(struct tik *t)
{
    bool ok = true;

    for (unsigned byte = 0; ok && byte < 256; byte++) {
        struct clb_text name = { 0 };
        clb_byte_level_write((struct clb_str){ &(char){ (char)byte }, 1 }, &name);
        if (name.failed)
            ok = clb_fail_nomem(t->err, 2);
        else if (clb_build_find(&t->b, (struct clb_str){ name.p, name.n }) == CLB_NO_ID)
            ok = clb_tik_fail(t, t->source->file, "there is no token for the byte 0x%02x", byte);
        clb_text_free(&name);
    }
    return ok;
}

static bool tokens(struct tik *t)
{
    struct clb_str rest = t->source->model, line;
    struct clb_text raw = { 0 }, name = { 0 };
    uint32_t number = 0;
    bool ok = count_ranks(t);

    while (ok && next_line(&rest, &line, &number))
        ok = read_line(t, line, number, &raw, &name);
    clb_text_free(&raw);
    clb_text_free(&name);
    return ok && all_bytes(t);
}

/* -- merges ----------------------------------------------------------------------------------- */

/* A token on its way from its bytes: part i is [cut[i], cut[i + 1]) of its name. */
struct parts {
    struct clb_str name;
    uint32_t cut[MOST_IN_TOKEN + 1], rank[MOST_IN_TOKEN]; /* rank: of parts i and i + 1 joined */
    uint32_t n;
};

static uint32_t find_parts(const struct tik *t, const struct parts *p, uint32_t i, uint32_t n)
{
    return clb_build_find(&t->b,
                          (struct clb_str){ p->name.p + p->cut[i], p->cut[i + n] - p->cut[i] });
}

/* Joins the neighbours of the lowest rank, the leftmost of equals, until two parts are left or no
 * neighbours are a token. */
static void join(const struct tik *t, struct parts *p)
{
    for (uint32_t i = 0; i + 1 < p->n; i++)
        p->rank[i] = find_parts(t, p, i, 2);
    while (p->n > 2) {
        uint32_t best = 0;
        for (uint32_t i = 1; i + 1 < p->n; i++)
            if (p->rank[i] < p->rank[best])
                best = i;
        if (p->rank[best] == CLB_NO_ID)
            return;
        p->n--;
        memmove(p->cut + best + 1, p->cut + best + 2, (p->n - best) * sizeof *p->cut);
        memmove(p->rank + best, p->rank + best + 1, (p->n - best - 1) * sizeof *p->rank);
        for (uint32_t i = best ? best - 1 : 0; i <= best && i + 1 < p->n; i++)
            p->rank[i] = find_parts(t, p, i, 2);
    }
}

/* tiktoken joins any two neighbours that together are a token, the lowest rank first. Where it
 * joins two parts to a token, nothing before went over the token's borders: they came from its
 * bytes as they would have if it stood alone. So one pair is enough for each token, the last one
 * of that; a token that does not come from its bytes is found only as a whole word. */
static bool merges(struct tik *t)
{
    struct parts p;
    bool ok = true;

    for (uint32_t id = 0; ok && id < t->n_rank; id++) {
        p.name = clb_build_name(&t->b, id);
        p.n = 0;
        for (uint32_t at = 0; at < p.name.n; at++)
            if ((p.name.p[at] & 0xc0) != 0x80) /* every character of the name is a byte */
                p.cut[p.n++] = at;
        p.cut[p.n] = (uint32_t)p.name.n;
        if (p.n < 2)
            continue;
        join(t, &p);
        if (p.n == 2)
            ok = clb_build_add_merge(&t->b,
                                     (struct clb_build_merge){ find_parts(t, &p, 0, 1),
                                                               find_parts(t, &p, 1, 1), id, id },
                                     t->err);
    }
    return ok;
}

/* -- all -------------------------------------------------------------------------------------- */

static bool add_split(struct tik *t)
{
    struct clb_step *step = &t->b.step[t->b.head.n_split++];
    uint32_t at = (uint32_t)(t->b.programs.n / 4);

    *step = (struct clb_step){ .op = CLB_SPLIT, .arg = CLB_ISOLATED, .find = CLB_FIND_PROGRAM };
    if (!clb_hf_regex_compile(&t->b.programs, clb_str(t->class->pattern), t->err))
        return clb_fail_in(t->err, "%s", t->class->name);
    step->text = (struct clb_span){ at, (uint32_t)(t->b.programs.n / 4) - at };
    return true;
}

bool clb_tiktoken_compile(struct clb_text *out, const struct clb_tiktoken_source *source,
                          struct clb_err *err)
{
    struct tik t = { .source = source, .err = err };
    struct clb_tables_head *h = &t.b.head;

    h->model = CLB_MODEL_BPE;
    h->model_flags = CLB_MODEL_BYTE_LEVEL | CLB_MODEL_IGNORE_MERGES;
    h->decoder_flags = CLB_DECODE_BYTES;
    h->unk = CLB_NO_ID;
    bool ok = clb_tik_class(&t) && add_split(&t) && tokens(&t) && merges(&t);
    clb_build_find_bytes(&t.b);
    ok = ok && clb_tik_special(&t);
    if (ok && !clb_build_write(&t.b, out, err))
        ok = clb_fail_in(err, "%s", source->file);
    clb_build_free(&t.b);
    return ok;
}
