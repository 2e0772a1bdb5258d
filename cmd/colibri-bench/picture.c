/* picture.c - the stages as an SVG: a stacked bar per phase, with a legend. Readable on light and
 * dark pages. */
#include "cmd/colibri-bench/bench.h"

#include <string.h>

enum { WIDTH = 1000, LEFT = 24, BAR_WIDTH = WIDTH - 2 * LEFT, BAR_HEIGHT = 34, LEGEND_LINE = 20 };
enum { LEGEND_COLUMNS = 3, LEGEND_ROWS = (BENCH_STAGES + LEGEND_COLUMNS - 1) / LEGEND_COLUMNS };
enum { VERDICT = 20 }; /* the line under the heading */
enum { PHASE_HEIGHT = 30 + VERDICT + BAR_HEIGHT + 14 + LEGEND_ROWS * LEGEND_LINE + 18 };

/* Attention is blue, the MoE stages are warm, the rest is grey; then the same for dark pages. */
static const char style[] =
    "<style>\n"
    "text { font: 13px system-ui, sans-serif; fill: #24292f }\n"
    ".head { font-size: 15px; font-weight: 600 } .in { fill: #ffffff; font-size: 12px }\n"
    ".key { font-size: 12px }\n"
    ".s0 { fill: #8c959f } .s1 { fill: #1f6feb } .s2 { fill: #0a4fb0 } .s3 { fill: #54a0f5 }\n"
    ".s4 { fill: #8250df } .s5 { fill: #bf8700 } .s6 { fill: #cf4a1c } .s7 { fill: #1a7f37 }\n"
    ".s8 { fill: #b35900 } .s9 { fill: #57606a } .s10 { fill: #afb8c1 }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "text { fill: #e6edf3 } .in { fill: #ffffff } .s10 { fill: #484f58 } .s2 { fill: #316dca }\n"
    "}\n"
    "</style>\n";

static void escaped(struct clb_text *t, const char *s)
{
    for (; *s; s++)
        if (*s == '<' || *s == '>' || *s == '&' || *s == '"')
            clb_text_printf(t, "&#%d;", *s);
        else if ((unsigned char)*s >= ' ')
            clb_text_add(t, s, 1);
}

static double share_of(const struct bench_phase *p, uint32_t stage)
{
    return p->wall.median > 0 ? p->stage[stage].time.median / p->wall.median : 0;
}

static void bars(struct clb_text *t, const struct bench_phase *p, double y)
{
    double x = LEFT, sum = 0;

    for (uint32_t i = 0; i < BENCH_STAGES; i++)
        sum += p->stage[i].time.median; /* medians of parts need not add up to the median */
    for (uint32_t i = 0; i < BENCH_STAGES && sum > 0; i++) {
        double width = p->stage[i].time.median / sum * BAR_WIDTH;

        clb_text_printf(t,
                        "<rect class=\"s%u\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%d\">",
                        i, x, y, width, BAR_HEIGHT);
        clb_text_printf(t, "<title>%s %.3f ms, %.1f %%</title></rect>\n", p->stage[i].name,
                        p->stage[i].time.median / p->steps * 1e3, share_of(p, i) * 100);
        if (width > 9.0 * (double)strlen(p->stage[i].name))
            clb_text_printf(
                t, "<text class=\"in\" text-anchor=\"middle\" x=\"%.2f\" y=\"%.0f\">%s</text>\n",
                x + width / 2, y + 21, p->stage[i].name);
        x += width;
    }
}

/* " (91 % memory)" */
static void put_bound(struct clb_text *t, const struct bench_bound *b)
{
    if (b->limit < BENCH_LIMITS)
        clb_text_printf(t, " (%.0f %% %s)", b->of_ceiling * 100, bench_limit_name(b->limit));
}

static void legend(struct clb_text *t, const struct bench_phase *p, bool ceilings, double y)
{
    for (uint32_t i = 0; i < BENCH_STAGES; i++) {
        double at = LEFT + i % LEGEND_COLUMNS * (double)BAR_WIDTH / LEGEND_COLUMNS;
        double line = y + i / LEGEND_COLUMNS * LEGEND_LINE;

        clb_text_printf(
            t, "<rect class=\"s%u\" x=\"%.0f\" y=\"%.0f\" width=\"11\" height=\"11\" rx=\"2\"/>", i,
            at, line - 10);
        double ms = p->stage[i].time.median / p->steps * 1e3;
        clb_text_printf(t, "<text class=\"key\" x=\"%.0f\" y=\"%.0f\">%s %.1f %%, %.*f ms", at + 16,
                        line, p->stage[i].name, share_of(p, i) * 100,
                        ms < 10 ? 2 : ms < 100 ? 1 : 0, ms);
        if (ceilings)
            put_bound(t, &p->stage[i].bound);
        clb_text_puts(t, "</text>\n");
    }
}

static double phase(struct clb_text *t, const struct bench_run *run, const struct bench_phase *p,
                    bool cached, double y)
{
    if (!p->tokens)
        return y;
    clb_text_printf(t, "<text class=\"head\" x=\"%d\" y=\"%.0f\">%s: %u tokens", LEFT, y + 18,
                    p->name, p->tokens / run->batch);
    if (run->batch > 1)
        clb_text_printf(t, " x %u sequences", run->batch);
    clb_text_printf(t, ", %u thread%s, %.1f tokens/s%s</text>\n", run->threads,
                    run->threads > 1 ? "s" : "", bench_tokens_per_second(p),
                    p->steps > 1 ? " (times per step)" : "");
    if (run->has_ceilings) {
        clb_text_printf(t, "<text class=\"key\" x=\"%d\" y=\"%.0f\">", LEFT, y + 38);
        bench_verdict_text(t, &p->verdict, &run->all, &run->one, cached);
        clb_text_puts(t, "</text>\n");
    }
    bars(t, p, y + 30 + VERDICT);
    legend(t, p, run->has_ceilings, y + 30 + VERDICT + BAR_HEIGHT + 22);
    return y + PHASE_HEIGHT;
}

void bench_svg(struct clb_text *t, const struct bench_result *r)
{
    const char *slash = strrchr(r->path, '/'), *file = slash ? slash + 1 : r->path;
    uint32_t phases = 0;
    double y = 44;

    for (size_t i = 0; i < r->n_run; i++)
        phases += (r->run[i].prefill.tokens > 0) + (r->run[i].decode.tokens > 0);
    uint32_t height = 44 + phases * PHASE_HEIGHT;

    clb_text_printf(t, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%u\"",
                    WIDTH, height);
    clb_text_printf(t, " viewBox=\"0 0 %d %u\" role=\"img\">\n<title>Where the time of ", WIDTH,
                    height);
    escaped(t, file);
    clb_text_printf(t, " goes</title>\n%s<text x=\"%d\" y=\"26\">", style, LEFT);
    escaped(t, file);
    clb_text_printf(t, ", experts %s, ", r->info.expert_dtype);
    escaped(t, r->info.device);
    clb_text_puts(t, "</text>\n");
    for (size_t i = 0; i < r->n_run; i++) {
        y = phase(t, &r->run[i], &r->run[i].prefill, r->source->cached, y);
        y = phase(t, &r->run[i], &r->run[i].decode, r->source->cached, y);
    }
    clb_text_puts(t, "</svg>\n");
}
