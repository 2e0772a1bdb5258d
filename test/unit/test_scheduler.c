/* The scheduler: whoever shares a pass, waits, is put off, takes a prefix that another computed, or
 * is cancelled, every answer is the one that the request gets alone. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "lib/base/str.h"
#include "lib/colibri.h"
#include "lib/import/hf_tokenizer.h"
#include "test/check.h"
#include "test/tiny_model.h"

enum { VOCAB = 2048, LONGEST = 320, MOST_NEW = 160, CONTEXT = 384, JOBS = 48 };

static struct clb_text tables;
static struct tiny tiny;
static struct colibri_model *model;
static uint64_t dice;

static uint32_t roll(uint32_t n) /* below n */
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((dice >> 33) % n);
}

/* -- requests and their answers ---------------------------------------------------------------- */

struct answer {
    int32_t id[MOST_NEW + 1];
    uint32_t n;
    struct clb_text text;
    int32_t finish;
};
struct job {
    int32_t ids[LONGEST];
    size_t n_ids;
    struct colibri_sampling how;
    uint32_t max_new;
    char stop[2][24];
    size_t n_stop;
    struct answer alone, got;
    uint32_t n_finished, cached, n_preempted;
    bool cancelled;
};

static bool has_stop(const struct job *j, struct answer *a)
{
    size_t first = a->text.n;

    for (size_t i = 0; i < j->n_stop; i++) {
        const char *at = a->text.n ? strstr(a->text.p, j->stop[i]) : NULL;
        if (at && (size_t)(at - a->text.p) < first)
            first = (size_t)(at - a->text.p);
    }
    if (first == a->text.n)
        return false;
    a->text.n = first;
    a->finish = COLIBRI_FINISH_STOP;
    return true;
}

static bool is_end(int32_t id)
{
    struct colibri_model_info info = { .size = sizeof info };

    CHECK_EQ(colibri_model_info(model, &info), 0);
    for (uint32_t i = 0; i < info.n_eos; i++)
        if (info.eos_token[i] == id)
            return true;
    return false;
}

/* By a session of its own, token by token; text and stop texts in the simplest way. */
static void compute_alone(struct job *j, int32_t kv_dtype)
{
    struct colibri_batch_options bo = { .size = sizeof bo, .context = CONTEXT,
                                        .kv_dtype = kv_dtype };
    struct colibri_batch *b;
    struct colibri_session *s;
    struct colibri_decoder *d;
    struct answer *a = &j->alone;
    const char *text;
    size_t n;
    bool over = false;

    a->n = 0;
    clb_text_clear(&a->text);
    CHECK(!colibri_batch_open(&b, model, &bo) && !colibri_session_open(&s, b, &j->how) &&
          !colibri_decoder_open(&d, model, true));
    size_t all = j->n_ids + j->max_new;
    CHECK(!colibri_session_expect(s, all < CONTEXT ? all : CONTEXT));
    CHECK(!colibri_session_feed(s, j->ids, j->n_ids));
    for (size_t i = 0; i < j->n_ids; i++)
        CHECK(!colibri_decoder_feed(d, j->ids[i], &text, &n));
    while (!over) {
        while (!colibri_session_logits(s))
            CHECK(!colibri_batch_step(b, NULL));
        a->finish = COLIBRI_FINISH_CONTEXT;
        if (j->n_ids + a->n == CONTEXT)
            break;
        int32_t id = colibri_session_sample(s);
        a->finish = COLIBRI_FINISH_EOS;
        if (is_end(id))
            break;
        a->id[a->n++] = id;
        CHECK(!colibri_decoder_feed(d, id, &text, &n));
        clb_text_add(&a->text, text, n);
        a->finish = COLIBRI_FINISH_LENGTH;
        over = has_stop(j, a) || a->n == j->max_new;
        if (!over)
            CHECK(!colibri_session_feed(s, &id, 1));
        if (!over)
            CHECK(!colibri_batch_step(b, NULL));
    }
    if (a->finish != COLIBRI_FINISH_STOP) {
        CHECK(!colibri_decoder_flush(d, &text, &n));
        clb_text_add(&a->text, text, n);
        has_stop(j, a);
    }
    colibri_decoder_close(d);
    colibri_batch_close(b);
}

static int on_token(const struct colibri_token_event *e)
{
    struct job *j = e->arg;

    CHECK_EQ(e->index, j->got.n);
    CHECK(j->n_finished == 0);
    j->got.id[j->got.n++] = e->id;
    clb_text_add(&j->got.text, e->text, e->n_text);
    return 0;
}

