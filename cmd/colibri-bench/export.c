/* export.c - results for programs: JSON and CSV. Field names are documented in the man page. */
#include "cmd/colibri-bench/bench.h"

#include <math.h>
#include <string.h>

static void key(struct clb_text *t, const char *name)
{
    clb_text_json(t, name, strlen(name));
    clb_text_puts(t, ": ");
}

void bench_json_string(struct clb_text *t, const char *name, const char *value)
{
    key(t, name);
    clb_text_json(t, value, strlen(value));
}

static double per_second(uint64_t n, const struct bench_time *t)
{
    return t->median > 0 ? (double)n / t->median / 1e9 : 0;
}

static void json_work(struct clb_text *t, const struct bench_work *w, const struct bench_time *time)
{
    clb_text_printf(t, ", \"bytes\": %llu, \"macs\": %llu, \"f32_macs\": %llu",
                    (unsigned long long)w->bytes, (unsigned long long)w->macs,
                    (unsigned long long)w->f32_macs);
    clb_text_printf(t, ", \"gb_per_s\": %.6g, \"gmac_per_s\": %.6g", per_second(w->bytes, time),
                    per_second(w->macs, time));
    clb_text_printf(t, ", \"alone\": %.4g, \"waited\": %.4g", w->alone, w->waited);
}

static void json_bound(struct clb_text *t, const struct bench_bound *b)
{
    if (b->limit == BENCH_LIMITS) {
        clb_text_puts(t, ", \"ceiling\": null");
        return;
    }
    clb_text_puts(t, ", ");
    bench_json_string(t, "ceiling", bench_limit_name(b->limit));
    clb_text_printf(t, ", \"of_ceiling\": %.6g", b->of_ceiling);
}

static void json_verdict(struct clb_text *t, const struct bench_phase *p,
                         const struct bench_run *run, bool cached)
{
    const struct bench_verdict *v = &p->verdict;
    struct clb_text words = { 0 };

    bench_verdict_text(&words, v, &run->all, &run->one, cached);
    clb_text_puts(t, "      \"bound\": {");
    bench_json_string(t, "by", bench_bound_name(v));
    clb_text_printf(t, ", \"of_ceiling\": %.6g, \"memory\": %.6g, \"int8\": %.6g", v->of_ceiling,
                    v->by[BENCH_READ], v->by[BENCH_INT8]);
    clb_text_printf(t, ", \"disk_bytes\": %llu", (unsigned long long)p->disk_bytes);
    clb_text_printf(t, ", \"f32\": %.6g, \"waited\": %.4g, \"alone\": %.4g, \"outside\": %.4g, ",
                    v->by[BENCH_F32], v->waited, v->alone, v->outside);
    bench_json_string(t, "text", words.p ? words.p : "");
    clb_text_puts(t, "},\n");
    t->failed |= words.failed;
    clb_text_free(&words);
}

static void json_stages(struct clb_text *t, const struct bench_phase *p, bool ceilings)
{
    clb_text_puts(t, "      \"stages\": [\n");
    for (uint32_t i = 0; i < BENCH_STAGES; i++) {
        const struct bench_time *time = &p->stage[i].time;
        const struct bench_work *w = &p->stage[i].work;

        clb_text_puts(t, "        {");
        bench_json_string(t, "name", p->stage[i].name);
        clb_text_printf(t, ", \"seconds\": %.9g, \"spread\": %.4g", time->median, time->spread);
        clb_text_printf(t, ", \"share\": %.6g",
                        p->wall.median > 0 ? time->median / p->wall.median : 0);
        json_work(t, w, time);
        if (ceilings)
            json_bound(t, &p->stage[i].bound);
        clb_text_puts(t, i + 1 < BENCH_STAGES ? "},\n" : "}\n");
    }
    clb_text_puts(t, "      ],\n");
}

static void json_expert(struct clb_text *t, const char *name, const struct bench_expert *e)
{
    key(t, name);
    clb_text_printf(t, "{\"layer\": %u, \"expert\": %u, \"share\": %.6g}", e->layer, e->expert,
                    e->share);
}

static void json_phase(struct clb_text *t, const struct bench_phase *p, const struct bench_run *run,
                       bool cached)
{
    clb_text_puts(t, ",\n    ");
    key(t, p->name);
    clb_text_printf(t, "{\n      \"tokens\": %u, \"steps\": %u, \"from\": %u, \"seconds\": %.9g",
                    p->tokens, p->steps, p->from, p->wall.median);
    clb_text_printf(t, ", \"spread\": %.4g, \"tokens_per_second\": %.6g,\n", p->wall.spread,
                    bench_tokens_per_second(p));
    json_stages(t, p, run->has_ceilings);
    if (run->has_ceilings)
        json_verdict(t, p, run, cached);
    clb_text_printf(t, "      \"routing\": {\"experts_touched\": %.6g, \"imbalance\": %.6g",
                    p->routing.touched, p->routing.imbalance);
    clb_text_printf(t, ", \"maps_reused\": %.6g, \"experts_unused\": %u, ", p->routing.reused,
                    p->routing.unused);
    json_expert(t, "most_used", &p->routing.most);
    clb_text_puts(t, ", ");
    json_expert(t, "least_used", &p->routing.least);
    clb_text_puts(t, "}\n    }");
}

