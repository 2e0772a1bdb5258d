/* Sessions and batches: the bits of a sequence do not depend on who shares its passes, how its
 * prompt is cut, where its experts come from, or what it did before. */
#include <pthread.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/session/batch_impl.h"
#include "lib/session/generate.h"
#include "lib/session/infer.h"
#include "test/check.h"
#include "test/tiny_model.h"
#include "test/unit/odd_fp.h"

enum { VOCAB = 99, LONGEST = 200, ROW = VOCAB * sizeof(float) };

static struct tiny tiny;
static struct clb_err err;
static int32_t prompt[LONGEST];
static float expected[LONGEST][VOCAB]; /* logits of every position of `prompt` */

static struct clb_model *open_model(const struct clb_model_options *o)
{
    struct clb_model *m = NULL;

    if (!clb_model_open(&m, &(struct clb_model_source){ .bytes = tiny.bytes, .n = tiny.n }, o,
                        &err))
        printf("# %s\n", err.text);
    return m;
}

static struct clb_model *plain_model(void)
{
    return open_model(&(struct clb_model_options){ .n_thread = 1 });
}

static struct clb_batch *open_batch(struct clb_model *m, const struct clb_batch_options *o)
{
    struct clb_batch *b = NULL;

    if (!clb_batch_open(&b, m, o, &err))
        printf("# %s\n", err.text);
    return b;
}

static struct clb_session *open_session(struct clb_batch *b)
{
    struct clb_session *s = NULL;

    if (!clb_session_open(&s, b, &(struct clb_sampling){ 0 }, &err))
        printf("# %s\n", err.text);
    return s;
}

/* Steps until nobody has work. */
static void finish(struct clb_batch *b, struct clb_session *s)
{
    size_t n;

    while (s->kv.length < s->n_token)
        CHECK(clb_batch_step(b, &n, &err));
}

static const struct clb_batch_options two = { .max_sessions = 2,
                                              .context = LONGEST,
                                              .kv_default = true };

static void infer_equals_sessions(void)
{
    struct clb_model *m = plain_model();
    struct clb_batch *b = open_batch(m, &two);
    struct clb_session *s = open_session(b);

    CHECK(clb_infer(m,
                    &(struct clb_infer_job){
                        .ids = prompt, .logits = expected[0], .batch = 1, .length = LONGEST },
                    NULL, &err));
    for (uint32_t n = 0; n < LONGEST; n += n < 70 ? 1 : 13) {
        CHECK(clb_session_feed(s, prompt + s->n_token, n + 1 - s->n_token, &err));
        CHECK(s->logits == NULL || n > 0);
        finish(b, s);
        CHECK(s->logits && !memcmp(s->logits, expected[n], ROW));
    }
    clb_batch_close(b);
    clb_model_close(m);
}

static void infer_of_many_sequences_equals_one_each(void)
{
    enum { BATCH = 5, LENGTH = 199 }; /* two passes, cut inside a sequence; four places for five */
    struct clb_model *m = plain_model();
    static int32_t ids[BATCH][LENGTH];
    static float all[BATCH][LENGTH][VOCAB], one[LENGTH][VOCAB];

    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < LENGTH; i++)
            ids[b][i] = (b * 31 + i * 7 + b * i) % VOCAB;
    CHECK(clb_infer(m,
                    &(struct clb_infer_job){
                        .ids = ids[0], .logits = all[0][0], .batch = BATCH, .length = LENGTH },
                    NULL, &err));
    for (int b = 0; b < BATCH; b++) {
        CHECK(clb_infer(m,
                        &(struct clb_infer_job){
                            .ids = ids[b], .logits = one[0], .batch = 1, .length = LENGTH },
                        NULL, &err));
        CHECK(!memcmp(all[b], one, sizeof one));
    }
    CHECK(clb_infer(m,
                    &(struct clb_infer_job){
                        .ids = ids[0], .logits = all[0][0], .batch = BATCH * LENGTH, .length = 1 },
                    NULL, &err)); /* as many sequences as rows */
    CHECK(!memcmp(all[0][0], one[0], ROW) == (ids[0][0] == ids[BATCH - 1][0]));
    for (uint32_t k = 0; k < CLB_POOL_KINDS; k++)
        if (k != CLB_POOL_WEIGHTS)
            CHECK_EQ(m->ledger[k].used, 0);
    CHECK_EQ(m->committed, 0);
    clb_model_close(m);
}

