/* pool.h - worker threads that run one function side by side.
 *
 * A pool of n threads has n - 1 workers; the caller is thread 0. Computing threads run with
 * round-to-nearest and without flush-to-zero (the caller's floating-point state is saved and
 * restored), so that bits do not depend on who calls. Workers spin shortly, then sleep: an idle
 * pool burns nothing. One run at a time; the owner serialises. */
#ifndef CLB_BASE_POOL_H
#define CLB_BASE_POOL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

struct clb_pool;
struct clb_numa;

typedef void clb_pool_fn(void *arg, unsigned thread, unsigned n_thread);

enum { CLB_POOL_MOST = 1024 }; /* threads */
/* CLB_USAGE unless n_thread is within 1 and CLB_POOL_MOST. */
bool clb_pool_new(struct clb_pool **out, unsigned n_thread, struct clb_err *err);
/* The same with workers placed on memory nodes; `numa` outlives the pool; NULL: wherever. */
bool clb_pool_new_on(struct clb_pool **out, unsigned n_thread, const struct clb_numa *numa,
                     struct clb_err *err);
void clb_pool_free(struct clb_pool *pool); /* NULL is fine; waits for the workers to end */
unsigned clb_pool_threads(const struct clb_pool *pool);
/* Runs fn(arg, t, n) on every thread t of n and returns when all have finished. */
void clb_pool_run(struct clb_pool *pool, clb_pool_fn *fn, void *arg);
/* The same on the caller alone, as thread 0 of 1: for work that is over before another thread would
 * be awake. */
void clb_pool_run_alone(struct clb_pool *pool, clb_pool_fn *fn, void *arg);
/* Inside fn: waits until all threads of this run have arrived. */
void clb_pool_barrier(struct clb_pool *pool);

/* What runs did, for those who measure. */
struct clb_pool_use {
    uint64_t shared, alone; /* runs on all threads, on the caller */
    double waited; /* seconds of shared runs in which a thread had nothing to do: not yet awake, at
                      a barrier, or done before others; the mean over threads */
};
/* From now on adds to *use; NULL: no longer, and no clock is read. Not during a run. */
void clb_pool_watch(struct clb_pool *pool, struct clb_pool_use *use);

/* Items [0, n) taken dynamically: `while (clb_take(&next, n, &i))`. Reset to 0 before the run. */
static inline bool clb_take(atomic_uint *next, uint32_t n, uint32_t *item)
{
    *item = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
    return *item < n;
}
/* An even share of [0, n): thread t of n_thread gets [*first, *last). */
static inline void clb_share(uint32_t n, unsigned thread, unsigned n_thread, uint32_t *first,
                             uint32_t *last)
{
    *first = (uint32_t)((uint64_t)n * thread / n_thread);
    *last = (uint32_t)((uint64_t)n * (thread + 1) / n_thread);
}

/* One per physical core allowed by affinity and cgroup quota (v2 cpu.max and v1 cfs), at least 1.
 * Writes the reason ("2 cores, affinity 2, quota 1.5") to `why` (size n). */
unsigned clb_pool_default_threads(char *why, size_t n);

#endif
