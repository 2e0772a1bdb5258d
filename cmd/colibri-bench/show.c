/* show.c - results as tables for people. */
#include "cmd/colibri-bench/bench.h"

#include <langinfo.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "lib/cli/report.h"
#include "lib/cli/table.h"

enum { BAR = 16, WIDE = 104 }; /* columns of a whole bar, and of a terminal that has room */

/* A share as a bar: eighths of a column where the terminal can show them. */
static void bar(char out[BAR * 4 + 1], double share)
{
    static const char *const eighth[] = { "", "▏", "▎", "▍", "▌", "▋", "▊", "▉" };
    bool utf8 = !strcmp(nl_langinfo(CODESET), "UTF-8");
    int parts = (int)lrint(share * BAR * 8);

    *out = '\0';
    for (; parts >= 8; parts -= 8)
        strncat(out, utf8 ? "█" : "#", BAR * 4 - strlen(out));
    if (utf8)
        strncat(out, eighth[parts], BAR * 4 - strlen(out));
}

/* Decimals that give the largest time of a table four digits or so. */
static int decimals_for(double largest_ms)
{
    return largest_ms < 10 ? 3 : largest_ms < 100 ? 2 : largest_ms < 1000 ? 1 : 0;
}

static const char *human_rate(char out[static CLB_HUMAN], double per_second)
{
    if (per_second >= 1000)
        return clb_human_count(out, (uint64_t)llrint(per_second));
    snprintf(out, CLB_HUMAN, "%.*f", per_second < 10 ? 2 : per_second < 100 ? 1 : 0, per_second);
    return out;
}

static void cell_rate(struct clb_table *t, double per_second)
{
    if (per_second > 0)
        clb_table_cell(t, per_second < 9.995e9 ? "%.2f" : "%.1f", per_second / 1e9);
    else
        clb_table_cell(t, "-");
}

/* A table of stages, and how to fill it. */
struct sheet {
    struct clb_table *t;
    const struct bench_phase *p;
    bool bars, ceilings, spread;
};

/* How near a stage comes to what binds it; 1T: one thread did it, and is compared with one. */
static void cell_bound(struct clb_table *t, const struct bench_work *w, const struct bench_bound *b)
{
    if (b->limit == BENCH_LIMITS)
        clb_table_cell(t, "-");
    else
        clb_table_cell(t, "%.*f %% %s%s", b->of_ceiling < 0.01, b->of_ceiling * 100,
                       bench_limit_name(b->limit), w->alone >= 0.5 ? " 1T" : "");
}

static void stage_row(const struct sheet *s, const char *name, const struct bench_time *time,
                      const struct bench_work *w, const struct bench_bound *bound)
{
    const struct bench_phase *p = s->p;
    double share = p->wall.median > 0 ? time->median / p->wall.median : 0;
    double ms = 1e3 / p->steps;
    char human[CLB_HUMAN], blocks[BAR * 4 + 1];

    clb_table_row(s->t);
    clb_table_cell(s->t, "%s", name);
    clb_table_cell(s->t, "%.*f", decimals_for(p->wall.median * ms), time->median * ms);
    clb_table_cell(s->t, "%.1f %%", share * 100);
    if (s->bars) {
        bar(blocks, time == &p->wall ? 0 : share < 1 ? share : 1);
        clb_table_cell(s->t, "%s", blocks);
    }
    clb_table_cell(s->t, "%s", w->bytes ? clb_human_bytes(human, w->bytes / p->steps) : "-");
    cell_rate(s->t, time->median > 0 ? (double)w->bytes / time->median : 0);
    cell_rate(s->t, time->median > 0 ? (double)w->macs / time->median : 0);
    if (s->ceilings && bound)
        cell_bound(s->t, w, bound);
    else if (s->ceilings)
        clb_table_cell(s->t, "%.0f %%", p->verdict.of_ceiling * 100);
    if (s->spread)
        clb_table_cell(s->t, time->spread > 1 ? "noisy" : "± %.1f %%", time->spread * 100);
}

