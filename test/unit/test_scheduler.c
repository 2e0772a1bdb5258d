/* The scheduler: whoever shares a pass, waits, is put off, takes a prefix that another computed, or
 * is cancelled, every answer is the one that the request gets alone. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "lib/base/str.h"
#include "lib/colibri.h"
#include "lib/format/reader.h"
#include "lib/import/hf_tokenizer.h"
#include "test/check.h"
#include "test/tiny_model.h"

enum { VOCAB = 2048, LONGEST = 320, MOST_NEW = 160, CONTEXT = 384, JOBS = 36 };
static int n_jobs = 24; /* JOBS when there is time */

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
        const char *at = a->text.n ? memmem(a->text.p, a->text.n, j->stop[i], strlen(j->stop[i]))
                                   : NULL; /* it may have NULs */
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
    struct colibri_batch_options bo = { .size = sizeof bo,
                                        .context = CONTEXT,
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
    CHECK(b->text.n <= a->text.n && (b->text.n == 0 || !memcmp(a->text.p, b->text.p, b->text.n)));
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
    for (int i = 0; i < n_jobs; i++) {
        struct job *j = &job[i];
        uint32_t kind = roll(5), shared = roll(4) ? roll(260) : 128;

        forget(j);
        j->n_ids = shared + 1 + roll(40);
        for (size_t k = 0; k < j->n_ids; k++)
            j->ids[k] =
                kind < 3 && (k < shared || roll(3) == 0) ? common[kind][k] : (int32_t)roll(VOCAB);
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

    for (int i = 0; i < n_jobs; i++)
        forget(&job[i]);
    for (int pass = 0; n < n_jobs || n_left > 0; pass++) {
        for (int more = pass ? (int)roll(3) : n_jobs / 2; more > 0 && n < n_jobs; more--, n++)
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
    for (int i = 0; i < n_jobs; i++)
        same(&job[i]);
    struct colibri_scheduler_stats st = stats_of(s);
    CHECK_EQ(st.finished, n_jobs);
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
        CHECK(st.cached_tokens > 500);
        CHECK_EQ(st.preempted, 0);
        o.max_sequences = 1;
        o.no_prefix_cache = true;
        st = crowd(&o, false);
        CHECK_EQ(st.cached_tokens, 0);
        CHECK_EQ(st.prompt_rows, st.prompt_tokens);
        o = (struct colibri_scheduler_options){ .max_sequences = 20,
                                                .context = CONTEXT,
                                                .kv_dtype = kv_dtypes[i],
                                                .prefill_chunk = 50,
                                                .shared_chunk = 7,
                                                .kv_tokens = CONTEXT + 128 };
        st = crowd(&o, true);
        preempted += st.preempted;
    }
    CHECK(preempted > 0); /* memory for one of twenty, and a bit */
}

/* -- what is shared ---------------------------------------------------------------------------- */

/* A request with a prompt of n tokens, those of `from` and then its own. */
static struct job *simple_job(int i, const int32_t *from, uint32_t n_common, uint32_t n,
                              uint32_t max_new)
{
    struct job *j = &job[i];

    forget(j);
    j->n_stop = 0;
    j->n_ids = n;
    for (uint32_t k = 0; k < n; k++)
        j->ids[k] = k < n_common ? from[k] : (int32_t)(1 + (k * 37 + (uint32_t)i * 101) % 2000);
    j->how = (struct colibri_sampling){ .size = sizeof j->how };
    j->max_new = max_new;
    compute_alone(j, COLIBRI_KV_DEFAULT);
    return j;
}

static void run_all(struct colibri_scheduler *s)
{
    size_t n_left = 1;

    while (n_left > 0)
        CHECK_EQ(colibri_scheduler_step(s, &n_left), 0);
}

static void a_common_prefix_is_computed_once(void)
{
    struct colibri_scheduler *s = open_scheduler(
        (struct colibri_scheduler_options){ .max_sequences = 6, .context = CONTEXT });
    int32_t common[200];

    for (int k = 0; k < 200; k++)
        common[k] = 7 + k * 3 % 1500;
    for (int i = 0; i < 6; i++)
        submit(s, simple_job(i, common, 200, 210, 30));
    size_t n_left;
    CHECK_EQ(colibri_scheduler_step(s, &n_left), 0);
    struct colibri_scheduler_stats st = stats_of(s);
    CHECK_EQ(st.prompt_rows, 210); /* of one; the others wait for it */
    CHECK_EQ(colibri_scheduler_step(s, &n_left), 0);
    st = stats_of(s);
    /* three full blocks are shared, 8 of the fourth copied, ten rows are each one's own */
    CHECK_EQ(st.prompt_rows, 210 + 5 * 10);
    CHECK_EQ(st.kv_shared, 3);
    CHECK_EQ(st.kv_used, 3 + 6);
    CHECK_EQ(st.cached_tokens, 5 * 200);
    run_all(s);
    for (int i = 0; i < 6; i++) {
        same(&job[i]);
        CHECK_EQ(job[i].cached, i == 0 ? 0 : 200);
    }
    st = stats_of(s);
    CHECK(st.kv_used == 0 && st.kv_shared == 0 && st.kv_cached >= 3 + 6);
    struct job *again = simple_job(9, common, 200, 210, 30); /* all of them are gone */
    submit(s, again);
    run_all(s);
    same(again);
    CHECK_EQ(again->cached, 200);
    colibri_scheduler_close(s);
}

/* The next turn: the prompt, the answer and more. Its answer's last token was never computed. */
static void a_conversation_goes_on_where_it_was(void)
{
    struct colibri_scheduler *s = open_scheduler(
        (struct colibri_scheduler_options){ .max_sequences = 1, .context = CONTEXT });
    struct job *first = simple_job(0, NULL, 0, 45, 30);

    submit(s, first);
    run_all(s);
    same(first);
    int32_t known[200];
    memcpy(known, first->ids, 45 * sizeof *known);
    memcpy(known + 45, first->got.id, first->got.n * sizeof *known);
    uint32_t n = 45 + first->got.n;
    struct job *second = simple_job(1, known, n, n + 20, 10);
    submit(s, second);
    run_all(s);
    same(second);
    CHECK_EQ(second->cached, n - 1);
    colibri_scheduler_close(s);
}

struct choices {
    struct answer got[5];
    uint32_t n_finished;
    uint32_t cached;
};
static int on_choice_token(const struct colibri_token_event *e)
{
    struct choices *c = e->arg;

    c->got[e->choice].id[c->got[e->choice].n++] = e->id;
    return 0;
}
static void on_choice_finish(const struct colibri_finish_event *e)
{
    struct choices *c = e->arg;

    c->cached += e->cached_tokens;
    CHECK_EQ(e->last, ++c->n_finished == 5);
}

static void several_answers_read_their_prompt_once(void)
{
    for (uint32_t places = 1; places <= 8; places += 7) {
        struct colibri_scheduler *s = open_scheduler(
            (struct colibri_scheduler_options){ .max_sequences = places, .context = CONTEXT });
        struct choices got = { 0 };
        struct job *j = simple_job(0, NULL, 0, 100, 40);
        struct colibri_sampling how = { .size = sizeof how, .temperature = 1, .seed = 70 };
        struct colibri_request r = { .size = sizeof r,
                                     .ids = j->ids,
                                     .n_ids = 100,
                                     .sampling = &how,
                                     .n_choices = 5,
                                     .max_new_tokens = 40,
                                     .on_token = on_choice_token,
                                     .on_finish = on_choice_finish,
                                     .arg = &got };
        CHECK_EQ(colibri_scheduler_submit(s, &r, NULL), 0);
        run_all(s);
        CHECK_EQ(got.n_finished, 5);
        struct colibri_scheduler_stats st = stats_of(s);
        CHECK_EQ(st.prompt_rows, 100 + 4); /* the logits of the last token are each one's own */
        CHECK_EQ(got.cached, 4 * 99);
        CHECK_EQ(st.finished, 1);
        for (uint32_t i = 0; i < 5; i++) {
            j->how = how;
            j->how.seed = 70 + i;
            compute_alone(j, COLIBRI_KV_DEFAULT);
            CHECK_EQ(got.got[i].n, j->alone.n);
            CHECK(!memcmp(got.got[i].id, j->alone.id, j->alone.n * sizeof(int32_t)));
        }
        colibri_scheduler_close(s);
    }
}

/* -- memory ------------------------------------------------------------------------------------ */

/* Room for one long answer and a bit: all start, nobody may keep what he has but the first. */
static void whoever_came_last_gives_way(void)
{
    struct colibri_scheduler *s = open_scheduler((struct colibri_scheduler_options){
        .max_sequences = 4, .context = CONTEXT, .kv_tokens = 5 * 64 });
    size_t n_left = 1;

    for (int i = 0; i < 4; i++)
        submit(s, simple_job(i, NULL, 0, 10, MOST_NEW));
    for (int last = -1; n_left > 0;) {
        CHECK_EQ(colibri_scheduler_step(s, &n_left), 0);
        struct colibri_scheduler_stats st = stats_of(s);
        CHECK(st.kv_used <= 5);
        for (int i = 0; i < 4; i++)
            if (job[i].n_finished && i > last)
                last = i;
    }
    struct colibri_scheduler_stats st = stats_of(s);
    CHECK(st.preempted > 0);
    uint32_t n = 0;
    for (int i = 0; i < 4; i++) {
        same(&job[i]);
        n += job[i].n_preempted;
    }
    CHECK_EQ(job[0].n_preempted, 0);
    CHECK_EQ(n, st.preempted);
    CHECK_EQ(st.prompt_tokens, 40);
    CHECK_EQ(st.finished, 4);
    colibri_scheduler_close(s);
}

/* What was used lately stays, the rest makes room; nothing is ever given away twice. */
static void old_prefixes_make_room(void)
{
    struct colibri_scheduler *s = open_scheduler((struct colibri_scheduler_options){
        .max_sequences = 1, .context = CONTEXT, .kv_tokens = 8 * 64 });
    int32_t common[130];

    for (int k = 0; k < 130; k++)
        common[k] = 3 + k;
    for (int i = 0; i < 12; i++) {
        struct job *j = i % 2 ? simple_job(i, NULL, 0, 140, 3) : simple_job(i, common, 130, 140, 3);
        submit(s, j);
        run_all(s);
        same(j);
        CHECK_EQ(j->cached, i % 2 || i == 0 ? 0 : 128);
    }
    struct colibri_scheduler_stats st = stats_of(s);
    CHECK_EQ(st.kv_used, 0);
    CHECK(st.kv_cached <= 8);
    /* 320 tokens need five blocks of the eight, and then six */
    struct job *j = simple_job(13, NULL, 0, 319, 20);
    submit(s, j);
    run_all(s);
    same(j);
    colibri_scheduler_close(s);
}

/* -- errors and ends --------------------------------------------------------------------------- */

static int refused(struct colibri_scheduler *s, const struct colibri_request *r, const char *field,
                   const char *part)
{
    int status = colibri_scheduler_submit(s, r, NULL);

    CHECK_STR(colibri_last_error_info()->field, field);
    CHECK_HAS(colibri_last_error(), part);
    return status;
}

static void bad_requests_are_refused_at_once(void)
{
    struct colibri_scheduler *s = open_scheduler((struct colibri_scheduler_options){
        .max_sequences = 2, .context = CONTEXT, .kv_tokens = 128 });
    static int32_t ids[CONTEXT + 1];
    const char *empty[] = { "x", "" };
    struct colibri_sampling how = { .size = sizeof how, .top_p = 2 };
    const struct colibri_request good = {
        .size = sizeof good, .ids = ids, .n_ids = 5, .max_new_tokens = 5
    };
    struct colibri_request r = good;

    r.n_ids = 0;
    CHECK_EQ(refused(s, &r, "ids", "the prompt is empty"), COLIBRI_USAGE);
    r.ids = NULL, r.n_ids = 3;
    CHECK_EQ(refused(s, &r, "ids", "'ids' is NULL"), COLIBRI_USAGE);
    r = good, r.n_ids = CONTEXT + 1;
    CHECK_EQ(refused(s, &r, "ids", "the prompt has 385 tokens, but the context holds 384"),
             COLIBRI_USAGE);
    ids[3] = VOCAB;
    r = good;
    CHECK_EQ(refused(s, &r, "ids", "token 3: id 2048"), COLIBRI_USAGE);
    ids[3] = -1;
    CHECK_EQ(refused(s, &r, "ids", "token 3: id -1"), COLIBRI_USAGE);
    ids[3] = 3;
    r.n_ids = 100, r.max_new_tokens = 30;
    CHECK_EQ(refused(s, &r, "max_new_tokens",
                     "100 tokens and an answer of 30 need 129 KV positions, but there are 128"),
             COLIBRI_NO_SPACE);
    r.max_new_tokens = 0; /* up to the context */
    CHECK_EQ(refused(s, &r, "max_new_tokens", "384 KV positions"), COLIBRI_NO_SPACE);
    r.max_new_tokens = UINT32_MAX;
    CHECK_EQ(refused(s, &r, "max_new_tokens", "384 KV positions"), COLIBRI_NO_SPACE);
    r = good, r.positions = 4;
    CHECK_EQ(refused(s, &r, "positions", "4 positions"), COLIBRI_USAGE);
    r.positions = CONTEXT + 1;
    CHECK_EQ(refused(s, &r, "positions", "385 positions"), COLIBRI_USAGE);
    r = good, r.n_choices = COLIBRI_MOST_CHOICES + 1;
    CHECK_EQ(refused(s, &r, "n_choices", "1025 choices"), COLIBRI_USAGE);
    r = good, r.n_logprobs = COLIBRI_MOST_LOGPROBS + 1;
    CHECK_EQ(refused(s, &r, "n_logprobs", "at most 32"), COLIBRI_USAGE);
    r = good, r.stop = empty, r.n_stop = 2;
    CHECK_EQ(refused(s, &r, "stop", "empty"), COLIBRI_USAGE);
    r.n_stop = COLIBRI_MOST_STOPS + 1;
    CHECK_EQ(refused(s, &r, "stop", "65 stop texts"), COLIBRI_USAGE);
    r = good, r.stop = empty, r.n_stop = 1, r.ids_only = true;
    CHECK_EQ(refused(s, &r, "stop", "without text"), COLIBRI_USAGE);
    r = good, r.sampling = &how;
    CHECK_EQ(colibri_scheduler_submit(s, &r, NULL), COLIBRI_USAGE);
    CHECK_HAS(colibri_last_error(), "top_p");
    r = good, r.size = 3;
    CHECK_EQ(colibri_scheduler_submit(s, &r, NULL), COLIBRI_USAGE);
    struct colibri_scheduler_stats st = stats_of(s);
    CHECK(st.submitted == 0 && st.refused > 12 && st.waiting == 0);
    colibri_scheduler_close(s);
}

static void a_full_queue_is_busy(void)
{
    struct colibri_scheduler *s = open_scheduler((struct colibri_scheduler_options){
        .max_sequences = 2, .max_queue = 3, .context = CONTEXT });
    struct colibri_request r;
    const char *stop[2];
    uint64_t ticket[6];

    for (int i = 0; i < 5; i++) /* two places and three that wait */
        ticket[i] = submit(s, simple_job(i, NULL, 0, 10, 20));
    r = request_of(simple_job(5, NULL, 0, 10, 20), stop);
    CHECK_EQ(colibri_scheduler_submit(s, &r, NULL), COLIBRI_BUSY);
    CHECK_HAS(colibri_last_error(), "queue is full: 5 requests wait");
    CHECK_EQ(colibri_scheduler_step(s, NULL), 0);
    CHECK_EQ(stats_of(s).running, 2);
    CHECK_EQ(stats_of(s).waiting, 3);
    CHECK_EQ(colibri_scheduler_submit(s, &r, NULL), COLIBRI_BUSY);
    CHECK_EQ(colibri_scheduler_cancel(s, ticket[4]), 0); /* one that waits */
    job[4].cancelled = true;
    CHECK_EQ(colibri_scheduler_step(s, NULL), 0);
    CHECK_EQ(job[4].n_finished, 1);
    CHECK_EQ(job[4].got.n, 0);
    CHECK_EQ(colibri_scheduler_submit(s, &r, NULL), 0);
    CHECK_EQ(colibri_scheduler_submit(s, &r, NULL), COLIBRI_BUSY);
    run_all(s);
    for (int i = 0; i < 6; i++)
        same(&job[i]);
    CHECK_EQ(colibri_scheduler_cancel(s, ticket[0]), 0); /* it is late */
    CHECK_EQ(colibri_scheduler_cancel(s, 12345), 0);
    CHECK_EQ(colibri_scheduler_step(s, NULL), 0);
    struct colibri_scheduler_stats st = stats_of(s);
    CHECK(st.submitted == 6 && st.refused == 3 && st.finished == 6 && st.cancelled == 1);
    colibri_scheduler_close(s);
}

static void places_go_in_order_of_arrival(void)
{
    struct colibri_scheduler *s = open_scheduler((struct colibri_scheduler_options){
        .max_sequences = 3, .context = CONTEXT, .kv_tokens = 7 * 64 });
    size_t n_left = 1;

    /* The third needs all that is left and more, and the small ones behind it do not overtake. */
    for (int i = 0; i < 8; i++)
        submit(s, simple_job(i, NULL, 0, i == 2 ? 300 : 60, 20));
    while (n_left > 0) {
        CHECK_EQ(colibri_scheduler_step(s, &n_left), 0);
        for (int i = 1; i < 8; i++)
            CHECK(job[i].got.n == 0 || job[i - 1].got.n > 0);
    }
    for (int i = 0; i < 8; i++)
        same(&job[i]);
    colibri_scheduler_close(s);
}

struct persistent {
    struct colibri_scheduler *s;
    struct colibri_request r;
    int n_refused;
};
static void ask_again(const struct colibri_finish_event *e)
{
    struct persistent *p = e->arg;

    p->n_refused += colibri_scheduler_submit(p->s, &p->r, NULL) == COLIBRI_USAGE;
}

static void close_cancels_what_is_left(void)
{
    struct colibri_scheduler *s = open_scheduler(
        (struct colibri_scheduler_options){ .max_sequences = 2, .context = CONTEXT });

    for (int i = 0; i < 5; i++)
        submit(s, simple_job(i, NULL, 0, 10, 50));
    struct persistent p = { .s = s };
    p.r = (struct colibri_request){
        .size = sizeof p.r, .ids = job[0].ids, .n_ids = 10, .on_finish = ask_again, .arg = &p
    };
    CHECK_EQ(colibri_scheduler_submit(s, &p.r, NULL), 0);
    for (int i = 0; i < 5; i++)
        CHECK_EQ(colibri_scheduler_step(s, NULL), 0);
    colibri_scheduler_close(s);
    CHECK_EQ(p.n_refused, 1);
    for (int i = 0; i < 5; i++) {
        job[i].cancelled = true;
        same(&job[i]);
        CHECK_EQ(job[i].got.finish, COLIBRI_FINISH_CANCELLED);
        CHECK((i < 2) == (job[i].got.n > 0));
    }
    colibri_scheduler_close(NULL);
}

/* -- single features --------------------------------------------------------------------------- */

struct details {
    uint32_t n_token, n_row, stop_at;
    float logprob[MOST_NEW];
    struct colibri_logprob top[MOST_NEW][3];
    int32_t id[MOST_NEW];
    int32_t finish;
    bool profiled, no_text;
    uint64_t rows;
    double seconds, stages;
    float row_sum;
};
static int on_detail_token(const struct colibri_token_event *e)
{
    struct details *d = e->arg;

    d->no_text = d->no_text && e->n_text == 0;
    d->id[d->n_token] = e->id;
    d->logprob[d->n_token] = e->logprob;
    for (uint32_t i = 0; i < e->n_top; i++)
        d->top[d->n_token][i] = e->top[i];
    return ++d->n_token == d->stop_at;
}
static void on_detail_finish(const struct colibri_finish_event *e)
{
    struct details *d = e->arg;

    d->finish = e->finish;
    d->profiled = e->profile != NULL;
    d->seconds = e->queue_seconds + e->prefill_seconds + e->decode_seconds;
    CHECK(e->queue_seconds >= 0 && e->prefill_seconds >= 0 && e->decode_seconds >= 0);
    if (e->profile) {
        d->rows = e->profile->rows;
        for (int i = 0; i < COLIBRI_STAGES; i++)
            d->stages += e->profile->seconds[i];
        CHECK_STR(e->profile->name[4], "Gate");
    }
}
static void on_detail_row(void *arg, size_t position, const float *logits)
{
    struct details *d = arg;

    CHECK_EQ(position, d->n_row);
    d->n_row++;
    d->row_sum += logits[position % VOCAB];
}

static struct colibri_request detailed(struct details *d, const int32_t *ids, size_t n)
{
    *d = (struct details){ .no_text = true };
    return (struct colibri_request){ .size = sizeof(struct colibri_request),
                                     .ids = ids,
                                     .n_ids = n,
                                     .max_new_tokens = 20,
                                     .on_token = on_detail_token,
                                     .on_finish = on_detail_finish,
                                     .arg = d };
}

static void logprobs_are_those_of_a_session(void)
{
    struct colibri_scheduler *s =
        open_scheduler((struct colibri_scheduler_options){ .context = CONTEXT });
    struct colibri_batch_options bo = { .size = sizeof bo, .context = CONTEXT };
    struct colibri_session *alone;
    struct colibri_batch *b;
    struct details d;
    struct job *j = simple_job(0, NULL, 0, 20, 20);
    struct colibri_request r = detailed(&d, j->ids, 20);

    r.logprobs = true;
    r.n_logprobs = 3;
    r.ids_only = true;
    r.ignore_eos = true;
    CHECK_EQ(colibri_scheduler_submit(s, &r, NULL), 0);
    run_all(s);
    CHECK(d.n_token == 20 && d.no_text && !d.profiled);
    CHECK_EQ(d.finish, COLIBRI_FINISH_LENGTH);
    CHECK(!colibri_batch_open(&b, model, &bo) && !colibri_session_open(&alone, b, NULL));
    CHECK(!colibri_session_feed(alone, j->ids, 20));
    for (uint32_t i = 0; i < 20; i++) {
        while (!colibri_session_logits(alone))
            CHECK(!colibri_batch_step(b, NULL));
        const float *logits = colibri_session_logits(alone);
        CHECK(d.logprob[i] == colibri_session_logprob(alone, d.id[i]));
        CHECK(d.top[i][0].id == d.id[i] && d.top[i][0].logprob == d.logprob[i]); /* greedy */
        for (int k = 0; k < 3; k++) {
            uint32_t better = 0;
            for (int v = 0; v < VOCAB; v++)
                better += logits[v] > logits[d.top[i][k].id];
            CHECK_EQ(better, k);
            CHECK(d.top[i][k].logprob == colibri_session_logprob(alone, d.top[i][k].id));
        }
        CHECK(!colibri_session_feed(alone, &d.id[i], 1));
        CHECK(!colibri_batch_step(b, NULL));
    }
    colibri_batch_close(b);
    colibri_scheduler_close(s);
}

static void a_callback_ends_its_choice(void)
{
    struct colibri_scheduler *s =
        open_scheduler((struct colibri_scheduler_options){ .context = CONTEXT });
    struct details d;
    struct job *j = simple_job(0, NULL, 0, 20, 20);
    struct colibri_request r = detailed(&d, j->ids, 20);

    d.stop_at = 3;
    CHECK_EQ(colibri_scheduler_submit(s, &r, NULL), 0);
    run_all(s);
    CHECK_EQ(d.n_token, 3);
    CHECK_EQ(d.finish, COLIBRI_FINISH_CALLBACK);
    r = detailed(&d, j->ids, 20);
    r.max_new_tokens = 0;
    r.ignore_eos = true;
    r.positions = 30;
    CHECK_EQ(colibri_scheduler_submit(s, &r, NULL), 0);
    run_all(s);
    CHECK_EQ(d.n_token, 10);
    CHECK_EQ(d.finish, COLIBRI_FINISH_CONTEXT);
    r = (struct colibri_request){
        .size = sizeof r, .ids = j->ids, .n_ids = 20, .max_new_tokens = 5
    }; /* nobody listens */
    CHECK_EQ(colibri_scheduler_submit(s, &r, NULL), 0);
    run_all(s);
    CHECK_EQ(stats_of(s).finished, 3);
    colibri_scheduler_close(s);
}

/* Every row once, though the request gives its place back and computes them again. */
static void rows_come_once_and_in_order(void)
{
    struct colibri_scheduler *s = open_scheduler((struct colibri_scheduler_options){
        .max_sequences = 4, .context = CONTEXT, .kv_tokens = 5 * 64 });
    struct details d, alone;
    struct job *j = simple_job(4, NULL, 0, 40, MOST_NEW);
    struct colibri_request r;

    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < 3 && turn; i++)
            submit(s, simple_job(i, NULL, 0, 10, MOST_NEW));
        r = detailed(turn ? &d : &alone, j->ids, 40);
        r.max_new_tokens = MOST_NEW;
        r.on_row = on_detail_row;
        r.ignore_eos = true;
        CHECK_EQ(colibri_scheduler_submit(s, &r, NULL), 0);
        run_all(s);
    }
    CHECK(stats_of(s).preempted > 0);
    CHECK_EQ(d.n_row, 40 + MOST_NEW - 1);
    CHECK_EQ(alone.n_row, d.n_row);
    CHECK(d.row_sum == alone.row_sum);
    r = detailed(&d, j->ids, 40); /* the prefix is known, but all rows are wanted */
    r.on_row = on_detail_row;
    r.prompt_only = true;
    CHECK_EQ(colibri_scheduler_submit(s, &r, NULL), 0);
    run_all(s);
    CHECK(d.n_row == 40 && d.n_token == 0 && d.finish == COLIBRI_FINISH_LENGTH);
    colibri_scheduler_close(s);
}

