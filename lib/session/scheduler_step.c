/* One step of a scheduler: what other threads asked, places, a pass, a token for each choice that
 * has logits, and who is told. */
#include <math.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/session/scheduler_impl.h"

/* -- ends -------------------------------------------------------------------------------------- */

static void unlink_request(struct clb_request_list *list, struct clb_request *r)
{
    *(r->before ? &r->before->next : &list->head) = r->next;
    *(r->next ? &r->next->before : &list->tail) = r->before;
}

static void retire(struct clb_scheduler *s, struct clb_request *r)
{
    pthread_mutex_lock(&s->lock);
    unlink_request(&s->active, r);
    s->n_queued -= !r->was_started;
    pthread_mutex_unlock(&s->lock);
    clb_request_free(r);
}

/* What was held back, if the answer just ends here. It may hold a stop text after all. */
static struct clb_str rest(struct clb_choice *c, enum clb_ending *why)
{
    struct clb_str text = { "", 0 };
    struct clb_err err;
    bool stopped;

    if (*why == CLB_ENDING_STOP || *why >= CLB_ENDING_CANCELLED)
        return text;
    if (!clb_stream_flush(&c->stream, &text, &stopped, &err))
        return (struct clb_str){ "", 0 };
    if (stopped)
        *why = CLB_ENDING_STOP;
    return text;
}

static void tell_end(struct clb_choice *c, enum clb_ending why, const struct clb_err *err)
{
    struct clb_request *r = c->request;
    double now = clb_now();
    struct clb_finish_event e = {
        .to = &r->ask.to,
        .ticket = r->ticket,
        .choice = c->index,
        .last = r->n_unfinished == 0,
        .prompt_tokens = (uint32_t)r->ask.n_ids,
        .new_tokens = c->n_new,
        .cached_tokens = c->n_cached,
        .n_preempted = c->n_preempted,
        .queue_seconds = (c->started != 0 ? c->started : now) - r->submitted,
        .profile = c->profile,
        .err = err,
    };

    if (c->started != 0)
        e.prefill_seconds = (c->first_token != 0 ? c->first_token : now) - c->started;
    if (c->first_token != 0)
        e.decode_seconds = now - c->first_token;
    e.text = rest(c, &why);
    e.why = why;
    if (r->ask.to.on_finish)
        r->ask.to.on_finish(&e);
}

void clb_scheduler_finish(struct clb_scheduler *s, struct clb_choice *c, enum clb_ending why,
                          const struct clb_err *err)
{
    struct clb_request *r = c->request;

    if (c->state == CLB_CHOICE_RUNS)
        clb_scheduler_leave(s, c);
    else
        r->n_wait--;
    c->state = CLB_CHOICE_DONE;
    r->n_unfinished--;
    if (r->n_unfinished == 0) {
        s->count.finished++;
        s->count.cancelled += why == CLB_ENDING_CANCELLED;
        s->count.failed += why == CLB_ENDING_FAILED;
    }
    tell_end(c, why, err);
    if (r->n_unfinished == 0)
        retire(s, r);
}

void clb_scheduler_finish_request(struct clb_scheduler *s, struct clb_request *r,
                                  enum clb_ending why)
{
    for (uint32_t i = 0, left = r->n_unfinished; left > 0; i++)
        if (r->choice[i].state != CLB_CHOICE_DONE) {
            left--; /* with the last one r is gone */
            clb_scheduler_finish(s, &r->choice[i], why, NULL);
        }
}

/* -- what other threads asked ------------------------------------------------------------------ */

static void take_in(struct clb_scheduler *s)
{
    struct clb_request *next;

    pthread_mutex_lock(&s->lock);
    clb_request_splice(&s->active, &s->incoming);
    bool cancels = s->cancels;
    s->cancels = false;
    for (struct clb_request *r = s->active.head; r && cancels; r = r->next)
        r->dropped = r->cancelled;
    pthread_mutex_unlock(&s->lock);
    for (struct clb_request *r = s->active.head; r && cancels; r = next) {
        next = r->next;
        if (r->dropped)
            clb_scheduler_finish_request(s, r, CLB_ENDING_CANCELLED);
    }
}

