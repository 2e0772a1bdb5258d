#include "lib/session/scheduler.h"

#include <errno.h>
#include <inttypes.h>
#include <time.h>

#include "lib/base/mem.h"
#include "lib/session/scheduler_impl.h"

enum { DEFAULT_SEQUENCES = 8, DEFAULT_QUEUE = 1024, DEFAULT_SHARED_CHUNK = 128 };

/* -- sizes ------------------------------------------------------------------------------------- */

/* Beside all weights, so that the system does not have to read them again. */
static bool fits(const struct clb_memory_plan *p, const struct clb_model *m)
{
    uint64_t weights =
        clb_model_has_cache(m) ? m->dense_bytes + clb_experts_all_bytes(&m->reader) : p->weights;

    if (p->device > p->device_available)
        return false;
    return p->available == 0 ||
           (p->available > weights && p->available - weights >= clb_plan_host_bytes(p));
}

/* Of a batch, and the tables that tell prefixes. */
static bool plan_all(struct clb_memory_plan *p, struct clb_model *m,
                     const struct clb_scheduler_options *o, struct clb_err *err)
{
    if (!clb_batch_plan(p, m, &o->batch, err))
        return false;
    return clb_plan_add_host(p, m, o->no_prefix_cache ? 0 : clb_prefix_bytes(p->n_block), err);
}

/* As many KV positions as fit, between one context and one for each sequence. */
static bool choose_positions(struct clb_scheduler_options *o, struct clb_model *m,
                             struct clb_err *err)
{
    struct clb_batch_options *b = &o->batch;
    struct clb_memory_plan p;
    uint64_t most, least;

    if (!plan_all(&p, m, o, err))
        return false;
    least = clb_blocks_for(p.context);
    most = least * b->max_sessions;
    if (!fits(&p, m))
        while (most > least) { /* the largest number that fits, or one context */
            uint64_t middle = most - (most - least) / 2;

            b->kv_tokens = middle * CLB_KV_BLOCK;
            if (!plan_all(&p, m, o, err))
                return false;
            if (fits(&p, m))
                least = middle;
            else
                most = middle - 1;
        }
    b->kv_tokens = most * CLB_KV_BLOCK;
    return true;
}

static bool resolve(struct clb_scheduler_options *o, struct clb_model *m, struct clb_err *err)
{
    o->batch.max_sessions = o->batch.max_sessions ? o->batch.max_sessions : DEFAULT_SEQUENCES;
    o->max_queue = o->max_queue ? o->max_queue : DEFAULT_QUEUE;
    o->shared_chunk = o->shared_chunk ? o->shared_chunk : DEFAULT_SHARED_CHUNK;
    return o->batch.kv_tokens || choose_positions(o, m, err);
}

bool clb_scheduler_plan(struct clb_memory_plan *p, struct clb_model *m,
                        const struct clb_scheduler_options *o, struct clb_err *err)
{
    struct clb_scheduler_options full = *o;

    return resolve(&full, m, err) && plan_all(p, m, &full, err);
}

/* -- open and close ---------------------------------------------------------------------------- */

static bool open_lock(struct clb_scheduler *s, struct clb_err *err)
{
    pthread_condattr_t steady;

    pthread_condattr_init(&steady);
    pthread_condattr_setclock(&steady, CLOCK_MONOTONIC);
    int failed = pthread_mutex_init(&s->lock, NULL);
    if (!failed && (failed = pthread_cond_init(&s->news, &steady)) != 0)
        pthread_mutex_destroy(&s->lock);
    pthread_condattr_destroy(&steady);
    return !failed || clb_fail(err, CLB_FAILED, "no lock for the scheduler: error %d", failed);
}

