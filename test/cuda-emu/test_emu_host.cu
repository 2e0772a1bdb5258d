// test_emu_host.cu - the host side of the emulation: graphs, devices that reach each other or not,
// drivers that are missing, calls that fail. Every mistake here is planted.
#include "test/cuda-emu/emu_test.h"

static __global__ void add_to(int *to, const int *from, int n)
{
    to[threadIdx.x] = from[threadIdx.x] + n;
}

// -- graphs --------------------------------------------------------------------------------------

struct event {
    cudaEvent_t e;
    event()
    {
        OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    }
    ~event()
    {
        OK(cudaEventDestroy(e));
    }
};

static cudaGraphExec_t instantiate(cudaStream_t s)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    OK(cudaStreamEndCapture(s, &graph));
    OK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    return exec;
}

// Upload, kernel, download: nothing happens before the launch, and all of it at each.
static void a_captured_stream_is_a_graph(void)
{
    stream s;
    device<int> a(std::vector<int>{ 7, 7 }), b(2);
    int *in, *out;
    cudaStreamCaptureStatus status;

    OK(cudaHostAlloc((void **)&in, 8, cudaHostAllocDefault));
    OK(cudaHostAlloc((void **)&out, 8, cudaHostAllocDefault));
    out[0] = 5;
    OK(cudaStreamBeginCapture(s.s, cudaStreamCaptureModeThreadLocal));
    OK(cudaStreamIsCapturing(s.s, &status));
    CHECK_EQ(status, cudaStreamCaptureStatusActive);
    OK(cudaMemcpyAsync(a.p, in, 8, cudaMemcpyHostToDevice, s.s));
    CLB_LAUNCH(add_to, 1, 2, 0, s.s, b.p, a.p, 10);
    OK(cudaMemcpyAsync(out, b.p, 8, cudaMemcpyDeviceToHost, s.s));
    cudaGraphExec_t exec = instantiate(s.s);
    OK(cudaStreamIsCapturing(s.s, &status));
    CHECK_EQ(status, cudaStreamCaptureStatusNone);
    CHECK_EQ(a.get()[0], 7);
    CHECK_EQ(out[0], 5);
    for (int late = 0; late < 2; late++) {
        emu_streams_late(late, 3);
        for (int i = 1; i < 4; i++) {
            in[0] = i;
            in[1] = 2 * i;
            OK(cudaGraphLaunch(exec, s.s));
            CHECK_EQ(out[0] == -1, late); // nobody may read it before
            OK(cudaStreamSynchronize(s.s));
            CHECK_EQ(out[0], 10 + i);
            CHECK_EQ(out[1], 10 + 2 * i);
        }
    }
    emu_streams_late(false, 0);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaFreeHost(in));
    OK(cudaFreeHost(out));
}

// A graph with a branch: b and c come from a on two streams, d from both. leave_out: an event that
// is missing. Whether a launch gives the right result.
static bool branches(uint64_t seed, bool leave_out)
{
    stream one, two;
    event forked, joined;
    device<int> a(std::vector<int>{ 0 }), b(1), c(1), d(1);

    OK(cudaStreamBeginCapture(one.s, cudaStreamCaptureModeThreadLocal));
    if (leave_out)
        OK(cudaEventRecord(forked.e, one.s));
    CLB_LAUNCH(add_to, 1, 1, 0, one.s, b.p, a.p, 1);
    if (!leave_out)
        OK(cudaEventRecord(forked.e, one.s));
    OK(cudaStreamWaitEvent(two.s, forked.e, 0));
    CLB_LAUNCH(add_to, 1, 1, 0, two.s, c.p, b.p, 10);
    OK(cudaEventRecord(joined.e, two.s));
    CLB_LAUNCH(add_to, 1, 1, 0, one.s, a.p, b.p, 0);
    OK(cudaStreamWaitEvent(one.s, joined.e, 0));
    CLB_LAUNCH(add_to, 1, 1, 0, one.s, d.p, c.p, 100);
    cudaGraphExec_t exec = instantiate(one.s);
    emu_streams_late(true, seed);
    OK(cudaGraphLaunch(exec, one.s));
    bool right = d.get()[0] == 111;
    emu_streams_late(false, 0);
    OK(cudaGraphExecDestroy(exec));
    return right;
}

static void branches_of_a_graph_take_turns(void)
{
    for (int leave_out = 0; leave_out < 2; leave_out++) {
        int wrong = 0;
        for (uint64_t seed = 0; seed < 20; seed++)
            wrong += !branches(seed, leave_out);
        CHECK_EQ(wrong > 0, leave_out > 0);
    }
}

static void capture(const std::function<void(cudaStream_t)> &wrong)
{
    stream s;

    OK(cudaStreamBeginCapture(s.s, cudaStreamCaptureModeThreadLocal));
    wrong(s.s);
}

