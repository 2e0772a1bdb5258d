#include "cmd/colibri-serve/engine_thread.h"

#include <stdio.h>

#include "cmd/colibri-serve/http.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/cli/engine.h"
#include "lib/cli/report.h"

struct serve_engine {
    struct serve *serve;
    struct colibri_scheduler *scheduler;
    struct colibri_memory_plan plan;
    pthread_t thread;
    bool started;
    atomic_bool stop;
};

/* -- callbacks: the engine's thread ------------------------------------------------------------ */

static bool keep_token(struct serve_job *job, struct serve_choice *c,
                       const struct colibri_token_event *e)
{
    struct serve_token *t = serve_job_add_token(job, c);

    if (!t)
        return false;
    t->at = c->text.n;
    t->chosen = (struct colibri_logprob){ e->id, e->logprob };
    t->n_top = e->n_top < job->p.top_logprobs ? e->n_top : job->p.top_logprobs;
    for (uint32_t i = 0; i < t->n_top; i++)
        t->top[i] = e->top[i];
    return true;
}

static struct serve_choice *choice_of(const struct serve_prompt *p, uint32_t choice)
{
    return &p->job->choice[p->number * p->job->p.n + choice];
}

static int on_token(const struct colibri_token_event *e)
{
    struct serve_prompt *p = e->arg;
    struct serve_job *job = p->job;
    struct serve_choice *c = choice_of(p, e->choice);

    pthread_mutex_lock(&job->lock);
    if (job->time.first == 0)
        job->time.first = clb_now();
    c->n_new++;
    bool ok = !job->p.logprobs || keep_token(job, c, e);
    clb_text_add(&c->text, e->text, e->n_text);
    ok = ok && !c->text.failed;
    if (!ok && job->no.status == 0)
        serve_refuse(&job->no, 503, "no_memory", "not enough memory for the answer");
    pthread_mutex_unlock(&job->lock);
    return !ok;
}

/* A row of the prompt: what the next token of it has. */
static void on_row(void *arg, size_t position, const float *logits)
{
    struct serve_prompt *p = arg;
    struct serve_job *job = p->job;

    if (position + 1 >= p->n)
        return;
    struct serve_token *t = serve_job_scored(job, p, position + 1);
    *t = (struct serve_token){ .chosen.id = p->ids[position + 1] };
    t->n_top = colibri_top_logprobs(logits, job->serve->info.vocab_size, job->p.top_logprobs,
                                    t->top, t->chosen.id, &t->chosen.logprob);
    pthread_mutex_lock(&job->lock);
    p->n_scored = position + 2;
    pthread_mutex_unlock(&job->lock);
}

static enum serve_finish finish_of(int32_t finish)
{
    return finish == COLIBRI_FINISH_EOS || finish == COLIBRI_FINISH_STOP         ? SERVE_STOP
           : finish == COLIBRI_FINISH_LENGTH || finish == COLIBRI_FINISH_CONTEXT ? SERVE_LENGTH
                                                                                 : SERVE_FAILED;
}

/* [PROFILING] as the library writes it, with whose it is. */
static void log_profile(const struct serve *s, const struct serve_job *job,
                        const struct colibri_finish_event *e)
{
    struct serve_line l;
    double total = 0;

    serve_log_begin(&l, s->o.json, "profile");
    serve_log_text(&l, "id", clb_str(job->id));
    serve_log_count(&l, "choice", e->choice);
    serve_log_count(&l, "passes", e->profile->passes);
    serve_log_count(&l, "rows", e->profile->rows);
    for (int i = 0; i < COLIBRI_STAGES; i++) {
        if (!e->profile->name[i])
            continue;
        total += e->profile->seconds[i];
        serve_log_ms(&l, e->profile->name[i], e->profile->seconds[i]);
    }
    serve_log_ms(&l, "Total", total);
    serve_log_end(&l);
}

/* What the GPU cannot do now it may never do again for this process. */
static bool is_lost(const struct serve *s, const struct colibri_error *e)
{
    struct colibri_model_info info = { .size = sizeof info };

    return e && colibri_model_info(s->model, &info) == COLIBRI_OK && info.device_lost;
}

static void refuse_failed(struct serve_refusal *no, const struct colibri_error *e, bool lost)
{
    unsigned status = lost || (e && e->code == COLIBRI_NO_SPACE) ? 503 : 500;

    serve_refuse(no, status, lost ? "device_lost" : NULL, "%.500s",
                 e ? e->text : "the engine failed");
}