static bool stage_table(const struct bench_phase *p, bool ceilings, uint32_t repeats, FILE *f)
{
    struct sheet s = { .p = p,
                       .bars = isatty(fileno(f)) && clb_term_width(f) >= WIDE,
                       .ceilings = ceilings,
                       .spread = repeats > 1 };
    char columns[96];

    snprintf(columns, sizeof columns, "stage|>ms|>share%s|>bytes|>GB/s|>GMAC/s%s%s",
             s.bars ? "|" : "", ceilings ? "|>of ceiling" : "", s.spread ? "|>spread" : "");
    s.t = clb_table_new(columns);
    for (uint32_t i = 0; i < BENCH_STAGES; i++)
        /* A stage that a model does not have is left out, but never one of the four. */
        if (strcmp(p->stage[i].name, "DenseMLP") || p->stage[i].work.macs)
            stage_row(&s, p->stage[i].name, &p->stage[i].time, &p->stage[i].work,
                      &p->stage[i].bound);
    clb_table_rule(s.t);
    stage_row(&s, "total", &p->wall, &p->all, NULL);
    return clb_table_print(s.t, f);
}

static bool show_verdict(const struct bench_phase *p, const struct bench_run *run, bool cached,
                         FILE *f)
{
    struct clb_text t = { 0 };
    bool ok;

    bench_verdict_text(&t, &p->verdict, &run->all, &run->one, cached);
    ok = !t.failed;
    if (ok)
        fprintf(f, "%s: %s\n", p->name, t.p);
    clb_text_free(&t);
    return ok;
}

static void show_routing(const struct bench_routing *r, const struct bench_result *res, FILE *f)
{
    uint32_t n = res->info.n_expert;

    fprintf(f, "Routing: %.1f of %u experts touched per layer and pass, ", r->touched, n);
    fprintf(f, "busiest expert %.2f x the mean", r->imbalance);
    if (r->reused > 0)
        fprintf(f, ", %.0f %% of index maps reused", r->reused * 100);
    fprintf(f, "\n         most used: layer %u expert %u (%.1f %% of its layer), ", r->most.layer,
            r->most.expert, r->most.share * 100);
    fprintf(f, "least: layer %u expert %u (%.1f %%)", r->least.layer, r->least.expert,
            r->least.share * 100);
    if (r->unused)
        fprintf(f, ", never: %u of %u", r->unused, n * res->info.n_moe_layer);
    fputc('\n', f);
}

static bool show_phase(const struct bench_phase *p, const struct bench_run *run,
                       const struct bench_result *r, FILE *f)
{
    char rate[CLB_HUMAN];

    if (!p->tokens)
        return true;
    fprintf(f, "\n%c%s: %u tokens", p->name[0] - 'a' + 'A', p->name + 1, p->tokens / run->batch);
    if (run->batch > 1)
        fprintf(f, " x %u sequences", run->batch);
    if (p->from)
        fprintf(f, " behind %u", p->from);
    fprintf(f, ", %s tokens/s", human_rate(rate, bench_tokens_per_second(p)));
    if (r->options->repeats > 1)
        fprintf(f, " (± %.1f %% over %u runs)", p->wall.spread * 100, r->options->repeats);
    fprintf(f, "%s\n\n", p->steps > 1 ? "; times are per step" : "");
    if (!stage_table(p, run->has_ceilings, r->options->repeats, f))
        return false;
    fputc('\n', f);
    if (run->has_ceilings && !show_verdict(p, run, r->source->cached, f))
        return false;
    show_routing(&p->routing, r, f);
    return true;
}

static const char *human_parameters(char out[static CLB_HUMAN], uint64_t n)
{
    bool billions = n >= 1000000000;

    snprintf(out, CLB_HUMAN, "%.1f %s", (double)n / (billions ? 1e9 : 1e6),
             billions ? "billion" : "million");
    return out;
}

