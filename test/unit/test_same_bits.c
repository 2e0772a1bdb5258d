/* test_same_bits.c - logits are the same to the last bit, however the work is cut: threads, chunks
 * of a prompt, company in the batch, instruction set, routing cache, size of the expert store. */
#include "test/unit/engine_rig.h"
#include "test/unit/rig_archs.h"

#include <unistd.h>

#include "kernels/kernels.h"

enum { LENGTH = 200, LONG = 601, VOCAB = 99 };

static int32_t ids[LONG];

static float *run_rows(const struct rig_options *o, uint32_t chunk, uint32_t rows)
{
    struct rig g;
    float *out = calloc((size_t)rows * VOCAB, sizeof *out);

    if (!rig_open(&g, o))
        CHECK(!"open");
    else
        CHECK(rig_run(&g, &(struct rig_batch){ .n_seq = 1,
                                               .chunk = chunk,
                                               .ids = { ids },
                                               .length = { rows },
                                               .out = { out } }));
    rig_close(&g);
    return out;
}

static float *run(const struct rig_options *o, uint32_t chunk)
{
    return run_rows(o, chunk, LENGTH);
}

static bool same(const float *a, const float *b, size_t rows)
{
    return !memcmp(a, b, rows * VOCAB * sizeof *a);
}

static void differs(const char *what, unsigned n)
{
    printf("# %s %u: other bits\n", what, n);
    CHECK(!"same bits");
}

#ifdef __SANITIZE_ADDRESS__
static const bool sanitised = true; /* scalar kernels are slow then */
#else
static const bool sanitised = false;
#endif

static bool full(void)
{
    const char *how = getenv("COLIBRI_TEST_FULL");

    return how && *how;
}

/* The whole set for one way of storing weights and cache. */
static void whole_set(void (*fill)(struct clb_arch *a), enum clb_dtype type, enum clb_kv_dtype kv)
{
    static const uint32_t chunks[] = { 1, 7, 64, 150 };
    static const unsigned threads[] = { 2, 3, 4, 5, 18 }; /* 18: more than ranges of a list */
    /* Which of them takes which depends on no type: a crowd is slow, so here it computes one. */
    size_t n_threads = sizeof threads / sizeof *threads - (full() || type == CLB_INT8 ? 0 : 1);
    struct clb_arch a;
    struct tiny file;

    fill(&a);
    CHECK(tiny_build(
        &file, &(struct tiny_options){ .arch = &a, .seed = 9, .expert = type, .dense = type }));
    struct rig_options o = { .file = &file, .kv = kv, .n_thread = 1, .level = "scalar" };
    float *want = run(&o, LENGTH), *got;
    bool quick = sanitised && !full(); /* other cuts at the machine's level, scalar ones like it */

    o.level = quick ? NULL : "scalar";
    CHECK(want[0] == want[0] && want[LENGTH * VOCAB - 1] != 0);
    for (size_t i = 0; i < n_threads; i++) {
        o.n_thread = threads[i];
        if (!same(got = run(&o, threads[i] == 3 ? 7 : LENGTH), want, LENGTH))
            differs("threads", threads[i]);
        free(got);
    }
    o.n_thread = 2;
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        if (!same(got = run(&o, chunks[i]), want, LENGTH))
            differs("chunk", chunks[i]);
        free(got);
    }
    for (int isa = quick ? CLB_ISA_SCALAR : CLB_ISA_AVX2; isa < CLB_ISA_COUNT; isa++) {
        const char *why;
        o.level = clb_isa_name((enum clb_isa)isa);
        if (!clb_isa_available((enum clb_isa)isa, &why))
            continue;
        for (uint32_t chunk = 1; chunk <= LENGTH; chunk += LENGTH - 1) {
            if (!same(got = run(&o, chunk), want, LENGTH))
                differs(o.level, chunk);
            free(got);
        }
    }
    free(want);
    tiny_free(&file);
}