static bool open_parts(struct clb_scheduler *s, struct clb_model *m,
                       const struct clb_scheduler_options *o, struct clb_err *err)
{
    if (!clb_batch_open(&s->batch, m, &o->batch, err))
        return false;
    s->running = clb_new(s->batch->max_sessions, sizeof(struct clb_choice *), err);
    if (!s->running)
        return false;
    if (o->no_prefix_cache)
        return true;
    s->prefix_bytes = clb_prefix_bytes(clb_kv_pool_counts(s->batch->run.pool).n_block);
    if (!clb_model_commit(m, s->prefix_bytes, 0, err)) {
        s->prefix_bytes = 0;
        return false;
    }
    clb_ledger_add(&m->ledger[CLB_POOL_HOST], s->prefix_bytes, s->prefix_bytes);
    return clb_prefix_new(&s->prefix, s->batch->run.pool, err);
}

bool clb_scheduler_open(struct clb_scheduler **out, struct clb_model *m,
                        const struct clb_scheduler_options *o, struct clb_err *err)
{
    struct clb_scheduler_options full = *o;
    struct clb_memory_plan plan;
    struct clb_scheduler *s;

    *out = NULL;
    full.batch.profile = true; /* for a request that asks; its clock runs only then */
    if (!resolve(&full, m, err) || !clb_scheduler_plan(&plan, m, &full, err) ||
        !clb_plan_check(&plan, err))
        return false;
    s = clb_new(1, sizeof *s, err);
    if (!s)
        return false;
    if (!open_lock(s, err)) {
        clb_free(s);
        return false;
    }
    if (!open_parts(s, m, &full, err)) {
        clb_scheduler_close(s);
        return false;
    }
    s->max_queue = full.max_queue;
    s->shared_chunk = full.shared_chunk;
    s->profile_every = full.profile_every;
    s->profile_all = o->batch.profile;
    s->profile = s->batch->run.profile;
    s->count.kv = clb_kv_pool_counts(s->batch->run.pool);
    s->shown.kv = s->count.kv;
    s->room = (struct clb_request_room){
        .tokenizer = full.tokenizer,
        .n_vocab = m->reader.arch.vocab_size,
        .context = s->batch->context,
        .kv_positions = (uint64_t)s->count.kv.n_block * CLB_KV_BLOCK,
    };
    *out = s;
    return true;
}

void clb_request_splice(struct clb_request_list *to, struct clb_request_list *from)
{
    if (!from->head)
        return;
    from->head->before = to->tail;
    *(to->tail ? &to->tail->next : &to->head) = from->head;
    to->tail = from->tail;
    *from = (struct clb_request_list){ 0 };
}

static void cancel_all(struct clb_scheduler *s)
{
    struct clb_request *r;

    pthread_mutex_lock(&s->lock);
    clb_request_splice(&s->active, &s->incoming);
    s->closing = true;
    pthread_mutex_unlock(&s->lock);
    while ((r = s->active.head) != NULL)
        clb_scheduler_finish_request(s, r, CLB_ENDING_CANCELLED);
}

void clb_scheduler_close(struct clb_scheduler *s)
{
    if (!s)
        return;
    cancel_all(s);
    if (s->batch) {
        struct clb_model *m = s->batch->run.model;

        if (s->prefix_bytes) {
            clb_ledger_sub(&m->ledger[CLB_POOL_HOST], s->prefix_bytes, s->prefix_bytes);
            clb_model_release(m, s->prefix_bytes, 0);
        }
        if (s->profile)
            s->batch->run.profile = s->profile;
    }
    clb_prefix_free(s->prefix);
    clb_batch_close(s->batch);
    clb_free(s->running);
    pthread_cond_destroy(&s->news);
    pthread_mutex_destroy(&s->lock);
    clb_free(s);
}

/* -- any thread -------------------------------------------------------------------------------- */

/* Takes a place in the queue. */
static bool enter(struct clb_scheduler *s, bool *profile, struct clb_err *err)
{
    pthread_mutex_lock(&s->lock);
    uint32_t n_queued = s->n_queued, free = s->batch->max_sessions - s->n_placed;
    bool closing = s->closing, ok = n_queued < (uint64_t)s->max_queue + free && !closing;

    s->n_queued += ok;
    s->refused += !ok;
    if (ok && s->profile_every && s->submitted % s->profile_every == 0)
        *profile = true;
    s->submitted += ok;
    pthread_mutex_unlock(&s->lock);
    if (closing)
        return clb_fail(err, CLB_USAGE, "the scheduler is being closed");
    return ok || clb_fail(err, CLB_BUSY, "the queue is full: %u requests wait", n_queued);
}