struct scored {
    const int32_t *ids;
    size_t n;
    float logprob[64], best[64];
};

static void score_row(void *arg, size_t position, const float *logits)
{
    struct scored *s = arg;
    struct colibri_logprob top[3];

    if (position + 1 >= s->n)
        return;
    uint32_t n = colibri_top_logprobs(logits, VOCAB, 3, top, s->ids[position + 1],
                                      &s->logprob[position + 1]);
    CHECK_EQ(n, 3);
    CHECK(top[0].logprob >= top[1].logprob && top[1].logprob >= top[2].logprob);
    s->best[position + 1] = top[0].logprob;
}

/* What the tokens of an answer had, they have when they are part of a prompt. */
static void a_prompt_can_be_scored(void)
{
    struct colibri_scheduler *s = open_scheduler(
        (struct colibri_scheduler_options){ .max_sequences = 2, .context = CONTEXT });
    struct details d;
    struct job *j = simple_job(0, NULL, 0, 20, 20);
    struct colibri_request r = detailed(&d, j->ids, 20);
    int32_t ids[40];
    float p;

    r.max_new_tokens = 20;
    r.logprobs = r.ignore_eos = true;
    CHECK_EQ(colibri_scheduler_submit(s, &r, NULL), 0);
    run_all(s);
    CHECK_EQ(d.n_token, 20);
    memcpy(ids, j->ids, 20 * sizeof *ids);
    memcpy(ids + 20, d.id, 20 * sizeof *ids);
    struct scored scored = { .ids = ids, .n = 40 };
    r = (struct colibri_request){ .size = sizeof r,
                                  .ids = ids,
                                  .n_ids = 40,
                                  .ids_only = true,
                                  .prompt_only = true,
                                  .on_row = score_row,
                                  .arg = &scored };
    CHECK_EQ(colibri_scheduler_submit(s, &r, NULL), 0);
    run_all(s);
    for (uint32_t i = 0; i < 20; i++)
        CHECK(scored.logprob[20 + i] == d.logprob[i] && scored.best[20 + i] >= d.logprob[i]);
    float row[3] = { 1, 2, 3 };
    CHECK_EQ(colibri_top_logprobs(row, 3, 0, NULL, 3, &p), 0);
    CHECK(isnan(p));
    CHECK_EQ(colibri_top_logprobs(row, 3, COLIBRI_MOST_LOGPROBS + 1, NULL, 0, &p), 0);
    CHECK(isnan(p));
    colibri_scheduler_close(s);
}

