/* Continuous batching: each pass computes rows of all open sessions; when one has its answer, the
 * next prompt takes its place. */
#include "cmd/colibri-run/run.h"

#include "lib/base/clock.h"
#include "lib/cli/engine.h"
#include "lib/cli/report.h"

/* Finished answers behind one that is not: their texts, and with --logits an open file each. */
enum { MOST_WAITING = 1024, MOST_FILES = 256 };

/* -- start ------------------------------------------------------------------------------------- */

/* The answer continues the prompt, so its first token is not the start of a text (decoders drop a
 * space there): the decoder sees the prompt too, and what it says about it is dropped. In a
 * conversation an answer is a text of its own. */
static bool open_decoder(struct run_job *job, struct clb_err *err)
{
    const char *text;
    size_t n;
    bool ok = colibri_decoder_open(&job->decoder, job->run->model, true) == COLIBRI_OK;

    for (size_t i = 0; ok && !job->run->o.chat && i < job->n_ids; i++)
        ok = colibri_decoder_feed(job->decoder, job->ids[i], &text, &n) == COLIBRI_OK;
    return ok || clb_engine_fail(err);
}

static bool start_job(struct run_job *job, struct clb_err *err)
{
    struct run *r = job->run;

    if (!r->o.ids && !open_decoder(job, err))
        return false;
    size_t most = r->plan.context - job->n_ids < job->max_new ? r->plan.context
                                                              : job->n_ids + job->max_new;
    if (colibri_session_open(&job->session, r->batch, &job->sampling) != COLIBRI_OK ||
        (!r->o.context && most && colibri_session_expect(job->session, most) != COLIBRI_OK) ||
        colibri_session_feed(job->session, job->ids, job->n_ids) != COLIBRI_OK)
        return clb_engine_fail(err);
    if (r->o.logits)
        colibri_session_on_rows(job->session, run_logits_row, job);
    return true;
}

static void append(struct run *r, struct run_job *job)
{
    if (r->tail)
        r->tail->next = job;
    else
        r->head = job;
    r->tail = job;
    r->n_waiting++;
}

static bool may_start(const struct run *r)
{
    if (r->o.logits && r->n_waiting >= MOST_FILES)
        return false;
    return r->n_active < r->n_session && r->n_waiting - r->n_active < MOST_WAITING;
}

/* Gives free sessions to the next prompts. Waits for input only when there is nothing to compute.
 */
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
        if (job->finish == RUN_FAILED)
            return true; /* it may be its turn to be reported */
        if (!start_job(job, err))
            return false;
        r->n_active++;
    }
    return true;
}

/* -- one pass ---------------------------------------------------------------------------------- */

/* Shares the time of a step among prompts and answers by their rows. */
static void count_step(struct run *r, double seconds)
{
    uint64_t old = 0, new = 0;

    for (struct run_job *job = r->head; job; job = job->next) {
        if (!job->session)
            continue;
        size_t length = colibri_session_length(job->session), before = job->computed;
        size_t prompt = length < job->n_ids ? length : job->n_ids;
        prompt = before < prompt ? prompt - before : 0;
        old += prompt;
        new += length - before - prompt;
        job->computed = length;
    }
    r->count.steps++;
    r->count.prompt_rows += old;
    r->count.new_rows += new;
    if (old + new) {
        r->count.prompt_seconds += seconds * (double)old / (double)(old + new);
        r->count.new_seconds += seconds * (double)new / (double)(old + new);
    }
}

static bool step(struct run *r, struct clb_err *err)
{
    double start = clb_now();

    if (colibri_batch_step(r->batch, NULL) != COLIBRI_OK)
        return clb_engine_fail(err);
    count_step(r, clb_now() - start);
    if (r->o.profile)
        run_print_step(r);
    if (r->logits.err.code != CLB_OK) {
        *err = r->logits.err;
        return false;
    }
    return true;
}

/* With --ids there is no text, and the tokenizer has no say. */
static bool is_end_token(const struct run *r, int32_t id)
{
    uint32_t n = r->info.n_eos - (r->o.ids ? r->info.n_text_eos : 0);

    for (uint32_t i = 0; i < n; i++)
        if (r->info.eos_token[i] == id)
            return true;
    return false;
}

/* Chooses the next token, or finds that there is none. */
static bool next_token(struct run_job *job, struct clb_err *err)
{
    struct run *r = job->run;

    if (job->n_new >= job->max_new || job->n_ids + job->n_new >= r->plan.context) {
        job->finish = RUN_LENGTH;
        return true;
    }
    int32_t id = colibri_session_sample(job->session);
    if (id < 0) { /* its logits are no numbers: the other prompts can go on */
        clb_engine_fail(&job->err);
        clb_text_clear(&job->out);
        job->finish = RUN_FAILED;
        return true;
    }
    if (is_end_token(r, id)) {
        job->finish = RUN_STOP;
        return true;
    }
    r->count.new_tokens++;
    if (!run_take_token(job, id, err))
        return false;
    if (job->finish == RUN_UNFINISHED && job->n_new == job->max_new)
        job->finish = RUN_LENGTH; /* its own row is not needed */
    if (job->finish != RUN_UNFINISHED)
        return true;
    return colibri_session_feed(job->session, &id, 1) == COLIBRI_OK || clb_engine_fail(err);
}

/* After a step: a token for every session that has logits. */
static bool advance(struct run *r, struct clb_err *err)
{
    for (struct run_job *job = r->head; job; job = job->next) {
        if (!job->session || !colibri_session_logits(job->session))
            continue;
        if (!next_token(job, err))
            return false;
        if (job->finish != RUN_UNFINISHED) {
            if (job->finish != RUN_FAILED && !run_finish_text(job, err))
                return false;
            if (!job->turn)
                colibri_session_close(job->session);
            job->session = NULL;
            r->n_active--;
        }
        if (r->o.mode == RUN_ONE && !run_stream(job, err))
            return false;
    }
    return true;
}

/* -- end --------------------------------------------------------------------------------------- */

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
    r->n_active++;
    while (ok && job->finish == RUN_UNFINISHED && !run_interrupted())
        ok = step(r, err) && advance(r, err);
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
        if (!step(r, err) || !advance(r, err))
            return false;
    }
    return r->o.mode != RUN_ONE || !r->head || run_stream(r->head, err);
}