static void take_back(struct clb_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    s->n_queued--;
    s->submitted--;
    s->refused++;
    pthread_mutex_unlock(&s->lock);
}

bool clb_scheduler_submit(struct clb_scheduler *s, const struct clb_ask *ask, uint64_t *ticket,
                          struct clb_err *err)
{
    struct clb_ask own = *ask;
    struct clb_request *r;

    if (!enter(s, &own.profile, err))
        return false;
    if (!clb_request_new(&r, &own, &s->room, err)) {
        take_back(s);
        return false;
    }
    pthread_mutex_lock(&s->lock);
    *ticket = r->ticket = ++s->n_ticket;
    clb_request_splice(&s->incoming, &(struct clb_request_list){ r, r });
    pthread_cond_signal(&s->news);
    pthread_mutex_unlock(&s->lock);
    return true;
}

static bool mark(struct clb_request_list *list, uint64_t ticket)
{
    for (struct clb_request *r = list->head; r; r = r->next)
        if (r->ticket == ticket) {
            r->cancelled = true;
            return true;
        }
    return false;
}

void clb_scheduler_cancel(struct clb_scheduler *s, uint64_t ticket)
{
    pthread_mutex_lock(&s->lock);
    if (mark(&s->active, ticket) || mark(&s->incoming, ticket)) {
        s->cancels = true;
        pthread_cond_signal(&s->news);
    }
    pthread_mutex_unlock(&s->lock);
}

void clb_scheduler_wake(struct clb_scheduler *s)
{
    pthread_mutex_lock(&s->lock);
    s->woken = true;
    pthread_cond_signal(&s->news);
    pthread_mutex_unlock(&s->lock);
}

void clb_scheduler_counts(struct clb_scheduler *s, struct clb_scheduler_counts *c)
{
    pthread_mutex_lock(&s->lock);
    *c = s->shown;
    c->submitted = s->submitted;
    c->refused = s->refused;
    for (const struct clb_request *r = s->incoming.head; r; r = r->next)
        c->waiting += r->n_wait;
    pthread_mutex_unlock(&s->lock);
}

struct clb_scheduler_shape clb_scheduler_shape(const struct clb_scheduler *s)
{
    const struct clb_kv_shape *kv = clb_kv_pool_shape(s->batch->run.pool);

    return (struct clb_scheduler_shape){
        .max_sequences = s->batch->max_sessions,
        .max_queue = s->max_queue,
        .context = s->batch->context,
        .kv_dtype = kv->dtype,
        .block_bytes = kv->block_bytes,
    };
}

void clb_scheduler_profile(struct clb_scheduler *s, struct clb_profile *p)
{
    pthread_mutex_lock(&s->lock);
    *p = s->shown_profile;
    pthread_mutex_unlock(&s->lock);
}

/* -- the owner sleeps -------------------------------------------------------------------------- */

static struct timespec from_now(int32_t milliseconds)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += milliseconds / 1000;
    t.tv_nsec += milliseconds % 1000 * 1000000L;
    if (t.tv_nsec >= 1000000000L) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000L;
    }
    return t;
}

void clb_scheduler_wait(struct clb_scheduler *s, int32_t milliseconds)
{
    struct timespec until = from_now(milliseconds > 0 ? milliseconds : 0);
    int failed = 0;

    pthread_mutex_lock(&s->lock);
    while (!s->woken && !s->incoming.head && !s->active.head && failed != ETIMEDOUT)
        failed = milliseconds < 0 ? pthread_cond_wait(&s->news, &s->lock)
                                  : pthread_cond_timedwait(&s->news, &s->lock, &until);
    s->woken = false;
    pthread_mutex_unlock(&s->lock);
}
