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

static void json_stages(struct clb_text *t, const struct bench_phase *p)
{
    clb_text_puts(t, "      \"stages\": [\n");
    for (uint32_t i = 0; i < BENCH_STAGES; i++) {
        const struct bench_time *time = &p->stage[i].time;

        clb_text_puts(t, "        {");
        bench_json_string(t, "name", p->stage[i].name);
        clb_text_printf(t, ", \"seconds\": %.9g, \"spread\": %.4g", time->median, time->spread);
        clb_text_printf(t, ", \"share\": %.6g",
                        p->wall.median > 0 ? time->median / p->wall.median : 0);
        clb_text_printf(t, ", \"bytes\": %llu, \"macs\": %llu",
                        (unsigned long long)p->stage[i].bytes,
                        (unsigned long long)p->stage[i].macs);
        clb_text_printf(t, ", \"gb_per_s\": %.6g, \"gmac_per_s\": %.6g}%s\n",
                        per_second(p->stage[i].bytes, time), per_second(p->stage[i].macs, time),
                        i + 1 < BENCH_STAGES ? "," : "");
    }
    clb_text_puts(t, "      ],\n");
}

static void json_expert(struct clb_text *t, const char *name, const struct bench_expert *e)
{
    key(t, name);
    clb_text_printf(t, "{\"layer\": %u, \"expert\": %u, \"share\": %.6g}", e->layer, e->expert,
                    e->share);
}

static void json_phase(struct clb_text *t, const struct bench_phase *p)
{
    clb_text_puts(t, ",\n    ");
    key(t, p->name);
    clb_text_printf(t, "{\n      \"tokens\": %u, \"steps\": %u, \"seconds\": %.9g", p->tokens,
                    p->steps, p->wall.median);
    clb_text_printf(t, ", \"spread\": %.4g, \"tokens_per_second\": %.6g,\n", p->wall.spread,
                    bench_tokens_per_second(p));
    json_stages(t, p);
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
    clb_text_printf(t, "  \"repeats\": %u,\n  \"runs\": [", r->options->repeats);
    for (size_t i = 0; i < r->n_run; i++) {
        const struct bench_run *run = &r->run[i];

        clb_text_printf(t, "%s\n  {\n    \"threads\": %u, \"sequences\": %u", i ? "," : "",
                        run->threads, run->batch);
        if (run->prefill.tokens)
            json_phase(t, &run->prefill);
        if (run->decode.tokens)
            json_phase(t, &run->decode);
        clb_text_puts(t, "\n  }");
    }
    clb_text_puts(t, "\n  ]\n}\n");
}

static void csv_row(struct clb_text *t, const struct bench_run *run, const struct bench_phase *p,
                    const char *stage, const struct bench_time *time, uint64_t bytes, uint64_t macs)
{
    clb_text_printf(t, "%u,%u,%s,%s,%u,%.9g,%.4g", run->threads, run->batch, p->name, stage,
                    p->tokens, time->median, time->spread);
    clb_text_printf(t, ",%llu,%llu,%.6g,%.6g\n", (unsigned long long)bytes,
                    (unsigned long long)macs, per_second(bytes, time), per_second(macs, time));
}

static void csv_phase(struct clb_text *t, const struct bench_run *run, const struct bench_phase *p)
{
    uint64_t bytes = 0, macs = 0;

    if (!p->tokens)
        return;
    for (uint32_t i = 0; i < BENCH_STAGES; i++) {
        csv_row(t, run, p, p->stage[i].name, &p->stage[i].time, p->stage[i].bytes,
                p->stage[i].macs);
        bytes += p->stage[i].bytes;
        macs += p->stage[i].macs;
    }
    csv_row(t, run, p, "total", &p->wall, bytes, macs);
}

void bench_csv(struct clb_text *t, const struct bench_result *r)
{
    clb_text_puts(t, "threads,sequences,phase,stage,tokens,seconds,spread,bytes,macs,"
                     "gb_per_s,gmac_per_s\n");
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

    if (ok)
        fwrite(t->p, 1, t->n, stdout);
    clb_text_free(t);
    return ok;
}
