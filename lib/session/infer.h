/* infer.h - logits of every position of whole sequences, each from an empty context. */
#ifndef CLB_SESSION_INFER_H
#define CLB_SESSION_INFER_H

#include "lib/session/runner.h"

struct clb_infer_job {
    const int32_t *ids; /* [batch][length] */
    float *logits;      /* [batch][length][vocab], filled */
    size_t batch, length;
    uint32_t top_k; /* experts per token; 0: the model's */
};
/* `profile` (may be NULL) is added up. */
bool clb_infer(struct clb_model *m, const struct clb_infer_job *job, struct clb_profile *profile,
               struct clb_err *err);

#endif
