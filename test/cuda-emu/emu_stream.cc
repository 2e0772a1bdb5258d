/* emu_stream.cc - streams and events. What is enqueued becomes a step in its stream. Late, no step
 * runs before the host waits for something; then streams take turns as a seeded generator draws, so
 * that only events keep an order between them. */
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <time.h>

#include "emu_call.h"

/* By age, so that a seed draws the same ones again; there when constructors of programs ask. */
static std::vector<cudaStream_t> &streams(void)
{
    static auto &all = *new std::vector<cudaStream_t>;

    return all;
}
static auto &events = *new std::set<cudaEvent_t>;
/* Of a kernel on a device. */
static auto &allowed_shared = *new std::map<std::pair<const void *, int>, int>;
static bool late;
static uint64_t state = 1;

enum { SHARED_DEFAULT = 48 * 1024, SHARED_MOST = 227 * 1024 };

const std::vector<cudaStream_t> &emu_streams(void)
{
    return streams();
}
const std::set<cudaEvent_t> &emu_events(void)
{
    return events;
}
bool emu_is_late(void)
{
    return late;
}

/* -- running what waits ------------------------------------------------------------------------ */

uint64_t emu_draw(uint64_t n)
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

    for (cudaStream_t s : streams())
        if (ready(s))
            can.push_back(s);
    if (can.empty())
        return false;
    cudaStream_t s = can[emu_draw(can.size())];
    emu_step now = s->steps.front();
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
    for (cudaStream_t s : streams())
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
    if (emu_is_lost())
        return false;
    for (cudaStream_t s : streams())
        for (const emu_step &t : s->steps)
            for (const void *r : t.range)
                if (r && (const char *)r < (const char *)p + bytes &&
                    (const char *)p < (const char *)r + t.bytes)
                    return true;
    return false;
}

int emu_stream_leaks(void)
{
    if (!streams().empty() || !events.empty())
        printf("# emu: %zu streams and %zu events were not destroyed\n", streams().size(),
               events.size());
    return (int)(streams().size() + events.size());
}

void emu_check_stream(cudaStream_t s, const char *call)
{
    if (std::find(streams().begin(), streams().end(), s) == streams().end())
        emu_die("%s: %p is no stream (the default stream is not used here)", call, (void *)s);
}
void emu_check_event(cudaEvent_t e, const char *call)
{
    if (!events.count(e))
        emu_die("%s: %p is no event", call, (void *)e);
}

/* What a copy to pinned memory will overwrite is NaN until then. */
void emu_enqueue(cudaStream_t s, const emu_step &what)
{
    if (s->capture)
        return emu_capture(s, what);
    if (what.result)
        memset(what.result, 0xff, what.bytes);
    s->steps.push_back(what);
    if (!late)
        drain(s);
}

/* -- launches ---------------------------------------------------------------------------------- */

extern "C" cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute what, int bytes)
{
    EMU_CALL(cudaFuncSetAttribute);
    if (what != cudaFuncAttributeMaxDynamicSharedMemorySize || bytes < 0 || bytes > SHARED_MOST)
        return emu_error(cudaErrorInvalidValue);
    allowed_shared[{ kernel, emu_current_device() }] = bytes;
    return cudaSuccess;
}

/* The stream must belong to the device that the thread has set. */
static void check_device(cudaStream_t s, const char *call)
{
    if (s->device != emu_current_device())
        emu_die("%s: the stream belongs to device %d, but device %d is set", call, s->device,
                emu_current_device());
}

void emu_launch(const void *kernel, const char *name, emu_dim grid, emu_dim block, size_t shared,
                cudaStream_t stream, emu_body body)
{
    emu_turn turn;
    cudaError_t refused = emu_refuses("cudaLaunchKernel", true);
    auto allowed = allowed_shared.find({ kernel, emu_current_device() });
    size_t most =
        allowed == allowed_shared.end() ? (size_t)SHARED_DEFAULT : (size_t)allowed->second;
    size_t threads = (size_t)block.x * block.y * block.z;

    if (refused) {
        emu_error(refused);
        return;
    }
    emu_check_stream(stream, name);
    check_device(stream, name);
    if (!threads || threads > 1024 || block.z > 64 || !grid.x || grid.x > 0x7fffffff || !grid.y ||
        grid.y > 65535 || !grid.z || grid.z > 65535 || shared > most) {
        emu_error(shared > most ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration);
        return;
    }
    emu_step s;
    int device = stream->device;
    s.run = [=] { emu_run_grid(device, name, grid, block, shared, body); };
    emu_enqueue(stream, s);
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
    if (emu_is_read_only(to))
        emu_die("%s: to memory that was registered as read-only", call);
}