/* `lock` is held. */
static void end_choice(struct serve_job *job, struct serve_choice *c,
                       const struct colibri_finish_event *e, bool lost)
{
    clb_text_add(&c->text, e->text, e->n_text);
    c->finish = finish_of(e->finish);
    if (c->text.failed && job->no.status == 0)
        serve_refuse(&job->no, 503, "no_memory", "not enough memory for the answer");
    if (c->finish == SERVE_STOP) /* tokens that say nothing but the stop text */
        while (c->n_token && serve_job_token(job, c, c->n_token - 1)->at >= c->text.n)
            c->n_token--;
    if (e->finish == COLIBRI_FINISH_FAILED && job->no.status == 0)
        refuse_failed(&job->no, e->error, lost);
    if (e->queue_seconds > job->time.queue)
        job->time.queue = e->queue_seconds;
    job->cached_tokens += e->cached_tokens;
    if (--job->n_open == 0) {
        job->time.finished = clb_now();
        job->done = true;
    }
}

static void on_finish(const struct colibri_finish_event *e)
{
    struct serve_prompt *p = e->arg;
    struct serve_job *job = p->job;
    struct serve *s = job->serve;

    if (e->profile)
        log_profile(s, job, e);
    bool lost = is_lost(s, e->error);
    if (lost) /* before anybody has this answer */
        serve_http_fail(s->http, e->error->text);
    pthread_mutex_lock(&job->lock);
    end_choice(job, choice_of(p, e->choice), e, lost);
    pthread_mutex_unlock(&job->lock);
    serve_http_mail(s->http, job);
    if (e->last) /* the reference of this prompt */
        serve_job_drop(job);
}

static int on_streamed(const struct colibri_token_event *e)
{
    struct serve_job *job = ((struct serve_prompt *)e->arg)->job;
    int stop = on_token(e);

    if (e->n_text > 0)
        serve_http_mail(job->serve->http, job);
    return stop;
}

/* -- the thread -------------------------------------------------------------------------------- */

static void *run(void *arg)
{
    struct serve_engine *e = arg;

    while (!atomic_load(&e->stop)) {
        if (colibri_scheduler_wait(e->scheduler, -1) != COLIBRI_OK ||
            colibri_scheduler_step(e->scheduler, NULL) != COLIBRI_OK)
            serve_log_say(e->serve, "error", "what", colibri_last_error());
    }
    return NULL;
}

/* -- what others call -------------------------------------------------------------------------- */

static bool submit_prompt(struct serve_engine *e, struct serve_prompt *p, struct serve_refusal *no)
{
    const struct serve_job *job = p->job;
    const struct colibri_sampling sampling = {
        .size = sizeof sampling,
        .temperature = job->p.temperature,
        .top_k = job->p.top_k,
        .top_p = job->p.top_p,
        .min_p = job->p.min_p,
        .repetition_penalty = job->p.repetition_penalty,
        .presence_penalty = job->p.presence_penalty,
        .frequency_penalty = job->p.frequency_penalty,
        .seed = job->p.seed,
    };
    const char *stop[SERVE_STOPS], *at = job->stop_bytes.p;
    struct colibri_request q = {
        .size = sizeof q,
        .ids = p->ids,
        .n_ids = p->n,
        .sampling = &sampling,
        .n_choices = job->p.n,
        .max_new_tokens = job->p.max_tokens,
        .stop = stop,
        .stop_size = job->stop_size,
        .n_stop = job->n_stop,
        .n_logprobs = job->p.top_logprobs,
        .logprobs = job->p.logprobs,
        .ignore_eos = job->p.ignore_eos,
        .new_text = job->kind == SERVE_CHAT,
        .on_token = job->p.stream ? on_streamed : on_token,
        .on_finish = on_finish,
        .on_row = p->scores ? on_row : NULL,
        .prompt_only = job->p.max_tokens == 0,
        .arg = p,
    };

    for (size_t i = 0; i < job->n_stop; at += job->stop_size[i++])
        stop[i] = at;
    int status = colibri_scheduler_submit(e->scheduler, &q, &p->ticket);
    if (status == COLIBRI_OK)
        return true;
    if (status == COLIBRI_BUSY)
        return serve_refuse(no, 429, "queue_full", "too many requests wait already");
    const struct colibri_error *why = colibri_last_error_info();
    if (status == COLIBRI_USAGE || status == COLIBRI_NO_SPACE || status == COLIBRI_BAD_INPUT)
        return serve_refuse_field(no, why->field[0] ? why->field : "prompt", "%s", why->text);
    return serve_refuse(no, 500, NULL, "%.500s", why->text);
}

