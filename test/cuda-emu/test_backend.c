/* test_backend.c - the CUDA backend on the emulation: every type of weights, through sessions. */
#include "test/cuda-emu/backend_rig.h"
#include "test/unit/rig_archs.h"

#include "lib/session/batch.h"
#include "lib/session/infer.h"

static void every_type_is_near_the_cpu(void)
{
    struct clb_arch a;

    tiny_arch(&a);
    a.qk_norm = CLB_QK_NORM_FULL;
    for (int t = 0; t < CLB_DTYPE_COUNT; t++)
        check_model("plain", &a, (enum clb_dtype)t, rig_bound[t]);
}

/* -- cuBLASLt ---------------------------------------------------------------------------------- */

/* As near as the kernels of our own; other bits than theirs, but the same for any number of rows
 * and in graphs. Without the library it says so, and a product that fails is told. */
static void dense_matrices_by_the_library(void)
{
    const struct cut whole = { 2, LENGTH, LENGTH }, few = { 2, 12, 1 };
    struct rig_options o = {
        .op = clb_backend_device(), .kv = CLB_KV_F16, .max_rows = 256, .dense_library = true
    };
    struct clb_err err = { 0 };
    struct clb_arch a;
    struct tiny file;
    struct rig g;

    rig_mixed_arch(&a);
    for (int t = CLB_F16; t <= CLB_BF16; t++) {
        CHECK(tiny_build(
            &file, &(struct tiny_options){
                       .arch = &a, .seed = 2, .expert = CLB_INT8, .dense = (enum clb_dtype)t }));
        o.file = &file;
        o.dense_library = false;
        float *own = run(&o, whole);
        o.dense_library = true;
        emu_configure("libraries=0");
        CHECK(!rig_try_open(&g, &o, &err));
        CHECK_HAS(err.text, "dense matrices by cuBLASLt");
        rig_close(&g);
        emu_configure("libraries=1");
        uint64_t before = emu_calls("cublasLtMatmul");
        float *library = run(&o, whole);
        CHECK(emu_calls("cublasLtMatmul") - before >= 4 * 3 + 3);
        CHECK(distance(own, library) < rig_bound[t]);
        same_rows(&o, library, few);
        free(own);
        free(library);
        if (t == CLB_F16)
            tiny_free(&file);
    }
    emu_fail("cublasLtMatmul", 2, cudaErrorUnknown);
    static float out[VOCAB * 2];
    CHECK(rig_open(&g, &o));
    CHECK(!rig_run(&g,
                   &(struct rig_batch){
                       .n_seq = 1, .chunk = 1, .ids = { ids }, .length = { 1 }, .out = { out } }));
    rig_close(&g);
    tiny_free(&file);
}

/* -- graphs ------------------------------------------------------------------------------------ */

/* Row by row, two sequences at a time: the bits of a prefill, and one graph for all of it until the
 * number of splits changes. Where none can be recorded, launches do the same. */
static void decoding_is_one_launch(void)
{
    const struct cut prefill = { 2, 12, 12 }, decode = { 2, 12, 1 };
    struct clb_arch a;
    struct tiny file;

    rig_latent_arch(&a);
    a.layer_experts[1] = 0;
    a.dense_size = 40;
    CHECK(tiny_build(&file, &(struct tiny_options){
                                .arch = &a, .seed = 8, .expert = CLB_INT8, .dense = CLB_BF16 }));
    struct rig_options o = {
        .file = &file, .op = clb_backend_device(), .kv = CLB_KV_F16, .max_rows = 64
    };
    float *want = run(&o, prefill);
    uint64_t launched = emu_calls("cudaGraphLaunch");
    uint64_t recorded = emu_calls("cudaGraphInstantiateWithFlags");
    same_rows(&o, want, decode);
    CHECK_EQ(emu_calls("cudaGraphLaunch") - launched, 10); /* not the first, not the odd last */
    CHECK_EQ(emu_calls("cudaGraphInstantiateWithFlags") - recorded, 1);
    emu_streams_late(true, 3);
    same_rows(&o, want, decode);
    emu_streams_late(false, 0);
    emu_fail("cudaGraphInstantiateWithFlags", 1, cudaErrorUnknown);
    same_rows(&o, want, decode);
    emu_fail("cudaStreamBeginCapture", 1, cudaErrorUnknown);
    launched = emu_calls("cudaGraphLaunch");
    same_rows(&o, want, decode);
    CHECK_EQ(emu_calls("cudaGraphLaunch") - launched, 9); /* at the next pass it goes */
    free(want);
    tiny_free(&file);
}

/* -- experts that do not fit ------------------------------------------------------------------- */

/* Half of the experts of the model at most; then the fewest that will do. With delayed streams,
 * some seed shows a copy over what is still multiplied. */