/* Memory of another device than the stream's: only cudaMemcpyPeerAsync is said to copy that. */
static void check_stream_reaches(cudaStream_t s, const void *p, const char *call)
{
    int device = emu_memory_of(p, 0, call) == EMU_DEVICE ? emu_device_of(p) : s->device;

    if (device != s->device)
        emu_die("%s: memory of device %d in a stream of device %d", call, device, s->device);
}

static uint64_t copied[cudaMemcpyDeviceToDevice + 1]; /* bytes of each kind */

/* Copies reach all devices, whether or not kernels do. */
static void copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    check_copy(to, from, bytes, kind, "a copy that waited");
    copied[kind] += bytes;
    emu_open_device(-1);
    if (bytes)
        memcpy(to, from, bytes);
    emu_close_device();
}

static void set(void *p, int value, size_t bytes)
{
    emu_open_device(-1);
    memset(p, value, bytes);
    emu_close_device();
}

/* From pageable memory it takes what is there now; to pageable memory it waits. */
static void copy_async(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                       cudaStream_t s, const char *call)
{
    bool pageable =
        (kind == cudaMemcpyHostToDevice && emu_memory_of(from, bytes, "") == EMU_PAGEABLE) ||
        (kind == cudaMemcpyDeviceToHost && emu_memory_of(to, bytes, "") == EMU_PAGEABLE);
    emu_step step;

    if (pageable && s->capture)
        emu_die("%s: pageable memory in a capture", call);
    step.range[0] = to;
    step.bytes = bytes;
    if (pageable && kind == cudaMemcpyHostToDevice) {
        std::vector<char> now((const char *)from, (const char *)from + bytes);
        step.run = [=] { copy(to, now.data(), bytes, kind); };
        return emu_enqueue(s, step);
    }
    step.run = [=] { copy(to, from, bytes, kind); };
    step.range[1] = from;
    step.result = kind == cudaMemcpyDeviceToHost ? to : nullptr;
    emu_enqueue(s, step);
    if (pageable)
        drain(s);
}

/* What cudaMemcpy and cudaMemset began may go on when they return: in the default stream, for which
 * streams that are non-blocking do not wait. */
static auto &begun = *new std::deque<std::function<void()>>;

void emu_end_begun(void)
{
    for (; !begun.empty(); begun.pop_front())
        begun.front()();
}

extern "C" {
uint64_t emu_copied(cudaMemcpyKind kind)
{
    emu_turn turn;

    return copied[kind];
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    EMU_CALL(cudaMemcpy);
    emu_check_capture("cudaMemcpy");
    check_copy(to, from, bytes, kind, "cudaMemcpy");
    emu_end_begun();
    if (kind == cudaMemcpyHostToDevice && emu_memory_of(from, bytes, "") == EMU_PAGEABLE) {
        std::vector<char> now((const char *)from, (const char *)from + bytes);
        begun.push_back([=] { copy(to, now.data(), bytes, kind); });
    } else {
        copy(to, from, bytes, kind);
    }
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t s)
{
    EMU_CALL(cudaMemcpyAsync);
    emu_check_stream(s, "cudaMemcpyAsync");
    check_copy(to, from, bytes, kind, "cudaMemcpyAsync");
    check_stream_reaches(s, to, "cudaMemcpyAsync");
    check_stream_reaches(s, from, "cudaMemcpyAsync");
    copy_async(to, from, bytes, kind, s, "cudaMemcpyAsync");
    return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t bytes, cudaStream_t s)
{
    EMU_CALL(cudaMemcpyPeerAsync);
    emu_check_stream(s, "cudaMemcpyPeerAsync");
    check_copy(to, from, bytes, cudaMemcpyDeviceToDevice, "cudaMemcpyPeerAsync");
    if (emu_device_of(to) != to_device || emu_device_of(from) != from_device)
        emu_die("cudaMemcpyPeerAsync: from device %d to %d, but the memory is of %d and %d",
                from_device, to_device, emu_device_of(from), emu_device_of(to));
    if (s->device != to_device && s->device != from_device)
        emu_die("cudaMemcpyPeerAsync: in a stream of device %d", s->device);
    if (emu_loses(to_device, from_device))
        return cudaSuccess;
    copy_async(to, from, bytes, cudaMemcpyDeviceToDevice, s, "cudaMemcpyPeerAsync");
    return cudaSuccess;
}
cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    EMU_CALL(cudaMemset);
    emu_check_capture("cudaMemset");
    if (emu_memory_of(p, bytes, "cudaMemset") != EMU_DEVICE)
        emu_die("cudaMemset: %p is no device memory", p);
    begun.push_back([=] { set(p, value, bytes); });
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    emu_step step;

    EMU_CALL(cudaMemsetAsync);
    emu_check_stream(s, "cudaMemsetAsync");
    if (emu_memory_of(p, bytes, "cudaMemsetAsync") != EMU_DEVICE)
        emu_die("cudaMemsetAsync: %p is no device memory", p);
    check_stream_reaches(s, p, "cudaMemsetAsync");
    step.run = [=] { set(p, value, bytes); };
    step.range[0] = p;
    step.bytes = bytes;
    emu_enqueue(s, step);
    return cudaSuccess;
}

