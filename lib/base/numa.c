#include "lib/base/numa.h"

#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/base/cgroup.h"
#include "lib/base/mem.h"

enum { BITS = 8 * sizeof(long), MASK_BITS = CLB_NUMA_MASK * BITS };

/* -- what the machine has -------------------------------------------------------------------- */

/* A list of the system, as a set of numbers. */
static bool read_list(const char *root, const char *name, struct clb_cpus *out)
{
    char path[CLB_CGROUP_PATH], line[CLB_CGROUP_PATH];

    snprintf(path, sizeof path, "%s%s", root, name);
    return clb_read_line(path, line, sizeof line) && clb_cpus_parse(out, line);
}

/* Nodes whose memory this process may use: "Mems_allowed_list:" with a tab behind it. */
static bool memory_allowed(const char *root, struct clb_cpus *out)
{
    static const char key[] = "Mems_allowed_list:";
    char line[CLB_CGROUP_PATH];
    bool found = false;

    snprintf(line, sizeof line, "%s/proc/self/status", root);
    FILE *f = fopen(line, "re");
    while (f && !found && fgets(line, sizeof line, f))
        found = !strncmp(line, key, sizeof key - 1);
    if (f)
        fclose(f);
    if (!found)
        return false;
    line[strcspn(line, "\n")] = '\0';
    return clb_cpus_parse(out, line + sizeof key - 1 + strspn(line + sizeof key - 1, " \t"));
}

static void keep_common(struct clb_cpus *a, const struct clb_cpus *b)
{
    for (unsigned i = 0; i < CLB_CPUS_MOST; i++)
        if (!clb_cpus_has(b, i))
            CPU_CLR_S(i, sizeof a->set, a->set);
}

static bool is_empty(const struct clb_cpus *c)
{
    return CPU_COUNT_S(sizeof c->set, c->set) == 0;
}

/* Fills n->node with the nodes that count. */
static void find_nodes(struct clb_numa *n, const char *root, const struct clb_cpus *allowed)
{
    struct clb_cpus nodes, mems, cpus;
    char name[64];

    if (!read_list(root, "/sys/devices/system/node/has_memory", &nodes) ||
        !memory_allowed(root, &mems))
        return;
    keep_common(&nodes, &mems);
    for (unsigned id = 0; id < MASK_BITS - 1 && n->n_node < CLB_NUMA_NODES; id++) {
        snprintf(name, sizeof name, "/sys/devices/system/node/node%u/cpulist", id);
        if (!clb_cpus_has(&nodes, id) || !read_list(root, name, &cpus))
            continue;
        keep_common(&cpus, allowed);
        if (!is_empty(&cpus))
            n->node[n->n_node++] = (struct clb_numa_node){ .id = id, .cpus = cpus };
    }
}

/* Leaves the node with the most cores; of equals, the first. */
static void keep_largest(struct clb_numa *n, const char *root)
{
    unsigned most = 0, best = 0;

    for (uint32_t i = 0; i < n->n_node; i++) {
        unsigned cores = clb_cores_count(root, &n->node[i].cpus);
        if (cores > most) {
            most = cores;
            best = i;
        }
    }
    n->node[0] = n->node[best];
    n->n_node = 1;
}

/* Somebody else has a plan for this process. */
static bool has_policy(void)
{
    int mode = MPOL_DEFAULT;

    return syscall(SYS_get_mempolicy, &mode, NULL, 0, NULL, 0) == 0 && mode != MPOL_DEFAULT;
}

void clb_numa_decide(struct clb_numa *n, const char *root, enum clb_numa_mode want,
                     const struct clb_cpus *allowed)
{
    struct clb_err ignored;

    *n = (struct clb_numa){ .mode = CLB_NUMA_OFF };
    if (want == CLB_NUMA_OFF || (want == CLB_NUMA_AUTO && has_policy()))
        return;
    n->node = clb_new(CLB_NUMA_NODES, sizeof *n->node, &ignored);
    if (n->node)
        find_nodes(n, root, allowed);
    if (n->n_node < 2) {
        clb_numa_done(n);
        return;
    }
    n->mode = want == CLB_NUMA_LOCAL ? CLB_NUMA_LOCAL : CLB_NUMA_INTERLEAVE;
    if (n->mode == CLB_NUMA_LOCAL)
        keep_largest(n, root);
}

void clb_numa_done(struct clb_numa *n)
{
    clb_free(n->node);
    *n = (struct clb_numa){ .mode = CLB_NUMA_OFF };
}

const char *clb_numa_describe(const struct clb_numa *n, char *text, size_t size)
{
    size_t at;

    *text = '\0';
    if (n->mode == CLB_NUMA_OFF)
        return text;
    snprintf(text, size,
             n->mode == CLB_NUMA_LOCAL ? "on NUMA node" : "interleaved over NUMA nodes");
    for (uint32_t i = 0; i < n->n_node && (at = strlen(text)) + 1 < size; i++)
        snprintf(text + at, size - at, "%c%u", i ? ',' : ' ', n->node[i].id);
    return text;
}

struct clb_cpus clb_numa_cpus(const struct clb_numa *n, const struct clb_cpus *allowed)
{
    return n->mode == CLB_NUMA_LOCAL ? n->node[0].cpus : *allowed;
}

/* -- what the system is told ----------------------------------------------------------------- */

/* MPOL_PREFERRED instead of MPOL_BIND: a model that is larger than its node runs. */
static int policy(const struct clb_numa *n, unsigned long mask[CLB_NUMA_MASK])
{
    memset(mask, 0, CLB_NUMA_MASK * sizeof *mask);
    for (uint32_t i = 0; i < n->n_node; i++)
        mask[n->node[i].id / BITS] |= 1ul << n->node[i].id % BITS;
    return n->mode == CLB_NUMA_LOCAL ? MPOL_PREFERRED : MPOL_INTERLEAVE;
}

void clb_numa_place(const struct clb_numa *n, void *at, uint64_t bytes)
{
    unsigned long mask[CLB_NUMA_MASK];

    if (n->n_node == 0)
        return;
    int mode = policy(n, mask);
    syscall(SYS_mbind, at, bytes, mode, mask, (unsigned long)MASK_BITS, 0u);
}

void clb_numa_join(const struct clb_numa *n, unsigned thread, unsigned n_thread)
{
    unsigned long mask[CLB_NUMA_MASK];

    if (n->n_node == 0)
        return;
    const struct clb_numa_node *near = &n->node[(uint64_t)thread * n->n_node / n_thread];
    sched_setaffinity(0, sizeof near->cpus.set, near->cpus.set);
    int mode = policy(n, mask);
    syscall(SYS_set_mempolicy, mode, mask, (unsigned long)MASK_BITS);
}

void clb_numa_enter(const struct clb_numa *n, struct clb_numa_policy *before)
{
    unsigned long mask[CLB_NUMA_MASK];

    before->changed = false;
    if (n->n_node == 0)
        return;
    memset(before->mask, 0, sizeof before->mask);
    if (syscall(SYS_get_mempolicy, &before->mode, before->mask, (unsigned long)MASK_BITS, NULL, 0))
        return;
    int mode = policy(n, mask);
    before->changed = syscall(SYS_set_mempolicy, mode, mask, (unsigned long)MASK_BITS) == 0;
}

void clb_numa_leave(const struct clb_numa_policy *before)
{
    if (before->changed)
        syscall(SYS_set_mempolicy, before->mode, before->mask, (unsigned long)MASK_BITS);
}
