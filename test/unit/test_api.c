/* The public interface as an embedder meets it: arguments, struct versions, errors, and the same
 * bits from every way of asking. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/colibri.h"
#include "lib/import/hf_tokenizer.h"
#include "test/check.h"
#include "test/tiny_model.h"

enum { VOCAB = 99, LENGTH = 70 };

static struct tiny tiny;
static char path[] = "/tmp/colibri-api-XXXXXX";
static int32_t ids[LENGTH];
static float expected[LENGTH][VOCAB];

static struct colibri_model *load(void)
{
    struct colibri_load_options o = { .size = sizeof o, .threads = 1 };
    struct colibri_model *m = colibri_load_model_ex(path, &o, NULL);

    if (!m)
        printf("# %s\n", colibri_last_error());
    return m;
}

/* The last call failed with this status and a message that has this part. */
static void failed(int status, int want, const char *part)
{
    CHECK_EQ(status, want);
    CHECK_EQ(colibri_last_error_info()->code, want);
    CHECK_HAS(colibri_last_error(), part);
}

static void *error_of_another_thread(void *arg)
{
    *(bool *)arg = colibri_last_error()[0] == '\0' && colibri_last_error_info()->code == COLIBRI_OK;
    return NULL;
}

static void errors_belong_to_their_thread(void)
{
    struct colibri_error e;
    pthread_t other;
    bool empty = false;

    CHECK(!colibri_load_model(NULL));
    failed(COLIBRI_USAGE, COLIBRI_USAGE, "'path' is NULL");
    CHECK(!colibri_load_model_ex("/nonexistent/x.bin", NULL, &e));
    CHECK_EQ(e.code, COLIBRI_BAD_INPUT);
    CHECK_STR(e.file, "/nonexistent/x.bin");
    CHECK_STR(e.text, colibri_last_error());
    CHECK(e.sys != 0 && e.offset == UINT64_MAX);
    CHECK(!pthread_create(&other, NULL, error_of_another_thread, &empty) &&
          !pthread_join(other, NULL));
    CHECK(empty);
    CHECK(!colibri_load_model_from_memory(NULL, 0, NULL, &e));
    CHECK_HAS(e.text, "'bytes' is NULL");
    CHECK(!colibri_load_model_from_memory(tiny.bytes, 100, NULL, &e));
    CHECK_EQ(e.code, COLIBRI_BAD_INPUT);
    colibri_unload_model(NULL);
    CHECK_STR(colibri_version(), "0.1.0");
}

static void load_options_are_checked(void)
{
    static const struct colibri_load_options bad[] = {
        { .size = sizeof *bad, .threads = 1025 },
        { .size = sizeof *bad, .cpu_level = "z80" },
        { .size = sizeof *bad, .backend = "abacus" },
        { .size = sizeof *bad, .slab_classes = { 4096, 4096, 8192 } },
        { .size = sizeof *bad, .slab_classes = { 4096, 5000, 8192 } },
        { .size = sizeof *bad, .numa = 4 },
        { .size = sizeof *bad, .numa = -1 },
        { .size = sizeof *bad, .devices = { 0, 3, 0 }, .n_devices = 3 },
        { .size = sizeof *bad, .n_devices = 17 },
        { .size = sizeof *bad, .backend = "cpu", .n_devices = 1 },
        { .size = sizeof *bad, .backend = "cpu", .device = 2 },
        { .size = sizeof *bad, .backend = "cpu", .gpu_memory = 1 },
        { .size = sizeof *bad, .backend = "cpu", .gpu_experts = COLIBRI_GPU_EXPERTS_CPU },
        { .size = sizeof *bad, .backend = "cpu", .gpu_dense_library = true },
        { .size = sizeof *bad, .backend = "cpu", .gpu_dense_widened = true },
        { .size = sizeof *bad, .backend = "cpu", .gpu_attention_library = true },
        { .size = 3 },
    };
    static const char *const part[] = {
        "threads",
        "z80",
        "abacus",
        "slab_classes[1]",
        "slab_classes[1]",
        "numa is 4",
        "numa is -1",
        "device 0 is listed twice",
        "17 devices: at most 16",
        "n_devices does not go with backend 'cpu'",
        "device does not go with backend 'cpu'",
        "gpu_memory does not go with backend 'cpu'",
        "gpu_experts does not go with backend 'cpu'",
        "gpu_dense_library does not go with backend 'cpu'",
        "gpu_dense_widened does not go with backend 'cpu'",
        "gpu_attention_library does not go with backend 'cpu'",
        "size is 3",
    };
    struct colibri_load_options tight = { .size = sizeof tight, .memory = 10000 };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(!colibri_load_model_ex(path, &bad[i], NULL));
        CHECK_HAS(colibri_last_error(), part[i]);
    }
    CHECK(!colibri_load_model_ex(path, &tight, NULL));
    failed(COLIBRI_NO_SPACE, COLIBRI_NO_SPACE, "memory limit is 10000");
}

