/* facts.c - what the system tells about the machine, from /proc and /sys. */
#include "cmd/colibri-bench/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "lib/base/pool.h"

#define CPUS "/sys/devices/system/cpu"

/* The first line of a small file, without its end; "" when it cannot be read. */
static bool read_line(char *line, size_t n, const char *path)
{
    FILE *f = fopen(path, "re");
    bool ok = f && fgets(line, (int)n, f);

    if (f)
        fclose(f);
    if (!ok)
        *line = '\0';
    line[strcspn(line, "\n")] = '\0';
    return ok;
}

/* A list of processors, "0-1,64-65": how many, and the first. */
static uint32_t count_list(const char *list, uint32_t *first)
{
    uint32_t n = 0;

    *first = UINT32_MAX;
    for (const char *s = list; *s;) {
        char *end;
        unsigned long a = strtoul(s, &end, 10), b = a;

        if (end == s)
            break;
        if (*end == '-')
            b = strtoul(end + 1, &end, 10);
        *first = a < *first ? (uint32_t)a : *first;
        n += b >= a ? (uint32_t)(b - a + 1) : 0;
        s = *end == ',' ? end + 1 : end;
    }
    return n;
}

static uint32_t count_file(const char *path, uint32_t *first)
{
    char line[4096];

    return read_line(line, sizeof line, path) ? count_list(line, first) : 0;
}

static uint64_t parse_bytes(const char *text) /* "32768K" */
{
    char *unit;
    uint64_t n = strtoull(text, &unit, 10);

    return n << (*unit == 'K' ? 10 : *unit == 'M' ? 20 : *unit == 'G' ? 30 : 0);
}

static void add_cache(struct bench_facts *f, const struct bench_cache *c)
{
    for (uint32_t i = 0; i < f->n_cache; i++) {
        struct bench_cache *same = &f->cache[i];

        if (same->level == c->level && same->bytes == c->bytes && same->shared == c->shared &&
            !strcmp(same->type, c->type)) {
            same->n++;
            return;
        }
    }
    if (f->n_cache < sizeof f->cache / sizeof *f->cache)
        f->cache[f->n_cache++] = *c;
}

/* What /sys says about a cache of a processor. */
static bool cache_line(char *line, size_t n, uint32_t cpu, uint32_t index, const char *what)
{
    char path[128];

    snprintf(path, sizeof path, CPUS "/cpu%u/cache/index%u/%s", cpu, index, what);
    return read_line(line, n, path);
}

/* The caches of processor `cpu`, unless one with a lower number has told of them. */
static void read_caches(struct bench_facts *f, uint32_t cpu)
{
    char line[4096];
    uint32_t first;

    for (uint32_t i = 0; cache_line(line, sizeof line, cpu, i, "shared_cpu_list"); i++) {
        struct bench_cache c = { .n = 1, .shared = count_list(line, &first) };

        cache_line(line, sizeof line, cpu, i, "level");
        c.level = (uint32_t)strtoul(line, NULL, 10);
        cache_line(line, sizeof line, cpu, i, "size");
        c.bytes = parse_bytes(line);
        cache_line(c.type, sizeof c.type, cpu, i, "type");
        if (first == cpu && c.bytes)
            add_cache(f, &c);
    }
}

/* Where /sys is not there, the C library may know. */
static void ask_libc(struct bench_facts *f)
{
    static const struct {
        int name;
        uint32_t level;
        const char *type;
    } known[] = { { _SC_LEVEL1_DCACHE_SIZE, 1, "Data" },
                  { _SC_LEVEL2_CACHE_SIZE, 2, "Unified" },
                  { _SC_LEVEL3_CACHE_SIZE, 3, "Unified" } };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        long bytes = sysconf(known[i].name);
        struct bench_cache c = { .level = known[i].level, .n = 1 };

        if (bytes <= 0)
            continue;
        c.bytes = (uint64_t)bytes;
        snprintf(c.type, sizeof c.type, "%s", known[i].type);
        add_cache(f, &c);
    }
}

