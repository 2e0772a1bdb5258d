/* test_backend_peers.c - experts on several devices: the bits of one device, whoever has which. */
#include "test/cuda-emu/backend_rig.h"
#include "test/unit/rig_archs.h"

enum { MEMORY = 64 << 20 };

static struct rig_options on_devices(const struct tiny *file, uint32_t n)
{
    return (struct rig_options){ .file = file,
                                 .op = clb_backend_device(),
                                 .devices = { n, { 2, 0, 1 } },
                                 .kv = CLB_KV_F16,
                                 .max_rows = 24 };
}

/* -- the same bits ----------------------------------------------------------------------------- */

/* Rows in chunks, then one by one, where some devices have none; streams late. */
static void check_devices(void (*fill)(struct clb_arch *a), enum clb_dtype t)
{
    const struct cut whole = { 2, 12, 7 }, single = { 1, 4, 1 };
    struct clb_arch a;
    struct tiny file;

    fill(&a);
    CHECK(tiny_build(&file,
                     &(struct tiny_options){ .arch = &a, .seed = 7, .expert = t, .dense = t }));
    struct rig_options o = on_devices(&file, 1);
    float *want = run(&o, whole);
    for (o.devices.n = 2; o.devices.n <= 3; o.devices.n++) {
        emu_streams_late(true, o.devices.n + (uint64_t)t);
        same_rows(&o, want, whole);
        same_rows(&o, want, single);
        emu_streams_late(false, 0);
    }
    free(want);
    tiny_free(&file);
}

static void same_bits_on_any_number_of_devices(void)
{
    uint64_t before = emu_calls("cudaMemcpyPeerAsync");

    check_devices(tiny_arch, CLB_INT8);
    check_devices(rig_mixed_arch, CLB_F32);
    check_devices(rig_biased_arch, CLB_BF16);
    CHECK(emu_calls("cudaMemcpyPeerAsync") - before > 100);
}

/* Devices that do not reach each other, or say so and lose what is copied, or fail to connect. */
static void without_direct_access(void)
{
    struct rig_options o = { 0 };
    struct clb_arch a;
    struct tiny file;
    struct rig g;

    tiny_arch(&a);
    CHECK(tiny_build(&file, &(struct tiny_options){
                                .arch = &a, .seed = 9, .expert = CLB_INT4, .dense = CLB_INT8 }));
    const struct cut whole = { 2, 12, 9 };
    o = on_devices(&file, 1);
    float *want = run(&o, whole);
    o.devices.n = 3;
    for (int how = 0; how < 4; how++) {
        emu_peers(how != 1);
        emu_peers_lose(how == 2);
        emu_fail("cudaDeviceEnablePeerAccess", how == 3, cudaErrorUnknown);
        CHECK(rig_open(&g, &o));
        const char *text = g.op->describe(g.be);
        CHECK_HAS(text, "device 2, Emulated GPU, sm_80");
        CHECK_HAS(text, "; experts also on device 0 (Emulated GPU, sm_80, 65.0 MB to use, ");
        CHECK_HAS(text, how ? "copies through the host), device 1" : "direct copies), device 1");
        rig_close(&g);
        emu_streams_late(true, 5);
        same_rows(&o, want, whole);
        emu_streams_late(false, 0);
    }
    emu_peers_lose(false);
    free(want);
    tiny_free(&file);
}

/* Without the wait for rows, or for results, some order of the streams gives other bits. */
static void a_missing_wait_is_found(void)
{
    const struct cut once = { 1, 8, 8 };
    struct clb_arch a;
    struct tiny file;

    tiny_arch(&a);
    CHECK(tiny_build(&file, &(struct tiny_options){
                                .arch = &a, .seed = 7, .expert = CLB_INT8, .dense = CLB_INT8 }));
    struct rig_options o = on_devices(&file, 1);
    float *want = run(&o, once);
    o.devices.n = 2;
    for (int n = 1; n <= 2; n++)
        CHECK(misses_wait(&o, once, n, want));
    free(want);
    tiny_free(&file);
}

/* -- who has rows ------------------------------------------------------------------------------ */

/* All rows choose the same experts: the lowest ids, or with a bias the highest. */
static void route_all(struct tiny *file, bool highest)
{
    struct clb_reader r;
    struct clb_err err = { 0 };

    CHECK(clb_reader_open_memory(&r, file->bytes, file->n, &err));
    for (uint32_t i = 0; i < r.n_tensors; i++) {
        uint8_t *at = file->bytes + r.tensors[i].offset;

        if (r.tensors[i].spec.role == CLB_ROUTER)
            memset(at, 0, r.tensors[i].size);
        for (uint32_t e = 0; r.tensors[i].spec.role == CLB_ROUTER_BIAS && e < r.arch.n_expert; e++)
            ((float *)at)[e] = highest ? (float)e : -(float)e;
    }
    clb_reader_close(&r);
}