/* Sanitizers need more. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static void *load_and_infer(void *arg)
{
    static float logits[LENGTH][VOCAB];
    const struct colibri_load_options o = { .size = sizeof o, .threads = 2 };
    struct colibri_model *m = colibri_load_model_ex(path, &o, NULL);
    struct colibri_batch *b = NULL;

    *(bool *)arg =
        m && !colibri_infer(m, ids, logits[0], 1, LENGTH, NULL) && !colibri_batch_open(&b, m, NULL);
    colibri_batch_close(b);
    colibri_unload_model(m);
    return NULL;
}
#endif

static void a_small_stack_is_enough(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const size_t least = (size_t)PTHREAD_STACK_MIN, size = least > 128 << 10 ? least : 128 << 10;
    pthread_attr_t attr;
    pthread_t thread;
    bool ok = false;

    CHECK(!pthread_attr_init(&attr) && !pthread_attr_setstacksize(&attr, size));
    CHECK(!pthread_create(&thread, &attr, load_and_infer, &ok) && !pthread_join(thread, NULL));
    CHECK(ok);
    pthread_attr_destroy(&attr);
#endif
}

/* Weights of a file and of memory, and what a batch takes; all of it is given back. */
static void locked_memory_is_counted(void)
{
    const struct colibri_load_options o = { .size = sizeof o, .threads = 1, .mlock = true };
    struct colibri_memory_stats s = { .size = sizeof s };
    struct colibri_memory_plan p = { .size = sizeof p };
    struct colibri_batch *b;

    for (int from_memory = 0; from_memory < 2; from_memory++) {
        struct colibri_model *m = from_memory
                                      ? colibri_load_model_from_memory(tiny.bytes, tiny.n, &o, NULL)
                                      : colibri_load_model_ex(path, &o, NULL);
        if (!m) { /* a machine with a small limit */
            failed(COLIBRI_NO_SPACE, COLIBRI_NO_SPACE, "cannot lock");
            CHECK_HAS(colibri_last_error(), "RLIMIT_MEMLOCK");
            return;
        }
        CHECK_EQ(colibri_memory_stats(m, &s), 0);
        CHECK_EQ(s.locked, tiny.n);
        CHECK_EQ(colibri_plan_batch(m, NULL, &p), 0);
        CHECK_EQ(p.locked, p.total - p.host_buffers);
        CHECK_EQ(colibri_batch_open(&b, m, NULL), 0);
        CHECK_EQ(colibri_memory_stats(m, &s), 0);
        CHECK(s.locked >= p.locked);
        colibri_batch_close(b);
        colibri_unload_model(m);
    }
}

static void structs_may_be_older_or_newer(void)
{
    struct {
        struct colibri_load_options known;
        uint64_t unknown;
    } newer = { .known = { .size = sizeof newer, .threads = 1 } };
    struct {
        struct colibri_memory_stats known;
        uint64_t unknown;
    } stats = { .known = { .size = sizeof stats }, .unknown = 7 };
    struct colibri_load_options older = { .size = offsetof(struct colibri_load_options, cpu_level),
                                          .threads = 1,
                                          .cpu_level = "not read" };
    struct colibri_model_info info = { .size = offsetof(struct colibri_model_info, vocab_size),
                                       .vocab_size = 12345 };
    struct colibri_model *m = colibri_load_model_ex(path, &newer.known, NULL);

    CHECK(m != NULL);
    colibri_unload_model(m);
    newer.unknown = 1;
    CHECK(!colibri_load_model_ex(path, &newer.known, NULL));
    failed(COLIBRI_UNSUPPORTED, COLIBRI_UNSUPPORTED, "load_options: byte");
    m = colibri_load_model_ex(path, &older, NULL);
    CHECK(m != NULL);
    CHECK_EQ(colibri_model_info(m, &info), 0);
    CHECK_EQ(info.hidden_size, 64);
    CHECK_EQ(info.vocab_size, 12345); /* beyond what the caller's struct has */
    CHECK_EQ(colibri_memory_stats(m, &stats.known), 0);
    CHECK_EQ(stats.unknown, 0);
    CHECK_EQ(stats.known.size, sizeof stats);
    info.size = 0;
    failed(colibri_model_info(m, &info), COLIBRI_USAGE, "sizeof(struct colibri_model_info)");
    colibri_unload_model(m);
}

static void info_describes_the_model(void)
{
    struct colibri_model *m = load();
    struct colibri_model_info i = { .size = sizeof i };
    /* embedding and output, final norm; per layer two norms, q k v o, router */
    uint64_t dense = 2 * 99 * 64 + 64 + 2 * (2 * 64 + (64 + 32 + 32) * 64 + 64 * 64 + 8 * 64),
             expert = 3 * 48 * 64;

    CHECK_EQ(colibri_model_info(m, &i), 0);
    CHECK_EQ(i.n_layer, 2);
    CHECK_EQ(i.n_moe_layer, 2);
    CHECK_EQ(i.vocab_size, VOCAB);
    CHECK_EQ(i.max_positions, 512);
    CHECK_EQ(i.n_expert, 8);
    CHECK_EQ(i.experts_per_token, 2);
    CHECK_EQ(i.file_bytes, tiny.n);
    CHECK_EQ(i.parameters, dense + 16 * expert);
    CHECK_EQ(i.active_parameters, dense - 98 * 64 + 4 * expert);
    CHECK(i.bytes_per_token > i.active_parameters && i.bytes_per_token < i.file_bytes);
    CHECK_STR(i.expert_dtype, "int8");
    CHECK_STR(i.dense_dtype, "bf16");
    CHECK_STR(i.backend, "cpu");
    CHECK_EQ(i.threads, 1);
    CHECK(i.cpu_level[0] && strstr(i.device, i.cpu_level));
    CHECK(i.n_eos == 1 && i.eos_token[0] == 98 && i.eos_token[1] == -1 && i.bos_token == -1);
    CHECK(!i.has_tokenizer && isnan(i.temperature) && i.top_k == -1);
    failed(colibri_model_info(NULL, &i), COLIBRI_USAGE, "'model' is NULL");
    failed(colibri_model_info(m, NULL), COLIBRI_USAGE, "'info' is NULL");
    colibri_unload_model(m);
}

