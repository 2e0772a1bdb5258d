/* main.c - colibri-run: a prompt in, the text that the model continues it with out. */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/colibri-run/run.h"
#include "lib/base/clock.h"
#include "lib/cli/report.h"
#include "lib/cli/sigbus.h"

static const char name[] = "colibri-run";
enum { SIDE_BY_SIDE = 8 }; /* sessions of many prompts, unless --batch says otherwise */

bool run_api_fail(struct clb_err *err)
{
    const struct colibri_error *e = colibri_last_error_info();

    clb_fail(err, (enum clb_code)e->code, "%s", e->text);
    err->sys = e->sys;
    return false;
}

/* What the option table cannot say. */
static bool check_options(struct run_options *o, int argc, char **argv, int first, struct clb_err *err)
{
    if (argc - first != 1)
        return clb_fail(err, CLB_USAGE, first == argc ? "no model given" : "one model at a time");
    o->model = argv[first];
    if (o->lines + o->null + o->jsonl > 1)
        return clb_fail(err, CLB_USAGE, "--lines, --null and --jsonl exclude each other");
    if (o->ids && o->jsonl)
        return clb_fail(err, CLB_USAGE, "--ids does not go with --jsonl");
    if (o->ids && (o->stop.n || o->parse_special))
        return clb_fail(err, CLB_USAGE, "--ids works without text: no --stop and no --parse-special");
    for (uint32_t i = 0; i < o->stop.n; i++)
        if (!*o->stop.value[i])
            return clb_fail(err, CLB_USAGE, "--stop: the text is empty");
    o->mode = o->lines ? RUN_LINES : o->null ? RUN_NULL : o->jsonl ? RUN_JSONL : RUN_ONE;
    if (o->batch && o->mode == RUN_ONE)
        return clb_fail(err, CLB_USAGE, "--batch needs many prompts: --lines, --null or --jsonl");
    return true;
}

static bool load(struct run *r, struct clb_err *err)
{
    const struct run_options *o = &r->o;
    const struct colibri_load_options lo = {
        .size = sizeof lo,
        .threads = o->threads,
        .cpu_level = o->cpu,
        .backend = o->backend,
        .memory = o->memory,
        .verify = o->verify,
        .no_routing_cache = o->no_routing_cache,
    };

    r->model = colibri_load_model_ex(o->model, &lo, NULL);
    r->info.size = sizeof r->info;
    if (!r->model || colibri_model_info(r->model, &r->info) != COLIBRI_OK)
        return run_api_fail(err);
    if (!o->ids && !r->info.has_tokenizer)
        return clb_fail(err, CLB_USAGE, "%s: has no tokenizer; only --ids works", o->model);
    return true;
}

static int32_t kv_dtype_of(const char *word)
{
    return !word                  ? COLIBRI_KV_DEFAULT
           : !strcmp(word, "f32") ? COLIBRI_KV_F32
           : !strcmp(word, "f16") ? COLIBRI_KV_F16
                                  : COLIBRI_KV_INT8;
}

static bool open_batch(struct run *r, struct clb_err *err)
{
    const struct run_options *o = &r->o;
    uint64_t most = run_source_count(&r->source);
    struct colibri_batch_options bo = {
        .size = sizeof bo,
        .context = o->context,
        .prefill_chunk = o->prefill_chunk,
        .kv_dtype = kv_dtype_of(o->kv_dtype),
        .experts_per_token = o->experts_per_token,
        .enable_profiling = o->profile,
    };

    r->n_session = o->batch ? o->batch : o->mode == RUN_ONE ? 1 : SIDE_BY_SIDE;
    if (most && most < r->n_session)
        r->n_session = (uint32_t)most;
    bo.max_sessions = r->n_session;
    r->plan.size = sizeof r->plan;
    if (colibri_plan_batch(r->model, &bo, &r->plan) != COLIBRI_OK ||
        colibri_batch_open(&r->batch, r->model, &bo) != COLIBRI_OK)
        return run_api_fail(err);
    r->context = o->context ? o->context : r->info.max_positions < 4096 ? r->info.max_positions : 4096;
    if (o->mode != RUN_ONE)
        clb_progress_start_count("running", most, "prompts", o->common.quiet);
    return true;
}

static bool find_in_model(const void *model, const void *address, uint64_t *offset, const char **path)
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
    if (!load(r, err))
        return false;
    clb_sigbus_install(name, find_in_model, r->model);
    run_source_open(&r->source, &r->o);
    if (!open_batch(r, err) || (r->o.logits && !run_logits_open(r, err)))
        return false;
    run_catch_interrupt(); /* after the logits file: a second Ctrl-C removes what is there of it */
    r->streams = someone_waits();
    r->count.ready = clb_now();
    if (r->o.common.verbose)
        run_print_setup(r);
    if (!r->o.prompt && isatty(0) && !r->o.common.quiet)
        fprintf(stderr, "%s: reading from the terminal; Ctrl-D ends the input\n", name);
    bool ok = run_schedule(r, err);
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
    clb_outfile_discard(&r->logits.file);
    while (r->head) {
        struct run_job *next = r->head->next;
        run_job_free(r->head);
        r->head = next;
    }
    run_source_close(&r->source);
    colibri_batch_close(r->batch);
    clb_sigbus_install(name, NULL, NULL);
    colibri_unload_model(r->model);
}

