/* machine.c - colibri-bench --machine: what this machine is and what it can do at best. */
#include "cmd/colibri-bench/machine.h"

#include <string.h>

#include "cmd/colibri-bench/bench.h"
#include "lib/cli/report.h"

/* -- measuring -------------------------------------------------------------------------------- */

/* 1, 2, 3, 4, 6, 8, 12, 16, ... */
static uint32_t next_count(uint32_t t)
{
    bool power_of_two = !(t & (t - 1));

    return t < 4 ? t + 1 : power_of_two ? t + t / 2 : t + t / 3;
}

static void choose_threads(struct bench_machine *m)
{
    uint32_t last = m->facts.threads;

    if (m->o->n_threads) {
        m->n = m->o->n_threads < BENCH_COUNTS ? m->o->n_threads : BENCH_COUNTS;
        memcpy(m->threads, m->o->threads, m->n * sizeof *m->threads);
        return;
    }
    for (uint32_t t = 1; t < last && m->n + 1 < BENCH_COUNTS; t = next_count(t))
        m->threads[m->n++] = t;
    m->threads[m->n++] = last;
}

static bool choose_level(struct bench_machine *m, struct clb_err *err)
{
    const char *name = m->o->cpu_level, *why;

    m->isa = clb_isa_best();
    if (!name)
        return true;
    if (!clb_isa_parse(name, &m->isa))
        return clb_fail(err, CLB_USAGE, "there is no CPU level '%s'", name);
    if (!clb_isa_available(m->isa, &why))
        return clb_fail(err, CLB_UNSUPPORTED, "CPU level '%s': %s", name, why);
    return true;
}

/* All numbers of threads take turns, so that what changes meanwhile changes for all. */
static bool measure_counts(struct bench_machine *m, struct clb_err *err)
{
    struct bench_sampler *s[BENCH_COUNTS] = { NULL };
    bool ok = true;

    for (uint32_t i = 0; ok && i < m->n; i++)
        ok = bench_sampler_open(&s[i], m->isa, m->threads[i], m->o->repeats, &m->source, err);
    for (uint32_t r = 0; ok && r < m->o->repeats; r++)
        for (uint32_t i = 0; i < m->n; i++) {
            bench_sampler_take(s[i]);
            clb_progress_at((uint64_t)r * m->n + i + 1);
        }
    for (uint32_t i = 0; i < m->n; i++) {
        if (ok)
            bench_sampler_sum(s[i], &m->at[i]);
        bench_sampler_close(s[i]);
    }
    return ok;
}

static bool measure_levels(struct bench_machine *m, struct clb_err *err)
{
    const char *why;

    for (int isa = 0; isa < CLB_ISA_COUNT; isa++) {
        struct bench_sampler *s = NULL;
        bool ok = !clb_isa_available((enum clb_isa)isa, &why) ||
                  bench_sampler_open(&s, (enum clb_isa)isa, 1, m->o->repeats, &m->source, err);

        for (uint32_t r = 0; ok && s && r < m->o->repeats; r++)
            bench_sampler_take(s);
        if (ok && s)
            bench_sampler_sum(s, &m->level[isa]);
        bench_sampler_close(s);
        if (!ok)
            return false;
    }
    return true;
}

/* -- the whole ------------------------------------------------------------------------------- */

static bool print(const struct bench_machine *m, struct clb_err *err)
{
    struct clb_text t = { 0 };
    bool ok = true;

    if (m->o->json)
        bench_machine_json(&t, m);
    else if (m->o->csv)
        bench_machine_csv(&t, m);
    else if (!bench_machine_show(m, stdout))
        ok = clb_fail_nomem(err, 0);
    return bench_print(&t, err) && ok;
}

bool bench_machine(const struct bench_machine_options *o, struct clb_err *err)
{
    struct bench_machine m = { .o = o };
    bool ok = choose_level(&m, err);

    if (!ok)
        return false;
    m.load_known = bench_load_average(m.before);
    bench_facts_read(&m.facts);
    choose_threads(&m);
    clb_progress_start_count("measuring", (uint64_t)m.n * o->repeats, "samples", o->quiet);
    ok = bench_source_open(&m.source, o->model, &m.facts, o->numa, err) &&
         measure_counts(&m, err) && measure_levels(&m, err);
    if (ok)
        bench_disk_measure(&m.disk, o->model);
    clb_progress_done();
    bench_load_average(m.after);
    ok = ok && print(&m, err);
    bench_source_close(&m.source);
    return ok;
}
