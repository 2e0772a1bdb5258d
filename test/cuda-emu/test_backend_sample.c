/* test_backend_sample.c - tokens that are chosen from candidates of the device are those that all
 * logits give; and what has travelled to the host for it, to the byte. */
#include "test/cuda-emu/backend_rig.h"

#include <math.h>

#include "lib/session/generate.h"
#include "lib/session/scheduler.h"

enum { N_TOKEN = 5, PROMPT = 9, MOST = 10 };

static const float tau = 0.8f;

/* One of each need: greedy, few, all of the device's, more than that, filters, all logits. */
static const struct clb_sampling settings[MOST] = {
    { .temperature = 0 },
    { .temperature = tau, .top_k = 5, .seed = 7 },
    { .temperature = 1.5f, .top_k = 40, .top_p = 0.9f, .seed = 8 },
    { .temperature = tau, .top_k = 128, .min_p = 0.05f, .seed = 9 },
    { .temperature = 2, .top_k = 300, .seed = 10 },
    { .temperature = 0, .repetition_penalty = 1.3f },
    { .temperature = 1, .top_p = 0.95f, .seed = 11 },
    { .temperature = 30, .top_k = 1, .seed = 12 },
    { .temperature = 1, .top_k = 7, .presence_penalty = 0.5f, .seed = 13 },
    { .temperature = 9, .top_k = 100, .top_p = 0.5f, .min_p = 0.01f, .seed = 14 },
};

/* Candidates that a row has; 0: it is whole. */
static uint32_t candidates_of(const struct clb_sampling *o, uint32_t n_vocab)
{
    bool penalises = o->repetition_penalty != 0 || o->presence_penalty != 0;
    uint32_t n = o->temperature == 0 ? 1 : o->top_k;

    return penalises || n > 128 ? 0 : n < n_vocab ? n : n_vocab;
}

static uint64_t bytes_of(const struct clb_sampling *o, uint32_t n_vocab, bool whole)
{
    uint32_t n = candidates_of(o, n_vocab);

    return n && !whole ? 8 * n : 4 * n_vocab;
}

/* -- models ------------------------------------------------------------------------------------ */

static struct tiny file;
static struct clb_model *model;
static uint32_t n_vocab;

/* Vocabularies end in the middle of a tile; the larger one has more slices than one. */
static bool open_model(uint32_t vocab, uint32_t n_device)
{
    struct clb_model_options o = { .n_thread = 1,
                                   .backend = "cuda",
                                   .devices = { n_device, { 0, 1 } } };
    struct clb_err err = { 0 };
    struct clb_arch a;

    tiny_arch(&a);
    a.vocab_size = n_vocab = vocab;
    a.logit_scale = 3;
    a.logit_softcap = 2;
    CHECK(tiny_build(&file, &(struct tiny_options){
                                .arch = &a, .seed = 4, .expert = CLB_INT8, .dense = CLB_F16 }));
    struct clb_model_source from = { .bytes = file.bytes, .n = file.n };
    bool ok = clb_model_open(&model, &from, &o, &err);
    if (!ok)
        printf("# %s\n", err.text);
    CHECK(ok);
    return ok;
}

static void close_model(void)
{
    clb_model_close(model);
    tiny_free(&file);
}

static struct clb_batch *open_batch(uint32_t n_session)
{
    const struct clb_batch_options o = { .max_sessions = n_session,
                                         .context = 64,
                                         .kv_default = true };
    struct clb_err err = { 0 };
    struct clb_batch *b;

    if (!clb_batch_open(&b, model, &o, &err))
        printf("# %s\n", err.text);
    return b;
}

static uint64_t to_host(void)
{
    return emu_copied(cudaMemcpyDeviceToHost);
}

static bool step(struct clb_batch *b)
{
    struct clb_err err = { 0 };
    size_t n_ready;
    bool ok = clb_batch_step(b, &n_ready, &err);

    if (!ok)
        printf("# %s\n", err.text);
    CHECK(ok);
    return ok;
}

/* -- sessions ---------------------------------------------------------------------------------- */

