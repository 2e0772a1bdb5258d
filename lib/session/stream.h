/* stream.h - new tokens become text: whole characters, as soon as they are certain, and nothing of
 * a text that ends the answer. */
#ifndef CLB_SESSION_STREAM_H
#define CLB_SESSION_STREAM_H

#include "lib/base/str.h"
#include "lib/token/tokenizer.h"

enum { CLB_MOST_STOPS = 64 };

/* Texts that end an answer. */
struct clb_stops {
    char *bytes; /* owned: one behind the other */
    size_t end[CLB_MOST_STOPS], n;
    size_t longest;
};
/* CLB_USAGE when one is empty or there are too many. size NULL: they end in NUL. */
bool clb_stops_init(struct clb_stops *s, const char *const *text, const size_t *size, size_t n,
                    struct clb_err *err);
void clb_stops_done(struct clb_stops *s);

struct clb_stream {
    struct clb_decoder *decoder;   /* owned; NULL: ids only, there is no text */
    const struct clb_stops *stops; /* borrowed */
    struct clb_text held;          /* not certain yet, behind what was given last */
    size_t given;                  /* bytes of it that the last call gave */
};
/* Reserves all memory that feeding needs. `before` [n]: what the text goes on from, so that it does
 * not begin as texts do; what it says is dropped. A NULL tokenizer: no text. */
bool clb_stream_open(struct clb_stream *s, const struct clb_tokenizer *t,
                     const struct clb_stops *stops, const int32_t *before, size_t n,
                     struct clb_err *err);
void clb_stream_close(struct clb_stream *s);
/* Text that became certain with a token, borrowed until the next call. *stopped: a stop text was
 * found, *text is what came before it, and nothing may follow. */
bool clb_stream_feed(struct clb_stream *s, int32_t id, struct clb_str *text, bool *stopped,
                     struct clb_err *err);
/* The rest at the end of an answer that was not stopped. */
bool clb_stream_flush(struct clb_stream *s, struct clb_str *text, bool *stopped,
                      struct clb_err *err);

#endif
