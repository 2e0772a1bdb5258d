/* cores.h - how much of the machine this process may use. */
#ifndef CLB_BASE_CORES_H
#define CLB_BASE_CORES_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

enum { CLB_CPUS_MOST = 4096 };

/* A set of processors. */
struct clb_cpus {
    cpu_set_t set[CLB_CPUS_MOST / CPU_SETSIZE];
};
static inline bool clb_cpus_has(const struct clb_cpus *c, unsigned cpu)
{
    return cpu < CLB_CPUS_MOST && CPU_ISSET_S(cpu, sizeof c->set, c->set);
}
/* Those that the calling thread may run on; false: unknown (more than fit). */
bool clb_cpus_allowed(struct clb_cpus *c);
/* A list like "0-3,8,10-11" of the system; false, and the set empty, when it is something else. */
bool clb_cpus_parse(struct clb_cpus *c, const char *list);

/* In what follows `root` stands before /proc and /sys ("" outside tests). */

/* Physical cores of the set: of the threads of a core one counts, wherever the system knows. */
unsigned clb_cores_count(const char *root, const struct clb_cpus *c);
/* The smallest cgroup quota (v2 and v1) of this process's group and the groups above it, in
 * processors; 0: no limit. */
double clb_cores_quota(const char *root);
/* How many threads to compute with: one per physical core of the set, no more than the quota
 * rounded up, at least 1. Writes the reason ("2 cores, affinity 2, quota 1.5") to `why` (size n; 0:
 * not wanted). */
unsigned clb_cores_threads(const char *root, const struct clb_cpus *c, char *why, size_t n);

/* One line of a small file of the system, without its end; false: there is none. */
bool clb_read_line(const char *path, char *line, size_t n);

#endif
