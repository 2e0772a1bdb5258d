#include "lib/model/available.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/cgroup.h"

/* "NAME value" or "NAME: value" lines. */
static bool read_key(const char *path, const char *key, uint64_t *value)
{
    FILE *f = fopen(path, "re");
    char line[256];
    size_t n = strlen(key);
    bool found = false;

    while (f && !found && fgets(line, sizeof line, f))
        found = !strncmp(line, key, n) && strchr(": \t", line[n]) && line[n] &&
                sscanf(line + n + 1, "%" SCNu64, value) == 1;
    if (f)
        fclose(f);
    return found;
}

/* One number alone; "max" is not one. */
static bool read_number(const char *path, uint64_t *value)
{
    FILE *f = fopen(path, "re");
    bool ok = f && fscanf(f, "%" SCNu64, value) == 1;

    if (f)
        fclose(f);
    return ok;
}

struct group_files {
    const char *limit, *usage, *inactive, *active;
};
static const struct group_files version1 = { "memory.limit_in_bytes", "memory.usage_in_bytes",
                                             "total_inactive_file", "total_active_file" };
static const struct group_files version2 = { "memory.max", "memory.current", "inactive_file",
                                             "active_file" };

/* What one group's limit leaves; UINT64_MAX without a limit. */
static uint64_t group_leaves(const char *folder, const struct group_files *g)
{
    char path[CLB_CGROUP_PATH + 64];
    uint64_t limit, usage, file = 0, part;

    snprintf(path, sizeof path, "%s/%s", folder, g->limit);
    if (!read_number(path, &limit))
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", folder, g->usage);
    if (!read_number(path, &usage))
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (read_key(path, g->inactive, &part))
        file += part;
    if (read_key(path, g->active, &part))
        file += part;
    usage -= file < usage ? file : usage;
    return usage < limit ? limit - usage : 0;
}

static void keep_least(void *arg, const char *folder, bool v2)
{
    uint64_t *least = arg, left = group_leaves(folder, v2 ? &version2 : &version1);

    *least = left < *least ? left : *least;
}

uint64_t clb_memory_available(const char *root)
{
    char path[CLB_CGROUP_PATH];
    uint64_t kb, groups = UINT64_MAX;

    clb_cgroup_each(root, "memory", keep_least, &groups);
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (!read_key(path, "MemAvailable", &kb))
        return groups == UINT64_MAX ? 0 : groups;
    return kb * 1024 < groups ? kb * 1024 : groups;
}
