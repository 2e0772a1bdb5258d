/* test_backend_dnn.c - attention of prompts by cuDNN: near the kernels of our own, for heads of
 * several sizes, batches and prompts in chunks; layers that it cannot do; and a library that is not
 * as it should be. */
#include "kernels/cuda/cuda.h"
#include "test/cuda-emu/backend_rig.h"
#include "test/unit/rig_archs.h"

static struct rig_options on_device(const struct tiny *file)
{
    return (struct rig_options){ .file = file,
                                 .op = clb_backend_device(),
                                 .kv = CLB_KV_F16,
                                 .max_rows = 256,
                                 .attention_library = true };
}

static void build(struct tiny *file, const struct clb_arch *a, enum clb_dtype dense)
{
    CHECK(tiny_build(
        file, &(struct tiny_options){ .arch = a, .seed = 3, .expert = CLB_INT8, .dense = dense }));
}

static void describe(const struct rig_options *o, char *text, size_t n)
{
    struct rig g;

    *text = 0;
    if (rig_open(&g, o)) {
        snprintf(text, n, "%s", g.op->describe(g.be));
        rig_close(&g);
    }
}

/* As a share of the largest logit. Its bits differ from ours, so `calls` says that it was asked. */
static double apart(const char *what, struct rig_options *o, struct cut cut, uint64_t calls)
{
    o->attention_library = false;
    float *own = run(o, cut);
    o->attention_library = true;
    uint64_t before = emu_calls("cudnnBackendExecute");
    float *library = run(o, cut);
    CHECK_EQ(emu_calls("cudnnBackendExecute") - before, calls);
    double most = 0;
    for (uint32_t s = 0; s < cut.n_seq; s++)
        most = fmax(
            most, distance(own + (size_t)s * LENGTH * VOCAB, library + (size_t)s * LENGTH * VOCAB));
    printf("# %s, %u sequences, %u at a time: %.2g of the largest logit\n", what, cut.n_seq,
           cut.chunk, most);
    free(own);
    free(library);
    return most;
}

/* -- near our own ------------------------------------------------------------------------------ */

static void near_our_own(void)
{
    static const struct {
        const char *what;
        uint32_t n_head, n_kv_head, key, value;
        enum clb_dtype dense;
    } of[] = {
        { "4 heads on 2, 16 wide", 4, 2, 16, 16, CLB_INT8 },
        { "3 heads on 3, 24 wide", 3, 3, 24, 24, CLB_F16 },
        { "6 heads on 1, keys of 40, values of 48", 6, 1, 40, 48, CLB_BF16 },
        { "4 heads on 2, 8 wide", 4, 2, 8, 8, CLB_F32 },
    };

    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct clb_arch a;
        struct tiny file;

        tiny_arch(&a);
        a.n_head = of[i].n_head;
        a.n_kv_head = of[i].n_kv_head;
        a.head_dim = of[i].key;
        a.value_dim = of[i].value;
        a.rope_dim = 8;
        build(&file, &a, of[i].dense);
        struct rig_options o = on_device(&file);
        /* 2 layers; the rest of a prompt that is less than 32 rows is ours */
        CHECK(apart(of[i].what, &o, (struct cut){ 1, LENGTH, LENGTH }, 2) < 0.01);
        if (i % 2 == 0)
            CHECK(apart(of[i].what, &o, (struct cut){ 1, LENGTH, 33 }, 4) < 0.01);
        if (i == 0)
            CHECK(apart(of[i].what, &o, (struct cut){ 3, LENGTH, 40 }, 2 * (3 + 1)) < 0.01);
        tiny_free(&file);
    }
}

/* Rows of several sequences, some of them too few, on streams that run late. */
static void late_streams(void)
{
    struct clb_arch a;
    struct tiny file;

    tiny_arch(&a);
    build(&file, &a, CLB_INT8);
    struct rig_options o = on_device(&file);
    const struct cut cut = { 2, LENGTH, 40 };
    float *want = run(&o, cut);
    for (uint64_t seed = 1; seed <= 2; seed++) {
        emu_streams_late(true, seed);
        same_rows(&o, want, cut);
        emu_streams_late(false, 0);
    }
    free(want);
    tiny_free(&file);
}

/* More shapes in a pass than there is room for plans: one is dropped while streams run late, but
 * not before its run is over. */
