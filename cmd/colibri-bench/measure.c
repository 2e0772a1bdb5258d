/* measure.c - times prefill and decode of a batch, stage by stage, several times.
 *
 * The tokens are given, not sampled, so every repeat computes the same. A repeat rewinds the
 * sessions, feeds all prompts (prefill), then one token to every sequence per step (decode). */
#include "cmd/colibri-bench/bench.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/cli/engine.h"

/* One batch with its sessions, and room for the numbers of every repeat. */
struct meter {
    const struct bench_options *o;
    const struct bench_tokens *tokens;
    struct colibri_model_info info;
    struct colibri_batch *batch;
    struct colibri_session **session; /* [n] */
    uint32_t n;
    double *seconds;       /* [BENCH_STAGES + 1][repeats], the whole phase last */
    struct parts {
        double seconds, alone, waited; /* sums over repeats */
    } parts[2][COLIBRI_STAGES];
    uint64_t from_disk[2]; /* bytes, over repeats */
    uint64_t *expert_rows; /* [n_layer][n_expert] */
};

enum phase { PREFILL, DECODE };

static double *seconds_of(struct meter *m, enum phase phase, uint32_t stage)
{
    return m->seconds + ((size_t)phase * (BENCH_STAGES + 1) + stage) * m->o->repeats;
}

static void meter_done(struct meter *m)
{
    colibri_batch_close(m->batch); /* closes the sessions too */
    clb_free(m->session);
    clb_free(m->seconds);
    clb_free(m->expert_rows);
}

static bool open_batch(struct colibri_batch **out, const struct colibri_model *model, uint32_t n,
                       const struct bench_options *o, struct clb_err *err)
{
    const struct colibri_batch_options bo = {
        .size = sizeof bo,
        .max_sessions = n,
        .context = o->context ? o->context : (uint32_t)bench_positions(o),
        .kv_dtype = o->kv_dtype,
        .experts_per_token = o->experts_per_token,
        .enable_profiling = true,
    };

    return colibri_batch_open(out, model, &bo) == COLIBRI_OK || clb_engine_fail(err);
}

bool bench_settle(const struct colibri_model *model, uint32_t most, const struct bench_options *o,
                  struct clb_err *err)
{
    struct colibri_batch *batch;

    if (!open_batch(&batch, model, most, o, err))
        return false;
    colibri_batch_close(batch);
    return true;
}

static bool meter_open(struct meter *m, const struct colibri_model *model, struct clb_err *err)
{
    const struct bench_options *o = m->o;

    if (!open_batch(&m->batch, model, m->n, o, err))
        return false;
    m->info.size = sizeof m->info;
    if (colibri_model_info(model, &m->info))
        return clb_engine_fail(err);
    m->session = clb_new(m->n, sizeof(struct colibri_session *), err);
    m->seconds = clb_new((size_t)2 * (BENCH_STAGES + 1) * o->repeats, sizeof *m->seconds, err);
    m->expert_rows =
        clb_new((size_t)m->info.n_layer * m->info.n_expert, sizeof *m->expert_rows, err);
    if (!m->session || !m->seconds || !m->expert_rows)
        return false;
    for (uint32_t i = 0; i < m->n; i++)
        if (colibri_session_open(&m->session[i], m->batch, NULL))
            return clb_engine_fail(err);
    return true;
}

/* Feeds every sequence its tokens [from, from + n) and runs passes until they are computed. */
static bool advance(struct meter *m, size_t from, size_t n, struct clb_err *err)
{
    size_t stride = (size_t)bench_positions(m->o);

    for (uint32_t s = 0; s < m->n; s++)
        for (size_t i = 0; i < n; i++) {
            size_t at = (s * stride + from + i) % m->tokens->n;

            if (colibri_session_feed(m->session[s], &m->tokens->id[at], 1))
                return clb_engine_fail(err);
        }
    for (uint32_t s = 0; s < m->n; s++)
        while (colibri_session_length(m->session[s]) < from + n)
            if (colibri_batch_step(m->batch, NULL))
                return clb_engine_fail(err);
    return true;
}

