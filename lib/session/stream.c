#include "lib/session/stream.h"

#include "lib/base/mem.h"

/* -- stop texts -------------------------------------------------------------------------------- */

static struct clb_str stop_text(const struct clb_stops *s, size_t i)
{
    size_t start = i ? s->end[i - 1] : 0;

    return (struct clb_str){ s->bytes + start, s->end[i] - start };
}

bool clb_stops_init(struct clb_stops *s, const char *const *text, const size_t *size, size_t n,
                    struct clb_err *err)
{
    struct clb_text all = { 0 };

    *s = (struct clb_stops){ .n = n };
    if (n > CLB_MOST_STOPS)
        return clb_fail(err, CLB_USAGE, "%zu stop texts: at most %d are possible", n,
                        CLB_MOST_STOPS);
    for (size_t i = 0; i < n; i++) {
        size_t length = size ? size[i] : strlen(text[i]);

        if (length == 0) {
            clb_text_free(&all);
            return clb_fail(err, CLB_USAGE, "a stop text is empty");
        }
        clb_text_add(&all, text[i], length);
        s->end[i] = all.n;
        s->longest = length > s->longest ? length : s->longest;
    }
    s->bytes = all.p;
    return !all.failed || clb_fail_nomem(err, all.n);
}

void clb_stops_done(struct clb_stops *s)
{
    clb_free(s->bytes);
    s->bytes = NULL;
}

/* Where the first stop text begins that is in t whole; t->n when there is none. */
static size_t find_stop(const struct clb_stops *s, const struct clb_text *t)
{
    size_t first = t->n;

    for (size_t i = 0; i < s->n; i++) {
        struct clb_str stop = stop_text(s, i);
        const char *found = memmem(t->p, t->n, stop.p, stop.n);
        if (found && (size_t)(found - t->p) < first)
            first = (size_t)(found - t->p);
    }
    return first;
}

/* Bytes at the end of the text that could be the start of a stop text. */
static size_t doubtful(const struct clb_stops *s, const struct clb_text *t)
{
    size_t most = 0;

    for (size_t i = 0; i < s->n; i++) {
        struct clb_str stop = stop_text(s, i);
        size_t n = stop.n - 1 < t->n ? stop.n - 1 : t->n;
        while (n > most && memcmp(t->p + t->n - n, stop.p, n) != 0)
            n--;
        most = n > most ? n : most;
    }
    return most;
}

/* -- the stream -------------------------------------------------------------------------------- */

/* Room for what may have to wait, and one piece more. */
static bool reserve(struct clb_stream *s, size_t most_piece, struct clb_err *err)
{
    size_t room = s->stops->longest + most_piece + 1;

    s->held.p = clb_grow(NULL, room, 1, err);
    if (!s->held.p)
        return false;
    s->held.p[0] = '\0';
    s->held.room = room;
    return true;
}

bool clb_stream_open(struct clb_stream *s, const struct clb_tokenizer *t,
                     const struct clb_stops *stops, const int32_t *before, size_t n,
                     struct clb_err *err)
{
    struct clb_str ignored;

    *s = (struct clb_stream){ .stops = stops };
    if (!t)
        return true;
    bool ok = clb_decoder_open(&s->decoder, t, true, err);
    for (size_t i = 0; ok && i < n; i++)
        ok = clb_decoder_feed(s->decoder, before[i], &ignored, err);
    if (ok && (stops->n == 0 || reserve(s, clb_decoder_most(t), err)))
        return true;
    clb_stream_close(s);
    return false;
}

void clb_stream_close(struct clb_stream *s)
{
    clb_decoder_close(s->decoder);
    clb_text_free(&s->held);
    *s = (struct clb_stream){ 0 };
}

/* Holds back what may be the start of a stop text. */
static bool sift(struct clb_stream *s, struct clb_str *text, bool *stopped, struct clb_err *err)
{
    struct clb_text *held = &s->held;

    if (s->stops->n == 0)
        return true;
    memmove(held->p, held->p + s->given, held->n - s->given);
    held->n -= s->given;
    clb_text_add(held, text->p, text->n);
    if (held->failed)
        return clb_fail_nomem(err, held->n + text->n);
    size_t stop = find_stop(s->stops, held);
    *stopped = stop < held->n;
    s->given = *stopped ? stop : held->n - doubtful(s->stops, held);
    *text = (struct clb_str){ held->p, s->given };
    return true;
}

bool clb_stream_feed(struct clb_stream *s, int32_t id, struct clb_str *text, bool *stopped,
                     struct clb_err *err)
{
    *text = (struct clb_str){ "", 0 };
    *stopped = false;
    return !s->decoder ||
           (clb_decoder_feed(s->decoder, id, text, err) && sift(s, text, stopped, err));
}

bool clb_stream_flush(struct clb_stream *s, struct clb_str *text, bool *stopped,
                      struct clb_err *err)
{
    *text = (struct clb_str){ "", 0 };
    *stopped = false;
    if (!s->decoder)
        return true;
    if (!clb_decoder_flush(s->decoder, text, err) || !sift(s, text, stopped, err))
        return false;
    if (s->stops->n && !*stopped) { /* nothing can follow that would make a stop text of it */
        *text = (struct clb_str){ s->held.p, s->held.n };
        s->given = s->held.n;
    }
    return true;
}