static void infer_checks_its_arguments(void)
{
    struct colibri_model *m = load();
    static int32_t many[2][600];
    static float out[2 * VOCAB];

    failed(colibri_infer(NULL, ids, out, 1, 1, NULL), COLIBRI_USAGE, "'model'");
    failed(colibri_infer(m, NULL, out, 1, 1, NULL), COLIBRI_USAGE, "'input_ids'");
    failed(colibri_infer(m, ids, NULL, 1, 1, NULL), COLIBRI_USAGE, "'output_logits'");
    failed(colibri_infer(m, ids, out, 0, 1, NULL), COLIBRI_USAGE, "0 sequences of 1");
    failed(colibri_infer(m, ids, out, 1, 0, NULL), COLIBRI_USAGE, "1 sequences of 0");
    failed(colibri_infer(m, many[0], out, 1, 513, NULL), COLIBRI_USAGE, "at most 512 positions");
    failed(colibri_infer(m, ids, out, SIZE_MAX / 2, 4, NULL), COLIBRI_USAGE, "larger than memory");
    failed(colibri_infer(m, ids, out, SIZE_MAX / 1024, 4, NULL), COLIBRI_USAGE,
           "larger than memory");
    many[0][5] = VOCAB;
    failed(colibri_infer(m, many[0], out, 2, 3, NULL), COLIBRI_USAGE,
           "input_ids[5] (sequence 1, position 2): id 99");
    many[0][5] = -7;
    failed(colibri_infer(m, many[0], out, 2, 3, NULL), COLIBRI_USAGE, "id -7");
    failed(colibri_infer(m, ids, out, 1, 1, &(struct colibri_config){ .top_k = -1 }), COLIBRI_USAGE,
           "top_k is -1");
    failed(colibri_infer(m, ids, out, 1, 1, &(struct colibri_config){ .top_k = 9 }), COLIBRI_USAGE,
           "at most 8");
    failed(colibri_infer(m, ids, out, 1, 1, &(struct colibri_config){ .stream_id = -1 }),
           COLIBRI_USAGE, "stream_id");
    CHECK_EQ(colibri_infer(m, ids, out, 2, 1,
                           &(struct colibri_config){ .temperature = 0.5f, .seed = 3 }),
             0);
    CHECK(!memcmp(out, expected[0], sizeof expected[0]));
    colibri_unload_model(m);
}

/* Two words for one thing: "1.23" -> 123. */
static unsigned hundredths(const char *line, const char *name)
{
    const char *at = strstr(line, name);
    unsigned whole, part;

    return at && sscanf(at + strlen(name), ": %u.%2ums", &whole, &part) == 2 ? 100 * whole + part
                                                                             : UINT32_MAX / 8;
}

static void profiling_prints_one_line(void)
{
    struct colibri_model *m = load();
    char line[512] = "";
    float *out = malloc(sizeof expected);
    FILE *capture = tmpfile();
    int saved = dup(2);

    fflush(stderr);
    dup2(fileno(capture), 2);
    CHECK_EQ(
        colibri_infer(m, ids, out, 1, LENGTH, &(struct colibri_config){ .enable_profiling = true }),
        0);
    CHECK_EQ(colibri_infer(m, ids, out, 1, LENGTH, NULL), 0); /* silent */
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    rewind(capture);
    size_t n = fread(line, 1, sizeof line - 1, capture);
    CHECK(n > 0 && strchr(line, '\n') == line + n - 1);
    CHECK(!strncmp(line, "[PROFILING] Gate: ", 18));
    CHECK_EQ(hundredths(line, "Gate") + hundredths(line, "Scatter") +
                 hundredths(line, "ExpertCompute") + hundredths(line, "Gather"),
             hundredths(line, "Total"));
    char again[512];
    snprintf(
        again, sizeof again,
        "[PROFILING] Gate: %.2fms | Scatter: %.2fms | ExpertCompute: %.2fms | Gather: %.2fms | "
        "Total: %.2fms\n",
        hundredths(line, "Gate") / 100.0, hundredths(line, "Scatter") / 100.0,
        hundredths(line, "ExpertCompute") / 100.0, hundredths(line, "Gather") / 100.0,
        hundredths(line, "Total") / 100.0);
    CHECK_STR(again, line);
    fclose(capture);
    free(out);
    colibri_unload_model(m);
}

