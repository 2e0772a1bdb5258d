/* Places and KV memory.
 *
 * A choice starts when there is a place, memory for its tokens so far, and a block more for each
 * running one that will need more. Memory for answers is not reserved: most end long before they
 * may. When blocks run out, what is only kept for later goes first; then the choice that started
 * last gives its place back with the tokens it has, and waits in its old place of the queue. Since
 * tokens depend on nothing but those before them, it goes on as if nothing had been. Every request
 * fits alone, so the first one always gets to its end. */
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/session/scheduler_impl.h"

/* -- who is next ------------------------------------------------------------------------------- */

static struct clb_choice *first_waiting(const struct clb_scheduler *s)
{
    for (struct clb_request *r = s->active.head; r; r = r->next)
        for (uint32_t i = 0; r->n_wait > 0 && i < r->ask.n_choice; i++)
            if (r->choice[i].state == CLB_CHOICE_WAITS)
                return &r->choice[i];
    return NULL;
}

/* Blocks that its tokens will take beside those it has. */
static uint32_t debt(const struct clb_choice *c)
{
    uint32_t want = clb_blocks_for(c->session->n_token), have = c->session->kv.n_block;

    have = have > c->promised ? have : c->promised;
    return want > have ? want - have : 0;
}

/* Whether its answer may need one more block. */
static uint32_t may_grow(const struct clb_choice *c)
{
    const struct clb_ask *a = &c->request->ask;
    uint64_t last = a->max_new ? a->n_ids + (uint64_t)a->max_new - 1 : c->request->limit;

    last = last < c->request->limit ? last : c->request->limit;
    return !a->prompt_only && clb_blocks_for((uint32_t)last) > clb_blocks_for(c->session->n_token);
}

static bool has_room(const struct clb_scheduler *s, const struct clb_choice *c)
{
    struct clb_kv_counts n = clb_kv_pool_counts(s->batch->run.pool);
    uint64_t need = debt(c) + may_grow(c);

    for (uint32_t i = 0; i < s->n_running; i++)
        need += debt(s->running[i]) + may_grow(s->running[i]);
    return s->n_running == 0 || need <= (uint64_t)n.n_free + n.n_idle;
}

/* -- start ------------------------------------------------------------------------------------- */

static void give_row(void *arg, size_t position, const float *logits)
{
    struct clb_choice *c = arg;
    const struct clb_listener *to = &c->request->ask.to;

    if (position < c->n_row_given) /* computed again */
        return;
    c->n_row_given++;
    to->on_row(to->arg, position, logits);
}

/* Its session, with all tokens so far. */
static bool open_session(struct clb_scheduler *s, struct clb_choice *c, struct clb_err *err)
{
    const struct clb_request *r = c->request;
    struct clb_sampling how = r->ask.sampling;
    struct clb_session *session;

    how.seed += c->index;
    how.n_prompt = (uint32_t)r->ask.n_ids;
    if (!clb_session_open(&session, s->batch, &how, err))
        return false;
    c->session = session;
    if (!clb_session_expect(session, r->limit, err))
        return false;
    memcpy(session->token, r->ask.ids, r->ask.n_ids * sizeof *session->token);
    if (c->n_saved)
        memcpy(session->token + r->ask.n_ids, c->saved, c->n_saved * sizeof *c->saved);
    session->n_token = (uint32_t)r->ask.n_ids + c->n_saved;
    session->reads_logits = r->ask.logprobs || r->ask.n_logprob;
    if (r->ask.to.on_row && c->index == 0) {
        session->on_rows = give_row;
        session->on_rows_arg = c;
    }
    const struct clb_weights *w = &s->batch->run.model->weights;
    c->parent = session->kv.inv_freq == w->rope_inv_freq ? CLB_PREFIX_ROOT : CLB_PREFIX_ROOT_LONG;
    c->n_entry = 0;
    return true;
}

static void close_session(struct clb_choice *c)
{
    clb_session_close(c->session);
    c->session = NULL;
}

/* False: not yet. */
static bool start(struct clb_scheduler *s, struct clb_choice *c)
{
    struct clb_request *r = c->request;
    uint32_t n_cached = c->n_cached;
    uint64_t all_cached = s->count.cached_tokens;
    struct clb_err err;

    if (!open_session(s, c, &err)) {
        close_session(c);
        clb_scheduler_finish(s, c, CLB_ENDING_FAILED, &err);
        return true;
    }
    clb_scheduler_adopt(s, c);
    c->promised = clb_scheduler_promised(s, c);
    if (!has_room(s, c)) {
        close_session(c);
        c->n_cached = n_cached;
        s->count.cached_tokens = all_cached;
        return false;
    }
    c->state = CLB_CHOICE_RUNS;
    c->order = s->n_start++;
    s->running[s->n_running++] = c;
    r->n_wait--;
    if (c->started == 0) {
        c->started = clb_now();
        s->count.prompt_tokens += r->ask.n_ids;
    }
    if (!r->was_started) {
        r->was_started = true;
        pthread_mutex_lock(&s->lock);
        s->n_queued--;
        s->n_placed = s->n_running;
        pthread_mutex_unlock(&s->lock);
    }
    return true;
}

void clb_scheduler_start(struct clb_scheduler *s)
{
    struct clb_choice *c;

    while (s->n_running < s->batch->max_sessions && (c = first_waiting(s)) != NULL)
        if (!start(s, c))
            return;
}

/* -- give back --------------------------------------------------------------------------------- */

void clb_scheduler_leave(struct clb_scheduler *s, struct clb_choice *c)
{
    uint32_t i = 0;

    while (s->running[i] != c)
        i++;
    s->n_running--;
    memmove(&s->running[i], &s->running[i + 1], (s->n_running - i) * sizeof *s->running);
    clb_scheduler_register_end(s, c);
    close_session(c);
}

static void preempt(struct clb_scheduler *s, struct clb_choice *c)
{
    const struct clb_session *session = c->session;
    uint32_t n_ids = (uint32_t)c->request->ask.n_ids, n = session->n_token - n_ids;
    struct clb_err err;
    int32_t *saved = c->saved;

    if (n > c->n_saved && !(saved = clb_grow(c->saved, n, sizeof *saved, &err))) {
        clb_scheduler_finish(s, c, CLB_ENDING_FAILED, &err);
        return;
    }
    c->saved = saved;
    c->n_saved = n;
    if (n)
        memcpy(saved, session->token + n_ids, n * sizeof *saved);
    clb_scheduler_leave(s, c);
    c->state = CLB_CHOICE_WAITS;
    c->request->n_wait++;
    c->n_preempted++;
    s->count.preempted++;
}

bool clb_scheduler_reserve(struct clb_scheduler *s, struct clb_choice *c, uint32_t length)
{
    struct clb_kv_pool *pool = s->batch->run.pool;
    uint32_t want = clb_blocks_for(length);
    struct clb_err err;

    while (want > c->session->kv.n_block &&
           clb_kv_pool_counts(pool).n_free < want - c->session->kv.n_block) {
        if (s->prefix && clb_prefix_evict(s->prefix))
            continue;
        struct clb_choice *last = s->running[s->n_running - 1];
        clb_alloc_guard_unlock();
        preempt(s, last);
        clb_alloc_guard_lock();
        if (last == c)
            return false;
    }
    return clb_kv_seq_reserve(&c->session->kv, length, &err);
}