static void prompts_cut_anywhere_give_the_same_bits(void)
{
    static const uint32_t chunk[] = { 1, 7, 63, 64, 65, 500 };

    for (size_t i = 0; i < sizeof chunk / sizeof *chunk; i++) {
        struct clb_model *m = plain_model();
        struct clb_batch *b =
            open_batch(m, &(struct clb_batch_options){
                              .context = LONGEST, .prefill_chunk = chunk[i], .kv_default = true });
        struct clb_session *s = open_session(b);
        size_t steps = 0, n;

        CHECK(clb_session_feed(s, prompt, LONGEST, &err));
        for (; s->kv.length < LONGEST; steps++) {
            CHECK(clb_batch_step(b, &n, &err));
            CHECK_EQ(n, s->kv.length == LONGEST);
        }
        CHECK_EQ(steps, (LONGEST + chunk[i] - 1) / chunk[i]);
        CHECK(s->logits && !memcmp(s->logits, expected[LONGEST - 1], ROW));
        clb_batch_close(b);
        clb_model_close(m);
    }
}

/* Six sequences of different lengths, fed at different times, some decoding while others prefill.
 */
static void a_crowd_equals_each_alone(void)
{
    enum { CROWD = 6 };
    static const uint32_t length[CROWD] = { 1, 5, 64, 100, 190, 33 },
                          start[CROWD] = { 0, 3, 0, 1, 2, 6 };
    struct clb_model *m = open_model(&(struct clb_model_options){ .n_thread = 2 });
    struct clb_batch *b = open_batch(m, &(struct clb_batch_options){ .max_sessions = CROWD,
                                                                     .context = LONGEST,
                                                                     .prefill_chunk = 20,
                                                                     .kv_default = true });
    struct clb_session *s[CROWD] = { 0 };
    size_t n;

    for (uint32_t step = 0; step < 60; step++) {
        for (uint32_t i = 0; i < CROWD; i++) {
            if (step == start[i]) {
                s[i] = open_session(b);
                CHECK(clb_session_feed(s[i], prompt, length[i], &err));
            }
            if (s[i] && s[i]->logits && s[i]->n_token < LONGEST)
                CHECK(clb_session_feed(s[i], prompt + s[i]->n_token, 1, &err));
        }
        CHECK(clb_batch_step(b, &n, &err));
        size_t ready = 0;
        for (uint32_t i = 0; i < CROWD; i++)
            if (s[i] && s[i]->logits) {
                ready++;
                CHECK_EQ(s[i]->kv.length, s[i]->n_token);
                CHECK(!memcmp(s[i]->logits, expected[s[i]->kv.length - 1], ROW));
            }
        CHECK_EQ(n, ready);
    }
    for (uint32_t i = 0; i < CROWD; i++)
        CHECK(s[i]->kv.length > length[i]);
    clb_batch_close(b);
    clb_model_close(m);
}

static void rows_are_shared_fairly(void)
{
    struct clb_model *m = plain_model();
    struct clb_batch *b = open_batch(
        m, &(struct clb_batch_options){
               .max_sessions = 4, .context = LONGEST, .prefill_chunk = 30, .kv_default = true });
    struct clb_session *decoding = open_session(b), *a = open_session(b), *c = open_session(b),
                       *shorty = open_session(b);
    size_t n;

    CHECK(clb_session_feed(decoding, prompt, 1, &err));
    CHECK(clb_session_feed(a, prompt, 100, &err));
    CHECK(clb_session_feed(c, prompt, 100, &err));
    CHECK(clb_session_feed(shorty, prompt, 4, &err));
    CHECK(clb_batch_step(b, &n, &err));
    CHECK_EQ(n, 2); /* the decoding one and the short prompt */
    CHECK_EQ(decoding->kv.length, 1);
    CHECK_EQ(shorty->kv.length, 4);
    CHECK_EQ(a->kv.length, 13); /* 10, and half of what the short one left */
    CHECK_EQ(c->kv.length, 13);
    clb_batch_close(b);

    b = open_batch(
        m, &(struct clb_batch_options){
               .max_sessions = 3, .context = LONGEST, .prefill_chunk = 1, .kv_default = true });
    a = open_session(b);
    c = open_session(b);
    CHECK(clb_session_feed(a, prompt, 50, &err) && clb_session_feed(c, prompt, 50, &err));
    for (int i = 0; i < 30; i++)
        CHECK(clb_batch_step(b, &n, &err));
    CHECK(a->kv.length >= 10 &&
          c->kv.length >= 10); /* one row a step, nobody waits for the other's end */
    clb_batch_close(b);
    clb_model_close(m);
}

