/* pretok.c - splitting text into the words that the model encodes on their own.
 *
 * The steps of the pre-tokeniser are nested, not run one after the other over lists: a step gives
 * each of its parts to the next step, the last one to the model. */
#include "lib/token/encode.h"
#include "lib/token/pattern.h"

static bool run_step(struct clb_encoder *e, uint32_t i, struct clb_part part);

static bool give(struct clb_encoder *e, uint32_t i, struct clb_part whole, const char *from,
                 const char *to)
{
    if (from == to)
        return true;
    return run_step(e, i + 1, (struct clb_part){ from, to, whole.zero });
}

/* What merges with what: a split sees the parts in order and gives them on, joined as its behaviour
 * says. */
struct split {
    struct clb_encoder *e;
    uint32_t i;
    struct clb_part whole;
    enum clb_behavior how;
    const char *held, *held_end; /* part that may still grow; NULL: none */
    bool held_match;
};

static bool release(struct split *s)
{
    const char *from = s->held;

    s->held = NULL;
    return !from || give(s->e, s->i, s->whole, from, s->held_end);
}

static bool hold(struct split *s, const char *from, const char *to, bool match)
{
    if (!release(s))
        return false;
    s->held = from;
    s->held_end = to;
    s->held_match = match;
    return true;
}

static bool see(struct split *s, const char *from, const char *to, bool match)
{
    switch (s->how) {
    case CLB_REMOVED:
        return match || give(s->e, s->i, s->whole, from, to);
    case CLB_CONTIGUOUS:
        if (!s->held || s->held_match != match)
            return hold(s, from, to, match);
        s->held_end = to;
        return true;
    case CLB_MERGED_PREVIOUS: /* a match that follows text belongs to it; other matches stand alone
                               */
        if (!s->held || s->held_match || !match)
            return hold(s, from, to, match);
        s->held_end = to;
        s->held_match = true;
        return true;
    case CLB_MERGED_NEXT: /* text belongs to the match before it */
        if (!s->held || !s->held_match || match)
            return hold(s, from, to, match);
        s->held_end = to;
        s->held_match = false;
        return true;
    case CLB_ISOLATED:
        break;
    }
    return give(s->e, s->i, s->whole, from, to);
}

static bool split_step(struct clb_encoder *e, uint32_t i, struct clb_part part)
{
    const struct clb_step *step = &e->t->split[i];
    bool invert = step->arg & CLB_INVERT;
    struct split s = { .e = e, .i = i, .whole = part, .how = step->arg & 0xff };
    const char *at = part.s, *from = part.s, *to;

    for (; clb_pattern_find(e->t, step, &part, &from, &to, &e->budget); at = from = to) {
        if (from > at && !see(&s, at, from, invert))
            return false;
        if (!see(&s, from, to, !invert))
            return false;
    }
    if (!e->budget)
        return clb_too_long(e);
    if (at < part.end && !see(&s, at, part.end, invert))
        return false;
    return release(&s);
}

static bool word(struct clb_encoder *e, const char *s, size_t n)
{
    if (n > INT32_MAX)
        return clb_fail(e->err, CLB_USAGE, "a word of %zu bytes: at most 2147483647 can be encoded",
                        n);
    return e->t->head->model == CLB_MODEL_UNIGRAM ? clb_unigram_word(e, s, n)
                                                  : clb_bpe_word(e, s, n);
}

static bool run_step(struct clb_encoder *e, uint32_t i, struct clb_part part)
{
    if (i == e->t->head->n_split)
        return word(e, part.s, (size_t)(part.end - part.s));
    const struct clb_step *step = &e->t->split[i];
    if (step->op == CLB_SPLIT)
        return split_step(e, i, part);
    struct clb_text *out = &e->step[i];
    clb_text_clear(out);
    part = clb_step_apply(e->t, step, part, out, &e->budget);
    if (out->failed)
        return clb_fail_nomem(e->err, out->n);
    if (!e->budget)
        return clb_too_long(e);
    return run_step(e, i + 1, part);
}

bool clb_pretok_part(struct clb_encoder *e, struct clb_part part)
{
    return part.s == part.end || run_step(e, 0, part);
}
