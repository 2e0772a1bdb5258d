/* test_backend_host.c - experts that the CPU multiplies for the device: which ones is decided once,
 * so a row's bits depend on nothing else; they are near those of the device and of the CPU. */
#include "test/cuda-emu/backend_rig.h"
#include "test/unit/rig_archs.h"

#include "lib/model/plan.h"
#include "lib/session/infer.h"

#include <pthread.h>
#include <unistd.h>

enum { MEMORY = 64 << 20 };

static struct rig_options on_cpu(const struct tiny *file, uint32_t slots)
{
    return (struct rig_options){ .file = file,
                                 .op = clb_backend_device(),
                                 .offload = CLB_OFFLOAD_CPU,
                                 .slots = slots,
                                 .kv = CLB_KV_F16,
                                 .n_thread = 1,
                                 .max_rows = 128 };
}

/* -- how near ---------------------------------------------------------------------------------- */

/* To all experts on the device: activations are int8 instead of 16 bits, if experts are quantised;
 * else only the order of sums differs. To the CPU backend: its dense matrices take int8 as well. */
static const struct {
    double device, cpu;
} bound[CLB_DTYPE_COUNT] = {
    [CLB_F32] = { 1e-5, 2e-3 },  [CLB_F16] = { 2e-3, 5e-3 },  [CLB_BF16] = { 1e-2, 2e-2 },
    [CLB_INT8] = { 4e-2, 0.09 }, [CLB_INT4] = { 4e-2, 0.09 }, [CLB_MXFP4] = { 4e-2, 0.09 },
};

/* Some of the experts there: near to all of them there, and to the CPU backend; rows alone, in
 * chunks and in batches with the same bits; streams late. */
static void check_arch(const char *what, void (*fill)(struct clb_arch *a), enum clb_dtype t,
                       uint32_t slots)
{
    const struct cut whole = { 1, LENGTH, LENGTH };
    struct clb_arch a;
    struct tiny file;

    fill(&a);
    CHECK(tiny_build(&file,
                     &(struct tiny_options){ .arch = &a, .seed = 3, .expert = t, .dense = t }));
    struct rig_options o = on_cpu(&file, 0);
    float *there = run(&o, whole);
    o.op = &clb_backend_cpu;
    o.offload = CLB_OFFLOAD_COPY;
    float *cpu = run(&o, whole);
    o = on_cpu(&file, slots);
    float *got = run(&o, whole);
    double d = distance(there, got), c = distance(cpu, got);
    printf("# %s, %s, %u there: %.2g of the largest logit, %.2g from the CPU\n", what,
           clb_dtype_name(t), slots, d, c);
    CHECK(d <= bound[t].device && c <= bound[t].cpu);
    CHECK(memcmp(there, got, LENGTH * VOCAB * sizeof *got));
    emu_streams_late(true, slots + (uint64_t)t);
    o.n_thread = 2;
    same_rows(&o, got, (struct cut){ 1, 3, 1 });
    emu_streams_late(false, 0);
    o.n_thread = 1;
    o.level = "scalar";
    o.no_routing_cache = true;
    same_rows(&o, got, (struct cut){ 2, 21, 17 });
    free(got);
    free(there);
    free(cpu);
    tiny_free(&file);
}

static void two_layers(struct clb_arch *a)
{
    tiny_arch(a);
    a->router_two_layers = true;
    a->top_k = 3;
}

static void near_and_with_the_same_bits(void)
{
    check_arch("plain", tiny_arch, CLB_F32, 7);
    check_arch("plain", tiny_arch, CLB_F16, 3);
    check_arch("plain", tiny_arch, CLB_MXFP4, 7);
    check_arch("mixed", rig_mixed_arch, CLB_INT8, 1);
    check_arch("latent", rig_latent_arch, CLB_INT4, 3);
    check_arch("biased", rig_biased_arch, CLB_BF16, 5);
    check_arch("biased", rig_biased_arch, CLB_INT8, 1);
    check_arch("two layers", two_layers, CLB_INT8, 2);
}

/* -- who has which ----------------------------------------------------------------------------- */

