/* emu_stream.cc - streams and events. What is enqueued becomes a step in its stream. Late, no step
 * runs before the host waits for something; then streams take turns as a seeded generator draws, so
 * that only events keep an order between them. */
#include "cuda_runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <set>
#include <vector>

struct CUevent_st {
    uint64_t recorded = 0, done = 0; /* how often */
};

struct step {
    std::function<void()> run;
    cudaEvent_t waits; /* for its `version`-th record; NULL: for nothing */
    uint64_t version;
    const void *range[2]; /* memory that it touches, where that is known */
    size_t bytes;
};

struct CUstream_st {
    std::deque<step> steps;
};

static std::vector<cudaStream_t> streams; /* by age, so that a seed draws the same ones again */
static std::set<cudaEvent_t> events;
static std::map<const void *, int> allowed_shared;
static bool late;
static uint64_t state = 1;
static cudaError_t last_error = cudaSuccess;

enum { SHARED_DEFAULT = 48 * 1024, SHARED_MOST = 227 * 1024 };

/* -- running what waits ------------------------------------------------------------------------ */

static uint64_t draw(uint64_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
}

static bool ready(cudaStream_t s)
{
    return !s->steps.empty() &&
           (!s->steps[0].waits || s->steps[0].waits->done >= s->steps[0].version);
}

/* One step of any stream that has one. */
static bool advance(void)
{
    std::vector<cudaStream_t> can;

    for (cudaStream_t s : streams)
        if (ready(s))
            can.push_back(s);
    if (can.empty())
        return false;
    cudaStream_t s = can[draw(can.size())];
    step now = s->steps.front();
    s->steps.pop_front();
    if (now.run)
        now.run();
    return true;
}

static void drain(cudaStream_t s)
{
    while (!s->steps.empty())
        if (!advance())
            emu_die("a stream waits for an event that never comes");
}

void emu_stream_drain_all(void)
{
    for (cudaStream_t s : streams)
        drain(s);
}

void emu_streams_late(bool on, uint64_t seed)
{
    emu_stream_drain_all();
    late = on;
    state = seed;
}

bool emu_stream_uses(const void *p, size_t bytes)
{
    for (cudaStream_t s : streams)
        for (const step &t : s->steps)
            for (const void *r : t.range)
                if (r && (const char *)r < (const char *)p + bytes &&
                    (const char *)p < (const char *)r + t.bytes)
                    return true;
    return false;
}

int emu_stream_leaks(void)
{
    if (!streams.empty() || !events.empty())
        printf("# emu: %zu streams and %zu events were not destroyed\n", streams.size(),
               events.size());
    return (int)(streams.size() + events.size());
}

static void check_stream(cudaStream_t s, const char *call)
{
    if (std::find(streams.begin(), streams.end(), s) == streams.end())
        emu_die("%s: %p is no stream (the default stream is not used here)", call, (void *)s);
}
static void check_event(cudaEvent_t e, const char *call)
{
    if (!events.count(e))
        emu_die("%s: %p is no event", call, (void *)e);
}

static void enqueue(cudaStream_t s, step what)
{
    s->steps.push_back(what);
    if (!late)
        drain(s);
}

/* -- launches ---------------------------------------------------------------------------------- */

extern "C" cudaError_t emu_allow_shared(const void *kernel, cudaFuncAttribute what, int bytes)
{
    if (what != cudaFuncAttributeMaxDynamicSharedMemorySize || bytes < 0 || bytes > SHARED_MOST)
        return last_error = cudaErrorInvalidValue;
    allowed_shared[kernel] = bytes;
    return cudaSuccess;
}

void emu_launch(const void *kernel, const char *name, emu_dim grid, emu_dim block, size_t shared,
                cudaStream_t stream, emu_body body)
{
    auto allowed = allowed_shared.find(kernel);
    size_t most =
        allowed == allowed_shared.end() ? (size_t)SHARED_DEFAULT : (size_t)allowed->second;
    size_t threads = (size_t)block.x * block.y * block.z;

    check_stream(stream, name);
    if (!threads || threads > 1024 || block.z > 64 || !grid.x || grid.x > 0x7fffffff || !grid.y ||
        grid.y > 65535 || !grid.z || grid.z > 65535 || shared > most) {
        last_error = shared > most ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration;
        return;
    }
    enqueue(stream, { [=] { emu_run_grid(name, grid, block, shared, body); }, nullptr, 0, {}, 0 });
}

