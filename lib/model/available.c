#include "lib/model/available.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

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
    const char *mount, *limit, *usage, *inactive, *active;
};
static const struct group_files version1 = { "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                             "memory.usage_in_bytes", "total_inactive_file",
                                             "total_active_file" };
static const struct group_files version2 = { "/sys/fs/cgroup", "memory.max", "memory.current",
                                             "inactive_file", "active_file" };

/* What one group's limit leaves; UINT64_MAX without a limit. */
static uint64_t group_leaves(const char *folder, const struct group_files *g)
{
    char path[PATH_BYTES + 64];
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

/* The group at `path` and every one above it. */
static uint64_t groups_leave(const char *root, const char *path, const struct group_files *g)
{
    char folder[PATH_BYTES];
    uint64_t least = UINT64_MAX;
    size_t mount = (size_t)snprintf(folder, sizeof folder, "%s%s", root, g->mount);

    if (mount + strlen(path) >= sizeof folder)
        return least;
    memcpy(folder + mount, path, strlen(path) + 1);
    for (;;) {
        uint64_t left = group_leaves(folder, g);
        least = left < least ? left : least;
        if (strlen(folder) <= mount)
            return least;
        *strrchr(folder, '/') = '\0';
    }
}

/* Whether "memory" is one of the comma-separated words. */
static bool names_memory(const char *words)
{
    for (const char *p = words; (p = strstr(p, "memory")); p += 6)
        if ((p == words || p[-1] == ',') && (p[6] == ',' || p[6] == '\0'))
            return true;
    return false;
}

static uint64_t all_groups_leave(const char *root)
{
    char line[PATH_BYTES];
    uint64_t least = UINT64_MAX;

    snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    FILE *f = fopen(line, "re");
    while (f && fgets(line, sizeof line, f)) { /* "4:memory:/path", version 2: "0::/path" */
        char *words = strchr(line, ':'), *path = words ? strchr(words + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        bool v2 = words[1] == '\0';
        if (!v2 && !names_memory(words + 1))
            continue;
        uint64_t left =
            groups_leave(root, strcmp(path, "/") ? path : "", v2 ? &version2 : &version1);
        least = left < least ? left : least;
    }
    if (f)
        fclose(f);
    return least;
}

uint64_t clb_memory_available(const char *root)
{
    char path[PATH_BYTES];
    uint64_t kb, groups = all_groups_leave(root);

    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (!read_key(path, "MemAvailable", &kb))
        return groups == UINT64_MAX ? 0 : groups;
    return kb * 1024 < groups ? kb * 1024 : groups;
}
