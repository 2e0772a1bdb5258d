/* normal.c - the steps that change text. */
#include "lib/token/encode.h"
#include "lib/token/pattern.h"
#include "lib/token/spm_normal.h"
#include "lib/token/unicode.h"
#include "lib/token/utf8.h"

/* What one replacement, and all steps together, may make of a text, so that a damaged tokenizer
 * eats neither all memory nor all day. Published ones make three bytes of one, Unicode eleven. */
enum { LONGEST_TEXT = 1 << 30, MOST_BYTES = 1 << 20, MOST_TIMES = 256 };

/* What step functions return: how many bytes of their result stand before `zero`. */

static size_t zero_of(struct clb_part part)
{
    return clb_is_first(part) ? (size_t)(part.zero - part.s) : 0;
}

static size_t strip(struct clb_part part, uint32_t sides, struct clb_text *out)
{
    const char *s = part.s, *end = part.end;
    unsigned n;

    while (sides & 1 && s < end && clb_uc(clb_utf8_get(s, end, &n)) & CLB_UC_SPACE)
        s += n;
    while (sides & 2 && s < end && clb_uc(clb_utf8_before(s, end, &n)) & CLB_UC_SPACE)
        end -= n;
    clb_text_add(out, s, (size_t)(end - s));
    return part.zero > s ? (size_t)(part.zero - s) : 0;
}

static size_t replace(const struct clb_tokenizer *t, const struct clb_step *step,
                      struct clb_part part, struct clb_text *out, uint64_t *budget)
{
    struct clb_str with = clb_tables_string(t, step->with);
    const char *at = part.s, *from = part.s, *to;
    size_t zero = 0;

    for (; clb_pattern_find(t, step, &part, &from, &to, budget); at = from = to) {
        if (at < part.zero)
            zero = out->n + (size_t)((from < part.zero ? from : part.zero) - at);
        clb_text_add(out, at, (size_t)(from - at));
        clb_text_add(out, with.p, with.n);
        if (to - 1 < part.zero)
            zero = out->n;
        if (out->n > LONGEST_TEXT) {
            out->failed = true;
            return 0;
        }
    }
    if (at < part.zero)
        zero = out->n + (size_t)(part.zero - at);
    clb_text_add(out, at, (size_t)(part.end - at));
    return zero;
}

static size_t prepend(const struct clb_tokenizer *t, const struct clb_step *step,
                      struct clb_part part, struct clb_text *out)
{
    struct clb_str with = clb_tables_string(t, step->with);
    size_t n = (size_t)(part.end - part.s), zero = zero_of(part);
    bool there = n >= with.n && !memcmp(part.s, with.p, with.n);

    if (n && (step->arg == CLB_PREPEND_ALWAYS ||
              (!there && (step->arg == CLB_PREPEND_MISSING || clb_is_first(part))))) {
        clb_text_add(out, with.p, with.n);
        zero += zero ? with.n : 0;
    }
    clb_text_add(out, part.s, n);
    return zero;
}

static size_t normalise(struct clb_part part, enum clb_form form, struct clb_text *out)
{
    size_t zero = zero_of(part), n = (size_t)(part.end - part.s);

    if (zero) {
        clb_normalise((struct clb_str){ part.s, zero < n ? zero : n }, form, out);
        zero = out->n;
        clb_text_clear(out);
    }
    clb_normalise((struct clb_str){ part.s, n }, form, out);
    return zero;
}

static size_t lower_case(struct clb_part part, struct clb_text *out)
{
    size_t zero = zero_of(part), n = (size_t)(part.end - part.s);

    zero = zero < n ? zero : n;
    clb_lower_case((struct clb_str){ part.s, zero }, out);
    size_t made = out->n;
    clb_lower_case((struct clb_str){ part.s + zero, n - zero }, out);
    return made;
}

struct clb_part clb_step_apply(const struct clb_tokenizer *t, const struct clb_step *step,
                               struct clb_part part, struct clb_text *out, uint64_t *budget)
{
    size_t zero = 0;

    switch ((enum clb_step_op)step->op) {
    case CLB_DO_NFC:
    case CLB_DO_NFD:
    case CLB_DO_NFKC:
    case CLB_DO_NFKD:
        zero = normalise(part, (enum clb_form)(step->op - CLB_DO_NFC + CLB_NFC), out);
        break;
    case CLB_DO_LOWER:
        zero = lower_case(part, out);
        break;
    case CLB_DO_STRIP:
        zero = strip(part, step->arg, out);
        break;
    case CLB_DO_REPLACE:
        zero = replace(t, step, part, out, budget);
        break;
    case CLB_DO_PREPEND:
        zero = prepend(t, step, part, out);
        break;
    case CLB_DO_SPM:
        clb_spm_normalise(t, step, part, out);
        break;
    case CLB_SPLIT:
    case CLB_N_OP:
        break;
    }
    if (out->failed || !out->p)
        return (struct clb_part){ NULL, NULL, NULL };
    while (zero < out->n && ((uint8_t)out->p[zero] & 0xc0) == 0x80) /* composed with what follows */
        zero++;
    return (struct clb_part){ out->p, out->p + out->n, out->p + (zero < out->n ? zero : out->n) };
}

/* A normalisation that would change nothing is left out, so that most text is never copied. */
static bool changes(const struct clb_step *step, struct clb_part part)
{
    struct clb_str s = { part.s, (size_t)(part.end - part.s) };

    if (step->op < CLB_DO_NFC || step->op > CLB_DO_NFKD)
        return true;
    return !clb_is_normal(s, (enum clb_form)(step->op - CLB_DO_NFC + CLB_NFC));
}

static bool too_much(const struct clb_encoder *e, size_t from)
{
    return clb_fail(e->err, CLB_BAD_INPUT,
                    "the normalizer of the tokenizer makes too much of %zu bytes of text", from);
}

bool clb_normalise_part(struct clb_encoder *e, struct clb_part part)
{
    const struct clb_tables_head *h = e->t->head;
    const size_t n = (size_t)(part.end - part.s);

    for (uint32_t i = 0, into = 0; i < h->n_normalise; i++) {
        if (!changes(&e->t->normalise[i], part))
            continue;
        struct clb_text *out = &e->text[into];
        clb_text_clear(out);
        part = clb_step_apply(e->t, &e->t->normalise[i], part, out, &e->budget);
        if (out->n > LONGEST_TEXT || out->n / MOST_TIMES > n + MOST_BYTES / MOST_TIMES)
            return too_much(e, n);
        if (out->failed)
            return clb_fail_nomem(e->err, out->n);
        if (!e->budget)
            return clb_too_long(e);
        if (!out->n)
            return true;
        into ^= 1;
    }
    if (h->model == CLB_MODEL_UNIGRAM && h->model_flags & CLB_MODEL_SPM)
        return clb_pretok_part(e, part);
    return clb_added_split(e, 1, part, clb_pretok_part);
}