static void f32_weights(void)
{
    whole_set(rig_mixed_arch, CLB_F32, CLB_KV_F32);
}
static void fp16_weights(void)
{
    whole_set(rig_mixed_arch, CLB_F16, CLB_KV_F16);
}
static void bf16_weights(void)
{
    whole_set(rig_mixed_arch, CLB_BF16, CLB_KV_F16);
}
static void int8_weights(void)
{
    whole_set(rig_mixed_arch, CLB_INT8, CLB_KV_F16);
}
static void int4_weights(void)
{
    whole_set(rig_mixed_arch, CLB_INT4, CLB_KV_INT8);
}
static void mxfp4_weights(void)
{
    whole_set(rig_mixed_arch, CLB_MXFP4, CLB_KV_INT8);
}

static void latent_attention(void)
{
    whole_set(rig_latent_arch, CLB_F32, CLB_KV_F32);
    whole_set(rig_latent_arch, CLB_INT8, CLB_KV_F16);
}
static void biases_and_sinks(void)
{
    whole_set(rig_biased_arch, CLB_BF16, CLB_KV_F32);
    whole_set(rig_biased_arch, CLB_INT8, CLB_KV_INT8);
}

/* A prompt that the usual chunk of a session does not hold. */
static void long_prompt(void)
{
    static const uint32_t chunks[] = { 1, 7, 64, 512 };
    struct clb_arch a;

    rig_mixed_arch(&a);
    struct rig_options o = { .model = { .arch = &a, .expert = CLB_INT8, .dense = CLB_INT8 },
                             .kv = CLB_KV_F16,
                             .n_thread = 2 };
    float *want = run_rows(&o, LONG, LONG), *got;
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        if (!same(got = run_rows(&o, chunks[i], LONG), want, LONG))
            differs("chunk", chunks[i]);
        free(got);
    }
    free(want);
}

/* Eight sequences of mixed lengths side by side, and each alone. */
static void batch_or_alone(void)
{
    static const uint32_t length[RIG_SEQS] = { 1, 200, 64, 65, 2, 128, 17, 150 };
    struct clb_arch a;
    struct rig g;
    struct rig_batch b = { .n_seq = RIG_SEQS, .chunk = 50 };

    rig_mixed_arch(&a);
    CHECK(
        rig_open(&g, &(struct rig_options){
                         .model = { .arch = &a, .seed = 2, .expert = CLB_INT8, .dense = CLB_INT8 },
                         .kv = CLB_KV_F16,
                         .n_thread = 2 }));
    for (uint32_t s = 0; s < RIG_SEQS; s++) {
        b.ids[s] = ids + (LENGTH - length[s]) / 2;
        b.length[s] = length[s];
        b.out[s] = calloc((size_t)LENGTH * VOCAB, sizeof(float));
    }
    CHECK(rig_run(&g, &b));
    for (uint32_t s = 0; s < RIG_SEQS; s++) {
        float *alone = calloc((size_t)LENGTH * VOCAB, sizeof *alone);
        CHECK(rig_run(&g, &(struct rig_batch){ .n_seq = 1,
                                               .chunk = LENGTH,
                                               .ids = { b.ids[s] },
                                               .length = { length[s] },
                                               .out = { alone } }));
        if (!same(alone, b.out[s], length[s]))
            differs("sequence", s);
        free(alone);
        free(b.out[s]);
    }
    rig_close(&g);
}

/* One token over many blocks of one wide KV head: threads share out blocks, not heads. */
static void long_decode(void)
{
    struct clb_arch a;

    tiny_arch(&a);
    a.n_layer = 1;
    a.n_head = 48;
    a.n_kv_head = 1;
    a.head_dim = 32;
    a.value_dim = 40;
    struct rig_options o = { .model = { .arch = &a }, .n_thread = 1 };
    float *want = run(&o, LENGTH), *got;
    for (unsigned n = 2; n <= 5; n++) {
        o.n_thread = n;
        if (!same(got = run(&o, 1), want, LENGTH))
            differs("threads", n);
        free(got);
    }
    free(want);
}

