#include "lib/api/api.h"

#include <math.h>

#include "lib/session/generate.h"

_Static_assert((int)CLB_FINISH_LENGTH == (int)COLIBRI_FINISH_LENGTH &&
                   (int)CLB_FINISH_EOS == (int)COLIBRI_FINISH_EOS &&
                   (int)CLB_FINISH_CALLBACK == (int)COLIBRI_FINISH_CALLBACK &&
                   (int)CLB_FINISH_CONTEXT == (int)COLIBRI_FINISH_CONTEXT,
               "reasons to finish are the same numbers inside and outside");

static struct clb_session *inside(struct colibri_session *session)
{
    return (struct clb_session *)session;
}

static const struct clb_session *inside_const(const struct colibri_session *session)
{
    return (const struct clb_session *)session;
}

bool clb_api_sampling(struct clb_sampling *to, const struct colibri_sampling *from,
                      struct clb_err *err)
{
    struct colibri_sampling o;

    if (!clb_api_take(&o, sizeof o, from, "sampling", err))
        return false;
    *to = (struct clb_sampling){
        .temperature = o.temperature,
        .top_k = o.top_k,
        .top_p = o.top_p,
        .min_p = o.min_p,
        .repetition_penalty = o.repetition_penalty,
        .repetition_window = o.repetition_window,
        .presence_penalty = o.presence_penalty,
        .frequency_penalty = o.frequency_penalty,
        .n_prompt = o.n_prompt,
        .seed = o.seed,
    };
    return true;
}

int colibri_session_open(struct colibri_session **out, struct colibri_batch *batch,
                         const struct colibri_sampling *sampling)
{
    struct clb_sampling how;
    struct clb_session *s;
    struct clb_err err;

    if (!out)
        return clb_api_null("out");
    *out = NULL;
    if (!batch)
        return clb_api_null("batch");
    if (!clb_api_sampling(&how, sampling, &err) ||
        !clb_session_open(&s, (struct clb_batch *)batch, &how, &err))
        return clb_api_fail(&err);
    *out = (struct colibri_session *)s;
    return COLIBRI_OK;
}

void colibri_session_close(struct colibri_session *session)
{
    clb_session_close(inside(session));
}

int colibri_session_feed(struct colibri_session *session, const int32_t *ids, size_t n)
{
    struct clb_err err;

    if (!session)
        return clb_api_null("session");
    if (!ids && n > 0)
        return clb_api_null("ids");
    return clb_session_feed(inside(session), ids, n, &err) ? COLIBRI_OK : clb_api_fail(&err);
}

int colibri_session_expect(struct colibri_session *session, size_t length)
{
    struct clb_err err;

    if (!session)
        return clb_api_null("session");
    return clb_session_expect(inside(session), length, &err) ? COLIBRI_OK : clb_api_fail(&err);
}

int colibri_session_rewind(struct colibri_session *session, size_t length)
{
    struct clb_err err;

    if (!session)
        return clb_api_null("session");
    return clb_session_rewind(inside(session), length, &err) ? COLIBRI_OK : clb_api_fail(&err);
}

size_t colibri_session_length(const struct colibri_session *session)
{
    return session ? inside_const(session)->kv.length : 0;
}

const float *colibri_session_logits(const struct colibri_session *session)
{
    struct clb_err err;

    if (!session || !inside_const(session)->is_ready)
        return NULL;
    const float *logits = clb_session_logits(inside((struct colibri_session *)session), &err);
    if (!logits)
        clb_api_fail(&err);
    return logits;
}

int32_t colibri_session_sample(struct colibri_session *session)
{
    struct clb_err err;
    int32_t id;

    if (!session)
        clb_api_null("session");
    else if (clb_session_sample(inside(session), &id, &err))
        return id;
    else
        clb_api_fail(&err);
    return -1;
}

float colibri_session_logprob(const struct colibri_session *session, int32_t id)
{
    struct clb_err err;
    float p;

    if (!session) {
        clb_api_null("session");
        return NAN;
    }
    if (clb_session_logprob(inside((struct colibri_session *)session), id, &p, &err))
        return p;
    clb_api_fail(&err);
    return NAN;
}

uint32_t colibri_top_logprobs(const float *logits, uint32_t n_vocab, uint32_t k,
                              struct colibri_logprob *top, int32_t id, float *logprob)
{
    struct clb_logprob found[COLIBRI_MOST_LOGPROBS];

    *logprob = NAN;
    if (k > COLIBRI_MOST_LOGPROBS || id < 0 || (uint32_t)id >= n_vocab)
        return 0;
    uint32_t n = clb_top_logprobs(logits, n_vocab, k, found, (uint32_t)id, logprob);
    for (uint32_t i = 0; i < n; i++)
        top[i] = (struct colibri_logprob){ found[i].id, found[i].logprob };
    return n;
}

void colibri_session_on_rows(struct colibri_session *session, colibri_rows_fn *fn, void *arg)
{
    if (!session)
        return;
    inside(session)->on_rows = fn;
    inside(session)->on_rows_arg = arg;
}

int colibri_generate(struct colibri_session *session, const int32_t *ids, size_t n,
                     const struct colibri_generate_options *options, colibri_token_fn *fn,
                     void *arg, int32_t *finish)
{
    struct colibri_generate_options o;
    enum clb_finish why;
    struct clb_err err;

    if (!session)
        return clb_api_null("session");
    if (!ids && n > 0)
        return clb_api_null("ids");
    if (!clb_api_take(&o, sizeof o, options, "generate_options", &err))
        return clb_api_fail(&err);
    const struct clb_generation_job job = { .ids = ids,
                                            .n = n,
                                            .max_new = o.max_new_tokens,
                                            .ignore_eos = o.ignore_eos,
                                            .fn = fn,
                                            .arg = arg };
    if (!clb_generate(inside(session), &job, &why, &err))
        return clb_api_fail(&err);
    if (finish)
        *finish = (int32_t)why;
    return COLIBRI_OK;
}
