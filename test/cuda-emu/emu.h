/* emu.h - what the headers of the emulation need from its sources, and those from each other.
 *
 * Whatever a program does wrong ends it with one line "emu: ..." on stderr and abort(): a GPU would
 * go on with wrong numbers. Everything runs on the host thread that asks; threads take turns. */
#ifndef TEST_CUDA_EMU_EMU_H
#define TEST_CUDA_EMU_EMU_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "emu_control.h"

/* -- for the headers --------------------------------------------------------------------------- */

struct emu_dim {
    unsigned x, y, z;
};

/* The thread that runs, as a kernel sees it. */
struct emu_view {
    emu_dim thread, block, block_dim, grid_dim;
};
extern emu_view emu_self;

[[noreturn]] void emu_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

void emu_block_barrier(void);
/* The same; returns how many threads voted. */
int emu_block_count(bool vote);
/* Waits for all lanes of mask, which must be in a call of the same kind. */
enum emu_kind { EMU_SYNC, EMU_COUNT, EMU_SHUFFLE, EMU_VOTE, EMU_MATCH, EMU_MMA_F16, EMU_MMA_BF16 };
void emu_warp_barrier(unsigned mask, emu_kind kind);
int emu_lane(void);
/* Lane `from`'s value; every lane of mask calls. */
uint64_t emu_exchange(unsigned mask, uint64_t value, int from);
unsigned emu_ballot(unsigned mask, bool vote);
unsigned emu_match(unsigned mask, uint64_t value);

/* Shared memory: of the launch (dynamic), and of one declaration (key) for the block at hand. */
void *emu_dynamic_shared(void);
void *emu_shared(const void *key, size_t bytes);

/* An asynchronous copy of 16 bytes: the first `bytes` of them, then zeros. It happens at once or
 * at its wait, in turns from launch to launch. */
void emu_copy_async(void *to, const void *from, unsigned bytes);
void emu_copy_commit(void);
void emu_copy_wait(unsigned groups_left);

/* c += a b of a warp, m16n8k16: words of one of the two types in registers as PTX lays them out. */
void emu_mma_16816(float c[4], const uint32_t a[4], const uint32_t b[2], emu_kind type);

/* From now on, what other blocks of this launch wrote may be read: the caller came last. */
void emu_acquire_blocks(void);

/* Race detector: the running thread touches these bytes (no-op without emu_race.cc). */
void emu_access(const void *p, size_t bytes, bool write);

/* A kernel with its arguments, as they were at the launch. */
struct emu_body {
    void (*call)(void *);
    std::shared_ptr<void> closure;
};
/* The race detector must not take reading the arguments for a kernel that reads host memory. */
#define EMU_UNSEEN __attribute__((no_sanitize("thread")))
template <class F> EMU_UNSEEN void emu_call(void *closure)
{
    (*(F *)closure)();
}
template <class F> emu_body emu_body_of(F f)
{
    return { emu_call<F>, std::make_shared<F>(f) };
}
template <class... P, class... A> emu_body emu_bind(void (*kernel)(P...), A... args)
{
    return emu_body_of([=]() EMU_UNSEEN { kernel(args...); });
}
void emu_launch(const void *kernel, const char *name, emu_dim grid, emu_dim block, size_t shared,
                struct CUstream_st *stream, emu_body body);

/* -- between the sources of the emulation ------------------------------------------------------ */

/* When and where the running thread is, for the race detector. Times count block barriers and block
 * starts of the whole process. */
struct emu_clock {
    uint32_t launch_start, block_start, now;
    uint16_t thread, warp_epoch;
};
extern __thread bool emu_in_kernel; /* of the host thread that runs it */
emu_clock emu_clock_now(void);
bool emu_is_stack(const void *p);
/* Shared memory may be touched between the first and the last of these; every block finds it filled
 * with NaN. */
void emu_open_shared(size_t dynamic);
void emu_fill_shared(void);
void emu_close_shared(void);
/* The shared memory that p lies in. */
struct emu_range {
    uint8_t *base;
    size_t bytes;
};
bool emu_find_shared(const void *p, emu_range *out);
/* The allocation that kernels may touch and that p lies in. */
bool emu_find_global(const void *p, emu_range *out);
/* Runs one launch. */
void emu_run_grid(int device, const char *name, emu_dim grid, emu_dim block, size_t shared,
                  const emu_body &body);
/* Device memory may be touched between these two: what this device reaches. */
void emu_open_device(int device);
void emu_close_device(void);
/* A range must lie in one live allocation of this kind. */
enum emu_memory { EMU_DEVICE, EMU_PINNED, EMU_PAGEABLE };
emu_memory emu_memory_of(const void *p, size_t bytes, const char *call);
/* Whether p lies in memory that was registered as read-only. */
bool emu_is_read_only(const void *p);
/* Of the allocation that p lies in; -1: of the process. */
int emu_device_of(const void *p);
/* Nothing that waits in a stream touches this allocation any more. */
void emu_stream_drain_all(void);
/* Copies of the default stream that have begun are over. */
void emu_end_begun(void);
bool emu_stream_uses(const void *p, size_t bytes);
int emu_stream_leaks(void);
/* Drops shadows of memory that is gone. */
void emu_race_forget(const void *p, size_t bytes);

#endif
