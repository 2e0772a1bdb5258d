/* plan.c - --plan: the memory that running the model takes, before anything is allocated. */
#include <stdio.h>
#include <string.h>

#include "cmd/colibri-inspect/inspect.h"
#include "lib/cli/engine.h"
#include "lib/cli/report.h"
#include "lib/cli/table.h"

typedef unsigned long long ull;

/* Mapped weights need not be in memory all at once: the system drops pages and reads them again.
 * Under a limit nothing is mapped. */
enum verdict { FITS, RUNS, TOO_LARGE };

static enum verdict judge(const struct inspect_options *o, const struct colibri_memory_plan *p)
{
    if (!p->available || p->total <= p->available)
        return FITS;
    return o->memory || p->total - p->weights > p->available ? TOO_LARGE : RUNS;
}

static const char *const verdict_text[] = {
    [FITS] = "it fits",
    [RUNS] = "it runs, but reads weights from disk while it works",
    [TOO_LARGE] = "it does not fit",
};

static void row(struct clb_table *t, const char *name, uint64_t bytes, const char *note)
{
    char text[CLB_HUMAN];

    clb_table_row(t);
    clb_table_cell(t, "%s", name);
    clb_table_cell(t, "%s", clb_human_bytes(text, bytes));
    clb_table_cell(t, "%s", note);
}

static bool show(const struct clb_reader *r, const struct inspect_options *o,
                 const struct colibri_memory_plan *p, struct clb_err *err)
{
    uint32_t batch = o->batch ? o->batch : 1;
    char name[INSPECT_PATH];
    struct clb_table *t;

    printf("%s: %u sequence%s of %u tokens\n", inspect_name(name, r), batch, batch == 1 ? "" : "s",
           p->context);
    t = clb_table_new("memory|>bytes|");
    row(t, "weights", p->weights,
        o->memory && p->weights < r->size ? "dense weights and an expert cache" : "mapped");
    row(t, "KV cache", p->kv_cache, "");
    row(t, "activations", p->activations, "");
    row(t, "host buffers", p->host_buffers, "");
    clb_table_rule(t);
    row(t, "total", p->total, "");
    if (p->available)
        row(t, "available", p->available, verdict_text[judge(o, p)]);
    return clb_table_print(t, stdout) || ferror(stdout) || clb_fail_nomem(err, 0);
}

static void show_json(const struct clb_reader *r, const struct inspect_options *o,
                      const struct colibri_memory_plan *p)
{
    struct clb_text name = { 0 };

    clb_text_json(&name, r->path, strlen(r->path));
    printf("{\"file\":%s,\"context\":%u,\"batch\":%u,\"weights\":%llu,\"kv_cache\":%llu,"
           "\"activations\":%llu,"
           "\"host_buffers\":%llu,\"total\":%llu,\"available\":%llu,\"fits\":%s,\"runs\":%s}\n",
           name.p ? name.p : "null", p->context, o->batch ? o->batch : 1, (ull)p->weights,
           (ull)p->kv_cache, (ull)p->activations, (ull)p->host_buffers, (ull)p->total,
           (ull)p->available, judge(o, p) == FITS ? "true" : "false",
           judge(o, p) == TOO_LARGE ? "false" : "true");
    clb_text_free(&name);
}

bool inspect_plan(const struct clb_reader *r, const struct inspect_options *o, struct clb_err *err)
{
    const struct colibri_load_options load = { .size = sizeof load,
                                               .threads = o->threads,
                                               .memory = o->memory };
    /* as colibri-run asks */
    const struct colibri_scheduler_options scheduler = {
        .size = sizeof scheduler,
        .max_sequences = o->batch ? o->batch : 1,
        .max_queue = o->batch ? o->batch : 1,
        .context = o->context,
        .shared_chunk = UINT32_MAX,
        .kv_dtype = clb_engine_kv_dtype(o->kv_dtype),
        .experts_per_token = o->experts_per_token,
    };
    struct colibri_memory_plan plan = { .size = sizeof plan };
    struct colibri_model_info info = { .size = sizeof info };
    struct colibri_model *m = colibri_load_model_ex(r->path, &load, NULL);
    bool ok;

    if (!m)
        return clb_engine_fail(err);
    ok = colibri_model_info(m, &info) == 0 && colibri_plan_scheduler(m, &scheduler, &plan) == 0;
    if (ok && o->verbose)
        clb_warn(PROGRAM, "%s: device %s", r->path, info.device);
    if (!ok)
        clb_engine_fail(err);
    colibri_unload_model(m);
    if (!ok)
        return false;
    if (o->json)
        show_json(r, o, &plan);
    else if (!show(r, o, &plan, err))
        return false;
    if (judge(o, &plan) == TOO_LARGE)
        return clb_fail(err, CLB_NO_SPACE, "%s: %llu bytes are needed, but %llu are available",
                        r->path, (ull)plan.total, (ull)plan.available);
    return true;
}