static void more_shapes_than_plans(void)
{
    static float want[2 * LENGTH * VOCAB], got[2 * LENGTH * VOCAB];
    struct rig_batch b = { .n_seq = 2,
                           .chunk = LENGTH,
                           .ids = { ids, ids },
                           .length = { LENGTH, 40 },
                           .out = { want, want + LENGTH * VOCAB } };
    struct clb_arch a;
    struct tiny file;
    struct rig g;

    tiny_arch(&a);
    build(&file, &a, CLB_INT8);
    const struct rig_options o = on_device(&file);
    for (unsigned n = 0; n < 2; n++) {
        CHECK(rig_open(&g, &o));
        g.be->dnn.n_plan = n ? 1 : g.be->dnn.n_plan;
        emu_streams_late(n, 3);
        CHECK(rig_run(&g, &b));
        emu_streams_late(false, 0);
        rig_close(&g);
        b.out[0] = got;
        b.out[1] = got + LENGTH * VOCAB;
    }
    CHECK(!memcmp(want, got, sizeof got));
    tiny_free(&file);
}

/* -- what it cannot do ------------------------------------------------------------------------- */

static void has_only_ours(const char *what, const struct clb_arch *a, const char *why)
{
    char text[1200];
    struct tiny file;

    build(&file, a, CLB_INT8);
    struct rig_options o = on_device(&file);
    describe(&o, text, sizeof text);
    CHECK_HAS(text, "; cuDNN 9.19.0 has attention of prompts in 0 of ");
    CHECK_HAS(text, why);
    CHECK(apart(what, &o, (struct cut){ 1, LENGTH, LENGTH }, 0) == 0);
    tiny_free(&file);
}

static void other_layers_are_ours(void)
{
    char text[1200];
    struct clb_arch a;
    struct tiny file;

    rig_latent_arch(&a);
    has_only_ours("latent attention", &a, "(others: latent attention)");
    tiny_arch(&a);
    a.head_dim = 20;
    has_only_ours("odd heads", &a, "(others: heads are no multiple of 8)");
    tiny_arch(&a);
    a.attn_softcap = 3;
    has_only_ours("a cap", &a, "(others: scores are capped)");
    tiny_arch(&a);
    a.sinks = true;
    a.chunk[0] = 70;
    has_only_ours("sinks", &a, "(others: sinks)");
    emu_capability(7, 5);
    tiny_arch(&a);
    has_only_ours("an old device", &a, "(others: compute capability below 8.0)");
    emu_capability(8, 0);
    tiny_arch(&a);
    a.n_layer = 3;
    a.window[1] = 50;
    a.chunk[2] = 70;
    a.layer_experts[2] = a.n_expert;
    build(&file, &a, CLB_INT8);
    struct rig_options o = on_device(&file);
    describe(&o, text, sizeof text);
    CHECK_HAS(text, "in 1 of 3 layers (others: a window, chunks)");
    CHECK(apart("a layer of three", &o, (struct cut){ 1, LENGTH, LENGTH }, 1) < 0.01);
    tiny_free(&file);
}

/* Known when activations are made; then the words are those of the KV cache. */
static void other_caches_are_ours(void)
{
    static const char *const why[] = { [CLB_KV_F32] = "(others: a window, a KV cache in f32)",
                                       [CLB_KV_F16] = "(others: a window)",
                                       [CLB_KV_INT8] = "(others: a window, a KV cache in int8)" };
    char text[1200];
    struct clb_arch a;
    struct tiny file;

    tiny_arch(&a);
    a.window[1] = 50;
    build(&file, &a, CLB_INT8);
    struct rig_options o = on_device(&file);
    for (o.kv = CLB_KV_F32; o.kv <= CLB_KV_INT8; o.kv++) {
        bool f16 = o.kv == CLB_KV_F16;

        describe(&o, text, sizeof text);
        CHECK_HAS(text, f16 ? " in 1 of 2 layers " : " in 0 of 2 layers ");
        CHECK_HAS(text, why[o.kv]);
        if (o.kv == CLB_KV_F32)
            CHECK(apart("f32", &o, (struct cut){ 1, LENGTH, LENGTH }, 0) == 0);
    }
    tiny_free(&file);
}

/* -- a library that is not as it should be ----------------------------------------------------- */

