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

static bool meter_open(struct meter *m, const struct colibri_model *model, struct clb_err *err)
{
    const struct bench_options *o = m->o;
    struct colibri_batch_options bo = {
        .size = sizeof bo,
        .max_sessions = m->n,
        .context = o->context ? o->context : o->prefill + o->decode,
        .kv_dtype = o->kv_dtype,
        .experts_per_token = o->experts_per_token,
        .enable_profiling = true,
    };

    m->info.size = sizeof m->info;
    if (colibri_model_info(model, &m->info) || colibri_batch_open(&m->batch, model, &bo))
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
    size_t stride = (size_t)m->o->prefill + m->o->decode;

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

/* Runs one phase once; its times become number `repeat`. */
static bool run_phase(struct meter *m, struct bench_phase *out, enum phase phase, uint32_t repeat,
                      struct clb_err *err)
{
    const struct bench_options *o = m->o;
    uint32_t steps = phase == PREFILL ? 1 : o->decode;
    struct colibri_profile p = { .size = sizeof p };
    double in_stages = 0, start;

    colibri_batch_profile_reset(m->batch);
    start = clb_now();
    for (uint32_t i = 0; i < steps; i++)
        if (!advance(m, phase == PREFILL ? 0 : o->prefill + i, phase == PREFILL ? o->prefill : 1,
                     err))
            return false;
    double wall = clb_now() - start;

    if (colibri_batch_profile(m->batch, &p, m->expert_rows))
        return clb_engine_fail(err);
    for (uint32_t i = 0; i < COLIBRI_STAGES; i++) {
        seconds_of(m, phase, i)[repeat] = p.seconds[i];
        in_stages += p.seconds[i];
        out->stage[i].name = p.name[i];
        out->stage[i].bytes = p.bytes[i];
        out->stage[i].macs = p.macs[i];
    }
    out->stage[BENCH_OTHER].name = "Other";
    seconds_of(m, phase, BENCH_OTHER)[repeat] = wall > in_stages ? wall - in_stages : 0;
    seconds_of(m, phase, BENCH_STAGES)[repeat] = wall;
    out->name = phase == PREFILL ? "prefill" : "decode";
    out->steps = steps;
    out->tokens = m->n * (phase == PREFILL ? o->prefill : o->decode);
    count_routing(m, &out->routing, &p);
    return true;
}

static bool run_once(struct meter *m, struct bench_run *out, uint32_t repeat, struct clb_err *err)
{
    for (uint32_t s = 0; s < m->n; s++)
        if (colibri_session_rewind(m->session[s], 0))
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

static void summarise_phase(struct meter *m, struct bench_phase *p, enum phase phase)
{
    for (uint32_t i = 0; i < BENCH_STAGES; i++)
        p->stage[i].time = summarise(seconds_of(m, phase, i), m->o->repeats);
    p->wall = summarise(seconds_of(m, phase, BENCH_STAGES), m->o->repeats);
}

bool bench_measure(struct bench_run *out, const struct colibri_model *model, uint32_t batch,
                   const struct bench_tokens *tokens, const struct bench_options *o,
                   struct clb_err *err)
{
    struct meter m = { .o = o, .tokens = tokens, .n = batch };
    bool ok = false;

    memset(out, 0, sizeof *out);
    if (!meter_open(&m, model, err))
        goto done;
    out->batch = batch;
    out->threads = m.info.threads;
    /* The first run is for page cache and clocks; its numbers are overwritten. */
    if (!run_once(&m, out, 0, err))
        goto done;
    for (uint32_t i = 0; i < o->repeats; i++)
        if (!run_once(&m, out, i, err))
            goto done;
    summarise_phase(&m, &out->prefill, PREFILL);
    summarise_phase(&m, &out->decode, DECODE);
    ok = true;
done:
    meter_done(&m);
    return ok;
}

double bench_tokens_per_second(const struct bench_phase *p)
{
    return p->wall.median > 0 ? p->tokens / p->wall.median : 0;
}
