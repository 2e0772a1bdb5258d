/* generate.h - the loop that continues one sequence. */
#ifndef CLB_SESSION_GENERATE_H
#define CLB_SESSION_GENERATE_H

#include "lib/session/batch.h"

enum clb_finish { CLB_FINISH_LENGTH, CLB_FINISH_EOS, CLB_FINISH_CALLBACK, CLB_FINISH_CONTEXT };

typedef int clb_token_fn(void *arg, int32_t id); /* nonzero: stop */

struct clb_generation_job {
    const int32_t *ids; /* [n] fed first */
    size_t n;
    uint32_t max_new; /* 0: what the context allows */
    bool ignore_eos;
    clb_token_fn *fn; /* NULL: nobody listens; the tokens are in the session */
    void *arg;
};

/* Every new token is fed to the session and given to fn; an end token ends it and is neither. The
 * last token is fed, not computed. Other sessions of the batch are computed along. */
bool clb_generate(struct clb_session *s, const struct clb_generation_job *job,
                  enum clb_finish *finish, struct clb_err *err);

#endif