/* n sessions decode together, the one in place i with settings[order[i]]. Returns the bytes that
 * travelled beside logits and candidates. */
static uint64_t decode(int32_t token[][N_TOKEN], const uint32_t *order, uint32_t n, bool whole)
{
    struct clb_batch *b = open_batch(n);
    struct clb_session *s[MOST];
    struct clb_err err = { 0 };
    uint64_t before = to_host(), want = 0;

    for (uint32_t i = 0; i < n; i++) {
        CHECK(clb_session_open(&s[i], b, &settings[order[i]], &err));
        CHECK(clb_session_feed(s[i], ids + i, PROMPT, &err));
        s[i]->reads_logits = whole;
    }
    for (int t = 0; t < N_TOKEN && step(b); t++)
        for (uint32_t i = 0; i < n; i++) {
            want += bytes_of(&settings[order[i]], n_vocab, whole);
            CHECK(clb_session_sample(s[i], &token[i][t], &err));
            CHECK(clb_session_feed(s[i], &token[i][t], 1, &err));
        }
    clb_batch_close(b);
    return to_host() - before - want;
}

static void tokens_are_those_of_all_logits(void)
{
    static const uint32_t all[MOST] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    static int32_t want[MOST][N_TOKEN], got[MOST][N_TOKEN];

    if (!open_model(99, 1))
        return;
    CHECK_EQ(decode(want, all, MOST, true), 0);
    uint64_t launched = emu_calls("cudaGraphLaunch");
    CHECK_EQ(decode(got, all, MOST, false), 0);
    CHECK_EQ(emu_calls("cudaGraphLaunch") - launched, N_TOKEN - 2);
    CHECK(!memcmp(want, got, sizeof want));
    emu_streams_late(true, 5);
    CHECK_EQ(decode(got, all, 4, false), 0);
    emu_streams_late(false, 0);
    CHECK(!memcmp(want, got, 4 * sizeof *want));
    close_model();
}

static void vocabularies_of_several_slices(void)
{
    static const uint32_t order[] = { 3, 0, 4 };
    static int32_t want[3][N_TOKEN], got[3][N_TOKEN];

    if (!open_model(4100, 1))
        return;
    CHECK_EQ(decode(want, order, 3, true), 0);
    CHECK_EQ(decode(got, order, 3, false), 0);
    CHECK(!memcmp(want, got, sizeof want));
    close_model();
}

/* With experts elsewhere there are no graphs, and the host learns the routing. */
static void on_two_devices(void)
{
    static const uint32_t order[] = { 1, 5, 0, 2 };
    static int32_t want[4][N_TOKEN], got[4][N_TOKEN];

    emu_devices(2, (size_t)1 << 30);
    if (open_model(99, 2)) {
        uint64_t launched = emu_calls("cudaGraphLaunch");
        uint64_t routes = decode(want, order, 4, true);
        CHECK_EQ(decode(got, order, 4, false), routes);
        CHECK_EQ(emu_calls("cudaGraphLaunch"), launched);
        CHECK(!memcmp(want, got, sizeof want));
        close_model();
    }
    emu_devices(1, (size_t)1 << 30);
}

/* -- one graph, other needs -------------------------------------------------------------------- */

/* How many candidates a row has is no part of the graph; that there are any is. */
static void graphs_serve_other_settings(void)
{
    static const uint32_t phase[3][2] = { { 0, 1 }, { 2, 0 }, { 5, 5 } }; /* settings */
    struct clb_err err = { 0 };
    struct clb_session *s[2];

    if (!open_model(99, 1))
        return;
    struct clb_batch *b = open_batch(2);
    for (int i = 0; i < 2; i++) {
        CHECK(clb_session_open(&s[i], b, &settings[0], &err));
        CHECK(clb_session_feed(s[i], ids + i, PROMPT, &err));
    }
    step(b);
    uint64_t made = emu_calls("cudaGraphInstantiateWithFlags");
    for (int p = 0; p < 3; p++)
        for (int t = 0; t < 4; t++) {
            int32_t token[2], again;
            uint64_t before = to_host(), want = 0;

            for (int i = 0; i < 2; i++) {
                s[i]->sampling = settings[phase[p][i]];
                want += bytes_of(&s[i]->sampling, n_vocab, false);
                CHECK(clb_session_feed(s[i], ids + t, 1, &err));
            }
            step(b);
            CHECK_EQ(to_host() - before, want);
            for (int i = 0; i < 2; i++) {
                CHECK(clb_session_sample(s[i], &token[i], &err));
                CHECK(clb_session_logits(s[i], &err) && s[i]->logits);
                CHECK(clb_session_sample(s[i], &again, &err) && again == token[i]);
                s[i]->reads_logits = false;
            }
        }
    CHECK_EQ(emu_calls("cudaGraphInstantiateWithFlags") - made, 2);
    clb_batch_close(b);
    close_model();
}