static void read_processors(struct bench_facts *f)
{
    char line[4096], path[128];
    bool package[256] = { false };
    uint32_t last = 0, first;

    f->nodes = count_file("/sys/devices/system/node/online", &first);
    f->processors = count_file(CPUS "/online", &first);
    if (!f->processors) {
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        f->processors = n > 0 ? (uint32_t)n : 1;
    }
    if (read_line(line, sizeof line, CPUS "/present")) { /* "0-127" */
        const char *dash = strrchr(line, '-');
        last = (uint32_t)strtoul(dash ? dash + 1 : line, NULL, 10);
    }
    for (uint32_t cpu = 0; cpu <= last && cpu < 8192; cpu++) {
        snprintf(path, sizeof path, CPUS "/cpu%u/topology/thread_siblings_list", cpu);
        if (count_file(path, &first) && first == cpu)
            f->cores++;
        snprintf(path, sizeof path, CPUS "/cpu%u/topology/physical_package_id", cpu);
        if (read_line(line, sizeof line, path)) {
            bool *p = &package[strtoul(line, NULL, 10) % 256];
            f->sockets += !*p;
            *p = true;
        }
        read_caches(f, cpu);
    }
    if (!f->n_cache)
        ask_libc(f);
}

/* The value of "key : value" in /proc/cpuinfo or /proc/meminfo, the first of them. */
static bool find_value(char *out, size_t n, const char *path, const char *key)
{
    FILE *f = fopen(path, "re");
    char line[4096];
    bool found = false;

    while (f && !found && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');

        if (!colon || strncmp(line, key, strlen(key)) ||
            strspn(line + strlen(key), " \t") != (size_t)(colon - line) - strlen(key))
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(out, n, "%.*s", (int)strcspn(colon, "\n"), colon);
        found = true;
    }
    if (f)
        fclose(f);
    return found;
}

static uint64_t memory_of(const char *key)
{
    char value[64];

    return find_value(value, sizeof value, "/proc/meminfo", key) ? strtoull(value, NULL, 10) << 10
                                                                 : 0;
}

static void read_cpu_name(struct bench_facts *f)
{
    char flags[4096], part[32];

    if (!find_value(f->cpu, sizeof f->cpu, "/proc/cpuinfo", "model name")) {
        bool known = find_value(flags, sizeof flags, "/proc/cpuinfo", "CPU implementer") &&
                     find_value(part, sizeof part, "/proc/cpuinfo", "CPU part");
        if (known)
            snprintf(f->cpu, sizeof f->cpu, "implementer %.16s part %.16s", flags, part);
        else
            snprintf(f->cpu, sizeof f->cpu, "unknown processor");
    }
    if (find_value(flags, sizeof flags, "/proc/cpuinfo", "flags"))
        f->virtual_machine = strstr(flags, " hypervisor") != NULL;
}

void bench_facts_read(struct bench_facts *f)
{
    struct utsname u;
    char line[128];

    *f = (struct bench_facts){ 0 };
    read_cpu_name(f);
    read_processors(f);
    f->threads = clb_pool_default_threads(f->why, sizeof f->why);
    for (uint32_t i = 0, level = 0; i < f->n_cache; i++) {
        if (f->cache[i].level < level || !strcmp(f->cache[i].type, "Instruction"))
            continue;
        f->last_level = f->cache[i].level > level ? 0 : f->last_level;
        level = f->cache[i].level;
        f->last_level += f->cache[i].bytes * f->cache[i].n;
    }
    f->memory = memory_of("MemTotal");
    f->available = memory_of("MemAvailable");
    if (uname(&u) == 0)
        snprintf(f->kernel, sizeof f->kernel, "%.64s %.64s, %.24s", u.sysname, u.release,
                 u.machine);
    read_line(line, sizeof line, "/sys/kernel/mm/transparent_hugepage/enabled");
    const char *chosen = strchr(line, '['); /* "always [madvise] never" */
    if (chosen)
        snprintf(f->huge_pages, sizeof f->huge_pages, "%.*s", (int)strcspn(chosen + 1, "]"),
                 chosen + 1);
}

uint64_t bench_disk_bytes(void)
{
    char value[64];

    return find_value(value, sizeof value, "/proc/self/io", "read_bytes")
               ? strtoull(value, NULL, 10)
               : 0;
}

bool bench_load_average(double load[3])
{
    char line[128];

    return read_line(line, sizeof line, "/proc/loadavg") &&
           sscanf(line, "%lf %lf %lf", &load[0], &load[1], &load[2]) == 3;
}
