#include "cmd/colibri-serve/job.h"

#include <math.h>
#include <time.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"

struct serve_job *serve_job_new(struct serve *s, enum serve_kind kind)
{
    struct clb_err err;
    struct serve_job *job = clb_new(1, sizeof *job, &err);

    if (!job)
        return NULL;
    atomic_init(&job->references, 1);
    pthread_mutex_init(&job->lock, NULL);
    pthread_mutex_init(&job->tickets, NULL);
    job->serve = s;
    job->created = (int64_t)time(NULL);
    job->kind = kind;
    job->time.arrived = clb_now();
    serve_random_id(job->id);
    return job;
}

struct serve_job *serve_job_take(struct serve_job *job)
{
    atomic_fetch_add(&job->references, 1);
    return job;
}

void serve_job_drop(struct serve_job *job)
{
    if (!job || atomic_fetch_sub(&job->references, 1) != 1)
        return;
    for (uint32_t i = 0; i < job->n_choice; i++) {
        clb_text_free(&job->choice[i].text);
        clb_free(job->choice[i].tokens);
    }
    for (uint32_t i = 0; i < job->n_prompt; i++) {
        clb_free(job->prompt[i].ids);
        clb_text_free(&job->prompt[i].text);
        clb_free(job->prompt[i].scores);
    }
    clb_free(job->choice);
    clb_free(job->prompt);
    clb_text_free(&job->stop_bytes);
    clb_text_free(&job->body);
    clb_text_free(&job->answer);
    pthread_mutex_destroy(&job->lock);
    pthread_mutex_destroy(&job->tickets);
    clb_free(job);
}

bool serve_job_choose(struct serve_job *job)
{
    uint32_t n = job->n_prompt * job->p.n;
    struct clb_err err;

    job->choice = clb_new(n, sizeof *job->choice, &err);
    if (!job->choice)
        return false;
    job->n_choice = job->n_open = n;
    for (uint32_t i = 0; i < job->n_prompt; i++) {
        job->prompt[i].job = job;
        job->prompt[i].number = i;
    }
    return true;
}

/* -- tokens ------------------------------------------------------------------------------------ */

static size_t token_size(const struct serve_job *job)
{
    size_t n = sizeof(struct serve_token) + job->p.top_logprobs * sizeof(struct colibri_logprob);

    return (n + _Alignof(struct serve_token) - 1) & ~(_Alignof(struct serve_token) - 1);
}

static struct serve_token *token_at(const struct serve_job *job, const struct serve_choice *c,
                                    uint32_t i)
{
    return (struct serve_token *)(void *)(c->tokens + i * token_size(job));
}

const struct serve_token *serve_job_token(const struct serve_job *job, const struct serve_choice *c,
                                          uint32_t i)
{
    return token_at(job, c, i);
}

bool serve_job_score(struct serve_job *job, struct serve_prompt *p)
{
    struct clb_err err;

    p->scores = clb_new(p->n, token_size(job), &err);
    if (!p->scores)
        return false;
    p->n_scored = 1;
    *serve_job_scored(job, p, 0) = (struct serve_token){ .chosen = { p->ids[0], NAN } };
    return true;
}

struct serve_token *serve_job_scored(const struct serve_job *job, const struct serve_prompt *p,
                                     size_t i)
{
    return (struct serve_token *)(void *)(p->scores + i * token_size(job));
}

struct serve_token *serve_job_add_token(struct serve_job *job, struct serve_choice *c)
{
    struct clb_err err;

    if (c->n_token == c->token_room) {
        uint32_t room = c->token_room ? c->token_room * 2 : 16;
        void *more = clb_grow(c->tokens, room, token_size(job), &err);
        if (!more)
            return NULL;
        c->tokens = more;
        c->token_room = room;
    }
    return token_at(job, c, c->n_token++);
}
