#include "lib/session/generate.h"

#include "lib/session/batch_impl.h"

static bool is_end(const struct clb_generation *g, int32_t id)
{
    for (uint32_t i = 0; i < g->n_eos; i++)
        if (g->eos_token[i] == id)
            return true;
    return false;
}

/* Steps until the session has computed all that it was fed. */
static bool catch_up(struct clb_session *s, struct clb_err *err)
{
    size_t n_ready;

    while (s->kv.length < s->n_token)
        if (!clb_batch_step(s->batch, &n_ready, err))
            return false;
    return true;
}

bool clb_generate(struct clb_session *s, const struct clb_generation_job *job,
                  enum clb_finish *finish, struct clb_err *err)
{
    const struct clb_generation *g = &s->batch->run.model->reader.generation;
    int32_t id;

    *finish = CLB_FINISH_LENGTH;
    if (!clb_session_feed(s, job->ids, job->n, err))
        return false;
    if (s->n_token == 0)
        return clb_fail(err, CLB_USAGE, "there are no tokens to continue");
    for (uint32_t n = 0; job->max_new == 0 || n < job->max_new; n++) {
        if (!catch_up(s, err) || !clb_session_sample(s, &id, err))
            return false;
        if (!job->ignore_eos && is_end(g, id)) {
            *finish = CLB_FINISH_EOS;
            return true;
        }
        if (s->n_token == s->limit) {
            *finish = CLB_FINISH_CONTEXT;
            return true;
        }
        if (!clb_session_feed(s, &id, 1, err))
            return false;
        if (job->fn && job->fn(job->arg, id) != 0) {
            *finish = CLB_FINISH_CALLBACK;
            return true;
        }
    }
    return true;
}
