/* emu_graph.cc - streams that are captured, and graphs. A graph's nodes know which nodes they come
 * after; a launch puts them into its stream, late in an order drawn among all that this allows. */
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <pthread.h>
#include <set>

#include "emu_call.h"

struct node {
    emu_step what;
    std::vector<size_t> after;
};
struct CUgraph_st {
    std::vector<node> nodes;
    cudaStream_t origin; /* NULL: the capture has ended */
    cudaStreamCaptureMode mode;
    pthread_t thread;
    int device;
};
struct CUgraphExec_st {
    std::vector<node> nodes;
    int device;
};

static CUgraph_st ended;             /* what events of a capture that is over point to */
static auto &graphs = *new std::set<cudaGraph_t>; /* captures that are under way, too */
static auto &execs = *new std::set<cudaGraphExec_t>;

int emu_graph_leaks(void)
{
    if (!graphs.empty() || !execs.empty())
        printf("# emu: %zu graphs and %zu executable ones were not destroyed\n", graphs.size(),
               execs.size());
    return (int)(graphs.size() + execs.size());
}

/* -- capture ----------------------------------------------------------------------------------- */

void emu_check_capture(const char *call)
{
    for (cudaGraph_t g : graphs)
        if (g->origin && (g->mode == cudaStreamCaptureModeGlobal ||
                          (g->mode == cudaStreamCaptureModeThreadLocal &&
                           pthread_equal(g->thread, pthread_self()))))
            emu_die("%s while a stream is captured", call);
}

void emu_capture(cudaStream_t s, const emu_step &what)
{
    s->capture->nodes.push_back({ what, s->last });
    s->last = { s->capture->nodes.size() - 1 };
}

void emu_capture_record(cudaEvent_t e, cudaStream_t s)
{
    e->capture = s->capture;
    e->last = s->last;
}

void emu_capture_wait(cudaStream_t s, cudaEvent_t e)
{
    if (!e->capture)
        emu_die("cudaStreamWaitEvent: a captured stream waits for an event from outside");
    if (!e->capture->origin)
        emu_die("cudaStreamWaitEvent: the event was recorded in a capture that has ended");
    if (s->capture && s->capture != e->capture)
        emu_die("cudaStreamWaitEvent: the event belongs to another capture");
    if (!s->capture)
        s->last.clear();
    s->capture = e->capture;
    for (size_t n : e->last)
        if (std::find(s->last.begin(), s->last.end(), n) == s->last.end())
            s->last.push_back(n);
}

/* Whether what a stream did last is awaited by `last`, or comes before. */
static bool is_joined(const CUgraph_st *g, const std::vector<size_t> &last,
                      const std::vector<size_t> &of)
{
    std::vector<bool> before(g->nodes.size());

    for (size_t n : last)
        before[n] = true;
    for (size_t n = g->nodes.size(); n-- > 0;)
        for (size_t a : g->nodes[n].after)
            before[a] = before[a] || before[n];
    for (size_t n : of)
        if (!before[n])
            return false;
    return true;
}

extern "C" {
cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode)
{
    EMU_CALL(cudaStreamBeginCapture);
    emu_check_stream(s, "cudaStreamBeginCapture");
    if (s->capture)
        emu_die("cudaStreamBeginCapture: the stream is captured already");
    cudaGraph_t g = new CUgraph_st{ {}, s, mode, pthread_self(), s->device };
    graphs.insert(g);
    s->capture = g;
    s->last.clear();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    emu_turn turn;
    cudaError_t refused = emu_refuses("cudaStreamEndCapture", true);

    emu_check_stream(s, "cudaStreamEndCapture");
    cudaGraph_t g = s->capture;
    if (!g || g->origin != s)
        emu_die("cudaStreamEndCapture: no capture began in this stream");
    for (cudaStream_t other : emu_streams())
        if (other->capture == g && !is_joined(g, s->last, other->last))
            emu_die("cudaStreamEndCapture: a stream that joined the capture is not awaited");
    for (cudaStream_t other : emu_streams())
        if (other->capture == g)
            other->capture = nullptr;
    for (cudaEvent_t e : emu_events())
        if (e->capture == g)
            e->capture = &ended;
    g->origin = nullptr;
    *out = g;
    if (!refused)
        return cudaSuccess;
    graphs.erase(g);
    delete g;
    *out = nullptr;
    return emu_error(refused);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus *status)
{
    EMU_CALL(cudaStreamIsCapturing);
    emu_check_stream(s, "cudaStreamIsCapturing");
    *status = s->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

/* -- graphs ------------------------------------------------------------------------------------ */

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t g, unsigned long long)
{
    EMU_CALL(cudaGraphInstantiateWithFlags);
    emu_check_capture("cudaGraphInstantiateWithFlags");
    if (!graphs.count(g) || g->origin)
        emu_die("cudaGraphInstantiateWithFlags: %p is no graph", (void *)g);
    execs.insert(*out = new CUgraphExec_st{ g->nodes, g->device });
    return cudaSuccess;
}
}

/* A node whose turn it may be. */
static size_t pick(cudaGraphExec_t exec, const std::vector<bool> &done)
{
    std::vector<size_t> can;

    for (size_t n = 0; n < done.size(); n++) {
        bool may = !done[n];
        for (size_t a : exec->nodes[n].after)
            may = may && done[a];
        if (may && !emu_is_late())
            return n;
        if (may)
            can.push_back(n);
    }
    return can[emu_draw(can.size())];
}

extern "C" {
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    EMU_CALL(cudaGraphLaunch);
    emu_check_stream(s, "cudaGraphLaunch");
    if (!execs.count(exec))
        emu_die("cudaGraphLaunch: %p is no executable graph", (void *)exec);
    if (s->device != exec->device)
        emu_die("cudaGraphLaunch: a graph of device %d in a stream of device %d", exec->device,
                s->device);
    std::vector<bool> done(exec->nodes.size());
    for (size_t left = done.size(); left; left--) {
        size_t n = pick(exec, done);
        done[n] = true;
        emu_enqueue(s, exec->nodes[n].what);
    }
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    EMU_CALL(cudaGraphDestroy);
    if (!graphs.count(g) || g->origin)
        emu_die("cudaGraphDestroy: %p is no graph", (void *)g);
    graphs.erase(g);
    delete g;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    EMU_CALL(cudaGraphExecDestroy);
    if (!execs.erase(exec))
        emu_die("cudaGraphExecDestroy: %p is no executable graph", (void *)exec);
    delete exec;
    return cudaSuccess;
}
}
