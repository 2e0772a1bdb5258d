#include "cmd/colibri-run/run.h"

static struct clb_str stop_text(const struct run_stops *s, size_t i)
{
    size_t start = i ? s->end[i - 1] : 0;

    return (struct clb_str){ s->bytes.p + start, s->end[i] - start };
}

bool run_stops_add(struct run_stops *s, struct clb_str text, struct clb_err *err)
{
    if (text.n == 0)
        return clb_fail(err, CLB_USAGE, "a stop text is empty");
    if (s->n == CLB_OPT_MANY)
        return clb_fail(err, CLB_USAGE, "more than %d stop texts", CLB_OPT_MANY);
    clb_text_add(&s->bytes, text.p, text.n);
    if (s->bytes.failed)
        return clb_fail_nomem(err, text.n);
    s->end[s->n++] = s->bytes.n;
    return true;
}

/* Bytes at the end of the text that could be the start of a stop text. */
static size_t doubtful(const struct run_stops *s, const struct clb_text *t)
{
    size_t most = 0;

    for (size_t i = 0; i < s->n; i++) {
        struct clb_str stop = stop_text(s, i);
        size_t n = stop.n - 1 < t->n ? stop.n - 1 : t->n;
        while (n > most && memcmp(t->p + t->n - n, stop.p, n))
            n--;
        most = n > most ? n : most;
    }
    return most;
}

bool run_stops_feed(const struct run_stops *s, struct clb_text *held, struct clb_str text,
                    struct clb_text *out)
{
    const char *first = NULL;

    clb_text_add(held, text.p, text.n);
    if (held->failed || held->n == 0)
        return false;
    for (size_t i = 0; i < s->n; i++) {
        struct clb_str stop = stop_text(s, i);
        const char *found = memmem(held->p, held->n, stop.p, stop.n);
        if (found && (!first || found < first))
            first = found;
    }
    size_t keep = first ? 0 : doubtful(s, held),
           give = first ? (size_t)(first - held->p) : held->n - keep;
    clb_text_add(out, held->p, give);
    if (keep)
        memmove(held->p, held->p + give, keep);
    held->n = keep;
    return first != NULL;
}