static bool runs(const struct rig_options *o, struct clb_err *err)
{
    static float out[VOCAB * 40];
    struct rig g;
    bool ok = rig_try_open(&g, o, err);

    if (ok &&
        !rig_run(&g,
                 &(struct rig_batch){
                     .n_seq = 1, .chunk = 40, .ids = { ids }, .length = { 40 }, .out = { out } })) {
        ok = false;
        clb_fail(err, CLB_DEVICE, "cuDNN: in a pass");
    }
    rig_close(&g);
    return ok;
}

static void refused(const struct rig_options *o, const char *why)
{
    struct clb_err err = { 0 };

    CHECK(!runs(o, &err));
    CHECK_HAS(err.text, "attention by cuDNN: ");
    CHECK_HAS(err.text, why);
    CHECK_EQ(err.code, CLB_UNSUPPORTED);
    CHECK_EQ(emu_leaks(), 0);
}

static void bad_libraries(void)
{
    static const char *const call[] = {
        "cudnnCreate",
        "cudnnSetStream",
        "cudnnBackendCreateDescriptor",
        "cudnnBackendSetAttribute",
        "cudnnBackendFinalize",
        "cudnnBackendGetAttribute",
        "cudnnBackendExecute",
    };
    static const int nth[] = { 1, 30, 68 }; /* on the way to the graph, if not of a later step */
    struct clb_arch a;
    struct tiny file;

    tiny_arch(&a);
    a.n_layer = 1;
    build(&file, &a, CLB_INT8);
    struct rig_options o = on_device(&file);
    emu_library("libcudnn.so.9", false, NULL);
    refused(&o, "libcudnn.so.9 is not found");
    emu_library("libcudnn.so.9", true, "cudnnBackendExecute");
    refused(&o, "libcudnn.so.9 has no cudnnBackendExecute");
    emu_library("libcudnn.so.9", true, NULL);
    emu_library_version("libcudnn.so.9", 91002);
    refused(&o, "libcudnn.so.9 is 9.10.2, but 9.11 or a later 9 is needed");
    emu_library_version("libcudnn.so.9", 0);
    for (size_t i = 0; i < sizeof call / sizeof *call; i++)
        for (size_t k = 0; k < sizeof nth / sizeof *nth; k++) {
            struct clb_err err = { 0 };
            uint64_t before = emu_calls(call[i]);

            emu_fail(call[i], nth[k], cudaErrorUnknown);
            bool ok = runs(&o, &err);
            bool reached = emu_calls(call[i]) - before >= (uint64_t)nth[k];
            CHECK(ok == !reached);
            CHECK(ok || (strstr(err.text, "cuDNN: ") && err.code == CLB_DEVICE));
            CHECK_EQ(emu_leaks(), 0);
        }
    for (int n = 1; n <= 2; n++) { /* the second choice is one that fits */
        struct clb_err err = { 0 };

        emu_fail("cudnn compiles", n, cudaErrorUnknown);
        CHECK(runs(&o, &err) == (n == 1));
        CHECK_EQ(emu_leaks(), 0);
    }
    emu_fail("", 0, cudaSuccess);
    tiny_free(&file);
}

/* What has no kernels there goes on with ours, and the description says what it said. */
static void nothing_compiles(void)
{
    char text[1200];
    struct clb_arch a;
    struct tiny file;

    tiny_arch(&a);
    build(&file, &a, CLB_INT8);
    struct rig_options o = on_device(&file);
    emu_dnn_fails_with(3008);
    emu_fail("cudnnBackendGetAttribute", 1, cudaErrorUnknown); /* then the other kind of kernels */
    describe(&o, text, sizeof text);
    CHECK_HAS(text, "in 2 of 2 layers");
    emu_fail("cudnnBackendFinalize", 68, cudaErrorUnknown); /* of the graph */
    describe(&o, text, sizeof text);
    CHECK_HAS(text, "in 0 of 2 layers (others: cuDNN: ");
    CHECK_EQ(emu_leaks(), 0);
    emu_dnn_fails_with(5000);
    emu_fail("", 0, cudaSuccess);
    tiny_free(&file);
}

int main(void)
{
    rig_tokens(ids, RIG_CONTEXT, VOCAB, 5);
    emu_configure("libraries=1");
    TEST(near_our_own);
    TEST(late_streams);
    TEST(more_shapes_than_plans);
    TEST(other_layers_are_ours);
    TEST(other_caches_are_ours);
    TEST(bad_libraries);
    TEST(nothing_compiles);
    TEST(nothing_leaks);
    return test_result();
}