struct caller {
    const struct colibri_model *m;
    int bad;
};

static void *call(void *arg)
{
    struct caller *c = arg;
    float *out = malloc(sizeof expected);

    for (int i = 0; i < 5; i++)
        c->bad += colibri_infer(c->m, ids, out, 1, LENGTH, NULL) ||
                  memcmp(out, expected, sizeof expected);
    c->bad += colibri_infer(c->m, ids, out, 0, LENGTH, NULL) != COLIBRI_USAGE ||
              !strstr(colibri_last_error(), "0 sequences");
    free(out);
    return NULL;
}

static void threads_and_models_do_not_disturb_each_other(void)
{
    struct colibri_load_options o = { .size = sizeof o, .threads = 2, .cpu_level = "scalar" };
    struct colibri_model *m[2] = { load(),
                                   colibri_load_model_from_memory(tiny.bytes, tiny.n, &o, NULL) };
    struct caller caller[4];
    pthread_t thread[4];

    for (int i = 0; i < 4; i++) {
        caller[i] = (struct caller){ m[i % 2], 0 };
        CHECK(!pthread_create(&thread[i], NULL, call, &caller[i]));
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        CHECK_EQ(caller[i].bad, 0);
    }
    colibri_unload_model(m[0]);
    CHECK_EQ(colibri_infer(m[1], ids, expected[0], 1, LENGTH, NULL), 0);
    colibri_unload_model(m[1]);
}

static void sessions_step_by_step(void)
{
    struct colibri_model *m = load();
    struct colibri_batch_options o = {
        .size = sizeof o, .context = LENGTH, .kv_dtype = COLIBRI_KV_F16, .prefill_chunk = 32
    };
    struct colibri_batch *b;
    struct colibri_session *s, *t;
    size_t ready = 7;

    CHECK_EQ(colibri_batch_open(&b, m, &o), 0);
    CHECK_EQ(colibri_session_open(&s, b, NULL), 0);
    failed(colibri_session_open(&t, b, NULL), COLIBRI_USAGE, "all 1 sessions");
    CHECK(!t);
    CHECK_EQ(colibri_batch_step(b, &ready), 0);
    CHECK_EQ(ready, 0);
    CHECK(!colibri_session_logits(s));
    CHECK_EQ(colibri_session_sample(s), -1);
    CHECK(isnan(colibri_session_logprob(s, 1)));
    CHECK_EQ(colibri_session_feed(s, ids, LENGTH), 0);
    for (size_t step = 1; step <= 3; step++) {
        CHECK_EQ(colibri_batch_step(b, step == 2 ? NULL : &ready), 0);
        CHECK_EQ(colibri_session_length(s), step < 3 ? 32 * step : LENGTH);
    }
    CHECK_EQ(ready, 1);
    CHECK(colibri_session_logits(s) &&
          !memcmp(colibri_session_logits(s), expected[LENGTH - 1], sizeof *expected));
    int32_t best = colibri_session_sample(s);
    for (int32_t i = 0; i < VOCAB; i++)
        CHECK(colibri_session_logprob(s, i) <= colibri_session_logprob(s, best));
    double sum = 0;
    for (int32_t i = 0; i < VOCAB; i++)
        sum += exp(colibri_session_logprob(s, i));
    CHECK(fabs(sum - 1) < 1e-5);
    CHECK(isnan(colibri_session_logprob(s, VOCAB)) && isnan(colibri_session_logprob(s, -1)));
    failed(colibri_session_feed(s, ids, 1), COLIBRI_USAGE, "do not fit");
    failed(colibri_session_expect(s, LENGTH), COLIBRI_USAGE, "too late");
    failed(colibri_session_rewind(s, LENGTH + 1), COLIBRI_USAGE, "rewind");
    CHECK_EQ(colibri_session_rewind(s, 9), 0);
    CHECK_EQ(colibri_session_length(s), 9);
    colibri_session_close(s);
    CHECK_EQ(colibri_session_open(&s, b, NULL), 0);
    failed(colibri_session_expect(s, 0), COLIBRI_USAGE, "0 positions");
    failed(colibri_session_expect(s, LENGTH + 1), COLIBRI_USAGE, "the context is");
    CHECK_EQ(colibri_session_expect(s, 3), 0);
    failed(colibri_session_feed(s, ids, 4), COLIBRI_USAGE, "the context is 3");
    CHECK_EQ(colibri_session_feed(s, ids, 3), 0);
    colibri_session_close(s);
    CHECK_EQ(colibri_session_open(
                 &t, b, &(struct colibri_sampling){ .size = sizeof(struct colibri_sampling) }),
             0);
    colibri_batch_close(b);
    colibri_unload_model(m);
}