static void what_a_capture_forbids(void)
{
    device<int> a(1);
    int pageable;
    void *p;
    cudaGraph_t graph;
    event outside;
    stream other;

    CHECK(dies("cudaMalloc while", [&] { capture([&](cudaStream_t) { OK(cudaMalloc(&p, 1)); }); }));
    CHECK(dies("the stream is captured",
               [&] { capture([&](cudaStream_t s) { OK(cudaStreamSynchronize(s)); }); }));
    CHECK(dies("pageable memory", [&] {
        capture([&](cudaStream_t s) {
            OK(cudaMemcpyAsync(a.p, &pageable, 4, cudaMemcpyHostToDevice, s));
        });
    }));
    CHECK(dies("event from outside", [&] {
        OK(cudaEventRecord(outside.e, other.s));
        capture([&](cudaStream_t s) { OK(cudaStreamWaitEvent(s, outside.e, 0)); });
    }));
    CHECK(dies("is not awaited", [&] {
        capture([&](cudaStream_t s) {
            OK(cudaEventRecord(outside.e, s));
            OK(cudaStreamWaitEvent(other.s, outside.e, 0));
            CLB_LAUNCH(add_to, 1, 1, 0, other.s, a.p, a.p, 1);
            OK(cudaStreamEndCapture(s, &graph));
        });
    }));
    CHECK(dies("has ended", [&] {
        capture([&](cudaStream_t s) {
            OK(cudaEventRecord(outside.e, s));
            OK(cudaStreamEndCapture(s, &graph));
            OK(cudaStreamWaitEvent(other.s, outside.e, 0));
        });
    }));
    CHECK(dies("no capture began", [&] { OK(cudaStreamEndCapture(other.s, &graph)); }));
    CHECK(dies("no executable graph", [&] { OK(cudaGraphLaunch(nullptr, other.s)); }));
}

static void graphs_that_leak_are_counted(void)
{
    stream s;
    int before = emu_leaks();

    OK(cudaStreamBeginCapture(s.s, cudaStreamCaptureModeGlobal));
    cudaGraphExec_t exec = instantiate(s.s);
    CHECK_EQ(emu_leaks(), before + 1);
    OK(cudaGraphLaunch(exec, s.s)); // an empty one is fine
    OK(cudaGraphExecDestroy(exec));
    CHECK_EQ(emu_leaks(), before);
}

// -- devices -------------------------------------------------------------------------------------

static void devices_and_their_memory(void)
{
    void *p;
    int n;
    size_t available, total;
    cudaDeviceProp about;

    emu_devices(2, 1000);
    OK(cudaGetDeviceCount(&n));
    CHECK_EQ(n, 2);
    CHECK_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
    OK(cudaSetDevice(1));
    OK(cudaGetDevice(&n));
    CHECK_EQ(n, 1);
    CHECK_EQ(cudaMalloc(&p, 1001), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p, 600));
    OK(cudaMemGetInfo(&available, &total));
    CHECK_EQ(available, 400);
    CHECK_EQ(total, 1000);
    OK(cudaSetDevice(0));
    OK(cudaMemGetInfo(&available, &total));
    CHECK_EQ(available, 1000);
    OK(cudaFree(p));
    emu_capability(7, 5);
    OK(cudaGetDeviceProperties(&about, 1));
    CHECK_EQ(about.major, 7);
    OK(cudaDeviceGetAttribute(&n, cudaDevAttrComputeCapabilityMinor, 1));
    CHECK_EQ(n, 5);
    CHECK_EQ(cudaGetDeviceProperties(&about, 2), cudaErrorInvalidDevice);
    emu_capability(8, 0);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
    emu_devices(1, (size_t)1 << 30);
}

static void no_driver_and_no_device(void)
{
    void *p;
    int n;

    emu_devices(0, 0);
    CHECK_EQ(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    CHECK_EQ(cudaMalloc(&p, 1), cudaErrorNoDevice);
    emu_driver(12040);
    CHECK_EQ(cudaGetDeviceCount(&n), cudaErrorInsufficientDriver);
    OK(cudaDriverGetVersion(&n));
    CHECK_EQ(n, 12040);
    emu_driver(CUDART_VERSION + 10);
    emu_devices(1, (size_t)1 << 30);
    OK(cudaGetDeviceCount(&n));
    CHECK_EQ(cudaGetLastError(), cudaErrorInsufficientDriver);
}

// A kernel of device 0 reads memory of device 1.
static void read_peer(void)
{
    stream s;
    device<int> here(1);

    OK(cudaSetDevice(1));
    device<int> there(std::vector<int>{ 3 });
    OK(cudaSetDevice(0));
    CLB_LAUNCH(add_to, 1, 1, 0, s.s, here.p, there.p, 1);
    CHECK_EQ(here.get()[0], 4);
}

static void peers_are_reached_when_they_may_be(void)
{
    const char *says = emu_race_build() ? "no memory of the device" : "AddressSanitizer";
    int can;

    emu_devices(2, 1 << 20);
    CHECK(dies(says, read_peer));
    OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    CHECK_EQ(can, 1);
    OK(cudaDeviceEnablePeerAccess(1, 0));
    CHECK_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
    CHECK_EQ(cudaGetLastError(), cudaErrorPeerAccessAlreadyEnabled);
    read_peer();
    OK(cudaDeviceDisablePeerAccess(1));
    CHECK(dies(says, read_peer));
    emu_peers(false);
    OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    CHECK_EQ(can, 0);
    CHECK_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessUnsupported);
    emu_peers(true);
    CHECK_EQ(cudaGetLastError(), cudaErrorPeerAccessUnsupported);
    emu_devices(1, (size_t)1 << 30);
}

