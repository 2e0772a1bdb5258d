/* runner.h - what a batch and a colibri_infer call have in common: memory that is planned, promised
 * and reserved at once, and passes put together row by row. */
#ifndef CLB_SESSION_RUNNER_H
#define CLB_SESSION_RUNNER_H

#include "lib/base/carve.h"
#include "lib/forward/forward.h"
#include "lib/model/plan.h"

struct clb_runner_options {
    struct clb_acts_shape acts;
    bool kv_default;      /* the type that suits file and backend instead of acts.kv_dtype */
    uint32_t n_block;     /* of the KV pool */
    uint64_t host_bytes;  /* that the owner will carve from `host` */
    uint64_t aside_bytes; /* host memory that the owner allocates itself: planned and counted with
                             the rest */
    bool profile;
};

struct clb_runner {
    struct clb_model *model;
    struct clb_kv_pool *pool;
    struct clb_acts *acts;
    struct clb_acts_shape shape;
    struct clb_carver host;               /* one block, owned: host.base */
    uint64_t block_bytes;                 /* of it */
    uint64_t host_bytes;                  /* of the block, aside, and of activations */
    uint64_t committed, committed_device; /* to be released */
    struct clb_profile *profile;          /* NULL: not wanted */
    struct clb_pass pass;                 /* its arrays, below, are in the host block */
    int32_t *token;                       /* [max_rows] */
    uint32_t *position, *sequence;        /* [max_rows] */
    uint32_t *logit_row, *n_candidate;    /* [max_logits] */
    struct clb_candidate *candidate;      /* [max_candidates] */
    struct clb_kv_seq **seq;              /* [max_seqs] */
};

/* Computes the plan and nothing else. */
bool clb_runner_plan(struct clb_memory_plan *p, struct clb_model *m,
                     const struct clb_runner_options *o, struct clb_err *err);
/* Plans, refuses what does not fit, then reserves everything. */
bool clb_runner_open(struct clb_runner *r, struct clb_model *m, const struct clb_runner_options *o,
                     struct clb_err *err);
void clb_runner_close(struct clb_runner *r); /* safe on a zeroed struct */

/* CLB_USAGE when a layer cannot use that many experts per token. 0 is the model's own number. */
bool clb_check_top_k(const struct clb_model *m, uint32_t top_k, struct clb_err *err);
/* The rope parameters of a sequence that was declared to be at most `context` long. */
void clb_kv_seq_rope(struct clb_kv_seq *s, const struct clb_weights *w, uint32_t context);

/* -- one pass; the caller has the model's pass from begin to its end  ----------------- */

/* Empties the pass. */
void clb_runner_begin(struct clb_runner *r);
/* Appends n tokens behind the `kv->length` positions of a sequence; logits of the last or of all of
 * them, or none. n_candidate 0: whole rows of logits; else candidates are enough. Blocks are
 * reserved. */
enum clb_logits { CLB_LOGITS_NONE, CLB_LOGITS_LAST, CLB_LOGITS_ALL };
void clb_runner_add(struct clb_runner *r, struct clb_kv_seq *kv, const int32_t *token, uint32_t n,
                    enum clb_logits want, uint32_t n_candidate);
/* Computes; logits [n_logit][vocab], candidates into r->candidate. On success the lengths of the
 * sequences are raised, on failure nothing has changed. */
bool clb_runner_pass(struct clb_runner *r, float *logits, struct clb_err *err);
/* The most candidates of a row; 0: rows are whole in any case. At any time: before the first run
 * opens, of the backend that "auto" has taken so far. */
uint32_t clb_most_candidates(struct clb_model *m);
/* Outside of passes: row i of the logits of the last one, of which only candidates have come. */
bool clb_runner_fetch(struct clb_runner *r, uint32_t i, float *out, struct clb_err *err);

#endif