static void experts_come_and_go(void)
{
    const struct cut whole = { 2, 30, 12 };
    struct clb_arch a;
    struct tiny file;

    tiny_arch(&a);
    a.top_k = 4;
    CHECK(tiny_build(&file, &(struct tiny_options){
                                .arch = &a, .seed = 6, .expert = CLB_INT8, .dense = CLB_INT8 }));
    struct rig_options o = {
        .file = &file, .op = clb_backend_device(), .kv = CLB_KV_F16, .max_rows = 64
    };
    float *want = run(&o, whole);
    for (uint32_t slots = 2; slots <= 8; slots += 3) {
        o.slots = slots;
        same_rows(&o, want, whole);
        emu_streams_late(true, slots);
        same_rows(&o, want, whole);
        emu_streams_late(false, 0);
    }
    o.slots = 1;
    struct rig g;
    CHECK(!rig_open(&g, &o));
    free(want);
    tiny_free(&file);
}

/* -- through model and session ----------------------------------------------------------------- */

static bool open_model(struct clb_model **m, const struct tiny *t, const char *backend,
                       uint32_t n_device)
{
    struct clb_model_source from = { .bytes = t->bytes, .n = t->n };
    struct clb_model_options o = { .n_thread = 1,
                                   .backend = backend,
                                   .devices = { n_device, { 0, 1, 2 } } };
    struct clb_err err = { 0 };
    bool ok = clb_model_open(m, &from, &o, &err);

    if (!ok)
        printf("# %s\n", err.text);
    return ok;
}

static void sessions_run_on_the_device(void)
{
    static float all[2][LENGTH][VOCAB], one[LENGTH][VOCAB];
    struct clb_profile profile = { 0 };
    struct clb_model *m = NULL;
    struct clb_err err = { 0 };
    struct clb_arch a;
    struct tiny t;

    tiny_arch(&a);
    CHECK(tiny_build(&t, &(struct tiny_options){
                             .arch = &a, .seed = 4, .expert = CLB_INT8, .dense = CLB_INT8 }));
    if (!open_model(&m, &t, NULL, 1)) {
        CHECK(!"open");
        return;
    }
    CHECK_STR(m->op->name, "cuda");
    struct clb_infer_job job = {
        .ids = ids, .logits = all[0][0], .batch = 2, .length = LENGTH / 2
    };
    CHECK(clb_infer(m, &job, NULL, &err));
    job.batch = 1;
    job.logits = one[0];
    CHECK(clb_infer(m, &job, &profile, &err));
    CHECK(!memcmp(all[0], one, LENGTH / 2 * sizeof *one));
    CHECK_EQ(profile.expert_slots, 2 * 2 * LENGTH / 2);
    CHECK(profile.experts_touched > 2 && profile.macs[CLB_STAGE_EXPERTS] > 0);
    CHECK_EQ(m->committed_device, 0);
    CHECK(m->device.used > 0);
    clb_model_close(m);
    tiny_free(&t);
}

/* -- threads ----------------------------------------------------------------------------------- */

enum { THREADS = 3, AGAIN = 2 };

struct worker {
    struct clb_model *m;
    uint32_t i;
    bool ok;
    float logits[12][VOCAB];
};

static void *infer_again(void *arg)
{
    struct worker *w = arg;
    struct clb_infer_job job = {
        .ids = ids + w->i, .logits = w->logits[0], .batch = 1, .length = 12 - w->i
    };
    struct clb_err err = { 0 };

    w->ok = true;
    for (int i = 0; i < AGAIN; i++)
        w->ok &= clb_infer(w->m, &job, NULL, &err);
    return NULL;
}

/* Each has activations and a stream of its own; nobody waits for a turn, and the bits are those of
 * one thread. */
static void share(uint32_t n_device)
{
    static struct worker one[THREADS], all[THREADS];
    pthread_t thread[THREADS];
    struct clb_model *m = NULL;
    struct clb_arch a;
    struct tiny t;

    tiny_arch(&a);
    CHECK(tiny_build(
        &t, &(struct tiny_options){ .arch = &a, .seed = 5, .expert = CLB_INT8, .dense = CLB_F16 }));
    if (!open_model(&m, &t, "cuda", n_device)) {
        CHECK(!"open");
        return;
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        one[i] = all[i] = (struct worker){ .m = m, .i = i };
        infer_again(&one[i]);
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&thread[i], NULL, infer_again, &all[i]));
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        CHECK(one[i].ok && all[i].ok);
        CHECK(!memcmp(one[i].logits, all[i].logits, sizeof one[i].logits));
    }
    /* passes beside each other; a turn waits for both */
    bool shared = clb_model_take_pass(m, false), also = clb_model_take_pass(m, false);
    CHECK(shared && also);
    CHECK_EQ(m->n_pass, 2);
    clb_model_end_pass(m, shared);
    clb_model_end_pass(m, also);
    CHECK(!clb_model_take_pass(m, true));
    clb_model_end_pass(m, false);
    CHECK_EQ(m->n_pass, 0);
    clb_model_close(m);
    tiny_free(&t);
}

static void threads_share_the_device(void)
{
    share(1);
    emu_devices(3, (size_t)1 << 30);
    share(3);
    emu_devices(1, (size_t)1 << 30);
}

int main(void)
{
    rig_tokens(ids, RIG_CONTEXT, VOCAB, 5);
    TEST(every_type_is_near_the_cpu);
    TEST(dense_matrices_by_the_library);
    TEST(decoding_is_one_launch);
    TEST(experts_come_and_go);
    TEST(sessions_run_on_the_device);
    TEST(threads_share_the_device);
    TEST(nothing_leaks);
    return test_result();
}
