#include "lib/session/batch.h"

#include <inttypes.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/session/batch_impl.h"

enum { DEFAULT_CONTEXT = 4096, DEFAULT_CHUNK = 512, LOGIT_BYTES = 16 << 20 };
enum { MOST_SESSIONS = 65536, MOST_ROWS = 1 << 20 };

/* -- sizes ------------------------------------------------------------------------------------- */

static uint32_t least_of(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b); /* one of them fits in 32 bits */
}

/* Replaces zeros by the defaults and refuses what cannot be. */
static bool resolve(struct clb_batch_options *o, const struct clb_model *m, struct clb_err *err)
{
    const struct clb_arch *a = &m->reader.arch;

    o->max_sessions = o->max_sessions ? o->max_sessions : 1;
    o->context = o->context ? o->context : least_of(a->max_positions, DEFAULT_CONTEXT);
    if (o->max_sessions > MOST_SESSIONS)
        return clb_fail(err, CLB_USAGE, "%u sessions: a batch has at most %d", o->max_sessions,
                        MOST_SESSIONS);
    if (o->context > a->max_positions)
        return clb_fail(err, CLB_USAGE,
                        "a context of %u tokens: the model has at most %u positions", o->context,
                        a->max_positions);
    uint64_t all = (uint64_t)o->max_sessions * o->context;
    o->kv_tokens = o->kv_tokens ? o->kv_tokens : all;
    o->prefill_chunk = o->prefill_chunk ? o->prefill_chunk : DEFAULT_CHUNK;
    o->prefill_chunk = least_of(all, least_of(o->prefill_chunk, MOST_ROWS));
    if (!o->logit_rows)
        o->logit_rows = (uint32_t)(LOGIT_BYTES / ((uint64_t)a->vocab_size * sizeof(float)));
    o->logit_rows = least_of(o->prefill_chunk, o->logit_rows);
    return clb_check_top_k(m, o->experts_per_token, err);
}

static uint32_t blocks_for(uint32_t n_token)
{
    return (uint32_t)(((uint64_t)n_token + CLB_KV_BLOCK - 1) / CLB_KV_BLOCK);
}

/* The host memory of a batch beside that of its passes; with c->base NULL only counted. */
static void carve(struct clb_batch *b, struct clb_carver *c, uint32_t max_logits, uint32_t n_vocab)
{
    b->logits = clb_carve(c, max_logits, (uint64_t)n_vocab * sizeof *b->logits);
    b->session = clb_carve(c, b->max_sessions, sizeof *b->session);
    b->order = clb_carve(c, b->max_sessions, sizeof *b->order);
    for (uint32_t i = 0; i < b->max_sessions && !c->overflow; i++) {
        int32_t *token = clb_carve(c, b->context, sizeof *token);
        uint32_t *block = clb_carve(c, blocks_for(b->context), sizeof *block);

        if (c->base)
            b->session[i] = (struct clb_session){
                .token = token, .kv = { .block = block, .n_block_max = blocks_for(b->context) }
            };
    }
}

/* `o` is resolved. */
static bool run_options(struct clb_runner_options *r, const struct clb_batch_options *o,
                        struct clb_model *m, struct clb_err *err)
{
    struct clb_batch none = { .max_sessions = o->max_sessions, .context = o->context };
    struct clb_carver c = { 0 };
    uint64_t n_block = o->kv_tokens / CLB_KV_BLOCK + (o->kv_tokens % CLB_KV_BLOCK != 0);
    uint64_t useful = (uint64_t)o->max_sessions * blocks_for(o->context);

    if (o->kv_tokens >= (uint64_t)o->max_sessions * o->context || n_block > useful)
        n_block = useful;
    if (n_block > UINT32_MAX)
        return clb_fail(err, CLB_USAGE, "%" PRIu64 " KV positions are too many",
                        n_block * CLB_KV_BLOCK);
    *r = (struct clb_runner_options){
        .acts = {
            .max_rows = o->prefill_chunk + o->max_sessions - 1,
            .max_logits = o->max_sessions + o->logit_rows,
            .max_seqs = o->max_sessions,
            .max_context = o->context,
            .top_k = o->experts_per_token,
            .kv_dtype = o->kv_dtype,
            .max_candidates = o->max_sessions * clb_most_candidates(m),
        },
        .kv_default = o->kv_default,
        .n_block = (uint32_t)n_block,
        .profile = o->profile,
    };
    carve(&none, &c, r->acts.max_logits, m->reader.arch.vocab_size);
    r->host_bytes = c.at;
    r->aside_bytes = clb_sampler_bytes(m->reader.arch.vocab_size);
    if (c.overflow)
        return clb_fail(err, CLB_USAGE, "%u sessions of %u tokens are larger than memory can be",
                        o->max_sessions, o->context);
    return true;
}

