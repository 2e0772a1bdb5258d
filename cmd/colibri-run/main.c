/* main.c - colibri-run: a prompt in, the text that the model continues it with out. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/colibri-run/run.h"
#include "lib/base/clock.h"
#include "lib/cli/engine.h"
#include "lib/cli/report.h"
#include "lib/cli/sigbus.h"

static const char name[] = RUN_NAME;
enum { SIDE_BY_SIDE = 8 }; /* of many prompts, unless --batch says otherwise */

static bool load(struct run *r, struct clb_err *err)
{
    struct run_options *o = &r->o;
    struct colibri_load_options lo = {
        .size = sizeof lo,
        .threads = o->threads,
        .cpu_level = o->cpu,
        .memory = o->memory,
        .verify = o->verify,
        .no_routing_cache = o->no_routing_cache,
        .mlock = o->mlock,
        .numa = clb_engine_numa(o->numa),
    };

    if (!clb_engine_where(&lo, &o->where, err))
        return false;
    if (!o->common.quiet)
        clb_engine_show_upload(&lo, &o->where);
    r->model = colibri_load_model_ex(o->model, &lo, NULL);
    r->info.size = sizeof r->info;
    if (!r->model || colibri_model_info(r->model, &r->info) != COLIBRI_OK)
        return clb_engine_fail(err);
    if (!o->ids && !r->info.has_tokenizer)
        return clb_fail(err, CLB_USAGE, "%s: has no tokenizer; only --ids works", o->model);
    return !o->chat || run_chat_check(r, err);
}

static bool open_scheduler(struct run *r, struct clb_err *err)
{
    const struct run_options *o = &r->o;
    uint64_t most = run_source_count(&r->source);
    struct colibri_scheduler_options so = {
        .size = sizeof so,
        .context = o->context,
        .prefill_chunk = o->prefill_chunk,
        .shared_chunk = UINT32_MAX, /* nobody looks at a single answer: the whole counts */
        .kv_dtype = clb_engine_kv_dtype(o->kv_dtype),
        .experts_per_token = o->experts_per_token,
        .enable_profiling = o->profile,
    };

    r->n_session = o->batch ? o->batch : o->mode == RUN_ONE ? 1 : SIDE_BY_SIDE;
    if (most && most < r->n_session)
        r->n_session = (uint32_t)most;
    so.max_sequences = so.max_queue = r->n_session;
    r->plan.size = sizeof r->plan;
    if (colibri_plan_scheduler(r->model, &so, &r->plan) != COLIBRI_OK ||
        colibri_scheduler_open(&r->scheduler, r->model, &so) != COLIBRI_OK ||
        colibri_model_info(r->model, &r->info) != COLIBRI_OK) /* where it runs is decided now */
        return clb_engine_fail(err);
    if (o->mode != RUN_ONE)
        clb_progress_start_count("running", most, "prompts", o->common.quiet);
    return true;
}

static bool find_in_model(const void *model, const void *address, uint64_t *offset,
                          const char **path)
{
    return colibri_address_in_model(model, address, offset, path);
}

/* Someone who reads along gets each token at once; a file gets blocks. */
static bool someone_waits(void)
{
    struct stat st;

    return fstat(1, &st) == 0 && !S_ISREG(st.st_mode);
}

static bool run_all(struct run *r, struct clb_err *err)
{
    bool talks = run_chat_from_terminal(r);

    if (!load(r, err))
        return false;
    clb_sigbus_install(name, find_in_model, r->model);
    if (talks && r->o.logits)
        return clb_fail(err, CLB_USAGE, "--logits does not go with turns from a terminal");
    if (!run_source_open(&r->source, &r->o, err) || !open_scheduler(r, err) ||
        (r->o.logits && !run_logits_open(r, err)))
        return false;
    run_catch_interrupt(); /* after the logits file: a second Ctrl-C removes what is there of it */
    r->streams = someone_waits();
    r->count.ready = clb_now();
    if (r->o.common.verbose)
        run_print_setup(r);
    else if (!r->o.common.quiet)
        clb_engine_warn_cpu(name, &r->o.where, &r->info);
    if (!r->o.prompt && isatty(0) && !talks && !r->o.common.quiet)
        fprintf(stderr, "%s: reading from the terminal; Ctrl-D ends the input\n", name);
    bool ok = talks ? run_talk(r, err) : run_schedule(r, err);
    clb_progress_done();
    if (!ok || run_interrupted())
        return ok;
    if (r->o.logits && !clb_outfile_commit(&r->logits.file, err))
        return false;
    if (r->o.profile && !run_print_profile(r))
        return clb_fail_nomem(err, 1);
    return (!r->o.stats && !r->o.json) || run_print_stats(r, err);
}

static void close_all(struct run *r)
{
    r->failed = true; /* nothing is written any more */
    colibri_scheduler_close(r->scheduler);
    clb_outfile_discard(&r->logits.file);
    while (r->head) {
        struct run_job *next = r->head->next;
        run_job_free(r->head);
        r->head = next;
    }
    run_source_close(&r->source);
    clb_sigbus_install(name, NULL, NULL);
    colibri_unload_model(r->model);
}

static int run(struct run *r)
{
    struct clb_err err;
    bool ok = run_all(r, &err);

    bool cut = !ok || run_interrupted();
    if (cut && r->o.mode == RUN_ONE && r->open_line && !r->stdout_failed)
        clb_stdout_write("\n", 1, true, &(struct clb_err){ 0 });
    close_all(r);
    clb_progress_done();
    if (!ok)
        clb_report(name, &err, r->o.common.verbose);
    if (run_interrupted())
        run_die_of_interrupt();
    if (r->stdout_failed) /* said already */
        return clb_exit_status(err.code);
    return clb_finish(name, !ok ? clb_exit_status(err.code) : r->n_failed ? 1 : 0);
}

int main(int argc, char **argv)
{
    static struct run r;

    r.count.started = clb_now();
    int status = run_parse_options(&r.o, argc, argv);
    return status >= 0 ? status : run(&r);
}
