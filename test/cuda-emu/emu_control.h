/* emu_control.h - what tests say to the emulation of CUDA, in C and C++. */
#ifndef TEST_CUDA_EMU_EMU_CONTROL_H
#define TEST_CUDA_EMU_EMU_CONTROL_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Eager: what is enqueued runs at once. Late: it runs when the host waits for it, streams in an
 * order that `seed` draws among all that events allow. */
void emu_streams_late(bool late, uint64_t seed);
/* Devices of `bytes` each, as cudaMalloc sees them; 0 devices: no GPU here. In tests of this folder
 * there is one of 1 GB at first, elsewhere there is none. */
void emu_devices(int count, size_t bytes);
/* The driver's version as CUDA counts (12040); 0: there is no driver. Default: the runtime's. */
void emu_driver(int version);
/* What the devices can do, as "8.0"; and whether they reach each other's memory. */
void emu_capability(int major, int minor);
void emu_peers(bool reach);
/* One device that reaches no other in any case; -1: none. */
void emu_lonely_device(int device);
/* Devices that reach each other lose what is copied between them, as behind some IOMMUs. */
void emu_peers_lose(bool lose);
/* One device that reaches no other, although others reach it; -1: none. */
void emu_blind_device(int device);
/* One device with another name, another number of multiprocessors (6), and another capability than
 * emu_capability says; -1: none. */
void emu_odd_device(int device, int major, int minor);
/* A mistake for tests: the nth cudaStreamWaitEvent from now on does nothing. */
void emu_forget_wait(int n);
/* The nth call (1: the next) of this function fails, and does nothing. n 0: none does. */
void emu_fail(const char *function, int n, cudaError_t e);
/* The same, and it is the end of the devices, as after a kernel that went astray: from then on
 * every call that needs one returns the error, but what is freed is freed. emu_fail brings them
 * back. */
void emu_fail_for_good(const char *function, int n, cudaError_t e);
/* Calls of a function so far. */
uint64_t emu_calls(const char *function);
/* Bytes that copies of this kind have moved so far. */
uint64_t emu_copied(enum cudaMemcpyKind kind);
/* Whether a library of NVIDIA is installed (at first none is), and a function that none has (or
 * NULL): "libcublasLt.so.13", "libcudnn.so.9", "libnccl.so.2". */
void emu_library(const char *file, bool there, const char *lacks);
/* The version it says, as its own function counts (91100); 0: the usual one. */
void emu_library_version(const char *file, size_t version);
/* What calls of cuDNN return that emu_fail says fail (at first 5000, that execution failed). A plan
 * that does not compile is a call of "cudnn compiles". */
void emu_dnn_fails_with(int status);
/* All of the above in words, as the variable EMU_CUDA has it for programs:
 * "devices=2,memory=64M,driver=12040,capability=7.0,peers=0,lose=1,late=7,
 * libraries=1,cudnn=91002,cublaslt=120600,fail=cudaMalloc:2:3,fail-for-good=cudaMalloc:2:719": a
 * library by its name is there, of that version. Words that it does not know, and numbers that are
 * none, end the program. */
void emu_configure(const char *words);
/* Allocations, streams, events and graphs that live; prints each. */
int emu_leaks(void);
/* Whether kernels were compiled for the race detector (emu_race.cc is linked). */
bool emu_race_build(void);

#ifdef __cplusplus
}
#endif

#endif
