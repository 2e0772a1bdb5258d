/* How many threads this process should compute with: one per physical core that it may use. */
#include "lib/base/cores.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/cgroup.h"
#include "lib/base/pool.h"

bool clb_cpus_allowed(struct clb_cpus *c)
{
    *c = (struct clb_cpus){ 0 };
    return sched_getaffinity(0, sizeof c->set, c->set) == 0;
}

bool clb_read_line(const char *path, char *line, size_t n)
{
    FILE *f = fopen(path, "re");
    bool ok = f && fgets(line, (int)n, f);

    if (f)
        fclose(f);
    if (ok)
        line[strcspn(line, "\n")] = '\0';
    return ok;
}

bool clb_cpus_parse(struct clb_cpus *c, const char *list)
{
    *c = (struct clb_cpus){ 0 };
    for (const char *s = list; *s;) {
        char *end;
        unsigned long a = strtoul(s, &end, 10), b = a;
        bool ok = end != s;

        if (ok && *end == '-') {
            s = end + 1;
            b = strtoul(s, &end, 10);
            ok = end != s;
        }
        if (!ok || a > b || b >= CLB_CPUS_MOST || (*end && (*end != ',' || !end[1]))) {
            *c = (struct clb_cpus){ 0 };
            return false;
        }
        for (; a <= b; a++)
            CPU_SET_S(a, sizeof c->set, c->set);
        s = *end ? end + 1 : end;
    }
    return true;
}

/* Whether another processor of the set with a lower number is a thread of the same core. */
static bool has_lower_sibling(const char *root, const struct clb_cpus *c, unsigned cpu)
{
    char path[CLB_CGROUP_PATH], list[256];
    struct clb_cpus siblings;

    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list",
             root, cpu);
    if (!clb_read_line(path, list, sizeof list) || !clb_cpus_parse(&siblings, list))
        return false;
    for (unsigned other = 0; other < cpu; other++)
        if (clb_cpus_has(&siblings, other) && clb_cpus_has(c, other))
            return true;
    return false;
}

unsigned clb_cores_count(const char *root, const struct clb_cpus *c)
{
    unsigned n = 0;

    for (unsigned cpu = 0; cpu < CLB_CPUS_MOST; cpu++)
        n += clb_cpus_has(c, cpu) && !has_lower_sibling(root, c, cpu);
    return n;
}

/* The quota of one group in processors: v2 "cpu.max" holds "QUOTA PERIOD" or "max PERIOD", v1 has a
 * file for each and -1 for no limit. 0: none here. */
static double quota_at(const char *folder, bool v2)
{
    char path[CLB_CGROUP_PATH + 64], line[128];
    long long quota = -1, period = 0;

    snprintf(path, sizeof path, "%s/%s", folder, v2 ? "cpu.max" : "cpu.cfs_quota_us");
    if (!clb_read_line(path, line, sizeof line))
        return 0;
    if (v2) {
        if (sscanf(line, "%lld %lld", &quota, &period) != 2)
            return 0;
    } else {
        quota = atoll(line);
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        if (!clb_read_line(path, line, sizeof line))
            return 0;
        period = atoll(line);
    }
    return quota > 0 && period > 0 ? (double)quota / (double)period : 0;
}

static void keep_least(void *arg, const char *folder, bool v2)
{
    double *least = arg, quota = quota_at(folder, v2);

    if (quota > 0 && (*least == 0 || quota < *least))
        *least = quota;
}

double clb_cores_quota(const char *root)
{
    double least = 0;

    clb_cgroup_each(root, "cpu", keep_least, &least);
    return least;
}

unsigned clb_cores_threads(const char *root, const struct clb_cpus *c, char *why, size_t n)
{
    unsigned cores = clb_cores_count(root, c), threads = cores ? cores : 1;
    double quota = clb_cores_quota(root);
    char limit[32] = "no quota";

    if (quota > 0) {
        snprintf(limit, sizeof limit, "quota %.3g", quota);
        if (quota < threads)
            threads = (unsigned)quota + (quota > (unsigned)quota);
    }
    if (n)
        snprintf(why, n, "%u cores, affinity %d, %s", cores, CPU_COUNT_S(sizeof c->set, c->set),
                 limit);
    return threads ? threads : 1;
}

unsigned clb_pool_default_threads(char *why, size_t n)
{
    struct clb_cpus c;

    if (!clb_cpus_allowed(&c)) { /* more processors than fit: threads of a core count apart */
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        for (long cpu = 0; cpu < online && cpu < CLB_CPUS_MOST; cpu++)
            CPU_SET_S((size_t)cpu, sizeof c.set, c.set);
    }
    return clb_cores_threads("", &c, why, n);
}
