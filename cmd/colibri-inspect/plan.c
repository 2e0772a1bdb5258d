/* plan.c - --plan: the memory that running the model takes, before anything is allocated. */
#include <stdio.h>
#include <string.h>

#include "cmd/colibri-inspect/inspect.h"
#include "lib/cli/engine.h"
#include "lib/cli/report.h"
#include "lib/cli/table.h"

typedef unsigned long long ull;

/* A plan, and what it is of. */
struct question {
    const struct clb_reader *r;
    const struct inspect_options *o;
    const struct colibri_memory_plan *p;
    uint32_t n_gpu;
};

static bool on_gpu(const struct colibri_memory_plan *p)
{
    return p->device > 0;
}

static bool gpu_lacks(const struct colibri_memory_plan *p)
{
    return p->device > p->device_available;
}

/* Experts that have no room on GPUs; they have one size, or nearly. */
static uint64_t experts_left(const struct clb_reader *r, const struct colibri_memory_plan *p)
{
    uint64_t sum = 0, left = p->n_expert_all - p->n_expert_there;

    for (uint32_t i = 0; i < r->n_expert_layers; i++)
        for (uint32_t e = 0; e < r->experts[i].count; e++)
            sum += r->experts[i].size[e];
    return left ? sum / p->n_expert_all * left + sum % p->n_expert_all * left / p->n_expert_all : 0;
}

/* What the host is to have of them. With a limit that is a cache as large as there is room for,
 * also beside GPUs: experts are read through it on their way there. */
static uint64_t host_weights(const struct question *q)
{
    return on_gpu(q->p) && !gpu_lacks(q->p) && !q->o->memory ? experts_left(q->r, q->p)
                                                             : q->p->weights;
}

static uint64_t host_total(const struct question *q)
{
    return q->p->total - q->p->device - q->p->weights + host_weights(q);
}

/* Mapped weights need not be in memory all at once: the system drops pages and reads them again.
 * Under a limit nothing is mapped. */
enum verdict { FITS, RUNS, TOO_LARGE };

static enum verdict judge_host(const struct question *q)
{
    const uint64_t available = q->p->available, total = host_total(q);

    if (!available || total <= available)
        return FITS;
    return q->o->memory || total - host_weights(q) > available ? TOO_LARGE : RUNS;
}

static enum verdict judge(const struct question *q)
{
    return gpu_lacks(q->p) ? TOO_LARGE : judge_host(q);
}

static const char *const verdict_text[] = {
    [FITS] = "it fits",
    [RUNS] = "it runs, but reads weights from disk while it works",
    [TOO_LARGE] = "it does not fit",
};

/* -- for people -------------------------------------------------------------------------------- */

static void row(struct clb_table *t, const char *name, uint64_t bytes, const char *note)
{
    char text[CLB_HUMAN];

    clb_table_row(t);
    clb_table_cell(t, "%s", name);
    clb_table_cell(t, "%s", clb_human_bytes(text, bytes));
    clb_table_cell(t, "%s", note);
}

/* What the room for KV cache and activations is beside. */
static const char *gpu_fixed(const struct question *q)
{
    const char *word = q->o->where.gpu_experts;

    return !word || !strcmp(word, "copy") ? "dense weights and some experts" : "dense weights";
}

static uint64_t gpu_total(const struct colibri_memory_plan *p)
{
    return p->device + p->device_dense + p->device_experts + p->device_others;
}

static const char *gpu_experts_note(char note[160], const struct question *q)
{
    const char *word = q->o->where.gpu_experts ? q->o->where.gpu_experts : "copy";
    const ull there = q->p->n_expert_there, all = q->p->n_expert_all;

    if (gpu_lacks(q->p))
        snprintf(note, 160, "%llu of %llu", there, all);
    else if (there == all)
        snprintf(note, 160, "all %llu", all);
    else
        snprintf(note, 160, "%llu of %llu; others are %s", there, all,
                 !strcmp(word, "copy")  ? "copied when they are wanted"
                 : !strcmp(word, "cpu") ? "multiplied by the CPU"
                                        : "copied, or multiplied by the CPU, as a trial tells");
    return note;
}

