/* GET /metrics: the text format of Prometheus. */
#include <inttypes.h>

#include "cmd/colibri-serve/engine_thread.h"
#include "cmd/colibri-serve/http.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"

static const unsigned statuses[] = { 200, 204, 400, 401, 403, 404, 405, 408, 411, 413,
                                     414, 415, 429, 431, 500, 501, 503, 504, 505 };
static const double bounds[] = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                 0.5,   1,      2.5,   5,    10,    30,   60 };
enum {
    STATUSES = sizeof statuses / sizeof *statuses,
    BOUNDS = sizeof bounds / sizeof *bounds,
};

struct histogram {
    uint64_t at_most[BOUNDS], n;
    double sum;
};
struct serve_metrics { /* the loop's */
    uint64_t requests[STATUSES], others, gone;
    struct histogram whole, first, queue;
};

bool serve_metrics_new(struct serve_metrics **out, struct clb_err *err)
{
    *out = clb_new(1, sizeof **out, err);
    return *out != NULL;
}

void serve_metrics_free(struct serve_metrics *m)
{
    clb_free(m);
}

static void observe(struct histogram *h, double seconds)
{
    for (int i = 0; i < BOUNDS; i++)
        h->at_most[i] += seconds <= bounds[i];
    h->n++;
    h->sum += seconds;
}

void serve_metrics_status(struct serve_metrics *m, unsigned status)
{
    int i = 0;

    while (i < STATUSES && statuses[i] != status)
        i++;
    if (i < STATUSES)
        m->requests[i]++;
    else
        m->others++;
}

void serve_metrics_count(struct serve_metrics *m, const struct serve_request *q)
{
    if (q->status == 0)
        m->gone++;
    else
        serve_metrics_status(m, q->status);
    if (!q->job)
        return;
    pthread_mutex_lock(&q->job->lock);
    const struct serve_times t = q->job->time;
    pthread_mutex_unlock(&q->job->lock);
    if (t.first > 0) {
        observe(&m->first, t.first - t.arrived);
        observe(&m->queue, t.queue);
    }
    if (t.finished > 0)
        observe(&m->whole, t.finished - t.arrived);
}

/* -- printing ---------------------------------------------------------------------------------- */

static void head(struct clb_text *t, const char *name, const char *type, const char *help)
{
    clb_text_printf(t, "# HELP colibri_%s %s\n# TYPE colibri_%s %s\n", name, help, name, type);
}

static void one(struct clb_text *t, const char *name, const char *type, const char *help,
                uint64_t value)
{
    head(t, name, type, help);
    clb_text_printf(t, "colibri_%s %" PRIu64 "\n", name, value);
}

