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

enum { MOST_CPUS = 4096 };

struct cpus {
    cpu_set_t set[MOST_CPUS / CPU_SETSIZE];
};

static bool allowed(const struct cpus *c, unsigned cpu)
{
    return cpu < MOST_CPUS && CPU_ISSET_S(cpu, sizeof c->set, c->set);
}

/* One line of a small file, without its end. */
static bool read_line(const char *path, char *line, size_t n)
{
    FILE *f = fopen(path, "re");
    bool ok = f && fgets(line, (int)n, f);

    if (f)
        fclose(f);
    if (ok)
        line[strcspn(line, "\n")] = '\0';
    return ok;
}

/* Whether another allowed processor with a lower number is a thread of the same core. */
static bool has_lower_sibling(const struct cpus *c, unsigned cpu)
{
    char path[96], list[256];

    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
    if (!read_line(path, list, sizeof list))
        return false;
    for (char *s = list; *s;) { /* "0-1,64-65" */
        char *end;
        unsigned long a = strtoul(s, &end, 10), b = a;
        if (end == s)
            break;
        if (*end == '-')
            b = strtoul(end + 1, &end, 10);
        for (; a <= b && a < cpu; a++)
            if (allowed(c, (unsigned)a))
                return true;
        s = *end == ',' ? end + 1 : end;
        if (s == end)
            break;
    }
    return false;
}

/* The quota of one group in processors: v2 "cpu.max" holds "QUOTA PERIOD" or "max PERIOD", v1 has a
 * file for each and -1 for no limit. 0: none here. */
static double quota_at(const char *folder, bool v2)
{
    char path[CLB_CGROUP_PATH + 64], line[128];
    long long quota = -1, period = 0;

    snprintf(path, sizeof path, "%s/%s", folder, v2 ? "cpu.max" : "cpu.cfs_quota_us");
    if (!read_line(path, line, sizeof line))
        return 0;
    if (v2) {
        if (sscanf(line, "%lld %lld", &quota, &period) != 2)
            return 0;
    } else {
        quota = atoll(line);
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        if (!read_line(path, line, sizeof line))
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

unsigned clb_pool_default_threads(char *why, size_t n)
{
    struct cpus c = { 0 };
    unsigned cpus = 0, cores = 0;
    char limit[32] = "no quota";

    if (sched_getaffinity(0, sizeof c.set, c.set) == 0) {
        for (unsigned cpu = 0; cpu < MOST_CPUS; cpu++) {
            cpus += allowed(&c, cpu);
            cores += allowed(&c, cpu) && !has_lower_sibling(&c, cpu);
        }
    } else { /* more processors than fit: threads of a core are then counted apart */
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        cpus = cores = online > 0 ? (unsigned)online : 1;
    }
    unsigned threads = cores ? cores : 1;
    double quota = clb_cores_quota("");
    if (quota > 0) {
        snprintf(limit, sizeof limit, "quota %.3g", quota);
        if (quota < threads)
            threads = (unsigned)quota + (quota > (unsigned)quota);
    }
    if (n)
        snprintf(why, n, "%u cores, affinity %u, %s", cores, cpus, limit);
    return threads ? threads : 1;
}
