/* What is said about a run on stderr: -v before, --profile during, --stats after. */
#include "cmd/colibri-run/run.h"

#include <string.h>
#include <sys/resource.h>

#include "lib/cli/engine.h"
#include "lib/cli/report.h"
#include "lib/cli/table.h"

static void print_plan(const struct colibri_memory_plan *p)
{
    char a[CLB_HUMAN], b[CLB_HUMAN], c[CLB_HUMAN], d[CLB_HUMAN], e[CLB_HUMAN];

    fprintf(stderr, "memory plan  %s: weights %s, KV cache %s, activations %s, host buffers %s",
            clb_human_bytes(e, p->total), clb_human_bytes(a, p->weights),
            clb_human_bytes(b, p->kv_cache), clb_human_bytes(c, p->activations),
            clb_human_bytes(d, p->host_buffers));
    if (p->locked)
        fprintf(stderr, "; %s locked", clb_human_bytes(a, p->locked));
    if (p->available)
        fprintf(stderr, " (%s available)", clb_human_bytes(a, p->available));
    fputc('\n', stderr);
    if (p->n_expert_all)
        fprintf(stderr,
                "             on the GPU %s: dense weights %s, experts %s (%llu of %llu), KV cache "
                "and activations %s\n",
                clb_human_bytes(a, p->device_dense + p->device_experts + p->device +
                                       p->device_others),
                clb_human_bytes(b, p->device_dense), clb_human_bytes(c, p->device_experts),
                (unsigned long long)p->n_expert_there, (unsigned long long)p->n_expert_all,
                clb_human_bytes(d, p->device + p->device_others));
}

void run_print_setup(const struct run *r)
{
    const struct colibri_model_info *i = &r->info;
    char a[CLB_HUMAN], b[CLB_HUMAN], note[CLB_CPU_NOTE];

    fprintf(stderr,
            "model        %u layers, %u experts of which %u per token, %s parameters (%s active), "
            "experts %s, the rest %s\n",
            i->n_layer, i->n_expert,
            r->o.experts_per_token ? r->o.experts_per_token : i->experts_per_token,
            clb_human_count(a, i->parameters), clb_human_count(b, i->active_parameters),
            i->expert_dtype, i->dense_dtype);
    fprintf(stderr, "device       %s: %s\n", i->backend, i->device);
    if (*clb_engine_cpu_note(note, &r->o.where, i))
        fprintf(stderr, "             %s\n", note);
    if (*i->offload)
        fprintf(stderr, "             %s\n", i->offload);
    fprintf(stderr, "KV cache     %s, context %u, %u session%s side by side\n",
            clb_engine_kv_word(r->plan.kv_dtype), r->plan.context, r->n_session,
            r->n_session > 1 ? "s" : "");
    print_plan(&r->plan);
}

/* -- --profile --------------------------------------------------------------------------------- */

static double seconds_of(const struct colibri_profile *p, const char *stage)
{
    for (int i = 0; i < COLIBRI_STAGES; i++)
        if (p->name[i] && !strcmp(p->name[i], stage))
            return p->seconds[i];
    return 0;
}

void run_print_step(struct run *r)
{
    static const char *const stage[] = { "Gate", "Scatter", "ExpertCompute", "Gather" };
    struct colibri_profile now = { .size = sizeof now };
    double total = 0;

    if (colibri_scheduler_profile(r->scheduler, &now) != COLIBRI_OK)
        return;
    fputs("[PROFILING]", stderr);
    for (int i = 0; i < 4; i++) {
        double s = seconds_of(&now, stage[i]) - seconds_of(&r->profile, stage[i]);
        fprintf(stderr, "%s %s: %.2fms", i ? " |" : "", stage[i], s * 1e3);
        total += s;
    }
    fprintf(stderr, " | Total: %.2fms\n", total * 1e3);
    r->profile = now;
}

static void rate_cell(struct clb_table *t, double amount, double seconds)
{
    if (amount > 0 && seconds > 0)
        clb_table_cell(t, "%.1f", amount / seconds / 1e9);
    else
        clb_table_cell(t, "-");
}