static void rewind_equals_fresh(void)
{
    static const uint32_t back[] = { 150, 128, 127, 64, 63, 1, 0 };
    struct clb_model *m = plain_model();
    struct clb_batch *b = open_batch(m, &two);
    struct clb_session *s = open_session(b);
    int32_t other[LONGEST];

    for (uint32_t i = 0; i < LONGEST; i++)
        other[i] = (prompt[i] + 1) % VOCAB;
    for (size_t i = 0; i < sizeof back / sizeof *back; i++) {
        CHECK(clb_session_feed(s, other + s->n_token, LONGEST - s->n_token,
                               &err)); /* wrong from back[i - 1] on */
        finish(b, s);
        CHECK(clb_session_rewind(s, back[i], &err));
        CHECK(s->logits == NULL);
        CHECK_EQ(s->kv.length, back[i]);
        CHECK(clb_session_rewind(s, 0, &err));
        CHECK(clb_session_feed(s, prompt, LONGEST, &err));
        finish(b, s);
        CHECK(clb_session_rewind(s, back[i], &err));
        CHECK(clb_session_feed(s, prompt + back[i], LONGEST - back[i], &err));
        finish(b, s);
        CHECK(s->logits && !memcmp(s->logits, expected[LONGEST - 1], ROW));
        CHECK(clb_session_rewind(s, LONGEST, &err) && s->logits); /* nothing to forget */
        CHECK(clb_session_rewind(s, back[i], &err));
    }
    CHECK(!clb_session_rewind(s, 1, &err));
    CHECK_EQ(err.code, CLB_USAGE);
    CHECK_HAS(err.text, "cannot rewind to 1");
    clb_batch_close(b);
    clb_model_close(m);
}

struct rows {
    size_t next, bad;
};

static void check_row(void *arg, size_t position, const float *logits)
{
    struct rows *r = arg;

    r->bad += position != r->next++ || memcmp(logits, expected[position], ROW);
}

static void every_row_is_delivered_in_order(void)
{
    static const uint32_t limit[] = { 0, 1, 10 };

    for (size_t i = 0; i < 3; i++) {
        struct clb_model *m = plain_model();
        struct clb_batch *b = open_batch(m, &(struct clb_batch_options){ .max_sessions = 3,
                                                                         .context = LONGEST,
                                                                         .logit_rows = limit[i],
                                                                         .kv_default = true });
        struct clb_session *s[3];
        struct rows rows[2] = { { 0 } };
        size_t n, steps = 0;

        for (int k = 0; k < 3; k++) {
            s[k] = open_session(b);
            CHECK(clb_session_feed(s[k], prompt, k == 1 ? 40 : LONGEST, &err));
        }
        s[0]->on_rows = s[1]->on_rows = check_row;
        s[0]->on_rows_arg = &rows[0];
        s[1]->on_rows_arg = &rows[1];
        for (; s[0]->kv.length < LONGEST || s[1]->kv.length < 40; steps++)
            CHECK(clb_batch_step(b, &n, &err));
        CHECK_EQ(rows[0].next, LONGEST);
        CHECK_EQ(rows[1].next, 40);
        CHECK_EQ(rows[0].bad + rows[1].bad, 0);
        CHECK(steps >= (limit[i] ? LONGEST / (limit[i] + 1) : 1));
        CHECK(!memcmp(s[0]->logits, expected[LONGEST - 1], ROW));
        clb_batch_close(b);
        clb_model_close(m);
    }
}