static void build_twelve(struct tiny *file, struct clb_arch *a)
{
    twelve_arch(a, 192);
    CHECK(tiny_build(file, &(struct tiny_options){
                               .arch = a, .seed = 6, .expert = CLB_INT8, .dense = CLB_F16 }));
}

static void *occupy(int device, size_t bytes)
{
    void *p = NULL;

    CHECK(cudaSetDevice(device) == cudaSuccess && cudaMalloc(&p, bytes) == cudaSuccess);
    return p;
}

/* Two devices have some, the CPU has the rest; with one, with another share, other bits. */
static void beside_several_devices(void)
{
    enum { LEFT = 600 << 10 };
    const struct cut whole = { 1, 20, 20 };
    struct clb_arch a;
    struct tiny file;
    struct rig g;

    build_twelve(&file, &a);
    struct rig_options o = on_cpu(&file, 6);
    o.max_rows = 24;
    o.devices = (struct clb_devices){ 2, { 1, 0 } };
    void *p = occupy(0, MEMORY - LEFT);
    float *want = run(&o, (struct cut){ 2, 20, 8 });
    uint64_t sent = emu_calls("cudaMemcpyPeerAsync");
    emu_streams_late(true, 9);
    same_rows(&o, want, (struct cut){ 2, 20, 7 });
    same_rows(&o, want, (struct cut){ 1, 4, 1 });
    emu_streams_late(false, 0);
    CHECK(emu_calls("cudaMemcpyPeerAsync") - sent > 20);
    CHECK(rig_open(&g, &o));
    CHECK_HAS(g.op->device->offload(g.be), " of 24 experts are multiplied by the CPU");
    rig_close(&g);
    cudaFree(p);
    o = on_cpu(&file, 12);
    float *other = run(&o, whole);
    CHECK(memcmp(want, other, (size_t)20 * VOCAB * sizeof *want));
    free(other);
    free(want);
    tiny_free(&file);
}

/* A later run takes slots back: what the device had before is copied then, by turns with what the
 * CPU has all the time. */
static void a_later_run_takes_room(void)
{
    const struct cut whole = { 2, 20, 8 };
    static float got[2][LENGTH][VOCAB];
    struct rig_batch b = { .n_seq = 2,
                           .chunk = 8,
                           .ids = { ids, ids + 1 },
                           .length = { 20, 19 },
                           .out = { got[0][0], got[1][0] } };
    struct clb_err err = { 0 };
    struct clb_arch a;
    struct tiny file;
    struct rig g;

    build_twelve(&file, &a);
    struct rig_options o = on_cpu(&file, 16);
    float *want = run(&o, whole);
    CHECK(rig_open(&g, &o));
    CHECK(!g.op->device->copies(g.be));
    uint64_t left = g.op->device->available(g.be), slot = g.reader.experts[0].size[0];
    CHECK(rig_upload(&g, left - 5 * slot, &err));
    CHECK(g.op->device->copies(g.be) && !g.op->device->shares(g.be));
    for (int seed = 1; seed < 3; seed++) {
        emu_streams_late(true, (uint64_t)seed);
        memset(got, 0, sizeof got);
        CHECK(rig_run(&g, &b));
        emu_streams_late(false, 0);
        CHECK(!memcmp(want, got[0], 20 * sizeof got[0][0]));
    }
    CHECK(!rig_upload(&g, left + slot, &err));
    CHECK_EQ(err.code, CLB_NO_SPACE);
    rig_close(&g);
    free(want);
    tiny_free(&file);
}

/* -- what is guessed --------------------------------------------------------------------------- */

/* Says what it has measured and guessed; where copies have no room the CPU it is; and it measures
 * nothing where all fit. */