static void on_finish(const struct colibri_finish_event *e)
{
    struct job *j = e->arg;

    j->n_finished++;
    j->got.finish = e->finish;
    j->cached = e->cached_tokens;
    j->n_preempted = e->n_preempted;
    CHECK_EQ(e->new_tokens, j->got.n);
    CHECK_EQ(e->prompt_tokens, j->n_ids);
    CHECK(e->last && !e->error);
    clb_text_add(&j->got.text, e->text, e->n_text);
}

static struct colibri_request request_of(struct job *j, const char *stop[2])
{
    stop[0] = j->stop[0];
    stop[1] = j->stop[1];
    return (struct colibri_request){
        .size = sizeof(struct colibri_request),
        .ids = j->ids,
        .n_ids = j->n_ids,
        .sampling = &j->how,
        .max_new_tokens = j->max_new,
        .stop = stop,
        .n_stop = j->n_stop,
        .on_token = on_token,
        .on_finish = on_finish,
        .arg = j,
    };
}

static uint64_t submit(struct colibri_scheduler *s, struct job *j)
{
    const char *stop[2];
    struct colibri_request r = request_of(j, stop);
    uint64_t ticket = 0;
    int status = colibri_scheduler_submit(s, &r, &ticket);

    if (status)
        printf("# submit: %s\n", colibri_last_error());
    CHECK_EQ(status, 0);
    return ticket;
}

static void forget(struct job *j)
{
    clb_text_free(&j->got.text);
    j->got = (struct answer){ 0 };
    j->n_finished = 0;
    j->cancelled = false;
}

/* What was said before a cancel is the beginning of the answer. */
static void same(const struct job *j)
{
    const struct answer *a = &j->alone, *b = &j->got;
    bool whole = b->finish != COLIBRI_FINISH_CANCELLED;

    CHECK_EQ(j->n_finished, 1);
    CHECK(whole || j->cancelled);
    if (whole) {
        CHECK_EQ(b->finish, a->finish);
        CHECK_EQ(b->n, a->n);
        CHECK_EQ(b->text.n, a->text.n);
    }
    CHECK(b->n <= a->n && !memcmp(a->id, b->id, b->n * sizeof *a->id));
    CHECK(b->text.n <= a->text.n &&
          (b->text.n == 0 || !memcmp(a->text.p, b->text.p, b->text.n)));
}

/* -- many at once ------------------------------------------------------------------------------ */

static struct job job[JOBS];

/* Prompts that share beginnings of several lengths, some whole. */
static void make_jobs(uint64_t seed, int32_t kv_dtype)
{
    int32_t common[3][LONGEST];

    dice = seed;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < LONGEST; k++)
            common[i][k] = (int32_t)roll(VOCAB);
    for (int i = 0; i < JOBS; i++) {
        struct job *j = &job[i];
        uint32_t kind = roll(5), shared = roll(4) ? roll(260) : 128;

        forget(j);
        j->n_ids = shared + 1 + roll(40);
        for (size_t k = 0; k < j->n_ids; k++)
            j->ids[k] = kind < 3 && (k < shared || roll(3) == 0) ? common[kind][k]
                                                                : (int32_t)roll(VOCAB);
        j->how = (struct colibri_sampling){ .size = sizeof j->how, .seed = roll(1000) };
        if (roll(2))
            j->how.temperature = 1;
        if (roll(4) == 0)
            j->how.repetition_penalty = 1.3f;
        j->max_new = 1 + roll(MOST_NEW);
        j->n_stop = 0;
        compute_alone(j, kv_dtype);
        if (i % 3 == 0 && j->alone.text.n > 20) {
            size_t n = 1 + roll(8), at = roll((uint32_t)(j->alone.text.n - n));
            snprintf(j->stop[0], sizeof j->stop[0], "%.*s", (int)n, j->alone.text.p + at);
            snprintf(j->stop[1], sizeof j->stop[1], "no such text");
            j->n_stop = strlen(j->stop[0]) ? 2 : 0;
            compute_alone(j, kv_dtype);
        }
    }
}

static struct colibri_scheduler *open_scheduler(struct colibri_scheduler_options o)
{
    struct colibri_scheduler *s;

    o.size = sizeof o;
    if (colibri_scheduler_open(&s, model, &o))
        printf("# open: %s\n", colibri_last_error());
    CHECK(s != NULL);
    return s;
}

static struct colibri_scheduler_stats stats_of(struct colibri_scheduler *s)
{
    struct colibri_scheduler_stats st = { .size = sizeof st };

    CHECK_EQ(colibri_scheduler_stats(s, &st), 0);
    CHECK(st.kv_used + st.kv_cached <= st.kv_blocks && st.kv_shared <= st.kv_used);
    return st;
}

