/* test_backend_pinned.c - experts that are copied from memory that was registered: the mapping, or
 * the cache of a memory limit; and through buffers, with the reason, where that cannot be. */
#include "test/cuda-emu/backend_rig.h"

#include "lib/model/model.h"
#include "lib/session/infer.h"

#include <unistd.h>

enum { ROWS = 24, GPU = 620 << 10 };

static char path[] = "/tmp/colibri-pinned-XXXXXX";
static struct tiny file;
static float all_there[ROWS][VOCAB], got[ROWS][VOCAB];

static void build(void)
{
    int fd = mkstemp(path);
    struct clb_arch a;

    twelve_arch(&a, 192);
    CHECK(tiny_build(&file, &(struct tiny_options){
                                .arch = &a, .seed = 6, .expert = CLB_INT8, .dense = CLB_F16 }));
    CHECK(fd >= 0 && write(fd, file.bytes, file.n) == (ssize_t)file.n);
    close(fd);
}

static struct clb_model *open_model(const struct clb_model_source *from, uint64_t gpu,
                                    uint64_t memory)
{
    struct clb_model_options o = {
        .n_thread = 1, .backend = "cuda", .gpu_memory = gpu, .memory = memory
    };
    struct clb_model *m = NULL;
    struct clb_err err = { 0 };

    if (!clb_model_open(&m, from, &o, &err))
        printf("# %s\n", err.text);
    CHECK(m);
    return m;
}

static void infer(struct clb_model *m, float *logits)
{
    struct clb_infer_job job = { .ids = ids, .logits = logits, .batch = 1, .length = ROWS };
    struct clb_err err = { 0 };

    if (!clb_infer(m, &job, NULL, &err)) {
        printf("# %s\n", err.text);
        CHECK(!"infer");
    }
}

/* The bits of a device that has all; streams late, by several seeds. Its `offload` text ends so. */
static void check_run(const struct clb_model_source *from, uint64_t memory, const char *says)
{
    struct clb_model *m = open_model(from, GPU, memory);

    for (uint64_t seed = 1; m && seed < 4; seed++) {
        memset(got, 0, sizeof got);
        emu_streams_late(true, seed);
        infer(m, got[0]);
        emu_streams_late(false, 0);
        CHECK(!memcmp(all_there, got, sizeof got));
    }
    if (m)
        CHECK_HAS(m->offload, says);
    clb_model_close(m);
    CHECK_EQ(emu_leaks(), 0);
}

static const struct clb_model_source on_disk = { .path = path };

static void the_mapping_is_registered_once(void)
{
    struct clb_model *m = open_model(&on_disk, 0, 0);
    uint64_t before = emu_calls("cudaHostRegister");

    infer(m, all_there[0]);
    CHECK_STR(m->offload, "");
    CHECK_EQ(emu_calls("cudaHostRegister"), before); /* all experts fit */
    clb_model_close(m);
    uint64_t bytes = emu_copied(cudaMemcpyHostToDevice);
    check_run(&on_disk, 0, " experts are copied when they are wanted; copies go directly: ");
    CHECK(emu_copied(cudaMemcpyHostToDevice) - bytes > file.n);
    CHECK_EQ(emu_calls("cudaHostRegister") - before, 1);
}

/* The lowest limit under which a run opens: the cache has few blocks, and each is soon another
 * expert's. */
static uint64_t lowest_limit(void)
{
    struct clb_infer_job job = { .ids = ids, .logits = got[0], .batch = 1, .length = ROWS };
    struct clb_model_options o = { .n_thread = 1, .backend = "cuda", .gpu_memory = GPU };
    bool ok = false;

    for (o.memory = 256 << 10; !ok; o.memory += 16 << 10) {
        struct clb_err err = { 0 };
        struct clb_model *m = NULL;

        ok = clb_model_open(&m, &on_disk, &o, &err) && clb_infer(m, &job, NULL, &err);
        CHECK(ok || err.code == CLB_NO_SPACE);
        clb_model_close(m);
    }
    return o.memory - (16 << 10);
}

/* What people are told. */
static void says_bytes(const struct clb_model *m)
{
    char text[80];

    snprintf(text, sizeof text, "; copies go directly: %.1f MB are registered",
             (double)clb_experts_held_bytes(m->experts) / 1e6);
    CHECK_HAS(m->offload, text);
}

/* Each block of the cache; fewer when a run takes memory. */
static void the_cache_is_registered(void)
{
    uint64_t before = emu_calls("cudaHostRegister");
    struct clb_err err = { 0 };

    check_run(&on_disk, 1200 << 10, "; copies go directly: ");
    CHECK(emu_calls("cudaHostRegister") - before > 8);
    check_run(&on_disk, lowest_limit(), "; copies go directly: ");
    struct clb_model *m = open_model(&on_disk, GPU, 1200 << 10);
    infer(m, got[0]);
    uint64_t held = clb_experts_held_bytes(m->experts), gone = emu_calls("cudaHostUnregister");
    says_bytes(m);
    CHECK(clb_model_commit(m, held / 2, 1, &err));
    CHECK(clb_experts_held_bytes(m->experts) < held);
    says_bytes(m);
    CHECK(emu_calls("cudaHostUnregister") - gone >= 2);
    clb_model_release(m, held / 2, 1);
    before = emu_calls("cudaHostRegister");
    infer(m, got[0]); /* the cache grows again */
    CHECK(emu_calls("cudaHostRegister") > before);
    says_bytes(m);
    CHECK(!memcmp(all_there, got, sizeof got));
    clb_model_close(m);
    CHECK_EQ(emu_leaks(), 0);
}

static void where_it_cannot_be_buffers_serve(void)
{
    const struct clb_model_source caller = { .bytes = file.bytes, .n = file.n };

    check_run(&caller, 0, "; copies go through buffers: the file is memory of the caller");
    emu_fail("cudaHostRegister", 1, cudaErrorNotSupported);
    check_run(&on_disk, 0,
              "; copies go through buffers: CUDA: registering memory of the host: operation not");
    emu_fail("cudaHostRegister", 3, cudaErrorMemoryAllocation);
    uint64_t gone = emu_calls("cudaHostUnregister");
    check_run(&on_disk, 1200 << 10,
              "through buffers: CUDA: registering memory of the host: out of");
    CHECK_EQ(emu_calls("cudaHostUnregister") - gone, 2); /* those before it */
    emu_fail("cudaHostRegister", 0, cudaSuccess);
}

int main(void)
{
    rig_tokens(ids, RIG_CONTEXT, VOCAB, 5);
    build();
    TEST(the_mapping_is_registered_once);
    TEST(the_cache_is_registered);
    TEST(where_it_cannot_be_buffers_serve);
    unlink(path);
    tiny_free(&file);
    return test_result();
}