static void an_expert_cache_changes_no_bit(void)
{
    char path[] = "/tmp/colibri-session-XXXXXX";
    struct clb_model *m = NULL;
    struct clb_memory_plan plan;
    static float got[LONGEST][VOCAB];

    CHECK(tiny_save(&tiny, path));
    const struct clb_model_source from = { .path = path };
    CHECK(clb_model_open(&m, &from,
                         &(struct clb_model_options){ .n_thread = 1, .memory = 64 << 20 }, &err));
    CHECK(clb_batch_plan(&plan, m, &two, &err));
    uint64_t least =
        m->dense_bytes + clb_experts_least_bytes(&m->reader) + clb_plan_run_bytes(&plan);
    clb_model_close(m);

    CHECK(clb_model_open(&m, &from, &(struct clb_model_options){ .n_thread = 1, .memory = least },
                         &err));
    struct clb_batch *b = open_batch(m, &two);
    struct clb_session *s = open_session(b);
    CHECK_EQ(clb_experts_max_get(m->experts), 2);
    CHECK(clb_session_feed(s, prompt, LONGEST, &err));
    finish(b, s);
    CHECK(!memcmp(s->logits, expected[LONGEST - 1], ROW));
    uint64_t held = 0;
    for (int k = 0; k < CLB_POOL_KINDS; k++)
        held += m->ledger[k].reserved;
    CHECK(held <= least);
    struct clb_batch *second = NULL;
    CHECK(!clb_batch_open(&second, m, &two, &err)); /* there is no room for another one */
    CHECK_EQ(err.code, CLB_NO_SPACE);
    clb_batch_close(b);
    CHECK(clb_infer(
        m, &(struct clb_infer_job){ .ids = prompt, .logits = got[0], .batch = 1, .length = 20 },
        NULL, &err));
    CHECK(!memcmp(got, expected, 20 * ROW));
    clb_model_close(m);
    unlink(path);
}

static void what_does_not_fit_is_refused(void)
{
    struct clb_model *m = plain_model();
    struct clb_batch *b = open_batch(
        m, &(struct clb_batch_options){
               .max_sessions = 2, .context = 150, .kv_tokens = 192, .kv_default = true });
    struct clb_session *s = open_session(b), *t = open_session(b), *none;
    int32_t bad[3] = { 1, VOCAB, -1 };

    CHECK(!clb_session_open(&none, b, &(struct clb_sampling){ 0 }, &err) && !none);
    CHECK_HAS(err.text, "all 2 sessions");
    CHECK(!clb_session_feed(s, prompt, 151, &err));
    CHECK_EQ(err.code, CLB_USAGE);
    CHECK_HAS(err.text, "151 more tokens do not fit: the context is 150");
    CHECK(!clb_session_feed(s, bad, 3, &err));
    CHECK_EQ(err.code, CLB_USAGE);
    CHECK_HAS(err.text, "token 1: id 99");
    CHECK_EQ(s->n_token, 0);
    CHECK(clb_session_feed(s, prompt, 100, &err)); /* two blocks of three */
    CHECK(clb_session_feed(t, prompt, 64, &err));
    CHECK(!clb_session_feed(t, prompt, 1, &err));
    CHECK_EQ(err.code, CLB_NO_SPACE);
    CHECK_EQ(t->n_token, 64);
    finish(b, t);
    clb_session_close(s);
    CHECK(clb_session_feed(t, prompt + 64, 1, &err)); /* room again */
    finish(b, t);
    CHECK(!memcmp(t->logits, expected[64], ROW));
    clb_batch_close(b);

    CHECK(!clb_batch_open(&b, m, &(struct clb_batch_options){ .context = 513 }, &err));
    CHECK_HAS(err.text, "at most 512 positions");
    CHECK(!clb_batch_open(&b, m, &(struct clb_batch_options){ .experts_per_token = 9 }, &err));
    CHECK_EQ(err.code, CLB_USAGE);
    CHECK_HAS(err.text, "at most 8");
    CHECK(!clb_batch_open(
        &b, m, &(struct clb_batch_options){ .max_sessions = UINT32_MAX, .context = 1 }, &err));
    CHECK_HAS(err.text, "at most 65536");
    CHECK(!b);
    clb_model_close(m);
}