/* What other threads see. */
static void show(struct clb_scheduler *s, size_t *n_left)
{
    struct clb_scheduler_counts *c = &s->count;

    *n_left = 0;
    c->waiting = 0;
    c->running = s->n_running;
    c->kv = clb_kv_pool_counts(s->batch->run.pool);
    for (const struct clb_request *r = s->active.head; r; r = r->next) {
        c->waiting += r->n_wait;
        ++*n_left;
    }
    pthread_mutex_lock(&s->lock);
    for (const struct clb_request *r = s->incoming.head; r; r = r->next)
        ++*n_left;
    s->n_placed = s->n_running;
    s->shown = *c;
    if (s->profile_all)
        s->shown_profile = *s->profile;
    pthread_mutex_unlock(&s->lock);
}

/* -- a pass ------------------------------------------------------------------------------------ */

static uint32_t pending(const struct clb_choice *c)
{
    return c->session->n_token - c->session->kv.length;
}

/* Others are making their answers: they wait no longer than a shared chunk takes. */
static uint32_t chunk_of(const struct clb_scheduler *s)
{
    uint32_t chunk = s->batch->prefill_chunk;

    for (uint32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->session->kv.length >= s->running[i]->request->ask.n_ids)
            return s->shared_chunk < chunk ? s->shared_chunk : chunk;
    return chunk;
}

/* Says for each running choice how many rows it may have, and takes KV blocks for them. */
static void plan_pass(struct clb_scheduler *s)
{
    uint32_t chunk = chunk_of(s);

    s->batch->chunk = chunk;
    for (uint32_t i = 0; i < s->n_running;) {
        struct clb_choice *c = s->running[i];

        c->session->most_row = 0;
        clb_scheduler_adopt(s, c);
        bool waits = clb_scheduler_must_wait(s, c);
        if (!waits) {
            uint32_t n = pending(c) < chunk ? pending(c) : chunk;
            if (clb_scheduler_reserve(s, c, c->session->kv.length + n))
                c->session->most_row = n;
        }
        i += i < s->n_running && s->running[i] == c; /* it is still there */
    }
}

static void add_profile(struct clb_profile *to, const struct clb_profile *now,
                        const struct clb_profile *before, double share, uint32_t n_row)
{
    for (int i = 0; i < CLB_STAGES; i++) {
        to->seconds[i] += share * (now->seconds[i] - before->seconds[i]);
        to->alone[i] += share * (now->alone[i] - before->alone[i]);
        to->waited[i] += share * (now->waited[i] - before->waited[i]);
        to->bytes[i] += (uint64_t)(share * (double)(now->bytes[i] - before->bytes[i]));
        to->macs[i] += (uint64_t)(share * (double)(now->macs[i] - before->macs[i]));
        to->f32_macs[i] += (uint64_t)(share * (double)(now->f32_macs[i] - before->f32_macs[i]));
    }
    to->passes++;
    to->rows += n_row;
}

/* Shares the pass out among those that took part. */
static void count_pass(struct clb_scheduler *s, double seconds, const struct clb_profile *before)
{
    struct clb_scheduler_counts *n = &s->count;
    uint32_t all = s->batch->run.pass.n_row, old = 0;

    for (uint32_t i = 0; i < s->n_running; i++) {
        struct clb_choice *c = s->running[i];
        uint32_t n_ids = (uint32_t)c->request->ask.n_ids, n_row = c->session->n_row;
        uint32_t first = c->session->kv.length - n_row;

        old += first >= n_ids ? 0 : n_ids - first < n_row ? n_ids - first : n_row;
        if (c->profile && n_row)
            add_profile(c->profile, s->profile, before, (double)n_row / all, n_row);
    }
    if (all == 0)
        return;
    n->passes++;
    n->prompt_rows += old;
    n->new_rows += all - old;
    n->prompt_seconds += seconds * old / all;
    n->new_seconds += seconds * (all - old) / all;
}

static bool wants_profile(const struct clb_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (s->running[i]->profile)
            return true;
    return s->profile_all;
}

/* Those that took part have failed with it. */
static void fail_pass(struct clb_scheduler *s, const struct clb_err *err)
{
    for (uint32_t i = 0; i < s->n_running;) {
        struct clb_choice *c = s->running[i];

        if (c->session->n_row)
            clb_scheduler_finish(s, c, CLB_ENDING_FAILED, err);
        else
            i++;
    }
}