bool serve_engine_submit(struct serve_engine *e, struct serve_job *job, struct serve_refusal *no)
{
    bool ok = true;

    pthread_mutex_lock(&job->tickets);
    while (ok && job->n_submitted < job->n_prompt && !atomic_load(&job->cancelled)) {
        serve_job_take(job);
        ok = submit_prompt(e, &job->prompt[job->n_submitted], no);
        if (ok)
            job->n_submitted++;
        else
            serve_job_drop(job);
    }
    uint32_t rest = job->n_prompt - job->n_submitted;
    pthread_mutex_unlock(&job->tickets);
    if (rest == 0)
        return true;
    /* What was not submitted has no end of its own: the job is done when the others are. */
    pthread_mutex_lock(&job->lock);
    job->no = *no;
    job->n_open -= rest * job->p.n;
    bool alone = job->n_open == 0;
    pthread_mutex_unlock(&job->lock);
    if (!alone)
        serve_engine_cancel(e, job);
    return !alone;
}

void serve_engine_cancel(struct serve_engine *e, struct serve_job *job)
{
    atomic_store(&job->cancelled, true);
    if (!e)
        return;
    pthread_mutex_lock(&job->tickets);
    for (uint32_t i = 0; i < job->n_submitted; i++)
        colibri_scheduler_cancel(e->scheduler, job->prompt[i].ticket);
    pthread_mutex_unlock(&job->tickets);
}

struct colibri_scheduler *serve_engine_scheduler(struct serve_engine *e)
{
    return e->scheduler;
}

const struct colibri_memory_plan *serve_engine_plan(const struct serve_engine *e)
{
    return &e->plan;
}

/* -- open and close ---------------------------------------------------------------------------- */

bool serve_engine_open(struct serve_engine **out, struct serve *s, struct clb_err *err)
{
    const struct serve_options *o = &s->o;
    struct colibri_scheduler_options so = {
        .size = sizeof so,
        .max_sequences = o->max_concurrent,
        .max_queue = o->max_queue + o->max_concurrent, /* the loop counts more strictly */
        .context = o->context,
        .kv_tokens = o->kv_tokens,
        .prefill_chunk = o->prefill_chunk,
        .kv_dtype = clb_engine_kv_dtype(o->kv_dtype),
        .experts_per_token = o->experts_per_token,
        .profile_every = o->profile_every,
    };
    struct colibri_scheduler_stats stats = { .size = sizeof stats };
    struct serve_engine *e = clb_new(1, sizeof *e, err);

    *out = e;
    if (!e)
        return false;
    e->serve = s;
    atomic_init(&e->stop, false);
    e->plan.size = sizeof e->plan;
    if (colibri_plan_scheduler(s->model, &so, &e->plan) != COLIBRI_OK)
        return clb_engine_fail(err);
    so.enable_profiling = e->plan.device == 0; /* there a clock costs the graphs of passes */
    if (colibri_scheduler_open(&e->scheduler, s->model, &so) != COLIBRI_OK ||
        colibri_scheduler_stats(e->scheduler, &stats) != COLIBRI_OK ||
        colibri_model_info(s->model, &s->info) != COLIBRI_OK) /* where it runs is decided now */
        return clb_engine_fail(err);
    s->context = stats.context;
    s->kv_tokens = stats.kv_blocks * stats.kv_block_tokens;
    return true;
}

bool serve_engine_start(struct serve_engine *e, struct clb_err *err)
{
    int code = pthread_create(&e->thread, NULL, run, e);

    e->started = code == 0;
    return e->started || clb_fail(err, CLB_FAILED, "cannot start a thread: %s", strerror(code));
}

void serve_engine_close(struct serve_engine *e)
{
    if (!e)
        return;
    if (e->started) {
        atomic_store(&e->stop, true);
        colibri_scheduler_wake(e->scheduler);
        pthread_join(e->thread, NULL);
    }
    colibri_scheduler_close(e->scheduler);
    clb_free(e);
}