static int run(struct run *r)
{
    struct clb_err err;
    bool ok = run_all(r, &err);

    if (r->open_line && (!ok || run_interrupted()) && !r->stdout_failed)
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
    static struct run r = { .o = { .max_new = 256 } };
    struct run_options *o = &r.o;
    const struct clb_opt opts[] = {
        { CLB_OPT_GROUP, 0, "Prompt", NULL, NULL, NULL, 0, 0, false },
        { CLB_OPT_STRING, 'p', "prompt", "TEXT", "the prompt (default: all of stdin)", &o->prompt, 0, 0, false },
        { CLB_OPT_FLAG, 0, "lines", NULL, "every line is a prompt; one line out for each", &o->lines, 0, 0, false },
        { CLB_OPT_FLAG, 0, "null", NULL, "prompts and answers end in a NUL byte", &o->null, 0, 0, false },
        { CLB_OPT_FLAG, 0, "jsonl", NULL, "JSON lines in and out", &o->jsonl, 0, 0, false },
        { CLB_OPT_FLAG, 0, "ids", NULL, "token ids instead of text, in and out", &o->ids, 0, 0, false },
        { CLB_OPT_FLAG, 0, "parse-special", NULL, "read special tokens in prompts as such", &o->parse_special, 0, 0,
          false },
        { CLB_OPT_GROUP, 0, "Answer", NULL, NULL, NULL, 0, 0, false },
        { CLB_OPT_UINT, 'n', "max-tokens", "N", "at most N new tokens (default: 256)", &o->max_new, 0, INT32_MAX,
          false },
        { CLB_OPT_LIST, 0, "stop", "TEXT", "end before TEXT; may be repeated", &o->stop, 0, 0, false },
        { CLB_OPT_FLOAT, 0, "temp", "T", "temperature (default: 0, greedy)", &o->temperature, 0, 100, false },
        { CLB_OPT_UINT, 0, "top-k", "K", "choose among the K most likely", &o->top_k, 0, INT32_MAX, false },
        { CLB_OPT_FLOAT, 0, "top-p", "P", "choose among those that sum up to P", &o->top_p, 0, 1, false },
        { CLB_OPT_FLOAT, 0, "min-p", "P", "drop those below P times the likeliest", &o->min_p, 0, 1, false },
        { CLB_OPT_FLOAT, 0, "repeat-penalty", "R", "divide logits of recent tokens by R", &o->repeat_penalty, 0.01,
          100, false },
        { CLB_OPT_UINT, 0, "seed", "S", "of the random choice (default: 0)", &o->seed, 0, UINT32_MAX, false },
        { CLB_OPT_STRING, 0, "logits", "FILE", "write all computed rows as raw f32", &o->logits, 0, 0, false },
        { CLB_OPT_GROUP, 0, "Engine", NULL, NULL, NULL, 0, 0, false },
        { CLB_OPT_UINT, 0, "ctx", "N", "longest sequence (default: at most 4096)", &o->context, 1, UINT32_MAX, false },
        { CLB_OPT_UINT, 0, "experts-per-token", "K", "instead of the model's number", &o->experts_per_token, 1, 1024,
          false },
        { CLB_OPT_CHOICE, 0, "kv-dtype", "f32|f16|int8", "of the KV cache (default: by the model)", &o->kv_dtype, 0, 0,
          false },
        { CLB_OPT_UINT, 0, "batch", "N", "prompts side by side (default: 8)", &o->batch, 1, 4096, false },
        { CLB_OPT_UINT, 't', "threads", "N", "default: one per core", &o->threads, 1, 1024, false },
        { CLB_OPT_SIZE, 0, "memory", "SIZE", "use at most SIZE, e.g. 8G; caches experts", &o->memory, 0, 0, false },
        { CLB_OPT_STRING, 0, "cpu", "LEVEL", "scalar, avx2, avxvnni or avx512 at most", &o->cpu, 0, 0, false },
        { CLB_OPT_STRING, 0, "backend", "NAME", "cpu", &o->backend, 0, 0, false },
        { CLB_OPT_FLAG, 0, "verify", NULL, "check every weight when it is first used", &o->verify, 0, 0, false },
        { CLB_OPT_GROUP, 0, "Messages", NULL, NULL, NULL, 0, 0, false },
        { CLB_OPT_FLAG, 0, "stats", NULL, "speed and memory at the end, on stderr", &o->stats, 0, 0, false },
        { CLB_OPT_FLAG, 0, "json", NULL, "--stats as one line of JSON", &o->json, 0, 0, false },
        { CLB_OPT_FLAG, 0, "profile", NULL, "time of every stage, on stderr", &o->profile, 0, 0, false },
        { CLB_OPT_UINT, 0, "prefill-chunk", "N", "rows per pass (tests)", &o->prefill_chunk, 1, 65536, true },
        { CLB_OPT_FLAG, 0, "no-routing-cache", NULL, "(tests)", &o->no_routing_cache, 0, 0, true },
        CLB_OPT_COMMON(&o->common),
        { .kind = CLB_OPT_END },
    };
    const struct clb_program self = { name, "[options] MODEL",
                                      "Continues a prompt with a Mixture-of-Experts model (colibri.bin).", opts,
                                      "Example: echo 'The capital of France is' | colibri-run model.bin" };
    struct clb_err err;
    int first;

    r.count.started = clb_now();
    int status = clb_opt_start(&self, &o->common, argc, argv, &first);
    if (status >= 0)
        return status;
    if (!check_options(o, argc, argv, first, &err)) {
        clb_report(name, &err, o->common.verbose);
        fprintf(stderr, "%s: try '%s --help'\n", name, name);
        return clb_exit_status(err.code);
    }
    return run(&r);
}