bool run_print_profile(const struct run *r)
{
    const struct colibri_profile *p = &r->profile;
    struct clb_table *t = clb_table_new("stage|>ms|>share|>bytes|>GB/s|>GMAC/s");
    double total = 0;
    char b[CLB_HUMAN];

    for (int i = 0; i < COLIBRI_STAGES; i++)
        total += p->seconds[i];
    for (int i = 0; i < COLIBRI_STAGES; i++) {
        if (!p->name[i])
            continue;
        clb_table_row(t);
        clb_table_cell(t, "%s", p->name[i]);
        clb_table_cell(t, "%.2f", p->seconds[i] * 1e3);
        clb_table_cell(t, "%.1f %%", total > 0 ? p->seconds[i] / total * 100 : 0);
        clb_table_cell(t, "%s", p->bytes[i] ? clb_human_bytes(b, p->bytes[i]) : "-");
        rate_cell(t, (double)p->bytes[i], p->seconds[i]);
        rate_cell(t, (double)p->macs[i], p->seconds[i]);
    }
    clb_table_rule(t);
    clb_table_row(t);
    clb_table_cell(t, "%llu passes", (unsigned long long)p->passes);
    clb_table_cell(t, "%.2f", total * 1e3);
    return clb_table_print(t, stderr);
}

/* -- --stats ----------------------------------------------------------------------------------- */

/* What the system did for this process. */
struct paging {
    uint64_t peak_resident;
    uint64_t minor, major;        /* page faults; major ones waited for a disk */
    uint64_t huge_file, huge_own; /* bytes on huge pages now: of mapped files, of other memory */
};

static struct paging ask_paging(void)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "re"); /* since Linux 4.14 */
    struct paging p = { 0 };
    struct rusage u;
    char line[256];

    while (f && fgets(line, sizeof line, f)) {
        unsigned long long kb;
        if (sscanf(line, "FilePmdMapped: %llu", &kb) == 1)
            p.huge_file = kb * 1024;
        else if (sscanf(line, "AnonHugePages: %llu", &kb) == 1)
            p.huge_own = kb * 1024;
    }
    if (f)
        fclose(f);
    if (getrusage(RUSAGE_SELF, &u) == 0) {
        p.peak_resident = (uint64_t)u.ru_maxrss * 1024;
        p.minor = (uint64_t)u.ru_minflt;
        p.major = (uint64_t)u.ru_majflt;
    }
    return p;
}

static void print_speed(const char *what, uint64_t rows, double seconds)
{
    char a[CLB_HUMAN], b[CLB_HUMAN];

    fprintf(stderr, "%-12s %s tokens in %s", what, clb_human_count(a, rows),
            clb_human_seconds(b, seconds));
    if (rows && seconds > 0)
        fprintf(stderr, ": %.*f tokens/s", rows / seconds < 100, (double)rows / seconds);
    fputc('\n', stderr);
}

static void pool_row(struct clb_table *t, const char *name, const struct colibri_pool_stats *p)
{
    char a[CLB_HUMAN];
    double waste = p->reserved ? 1 - (double)p->used / (double)p->reserved : 0;

    clb_table_row(t);
    clb_table_cell(t, "%s", name);
    clb_table_cell(t, "%s", clb_human_bytes(a, p->used));
    clb_table_cell(t, "%s", clb_human_bytes(a, p->reserved));
    clb_table_cell(t, "%s", clb_human_bytes(a, p->peak));
    clb_table_cell(t, "%.1f %%", waste > 0 ? waste * 100 : 0);
}

static bool print_text(const struct run *r, const struct colibri_memory_stats *m,
                       const struct colibri_scheduler_stats *s)
{
    const struct run_counts *c = &r->count;
    struct clb_table *t = clb_table_new("pool|>used|>held|>peak|>fragmentation");
    struct paging g = ask_paging();
    char a[CLB_HUMAN], b[CLB_HUMAN];

    print_speed("prefill", s->prompt_rows, s->prompt_seconds);
    if (s->cached_tokens)
        fprintf(stderr, "shared       %s tokens of prompts that others had read\n",
                clb_human_count(a, s->cached_tokens));
    print_speed("decode", s->new_rows, s->new_seconds);
    fprintf(stderr, "ready        %s after the start\n",
            clb_human_seconds(a, c->ready - c->started));
    if (!r->o.common.verbose) /* which has printed it */
        print_plan(&r->plan);
    fprintf(stderr, "memory peak  %s resident", clb_human_bytes(a, g.peak_resident));
    if (m->locked)
        fprintf(stderr, ", %s locked", clb_human_bytes(a, m->locked));
    fprintf(stderr, "\npage faults  %s, %s of them waited for a disk\n",
            clb_human_count(a, g.minor + g.major), clb_human_count(b, g.major));
    fprintf(stderr, "huge pages   %s of mapped files, %s of other memory\n\n",
            clb_human_bytes(a, g.huge_file), clb_human_bytes(b, g.huge_own));
    pool_row(t, "weights", &m->weights);
    pool_row(t, "activations", &m->activations);
    pool_row(t, "host buffers", &m->host);
    if (m->device.peak)
        pool_row(t, "GPU", &m->device);
    return clb_table_print(t, stderr);
}