static void some_requests_are_profiled(void)
{
    struct colibri_scheduler *s = open_scheduler((struct colibri_scheduler_options){
        .context = CONTEXT, .profile_every = 3, .max_sequences = 2 });
    struct colibri_profile p = { .size = sizeof p };
    struct details d[7];
    struct job *j = simple_job(0, NULL, 0, 20, 20);

    for (int i = 0; i < 7; i++) {
        struct colibri_request r = detailed(&d[i], j->ids, 20);
        r.no_prefix_cache = r.ignore_eos = true;
        r.profile = i == 5;
        CHECK_EQ(colibri_scheduler_submit(s, &r, NULL), 0);
    }
    run_all(s);
    for (int i = 0; i < 7; i++) {
        CHECK_EQ(d[i].profiled, i % 3 == 0 || i == 5);
        if (d[i].profiled) {
            CHECK_EQ(d[i].rows, 20 + 19);
            CHECK(d[i].stages > 0 && d[i].stages <= d[i].seconds);
        }
    }
    CHECK_EQ(stats_of(s).cached_tokens, 0);
    CHECK_EQ(colibri_scheduler_profile(s, &p), 0);
    CHECK_EQ(p.passes, 0); /* not asked */
    colibri_scheduler_close(s);
    s = open_scheduler(
        (struct colibri_scheduler_options){ .context = CONTEXT, .enable_profiling = true });
    submit(s, j);
    run_all(s);
    CHECK_EQ(colibri_scheduler_profile(s, &p), 0);
    CHECK_EQ(p.passes, stats_of(s).passes);
    CHECK_EQ(p.rows, stats_of(s).prompt_rows + stats_of(s).new_rows);
    colibri_scheduler_close(s);
}

