/* numa.h - machines with several memory nodes: where memory lies and which threads are near it.
 *
 * Two ways, and no library but the system's calls. `interleave`: memory is spread page by page over
 * all nodes, and threads over their processors, so that the bandwidth of all nodes adds up.
 * `local`: memory and threads keep to one node, the one with the most cores.
 *
 * Memory of our own is placed by range (clb_numa_place). Pages of a mapped file belong to the
 * system's cache: whoever reads them first from the disk places them, by the policy of the thread;
 * so threads that compute have it (clb_numa_join, clb_numa_enter). What is in the cache already
 * stays where it is. */
#ifndef CLB_BASE_NUMA_H
#define CLB_BASE_NUMA_H

#include <stdint.h>

#include "lib/base/cores.h"

enum clb_numa_mode { CLB_NUMA_AUTO, CLB_NUMA_INTERLEAVE, CLB_NUMA_LOCAL, CLB_NUMA_OFF };

enum { CLB_NUMA_NODES = 64, CLB_NUMA_MASK = 1024 / (8 * sizeof(long)) };

struct clb_numa {
    enum clb_numa_mode mode; /* INTERLEAVE, LOCAL or OFF */
    uint32_t n_node;         /* that are used: 0 when OFF, 1 when LOCAL */
    struct clb_numa_node {
        uint32_t id;
        struct clb_cpus cpus; /* of the node, that this process may use */
    } *node;                  /* [n_node] owned */
};

/* What to do on this machine. Only nodes count that have processors and memory which this process
 * may use; with less than two of them, and when the system knows of no nodes, the answer is OFF.
 * AUTO is INTERLEAVE, but OFF when somebody (numactl) gave this process a memory policy already.
 * Without memory for the answer it is OFF, too. `root` stands before /proc and /sys ("" outside
 * tests). */
void clb_numa_decide(struct clb_numa *n, const char *root, enum clb_numa_mode want,
                     const struct clb_cpus *allowed);
void clb_numa_done(struct clb_numa *n); /* safe on a zeroed struct */

/* "interleaved over NUMA nodes 0,1", "on NUMA node 1"; "" when OFF. Returns `text`. */
const char *clb_numa_describe(const struct clb_numa *n, char *text, size_t size);
/* The processors that threads should use: of the one node when LOCAL, else `allowed`. */
struct clb_cpus clb_numa_cpus(const struct clb_numa *n, const struct clb_cpus *allowed);

/* The rest does nothing when OFF, and failures are ignored: placement is speed, not truth. */

/* Before the first touch of fresh memory, page aligned. */
void clb_numa_place(const struct clb_numa *n, void *at, uint64_t bytes);
/* Thread t of n_thread, for good: its processors and its memory policy. */
void clb_numa_join(const struct clb_numa *n, unsigned thread, unsigned n_thread);
/* Only the policy, of a thread that is not ours, until leave. */
struct clb_numa_policy {
    bool changed;
    int mode;
    unsigned long mask[CLB_NUMA_MASK];
};
void clb_numa_enter(const struct clb_numa *n, struct clb_numa_policy *before);
void clb_numa_leave(const struct clb_numa_policy *before);

#endif
