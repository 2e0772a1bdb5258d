/* scheduler.h - requests of any number of threads on one model: they wait, get a place, share each
 * pass, and answer by callbacks (colibri.h describes how).
 *
 * scheduler.c        open, close, and what any thread may call
 * scheduler_place.c  who gets a place and KV memory, and who gives them back
 * scheduler_share.c  what prompts have in common is computed once
 * scheduler_step.c   a pass, new tokens, ends */
#ifndef CLB_SESSION_SCHEDULER_H
#define CLB_SESSION_SCHEDULER_H

#include "lib/session/batch.h"
#include "lib/session/request.h"

struct clb_scheduler;

struct clb_scheduler_options {
    struct clb_batch_options batch; /* max_sessions 0: 8; kv_tokens 0: what fits */
    uint32_t max_queue;             /* 0: 1024 */
    uint32_t shared_chunk;          /* 0: 128 */
    uint32_t profile_every;         /* 0: none */
    bool no_prefix_cache;
    const struct clb_tokenizer *tokenizer; /* borrowed; NULL: ids only */
};

struct clb_scheduler_counts {
    uint32_t waiting, running; /* choices */
    uint64_t submitted, refused, finished, cancelled, failed;
    uint64_t preempted, prompt_tokens, cached_tokens, new_tokens;
    uint64_t passes, prompt_rows, new_rows;
    double prompt_seconds, new_seconds;
    struct clb_kv_counts kv;
};
/* What does not change. */
struct clb_scheduler_shape {
    uint32_t max_sequences, max_queue, context;
    enum clb_kv_dtype kv_dtype;
    uint64_t block_bytes;
};

bool clb_scheduler_plan(struct clb_memory_plan *p, struct clb_model *m,
                        const struct clb_scheduler_options *o, struct clb_err *err);
bool clb_scheduler_open(struct clb_scheduler **out, struct clb_model *m,
                        const struct clb_scheduler_options *o, struct clb_err *err);
void clb_scheduler_close(struct clb_scheduler *s); /* cancels what is left; NULL is fine */

/* -- any thread -------------------------------------------------------------------------------- */

/* CLB_BUSY: the queue is full; else as clb_request_new. */
bool clb_scheduler_submit(struct clb_scheduler *s, const struct clb_ask *ask, uint64_t *ticket,
                          struct clb_err *err);
void clb_scheduler_cancel(struct clb_scheduler *s, uint64_t ticket);
void clb_scheduler_wake(struct clb_scheduler *s);
void clb_scheduler_counts(struct clb_scheduler *s, struct clb_scheduler_counts *c);
struct clb_scheduler_shape clb_scheduler_shape(const struct clb_scheduler *s);
/* Without expert_rows. */
void clb_scheduler_profile(struct clb_scheduler *s, struct clb_profile *p);

/* -- the owner --------------------------------------------------------------------------------- */

/* -1: without limit. */
void clb_scheduler_wait(struct clb_scheduler *s, int32_t milliseconds);
/* On failure those that took part in the pass have failed; the others can go on. */
bool clb_scheduler_step(struct clb_scheduler *s, size_t *n_left, struct clb_err *err);

#endif
