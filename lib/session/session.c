#include "lib/session/session.h"

#include <inttypes.h>
#include <string.h>

#include "lib/session/batch_impl.h"

bool clb_session_open(struct clb_session **out, struct clb_batch *b,
                      const struct clb_sampling *sampling, struct clb_err *err)
{
    *out = NULL;
    if (!clb_sampling_check(sampling, err))
        return false;
    for (uint32_t i = 0; i < b->max_sessions; i++) {
        struct clb_session *s = &b->session[i];

        if (s->batch)
            continue;
        s->batch = b;
        s->sampling = *sampling;
        s->n_token = 0;
        s->limit = b->context;
        clb_kv_seq_rope(&s->kv, &b->run.model->weights, s->limit);
        s->reads_logits = false;
        clb_session_forget_logits(s);
        s->on_rows = NULL;
        s->most_row = UINT32_MAX;
        *out = s;
        return true;
    }
    return clb_fail(err, CLB_USAGE, "all %u sessions of the batch are open", b->max_sessions);
}

void clb_session_close(struct clb_session *s)
{
    if (!s)
        return;
    clb_kv_seq_truncate(&s->kv, 0);
    s->batch = NULL;
}

bool clb_session_expect(struct clb_session *s, size_t length, struct clb_err *err)
{
    if (s->n_token)
        return clb_fail(err, CLB_USAGE,
                        "%u tokens were fed already: it is too late to say how long "
                        "the session will be",
                        s->n_token);
    if (!length || length > s->batch->context)
        return clb_fail(err, CLB_USAGE, "%zu positions: the context is %u", length,
                        s->batch->context);
    s->limit = (uint32_t)length;
    clb_kv_seq_rope(&s->kv, &s->batch->run.model->weights, s->limit);
    return true;
}

static bool check_ids(const struct clb_session *s, const int32_t *ids, size_t n,
                      struct clb_err *err)
{
    uint32_t n_vocab = s->batch->run.model->reader.arch.vocab_size;

    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= n_vocab)
            return clb_fail(err, CLB_USAGE,
                            "token %zu: id %" PRId32 " is not below the vocabulary size %u", i,
                            ids[i], n_vocab);
    return true;
}

bool clb_session_feed(struct clb_session *s, const int32_t *ids, size_t n, struct clb_err *err)
{
    uint32_t context = s->limit;

    if (n > context - s->n_token)
        return clb_fail(err, CLB_USAGE,
                        "%zu more tokens do not fit: the context is %u tokens and has %u", n,
                        context, s->n_token);
    if (!check_ids(s, ids, n, err))
        return false;
    uint32_t length = s->n_token + (uint32_t)n;
    if (!clb_kv_seq_reserve(&s->kv, length, err))
        return clb_fail_in(err, "%zu more tokens", n);
    if (n > 0)
        memcpy(s->token + s->n_token, ids, n * sizeof *ids);
    s->n_token = length;
    return true;
}

bool clb_session_rewind(struct clb_session *s, size_t length, struct clb_err *err)
{
    if (length > s->n_token)
        return clb_fail(err, CLB_USAGE, "cannot rewind to %zu tokens: the session has %u", length,
                        s->n_token);
    if (length == s->n_token)
        return true;
    s->n_token = (uint32_t)length;
    clb_session_forget_logits(s);
    clb_kv_seq_truncate(&s->kv, s->n_token);
    return true;
}

static bool is_ready(const struct clb_session *s, struct clb_err *err)
{
    return s->is_ready ||
           clb_fail(err, CLB_USAGE, "the session has no logits: feed tokens and step first");
}

const float *clb_session_logits(struct clb_session *s, struct clb_err *err)
{
    if (!is_ready(s, err))
        return NULL;
    if (!s->logits) {
        uint64_t at = (uint64_t)s->logit_row * s->batch->run.model->reader.arch.vocab_size;

        if (!clb_runner_fetch(&s->batch->run, s->logit_row, s->batch->logits + at, err))
            return NULL;
        s->logits = s->batch->logits + at;
        s->reads_logits = true;
    }
    return s->logits;
}

bool clb_session_sample(struct clb_session *s, int32_t *id, struct clb_err *err)
{
    const struct clb_draw draw = {
        .logits = s->logits,
        .candidate = s->candidate,
        .n_candidate = s->n_candidate,
        .recent = s->token,
        .n_recent = s->kv.length,
        .position = s->kv.length,
    };

    *id = -1;
    if (!is_ready(s, err))
        return false;
    *id = clb_sample(s->batch->sampler, &s->sampling, &draw);
    if (*id < 0)
        return clb_fail(err, CLB_FAILED,
                        "no token can be chosen at position %u: no logit is a number",
                        s->kv.length);
    return true;
}

bool clb_session_logprob(struct clb_session *s, int32_t id, float *p, struct clb_err *err)
{
    if (!is_ready(s, err) || !check_ids(s, &id, 1, err))
        return false;
    const float *logits = clb_session_logits(s, err);
    if (!logits)
        return false;
    *p = clb_logprob(logits, s->batch->run.model->reader.arch.vocab_size, (uint32_t)id);
    return true;
}