static void null_arguments_are_refused(void)
{
    struct colibri_model *m = load();
    struct colibri_batch *b;
    struct colibri_session *s;
    struct colibri_decoder *d;
    struct colibri_sampling warm = { .size = sizeof warm, .top_p = 2 };
    const char *text;
    size_t n;

    failed(colibri_batch_open(NULL, m, NULL), COLIBRI_USAGE, "'out'");
    failed(colibri_batch_open(&b, NULL, NULL), COLIBRI_USAGE, "'model'");
    failed(colibri_batch_step(NULL, NULL), COLIBRI_USAGE, "'batch'");
    failed(colibri_session_open(&s, NULL, NULL), COLIBRI_USAGE, "'batch'");
    failed(colibri_session_feed(NULL, ids, 1), COLIBRI_USAGE, "'session'");
    failed(colibri_session_rewind(NULL, 0), COLIBRI_USAGE, "'session'");
    failed(colibri_session_expect(NULL, 1), COLIBRI_USAGE, "'session'");
    failed(colibri_generate(NULL, ids, 1, NULL, NULL, NULL, NULL), COLIBRI_USAGE, "'session'");
    failed(colibri_plan_batch(m, NULL, NULL), COLIBRI_USAGE, "'plan'");
    failed(colibri_memory_stats(m, NULL), COLIBRI_USAGE, "'stats'");
    failed(colibri_decoder_open(&d, m, true), COLIBRI_USAGE, "no tokenizer");
    failed(colibri_decoder_feed(NULL, 1, &text, &n), COLIBRI_USAGE, "'decoder'");
    CHECK_EQ(colibri_session_length(NULL), 0);
    CHECK(!colibri_session_logits(NULL));
    CHECK_EQ(colibri_session_sample(NULL), -1);
    CHECK_EQ(colibri_encode(m, "x", 1, 0, NULL, 0), -1);
    CHECK_HAS(colibri_last_error(), "no tokenizer; use token ids");
    CHECK(!colibri_token_bytes(m, 1, &n) && !colibri_token_is_special(m, 1));
    colibri_session_close(NULL);
    colibri_batch_close(NULL);
    colibri_decoder_close(NULL);
    colibri_batch_profile_reset(NULL);
    colibri_session_on_rows(NULL, NULL, NULL);

    CHECK_EQ(colibri_batch_open(&b, m, NULL), 0);
    failed(colibri_session_open(&s, b, &warm), COLIBRI_USAGE, "top_p");
    CHECK_EQ(colibri_session_open(&s, b, NULL), 0);
    failed(colibri_session_feed(s, NULL, 1), COLIBRI_USAGE, "'ids'");
    CHECK_EQ(colibri_session_feed(s, NULL, 0), 0);
    colibri_batch_close(b);
    failed(colibri_batch_open(&b, m,
                              &(struct colibri_batch_options){
                                  .size = sizeof(struct colibri_batch_options), .kv_dtype = 9 }),
           COLIBRI_USAGE, "kv_dtype is 9");
    colibri_unload_model(m);
}

struct heard {
    int32_t id[64];
    int n, stop_at;
};

static int hear(void *arg, int32_t id)
{
    struct heard *h = arg;

    h->id[h->n++] = id;
    return h->n == h->stop_at;
}

static void generation_streams_tokens(void)
{
    struct colibri_model *m = load();
    struct colibri_generate_options o = { .size = sizeof o,
                                          .max_new_tokens = 12,
                                          .ignore_eos = true };
    struct heard first = { .n = 0 }, second = { .stop_at = 4 };
    struct colibri_batch *b;
    struct colibri_session *s;
    int32_t why = -1;

    CHECK_EQ(colibri_batch_open(&b, m, NULL), 0);
    CHECK_EQ(colibri_session_open(&s, b, NULL), 0);
    CHECK_EQ(colibri_generate(s, ids, 10, &o, hear, &first, &why), 0);
    CHECK_EQ(why, COLIBRI_FINISH_LENGTH);
    CHECK_EQ(first.n, 12);
    CHECK_EQ(colibri_session_rewind(s, 0), 0);
    CHECK_EQ(colibri_generate(s, ids, 10, &o, hear, &second, &why), 0);
    CHECK_EQ(why, COLIBRI_FINISH_CALLBACK);
    CHECK(second.n == 4 && !memcmp(first.id, second.id, 4 * sizeof(int32_t)));
    CHECK_EQ(colibri_session_rewind(s, 0), 0);
    CHECK_EQ(colibri_generate(s, ids, 10, &o, NULL, NULL, NULL), 0); /* nobody listens */
    CHECK_EQ(colibri_session_length(s), 21);
    colibri_batch_close(b);
    colibri_unload_model(m);
}

static void plan_resolves_the_defaults(void)
{
    struct colibri_model_info info = { .size = sizeof info };
    struct colibri_memory_plan plan = { .size = sizeof plan };
    struct colibri_batch_options o = { .size = sizeof o };
    struct colibri_model *m = load();

    CHECK_EQ(colibri_model_info(m, &info), 0);
    CHECK_EQ(colibri_plan_batch(m, &o, &plan), 0);
    CHECK_EQ(plan.context, info.max_positions < 4096 ? info.max_positions : 4096);
    CHECK_EQ(plan.kv_dtype, strcmp(info.expert_dtype, "f32") ? COLIBRI_KV_F16 : COLIBRI_KV_F32);
    o.kv_dtype = COLIBRI_KV_INT8;
    CHECK_EQ(colibri_plan_batch(m, &o, &plan), 0);
    CHECK_EQ(plan.kv_dtype, COLIBRI_KV_INT8);
    plan.size = offsetof(struct colibri_memory_plan, context); /* as a caller of before knows it */
    plan.context = 1;
    CHECK_EQ(colibri_plan_batch(m, &o, &plan), 0);
    CHECK_EQ(plan.context, 1);
    colibri_unload_model(m);
}