bool clb_batch_plan(struct clb_memory_plan *p, struct clb_model *m,
                    const struct clb_batch_options *o, struct clb_err *err)
{
    struct clb_batch_options full = *o;
    struct clb_runner_options r;

    return resolve(&full, m, err) && run_options(&r, &full, m, err) &&
           clb_runner_plan(p, m, &r, err);
}

/* -- open and close ---------------------------------------------------------------------------- */

bool clb_batch_open(struct clb_batch **out, struct clb_model *m, const struct clb_batch_options *o,
                    struct clb_err *err)
{
    struct clb_batch_options full = *o;
    struct clb_runner_options r;
    struct clb_batch *b;

    *out = NULL;
    if (!resolve(&full, m, err) || !run_options(&r, &full, m, err))
        return false;
    b = clb_new(1, sizeof *b, err);
    if (!b)
        return false;
    b->max_sessions = full.max_sessions;
    b->context = full.context;
    b->prefill_chunk = b->chunk = full.prefill_chunk;
    if (!clb_runner_open(&b->run, m, &r, err) ||
        !clb_sampler_new(&b->sampler, m->reader.arch.vocab_size, err)) {
        clb_batch_close(b);
        return false;
    }
    carve(b, &b->run.host, r.acts.max_logits, m->reader.arch.vocab_size);
    for (uint32_t i = 0; i < b->max_sessions; i++)
        b->session[i].kv.pool = b->run.pool;
    *out = b;
    return true;
}

void clb_batch_close(struct clb_batch *b)
{
    if (!b)
        return;
    clb_sampler_free(b->sampler);
    clb_runner_close(&b->run);
    clb_free(b);
}

struct clb_model *clb_batch_model(const struct clb_batch *b)
{
    return b->run.model;
}

const struct clb_profile *clb_batch_profile(const struct clb_batch *b)
{
    return b->run.profile;
}

void clb_batch_profile_reset(struct clb_batch *b)
{
    const struct clb_arch *a = &b->run.model->reader.arch;
    struct clb_profile *p = b->run.profile;

    if (!p)
        return;
    memset(p->expert_rows, 0, (size_t)a->n_layer * a->n_expert * sizeof *p->expert_rows);
    *p = (struct clb_profile){ .expert_rows = p->expert_rows };
}

/* -- a step ------------------------------------------------------------------------------------ */

/* What is left to be given away in the pass that is being put together. */
struct budget {
    uint32_t prompt_rows;
    uint32_t logit_rows; /* beside one for each session */
};

/* Rows that a session may have in this pass. */
static uint32_t pending(const struct clb_session *s)
{
    return s->batch ? least_of(s->n_token - s->kv.length, s->most_row) : 0;
}

static bool is_done(const struct clb_session *s)
{
    return s->kv.length == s->n_token;
}

/* Session i in the order of this step: every step begins with another one. */
static struct clb_session *in_turn(struct clb_batch *b, uint32_t i)
{
    return &b->session[(b->n_step + i) % b->max_sessions];
}

/* Up to n more rows for a session; returns how many. */
static uint32_t give(struct clb_batch *b, struct clb_session *s, uint32_t n, struct budget *left)
{
    uint32_t first = s->n_row == 0, want = pending(s) - s->n_row;

    n = n < want ? n : want;
    if (s->on_rows && n > left->logit_rows + first)
        n = left->logit_rows + first;
    if (n == 0)
        return 0;
    if (s->on_rows)
        left->logit_rows -= n - first;
    if (first)
        b->order[b->n_order++] = s;
    s->n_row += n;
    return n;
}

static uint32_t count_hungry(const struct clb_batch *b)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < b->max_sessions; i++)
        n += pending(&b->session[i]) > 1 && b->session[i].n_row < pending(&b->session[i]);
    return n;
}

static void give_decoding(struct clb_batch *b, struct budget *left)
{
    for (uint32_t i = 0; i < b->max_sessions; i++)
        if (pending(&b->session[i]) == 1)
            give(b, &b->session[i], 1, left);
}