static void auto_measures(void)
{
    struct clb_arch a;
    struct tiny file;
    struct rig g;

    build_twelve(&file, &a);
    for (uint32_t slots = 0; slots <= 12; slots = slots ? slots * 12 : 1) {
        struct rig_options o = on_cpu(&file, slots);

        o.offload = CLB_OFFLOAD_AUTO;
        bool is_open = rig_open(&g, &o);
        CHECK(is_open);
        if (!is_open)
            continue;
        const char *text = g.op->device->offload(g.be);
        printf("# %s\n", text);
        if (!slots)
            CHECK_STR(text, "");
        else
            CHECK_HAS(text, " of 24 experts are ");
        if (slots == 1)
            CHECK_HAS(text, "23 of 24 experts are multiplied by the CPU; ");
        if (slots == 1)
            CHECK_HAS(text, "for copies there is no room");
        if (slots == 12)
            CHECK_HAS(text, "GB/s, 50 % are there)");
        rig_close(&g);
    }
    struct rig_options o = on_cpu(&file, 12);
    o.offload = CLB_OFFLOAD_COPY;
    CHECK(rig_open(&g, &o));
    CHECK_STR(g.op->device->offload(g.be), "12 of 24 experts are copied when they are wanted");
    rig_close(&g);
    tiny_free(&file);
}

/* -- mistakes and failures --------------------------------------------------------------------- */

/* Without Gather's wait for results of the CPU, some order of the streams gives other bits. */
static void a_missing_wait_is_found(void)
{
    const struct cut once = { 1, 8, 8 };
    struct clb_arch a;
    struct tiny file;

    tiny_arch(&a);
    CHECK(tiny_build(&file, &(struct tiny_options){
                                .arch = &a, .seed = 7, .expert = CLB_INT8, .dense = CLB_INT8 }));
    struct rig_options o = on_cpu(&file, 4);
    float *want = run(&o, once);
    CHECK(misses_wait(&o, once, 1, want));
    free(want);
    tiny_free(&file);
}

/* It ends with what failed, and gives all back. */
static void every_call_may_fail(void)
{
    static const char *const call[] = {
        "cudaSetDevice",        "cudaMalloc",
        "cudaHostAlloc",        "cudaMemsetAsync",
        "cudaMemcpyAsync",      "cudaStreamWaitEvent",
        "cudaEventRecord",      "cudaStreamSynchronize",
        "cudaLaunchKernel",     "cudaEventCreateWithFlags",
        "cudaEventSynchronize", "cudaStreamCreateWithFlags",
    };
    struct clb_arch a;

    tiny_arch(&a);
    for (int mode = CLB_OFFLOAD_CPU; mode <= CLB_OFFLOAD_AUTO; mode++)
        for (size_t i = 0; i < sizeof call / sizeof *call; i++) {
            struct rig_options o = on_cpu(NULL, 4);

            o.offload = (enum clb_offload)mode;
            o.model = (struct tiny_options){ .arch = &a, .expert = CLB_INT8, .dense = CLB_INT8 };
            o.max_rows = 3;
            bool failed = true;
            for (int n = 1; failed; n += n + n / 2 + 1)
                failed = fails_at(&o, 3, 1, call[i], n);
        }
}

/* A pass that ends well: how often the host has waited. */
static uint64_t waits_of(struct rig *g, const struct rig_batch *b)
{
    uint64_t before = emu_calls("cudaStreamSynchronize");

    CHECK(rig_run(g, b));
    return emu_calls("cudaStreamSynchronize") - before;
}

/* After a pass that failed anywhere the next one has its bits, and waits first for what the other
 * has left on three streams: its own, that of the CPU's results, and the other device's. */
static void a_failed_pass_leaves_nothing(void)
{
    enum { LEFT = 600 << 10 };
    const struct cut whole = { 1, 12, 12 };
    static float got[LENGTH][VOCAB];
    struct rig_batch b = {
        .n_seq = 1, .chunk = 12, .ids = { ids }, .length = { 12 }, .out = { got[0] }
    };
    struct clb_arch a;
    struct tiny file;
    struct rig g;

    build_twelve(&file, &a);
    struct rig_options o = on_cpu(&file, 6);
    o.max_rows = 12;
    o.devices = (struct clb_devices){ 2, { 1, 0 } };
    void *p = occupy(0, MEMORY - LEFT);
    float *want = run(&o, whole);
    CHECK(rig_open(&g, &o));
    bool failed = true;
    uint64_t usual = waits_of(&g, &b);
    for (int n = 1; failed; n++) {
        emu_streams_late(true, (uint64_t)n);
        emu_fail("cudaMemcpyAsync", n, cudaErrorUnknown);
        b.ids[0] = ids + 20; /* other rows, other experts */
        failed = !rig_run(&g, &b);
        b.ids[0] = ids;
        emu_fail("cudaMemcpyAsync", 0, cudaSuccess);
        CHECK(failed || n > 8);
        CHECK_EQ(waits_of(&g, &b), usual + (failed ? 3 : 0));
        CHECK(!memcmp(want, got, 12 * sizeof got[0]));
        emu_streams_late(false, 0);
    }
    rig_close(&g);
    cudaFree(p);
    free(want);
    tiny_free(&file);
}