static void all_rows_on_one_device(void)
{
    const struct cut whole = { 2, 12, 9 };
    struct clb_arch a;

    tiny_arch(&a);
    a.router_bias = true;
    for (int highest = 0; highest < 2; highest++) {
        struct tiny file;

        CHECK(tiny_build(&file, &(struct tiny_options){
                                    .arch = &a, .seed = 7, .expert = CLB_F16, .dense = CLB_INT8 }));
        route_all(&file, highest);
        struct rig_options o = on_devices(&file, 1);
        float *want = run(&o, whole);
        o.devices.n = 3;
        emu_streams_late(true, 2);
        uint64_t waits = emu_calls("cudaStreamWaitEvent");
        same_rows(&o, want, whole);
        CHECK_EQ(emu_calls("cudaStreamWaitEvent") - waits, highest ? 2 * 2 * 2 : 0);
        emu_streams_late(false, 0);
        free(want);
        tiny_free(&file);
    }
}

/* -- memory ------------------------------------------------------------------------------------ */

static void *occupy(int device, size_t bytes)
{
    void *p = NULL;

    CHECK(cudaSetDevice(device) == cudaSuccess && cudaMalloc(&p, bytes) == cudaSuccess);
    return p;
}

/* Experts of a device, as its share of the ledger shows: bytes that it has lost. */
static size_t lost(int device, size_t before)
{
    size_t left, total;

    CHECK(cudaSetDevice(device) == cudaSuccess && cudaMemGetInfo(&left, &total) == cudaSuccess);
    return before - left;
}

/* A device with less memory has fewer experts; the ledger is what all devices have lost. */
static void shares_follow_memory(void)
{
    struct clb_arch a;
    struct rig g;

    tiny_arch(&a);
    a.n_layer = 1;
    a.n_expert = a.layer_experts[0] = 12;
    a.expert_size = 640;
    struct rig_options o = on_devices(NULL, 3);
    o.max_rows = 8;
    o.model = (struct tiny_options){ .arch = &a, .seed = 1, .expert = CLB_F32, .dense = CLB_INT8 };
    CHECK(rig_open(&g, &o));
    size_t slot = (g.reader.experts[0].size[0] + 255) & ~(size_t)255;
    size_t even[2] = { lost(0, MEMORY), lost(1, MEMORY) };
    CHECK_EQ(g.device.reserved, lost(2, MEMORY) + even[0] + even[1]);
    CHECK_EQ(even[0], even[1]);
    CHECK(even[0] > 4 * slot && even[0] < 5 * slot);
    rig_close(&g);
    size_t left = (4 * slot) * 8 / 7; /* one eighth is kept for activations */
    void *p = occupy(0, MEMORY - left);
    CHECK(rig_open(&g, &o));
    size_t less = lost(0, left), more = lost(1, MEMORY);
    CHECK_EQ(less + slot, more);
    CHECK_EQ(g.device.reserved, lost(2, MEMORY) + less + more);
    rig_close(&g);
    cudaFree(p);
    CHECK_EQ(g.device.reserved, 0);
}

/* Neither on one device nor on both: those of the first come and go, the other's stay. */
static void what_does_not_fit_comes_and_goes(void)
{
    enum { LEFT = 1600 << 10 };
    const struct cut whole = { 2, 12, 9 };
    struct clb_arch a;
    struct tiny file;
    struct rig g;

    twelve_arch(&a, 640);
    CHECK(tiny_build(&file, &(struct tiny_options){
                                .arch = &a, .seed = 6, .expert = CLB_INT8, .dense = CLB_INT8 }));
    struct rig_options o = on_devices(&file, 1);
    float *want = run(&o, whole);
    o.devices.n = 2;
    void *p = occupy(0, MEMORY - LEFT);
    for (o.slots = 2; o.slots <= 8; o.slots += 6) {
        CHECK(rig_open(&g, &o));
        CHECK(o.slots + lost(0, LEFT) / g.reader.experts[0].size[0] < 24);
        rig_close(&g);
        emu_streams_late(true, o.slots);
        same_rows(&o, want, whole);
        emu_streams_late(false, 0);
    }
    cudaFree(p);
    free(want);
    tiny_free(&file);
}

/* -- what fails -------------------------------------------------------------------------------- */

static struct rig_options small(struct clb_arch *a, uint32_t n)
{
    struct rig_options o;

    tiny_arch(a);
    o = small_options(a, CLB_INT8);
    o.devices = on_devices(NULL, n).devices;
    return o;
}

static void refused(const struct rig_options *o, enum clb_code code, const char *says)
{
    struct clb_err err = { 0 };
    struct rig g;

    CHECK(!rig_try_open(&g, o, &err));
    CHECK_EQ(err.code, code);
    CHECK_HAS(err.text, says);
    rig_close(&g);
    CHECK_EQ(g.device.reserved, 0);
    CHECK_EQ(emu_leaks(), 0);
}

