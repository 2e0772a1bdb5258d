/* quality.c - how well a model predicts given text, and how far two models are apart.
 *
 * Every document runs through the model as one sequence. Logits come row by row; with a second
 * model the rows of a stretch of tokens are kept until the first model reaches the same positions.
 */
#include "cmd/colibri-bench/bench.h"

#include <math.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/cli/engine.h"
#include "lib/cli/report.h"

/* Positions per pass. A pass needs [STRETCH][vocab] logits, so this bounds memory; the result does
 * not depend on it. */
enum { STRETCH = 64, USUAL_LENGTH = 512 };

struct reader { /* one model reading the documents */
    const char *path;
    struct colibri_model **model; /* in struct bench_models, which closes it */
    struct colibri_model_info info;
    char why_cpu[512]; /* what keeps it off a GPU, beside its own reasons */
    struct colibri_batch *batch;
    struct colibri_session *session;
    colibri_rows_fn *fn;
};

struct scorer {
    struct bench_quality *q;
    struct bench_tokens ids; /* of this document */
    uint32_t n_vocab;
    uint32_t longest; /* tokens of a document that are read */
    float *kept;      /* [STRETCH][vocab] rows of the other model; NULL without one */
    double *kept_lse; /* [STRETCH] */
};

/* log(sum(exp(x))) */
static double log_sum_exp(const float *x, uint32_t n)
{
    double max = x[0], sum = 0;

    for (uint32_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (uint32_t i = 0; i < n; i++)
        sum += exp(x[i] - max);
    return max + log(sum);
}

static uint32_t largest(const float *x, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

static void keep_row(void *arg, size_t position, const float *logits)
{
    struct scorer *s = arg;
    size_t slot = position % STRETCH;

    memcpy(s->kept + slot * s->n_vocab, logits, s->n_vocab * sizeof *logits);
    s->kept_lse[slot] = log_sum_exp(logits, s->n_vocab);
    if (position + 1 < s->ids.n)
        s->q->other_nll += s->kept_lse[slot] - logits[s->ids.id[position + 1]];
}

static void score_row(void *arg, size_t position, const float *logits)
{
    struct scorer *s = arg;
    size_t slot = position % STRETCH;
    double lse = log_sum_exp(logits, s->n_vocab), kl = 0;

    s->q->rows++;
    if (position + 1 < s->ids.n) {
        s->q->nll += lse - logits[s->ids.id[position + 1]];
        s->q->tokens++;
    }
    if (!s->kept)
        return;
    const float *other = s->kept + slot * s->n_vocab;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        double log_p = other[i] - s->kept_lse[slot];

        kl += exp(log_p) * (log_p - (logits[i] - lse));
    }
    s->q->kl += kl;
    s->q->same_choice += largest(other, s->n_vocab) == largest(logits, s->n_vocab);
}

static bool reader_feed(struct reader *r, const int32_t *ids, size_t n, struct clb_err *err)
{
    size_t end = colibri_session_length(r->session) + n;

    if (colibri_session_feed(r->session, ids, n))
        return clb_engine_fail(err);
    while (colibri_session_length(r->session) < end)
        if (colibri_batch_step(r->batch, NULL))
            return clb_engine_fail(err);
    return true;
}

static bool encode(struct bench_tokens *out, const struct colibri_model *model, struct clb_str line,
                   struct clb_err *err)
{
    int64_t n = colibri_encode(model, line.p, line.n, 0, NULL, 0);

    *out = (struct bench_tokens){ 0 };
    if (n < 0)
        return clb_engine_fail(err);
    out->id = clb_new((size_t)n, sizeof *out->id, err);
    if (!out->id)
        return false;
    out->n = (size_t)n;
    return colibri_encode(model, line.p, line.n, 0, out->id, out->n) == n || clb_engine_fail(err);
}

/* Both models must read the same ids, else their predictions cannot be compared. */
static bool check_same_ids(const struct bench_tokens *ids, const struct colibri_model *other,
                           struct clb_str line, struct clb_err *err)
{
    struct bench_tokens theirs;
    bool ok = encode(&theirs, other, line, err);

    if (ok && (theirs.n != ids->n || memcmp(theirs.id, ids->id, ids->n * sizeof *ids->id)))
        ok = clb_fail(err, CLB_BAD_INPUT, "the two models cut this text into different tokens");
    clb_free(theirs.id);
    return ok;
}

static bool read_document(struct scorer *s, struct reader *model, struct reader *other,
                          struct clb_err *err)
{
    if (colibri_session_rewind(model->session, 0) ||
        (other->session && colibri_session_rewind(other->session, 0)))
        return clb_engine_fail(err);
    for (size_t at = 0; at < s->ids.n; at += STRETCH) {
        size_t n = s->ids.n - at < STRETCH ? s->ids.n - at : STRETCH;

        if (other->session && !reader_feed(other, s->ids.id + at, n, err))
            return false;
        if (!reader_feed(model, s->ids.id + at, n, err))
            return false;
    }
    s->q->documents++;
    return true;
}

/* What was asked for, else as much of the usual length as both models have positions for. */
static uint32_t longest(const struct bench_options *o, const struct colibri_model_info *a,
                        const struct colibri_model_info *b)
{
    uint32_t n = USUAL_LENGTH;

    if (o->max_tokens)
        return o->max_tokens;
    n = a->max_positions < n ? a->max_positions : n;
    return b->max_positions && b->max_positions < n ? b->max_positions : n;
}

struct pair { /* everything that is open while documents are read */
    const struct bench_options *o;
    uint32_t threads;
    struct scorer s;
    struct reader model, other; /* other.path NULL: none */
};

static bool check_pair(struct pair *p, struct clb_err *err)
{
    const struct colibri_model_info *a = &p->model.info, *b = &p->other.info;

    p->s.n_vocab = a->vocab_size;
    p->s.longest = longest(p->o, a, b);
    if (!a->has_tokenizer && !p->o->ids)
        return clb_fail(err, CLB_USAGE,
                        "the model has no tokenizer: give documents as token ids, with --ids");
    if (p->other.path && a->vocab_size != b->vocab_size)
        return clb_fail(err, CLB_BAD_INPUT,
                        "the two models cannot be compared: vocabularies of %u and %u tokens",
                        a->vocab_size, b->vocab_size);
    return true;
}

/* Which of two models it was; messages about files say so themselves. Always false. */
static bool fail_of(const struct pair *p, const struct reader *r, struct clb_err *err)
{
    size_t n = strlen(r->path);

    if (p->other.path && (strncmp(err->text, r->path, n) || err->text[n] != ':'))
        clb_fail_in(err, "%s", r->path);
    return false;
}

/* Both together stay below what was given: the first has half of it at most, the second what that
 * one has left. Of several GPUs it is not known who has how much of which. */
static uint64_t gpu_memory(const struct pair *p, const struct reader *r)
{
    const struct reader *other = r == &p->model ? &p->other : &p->model;
    const struct clb_where *w = &p->o->where;
    struct colibri_memory_stats s = { .size = sizeof s };
    bool several = w->device && strpbrk(w->device, ",-");

    if (!p->other.path || !w->gpu_memory)
        return w->gpu_memory;
    if (other->batch && !several && colibri_memory_stats(*other->model, &s) == COLIBRI_OK &&
        s.device.reserved > 0 && s.device.reserved < w->gpu_memory)
        return w->gpu_memory - s.device.reserved;
    return w->gpu_memory - w->gpu_memory / 2;
}

/* In place of what was loaded before. */
static bool reader_load(struct pair *p, struct reader *r, bool off_gpu, struct clb_err *err)
{
    struct colibri_model *old = *r->model;
    struct bench_options o = *p->o;

    if (p->other.path) /* both together */
        o.memory -= o.memory / 2;
    if (off_gpu)
        o.where = (struct clb_where){ .backend = "cpu" };
    else
        o.where.gpu_memory = gpu_memory(p, r);
    *r->model = NULL;
    colibri_unload_model(old);
    if (bench_load(r->model, &r->info, r->path, p->threads, &o, err))
        return true;
    return err->code != CLB_USAGE && fail_of(p, r, err); /* that is of options for both */
}

/* What "auto" has decided is known afterwards. */
static bool reader_open(struct pair *p, struct reader *r, struct clb_err *err)
{
    const struct colibri_batch_options bo = {
        .size = sizeof bo,
        .max_sessions = 1,
        .context = p->s.longest,
        .prefill_chunk = STRETCH,
        .kv_dtype = p->o->kv_dtype,
        .experts_per_token = p->o->experts_per_token,
        .logit_rows = STRETCH,
    };

    if (colibri_batch_open(&r->batch, *r->model, &bo) ||
        colibri_session_open(&r->session, r->batch, NULL) ||
        colibri_model_info(*r->model, &r->info)) {
        clb_engine_fail(err);
        return fail_of(p, r, err);
    }
    if (*r->why_cpu)
        r->info.no_device = r->why_cpu;
    colibri_session_on_rows(r->session, r->fn, &p->s);
    return true;
}

static bool on_cpu(const struct reader *r)
{
    return !strcmp(r->info.backend, "cpu");
}

/* Opens r on the CPU, where the other one is. */
static bool reader_follow(struct pair *p, struct reader *r, const struct reader *to,
                          struct clb_err *err)
{
    colibri_batch_close(r->batch);
    r->batch = NULL;
    r->session = NULL;
    snprintf(r->why_cpu, sizeof r->why_cpu, "both models run on one backend, and %s on the CPU",
             to->path);
    return reader_load(p, r, true, err) && reader_open(p, r, err);
}

/* The first one takes of a GPU what it needs; the second is loaded anew, for what is left then. Two
 * arithmetics would make a difference of their own: if one cannot be there, both run on the CPU. */
static bool open_both(struct pair *p, struct reader *first, struct reader *second,
                      struct clb_err *err)
{
    if (!on_cpu(first) && on_cpu(second))
        return reader_open(p, second, err) && reader_follow(p, first, second, err);
    if (!reader_open(p, first, err))
        return false;
    if (on_cpu(first) && !on_cpu(second))
        return reader_follow(p, second, first, err);
    if (!on_cpu(first) && !reader_load(p, second, false, err))
        return false;
    return reader_open(p, second, err) &&
           (on_cpu(first) || !on_cpu(second) || reader_follow(p, first, second, err));
}

static bool pair_open(struct pair *p, struct clb_err *err)
{
    struct reader *small = &p->model, *large = &p->other;

    if (!reader_load(p, small, false, err) ||
        (large->path && !reader_load(p, large, false, err)) || !check_pair(p, err))
        return false;
    if (!large->path)
        return reader_open(p, small, err);
    p->s.kept = clb_new((size_t)STRETCH * p->s.n_vocab, sizeof *p->s.kept, err);
    p->s.kept_lse = clb_new(STRETCH, sizeof *p->s.kept_lse, err);
    if (!p->s.kept || !p->s.kept_lse)
        return false;
    if (small->info.file_bytes <= large->info.file_bytes)
        return open_both(p, small, large, err);
    return open_both(p, large, small, err); /* experts of the larger one find some room at least */
}

static void pair_done(struct pair *p)
{
    colibri_batch_close(p->model.batch);
    colibri_batch_close(p->other.batch);
    clb_free(p->s.kept);
    clb_free(p->s.kept_lse);
}

static bool read_line(struct pair *p, struct clb_str line, struct clb_err *err)
{
    struct bench_tokens *ids = &p->s.ids;
    bool ok = p->o->ids ? clb_engine_parse_ids(&ids->id, &ids->n, line, p->s.n_vocab, err)
                        : encode(ids, *p->model.model, line, err);

    if (ok && p->other.path && !p->o->ids)
        ok = check_same_ids(ids, *p->other.model, line, err);
    if (ok && ids->n > p->s.longest)
        ids->n = p->s.longest;
    if (ok && ids->n >= 2) /* one token predicts nothing */
        ok = read_document(&p->s, &p->model, &p->other, err);
    clb_free(ids->id);
    *ids = (struct bench_tokens){ 0 };
    return ok;
}

bool bench_quality(struct bench_quality *q, struct bench_models *m, struct clb_str text,
                   const char *where, const struct bench_options *o, struct clb_err *err)
{
    struct pair p = {
        .o = o,
        .threads = m->threads,
        .s.q = q,
        .model = { .path = m->path, .model = &m->model, .fn = score_row },
        .other = { .path = m->other_path, .model = &m->other, .fn = keep_row },
    };
    uint64_t line_number = 0;
    bool ok;

    memset(q, 0, sizeof *q);
    ok = pair_open(&p, err);
    if (ok)
        bench_say_where(m->path, &p.model.info, o);
    if (ok && m->other_path)
        bench_say_where(m->other_path, &p.other.info, o);
    clb_progress_start("reading", text.n, o->quiet);
    for (size_t at = 0; ok && at < text.n;) {
        const char *end = memchr(text.p + at, '\n', text.n - at);
        struct clb_str line = { text.p + at, end ? (size_t)(end - text.p) - at : text.n - at };

        line_number++;
        ok = read_line(&p, line, err);
        if (!ok)
            clb_fail_in(err, "%s: line %llu", where, (unsigned long long)line_number);
        at += line.n + 1;
        clb_progress_at(at < text.n ? at : text.n);
    }
    clb_progress_done();
    if (ok && !q->tokens)
        ok = clb_fail(err, CLB_BAD_INPUT, "%s: no document has two tokens or more", where);
    pair_done(&p);
    return ok;
}