static void experts_per_token_can_change(void)
{
    struct clb_model *m = plain_model();
    static float with[4][VOCAB];
    struct clb_infer_job job = { .ids = prompt, .logits = with[0], .batch = 1, .length = 4 };

    job.top_k = 2;
    CHECK(clb_infer(m, &job, NULL, &err) && !memcmp(with, expected, sizeof with));
    job.top_k = 8;
    CHECK(clb_infer(m, &job, NULL, &err) && memcmp(with, expected, sizeof with));
    struct clb_batch *b =
        open_batch(m, &(struct clb_batch_options){ .experts_per_token = 8, .kv_default = true });
    struct clb_session *s = open_session(b);
    CHECK(clb_session_feed(s, prompt, 4, &err));
    finish(b, s);
    CHECK(!memcmp(s->logits, with[3], ROW));
    clb_batch_close(b);
    clb_model_close(m);
}

struct collected {
    int32_t id[LONGEST];
    uint32_t n, stop_at;
};

static int collect(void *arg, int32_t id)
{
    struct collected *c = arg;

    c->id[c->n++] = id;
    return c->n == c->stop_at;
}

static void generation_stops_for_the_right_reason(void)
{
    struct clb_model *m = plain_model();
    struct clb_batch *b =
        open_batch(m, &(struct clb_batch_options){ .context = 40, .kv_default = true });
    struct clb_session *s = open_session(b);
    struct collected c = { .n = 0 };
    struct clb_generation_job job = {
        .ids = prompt, .n = 10, .max_new = 5, .ignore_eos = true, .fn = collect, .arg = &c
    };
    enum clb_finish why;

    CHECK(clb_generate(s, &job, &why, &err));
    CHECK_EQ(why, CLB_FINISH_LENGTH);
    CHECK_EQ(c.n, 5);
    CHECK_EQ(s->n_token, 15);
    CHECK_EQ(s->kv.length, 14);
    CHECK(!memcmp(s->token + 10, c.id, 5 * sizeof *c.id));
    int32_t first[5];
    memcpy(first, c.id, sizeof first);

    job.n = 0; /* goes on where it stopped */
    job.max_new = 0;
    CHECK(clb_generate(s, &job, &why, &err));
    CHECK_EQ(why, CLB_FINISH_CONTEXT);
    CHECK_EQ(s->n_token, 40);
    CHECK_EQ(c.n, 30);

    m->reader.generation.eos_token[0] = first[3];
    CHECK(clb_session_rewind(s, 0, &err));
    c = (struct collected){ .n = 0 };
    job = (struct clb_generation_job){ .ids = prompt, .n = 10, .fn = collect, .arg = &c };
    CHECK(clb_generate(s, &job, &why, &err));
    CHECK_EQ(why, CLB_FINISH_EOS);
    CHECK(c.n <= 3 && !memcmp(c.id, first, c.n * sizeof *first));
    CHECK_EQ(s->n_token, 10 + c.n);

    CHECK(clb_session_rewind(s, 0, &err));
    c = (struct collected){ .n = 0 };
    job.ignore_eos = true;
    job.max_new = 5;
    CHECK(clb_generate(s, &job, &why, &err));
    CHECK_EQ(why, CLB_FINISH_LENGTH);
    CHECK(c.n == 5 && !memcmp(c.id, first, sizeof first));

    CHECK(clb_session_rewind(s, 0, &err));
    c = (struct collected){ .stop_at = 2 };
    CHECK(clb_generate(s, &job, &why, &err));
    CHECK_EQ(why, CLB_FINISH_CALLBACK);
    CHECK_EQ(c.n, 2);
    CHECK_EQ(s->n_token, 12);
    CHECK(clb_session_rewind(s, 0, &err));
    CHECK(!clb_generate(s, &(struct clb_generation_job){ .n = 0 }, &why, &err));
    CHECK_EQ(err.code, CLB_USAGE);
    clb_batch_close(b);
    clb_model_close(m);
}