/* Of a GPU that is elsewhere: in any build, on any machine. */
static void gpus_elsewhere_are_planned_and_cannot_run(void)
{
    struct colibri_load_options o = { .size = sizeof o, .gpu_memory = 64 << 20 };
    const struct colibri_scheduler_options so = { .size = sizeof so, .max_sequences = 2 };
    const struct colibri_batch_options bo = { .size = sizeof bo, .context = 100 };
    struct colibri_memory_plan p = { .size = sizeof p }, q = p;
    struct colibri_error e = { 0 };
    struct colibri_scheduler *s = NULL;
    struct colibri_batch *b = NULL;
    float logits[VOCAB];

    struct colibri_model *m = colibri_load_for_plans(path, &o, &e);
    CHECK(m != NULL);
    CHECK_EQ(colibri_plan_scheduler(m, &so, &q), 0);
    CHECK_EQ(colibri_plan_batch(m, &bo, &p), 0);
    CHECK(p.device == p.kv_cache + p.activations && q.device > p.device);
    CHECK(p.device < p.device_available && p.device_available < o.gpu_memory);
    CHECK(p.n_expert_all > 0 && p.n_expert_there == p.n_expert_all);
    CHECK(p.device_dense > 0 && p.device_experts > 0 && p.device_others == 0);
    failed(colibri_batch_open(&b, m, &bo), COLIBRI_USAGE, "loaded for plans: it cannot run");
    failed(colibri_scheduler_open(&s, m, &so), COLIBRI_USAGE, "loaded for plans");
    failed(colibri_infer(m, ids, logits, 1, 1, NULL), COLIBRI_USAGE, "loaded for plans");
    CHECK_EQ(colibri_plan_batch(m, &bo, &q), 0);
    CHECK(!memcmp(&p.device, &q.device, sizeof p - offsetof(struct colibri_memory_plan, device)));
    colibri_unload_model(m);

    o.n_devices = 2; /* the second one has experts alone */
    o.devices[1] = 1;
    CHECK((m = colibri_load_for_plans(path, &o, &e)) != NULL);
    CHECK_EQ(colibri_plan_batch(m, &bo, &q), 0);
    CHECK(q.device_others > 0 && q.device_others < q.activations);
    CHECK(q.n_expert_there == p.n_expert_all && q.device_dense == p.device_dense);
    colibri_unload_model(m);

    o.gpu_memory = p.device_dense;
    CHECK(!colibri_load_for_plans(path, &o, &e));
    CHECK_EQ(e.code, COLIBRI_NO_SPACE);
    CHECK_STR(e.field, "gpu_memory");
    o.gpu_memory = 64 << 20;
    o.gpu_dense_library = true;
    CHECK(!colibri_load_for_plans(path, &o, &e));
    CHECK_EQ(e.code, COLIBRI_UNSUPPORTED);
    CHECK(!colibri_load_for_plans(NULL, &o, &e));
    CHECK_EQ(e.code, COLIBRI_USAGE);
    CHECK((m = colibri_load_for_plans(path, NULL, NULL)) != NULL); /* as colibri_load_model_ex */
    CHECK_EQ(colibri_batch_open(&b, m, &bo), 0);
    colibri_batch_close(b);
    colibri_unload_model(m);
}

static void memory_is_planned_counted_and_returned(void)
{
    struct colibri_batch_options o = { .size = sizeof o, .max_sessions = 3, .context = 100 };
    struct colibri_memory_plan plan = { .size = sizeof plan };
    struct colibri_memory_stats now = { .size = sizeof now };
    float *out = malloc(sizeof expected);
    struct colibri_batch *b;

    for (int pools = 0; pools < 2; pools++) {
        setenv("COLIBRI_MEMORY_POOL_DISABLE", pools ? "0" : "1", 1);
        struct colibri_model *m = load();
        unsetenv("COLIBRI_MEMORY_POOL_DISABLE");
        CHECK_EQ(colibri_plan_batch(m, &o, &plan), 0);
        CHECK_EQ(plan.weights, tiny.n);
        CHECK_EQ(plan.context, 100);
        CHECK(plan.kv_cache > 0 && plan.activations > 0 && plan.host_buffers > 3 * VOCAB * 4 &&
              plan.available > 0);
        CHECK_EQ(plan.total, plan.weights + plan.kv_cache + plan.activations + plan.host_buffers);
        CHECK_EQ(colibri_batch_open(&b, m, &o), 0);
        CHECK_EQ(colibri_memory_stats(m, &now), 0);
        CHECK_EQ(now.weights.used, plan.weights);
        CHECK_EQ(now.host.used, plan.host_buffers);
        CHECK_EQ(now.activations.reserved, plan.kv_cache + plan.activations);
        CHECK_EQ(now.activations.used == now.activations.reserved,
                 !pools); /* no slab, no fragmentation */
        colibri_batch_close(b);
        CHECK_EQ(colibri_infer(m, ids, out, 1, LENGTH, NULL), 0);
        CHECK(!memcmp(out, expected, sizeof expected));
        CHECK_EQ(colibri_memory_stats(m, &now), 0);
        CHECK_EQ(now.host.used, 0);
        CHECK_EQ(now.activations.used, 0);
        CHECK(now.activations.peak > 0 && now.host.peak >= plan.host_buffers);
        CHECK_EQ(now.activations.reserved > 0, pools);
        colibri_unload_model(m);
    }
    free(out);
}

