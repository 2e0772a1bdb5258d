/* A job as server-sent events: chunks of OpenAI's API. */
#include "cmd/colibri-serve/http.h"

/* {"id":…,"choices":[{"index":i, and what follows */
static void open_chunk(struct clb_text *t, const struct serve_job *job, uint32_t i)
{
    clb_text_puts(t, "data: ");
    serve_answer_head(t, job,
                      job->kind == SERVE_CHAT ? "chat.completion.chunk" : "text_completion");
    clb_text_printf(t, ",\"choices\":[{\"index\":%u", i);
}

static void close_chunk(struct clb_text *t, const struct serve_job *job, const char *finish)
{
    clb_text_puts(t, ",\"finish_reason\":");
    if (finish)
        clb_text_printf(t, "\"%s\"", finish);
    else
        clb_text_puts(t, "null");
    clb_text_puts(t, job->p.include_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n");
}

static void put_text(struct clb_text *t, const struct serve_job *job, struct clb_str s, bool first)
{
    if (job->kind == SERVE_CHAT)
        clb_text_puts(t, first ? ",\"delta\":{\"role\":\"assistant\",\"content\":"
                               : ",\"delta\":{\"content\":");
    else
        clb_text_puts(t, ",\"text\":");
    clb_text_json(t, s.n ? s.p : "", s.n);
    clb_text_puts(t, job->kind == SERVE_CHAT ? "}" : "");
}

/* What is new of a choice. */
static void put_choice(struct serve_request *q, uint32_t i)
{
    const struct serve_job *job = q->job;
    const struct serve_choice *c = &job->choice[i];
    const struct serve_prompt *p = &job->prompt[i / job->p.n];
    struct serve_cursor *at = &q->cursor[i];
    struct clb_text *t = &q->out;

    if (p->scores && p->n_scored < p->n && !c->finish)
        return; /* its prompt is not known yet */
    if (!at->echoed && job->p.echo) {
        open_chunk(t, job, i);
        put_text(t, job, (struct clb_str){ p->text.p, p->text.n }, false);
        serve_answer_logprobs(t, job, i, at, true);
        close_chunk(t, job, NULL);
        at->echoed = true;
    }
    if (c->text.n > at->text || (!at->began && (c->finish || job->kind == SERVE_CHAT)) ||
        (c->finish && c->n_token > at->token)) {
        open_chunk(t, job, i);
        struct clb_str s = { c->text.p ? c->text.p + at->text : "", c->text.n - at->text };
        put_text(t, job, s, !at->began);
        serve_answer_logprobs(t, job, i, at, false);
        close_chunk(t, job, NULL);
        at->text = c->text.n;
        at->began = true;
    }
    if (c->finish && c->finish != SERVE_FAILED && !at->ended) {
        open_chunk(t, job, i);
        clb_text_puts(t, job->kind == SERVE_CHAT ? ",\"delta\":{}" : ",\"text\":\"\"");
        clb_text_puts(t, ",\"logprobs\":null");
        close_chunk(t, job, serve_finish_word(c->finish));
        at->ended = true;
    }
}

static void put_end(struct serve_request *q)
{
    const struct serve_job *job = q->job;

    if (q->no.status) {
        clb_text_puts(&q->out, "data: {\"error\":");
        serve_refusal_json(&q->out, &q->no);
        clb_text_puts(&q->out, "}\n\n");
    } else if (job->p.include_usage) {
        clb_text_puts(&q->out, "data: ");
        serve_answer_head(&q->out, job,
                          job->kind == SERVE_CHAT ? "chat.completion.chunk" : "text_completion");
        clb_text_puts(&q->out, ",\"choices\":[],");
        serve_answer_usage(&q->out, job);
        clb_text_puts(&q->out, "}\n\n");
    }
    if (!q->no.status)
        clb_text_puts(&q->out, "data: [DONE]\n\n");
    q->ended = true;
}

void serve_stream(struct serve_request *q)
{
    struct serve_job *job = q->job;

    pthread_mutex_lock(&job->lock);
    for (uint32_t i = 0; i < job->n_choice && !q->no.status; i++)
        put_choice(q, i);
    if (job->done && !q->no.status)
        q->no = job->no;
    if (job->done || q->no.status)
        put_end(q);
    pthread_mutex_unlock(&job->lock);
}