/* The same seed gives the same text alone and in company. */
static void sampling_does_not_depend_on_company(void)
{
    struct clb_model *m = plain_model();
    struct clb_sampling how = {
        .temperature = 1.2f, .top_p = 0.95f, .repetition_penalty = 1.1f, .seed = 5
    };
    int32_t alone[30], id;
    size_t n;

    for (int company = 0; company < 2; company++) {
        struct clb_batch *b =
            open_batch(m, &(struct clb_batch_options){
                              .max_sessions = 3, .context = LONGEST, .kv_default = true });
        struct clb_session *s, *other;
        CHECK(clb_session_open(&s, b, &how, &err));
        CHECK(!clb_session_sample(s, &id, &err) && id == -1);
        for (int k = 0; k < 2 * company; k++) {
            CHECK(clb_session_open(&other, b, &(struct clb_sampling){ .temperature = 1, .seed = 5 },
                                   &err));
            CHECK(clb_session_feed(other, prompt + k, 150, &err));
        }
        CHECK(clb_session_feed(s, prompt, 6, &err));
        for (int i = 0; i < 30; i++) {
            do
                CHECK(clb_batch_step(b, &n, &err));
            while (!s->logits);
            CHECK(clb_session_sample(s, &id, &err));
            int32_t again;
            CHECK(clb_session_sample(s, &again, &err) && again == id);
            if (company)
                CHECK_EQ(id, alone[i]);
            alone[i] = id;
            CHECK(clb_session_feed(s, &id, 1, &err));
        }
        clb_batch_close(b);
    }
    clb_model_close(m);
}

static void floating_point_state_of_the_caller(void)
{
    const struct clb_sampling how = { .temperature = 1.2f, .top_p = 0.95f, .seed = 5 };
    int32_t id[2];
    float p[2];

    for (int odd = 0; odd < 2; odd++) {
        if (odd)
            odd_fp_set();
        struct clb_model *m = plain_model();
        struct clb_batch *b = open_batch(m, &two);
        struct clb_session *s;
        bool ok = clb_session_open(&s, b, &how, &err) && clb_session_feed(s, prompt, 90, &err);
        finish(b, s);
        ok = ok && !memcmp(s->logits, expected[89], ROW);
        ok = ok && clb_session_sample(s, &id[odd], &err) &&
             clb_session_logprob(s, id[odd], &p[odd], &err);
        clb_batch_close(b);
        clb_model_close(m);
        bool kept = !odd || odd_fp_reset();
        CHECK(ok && kept);
    }
    CHECK(id[0] == id[1] && !memcmp(&p[0], &p[1], sizeof p[0]));
}

static void plan_is_what_is_held(void)
{
    struct clb_model *m = plain_model();
    const struct clb_batch_options o = { .max_sessions = 5, .context = 300, .kv_default = true };
    struct clb_memory_plan plan;

    CHECK(clb_batch_plan(&plan, m, &o, &err));
    struct clb_batch *b = open_batch(m, &o);
    CHECK_EQ(m->ledger[CLB_POOL_HOST].used, plan.host_buffers);
    CHECK_EQ(m->ledger[CLB_POOL_ACTIVATIONS].reserved, plan.kv_cache + plan.activations);
    CHECK_EQ(plan.total, plan.weights + plan.kv_cache + plan.activations + plan.host_buffers);
    clb_batch_close(b);
    CHECK_EQ(m->ledger[CLB_POOL_HOST].used, 0);
    CHECK_EQ(m->ledger[CLB_POOL_ACTIVATIONS].used, 0);
    clb_model_close(m);
}

struct caller {
    struct clb_model *m;
    uint32_t length, bad;
};

static void *call(void *arg)
{
    struct caller *c = arg;
    struct clb_err mine;
    static _Thread_local float got[LONGEST][VOCAB];

    for (int i = 0; i < 4; i++)
        c->bad += !clb_infer(c->m,
                             &(struct clb_infer_job){
                                 .ids = prompt, .logits = got[0], .batch = 1, .length = c->length },
                             NULL, &mine) ||
                  memcmp(got, expected, c->length * ROW);
    return NULL;
}