static void profile_counts_what_a_batch_does(void)
{
    struct colibri_model *m = load();
    struct colibri_batch_options o = { .size = sizeof o };
    struct colibri_profile p = { .size = sizeof p };
    uint64_t rows[2][8], slots = 0;
    struct colibri_batch *b;
    struct colibri_session *s;

    CHECK_EQ(colibri_batch_open(&b, m, &o), 0);
    failed(colibri_batch_profile(b, &p, NULL), COLIBRI_USAGE, "enable_profiling");
    colibri_batch_close(b);
    o.enable_profiling = true;
    CHECK_EQ(colibri_batch_open(&b, m, &o), 0);
    CHECK_EQ(colibri_session_open(&s, b, NULL), 0);
    CHECK_EQ(colibri_session_feed(s, ids, 20), 0);
    CHECK_EQ(colibri_batch_step(b, NULL), 0);
    CHECK_EQ(colibri_batch_profile(b, &p, rows[0]), 0);
    CHECK_EQ(p.passes, 1);
    CHECK_EQ(p.rows, 20);
    CHECK_EQ(p.expert_slots, 2 * 20 * 2);
    for (int i = 0; i < 16; i++)
        slots += rows[i / 8][i % 8];
    CHECK_EQ(slots, p.expert_slots);
    CHECK_STR(p.name[0], "Embed");
    CHECK_STR(p.name[6], "ExpertCompute");
    CHECK(p.macs[6] == 2ull * 20 * 2 * 3 * 48 * 64 && p.bytes[6] > 0 && p.seconds[6] > 0);
    for (int i = 0; i < COLIBRI_STAGES; i++)
        CHECK(p.f32_macs[i] <= p.macs[i] && p.alone[i] <= p.seconds[i] && p.waited[i] >= 0);
    CHECK(p.macs[2] > 0 && p.f32_macs[2] == p.macs[2]); /* Attention */
    colibri_batch_profile_reset(b);
    CHECK_EQ(colibri_batch_profile(b, &p, rows[0]), 0);
    CHECK(p.passes == 0 && p.macs[6] == 0 && rows[1][3] == 0);
    colibri_batch_close(b);
    colibri_unload_model(m);
}

static void addresses_are_found(void)
{
    struct colibri_model *m = load();
    uint64_t offset = 1;
    const char *file = NULL;
    const uint8_t *bytes;

    /* the mapping is not public: find it through a page that the library knows */
    struct colibri_model *in_memory =
        colibri_load_model_from_memory(tiny.bytes, tiny.n, NULL, NULL);
    bytes = tiny.bytes;
    CHECK(colibri_address_in_model(in_memory, bytes + 4242, &offset, &file));
    CHECK_EQ(offset, 4242);
    CHECK(file != NULL);
    CHECK(colibri_address_in_model(in_memory, bytes + tiny.n - 1, NULL, NULL));
    CHECK(!colibri_address_in_model(in_memory, bytes + tiny.n, NULL, NULL));
    CHECK(!colibri_address_in_model(in_memory, bytes - 1, NULL, NULL));
    CHECK(!colibri_address_in_model(m, &offset, &offset, &file));
    CHECK(!colibri_address_in_model(NULL, bytes, NULL, NULL));
    colibri_unload_model(in_memory);
    colibri_unload_model(m);
}

/* The bundled model's tokenizer, in a toy model of as many tokens. */
static bool build_with_tokenizer(struct tiny *t)
{
    static char json[1 << 20];
    struct clb_text tables = { 0 };
    struct clb_err err;
    struct clb_arch a;
    FILE *f = fopen("examples/demo-model/tokenizer.json", "rb");
    size_t n = f ? fread(json, 1, sizeof json, f) : 0;

    tiny_arch(&a);
    a.vocab_size = 2048;
    bool ok = f && !fclose(f) &&
              clb_hf_tokenizer_compile(&tables, json, n, "tokenizer.json", a.vocab_size, &err) &&
              tiny_build(t, &(struct tiny_options){ .arch = &a,
                                                    .expert = CLB_INT8,
                                                    .dense = CLB_INT8,
                                                    .tokenizer_tables = tables.p,
                                                    .n_tables = tables.n });
    clb_text_free(&tables);
    return ok;
}

