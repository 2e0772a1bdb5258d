/* session.h - one sequence: its tokens, its KV cache, how its tokens are chosen. Lives in a slot of
 * a batch. */
#ifndef CLB_SESSION_SESSION_H
#define CLB_SESSION_SESSION_H

#include "lib/backend/kv.h"
#include "lib/sample/sampler.h"

struct clb_batch;

/* Called after a pass for each row it computed, in order of position. */
typedef void clb_rows_fn(void *arg, size_t position, const float *logits /* [vocab] */);

struct clb_session {
    struct clb_batch *batch; /* borrowed; NULL: the slot is free */
    struct clb_kv_seq kv;    /* kv.length tokens are computed */
    int32_t *token;          /* [context] in the batch's block */
    uint32_t limit;          /* most positions, at most the context */
    uint32_t n_token;        /* fed, computed or not */
    bool is_ready;           /* the last pass has computed all tokens: there are logits */
    bool reads_logits;       /* all of them are wanted here, not just those that decide */
    uint32_t n_candidate;    /* of its row of logits in the pass at hand; 0: the whole row */
    uint32_t logit_row;      /* its row among the logits of the pass */
    const float *logits;     /* [vocab] in the batch's block; NULL: none, or still on the device */
    const struct clb_candidate *candidate; /* [n_candidate] likewise, when it is ready */
    struct clb_sampling sampling;
    clb_rows_fn *on_rows; /* NULL: only the last row's logits */
    void *on_rows_arg;
    uint32_t n_row;    /* rows in the pass that is being put together */
    uint32_t most_row; /* at most so many in the next one */
};

static inline void clb_session_forget_logits(struct clb_session *s)
{
    s->is_ready = false;
    s->logits = NULL;
}

bool clb_session_open(struct clb_session **out, struct clb_batch *b, const struct clb_sampling *s,
                      struct clb_err *err);
void clb_session_close(struct clb_session *s); /* NULL is fine */
/* Before anything is fed: the session will have at most `length` positions (else: the context of
 * the batch), by which rotations that depend on length are chosen. CLB_USAGE when it is 0, more
 * than the context, or too late. */
bool clb_session_expect(struct clb_session *s, size_t length, struct clb_err *err);
/* Appends tokens. CLB_USAGE when they do not fit in the context or are no ids of the vocabulary,
 * CLB_NO_SPACE when the pool has too few blocks left; then nothing was appended. */
bool clb_session_feed(struct clb_session *s, const int32_t *ids, size_t n, struct clb_err *err);
/* Keeps the first `length` tokens. */
bool clb_session_rewind(struct clb_session *s, size_t length, struct clb_err *err);
/* The logits of the last token, borrowed until the next step. What the device has kept is fetched;
 * from then on it comes with every pass. NULL with CLB_USAGE: there are none. */
const float *clb_session_logits(struct clb_session *s, struct clb_err *err);
/* The next token, without feeding it. */
bool clb_session_sample(struct clb_session *s, int32_t *id, struct clb_err *err);
/* Natural logarithm of the softmax probability of `id` in the current logits. */
bool clb_session_logprob(struct clb_session *s, int32_t id, float *p, struct clb_err *err);

#endif