/* -- whole rows, later ------------------------------------------------------------------------- */

/* The row that stayed on the device is the one that would have come. */
static void rows_are_fetched(void)
{
    static float want[MOST][99];
    struct clb_err err = { 0 };
    struct clb_session *s;
    int32_t id, token[3];
    float p;

    if (!open_model(99, 1))
        return;
    struct clb_batch *b = open_batch(1);
    CHECK(clb_session_open(&s, b, &settings[0], &err));
    CHECK(clb_session_feed(s, ids, PROMPT, &err));
    CHECK(!clb_session_logits(s, &err) && err.code == CLB_USAGE);
    s->reads_logits = true;
    for (int t = 0; t < 3; t++) {
        step(b);
        memcpy(want[t], s->logits, sizeof *want);
        CHECK(clb_session_sample(s, &token[t], &err));
        CHECK(clb_session_feed(s, &token[t], 1, &err));
    }
    clb_session_close(s);
    CHECK(clb_session_open(&s, b, &settings[0], &err));
    CHECK(clb_session_feed(s, ids, PROMPT, &err));
    uint64_t before = to_host();
    step(b);
    CHECK_EQ(to_host() - before, 8);
    emu_fail("cudaMemcpyAsync", 1, cudaErrorUnknown);
    CHECK(!clb_session_logits(s, &err));
    CHECK_HAS(err.text, "Logits");
    CHECK(clb_session_sample(s, &id, &err) && id == token[0]);
    CHECK(clb_session_logprob(s, id, &p, &err)); /* which fetches it */
    CHECK(p == clb_logprob(want[0], 99, (uint32_t)id));
    CHECK(!memcmp(clb_session_logits(s, &err), want[0], sizeof *want));
    CHECK_EQ(to_host() - before, 8 + sizeof *want);
    for (int t = 1; t < 3; t++) { /* it comes by itself now */
        CHECK(clb_session_feed(s, &id, 1, &err));
        step(b);
        CHECK(s->logits && !memcmp(s->logits, want[t], sizeof *want));
        CHECK(clb_session_sample(s, &id, &err) && id == token[t]);
    }
    CHECK_EQ(to_host() - before, 8 + 3 * sizeof *want);
    CHECK(clb_session_rewind(s, PROMPT, &err) && !clb_session_logits(s, &err));
    clb_batch_close(b);
    close_model();
}

struct rows {
    uint32_t n;
    float row[PROMPT][99];
};

static void keep_row(void *arg, size_t position, const float *logits)
{
    struct rows *r = arg;

    CHECK_EQ(position, r->n);
    memcpy(r->row[r->n++], logits, sizeof *r->row);
}

/* All rows of one session, candidates of those around it. */
static void rows_for_callbacks(void)
{
    static struct rows want, got;
    struct clb_session *s[3];
    struct clb_err err = { 0 };
    int32_t id[2][3];

    if (!open_model(99, 1))
        return;
    for (int mixed = 0; mixed < 2; mixed++) {
        struct clb_batch *b = open_batch(3);
        struct rows *r = mixed ? &got : &want;

        for (int i = 0; i < 3; i++) {
            CHECK(clb_session_open(&s[i], b, &settings[i], &err));
            CHECK(clb_session_feed(s[i], ids, PROMPT, &err));
            s[i]->reads_logits = !mixed;
        }
        s[1]->on_rows = keep_row;
        s[1]->on_rows_arg = r;
        uint64_t before = to_host();
        step(b);
        CHECK_EQ(r->n, PROMPT);
        CHECK_EQ(to_host() - before,
                 mixed ? 8 + PROMPT * sizeof *r->row + 40 * 8 : (PROMPT + 2) * sizeof *r->row);
        for (int i = 0; i < 3; i++)
            CHECK(clb_session_sample(s[i], &id[mixed][i], &err));
        clb_batch_close(b);
    }
    CHECK(!memcmp(id[0], id[1], sizeof *id));
    CHECK(!memcmp(want.row, got.row, sizeof want.row));
    close_model();
}