/* -- through model and session ----------------------------------------------------------------- */

enum { THREADS = 3 };

struct worker {
    struct clb_model *m;
    uint32_t i;
    bool ok;
    struct clb_err why;
    float logits[12][VOCAB];
};

static void *infer(void *arg)
{
    struct worker *w = arg;
    struct clb_infer_job job = {
        .ids = ids + w->i, .logits = w->logits[0], .batch = 1, .length = 12 - w->i
    };

    w->ok = clb_infer(w->m, &job, NULL, &w->why);
    return NULL;
}

/* Sessions one after the other; `beside`: then side by side, which take turns. False: no memory. */
static bool check_sessions(struct worker of[THREADS], const char *path, uint64_t memory,
                           bool beside)
{
    static struct worker again[THREADS];
    struct clb_model_source from = { .path = path };
    struct clb_model_options o = { .n_thread = 1,
                                   .backend = "cuda",
                                   .gpu_memory = 900 << 10,
                                   .memory = memory,
                                   .offload = CLB_OFFLOAD_CPU };
    pthread_t thread[THREADS];
    struct clb_model *m = NULL;
    struct clb_err err = { 0 };

    bool ok = clb_model_open(&m, &from, &o, &err);
    for (uint32_t i = 0; ok && i < THREADS; i++) {
        of[i] = again[i] = (struct worker){ .m = m, .i = i };
        infer(&of[i]);
        ok = of[i].ok;
        err = of[i].why;
    }
    CHECK(ok || err.code == CLB_NO_SPACE);
    if (ok && beside) {
        CHECK_HAS(m->offload, " of 24 experts are multiplied by the CPU");
        CHECK(!clb_model_take_pass(m, false));
        clb_model_end_pass(m, false);
        for (int i = 0; i < THREADS; i++)
            CHECK(!pthread_create(&thread[i], NULL, infer, &again[i]));
        for (int i = 0; i < THREADS; i++) {
            pthread_join(thread[i], NULL);
            CHECK(again[i].ok && !memcmp(of[i].logits, again[i].logits, sizeof of[i].logits));
        }
        CHECK(m->ledger[CLB_POOL_HOST].peak > 12 * 4 * 64 * sizeof(float));
        CHECK_EQ(m->ledger[CLB_POOL_HOST].used, 0);
    }
    clb_model_close(m);
    return ok;
}

/* Under the lowest limit of memory that will do, the store gives the experts of a layer piece by
 * piece; under another one all at once. */
static void sessions_take_turns(void)
{
    static struct worker all[THREADS], least[THREADS];
    char path[] = "/tmp/colibri-host-XXXXXX";
    int fd = mkstemp(path);
    uint64_t memory = 0;
    struct clb_arch a;
    struct tiny file;

    build_twelve(&file, &a);
    CHECK(fd >= 0 && write(fd, file.bytes, file.n) == (ssize_t)file.n);
    close(fd);
    CHECK(check_sessions(all, path, 0, true));
    CHECK(check_sessions(all, path, 64 << 20, true));
    do
        memory += 32 << 10;
    while (!check_sessions(least, path, memory, false));
    printf("# a limit of %u bytes, a file of %u\n", (unsigned)memory, (unsigned)file.n);
    CHECK(memory < file.n);
    for (int i = 0; i < THREADS; i++)
        CHECK(!memcmp(all[i].logits, least[i].logits, sizeof all[i].logits));
    unlink(path);
    tiny_free(&file);
}

