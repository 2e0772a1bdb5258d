#include "cmd/colibri-serve/desk.h"

#include "cmd/colibri-serve/engine_thread.h"
#include "cmd/colibri-serve/field.h"
#include "cmd/colibri-serve/http.h"
#include "cmd/colibri-serve/request.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"

struct serve_desk {
    struct serve *serve;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t some;
    struct serve_job *first, *last;
    bool stop, started;
};

static bool prepare(struct serve_reading *r, struct json_object *body, struct serve_refusal *no)
{
    if (!serve_request_read(r, body, no))
        return false;
    if (r->job->kind == SERVE_TOKENIZE)
        return serve_tokenize(r, no);
    if (r->job->kind == SERVE_DETOKENIZE)
        return serve_detokenize(r, no);
    if (!serve_prompt_read(r, no) || !serve_prompt_fits(r, no))
        return false;
    bool ok = serve_job_choose(r->job);
    for (uint32_t i = 0; ok && r->job->p.echo && r->job->p.logprobs && i < r->job->n_prompt; i++)
        ok = serve_job_score(r->job, &r->job->prompt[i]);
    return ok || serve_refuse(no, 503, "no_memory", "not enough memory for this request");
}

static void read_body(struct serve_desk *d, struct serve_job *job)
{
    struct serve_reading r = { .serve = d->serve, .job = job };
    struct serve_refusal no = { 0 };
    struct clb_str text = { job->body.n ? job->body.p : "", job->body.n };
    struct json_object *body = atomic_load(&job->cancelled) ? NULL : serve_parse(text, &no);
    bool ok = body && prepare(&r, body, &no);

    json_object_put(body);
    clb_text_free(&job->body);
    pthread_mutex_lock(&job->lock);
    job->prepared = ok;
    pthread_mutex_unlock(&job->lock);
    bool runs = ok && !(job->kind & (SERVE_TOKENIZE | SERVE_DETOKENIZE)) &&
                serve_engine_submit(d->serve->engine, job, &no);
    if (runs)
        return;
    pthread_mutex_lock(&job->lock);
    job->no = no;
    job->done = true;
    job->time.finished = clb_now();
    pthread_mutex_unlock(&job->lock);
    serve_http_mail(d->serve->http, job);
}

/* A job that is done comes a second time when its answer is long to write: with logprobs. */
static void write_answer(struct serve_desk *d, struct serve_job *job)
{
    if (!atomic_load(&job->cancelled))
        serve_answer(&job->answer, job);
    pthread_mutex_lock(&job->lock);
    job->answered = true;
    pthread_mutex_unlock(&job->lock);
    serve_http_mail(d->serve->http, job);
}

static void *run(void *arg)
{
    struct serve_desk *d = arg;

    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!d->first && !d->stop)
            pthread_cond_wait(&d->some, &d->lock);
        if (d->stop)
            break;
        struct serve_job *job = d->first;
        d->first = job->next;
        if (!d->first)
            d->last = NULL;
        pthread_mutex_unlock(&d->lock);
        if (job->writes)
            write_answer(d, job);
        else
            read_body(d, job);
        serve_job_drop(job);
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

void serve_desk_put(struct serve_desk *d, struct serve_job *job)
{
    pthread_mutex_lock(&d->lock);
    job->next = NULL;
    *(d->last ? &d->last->next : &d->first) = serve_job_take(job);
    d->last = job;
    pthread_cond_signal(&d->some);
    pthread_mutex_unlock(&d->lock);
}

bool serve_desk_open(struct serve_desk **out, struct serve *s, struct clb_err *err)
{
    struct serve_desk *d = clb_new(1, sizeof *d, err);

    *out = d;
    if (!d)
        return false;
    d->serve = s;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->some, NULL);
    int code = pthread_create(&d->thread, NULL, run, d);
    d->started = code == 0;
    return d->started || clb_fail(err, CLB_FAILED, "cannot start a thread: %s", strerror(code));
}

void serve_desk_close(struct serve_desk *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_signal(&d->some);
    pthread_mutex_unlock(&d->lock);
    if (d->started)
        pthread_join(d->thread, NULL);
    while (d->first) {
        struct serve_job *job = d->first;
        d->first = job->next;
        serve_job_drop(job);
    }
    pthread_cond_destroy(&d->some);
    pthread_mutex_destroy(&d->lock);
    clb_free(d);
}