static void routing_cache(void)
{
    struct clb_arch a;

    rig_mixed_arch(&a);
    struct rig_options o = { .model = { .arch = &a, .expert = CLB_INT8 }, .n_thread = 2 };
    float *kept = run(&o, 1);
    o.no_routing_cache = true;
    float *rebuilt = run(&o, 1);
    CHECK(same(kept, rebuilt, LENGTH));
    free(kept);
    free(rebuilt);
}

/* The same token at the same position twice: the second time the map of every layer serves again.
 */
static void routing_is_reused(void)
{
    struct clb_arch a;
    struct rig g;
    float *out = calloc((size_t)LENGTH * VOCAB, sizeof *out);
    float *less = calloc((size_t)LENGTH * VOCAB, sizeof *less);

    rig_mixed_arch(&a);
    for (int off = 0; off < 2; off++) {
        struct clb_profile f = { 0 };
        struct rig_batch b = { .n_seq = 1,
                               .chunk = LENGTH,
                               .ids = { ids },
                               .length = { LENGTH },
                               .out = { out },
                               .profile = &f };

        CHECK(rig_open(&g, &(struct rig_options){
                               .model = { .arch = &a }, .n_thread = 1, .no_routing_cache = off }));
        CHECK(rig_run(&g, &b));
        CHECK_EQ(f.routes_reused, 0);
        CHECK(rig_run(&g, &b));
        CHECK_EQ(f.routes_reused, off ? 0 : 2);
        b.length[0] = LENGTH / 2; /* begins with the same choice, but is shorter */
        b.out[0] = less;
        CHECK(rig_run(&g, &b));
        CHECK_EQ(f.routes_reused, off ? 0 : 2);
        CHECK(same(less, out, LENGTH / 2));
        rig_close(&g);
    }
    free(out);
    free(less);
}

/* A store that holds three experts of eight: the stage runs in several calls, experts come and go.
 */
static void small_expert_store(void)
{
    char path[] = "/tmp/test_same_bits.XXXXXX";
    struct clb_arch a;
    struct clb_err err;
    struct rig g;
    float *out = calloc((size_t)LENGTH * VOCAB, sizeof *out);

    rig_mixed_arch(&a);
    struct rig_options o = { .model = { .arch = &a, .expert = CLB_INT8 }, .n_thread = 2 };
    float *want = run(&o, 90);

    /* explicit reads need a file */
    CHECK(rig_open(&g, &o));
    CHECK(tiny_save(&g.file, path));
    clb_experts_free(g.experts);
    clb_weights_done(&g.w);
    clb_reader_close(&g.reader);
    CHECK(clb_reader_open(&g.reader, path, &err) && clb_weights_bind(&g.w, &g.reader, &err));
    const struct clb_experts_options eo = { .budget = 3 * 12288,
                                            .verify = true,
                                            .ledger = &g.ledger };
    CHECK(clb_experts_new(&g.experts, &g.reader, &eo, &err));
    CHECK_EQ(clb_experts_max_get(g.experts), 3);
    g.engine.experts = g.experts;
    for (int s = 0; s < RIG_SEQS; s++)
        g.seq[s].inv_freq = g.w.rope_inv_freq;
    CHECK(rig_run(
        &g, &(struct rig_batch){
                .n_seq = 1, .chunk = 90, .ids = { ids }, .length = { LENGTH }, .out = { out } }));
    CHECK(same(out, want, LENGTH));
    rig_close(&g);
    unlink(path);
    free(want);
    free(out);
}

int main(void)
{
    rig_tokens(ids, LONG, VOCAB, 1);
    TEST(f32_weights);
    TEST(fp16_weights);
    TEST(bf16_weights);
    TEST(int8_weights);
    TEST(int4_weights);
    TEST(mxfp4_weights);
    TEST(latent_attention);
    TEST(biases_and_sinks);
    TEST(long_prompt);
    TEST(batch_or_alone);
    TEST(long_decode);
    TEST(routing_cache);
    TEST(routing_is_reused);
    TEST(small_expert_store);
    return test_result();
}