/* -- auto -------------------------------------------------------------------------------------- */

static struct clb_model *open_auto(const struct tiny *file, const char *backend)
{
    struct clb_model_source from = { .bytes = file->bytes, .n = file->n };
    struct clb_model_options o = { .n_thread = 1, .backend = backend, .gpu_memory = 1 << 20 };
    struct clb_model *m = NULL;
    struct clb_err err = { 0 };

    if (!clb_model_open(&m, &from, &o, &err))
        printf("# %s\n", err.text);
    return m;
}

/* A plan says where a run would be and changes nothing; the first run decides, for good. */
static void auto_leaves_a_device_that_is_too_small(void)
{
    static float cpu[20][VOCAB], got[20][VOCAB];
    const struct clb_run_shape large = {
        .acts = { .max_rows = 512, .max_logits = 512, .max_seqs = 1, .max_context = 512 },
        .kv_default = true,
        .n_block = 8,
    };
    struct clb_infer_job job = { .ids = ids, .logits = cpu[0], .batch = 1, .length = 20 };
    struct clb_err err = { 0 };
    struct clb_memory_plan p;
    struct clb_arch a;
    struct tiny file;

    tiny_arch(&a);
    CHECK(tiny_build(&file, &(struct tiny_options){
                                .arch = &a, .seed = 6, .expert = CLB_F32, .dense = CLB_F32 }));
    struct clb_model *m = open_auto(&file, "cpu");
    CHECK(m && clb_infer(m, &job, NULL, &err));
    clb_model_close(m);
    CHECK((m = open_auto(&file, "auto")) != NULL);
    CHECK(clb_plan_run(&p, m, &large, &err) && p.op == &clb_backend_cpu && !p.device);
    CHECK_EQ(p.kv_dtype, CLB_KV_F32);
    CHECK_HAS(p.why_cpu, "bytes on the device beside the weights");
    CHECK_STR(clb_model_place(m).op->name, "cuda");
    CHECK_HAS(p.why_cpu, " are left there under the limit of GPU memory; a shorter context needs "
                         "less, a higher limit leaves more");
    CHECK_STR(clb_model_place(m).why_cpu, "");
    CHECK(!clb_model_place(m).device_unused);
    CHECK(clb_model_settle(m, p.op, p.why_cpu)); /* such a run opens */
    CHECK_STR(clb_model_place(m).op->name, "cpu");
    CHECK_STR(clb_model_place(m).why_cpu, p.why_cpu);
    CHECK(clb_model_place(m).device_unused);
    job.logits = got[0];
    CHECK(clb_infer(m, &job, NULL, &err));
    CHECK(!memcmp(cpu, got, sizeof got));
    CHECK_EQ(m->device.used, 0);
    clb_model_close(m);

    CHECK((m = open_auto(&file, NULL)) != NULL);
    CHECK(clb_infer(m, &job, NULL, &err)); /* a small one first */
    CHECK_STR(clb_model_place(m).op->name, "cuda");
    CHECK(clb_plan_run(&p, m, &large, &err) && p.op == m->op);
    CHECK(!clb_plan_check(&p, &err));
    CHECK_EQ(err.code, CLB_NO_SPACE);
    CHECK_STR(err.field, "gpu_memory");
    CHECK_HAS(err.text, "a higher limit leaves more, or use the backend 'cpu'");
    CHECK(!clb_model_settle(m, &clb_backend_cpu, "too late"));
    clb_model_close(m);
    tiny_free(&file);
}

int main(void)
{
    rig_tokens(ids, RIG_CONTEXT, VOCAB, 5);
    emu_devices(2, MEMORY);
    TEST(near_and_with_the_same_bits);
    TEST(beside_several_devices);
    TEST(a_later_run_takes_room);
    TEST(auto_measures);
    TEST(a_missing_wait_is_found);
    TEST(every_call_may_fail);
    TEST(a_failed_pass_leaves_nothing);
    TEST(sessions_take_turns);
    TEST(auto_leaves_a_device_that_is_too_small);
    TEST(nothing_leaks);
    return test_result();
}