static void copies_between_devices(void)
{
    emu_devices(2, 1 << 20);
    {
        stream s;
        device<int> here(std::vector<int>{ 1, 2 });
        event on_0;
        OK(cudaSetDevice(1));
        stream t;
        device<int> there(2);
        OK(cudaMemcpyPeerAsync(there.p, 1, here.p, 0, 8, s.s));
        CHECK_EQ(there.get()[1], 2);
        CHECK(dies("the memory is of",
                   [&] { OK(cudaMemcpyPeerAsync(there.p, 0, here.p, 1, 8, s.s)); }));
        CHECK(dies("memory of device 1 in a stream of device 0", [&] {
            OK(cudaMemcpyAsync(there.p, "abc", 4, cudaMemcpyHostToDevice, s.s));
        }));
        CHECK(dies("memory of device 1 in a stream of device 0",
                   [&] { OK(cudaMemsetAsync(there.p, 0, 4, s.s)); }));
        CHECK(dies("but device 1 is set",
                   [&] { CLB_LAUNCH(add_to, 1, 1, 0, s.s, here.p, here.p, 1); }));
        CHECK(dies("an event of device 0", [&] { OK(cudaEventRecord(on_0.e, t.s)); }));
        OK(cudaEventRecord(on_0.e, s.s));
        OK(cudaStreamWaitEvent(t.s, on_0.e, 0)); // that may be
        OK(cudaSetDevice(0));
    }
    emu_devices(1, (size_t)1 << 30);
}

// cudaMemcpy has read pageable memory when it returns, but may still be writing.
static void the_default_stream_goes_on(void)
{
    stream s;
    device<int> a(std::vector<int>{ 1, 2 }), b(2);
    const int more[2] = { 8, 9 };

    OK(cudaMemcpy(a.p, more, sizeof more, cudaMemcpyHostToDevice));
    CLB_LAUNCH(add_to, 1, 2, 0, s.s, b.p, a.p, 1);
    CHECK_EQ(b.get()[0], 2); // get() waits for the device
    CLB_LAUNCH(add_to, 1, 2, 0, s.s, b.p, a.p, 1);
    CHECK_EQ(b.get()[0], 9);
    OK(cudaMemset(a.p, 0, sizeof more));
    CLB_LAUNCH(add_to, 1, 2, 0, s.s, b.p, a.p, 1);
    CHECK_EQ(b.get()[1], 10);
    CHECK_EQ(a.get()[1], 0);
}

// -- failures, pinning ---------------------------------------------------------------------------

static void calls_fail_as_asked(void)
{
    void *p = nullptr;
    uint64_t before = emu_calls("cudaMalloc");

    emu_fail("cudaMalloc", 2, cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p, 8));
    OK(cudaFree(p));
    CHECK_EQ(cudaMalloc(&p, 8), cudaErrorMemoryAllocation);
    CHECK_EQ(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    CHECK_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&p, 8));
    OK(cudaFree(p));
    CHECK_EQ(emu_calls("cudaMalloc") - before, 3);
    emu_configure("devices=3,memory=2K,fail=cudaSetDevice:1:719");
    CHECK_EQ(cudaSetDevice(2), cudaErrorLaunchFailure);
    CHECK_STR(cudaGetErrorName(cudaGetLastError()), "cudaErrorLaunchFailure");
    OK(cudaSetDevice(2));
    CHECK_EQ(cudaMalloc(&p, 2049), cudaErrorMemoryAllocation);
    cudaGetLastError();
    OK(cudaSetDevice(0));
    for (const char *word : { "device=1", "devices=x", "devices=", "devices=1.5", "devices=-1",
                              "memory=1X", "memory=1KK", "libraries=on", "cudnn=9.19", "fail=x" })
        CHECK(dies("nothing that it knows", [=] { emu_configure(word); }));
    emu_devices(1, (size_t)1 << 30);
}