/* Even shares, and again with what the short prompts left over, until nobody takes any more. */
static void give_prompts(struct clb_batch *b, struct budget *left)
{
    uint32_t given = 1, hungry;

    while (given > 0 && left->prompt_rows > 0 && (hungry = count_hungry(b)) > 0) {
        uint32_t share = left->prompt_rows / hungry ? left->prompt_rows / hungry : 1;

        given = 0;
        for (uint32_t i = 0; i < b->max_sessions && left->prompt_rows > 0; i++) {
            struct clb_session *s = in_turn(b, i);
            if (pending(s) <= 1)
                continue;
            uint32_t n = give(b, s, share < left->prompt_rows ? share : left->prompt_rows, left);
            left->prompt_rows -= n;
            given += n;
        }
    }
}

/* Logits that decide what comes next, where the device can tell them; 0: all may. */
static uint32_t count_candidates(const struct clb_batch *b, const struct clb_session *s)
{
    uint32_t n = s->reads_logits ? 0 : clb_sampling_candidates(&s->sampling);

    return !n || n > clb_most_candidates(b->run.model)
               ? 0
               : least_of(n, b->run.model->reader.arch.vocab_size);
}

/* Puts the pass together. */
static void collect(struct clb_batch *b)
{
    struct budget left = {
        .prompt_rows = b->chunk,
        .logit_rows = b->run.shape.max_logits - b->max_sessions,
    };

    clb_runner_begin(&b->run);
    b->n_order = 0;
    for (uint32_t i = 0; i < b->max_sessions; i++) {
        b->session[i].n_row = 0;
        clb_session_forget_logits(&b->session[i]);
    }
    give_decoding(b, &left);
    give_prompts(b, &left);
    b->n_step++;
    for (uint32_t i = 0; i < b->n_order; i++) {
        struct clb_session *s = b->order[i];
        bool last = s->kv.length + s->n_row == s->n_token;
        enum clb_logits want = s->on_rows ? CLB_LOGITS_ALL
                               : last     ? CLB_LOGITS_LAST
                                          : CLB_LOGITS_NONE;

        s->n_candidate = want == CLB_LOGITS_LAST ? count_candidates(b, s) : 0;
        clb_runner_add(&b->run, &s->kv, s->token + s->kv.length, s->n_row, want, s->n_candidate);
    }
}

/* Hands out the logits that the pass has computed; returns how many sessions are ready. */
static size_t deliver(struct clb_batch *b)
{
    const struct clb_candidate *candidate = b->run.candidate;
    uint32_t n_vocab = b->run.model->reader.arch.vocab_size, row = 0;
    size_t ready = 0;

    for (uint32_t i = 0; i < b->n_order; i++) {
        struct clb_session *s = b->order[i];
        bool done = is_done(s);
        uint32_t n = s->on_rows ? s->n_row : done;

        row += n;
        if (!done)
            continue;
        s->is_ready = true;
        s->logit_row = row - 1;
        s->logits = s->n_candidate ? NULL : b->logits + (size_t)s->logit_row * n_vocab;
        s->candidate = candidate;
        candidate += s->n_candidate;
        ready++;
    }
    return ready;
}

/* Last of all, since a callback may do anything but touch its batch. */
static void call_back(struct clb_batch *b)
{
    const float *logits = b->logits;
    uint32_t n_vocab = b->run.model->reader.arch.vocab_size;

    for (uint32_t i = 0; i < b->n_order; i++) {
        struct clb_session *s = b->order[i];
        uint32_t n = s->on_rows ? s->n_row : s->is_ready;

        for (uint32_t k = 0; s->on_rows && k < n; k++)
            s->on_rows(s->on_rows_arg, s->kv.length - n + k, logits + (size_t)k * n_vocab);
        logits += (size_t)n * n_vocab;
    }
}

bool clb_batch_step(struct clb_batch *b, size_t *n_ready, struct clb_err *err)
{
    struct clb_model *m = b->run.model;

    *n_ready = 0;
    clb_alloc_guard_lock();
    bool shared = clb_model_take_pass(m, b->run.profile != NULL);
    collect(b);
    bool ok = b->n_order == 0 || clb_runner_pass(&b->run, b->logits, err);
    clb_model_end_pass(m, shared);
    clb_alloc_guard_unlock();
    if (!ok)
        return false;
    *n_ready = deliver(b);
    call_back(b);
    return true;
}