static void text_goes_in_and_comes_out(void)
{
    static const char text[] = "The capital of S\xc3\xa3o is </s>.";
    struct colibri_load_options verify = { .size = sizeof verify, .threads = 1, .verify = true };
    struct colibri_error e;
    struct colibri_decoder *d;
    struct tiny t;
    int32_t id[64], few[3] = { -5, -5, -5 };
    char got[200] = "";
    const char *part;
    size_t n;

    CHECK(build_with_tokenizer(&t));
    struct colibri_model *m = colibri_load_model_from_memory(t.bytes, t.n, &verify, &e);
    CHECK(m != NULL);
    int64_t count = colibri_encode(m, text, strlen(text), 0, id, 64);
    CHECK(count > 5 && count < 64);
    CHECK_EQ(id[0], 1); /* <s> */
    CHECK_EQ(colibri_encode(m, text, strlen(text), 0, few, 2), count);
    CHECK(few[0] == id[0] && few[1] == id[1] && few[2] == -5);
    CHECK_EQ(colibri_encode(m, text, strlen(text), COLIBRI_ENCODE_NO_BOS, NULL, 0), count - 1);
    CHECK(colibri_encode(m, text, strlen(text), COLIBRI_ENCODE_PARSE_SPECIAL, NULL, 0) < count);
    CHECK_EQ(colibri_encode(m, "", 0, COLIBRI_ENCODE_NO_BOS, NULL, 0), 0);
    int32_t some[2] = { -5, -5 };
    CHECK_EQ(colibri_encode(m, text, strlen(text), COLIBRI_ENCODE_UP_TO_ROOM, some, 1), 2);
    CHECK(some[0] >= 0 && some[1] == -5);
    CHECK_EQ(colibri_encode(m, text, strlen(text), COLIBRI_ENCODE_UP_TO_ROOM, NULL, 0), 1);
    CHECK_EQ(colibri_encode(m, "", 0, COLIBRI_ENCODE_UP_TO_ROOM | COLIBRI_ENCODE_NO_BOS, NULL, 0),
             0);
    CHECK_EQ(colibri_encode(m, "x", 1, 8, NULL, 0), -1);
    CHECK_HAS(colibri_last_error(), "flags are 0x8");
    CHECK_EQ(colibri_encode(m, NULL, 1, 0, NULL, 0), -1);
    CHECK_EQ(colibri_encode(m, "x", 1, 0, NULL, 1), -1);

    CHECK_EQ(colibri_decoder_open(&d, m, true), 0);
    for (int again = 0; again < 2; again++) {
        got[0] = '\0';
        for (int64_t i = 0; i < count; i++) {
            CHECK_EQ(colibri_decoder_feed(d, id[i], &part, &n), 0);
            strncat(got, part, n);
        }
        CHECK_EQ(colibri_decoder_flush(d, &part, &n), 0);
        strncat(got, part, n);
        CHECK_STR(got, text);
    }
    colibri_decoder_close(d);
    CHECK(!strncmp(colibri_token_bytes(m, 2, &n), "</s>", 4) && n == 4);
    CHECK(colibri_token_bytes(m, 2048, &n) && n == 0 &&
          colibri_token_bytes(m, -1, NULL)[0] == '\0');
    CHECK(colibri_token_is_special(m, 2) && !colibri_token_is_special(m, 1000) &&
          !colibri_token_is_special(m, -1));
    colibri_unload_model(m);

    struct clb_reader r = { 0 };
    struct clb_err err;
    CHECK(clb_reader_open_memory(&r, t.bytes, t.n, &err));
    uint64_t at = clb_reader_section(&r, "tokenizer.tables")->offset;
    clb_reader_close(&r);
    t.bytes[at + 5000] ^= 1;
    CHECK(!colibri_load_model_from_memory(t.bytes, t.n, &verify, &e));
    CHECK_EQ(e.code, COLIBRI_BAD_INPUT);
    CHECK_EQ(e.offset, at);
    CHECK_STR(e.field, "tokenizer.tables");
    tiny_free(&t);
}

int main(void)
{
    struct clb_arch a;

    for (int i = 0; i < LENGTH; i++)
        ids[i] = (i * i + 3 * i) % VOCAB;
    tiny_arch(&a);
    if (!tiny_build(&tiny, &(struct tiny_options){ .arch = &a,
                                                   .expert = CLB_INT8,
                                                   .dense = CLB_BF16,
                                                   .embed = CLB_BF16,
                                                   .seed = 3 }) ||
        !tiny_save(&tiny, path))
        return 1;
    struct colibri_model *m = load();
    if (!m || colibri_infer(m, ids, expected[0], 1, LENGTH, NULL) != 0)
        return 1;
    colibri_unload_model(m);
    TEST(errors_belong_to_their_thread);
    TEST(load_options_are_checked);
    TEST(a_small_stack_is_enough);
    TEST(locked_memory_is_counted);
    TEST(structs_may_be_older_or_newer);
    TEST(info_describes_the_model);
    TEST(infer_checks_its_arguments);
    TEST(profiling_prints_one_line);
    TEST(threads_and_models_do_not_disturb_each_other);
    TEST(sessions_step_by_step);
    TEST(null_arguments_are_refused);
    TEST(generation_streams_tokens);
    TEST(plan_resolves_the_defaults);
    TEST(gpus_elsewhere_are_planned_and_cannot_run);
    TEST(memory_is_planned_counted_and_returned);
    TEST(profile_counts_what_a_batch_does);
    TEST(addresses_are_found);
    TEST(text_goes_in_and_comes_out);
    unlink(path);
    tiny_free(&tiny);
    return test_result();
}
