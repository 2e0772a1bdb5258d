/* test_backend_errors.c - the CUDA backend when a call fails, and where its memory goes. */
#include "test/cuda-emu/backend_rig.h"

/* Every call that the backend makes fails once: it ends with what failed, and gives all back. */
static void every_call_may_fail(void)
{
    static const char *const call[] = {
        "cudaSetDevice",
        "cudaMalloc",
        "cudaHostAlloc",
        "cudaMemGetInfo",
        "cudaMemsetAsync",
        "cudaMemcpyAsync",
        "cudaEventSynchronize",
        "cudaStreamWaitEvent",
        "cudaEventRecord",
        "cudaGraphLaunch",
        "cudaStreamSynchronize",
        "cudaEventCreateWithFlags",
        "cudaStreamCreateWithFlags",
    };
    struct clb_arch a;

    small_arch(&a);
    struct rig_options o = small_options(&a, CLB_INT8);
    for (size_t i = 0; i < sizeof call / sizeof *call; i++) {
        o.slots = i % 2 ? 0 : 2; /* experts that fit, or not */
        o.slots = strcmp(call[i], "cudaGraphLaunch") ? o.slots : 0;
        o.slots = strstr(call[i], "WaitEvent") ? 2 : o.slots;
        bool failed = true;
        for (int n = 1; failed; n += n / 3 + 1) {
            failed = fails_at(&o, 3, 1, call[i], n);
            if (n == 1)
                CHECK(failed);
        }
    }
}

/* The ledger has what the device says is gone, to the byte. */
static void the_ledger_is_the_devices(void)
{
    size_t before, after, total;
    struct clb_arch a;
    struct rig g;

    small_arch(&a);
    cudaMemGetInfo(&before, &total);
    const struct rig_options o = small_options(&a, CLB_INT4);
    CHECK(rig_open(&g, &o));
    cudaMemGetInfo(&after, &total);
    CHECK(g.device.used > 0);
    CHECK_EQ(g.device.reserved, before - after);
    rig_close(&g);
    CHECK_EQ(g.device.used, 0);
    CHECK_EQ(g.device.reserved, 0);
    cudaMemGetInfo(&after, &total);
    CHECK_EQ(before, after);
}

/* Activations of a few rows fit in a slab, which serves again; or not, if there are none. */
static uint64_t mallocs(bool disabled)
{
    struct clb_acts_shape shape = {
        .max_rows = 2, .max_logits = 1, .max_seqs = 1, .max_context = 64, .kv_dtype = CLB_KV_F16
    };
    struct clb_err err = { 0 };
    struct clb_arch a;
    struct rig g;

    small_arch(&a);
    struct rig_options o = small_options(&a, CLB_INT8);
    o.no_slabs = disabled;
    CHECK(rig_open(&g, &o));
    uint64_t before = emu_calls("cudaMalloc");
    for (int i = 0; i < 5; i++) {
        struct clb_acts *x;
        CHECK(g.op->acts_new(g.be, &x, &a, &shape, &err));
        g.op->acts_free(g.be, x);
    }
    uint64_t n = emu_calls("cudaMalloc") - before;
    rig_close(&g);
    return n;
}

static void slabs_serve_again(void)
{
    CHECK_EQ(mallocs(false), 1);
    CHECK_EQ(mallocs(true), 5);
}

/* What was not sent the first time is sent the second time. */
static void an_upload_that_failed_can_be_repeated(void)
{
    struct clb_err err = { 0 };
    struct clb_arch a;
    struct rig g;
    char why[512];

    small_arch(&a);
    struct rig_options o = small_options(&a, CLB_INT8);
    for (int n = 2; n < 17; n += 5) {
        emu_fail("cudaMemcpyAsync", n, cudaErrorUnknown);
        CHECK(!rig_try_open(&g, &o, &err));
        emu_fail("cudaMemcpyAsync", 0, cudaSuccess);
        if (!rig_upload(&g, 1 << 20, &err)) {
            printf("# %s\n", err.text);
            CHECK(!"the second time");
        }
        rig_close(&g);
    }
    CHECK(try_all(&o, 3, 1, why));
}

/* Which failures are final only another call can tell. */
static void a_lost_device_is_known(void)
{
    struct clb_err err = { 0 };
    float out[VOCAB];
    struct clb_arch a;
    struct rig g;

    small_arch(&a);
    const struct rig_options o = small_options(&a, CLB_INT8);
    for (int final = 0; final < 2; final++) {
        CHECK(rig_open(&g, &o));
        (final ? emu_fail_for_good : emu_fail)("cudaLaunchKernel", 2, cudaErrorLaunchFailure);
        CHECK(!try_pass(&g, 0, 1, out, &err));
        CHECK_HAS(err.text, "unspecified launch failure");
        CHECK_EQ(g.op->device->lost(g.be), final);
        CHECK_EQ(try_pass(&g, 0, 1, out, &err), !final);
        rig_close(&g);
        CHECK_EQ(emu_leaks(), 0);
        emu_fail("", 0, cudaSuccess);
    }
}

/* What CUDA cannot run, by name. */
static void refusals(void)
{
    struct clb_err err = { 0 };
    struct clb_arch a;
    struct rig g;

    small_arch(&a);
    struct rig_options o = small_options(&a, CLB_BF16);
    emu_capability(7, 5);
    CHECK(!rig_try_open(&g, &o, &err));
    CHECK_HAS(err.text, "bf16 and mxfp4 need compute capability 8.0");
    rig_close(&g);
    emu_capability(8, 0);
    a.head_dim = a.value_dim = 1040;
    a.attn_scale = 1;
    CHECK(!rig_try_open(&g, &o, &err));
    CHECK_HAS(err.text, "keys of 1040 and values of 1040 numbers");
    rig_close(&g);
    small_arch(&a);
    CHECK(rig_try_open(&g, &o, &err));
    struct clb_acts_shape shape = { .max_rows = 600000, .max_logits = 1, .max_seqs = 1 };
    struct clb_acts *x;
    CHECK(!g.op->acts_new(g.be, &x, &a, &shape, &err));
    CHECK_HAS(err.text, "passes of 600000 rows; on CUDA the most is 524280");
    rig_close(&g);
    emu_devices(1, 1 << 20);
    small_arch(&a);
    CHECK(!rig_try_open(&g, &o, &err));
    CHECK_EQ(err.code, CLB_NO_SPACE);
    rig_close(&g);
    emu_devices(1, (size_t)1 << 30);
    CHECK_EQ(emu_leaks(), 0);
}

int main(void)
{
    rig_tokens(ids, RIG_CONTEXT, VOCAB, 5);
    TEST(every_call_may_fail);
    TEST(the_ledger_is_the_devices);
    TEST(slabs_serve_again);
    TEST(an_upload_that_failed_can_be_repeated);
    TEST(a_lost_device_is_known);
    TEST(refusals);
    return test_result();
}