static bool show_gpu(const struct question *q, struct clb_err *err)
{
    const struct colibri_memory_plan *p = q->p;
    char heading[64], note[160], size[CLB_HUMAN];
    struct clb_table *t;

    snprintf(heading, sizeof heading, q->n_gpu > 1 ? "on %u GPUs|>bytes|" : "on the GPU|>bytes|",
             q->n_gpu);
    t = clb_table_new(heading);
    row(t, "dense weights", p->device_dense, "");
    row(t, "experts", p->device_experts, gpu_experts_note(note, q));
    row(t, "KV cache", p->kv_cache, "");
    row(t, "activations", p->activations + p->device_others, "");
    clb_table_rule(t);
    note[0] = 0;
    if (q->o->where.gpu_memory)
        snprintf(note, sizeof note, "of %s%s", clb_human_bytes(size, q->o->where.gpu_memory),
                 q->n_gpu > 1 ? " on each" : "");
    if (gpu_lacks(p))
        snprintf(note, sizeof note, "%s left beside %s: it does not fit",
                 clb_human_bytes(size, p->device_available), gpu_fixed(q));
    row(t, "total", gpu_total(p), note);
    return clb_table_print(t, stdout) || ferror(stdout) || clb_fail_nomem(err, 0);
}

static const char *weights_note(const struct question *q)
{
    return q->o->memory                       ? "dense weights and an expert cache"
           : !on_gpu(q->p) || gpu_lacks(q->p) ? "mapped"
           : host_weights(q) == 0             ? "all are on the GPU"
                                              : "experts that are not on the GPU, mapped";
}

static bool show(const struct question *q, struct clb_err *err)
{
    const struct colibri_memory_plan *p = q->p;
    uint32_t batch = q->o->batch ? q->o->batch : 1;
    char name[INSPECT_PATH];
    struct clb_table *t;

    printf("%s: %u sequence%s of %u token%s\n", inspect_name(name, q->r), batch,
           batch == 1 ? "" : "s", p->context, p->context == 1 ? "" : "s");
    if (on_gpu(p) && !show_gpu(q, err))
        return false;
    t = clb_table_new(on_gpu(p) ? "on the host|>bytes|" : "memory|>bytes|");
    row(t, "weights", host_weights(q), weights_note(q));
    if (!on_gpu(p)) {
        row(t, "KV cache", p->kv_cache, "");
        row(t, "activations", p->activations, "");
    }
    row(t, "host buffers", p->host_buffers, "");
    clb_table_rule(t);
    row(t, "total", host_total(q), "");
    if (p->available)
        row(t, "available", p->available,
            gpu_lacks(p) && judge_host(q) != TOO_LARGE ? "enough, but the GPU has too little"
                                                       : verdict_text[judge_host(q)]);
    return clb_table_print(t, stdout) || ferror(stdout) || clb_fail_nomem(err, 0);
}

/* -- for programs ------------------------------------------------------------------------------ */

static void show_json(const struct question *q)
{
    const struct colibri_memory_plan *p = q->p;
    struct clb_text name = { 0 };

    clb_text_json(&name, q->r->path, strlen(q->r->path));
    printf("{\"file\":%s,\"context\":%u,\"batch\":%u,\"weights\":%llu,\"kv_cache\":%llu,"
           "\"activations\":%llu,"
           "\"host_buffers\":%llu,\"total\":%llu,\"available\":%llu,\"fits\":%s,\"runs\":%s",
           name.p ? name.p : "null", p->context, q->o->batch ? q->o->batch : 1,
           (ull)(host_weights(q) + p->device_dense + p->device_experts), (ull)p->kv_cache,
           (ull)(p->activations + p->device_others), (ull)p->host_buffers,
           (ull)(host_total(q) + (on_gpu(p) ? gpu_total(p) : 0)), (ull)p->available,
           judge(q) == FITS ? "true" : "false", judge(q) == TOO_LARGE ? "false" : "true");
    if (on_gpu(p))
        printf(",\"gpu\":{\"devices\":%u,\"dense_weights\":%llu,\"experts\":%llu,"
               "\"experts_there\":%llu,\"experts_all\":%llu,\"kv_cache\":%llu,"
               "\"activations\":%llu,\"total\":%llu,\"left\":%llu},"
               "\"host_weights\":%llu,\"host_total\":%llu",
               q->n_gpu, (ull)p->device_dense, (ull)p->device_experts, (ull)p->n_expert_there,
               (ull)p->n_expert_all, (ull)p->kv_cache, (ull)(p->activations + p->device_others),
               (ull)gpu_total(p), (ull)p->device_available, (ull)host_weights(q),
               (ull)host_total(q));
    printf("}\n");
    clb_text_free(&name);
}

