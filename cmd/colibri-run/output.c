#include "cmd/colibri-run/run.h"

#include <inttypes.h>

#include "lib/cli/report.h"

/* -- what comes from the scheduler ------------------------------------------------------------- */

bool run_take_text(struct run_job *job, struct clb_str text, struct clb_err *err)
{
    clb_text_add(&job->out, text.p, text.n);
    return !job->out.failed || clb_fail_nomem(err, job->out.n + text.n);
}

bool run_take_token(struct run_job *job, const struct colibri_token_event *e, struct clb_err *err)
{
    if (!job->run->o.ids)
        return run_take_text(job, (struct clb_str){ e->text, e->n_text }, err);
    clb_text_printf(&job->out, "%s%" PRId32, e->index ? " " : "", e->id);
    return !job->out.failed || clb_fail_nomem(err, job->out.n);
}

/* -- writing ----------------------------------------------------------------------------------- */

static bool put(struct run *r, const void *bytes, size_t n, struct clb_err *err)
{
    if (n == 0)
        return true;
    r->open_line = ((const char *)bytes)[n - 1] != '\n';
    r->stdout_failed = !clb_stdout_write(bytes, n, r->streams, err);
    return !r->stdout_failed;
}

bool run_newline(struct run *r, struct clb_err *err)
{
    return put(r, "\n", 1, err);
}

bool run_stream(struct run_job *job, struct clb_err *err)
{
    if (job->turn)
        clb_text_add(&job->all, job->out.p, job->out.n);
    bool ok = put(job->run, job->out.p, job->out.n, err);

    clb_text_clear(&job->out);
    return ok;
}

/* One line whatever the answer holds. */
static void escape_line(struct clb_text *to, const struct clb_text *from)
{
    for (size_t i = 0; i < from->n; i++) {
        char c = from->p[i];
        if (c == '\n')
            clb_text_puts(to, "\\n");
        else if (c == '\r')
            clb_text_puts(to, "\\r");
        else if (c == '\\')
            clb_text_puts(to, "\\\\");
        else
            clb_text_add(to, &c, 1);
    }
    clb_text_add(to, "\n", 1);
}

static void add_json(struct clb_text *to, const struct run_job *job)
{
    if (job->finish == RUN_FAILED) {
        clb_text_puts(to, "{\"error\":");
        clb_text_json(to, job->err.text, strlen(job->err.text));
        clb_text_puts(to, "}\n");
        return;
    }
    clb_text_puts(to, "{\"text\":");
    clb_text_json(to, job->out.n ? job->out.p : "", job->out.n);
    clb_text_printf(to, ",\"prompt_tokens\":%zu,\"completion_tokens\":%u,\"finish_reason\":\"%s\"",
                    job->n_ids, job->n_new, job->finish == RUN_STOP ? "stop" : "length");
    if (job->run->o.stats)
        clb_text_printf(to,
                        ",\"cached_tokens\":%u,\"seconds\":{\"queue\":%.6f,\"prefill\":%.6f,"
                        "\"decode\":%.6f}",
                        job->cached, job->queue_seconds, job->prefill_seconds, job->decode_seconds);
    clb_text_puts(to, "}\n");
}

bool run_write_job(struct run_job *job, struct clb_err *err)
{
    struct run *r = job->run;
    struct clb_text record = { 0 };

    if (r->o.mode == RUN_ONE) {
        if (job->finish == RUN_FAILED) {
            *err = job->err;
            return false;
        }
        return !r->open_line || put(r, "\n", 1, err);
    }
    if (job->finish == RUN_FAILED)
        clb_warn(RUN_NAME, "%s %llu: %s", r->o.mode == RUN_NULL ? "record" : "line",
                 (unsigned long long)job->number, job->err.text);
    if (r->o.mode == RUN_LINES)
        escape_line(&record, &job->out);
    else if (r->o.mode == RUN_JSONL)
        add_json(&record, job);
    else
        clb_text_add(&job->out, "", 1); /* the NUL that ends it */
    struct clb_text *t = r->o.mode == RUN_NULL ? &job->out : &record;
    bool ok = t->failed ? clb_fail_nomem(err, t->n) : put(r, t->p, t->n, err);
    clb_text_free(&record);
    return ok;
}