static void count_routing(struct meter *m, struct bench_routing *r, const struct colibri_profile *p)
{
    double visits = (double)p->passes * m->info.n_moe_layer;
    uint32_t n_expert = m->info.n_expert, layers = 0;

    *r = (struct bench_routing){ .least.share = 2 };
    if (visits > 0) {
        r->touched = (double)p->experts_touched / visits;
        r->reused = (double)p->routes_reused / visits;
    }
    for (uint32_t l = 0; l < m->info.n_layer; l++) {
        const uint64_t *rows = m->expert_rows + (size_t)l * n_expert;
        uint64_t sum = 0, most = 0;

        for (uint32_t e = 0; e < n_expert; e++) {
            sum += rows[e];
            most = rows[e] > most ? rows[e] : most;
        }
        if (!sum)
            continue; /* a dense layer */
        layers++;
        r->imbalance += (double)most * n_expert / (double)sum;
        for (uint32_t e = 0; e < n_expert; e++) {
            struct bench_expert x = { l, e, (double)rows[e] / (double)sum };

            r->unused += !rows[e];
            if (x.share > r->most.share)
                r->most = x;
            if (x.share < r->least.share)
                r->least = x;
        }
    }
    if (layers)
        r->imbalance /= layers;
}

/* What the stages did, the same in every repeat, and how, as sums over all repeats. */
static void count_stages(struct meter *m, struct bench_phase *out, enum phase phase,
                         uint32_t repeat, const struct colibri_profile *p)
{
    for (uint32_t i = 0; i < COLIBRI_STAGES; i++) {
        struct parts *sum = &m->parts[phase][i];

        if (repeat == 0) /* forget the warm-up */
            *sum = (struct parts){ 0 };
        sum->seconds += p->seconds[i];
        sum->alone += m->info.threads > 1 ? p->alone[i] : 0;
        sum->waited += p->waited[i];
        seconds_of(m, phase, i)[repeat] = p->seconds[i];
        out->stage[i].name = p->name[i];
        out->stage[i].work = (struct bench_work){
            .bytes = p->bytes[i],
            .macs = p->macs[i],
            .f32_macs = p->f32_macs[i],
            .alone = sum->seconds > 0 ? sum->alone / sum->seconds : 0,
            .waited = sum->seconds > 0 ? sum->waited / sum->seconds : 0,
        };
    }
}

/* Runs one phase once; its times become number `repeat`. */
static bool run_phase(struct meter *m, struct bench_phase *out, enum phase phase, uint32_t repeat,
                      struct clb_err *err)
{
    const struct bench_options *o = m->o;
    uint32_t steps = phase == PREFILL ? 1 : o->decode;
    struct colibri_profile p = { .size = sizeof p };
    size_t at = o->depth + (phase == PREFILL ? 0 : o->prefill);
    uint64_t disk = bench_disk_bytes();
    double in_stages = 0, start;

    colibri_batch_profile_reset(m->batch);
    start = clb_now();
    for (uint32_t i = 0; i < steps; i++)
        if (!advance(m, at + i, phase == PREFILL ? o->prefill : 1, err))
            return false;
    double wall = clb_now() - start;

    if (colibri_batch_profile(m->batch, &p, m->expert_rows))
        return clb_engine_fail(err);
    disk = bench_disk_bytes() - disk;
    m->from_disk[phase] = repeat ? m->from_disk[phase] + disk : disk;
    count_stages(m, out, phase, repeat, &p);
    for (uint32_t i = 0; i < COLIBRI_STAGES; i++)
        in_stages += p.seconds[i];
    out->stage[BENCH_OTHER].name = "Other";
    seconds_of(m, phase, BENCH_OTHER)[repeat] = wall > in_stages ? wall - in_stages : 0;
    seconds_of(m, phase, BENCH_STAGES)[repeat] = wall;
    out->name = phase == PREFILL ? "prefill" : "decode";
    out->from = (uint32_t)at;
    out->steps = steps;
    out->tokens = m->n * (phase == PREFILL ? o->prefill : o->decode);
    count_routing(m, &out->routing, &p);
    return true;
}