static void pool_json(struct clb_text *t, const char *name, const struct colibri_pool_stats *p,
                      const char *end)
{
    clb_text_printf(
        t, "\"%s\":{\"used\":%llu,\"peak\":%llu,\"reserved\":%llu,\"reserved_peak\":%llu}%s", name,
        (unsigned long long)p->used, (unsigned long long)p->peak, (unsigned long long)p->reserved,
        (unsigned long long)p->reserved_peak, end);
}

static bool print_json(const struct run *r, const struct colibri_memory_stats *m,
                       const struct colibri_scheduler_stats *s)
{
    const struct run_counts *c = &r->count;
    const struct colibri_memory_plan *p = &r->plan;
    struct paging g = ask_paging();
    struct clb_text t = { 0 };

    clb_text_printf(
        &t, "{\"prompts\":%llu,\"failed\":%llu,\"prompt_tokens\":%llu,\"completion_tokens\":%llu,",
        (unsigned long long)r->n_record, (unsigned long long)r->n_failed,
        (unsigned long long)c->prompt_tokens, (unsigned long long)c->new_tokens);
    clb_text_printf(&t,
                    "\"prefill\":{\"tokens\":%llu,\"seconds\":%.6f},\"decode\":{\"tokens\":%llu,"
                    "\"seconds\":%.6f},",
                    (unsigned long long)s->prompt_rows, s->prompt_seconds,
                    (unsigned long long)s->new_rows, s->new_seconds);
    clb_text_printf(
        &t,
        "\"steps\":%llu,\"cached_tokens\":%llu,\"ready_seconds\":%.6f,\"context\":%u,"
        "\"kv_dtype\":\"%s\",\"threads\":%u,",
        (unsigned long long)s->passes, (unsigned long long)s->cached_tokens,
        c->ready - c->started, r->plan.context, clb_engine_kv_word(r->plan.kv_dtype),
        r->info.threads);
    clb_text_printf(
        &t,
        "\"plan\":{\"weights\":%llu,\"kv_cache\":%llu,\"activations\":%llu,\"host_buffers\":%llu,"
        "\"total\":%llu,\"locked\":%llu,\"available\":%llu},\"peak_resident\":%llu,"
        "\"locked\":%llu,",
        (unsigned long long)p->weights, (unsigned long long)p->kv_cache,
        (unsigned long long)p->activations, (unsigned long long)p->host_buffers,
        (unsigned long long)p->total, (unsigned long long)p->locked,
        (unsigned long long)p->available, (unsigned long long)g.peak_resident,
        (unsigned long long)m->locked);
    clb_text_printf(&t,
                    "\"page_faults\":{\"minor\":%llu,\"major\":%llu},"
                    "\"huge_pages\":{\"files\":%llu,\"other\":%llu},\"pools\":{",
                    (unsigned long long)g.minor, (unsigned long long)g.major,
                    (unsigned long long)g.huge_file, (unsigned long long)g.huge_own);
    pool_json(&t, "weights", &m->weights, ",");
    pool_json(&t, "activations", &m->activations, ",");
    pool_json(&t, "host_buffers", &m->host, ",");
    pool_json(&t, "gpu", &m->device, "}}\n");
    if (!t.failed)
        fputs(t.p, stderr);
    bool ok = !t.failed;
    clb_text_free(&t);
    return ok;
}

bool run_print_stats(const struct run *r, struct clb_err *err)
{
    struct colibri_memory_stats m = { .size = sizeof m };
    struct colibri_scheduler_stats s = { .size = sizeof s };

    if (colibri_memory_stats(r->model, &m) != COLIBRI_OK ||
        colibri_scheduler_stats(r->scheduler, &s) != COLIBRI_OK)
        return clb_engine_fail(err);
    return (r->o.json ? print_json(r, &m, &s) : print_text(r, &m, &s)) || clb_fail_nomem(err, 1);
}