/* -- many threads ------------------------------------------------------------------------------ */

enum { THREADS = 4 };

struct caller {
    struct colibri_scheduler *s;
    int first;
    bool cancels;
};
static void *call(void *arg)
{
    struct caller *c = arg;
    struct colibri_scheduler_stats st = { .size = sizeof st };

    for (int i = 0; i < n_jobs / THREADS; i++) {
        struct job *j = &job[c->first + i];
        const char *stop[2];
        struct colibri_request r = request_of(j, stop);
        uint64_t ticket;

        j->cancelled = c->cancels && i % 3 == 0; /* before the owner sees it */
        while (colibri_scheduler_submit(c->s, &r, &ticket) == COLIBRI_BUSY)
            usleep(100);
        colibri_scheduler_stats(c->s, &st);
        if (j->cancelled) {
            usleep(200);
            colibri_scheduler_cancel(c->s, ticket);
        }
    }
    colibri_scheduler_wake(c->s);
    return NULL;
}

static void requests_of_many_threads(void)
{
    struct colibri_scheduler *s = open_scheduler((struct colibri_scheduler_options){
        .max_sequences = 3,
        .max_queue = 4,
        .context = CONTEXT,
        .kv_tokens = 2 * CONTEXT,
        .kv_dtype = COLIBRI_KV_INT8 }); /* as the jobs were computed last */
    struct caller caller[THREADS];
    pthread_t thread[THREADS];
    uint64_t finished = 0;

    for (int i = 0; i < n_jobs; i++)
        forget(&job[i]);
    for (int i = 0; i < THREADS; i++) {
        caller[i] = (struct caller){ s, i * n_jobs / THREADS, i % 2 };
        CHECK(!pthread_create(&thread[i], NULL, call, &caller[i]));
    }
    while (finished < (uint64_t)n_jobs) {
        CHECK_EQ(colibri_scheduler_wait(s, 1000), 0);
        CHECK_EQ(colibri_scheduler_step(s, NULL), 0);
        finished = stats_of(s).finished;
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_join(thread[i], NULL));
    for (int i = 0; i < n_jobs; i++)
        same(&job[i]);
    CHECK_EQ(stats_of(s).kv_used, 0);
    colibri_scheduler_wake(s); /* an idle one sleeps until then */
    CHECK_EQ(colibri_scheduler_wait(s, -1), 0);
    CHECK_EQ(colibri_scheduler_wait(s, 1), 0);
    CHECK_EQ(colibri_scheduler_step(s, NULL), 0);
    colibri_scheduler_close(s);
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

/* -- kinds of models --------------------------------------------------------------------------- */

static void of_windows(struct clb_arch *a)
{
    a->window[0] = 33;
    a->chunk[1] = 100;
}
static void of_latents(struct clb_arch *a)
{
    a->attention = CLB_ATTN_MLA;
    a->n_head = a->n_kv_head = 3;
    a->kv_lora_rank = 40;
    a->qk_nope_dim = 13;
    a->qk_rope_dim = a->rope_dim = 6;
    a->head_dim = 19;
    a->value_dim = 23;
    a->rope = CLB_ROPE_INTERLEAVED;
}
static void of_long_ropes(struct clb_arch *a)
{
    a->rope_long_from = 200; /* some of the requests say that they will be longer */
    a->rope_scale_long = 1.2f;
}

static void other_kinds_of_models(void)
{
    static void (*const change[])(struct clb_arch *) = { of_windows, of_latents, of_long_ropes };

    for (int i = 0; i < 3; i++) {
        struct clb_arch a;

        tiny_arch(&a);
        a.vocab_size = VOCAB;
        change[i](&a);
        load_model(&a, 5);
        make_jobs(31u + (unsigned)i, kv_dtypes[i]);
        struct colibri_scheduler_options o = { .max_sequences = 12,
                                               .context = CONTEXT,
                                               .kv_dtype = kv_dtypes[i],
                                               .prefill_chunk = 100,
                                               .kv_tokens = 3 * CONTEXT };
        struct colibri_scheduler_stats st = crowd(&o, i == 1);
        CHECK(st.cached_tokens > 200);
        unload_model();
    }
}

/* A file that shrinks while it is read: the requests of the pass fail, the scheduler lives. */
static void a_pass_that_fails(void)
{
    static char path[] = "/tmp/colibri-scheduler-XXXXXX";
    struct colibri_load_options lo = { .size = sizeof lo, .threads = 1 };
    struct colibri_error e;
    struct clb_arch a;
    struct details d[2];
    int32_t ids[5] = { 1, 2, 3, 4, 5 };
    struct clb_reader file;
    struct clb_err err;
    int fd = mkstemp(path);

    tiny_arch(&a);
    a.vocab_size = VOCAB;
    load_model(&a, 1);
    CHECK(fd >= 0 && write(fd, tiny.bytes, tiny.n) == (ssize_t)tiny.n);
    CHECK(clb_reader_open_memory(&file, tiny.bytes, tiny.n, &err));
    uint64_t first_expert = file.experts[0].offset[0]; /* what is mapped lies before them */
    clb_reader_close(&file);
    unload_model();
    lo.memory = 4 << 20; /* experts are read into a cache */
    model = colibri_load_model_ex(path, &lo, &e);
    CHECK(model != NULL);
    if (!model) {
        printf("# %s\n", e.text);
        return;
    }
    struct colibri_scheduler *s =
        open_scheduler((struct colibri_scheduler_options){ .max_sequences = 2, .context = 64 });
    for (int i = 0; i < 2; i++) {
        ids[0] = i; /* else the second would wait for what the first computes */
        struct colibri_request r = detailed(&d[i], ids, 5);
        r.ids_only = true;
        CHECK_EQ(colibri_scheduler_submit(s, &r, NULL), 0);
    }
    CHECK(!ftruncate(fd, (off_t)first_expert));
    size_t n_left;
    CHECK(colibri_scheduler_step(s, &n_left) != 0);
    CHECK(colibri_last_error()[0] != '\0');
    CHECK_EQ(n_left, 0);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(d[i].finish, COLIBRI_FINISH_FAILED);
    CHECK_EQ(stats_of(s).failed, 2);
    CHECK_EQ(stats_of(s).kv_used, 0);
    CHECK_EQ(colibri_scheduler_step(s, &n_left), 0);
    colibri_scheduler_close(s);
    colibri_unload_model(model);
    close(fd);
    unlink(path);
}

int main(void)
{
    static char json[1 << 20];
    const char *full = getenv("COLIBRI_TEST_FULL");
    struct clb_err err;
    struct clb_arch a;
    FILE *f = fopen("examples/demo-model/tokenizer.json", "rb");
    size_t n = f ? fread(json, 1, sizeof json, f) : 0;

    if (!f || fclose(f) ||
        !clb_hf_tokenizer_compile(&tables, json, n, "tokenizer.json", VOCAB, &err))
        return 1;
    n_jobs = full && *full ? JOBS : n_jobs;
    tiny_arch(&a);
    a.vocab_size = VOCAB;
    load_model(&a, 1);
    if (!model)
        return 1;
    TEST(every_answer_is_the_one_alone);
    TEST(requests_of_many_threads);
    TEST(a_common_prefix_is_computed_once);
    TEST(a_conversation_goes_on_where_it_was);
    TEST(several_answers_read_their_prompt_once);
    TEST(whoever_came_last_gives_way);
    TEST(old_prefixes_make_room);
    TEST(bad_requests_are_refused_at_once);
    TEST(a_full_queue_is_busy);
    TEST(places_go_in_order_of_arrival);
    TEST(close_cancels_what_is_left);
    TEST(logprobs_are_those_of_a_session);
    TEST(a_callback_ends_its_choice);
    TEST(rows_come_once_and_in_order);
    TEST(a_prompt_can_be_scored);
    TEST(some_requests_are_profiled);
    unload_model();
    TEST(other_kinds_of_models);
    TEST(a_pass_that_fails);
    for (int i = 0; i < JOBS; i++) {
        clb_text_free(&job[i].alone.text);
        clb_text_free(&job[i].got.text);
    }
    clb_text_free(&tables);
    return test_result();
}