static bool run_once(struct meter *m, struct bench_run *out, uint32_t repeat, struct clb_err *err)
{
    for (uint32_t s = 0; s < m->n; s++)
        if (colibri_session_rewind(m->session[s], m->o->depth))
            return clb_engine_fail(err);
    if (m->o->prefill && !run_phase(m, &out->prefill, PREFILL, repeat, err))
        return false;
    return !m->o->decode || run_phase(m, &out->decode, DECODE, repeat, err);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Sorts the samples. */
static struct bench_time summarise(double *sample, uint32_t n)
{
    struct bench_time t;

    qsort(sample, n, sizeof *sample, ascending);
    t.median = n % 2 ? sample[n / 2] : (sample[n / 2 - 1] + sample[n / 2]) / 2;
    t.spread = t.median > 0 ? (sample[n - 1] - sample[0]) / 2 / t.median : 0;
    return t;
}

static void summarise_phase(struct meter *m, struct bench_run *run, struct bench_phase *p,
                            enum phase phase)
{
    struct bench_work work[COLIBRI_STAGES];

    for (uint32_t i = 0; i < BENCH_STAGES; i++) {
        struct bench_work *w = &p->stage[i].work;

        p->stage[i].time = summarise(seconds_of(m, phase, i), m->o->repeats);
        w->seconds = p->stage[i].time.median;
        p->stage[i].bound = bench_bound_of(w, &run->all, &run->one);
        p->all.bytes += w->bytes;
        p->all.macs += w->macs;
        p->all.f32_macs += w->f32_macs;
        if (i < COLIBRI_STAGES)
            work[i] = *w;
    }
    p->wall = summarise(seconds_of(m, phase, BENCH_STAGES), m->o->repeats);
    p->all.seconds = p->wall.median;
    p->disk_bytes = m->from_disk[phase] / m->o->repeats;
    p->verdict = bench_verdict_of(work, COLIBRI_STAGES, p->stage[BENCH_OTHER].work.seconds,
                                  p->wall.median, &run->all, &run->one);
    if (p->wall.median > 0 && p->all.bytes) {
        p->verdict.disk = (double)p->disk_bytes / p->wall.median;
        p->verdict.from_disk = (double)p->disk_bytes / (double)p->all.bytes;
    }
}

/* Samplers for all threads and, when the warm-up had a use for it, for one. */
static bool samplers_open(struct bench_sampler *s[2], struct meter *m,
                          const struct bench_source *source, struct clb_err *err)
{
    uint32_t threads = m->info.threads, samples = m->o->repeats + 1;
    enum clb_isa isa;
    double alone = 0;

    if (strcmp(m->info.backend, "cpu") || !clb_isa_parse(m->info.cpu_level, &isa))
        return true;
    for (int phase = PREFILL; phase <= DECODE; phase++)
        for (int i = 0; i < COLIBRI_STAGES; i++)
            alone += m->parts[phase][i].alone;
    return bench_sampler_open(&s[0], isa, threads, samples, source, err) &&
           (alone == 0 || bench_sampler_open(&s[1], isa, 1, samples, source, err));
}

static void take_samples(struct bench_sampler *const s[2])
{
    for (int i = 0; i < 2; i++)
        if (s[i])
            bench_sampler_take(s[i]);
}

static void sum_samples(struct bench_run *out, struct bench_sampler *const s[2])
{
    out->has_ceilings = s[0] != NULL;
    if (!s[0])
        return;
    bench_sampler_sum(s[0], &out->all);
    bench_sampler_sum(s[1] ? s[1] : s[0], &out->one);
}

bool bench_measure(struct bench_run *out, const struct colibri_model *model, uint32_t batch,
                   const struct bench_tokens *tokens, const struct bench_options *o,
                   const struct bench_source *source, struct clb_err *err)
{
    struct meter m = { .o = o, .tokens = tokens, .n = batch };
    struct bench_sampler *sampler[2] = { NULL };
    bool ok = false;

    memset(out, 0, sizeof *out);
    if (!meter_open(&m, model, err))
        goto done;
    out->batch = batch;
    out->threads = m.info.threads;
    /* The first run is for page cache and clocks; its numbers are overwritten. */
    if (!advance(&m, 0, o->depth, err) || !run_once(&m, out, 0, err) ||
        !samplers_open(sampler, &m, source, err))
        goto done;
    for (uint32_t i = 0; i < o->repeats; i++) {
        take_samples(sampler);
        if (!run_once(&m, out, i, err))
            goto done;
    }
    take_samples(sampler);
    sum_samples(out, sampler);
    summarise_phase(&m, out, &out->prefill, PREFILL);
    summarise_phase(&m, out, &out->decode, DECODE);
    ok = true;
done:
    bench_sampler_close(sampler[0]);
    bench_sampler_close(sampler[1]);
    meter_done(&m);
    return ok;
}

double bench_tokens_per_second(const struct bench_phase *p)
{
    return p->wall.median > 0 ? p->tokens / p->wall.median : 0;
}
