/* test_backend_peers.c - experts on several devices: the bits of one device, whoever has which. */
#include "test/cuda-emu/backend_rig.h"
#include "test/unit/rig_archs.h"

enum { MEMORY = 64 << 20 };

/* One device, two, three, all streams late; devices that reach each other or do not. */
static void check_devices(void (*fill)(struct clb_arch *a), enum clb_dtype t)
{
    const struct cut whole = { 2, 20, 7 };
    struct clb_arch a;
    struct tiny file;

    fill(&a);
    CHECK(tiny_build(&file,
                     &(struct tiny_options){ .arch = &a, .seed = 7, .expert = t, .dense = t }));
    emu_devices(3, MEMORY);
    struct rig_options o = {
        .file = &file, .op = clb_backend_device(), .kv = CLB_KV_F16, .max_rows = 64
    };
    float *want = run(&o, whole);
    uint64_t before = emu_calls("cudaMemcpyPeerAsync");
    o.devices = (struct clb_devices){ .id = { 2, 0, 1 } };
    for (o.devices.n = 2; o.devices.n <= 3; o.devices.n++) {
        emu_peers(o.devices.n == 2);
        same_rows(&o, want, whole);
        emu_streams_late(true, o.devices.n);
        same_rows(&o, want, whole);
        emu_streams_late(false, 0);
    }
    CHECK(emu_calls("cudaMemcpyPeerAsync") - before > 100);
    emu_peers(true);
    free(want);
    tiny_free(&file);
}

static void same_bits_on_any_number_of_devices(void)
{
    check_devices(tiny_arch, CLB_INT8);
    check_devices(rig_mixed_arch, CLB_F32);
    check_devices(rig_biased_arch, CLB_BF16);
}

static void what_does_not_work(void)
{
    struct clb_err err = { 0 };
    struct clb_arch a;
    struct rig g;

    tiny_arch(&a);
    struct rig_options o = { .model = { .arch = &a, .expert = CLB_INT8, .dense = CLB_INT8 },
                             .op = clb_backend_device(),
                             .kv = CLB_KV_F16,
                             .max_rows = 8,
                             .devices = { 4, { 0, 1, 2, 3 } } };
    emu_devices(3, MEMORY);
    CHECK(!rig_try_open(&g, &o, &err));
    CHECK_HAS(err.text, "there is no device 3");
    rig_close(&g);
    o.devices.n = 3;
    for (int n = 1; n < 40; n += 5) { /* on whichever device it is */
        emu_fail("cudaMalloc", n, cudaErrorMemoryAllocation);
        bool ok = rig_try_open(&g, &o, &err);
        emu_fail("cudaMalloc", 0, cudaSuccess);
        CHECK(ok || err.code == CLB_NO_SPACE);
        CHECK(n > 1 || !ok);
        rig_close(&g);
        CHECK_EQ(emu_leaks(), 0);
        CHECK_EQ(g.device.reserved, 0);
    }
}

static void nothing_leaks(void)
{
    CHECK_EQ(emu_leaks(), 0);
}

int main(void)
{
    rig_tokens(ids, RIG_CONTEXT, VOCAB, 5);
    TEST(same_bits_on_any_number_of_devices);
    TEST(what_does_not_work);
    TEST(nothing_leaks);
    return test_result();
}
