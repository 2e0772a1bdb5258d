/* batch.h - continuous batching: sessions that share each pass, row by row.
 *
 * A step takes one row of every session that has just one token to compute (it is decoding), then
 * rows of the others' prompts, shared evenly, up to prefill_chunk of them. So a long prompt delays
 * nobody by more than a chunk, and no session waits for another to finish. KV blocks come from the
 * batch's pool and are taken when tokens are fed.
 *
 * A batch and its sessions are used by one thread at a time; batches of one model by any number. */
#ifndef CLB_SESSION_BATCH_H
#define CLB_SESSION_BATCH_H

#include "lib/session/runner.h"
#include "lib/session/session.h"

struct clb_batch_options {
    uint32_t max_sessions;  /* 0: 1 */
    uint32_t context;       /* 0: the smaller of max_positions and 4096 */
    uint32_t prefill_chunk; /* 0: 512 */
    uint64_t kv_tokens;     /* 0: max_sessions * context */
    bool kv_default;        /* what suits file and backend instead of kv_dtype */
    enum clb_kv_dtype kv_dtype;
    uint32_t experts_per_token; /* 0: the model's */
    uint32_t logit_rows; /* rows of one pass beside the last ones whose logits on_rows can get; 0:
                            what fits in 16 MB */
    bool profile;
};

struct clb_batch;

bool clb_batch_plan(struct clb_memory_plan *p, struct clb_model *m,
                    const struct clb_batch_options *o, struct clb_err *err);
/* Reserves everything: from here on no token allocates. */
bool clb_batch_open(struct clb_batch **out, struct clb_model *m, const struct clb_batch_options *o,
                    struct clb_err *err);
void clb_batch_close(struct clb_batch *b); /* and its sessions; NULL is fine */
/* One pass. Sessions whose fed tokens are all computed by it have logits afterwards: *n_ready of
 * them. On failure no session has changed, except that logits are gone. */
bool clb_batch_step(struct clb_batch *b, size_t *n_ready, struct clb_err *err);
struct clb_model *clb_batch_model(const struct clb_batch *b);
/* NULL when opened without `profile`. */
const struct clb_profile *clb_batch_profile(const struct clb_batch *b);
void clb_batch_profile_reset(struct clb_batch *b);

#endif