static void show_model(const struct bench_result *r, FILE *f)
{
    const struct colibri_model_info *i = &r->info;
    char a[CLB_HUMAN], b[CLB_HUMAN];

    fprintf(f, "Model    %s: %s parameters, %s active per token\n", r->path,
            human_parameters(a, i->parameters), human_parameters(b, i->active_parameters));
    fprintf(f, "         %u layers, %u with %u experts of which a token uses %u\n", i->n_layer,
            i->n_moe_layer, i->n_expert,
            r->options->experts_per_token ? r->options->experts_per_token : i->experts_per_token);
    fprintf(f, "Weights  %s, experts %s, the rest %s; %s read per token\n",
            clb_human_bytes(a, i->file_bytes), i->expert_dtype, i->dense_dtype,
            clb_human_bytes(b, i->bytes_per_token));
    fprintf(f, "Machine  %s\n", i->device);
    if (*i->offload)
        fprintf(f, "         %s\n", i->offload);
    if (r->load_known)
        fprintf(f, "Load     %.2f %.2f %.2f before, %.2f %.2f %.2f after (/proc/loadavg)\n",
                r->before[0], r->before[1], r->before[2], r->after[0], r->after[1], r->after[2]);
}

static void show_rate(const struct bench_rate *r, const char *unit, FILE *f)
{
    double g = r->median / 1e9;

    fprintf(f, "%.*f %s (± %.0f %%)", g < 9.995 ? 2 : g < 999.5, g, unit,
            r->median > 0 ? (r->most - r->least) / 2 / r->median * 100 : 0);
}

/* What this machine could do while the model was measured. */
static void show_ceilings(const struct bench_result *r, const struct bench_ceilings *c, FILE *f)
{
    fputs("Ceilings ", f);
    show_rate(&c->rate[BENCH_READ], r->source->cached ? "GB/s read from cache" : "GB/s read", f);
    fputs(", int8 ", f);
    show_rate(&c->rate[BENCH_INT8], "GMAC/s", f);
    fputs(", f32 ", f);
    show_rate(&c->rate[BENCH_F32], "GMAC/s", f);
    fprintf(f, "\n         with %u thread%s at %.2f GHz; medians of %u samples between the runs\n",
            c->threads, c->threads == 1 ? "" : "s", c->clock.median / 1e9, c->samples);
}

/* One line per run; the last thing on the screen. */
static bool show_summary(const struct bench_result *r, FILE *f)
{
    struct clb_table *t = clb_table_new(">threads|>sequences|>prefill tokens/s|>decode tokens/s|"
                                        ">ms per decode step");

    for (size_t i = 0; i < r->n_run; i++) {
        const struct bench_run *run = &r->run[i];

        clb_table_row(t);
        clb_table_cell(t, "%u", run->threads);
        clb_table_cell(t, "%u", run->batch);
        if (run->prefill.tokens)
            clb_table_cell(t, "%.1f", bench_tokens_per_second(&run->prefill));
        else
            clb_table_cell(t, "-");
        if (run->decode.tokens) {
            clb_table_cell(t, "%.1f", bench_tokens_per_second(&run->decode));
            clb_table_cell(t, "%.3f", run->decode.wall.median / run->decode.steps * 1e3);
        } else {
            clb_table_cell(t, "-");
            clb_table_cell(t, "-");
        }
    }
    fputc('\n', f);
    return clb_table_print(t, f);
}

bool bench_show(const struct bench_result *r, FILE *f)
{
    show_model(r, f);
    for (size_t i = 0; i < r->n_run; i++) {
        const struct bench_run *run = &r->run[i];

        if (r->n_run > 1)
            fprintf(f, "\n== threads %u, sequences %u\n", run->threads, run->batch);
        if (run->has_ceilings)
            show_ceilings(r, &run->all, f);
        if (!show_phase(&run->prefill, run, r, f) || !show_phase(&run->decode, run, r, f))
            return false;
    }
    return show_summary(r, f);
}

void bench_show_quality(const struct bench_quality *q, const char *path, const char *other, FILE *f)
{
    char tokens[CLB_HUMAN], documents[CLB_HUMAN];

    fprintf(f, "perplexity %.5f  (%s, %s tokens of %s documents)\n",
            exp(q->nll / (double)q->tokens), path, clb_human_count(tokens, q->tokens),
            clb_human_count(documents, q->documents));
    if (!other)
        return;
    fprintf(f, "perplexity %.5f  (%s)\n", exp(q->other_nll / (double)q->tokens), other);
    fprintf(f, "KL divergence %.6f nats per token, same first choice %.2f %%\n",
            q->kl / (double)q->rows, 100.0 * (double)q->same_choice / (double)q->rows);
}