/* All jobs, some from the start, the others on the way; every fourth of them cancelled sometime
 * when `cancels`. */
static struct colibri_scheduler_stats crowd(const struct colibri_scheduler_options *o, bool cancels)
{
    struct colibri_scheduler *s = open_scheduler(*o);
    uint64_t ticket[JOBS];
    size_t n_left = 1;
    int n = 0, n_cancelled = 0;

    for (int i = 0; i < JOBS; i++)
        forget(&job[i]);
    for (int pass = 0; n < JOBS || n_left > 0; pass++) {
        for (int more = pass ? (int)roll(3) : JOBS / 2; more > 0 && n < JOBS; more--, n++)
            ticket[n] = submit(s, &job[n]);
        int victim = (int)roll((uint32_t)n);
        if (cancels && roll(3) == 0 && victim % 4 == 0 && !job[victim].cancelled) {
            CHECK_EQ(colibri_scheduler_cancel(s, ticket[victim]), 0);
            job[victim].cancelled = true;
            n_cancelled += job[victim].n_finished == 0;
        }
        CHECK_EQ(colibri_scheduler_step(s, &n_left), 0);
        if (cancels && job[victim].cancelled)
            CHECK_EQ(job[victim].n_finished, 1); /* within one pass */
    }
    for (int i = 0; i < JOBS; i++)
        same(&job[i]);
    struct colibri_scheduler_stats st = stats_of(s);
    CHECK_EQ(st.finished, JOBS);
    CHECK_EQ(st.cancelled, n_cancelled);
    CHECK(!cancels || n_cancelled > 0);
    CHECK_EQ(st.kv_used, 0);
    CHECK_EQ(st.running + st.waiting, 0);
    colibri_scheduler_close(s);
    return st;
}

static const int32_t kv_dtypes[] = { COLIBRI_KV_F32, COLIBRI_KV_F16, COLIBRI_KV_INT8 };

static void every_answer_is_the_one_alone(void)
{
    uint64_t preempted = 0;

    for (int i = 0; i < 3; i++) {
        make_jobs(11u + (unsigned)i, kv_dtypes[i]);
        struct colibri_scheduler_options o = { .context = CONTEXT, .kv_dtype = kv_dtypes[i] };
        struct colibri_scheduler_stats st = crowd(&o, false);
        CHECK(st.cached_tokens > 1000);
        CHECK_EQ(st.preempted, 0);
        o.max_sequences = 1;
        o.no_prefix_cache = true;
        st = crowd(&o, false);
        CHECK_EQ(st.cached_tokens, 0);
        CHECK_EQ(st.prompt_rows, st.prompt_tokens);
        o = (struct colibri_scheduler_options){ .max_sequences = 20, .context = CONTEXT,
                                                .kv_dtype = kv_dtypes[i], .prefill_chunk = 50,
                                                .shared_chunk = 7, .kv_tokens = CONTEXT * 2 };
        st = crowd(&o, true);
        preempted += st.preempted;
    }
    CHECK(preempted > 0); /* memory for two of twenty */
}

static void load_model(const struct clb_arch *a, uint64_t seed)
{
    struct colibri_load_options lo = { .size = sizeof lo, .threads = 1 };
    struct colibri_error e;

    CHECK(tiny_build(&tiny, &(struct tiny_options){ .arch = a,
                                                    .expert = CLB_INT8,
                                                    .dense = CLB_INT8,
                                                    .embed = CLB_F32,
                                                    .seed = seed,
                                                    .tokenizer_tables = tables.p,
                                                    .n_tables = tables.n }));
    model = colibri_load_model_from_memory(tiny.bytes, tiny.n, &lo, &e);
    if (!model)
        printf("# %s\n", e.text);
}

static void unload_model(void)
{
    colibri_unload_model(model);
    tiny_free(&tiny);
}

int main(void)
{
    static char json[1 << 20];
    struct clb_err err;
    struct clb_arch a;
    FILE *f = fopen("examples/demo-model/tokenizer.json", "rb");
    size_t n = f ? fread(json, 1, sizeof json, f) : 0;

    if (!f || fclose(f) ||
        !clb_hf_tokenizer_compile(&tables, json, n, "tokenizer.json", VOCAB, &err))
        return 1;
    tiny_arch(&a);
    a.vocab_size = VOCAB;
    load_model(&a, 1);
    if (!model)
        return 1;
    TEST(every_answer_is_the_one_alone);
    unload_model();
    for (int i = 0; i < JOBS; i++) {
        clb_text_free(&job[i].alone.text);
        clb_text_free(&job[i].got.text);
    }
    clb_text_free(&tables);
    return test_result();
}
