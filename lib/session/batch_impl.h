/* batch_impl.h - the inside of a batch, shared by batch.c and session.c. */
#ifndef CLB_SESSION_BATCH_IMPL_H
#define CLB_SESSION_BATCH_IMPL_H

#include "lib/session/batch.h"

struct clb_batch {
    struct clb_runner run;
    struct clb_sampler *sampler; /* scratch: one thread at a time uses a batch */
    uint32_t max_sessions, context, prefill_chunk;
    uint32_t chunk; /* prompt rows of the next pass, at most prefill_chunk */
    struct clb_session *session; /* [max_sessions] owned */
    struct clb_session **order;  /* [max_sessions] those in the pass, as their rows are */
    uint32_t n_order;
    uint32_t n_step; /* decides who is asked first */
    float *logits;   /* [max_logits][vocab] */
};

#endif