static void refusals(void)
{
    struct clb_arch a;
    struct rig_options o = small(&a, 3);

    o.devices.id[2] = 3;
    refused(&o, CLB_USAGE, "there is no device 3");
    o.devices.id[2] = 2;
    refused(&o, CLB_USAGE, "device 2 is listed twice");
    o.devices.id[2] = 1;
    emu_odd_device(1, 7, 5);
    refused(&o, CLB_UNSUPPORTED, "devices 2 and 1 have compute capability 8 and 7");
    emu_odd_device(-1, 0, 0);
}

/* No memory to try a connection; for an expert; for activations. */
static void one_device_is_full(void)
{
    static const struct {
        size_t left;
        const char *says;
    } cases[] = {
        { 4 << 10, "device 1: CUDA: trying a peer: out of memory" },
        { 300 << 10, "bytes to use of device 1 have no room for an expert" },
        { 700 << 10, "CUDA: activations: " },
    };
    struct clb_arch a;
    struct rig_options o = small(&a, 3);

    a.expert_size = 640;
    o.model.expert = CLB_F32;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct clb_err err = { 0 };
        struct rig g;
        void *p = occupy(1, MEMORY - cases[i].left);

        o.max_rows = i == 2 ? 512 : 8;
        CHECK(!rig_try_open(&g, &o, &err));
        CHECK_EQ(err.code, CLB_NO_SPACE);
        CHECK_HAS(err.text, cases[i].says);
        rig_close(&g);
        cudaFree(p);
        CHECK_EQ(g.device.reserved, 0);
    }
    CHECK_EQ(emu_leaks(), 0);
}

/* On whichever device: it ends with what failed, and gives all back; or there is another way. */
static void every_call_may_fail(void)
{
    static const char *const call[] = {
        "cudaSetDevice",           "cudaMalloc",
        "cudaHostAlloc",           "cudaMemsetAsync",
        "cudaMemcpyAsync",         "cudaMemcpyPeerAsync",
        "cudaStreamWaitEvent",     "cudaEventRecord",
        "cudaStreamSynchronize",   "cudaEventCreateWithFlags",
        "cudaDeviceCanAccessPeer", "cudaDeviceEnablePeerAccess",
        "cudaLaunchKernel",
    };
    struct clb_arch a;
    struct rig_options o = small(&a, 2);

    for (size_t i = 0; i < sizeof call / sizeof *call; i++)
        for (int n = 1, quiet = 0; quiet < 2; n += n + n / 2 + 1)
            quiet += !fails_at(&o, 8, 8, call[i], n);
}

/* Copies to and from one of two peers fail: it is named, the other one's work is waited for, and
 * the next pass has the bits of before. */
static void one_peer_fails_alone(void)
{
    float want[VOCAB], got[VOCAB];
    uint32_t n_failed[3] = { 0 };
    struct clb_err err = { 0 };
    struct clb_arch a;
    struct rig_options o = small(&a, 3);
    struct rig g;
    bool failed = true;

    CHECK(rig_open(&g, &o));
    CHECK(try_pass(&g, 0, 8, want, &err));
    emu_streams_late(true, 3);
    for (int n = 1; failed; n++) {
        emu_fail("cudaMemcpyPeerAsync", n, cudaErrorUnknown);
        failed = !try_pass(&g, 0, 8, got, &err);
        emu_fail("cudaMemcpyPeerAsync", 0, cudaSuccess);
        n_failed[1] += failed && strstr(err.text, "device 1: CUDA: ExpertCompute: copying rows");
        n_failed[0] += failed && strstr(err.text, "device 0: CUDA: ExpertCompute: copying rows");
        CHECK(try_pass(&g, 0, 8, got, &err));
        CHECK(!memcmp(want, got, sizeof got));
    }
    emu_streams_late(false, 0);
    printf("# %u copies of device 1 failed, %u of device 0\n", n_failed[1], n_failed[0]);
    CHECK(n_failed[1] >= 2 && n_failed[0] >= 2); /* there and back */
    CHECK(!g.op->device->lost(g.be));
    rig_close(&g);
    CHECK_EQ(emu_leaks(), 0);
}

int main(void)
{
    rig_tokens(ids, RIG_CONTEXT, VOCAB, 5);
    emu_devices(3, MEMORY);
    TEST(same_bits_on_any_number_of_devices);
    TEST(without_direct_access);
    TEST(a_missing_wait_is_found);
    TEST(all_rows_on_one_device);
    TEST(shares_follow_memory);
    TEST(what_does_not_fit_comes_and_goes);
    TEST(refusals);
    TEST(one_device_is_full);
    TEST(every_call_may_fail);
    TEST(one_peer_fails_alone);
    TEST(nothing_leaks);
    return test_result();
}