static void print_histogram(struct clb_text *t, const char *name, const char *help,
                            const struct histogram *h)
{
    head(t, name, "histogram", help);
    for (int i = 0; i < BOUNDS; i++)
        clb_text_printf(t, "colibri_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, bounds[i],
                        h->at_most[i]);
    clb_text_printf(t, "colibri_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, h->n);
    clb_text_printf(t, "colibri_%s_sum %.9g\ncolibri_%s_count %" PRIu64 "\n", name, h->sum, name,
                    h->n);
}

static void print_requests(struct clb_text *t, const struct serve *s)
{
    const struct serve_metrics *m = s->metrics;

    head(t, "requests_total", "counter", "Finished requests by status of the answer.");
    for (int i = 0; i < STATUSES; i++)
        if (m->requests[i])
            clb_text_printf(t, "colibri_requests_total{status=\"%u\"} %" PRIu64 "\n", statuses[i],
                            m->requests[i]);
    clb_text_printf(t, "colibri_requests_total{status=\"other\"} %" PRIu64 "\n", m->others);
    one(t, "requests_gone_total", "counter", "Requests whose client left before an answer began.",
        m->gone);
    print_histogram(t, "request_seconds", "From the body's arrival to the last token.", &m->whole);
    print_histogram(t, "first_token_seconds", "From the body's arrival to the first token.",
                    &m->first);
    print_histogram(t, "queue_seconds", "Waiting for a place.", &m->queue);
    one(t, "connections", "gauge", "Open connections.", s->http->n_conn + s->http->n_fresh);
    one(t, "requests_active", "gauge", "Requests that wait for the model or are being answered.",
        s->http->n_job);
}

static void print_scheduler(struct clb_text *t, const struct serve *s)
{
    struct colibri_scheduler_stats c = { .size = sizeof c };

    if (colibri_scheduler_stats(serve_engine_scheduler(s->engine), &c) != COLIBRI_OK)
        return;
    one(t, "prompt_tokens_total", "counter", "Tokens of prompts that started.", c.prompt_tokens);
    one(t, "cached_tokens_total", "counter", "Of these, not computed: shared with an earlier one.",
        c.cached_tokens);
    one(t, "completion_tokens_total", "counter", "Tokens generated.", c.new_tokens);
    one(t, "passes_total", "counter", "Passes of the model.", c.passes);
    one(t, "choices_waiting", "gauge", "Answers that wait for a place.", c.waiting);
    one(t, "choices_running", "gauge", "Answers that are being made.", c.running);
    one(t, "preempted_total", "counter", "Times that an answer gave its place back.", c.preempted);
    one(t, "scheduler_refused_total", "counter", "Requests that the scheduler refused.", c.refused);
    one(t, "cancelled_total", "counter", "Requests that ended because nobody waited.", c.cancelled);
    one(t, "failed_total", "counter", "Requests that failed in the engine.", c.failed);
    head(t, "compute_seconds_total", "counter", "Time of passes, shared by rows.");
    clb_text_printf(t, "colibri_compute_seconds_total{rows=\"prompt\"} %.9g\n", c.prompt_seconds);
    clb_text_printf(t, "colibri_compute_seconds_total{rows=\"new\"} %.9g\n", c.new_seconds);
    head(t, "kv_bytes", "gauge", "KV cache.");
    clb_text_printf(t,
                    "colibri_kv_bytes{state=\"all\"} %" PRIu64
                    "\ncolibri_kv_bytes{state=\"used\"} %" PRIu64
                    "\ncolibri_kv_bytes{state=\"shared\"} %" PRIu64
                    "\ncolibri_kv_bytes{state=\"cached\"} %" PRIu64 "\n",
                    c.kv_blocks * c.kv_block_bytes, c.kv_used * c.kv_block_bytes,
                    c.kv_shared * c.kv_block_bytes, c.kv_cached * c.kv_block_bytes);
}

static void print_stages(struct clb_text *t, const struct serve *s)
{
    struct colibri_profile p = { .size = sizeof p };

    if (colibri_scheduler_profile(serve_engine_scheduler(s->engine), &p) != COLIBRI_OK)
        return;
    head(t, "stage_seconds_total", "counter", "Time of the stages of passes.");
    for (int i = 0; i < COLIBRI_STAGES; i++)
        if (p.name[i])
            clb_text_printf(t, "colibri_stage_seconds_total{stage=\"%s\"} %.9g\n", p.name[i],
                            p.seconds[i]);
    head(t, "stage_bytes_total", "counter", "Weights and KV cache that stages had to read.");
    for (int i = 0; i < COLIBRI_STAGES; i++)
        if (p.name[i])
            clb_text_printf(t, "colibri_stage_bytes_total{stage=\"%s\"} %" PRIu64 "\n", p.name[i],
                            p.bytes[i]);
}

static void print_pool(struct clb_text *t, const char *name, const struct colibri_pool_stats *p)
{
    const uint64_t value[] = { p->used, p->reserved, p->peak };
    static const char *const what[] = { "used", "reserved", "peak" };

    for (int i = 0; i < 3; i++)
        clb_text_printf(t, "colibri_memory_bytes{pool=\"%s\",what=\"%s\"} %" PRIu64 "\n", name,
                        what[i], value[i]);
}

void serve_metrics_print(struct clb_text *t, const struct serve *s)
{
    struct colibri_memory_stats m = { .size = sizeof m };

    print_requests(t, s);
    print_scheduler(t, s);
    if (serve_engine_plan(s->engine)->device == 0) /* else passes have no clock */
        print_stages(t, s);
    if (colibri_memory_stats(s->model, &m) == COLIBRI_OK) {
        head(t, "memory_bytes", "gauge", "The memory ledger.");
        print_pool(t, "weights", &m.weights);
        print_pool(t, "activations", &m.activations);
        print_pool(t, "host", &m.host);
        print_pool(t, "gpu", &m.device);
    }
    one(t, "memory_plan_bytes", "gauge", "What was reserved at the start.",
        serve_engine_plan(s->engine)->total);
    head(t, "uptime_seconds", "gauge", "Since the start.");
    clb_text_printf(t, "colibri_uptime_seconds %.3f\n", clb_now() - s->started);
    head(t, "info", "gauge", "The program and its model.");
    clb_text_puts(t, "colibri_info{version=\"" CLB_VERSION "\",model=");
    clb_text_json(t, s->name, strlen(s->name));
    clb_text_puts(t, "} 1\n");
}
