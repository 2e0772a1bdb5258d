/* spm_normal.c - the normaliser of SentencePiece models.
 *
 * A model brings its own map from texts to texts: a double array (Darts), kept as it was published.
 * From the root, byte b leads from unit i to unit (i ^ offset(i)) ^ b, if that has the label b. If
 * it has a leaf, the unit at its own offset holds a value: where in `with` the replacement starts,
 * up to a NUL. The longest text of the map that stands at a place is replaced. Every index is
 * checked where it is used: a damaged map changes text, but reads nothing outside. */
#include "lib/token/spm_normal.h"

#include "lib/token/utf8.h"

static const char mark[] = "\xe2\x96\x81"; /* U+2581 stands for a space */

struct map {
    const struct clb_tokenizer *t;
    const uint32_t *unit;
    uint32_t n_unit, defined; /* trie of user-defined pieces, or CLB_NO_ID */
    struct clb_str with;
};

bool clb_spm_check(const struct clb_tokenizer *t, const struct clb_step *step, struct clb_err *err)
{
    uint64_t all = t->head->section[CLB_PROGRAMS].size / 4;

    return (step->text.at <= all && step->text.n <= all - step->text.at) ||
           clb_fail(err, CLB_BAD_INPUT, "a map of %u words at %u lies outside of section PROGRAMS",
                    step->text.n, step->text.at);
}

static uint32_t offset_of(uint32_t unit)
{
    return unit >> 10 << (unit >> 6 & 8);
}

/* Bytes of the longest text of the map at p; 0: none stands there. */
static size_t longest_rule(const struct map *m, const char *p, const char *end, struct clb_str *out)
{
    uint32_t at = 0;
    size_t taken = 0;

    if (!m->n_unit)
        return 0;
    at ^= offset_of(m->unit[0]);
    for (const char *q = p; q < end; q++) {
        at ^= (uint8_t)*q;
        if (at >= m->n_unit || (m->unit[at] & 0x800000ffu) != (uint8_t)*q)
            break;
        uint32_t unit = m->unit[at];
        at ^= offset_of(unit);
        if (!(unit >> 8 & 1) || at >= m->n_unit)
            continue;
        uint32_t value = m->unit[at] & 0x7fffffffu;
        if (value >= m->with.n)
            continue;
        taken = (size_t)(q - p) + 1;
        *out = (struct clb_str){ m->with.p + value, strnlen(m->with.p + value, m->with.n - value) };
    }
    return taken;
}

/* What the text at p < end becomes; bytes taken. */
static size_t next(const struct map *m, const char *p, const char *end, struct clb_str *out)
{
    const char *stop;
    unsigned n;

    if (m->defined != CLB_NO_ID && clb_trie_longest(m->t, m->defined, p, end, &stop) != CLB_NO_ID) {
        *out = (struct clb_str){ p, (size_t)(stop - p) };
        return out->n;
    }
    size_t taken = longest_rule(m, p, end, out);
    if (taken)
        return taken;
    clb_utf8_get(p, end, &n);
    *out = (struct clb_str){ p, n };
    return n;
}

static void add(struct clb_text *out, struct clb_str s, bool escape)
{
    const char *end = s.p + s.n, *space;

    while (escape && (space = memchr(s.p, ' ', (size_t)(end - s.p)))) {
        clb_text_add(out, s.p, (size_t)(space - s.p));
        clb_text_puts(out, mark);
        s.p = space + 1;
    }
    clb_text_add(out, s.p, (size_t)(end - s.p));
}

static void remove_end(struct clb_text *out, size_t before, struct clb_str space)
{
    while (out->n - before >= space.n && !memcmp(out->p + out->n - space.n, space.p, space.n)) {
        out->n -= space.n;
        out->p[out->n] = 0;
    }
}

static const char *skip_spaces(const struct map *m, const char *p, const char *end)
{
    struct clb_str s;

    while (p < end) {
        size_t taken = next(m, p, end, &s);
        if (!clb_str_is(s, " "))
            break;
        p += taken;
    }
    return p;
}

void clb_spm_normalise(const struct clb_tokenizer *t, const struct clb_step *step,
                       struct clb_part part, struct clb_text *out)
{
    const struct map m = { t, t->programs + step->text.at, step->text.n, t->head->trie_root[1],
                           clb_tables_string(t, step->with) };
    const bool escape = step->arg & CLB_SPM_ESCAPE, drop = step->arg & CLB_SPM_REMOVE;
    const struct clb_str space = clb_str(escape ? mark : " ");
    size_t before = out->n;
    bool after_space = drop, dummy = step->arg & CLB_SPM_DUMMY && clb_is_first(part);
    const char *p = drop ? skip_spaces(&m, part.s, part.end) : part.s;
    struct clb_str s;

    if (p == part.end)
        return;
    if (dummy && !(step->arg & CLB_SPM_SUFFIX))
        clb_text_add(out, space.p, space.n);
    for (; p < part.end && !out->failed;) {
        p += next(&m, p, part.end, &s);
        for (; after_space && s.n && *s.p == ' '; s.n--)
            s.p++;
        add(out, s, escape);
        if (s.n)
            after_space = drop && s.p[s.n - 1] == ' ';
    }
    if (drop && !out->failed)
        remove_end(out, before, space);
    if (dummy && step->arg & CLB_SPM_SUFFIX)
        clb_text_add(out, space.p, space.n);
}
