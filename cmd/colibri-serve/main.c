/* main.c - colibri-serve: a model behind HTTP. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cmd/colibri-serve/desk.h"
#include "cmd/colibri-serve/engine_thread.h"
#include "cmd/colibri-serve/http.h"
#include "cmd/colibri-serve/notify.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/cli/engine.h"
#include "lib/cli/report.h"
#include "lib/cli/sigbus.h"

static const char program[] = SERVE_NAME;

/* Before there are threads: the loop takes these from a descriptor, and nobody else gets them. */
static void block_signals(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* The file's name without folder and ".bin". */
static bool name_model(struct serve *s, struct clb_err *err)
{
    const char *slash = strrchr(s->o.model, '/');
    char *name = clb_strdup(s->o.name ? s->o.name : slash ? slash + 1 : s->o.model, err);

    if (!name)
        return false;
    size_t n = strlen(name);
    if (!s->o.name && n > 4 && !strcmp(name + n - 4, ".bin"))
        name[n - 4] = '\0';
    s->name = name;
    return true;
}

static bool load(struct serve *s, struct clb_err *err)
{
    struct serve_options *o = &s->o;
    struct colibri_load_options lo = {
        .size = sizeof lo,
        .threads = o->threads,
        .cpu_level = o->cpu,
        .memory = o->memory,
        .verify = o->verify,
        .mlock = o->mlock,
        .numa = clb_engine_numa(o->numa),
    };

    if (o->key_file && !serve_keys_load(&s->keys, o->key_file, err))
        return false;
    if (!clb_engine_where(&lo, &o->where, err))
        return false;
    if (!o->common.quiet)
        clb_engine_show_upload(&lo, &o->where);
    s->model = colibri_load_model_ex(o->model, &lo, NULL);
    s->info.size = sizeof s->info;
    if (!s->model || colibri_model_info(s->model, &s->info) != COLIBRI_OK)
        return clb_engine_fail(err);
    return s->info.has_tokenizer ||
           clb_fail(err, CLB_USAGE, "%s: has no tokenizer; a server needs one", o->model);
}

static bool find_in_model(const void *model, const void *address, uint64_t *offset,
                          const char **path)
{
    return colibri_address_in_model(model, address, offset, path);
}

static void log_memory(struct serve_line *l, const struct serve *s)
{
    const struct colibri_memory_plan *p = serve_engine_plan(s->engine);
    struct colibri_memory_stats m = { .size = sizeof m };

    serve_log_count(l, "memory_weights", p->weights);
    serve_log_count(l, "memory_kv", p->kv_cache);
    serve_log_count(l, "memory_activations", p->activations);
    serve_log_count(l, "memory_total", p->total);
    if (colibri_memory_stats(s->model, &m) == COLIBRI_OK && m.device.reserved)
        serve_log_count(l, "memory_gpu", m.device.reserved);
}

/* More than is ever needed was asked for. */
static void tell_kv_tokens(const struct serve *s)
{
    char text[160];

    if (s->o.kv_tokens <= s->kv_tokens)
        return;
    snprintf(text, sizeof text,
             "--kv-tokens %" PRIu64 " is more than %u answers of %u tokens need: it is %" PRIu64,
             s->o.kv_tokens, s->o.max_concurrent, s->context, s->kv_tokens);
    serve_log_say(s, "warning", "what", text);
}

/* The address is what a script waits for; the log has the rest. */
static bool announce(struct serve *s, struct clb_err *err)
{
    const struct colibri_memory_plan *p = serve_engine_plan(s->engine);
    bool six = strchr(s->o.host, ':') != NULL;
    struct clb_text url = { 0 };
    char note[CLB_CPU_NOTE];
    struct serve_line l;

    clb_text_printf(&url, "http://%s%s%s:%u", six ? "[" : "", s->o.host, six ? "]" : "",
                    s->http->port);
    if (!s->o.common.quiet) {
        serve_log_begin(&l, s->o.json, "start");
        serve_log_text(&l, "version", clb_str(CLB_VERSION));
        serve_log_text(&l, "url", clb_str(url.p));
        serve_log_text(&l, "model", clb_str(s->name));
        serve_log_text(&l, "device", clb_str(s->info.device));
        if (*clb_engine_cpu_note(note, &s->o.where, &s->info))
            serve_log_text(&l, "note", clb_str(note));
        if (*s->info.offload)
            serve_log_text(&l, "offload", clb_str(s->info.offload));
        serve_log_count(&l, "context", s->context);
        serve_log_count(&l, "kv_tokens", s->kv_tokens);
        serve_log_text(&l, "kv_dtype", clb_str(clb_engine_kv_word(p->kv_dtype)));
        log_memory(&l, s);
        serve_log_count(&l, "max_connections", s->http->max_conn);
        serve_log_ms(&l, "ms", clb_now() - s->started);
        serve_log_end(&l);
        tell_kv_tokens(s);
    }
    clb_text_puts(&url, "\n");
    bool ok = !url.failed || clb_fail_nomem(err, url.n);
    s->stdout_failed = ok && !clb_stdout_write(url.p, url.n, true, err);
    ok = ok && !s->stdout_failed;
    clb_text_free(&url);
    serve_notify("READY=1");
    return ok;
}

static bool run_all(struct serve *s, struct clb_err *err)
{
    if (!name_model(s, err) || !load(s, err))
        return false;
    clb_sigbus_install(program, find_in_model, s->model);
    if (!serve_metrics_new(&s->metrics, err) || !serve_engine_open(&s->engine, s, err) ||
        !serve_http_open(&s->http, s, err) || !serve_desk_open(&s->desk, s, err) ||
        !serve_engine_start(s->engine, err) || !announce(s, err))
        return false;
    bool ok = serve_http_run(s->http, err);
    serve_notify("STOPPING=1");
    if (ok && !s->o.common.quiet)
        serve_log_say(s, "end", "why", "signal");
    return ok;
}

int main(int argc, char **argv)
{
    static struct serve s;
    struct clb_err err;

    s.started = clb_now();
    s.created = (int64_t)time(NULL);
    int status = serve_parse_options(&s.o, argc, argv);
    if (status >= 0)
        return status;
    block_signals();
    bool ok = run_all(&s, &err);
    serve_desk_close(s.desk);
    serve_engine_close(s.engine); /* its last callbacks still write mail */
    s.engine = NULL;
    serve_http_close(s.http);
    serve_metrics_free(s.metrics);
    serve_keys_free(s.keys);
    clb_sigbus_install(program, NULL, NULL);
    colibri_unload_model(s.model);
    clb_free((char *)s.name);
    if (!ok)
        clb_report(program, &err, s.o.common.verbose);
    if (s.stdout_failed)
        return clb_exit_status((int)err.code);
    return clb_finish(program, ok ? 0 : clb_exit_status((int)err.code));
}