static void threads_take_turns_and_get_the_same_bits(void)
{
    struct clb_model *m = open_model(&(struct clb_model_options){ .n_thread = 2 });
    pthread_t thread[4];
    struct caller caller[4];

    for (uint32_t i = 0; i < 4; i++) {
        caller[i] = (struct caller){ m, 30 + 40 * i, 0 };
        CHECK(!pthread_create(&thread[i], NULL, call, &caller[i]));
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        CHECK_EQ(caller[i].bad, 0);
    }
    clb_model_close(m);
}

static void two_models_live_side_by_side(void)
{
    struct clb_model *a = plain_model(), *c = open_model(&(struct clb_model_options){
                                             .n_thread = 2, .cpu_level = "scalar" });
    struct clb_batch *x = open_batch(a, &two), *y = open_batch(c, &two);
    struct clb_session *s = open_session(x), *t = open_session(y);
    size_t n;

    for (uint32_t i = 0; i < 80; i++) {
        CHECK(clb_session_feed(s, prompt + i, 1, &err) && clb_session_feed(t, prompt + i, 1, &err));
        CHECK(clb_batch_step(x, &n, &err) && clb_batch_step(y, &n, &err));
        CHECK(!memcmp(s->logits, expected[i], ROW) && !memcmp(t->logits, expected[i], ROW));
    }
    clb_batch_close(x);
    clb_model_close(a);
    CHECK(clb_session_feed(t, prompt + 80, 1, &err) && clb_batch_step(y, &n, &err));
    CHECK(!memcmp(t->logits, expected[80], ROW));
    clb_batch_close(y);
    clb_model_close(c);
}

static void long_rope_is_chosen_by_the_declared_context(void)
{
    struct clb_arch a = { .rope_long_from = 100, .rope_scale = 0, .rope_scale_long = 1.5f };
    float near[1], far[1];
    const struct clb_weights w = { .arch = &a, .rope_inv_freq = near, .rope_inv_freq_long = far };
    struct clb_kv_seq s = { 0 };

    clb_kv_seq_rope(&s, &w, 100);
    CHECK(s.inv_freq == near && s.rope_scale == 1);
    clb_kv_seq_rope(&s, &w, 101);
    CHECK(s.inv_freq == far && s.rope_scale == 1.5f);
    a.rope_scale = 1.2f;
    a.rope_scale_long = 0;
    clb_kv_seq_rope(&s, &w, 101);
    CHECK(s.inv_freq == far && s.rope_scale == 1.2f);
}

int main(void)
{
    static const enum clb_dtype types[][2] = {
        { CLB_F32, CLB_F32 }, { CLB_BF16, CLB_BF16 }, { CLB_INT8, CLB_INT8 }, { CLB_INT4, CLB_INT8 }
    };
    struct clb_arch a;

    for (int i = 0; i < LONGEST; i++)
        prompt[i] = (i * i + 13 * i + 5) % VOCAB;
    tiny_arch(&a);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        printf("# experts %s, dense %s\n", clb_dtype_name(types[i][0]),
               clb_dtype_name(types[i][1]));
        if (!tiny_build(&tiny, &(struct tiny_options){ .arch = &a,
                                                       .expert = types[i][0],
                                                       .dense = types[i][1],
                                                       .embed = CLB_F32,
                                                       .seed = i }))
            return 1;
        TEST(infer_equals_sessions);
        TEST(infer_of_many_sequences_equals_one_each);
        TEST(prompts_cut_anywhere_give_the_same_bits);
        TEST(a_crowd_equals_each_alone);
        TEST(an_expert_cache_changes_no_bit);
        TEST(threads_take_turns_and_get_the_same_bits);
        TEST(two_models_live_side_by_side);
        if (i % 2 == 0) { /* f32 and int8 */
            TEST(every_row_is_delivered_in_order);
            TEST(rewind_equals_fresh);
        }
        if (i == 0) {
            TEST(rows_are_shared_fairly);
            TEST(what_does_not_fit_is_refused);
            TEST(experts_per_token_can_change);
            TEST(generation_stops_for_the_right_reason);
            TEST(sampling_does_not_depend_on_company);
            TEST(floating_point_state_of_the_caller);
            TEST(plan_is_what_is_held);
            TEST(long_rope_is_chosen_by_the_declared_context);
        }
        tiny_free(&tiny);
    }
    return test_result();
}