/* -- the answer -------------------------------------------------------------------------------- */

/* Who has no GPU here may mean one that is elsewhere. */
static void explain(const struct clb_reader *r, const struct inspect_options *o,
                    struct clb_err *err)
{
    size_t n = strlen(r->path);
    char text[sizeof err->text];

    clb_engine_fail(err);
    if (err->code == CLB_UNSUPPORTED && o->where.backend && !o->where.gpu_memory) {
        memcpy(text, err->text, sizeof text);
        clb_fail(err, CLB_UNSUPPORTED, "%s; --gpu-memory SIZE plans for a GPU that is elsewhere",
                 text);
    }
    if (strncmp(err->text, r->path, n) || err->text[n] != ':')
        clb_fail_in(err, "%s", r->path);
}

/* With -v where it would run; else only what somebody asked for in vain. */
static void tell_where(const struct clb_reader *r, const struct inspect_options *o,
                       const struct colibri_model_info *info)
{
    char note[CLB_CPU_NOTE];

    if (!o->verbose) {
        clb_engine_warn_cpu(PROGRAM, &o->where, info);
        return;
    }
    clb_warn(PROGRAM, "%s: device %s", r->path, info->device);
    if (*clb_engine_cpu_note(note, &o->where, info))
        clb_warn(PROGRAM, "%s: %s", r->path, note);
}

static bool ask(const struct clb_reader *r, const struct inspect_options *o,
                const struct colibri_load_options *load, struct colibri_memory_plan *plan,
                struct clb_err *err)
{
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
    struct colibri_model_info info = { .size = sizeof info };
    struct colibri_model *m = colibri_load_for_plans(r->path, load, NULL);
    bool ok = m && colibri_model_info(m, &info) == 0 &&
              colibri_plan_scheduler(m, &scheduler, plan) == 0;

    if (!ok)
        explain(r, o, err);
    if (ok)
        tell_where(r, o, &info);
    if (ok && strcmp(info.backend, "cpu") && !on_gpu(plan))
        clb_warn(PROGRAM, "%s: the GPU has no room for this, so the plan is for the CPU", r->path);
    colibri_unload_model(m);
    return ok;
}

bool inspect_plan(const struct clb_reader *r, const struct inspect_options *o, struct clb_err *err)
{
    struct colibri_load_options load = { .size = sizeof load,
                                         .threads = o->threads,
                                         .memory = o->memory };
    struct colibri_memory_plan plan = { .size = sizeof plan };
    struct question q = { r, o, &plan, 1 };

    if (!clb_engine_where(&load, &o->where, err) || !ask(r, o, &load, &plan, err))
        return false;
    q.n_gpu = load.n_devices ? load.n_devices : 1;
    if (o->json)
        show_json(&q);
    else if (!show(&q, err))
        return false;
    if (gpu_lacks(&plan))
        return clb_fail(err, CLB_NO_SPACE,
                        "%s: KV cache and activations need %llu bytes of the GPU, but %llu are "
                        "left there beside %s; a shorter context or fewer sequences need less%s",
                        r->path, (ull)plan.device, (ull)plan.device_available, gpu_fixed(&q),
                        o->where.gpu_memory ? ", a higher limit leaves more" : "");
    if (judge(&q) == TOO_LARGE)
        return clb_fail(err, CLB_NO_SPACE, "%s: %llu bytes are needed, but %llu are available",
                        r->path, (ull)host_total(&q), (ull)plan.available);
    return true;
}
