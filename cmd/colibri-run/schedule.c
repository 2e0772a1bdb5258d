/* Prompts go to the library's scheduler as they come; answers are written in the order of the
 * input. */
#include "cmd/colibri-run/run.h"

#include "lib/cli/engine.h"
#include "lib/cli/report.h"

/* Finished answers behind one that is not: their texts, and with --logits an open file each. */
enum { MOST_WAITING = 1024, MOST_FILES = 256 };

/* -- events ------------------------------------------------------------------------------------ */

/* Nonzero: the run ends. Rows come before the token that is chosen by them. */
static int on_token(const struct colibri_token_event *e)
{
    struct run_job *job = e->arg;
    struct run *r = job->run;

    job->n_new++;
    r->count.new_tokens++;
    if (r->failed || r->logits.err.code != CLB_OK)
        return 1;
    r->failed =
        !run_take_token(job, e, &r->err) || (r->o.mode == RUN_ONE && !run_stream(job, &r->err));
    return r->failed;
}

static void take_failure(struct run_job *job, const struct colibri_error *e)
{
    clb_fail(&job->err, (enum clb_code)e->code, "%s", e->text);
    clb_text_clear(&job->out);
    job->finish = RUN_FAILED;
}

static void on_finish(const struct colibri_finish_event *e)
{
    struct run_job *job = e->arg;
    struct run *r = job->run;

    job->running = false;
    r->n_active--;
    job->cached = e->cached_tokens;
    job->queue_seconds = e->queue_seconds;
    job->prefill_seconds = e->prefill_seconds;
    job->decode_seconds = e->decode_seconds;
    if (e->finish == COLIBRI_FINISH_CANCELLED)
        return; /* the run ends here */
    if (e->finish == COLIBRI_FINISH_FAILED) {
        take_failure(job, e->error);
        return;
    }
    bool stopped = e->finish == COLIBRI_FINISH_STOP || e->finish == COLIBRI_FINISH_EOS;
    job->finish = stopped ? RUN_STOP : RUN_LENGTH;
    if (!r->failed && r->logits.err.code == CLB_OK)
        r->failed = !run_take_text(job, (struct clb_str){ e->text, e->n_text }, &r->err) ||
                    (r->o.mode == RUN_ONE && !run_stream(job, &r->err));
}

/* -- start ------------------------------------------------------------------------------------- */

static void append(struct run *r, struct run_job *job)
{
    if (r->tail)
        r->tail->next = job;
    else
        r->head = job;
    r->tail = job;
    r->n_waiting++;
}

/* A request that can never be computed is the failure of its prompt alone. */
static void submit(struct run_job *job)
{
    struct run *r = job->run;
    const char *stop[CLB_OPT_MANY];
    size_t stop_size[CLB_OPT_MANY];
    const struct colibri_request request = {
        .size = sizeof request,
        .ids = job->ids,
        .n_ids = job->n_ids,
        .sampling = &job->sampling,
        .max_new_tokens = job->max_new,
        .prompt_only = job->max_new == 0,
        .positions = r->o.context,
        .stop = stop,
        .stop_size = stop_size,
        .n_stop = run_stops_list(&job->stops, stop, stop_size),
        .ids_only = r->o.ids,
        .new_text = r->o.chat,
        .on_token = on_token,
        .on_finish = on_finish,
        .on_row = r->o.logits ? run_logits_row : NULL,
        .arg = job,
    };

    job->running = true;
    r->n_active++;
    if (colibri_scheduler_submit(r->scheduler, &request, &job->ticket) == COLIBRI_OK)
        return;
    job->running = false;
    r->n_active--;
    take_failure(job, colibri_last_error_info());
}

/* Some more than there are places, so that none is empty for a pass. */
static bool may_start(const struct run *r)
{
    if (r->o.logits && r->n_waiting >= MOST_FILES)
        return false;
    return r->n_active < 2 * r->n_session && r->n_waiting - r->n_active < MOST_WAITING;
}

/* Reads prompts. Waits for input only when there is nothing to compute. */
static bool fill(struct run *r, bool *end, struct clb_err *err)
{
    while (!*end && may_start(r) && !run_interrupted()) {
        struct clb_str record;
        bool idle = r->n_active == 0 && !r->head;
        enum run_got got = run_source_next(&r->source, idle, &record, err);
        if (got == RUN_READ_FAILED)
            return false;
        if (got == RUN_NOTHING_YET && !idle)
            return true;
        *end = got == RUN_END;
        if (got != RUN_RECORD)
            continue;
        struct run_job *job = run_job_new(r, record, err);
        if (!job)
            return false;
        append(r, job);
        if (job->finish != RUN_FAILED)
            submit(job);
        if (job->finish == RUN_FAILED)
            return true; /* it may be its turn to be reported */
    }
    return true;
}

/* -- compute and write ------------------------------------------------------------------------- */

static bool step(struct run *r, struct clb_err *err)
{
    if (colibri_scheduler_step(r->scheduler, NULL) != COLIBRI_OK)
        return clb_engine_fail(err);
    if (r->o.profile)
        run_print_step(r);
    if (r->logits.err.code != CLB_OK) {
        *err = r->logits.err;
        return false;
    }
    if (r->failed)
        *err = r->err;
    return !r->failed;
}

/* Writes what is finished, as far as it is its turn. */
static bool write_finished(struct run *r, struct clb_err *err)
{
    while (r->head && r->head->finish != RUN_UNFINISHED) {
        struct run_job *job = r->head;
        if (r->o.logits && !run_logits_turn(job, err))
            return false;
        if (!run_write_job(job, err))
            return false;
        r->n_failed += job->finish == RUN_FAILED;
        r->head = job->next;
        r->n_waiting--;
        if (!r->head)
            r->tail = NULL;
        run_job_free(job);
        if (r->o.mode != RUN_ONE)
            clb_progress_at(++r->n_done);
    }
    return true;
}

bool run_one(struct run *r, struct run_job *job, struct clb_err *err)
{
    bool ok = true;

    append(r, job);
    submit(job);
    while (ok && job->finish == RUN_UNFINISHED && !run_interrupted())
        ok = step(r, err);
    if (job->running) { /* the caller frees it */
        colibri_scheduler_cancel(r->scheduler, job->ticket);
        ok = step(r, err) && ok;
    }
    r->head = r->tail = NULL;
    r->n_waiting = 0;
    return ok;
}

bool run_schedule(struct run *r, struct clb_err *err)
{
    bool end = false;

    while (!run_interrupted()) {
        if (!fill(r, &end, err) || !write_finished(r, err))
            return false;
        if (r->n_active == 0) {
            if (end && !r->head)
                return true;
            continue;
        }
        if (!step(r, err))
            return false;
    }
    return r->o.mode != RUN_ONE || !r->head || run_stream(r->head, err);
}