/* -- loops of the library ---------------------------------------------------------------------- */

static void generation(void)
{
    const struct clb_generation_job job = {
        .ids = ids, .n = PROMPT, .max_new = N_TOKEN, .ignore_eos = true
    };
    struct clb_err err = { 0 };
    enum clb_finish finish;
    struct clb_session *s;
    int32_t want[N_TOKEN];

    if (!open_model(99, 1))
        return;
    struct clb_batch *b = open_batch(1);
    for (int mixed = 0; mixed < 2; mixed++) {
        uint64_t before = to_host();

        CHECK(clb_session_open(&s, b, &settings[1], &err));
        s->reads_logits = !mixed;
        CHECK(clb_generate(s, &job, &finish, &err));
        CHECK_EQ(to_host() - before, N_TOKEN * bytes_of(&settings[1], 99, !mixed));
        if (mixed)
            CHECK(!memcmp(s->token + PROMPT, want, sizeof want));
        memcpy(want, s->token + PROMPT, sizeof want);
        clb_session_close(s);
    }
    clb_batch_close(b);
    close_model();
}

struct heard {
    uint32_t n;
    int32_t id[N_TOKEN];
};

static int hear(const struct clb_token_event *e)
{
    struct heard *h = e->to->arg;

    h->id[h->n++] = e->id;
    return 0;
}

/* Requests of every kind side by side: log probabilities need all logits, and show the tokens. */
static void serve(struct heard heard[MOST], bool logprobs)
{
    const struct clb_scheduler_options o = {
        .batch = { .max_sessions = 4, .context = 64, .kv_default = true, .prefill_chunk = 16 }
    };
    struct clb_scheduler *s;
    struct clb_err err = { 0 };
    uint64_t ticket, before = to_host(), want = 0;
    size_t n_left = 1;

    CHECK(clb_scheduler_open(&s, model, &o, &err));
    for (uint32_t i = 0; i < MOST; i++) {
        const struct clb_ask ask = {
            .ids = ids + i,
            .n_ids = PROMPT,
            .sampling = settings[i],
            .max_new = 1 + i % N_TOKEN,
            .ignore_eos = true,
            .ids_only = true,
            .logprobs = logprobs,
            .to = { .on_token = hear, .arg = &heard[i] },
        };
        heard[i].n = 0;
        want += ask.max_new * bytes_of(&settings[i], n_vocab, logprobs);
        CHECK(clb_scheduler_submit(s, &ask, &ticket, &err));
    }
    while (n_left > 0 && clb_scheduler_step(s, &n_left, &err))
        ;
    CHECK_EQ(n_left, 0);
    CHECK_EQ(to_host() - before, want);
    clb_scheduler_close(s);
}

static void scheduler(void)
{
    static struct heard want[MOST], got[MOST];

    if (!open_model(99, 1))
        return;
    serve(want, true);
    serve(got, false);
    CHECK(!memcmp(want, got, sizeof want));
    CHECK_EQ(got[4].n, 5);
    close_model();
}

int main(void)
{
    rig_tokens(ids, RIG_CONTEXT, VOCAB, 5);
    TEST(tokens_are_those_of_all_logits);
    TEST(vocabularies_of_several_slices);
    TEST(on_two_devices);
    TEST(graphs_serve_other_settings);
    TEST(rows_are_fetched);
    TEST(rows_for_callbacks);
    TEST(generation);
    TEST(scheduler);
    TEST(nothing_leaks);
    return test_result();
}