/* -- streams and events ------------------------------------------------------------------------ */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    EMU_CALL(cudaStreamCreateWithFlags);
    if (flags != cudaStreamNonBlocking)
        emu_die("cudaStreamCreateWithFlags: streams are non-blocking here");
    streams().push_back(*out = new CUstream_st);
    (*out)->device = emu_current_device();
    return cudaSuccess;
}
/* What was enqueued still runs. */
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    EMU_CALL(cudaStreamDestroy);
    emu_check_stream(s, "cudaStreamDestroy");
    if (s->capture)
        emu_die("cudaStreamDestroy: the stream is captured");
    drain(s);
    streams().erase(std::find(streams().begin(), streams().end(), s));
    delete s;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    EMU_CALL(cudaStreamSynchronize);
    emu_check_stream(s, "cudaStreamSynchronize");
    if (s->capture)
        emu_die("cudaStreamSynchronize: the stream is captured");
    drain(s);
    return cudaSuccess;
}
/* Whoever asks often enough sees it done. */
cudaError_t cudaStreamQuery(cudaStream_t s)
{
    EMU_CALL(cudaStreamQuery);
    emu_check_stream(s, "cudaStreamQuery");
    emu_check_capture("cudaStreamQuery");
    if (!s->steps.empty())
        advance();
    return s->steps.empty() ? cudaSuccess : emu_error(cudaErrorNotReady);
}
cudaError_t cudaDeviceSynchronize(void)
{
    EMU_CALL(cudaDeviceSynchronize);
    emu_check_capture("cudaDeviceSynchronize");
    emu_end_begun();
    emu_stream_drain_all();
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    emu_step step;

    EMU_CALL(cudaStreamWaitEvent);
    emu_check_stream(s, "cudaStreamWaitEvent");
    emu_check_event(e, "cudaStreamWaitEvent");
    if (emu_forgets_wait())
        return cudaSuccess;
    if (s->capture || e->capture) {
        emu_capture_wait(s, e);
        return cudaSuccess;
    }
    step.waits = e;
    step.version = e->recorded;
    emu_enqueue(s, step);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    EMU_CALL(cudaEventCreateWithFlags);
    events.insert(*out = new CUevent_st);
    (*out)->device = emu_current_device();
    (*out)->timed = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    EMU_CALL(cudaEventDestroy);
    emu_check_event(e, "cudaEventDestroy");
    emu_stream_drain_all(); /* steps hold on to it */
    events.erase(e);
    delete e;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    emu_step step;

    EMU_CALL(cudaEventRecord);
    emu_check_event(e, "cudaEventRecord");
    emu_check_stream(s, "cudaEventRecord");
    if (e->device != s->device)
        emu_die("cudaEventRecord: an event of device %d in a stream of device %d", e->device,
                s->device);
    if (s->capture) {
        emu_capture_record(e, s);
        return cudaSuccess;
    }
    e->capture = nullptr;
    uint64_t version = ++e->recorded;
    step.run = [=] {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        e->at = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
        e->done = e->done < version ? version : e->done;
    };
    emu_enqueue(s, step);
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e)
{
    EMU_CALL(cudaEventQuery);
    emu_check_event(e, "cudaEventQuery");
    emu_check_capture("cudaEventQuery");
    if (e->done < e->recorded)
        advance();
    return e->done < e->recorded ? emu_error(cudaErrorNotReady) : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    EMU_CALL(cudaEventSynchronize);
    emu_check_event(e, "cudaEventSynchronize");
    if (e->capture)
        emu_die("cudaEventSynchronize: the event was recorded in a capture");
    while (e->done < e->recorded)
        if (!advance())
            emu_die("cudaEventSynchronize: the event never comes");
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    EMU_CALL(cudaEventElapsedTime);
    emu_check_event(from, "cudaEventElapsedTime");
    emu_check_event(to, "cudaEventElapsedTime");
    if (!from->timed || !to->timed || !from->recorded || !to->recorded)
        return emu_error(cudaErrorInvalidResourceHandle);
    if (from->done < from->recorded || to->done < to->recorded)
        return emu_error(cudaErrorNotReady);
    *ms = (float)(1e3 * (to->at - from->at));
    return cudaSuccess;
}
}