// After such an error nothing works any more, but for giving back.
static void devices_fail_for_good(void)
{
    cudaStream_t s;
    void *p = nullptr;

    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMalloc(&p, 8));
    emu_fail_for_good("cudaStreamSynchronize", 2, cudaErrorIllegalAddress);
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamQuery(s));
    CHECK_EQ(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(cudaStreamQuery(s), cudaErrorIllegalAddress);
        CHECK_EQ(cudaSetDevice(0), cudaErrorIllegalAddress);
        CHECK_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
        CHECK_EQ(cudaPeekAtLastError(), cudaErrorIllegalAddress);
    }
    OK(cudaFree(p));
    OK(cudaStreamDestroy(s));
    CHECK_EQ(emu_leaks(), 0);
    emu_configure("fail=cudaMalloc:0:0");
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    OK(cudaMalloc(&p, 8));
    OK(cudaFree(p));
    emu_configure("fail-for-good=cudaMalloc:1:719");
    CHECK_EQ(cudaMalloc(&p, 8), cudaErrorLaunchFailure);
    CHECK_EQ(cudaSetDevice(0), cudaErrorLaunchFailure);
    emu_fail("cudaMalloc", 0, cudaSuccess);
    cudaGetLastError();
}

static void memory_of_the_process_is_pinned(void)
{
    stream s;
    device<int> to(1);
    int *mine = (int *)malloc(64);

    *mine = 1;
    OK(cudaHostRegister(mine, 64, cudaHostRegisterPortable));
    CHECK_EQ(cudaHostRegister(mine + 1, 4, 0), cudaErrorHostMemoryAlreadyRegistered);
    CHECK_EQ(cudaGetLastError(), cudaErrorHostMemoryAlreadyRegistered);
    OK(cudaHostUnregister(mine));
    OK(cudaHostRegister(mine + 4, 4, cudaHostRegisterReadOnly)); // in the middle
    CHECK_EQ(cudaHostRegister(mine, 64, 0), cudaErrorHostMemoryAlreadyRegistered);
    CHECK_EQ(cudaGetLastError(), cudaErrorHostMemoryAlreadyRegistered);
    CHECK(dies("registered as read-only",
               [&] { OK(cudaMemcpyAsync(mine + 4, to.p, 4, cudaMemcpyDeviceToHost, s.s)); }));
    CHECK(dies("4 bytes where an allocation has 2 left", [&] {
        OK(cudaMemcpyAsync(to.p, (char *)(mine + 4) + 2, 4, cudaMemcpyHostToDevice, s.s));
    }));
    OK(cudaHostUnregister(mine + 4));
    OK(cudaHostRegister(mine, 64, cudaHostRegisterPortable));
    emu_streams_late(true, 1);
    OK(cudaMemcpyAsync(to.p, mine, 4, cudaMemcpyHostToDevice, s.s));
    *mine = 2; // pinned memory is read when the copy happens
    CHECK_EQ(to.get()[0], 2);
    CHECK(dies("still needs", [&] {
        OK(cudaMemcpyAsync(to.p, mine, 4, cudaMemcpyHostToDevice, s.s));
        OK(cudaHostUnregister(mine));
    }));
    emu_streams_late(false, 0);
    OK(cudaHostUnregister(mine));
    CHECK(dies("was not registered", [&] { OK(cudaHostUnregister(mine)); }));
    free(mine);
}

static void events_measure_time(void)
{
    stream s;
    cudaEvent_t from, to;
    event untimed;
    float ms = -1;

    OK(cudaEventCreateWithFlags(&from, cudaEventDefault));
    OK(cudaEventCreateWithFlags(&to, cudaEventDefault));
    OK(cudaEventRecord(from, s.s));
    OK(cudaEventRecord(to, s.s));
    OK(cudaEventSynchronize(to));
    OK(cudaEventElapsedTime(&ms, from, to));
    CHECK(ms >= 0);
    CHECK_EQ(cudaEventElapsedTime(&ms, from, untimed.e), cudaErrorInvalidResourceHandle);
    cudaGetLastError();
    OK(cudaEventDestroy(from));
    OK(cudaEventDestroy(to));
}

int main(void)
{
    TEST(a_captured_stream_is_a_graph);
    TEST(branches_of_a_graph_take_turns);
    TEST(what_a_capture_forbids);
    TEST(graphs_that_leak_are_counted);
    TEST(devices_and_their_memory);
    TEST(no_driver_and_no_device);
    TEST(peers_are_reached_when_they_may_be);
    TEST(copies_between_devices);
    TEST(the_default_stream_goes_on);
    TEST(calls_fail_as_asked);
    TEST(devices_fail_for_good);
    TEST(memory_of_the_process_is_pinned);
    TEST(events_measure_time);
    CHECK_EQ(emu_leaks(), 0);
    return test_result() || test_bad;
}
