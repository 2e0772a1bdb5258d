/* emu_call.h - how every function of the runtime begins, and what the host side of the emulation
 * shares: devices and streams. */
#ifndef TEST_CUDA_EMU_EMU_CALL_H
#define TEST_CUDA_EMU_EMU_CALL_H

#include <deque>
#include <set>
#include <vector>

#include "cuda_runtime.h"

/* Threads take turns; a function that calls another keeps its own. */
struct emu_turn {
    emu_turn();
    ~emu_turn();
};
/* Counts the call. Whether it must fail: no driver, no device, or as emu_fail said. */
cudaError_t emu_refuses(const char *function, bool needs_device);
/* Remembers an error for cudaGetLastError, and returns it. */
cudaError_t emu_error(cudaError_t e);
#define EMU_CALL(function)                                                                         \
    emu_turn turn_;                                                                                \
    if (cudaError_t refused_ = emu_refuses(#function, true))                                       \
    return emu_error(refused_)

/* -- devices ----------------------------------------------------------------------------------- */

enum { EMU_DEVICES = 16 };
int emu_device_count(void);
size_t emu_device_bytes(void);
int emu_current_device(void);
/* Whether kernels of `device` may touch memory of `other`. */
bool emu_reaches(int device, int other);
/* Whether the devices failed for good: what was enqueued never runs. */
bool emu_is_lost(void);
/* Whether copies between them get lost. */
bool emu_loses(int device, int other);
/* Whether this cudaStreamWaitEvent is the one to forget. */
bool emu_forgets_wait(void);

/* -- streams ----------------------------------------------------------------------------------- */

struct emu_step {
    std::function<void()> run;
    cudaEvent_t waits = nullptr; /* for its `version`-th record; NULL: for nothing */
    uint64_t version = 0;
    const void *range[2] = {}; /* memory that it touches, where that is known */
    size_t bytes = 0;
    void *result = nullptr; /* of range: what the host may not read before */
};
struct CUstream_st {
    int device;
    std::deque<emu_step> steps;
    CUgraph_st *capture = nullptr; /* what is enqueued becomes part of it */
    std::vector<size_t> last;      /* its nodes that the next one comes after */
};
struct CUevent_st {
    int device;
    bool timed;
    uint64_t recorded = 0, done = 0; /* how often */
    double at = 0;                   /* seconds, of the last record that is done */
    CUgraph_st *capture = nullptr;   /* recorded while that was captured */
    std::vector<size_t> last;
};
void emu_check_stream(cudaStream_t s, const char *call);
void emu_check_event(cudaEvent_t e, const char *call);
void emu_enqueue(cudaStream_t s, const emu_step &what);
const std::vector<cudaStream_t> &emu_streams(void); /* by age */
const std::set<cudaEvent_t> &emu_events(void);
uint64_t emu_draw(uint64_t n);
bool emu_is_late(void);

/* -- captures (emu_graph.cc) ------------------------------------------------------------------- */

/* s is captured: the step becomes a node. */
void emu_capture(cudaStream_t s, const emu_step &what);
void emu_capture_record(cudaEvent_t e, cudaStream_t s);
/* s, captured or not yet, waits for an event of a capture. */
void emu_capture_wait(cudaStream_t s, cudaEvent_t e);
/* Dies when the call is not allowed while this thread captures. */
void emu_check_capture(const char *call);
int emu_graph_leaks(void);

int emu_library_leaks(void);

#endif