/* -- copies ------------------------------------------------------------------------------------ */

static void check_copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                       const char *call)
{
    bool to_device = emu_memory_of(to, bytes, call) == EMU_DEVICE;
    bool from_device = emu_memory_of(from, bytes, call) == EMU_DEVICE;
    cudaMemcpyKind is = to_device
                            ? (from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                            : (from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);

    if (is != kind)
        emu_die("%s: a copy of kind %d is called kind %d", call, is, kind);
}

static void copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    check_copy(to, from, bytes, kind, "a copy that waited");
    emu_open_device();
    if (bytes)
        memcpy(to, from, bytes);
    emu_close_device();
}

extern "C" {
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    check_copy(to, from, bytes, kind, "cudaMemcpy");
    copy(to, from, bytes, kind);
    return cudaSuccess;
}

/* From pageable memory it takes what is there now; to pageable memory it waits. What a copy to
 * pinned memory will overwrite is NaN until then. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t s)
{
    check_stream(s, "cudaMemcpyAsync");
    check_copy(to, from, bytes, kind, "cudaMemcpyAsync");
    if (kind == cudaMemcpyHostToDevice && emu_memory_of(from, bytes, "") == EMU_PAGEABLE) {
        std::vector<char> now((const char *)from, (const char *)from + bytes);
        enqueue(s,
                { [=] { copy(to, now.data(), bytes, kind); }, nullptr, 0, { to, nullptr }, bytes });
        return cudaSuccess;
    }
    if (kind == cudaMemcpyDeviceToHost)
        memset(to, 0xff, bytes);
    enqueue(s, { [=] { copy(to, from, bytes, kind); }, nullptr, 0, { to, from }, bytes });
    if (kind == cudaMemcpyDeviceToHost && emu_memory_of(to, bytes, "") == EMU_PAGEABLE)
        drain(s);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    check_stream(s, "cudaMemsetAsync");
    if (emu_memory_of(p, bytes, "cudaMemsetAsync") != EMU_DEVICE)
        emu_die("cudaMemsetAsync: %p is no device memory", p);
    enqueue(s, { [=] {
                    emu_open_device();
                    memset(p, value, bytes);
                    emu_close_device();
                },
                 nullptr,
                 0,
                 { p, nullptr },
                 bytes });
    return cudaSuccess;
}

/* -- streams and events ------------------------------------------------------------------------ */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    if (flags != cudaStreamNonBlocking)
        emu_die("cudaStreamCreateWithFlags: streams are non-blocking here");
    streams.push_back(*out = new CUstream_st);
    return cudaSuccess;
}
/* What was enqueued still runs. */
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    check_stream(s, "cudaStreamDestroy");
    drain(s);
    streams.erase(std::find(streams.begin(), streams.end(), s));
    delete s;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    check_stream(s, "cudaStreamSynchronize");
    drain(s);
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void)
{
    emu_stream_drain_all();
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    check_stream(s, "cudaStreamWaitEvent");
    check_event(e, "cudaStreamWaitEvent");
    enqueue(s, { nullptr, e, e->recorded, {}, 0 });
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned)
{
    events.insert(*out = new CUevent_st);
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    check_event(e, "cudaEventDestroy");
    emu_stream_drain_all(); /* steps hold on to it */
    events.erase(e);
    delete e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    check_event(e, "cudaEventRecord");
    check_stream(s, "cudaEventRecord");
    uint64_t version = ++e->recorded;
    enqueue(s, { [=] { e->done = e->done < version ? version : e->done; }, nullptr, 0, {}, 0 });
    return cudaSuccess;
}
/* Whoever asks often enough sees it done. */
cudaError_t cudaEventQuery(cudaEvent_t e)
{
    check_event(e, "cudaEventQuery");
    if (e->done < e->recorded)
        advance();
    return e->done < e->recorded ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    check_event(e, "cudaEventSynchronize");
    while (e->done < e->recorded)
        if (!advance())
            emu_die("cudaEventSynchronize: the event never comes");
    return cudaSuccess;
}

/* -- errors ------------------------------------------------------------------------------------ */

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;

    last_error = cudaSuccess;
    return e;
}
const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorNotReady:
        return "device not ready";
    }
    return "unrecognized error code";
}
}