static bool pass(struct clb_scheduler *s, struct clb_err *err)
{
    struct clb_profile before = *s->profile;
    size_t n_ready;

    clb_alloc_guard_lock(); /* giving a place back is the exception */
    plan_pass(s);
    clb_alloc_guard_unlock();
    s->batch->run.profile = wants_profile(s) ? s->profile : NULL;
    double start = clb_now();
    if (!clb_batch_step(s->batch, &n_ready, err)) {
        fail_pass(s, err);
        return false;
    }
    count_pass(s, clb_now() - start, &before);
    clb_alloc_guard_lock();
    for (uint32_t i = 0; i < s->n_running; i++)
        clb_scheduler_register(s, s->running[i]);
    clb_alloc_guard_unlock();
    return true;
}

/* -- new tokens -------------------------------------------------------------------------------- */

static bool is_end(const struct clb_choice *c, int32_t id)
{
    const struct clb_ask *a = &c->request->ask;
    const struct clb_generation *g = &c->session->batch->run.model->reader.generation;
    uint32_t n = g->n_eos - (a->ids_only ? g->n_text_eos : 0);

    for (uint32_t i = 0; i < n && !a->ignore_eos; i++)
        if (g->eos_token[i] == id)
            return true;
    return false;
}

/* An end that shows without another token. */
static bool is_over(const struct clb_choice *c, enum clb_ending *why)
{
    const struct clb_request *r = c->request;

    *why = CLB_ENDING_LENGTH;
    if (r->ask.prompt_only)
        return true;
    *why = CLB_ENDING_CONTEXT;
    return c->session->n_token == r->limit;
}

static void add_logprobs(struct clb_token_event *e, const struct clb_choice *c,
                         struct clb_logprob *top)
{
    const struct clb_ask *a = &c->request->ask;
    uint32_t n_vocab = c->session->batch->run.model->reader.arch.vocab_size;

    float own;

    if (!a->logprobs && !a->n_logprob)
        return;
    e->top = top;
    e->n_top =
        clb_top_logprobs(c->session->logits, n_vocab, a->n_logprob, top, (uint32_t)e->id, &own);
    if (a->logprobs)
        e->logprob = own;
}

/* A token and what becomes of it. True: the choice has ended. */
static bool choose(struct clb_choice *c, enum clb_ending *why, struct clb_err *err)
{
    struct clb_request *r = c->request;
    struct clb_logprob top[CLB_MOST_LOGPROBS];
    struct clb_token_event e = {
        .to = &r->ask.to, .ticket = r->ticket, .choice = c->index, .index = c->n_new, .logprob = NAN
    };
    bool stopped;

    if (is_over(c, why))
        return true;
    *why = CLB_ENDING_FAILED;
    clb_alloc_guard_lock();
    bool ok = clb_session_sample(c->session, &e.id, err);
    bool end = ok && is_end(c, e.id);
    if (ok && !end) {
        add_logprobs(&e, c, top);
        ok = clb_stream_feed(&c->stream, e.id, &e.text, &stopped, err);
    }
    clb_alloc_guard_unlock();
    if (!ok)
        return true;
    *why = CLB_ENDING_EOS;
    if (end)
        return true;
    c->n_new++;
    if (c->first_token == 0)
        c->first_token = clb_now();
    bool told = r->ask.to.on_token && r->ask.to.on_token(&e) != 0;
    *why = stopped ? CLB_ENDING_STOP : told ? CLB_ENDING_CALLBACK : CLB_ENDING_LENGTH;
    if (stopped || told || c->n_new == r->ask.max_new) /* its own row is not needed */
        return true;
    c->session->token[c->session->n_token++] = e.id;
    return false;
}

static void choose_all(struct clb_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_running;) {
        struct clb_choice *c = s->running[i];
        enum clb_ending why;
        struct clb_err err;

        if (c->session->is_ready) {
            uint32_t before = c->n_new;
            bool ended = choose(c, &why, &err);

            s->count.new_tokens += c->n_new - before;
            if (ended) {
                clb_scheduler_finish(s, c, why, why == CLB_ENDING_FAILED ? &err : NULL);
                continue;
            }
        }
        i++;
    }
}

bool clb_scheduler_step(struct clb_scheduler *s, size_t *n_left, struct clb_err *err)
{
    bool ok = true;

    take_in(s);
    clb_scheduler_start(s);
    if (s->n_running > 0) {
        ok = pass(s, err);
        if (ok)
            choose_all(s);
    }
    show(s, n_left);
    return ok;
}
