/* --chat: conversations. With turns from a terminal each new prompt is the whole conversation as
 * the model's template has it; what the scheduler knows of it already is not computed again. */
#include <unistd.h>

#include "cmd/colibri-run/run.h"
#include "lib/cli/engine.h"
#include "lib/cli/report.h"

/* -- conversations as JSON --------------------------------------------------------------------- */

static void add_message(struct clb_text *t, const char *role, struct clb_str content)
{
    clb_text_puts(t, t->n ? "," : "{\"messages\":[");
    clb_text_printf(t, "{\"role\":\"%s\",\"content\":", role);
    clb_text_json(t, content.n ? content.p : "", content.n);
    clb_text_puts(t, "}");
}

void run_chat_begin(const struct run_options *o, struct clb_text *t)
{
    if (o->system)
        add_message(t, "system", clb_str(o->system));
}

void run_chat_user(struct clb_text *t, struct clb_str text)
{
    add_message(t, "user", text);
}

bool run_chat_check(const struct run *r, struct clb_err *err)
{
    static const char probe[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}]}";

    if (!r->info.has_chat_template)
        return clb_fail(err, CLB_BAD_INPUT,
                        "%s: has no chat template; without --chat it continues text", r->o.model);
    /* What the template needs and we lack is said before anybody types; what it says about this
     * message does not matter. */
    if (colibri_chat_render(r->model, probe, sizeof probe - 1, NULL, 0) < 0 &&
        colibri_last_error_info()->code == COLIBRI_UNSUPPORTED)
        return clb_engine_fail(err);
    return true;
}

bool run_chat_from_terminal(const struct run *r)
{
    return r->o.chat && r->o.mode == RUN_ONE && !r->o.prompt && isatty(0);
}

/* -- turns from a terminal --------------------------------------------------------------------- */

/* What goes on from turn to turn. */
struct talk {
    struct run *r;
    struct clb_text messages; /* JSON, not closed */
};

/* The answer to the messages so far. */
static bool answer(struct talk *t, struct run_job *job, struct clb_err *err)
{
    struct run *r = t->r;

    job->turn = true;
    r->count.prompt_tokens += job->n_ids;
    if (!run_one(r, job, err))
        return false;
    if (job->finish == RUN_FAILED) {
        *err = job->err;
        return false;
    }
    add_message(&t->messages, "assistant", (struct clb_str){ job->all.p, job->all.n });
    return !r->open_line || run_newline(r, err);
}

/* One line of the user. A turn that is too long for the context is taken back, and said. */
static bool turn(struct talk *t, struct clb_str line, struct clb_err *err)
{
    struct run_job *job = run_job_blank(t->r, err);
    struct clb_text json = { 0 };
    size_t before = t->messages.n;

    if (!job)
        return false;
    run_chat_user(&t->messages, line);
    clb_text_add(&json, t->messages.p, t->messages.n);
    clb_text_puts(&json, "]}");
    bool ok = !json.failed || clb_fail_nomem(err, json.n);
    ok = ok && run_job_encode(job, (struct clb_str){ json.p, json.n }, true, err);
    if (ok && job->n_ids > t->r->plan.context) {
        clb_warn(RUN_NAME,
                 "the conversation would have %zu tokens, but the context holds %u; this turn is "
                 "taken back",
                 job->n_ids, t->r->plan.context);
        t->messages.n = before;
        t->r->n_failed++;
    } else if (ok) {
        ok = answer(t, job, err);
    }
    clb_text_free(&json);
    run_job_free(job);
    return ok;
}

static void ask(const struct run *r)
{
    if (!r->o.common.quiet)
        fputs("> ", stderr);
}

bool run_talk(struct run *r, struct clb_err *err)
{
    struct talk t = { .r = r };
    struct clb_str line;
    bool ok = true;

    r->source.delimiter = '\n';
    run_chat_begin(&r->o, &t.messages);
    ask(r);
    while (ok && !run_interrupted()) {
        enum run_got got = run_source_next(&r->source, true, &line, err);
        if (got == RUN_END || got == RUN_READ_FAILED) {
            ok = got == RUN_END;
            break;
        }
        if (got != RUN_RECORD)
            continue;
        if (line.n > 0)
            ok = turn(&t, line, err);
        if (ok && !run_interrupted())
            ask(r);
    }
    if (ok && !run_interrupted() && !r->o.common.quiet)
        fputc('\n', stderr); /* behind the last marker */
    clb_text_free(&t.messages);
    return ok;
}