static void json_model(struct clb_text *t, const struct bench_result *r)
{
    const struct colibri_model_info *i = &r->info;

    clb_text_puts(t, "  \"model\": {");
    bench_json_string(t, "file", r->path);
    clb_text_printf(t, ", \"bytes\": %llu, \"parameters\": %llu, \"active_parameters\": %llu",
                    (unsigned long long)i->file_bytes, (unsigned long long)i->parameters,
                    (unsigned long long)i->active_parameters);
    clb_text_printf(
        t, ", \"layers\": %u, \"experts\": %u, \"experts_per_token\": %u", i->n_layer, i->n_expert,
        r->options->experts_per_token ? r->options->experts_per_token : i->experts_per_token);
    clb_text_puts(t, ",\n    ");
    bench_json_string(t, "expert_dtype", i->expert_dtype);
    clb_text_puts(t, ", ");
    bench_json_string(t, "dense_dtype", i->dense_dtype);
    clb_text_puts(t, ", ");
    bench_json_string(t, "backend", i->backend);
    clb_text_puts(t, ", ");
    bench_json_string(t, "cpu", i->cpu_level);
    clb_text_puts(t, "},\n");
}

void bench_json(struct clb_text *t, const struct bench_result *r)
{
    clb_text_puts(t, "{\n  ");
    bench_json_string(t, "version", colibri_version());
    clb_text_puts(t, ",\n");
    json_model(t, r);
    if (r->load_known)
        bench_json_load(t, r->before, r->after);
    clb_text_printf(t, "  \"repeats\": %u,\n  \"runs\": [", r->options->repeats);
    for (size_t i = 0; i < r->n_run; i++) {
        const struct bench_run *run = &r->run[i];

        clb_text_printf(t, "%s\n  {\n    \"threads\": %u, \"sequences\": %u", i ? "," : "",
                        run->threads, run->batch);
        if (run->has_ceilings) {
            clb_text_printf(t, ",\n    \"cached\": %s, \"ceilings\": ",
                            r->source->cached ? "true" : "false");
            bench_json_ceilings(t, &run->all);
        }
        if (run->prefill.tokens)
            json_phase(t, &run->prefill, run, r->source->cached);
        if (run->decode.tokens)
            json_phase(t, &run->decode, run, r->source->cached);
        clb_text_puts(t, "\n  }");
    }
    clb_text_puts(t, "\n  ]\n}\n");
}

static void csv_row(struct clb_text *t, const struct bench_run *run, const struct bench_phase *p,
                    const char *stage, const struct bench_time *time, const struct bench_work *w,
                    const char *ceiling, double of_ceiling)
{
    clb_text_printf(t, "%u,%u,%s,%s,%u,%.9g,%.4g", run->threads, run->batch, p->name, stage,
                    p->tokens, time->median, time->spread);
    clb_text_printf(t, ",%llu,%llu,%.6g,%.6g", (unsigned long long)w->bytes,
                    (unsigned long long)w->macs, per_second(w->bytes, time),
                    per_second(w->macs, time));
    clb_text_printf(t, ",%llu,%.4g,%.4g,%s,", (unsigned long long)w->f32_macs, w->alone, w->waited,
                    ceiling);
    if (*ceiling)
        clb_text_printf(t, "%.6g", of_ceiling);
    clb_text_puts(t, "\n");
}

static void csv_phase(struct clb_text *t, const struct bench_run *run, const struct bench_phase *p)
{
    const struct bench_verdict *v = &p->verdict;

    if (!p->tokens)
        return;
    for (uint32_t i = 0; i < BENCH_STAGES; i++) {
        const struct bench_bound *b = &p->stage[i].bound;
        bool bound = run->has_ceilings && b->limit < BENCH_LIMITS;

        csv_row(t, run, p, p->stage[i].name, &p->stage[i].time, &p->stage[i].work,
                bound ? bench_limit_name(b->limit) : "", b->of_ceiling);
    }
    csv_row(t, run, p, "total", &p->wall, &p->all,
            run->has_ceilings ? bench_bound_name(v) : "", v->of_ceiling);
}

void bench_csv(struct clb_text *t, const struct bench_result *r)
{
    clb_text_puts(t, "threads,sequences,phase,stage,tokens,seconds,spread,bytes,macs,"
                     "gb_per_s,gmac_per_s,f32_macs,alone,waited,ceiling,of_ceiling\n");
    for (size_t i = 0; i < r->n_run; i++) {
        csv_phase(t, &r->run[i], &r->run[i].prefill);
        csv_phase(t, &r->run[i], &r->run[i].decode);
    }
}

void bench_json_quality(struct clb_text *t, const struct bench_quality *q, const char *path,
                        const char *other)
{
    clb_text_puts(t, "{");
    bench_json_string(t, "model", path);
    clb_text_printf(t,
                    ", \"documents\": %llu, \"tokens\": %llu, \"nll\": %.9g, \"perplexity\": %.9g",
                    (unsigned long long)q->documents, (unsigned long long)q->tokens, q->nll,
                    exp(q->nll / (double)q->tokens));
    if (other) {
        clb_text_puts(t, ",\n ");
        bench_json_string(t, "other", other);
        clb_text_printf(t, ", \"other_perplexity\": %.9g, \"kl\": %.9g, \"same_choice\": %.9g",
                        exp(q->other_nll / (double)q->tokens), q->kl / (double)q->rows,
                        (double)q->same_choice / (double)q->rows);
    }
    clb_text_puts(t, "}\n");
}

bool bench_print(struct clb_text *t, struct clb_err *err)
{
    bool ok = t->failed ? clb_fail_nomem(err, t->n) : true;

    if (ok && t->n) /* empty: p is NULL */
        fwrite(t->p, 1, t->n, stdout);
    clb_text_free(t);
    return ok;
}
