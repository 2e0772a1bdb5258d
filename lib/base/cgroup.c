#include "lib/base/cgroup.h"

#include <stdio.h>
#include <string.h>

/* From the group `path` below `mount` up to the mount itself. */
static void walk_up(const char *mount, const char *path, bool v2, clb_cgroup_fn *fn, void *arg)
{
    char folder[CLB_CGROUP_PATH];
    size_t top = strlen(mount), n = strcmp(path, "/") ? strlen(path) : 0;

    if (top + n >= sizeof folder)
        return;
    memcpy(folder, mount, top);
    memcpy(folder + top, path, n);
    folder[top + n] = '\0';
    for (;;) {
        fn(arg, folder, v2);
        char *slash = strrchr(folder, '/');
        if (!slash || slash < folder + top)
            return;
        *slash = '\0';
    }
}

/* The hierarchy mounted at /sys/fs/cgroup<name>. */
static void walk(const char *root, const char *name, const char *path, bool v2, clb_cgroup_fn *fn,
                 void *arg)
{
    char mount[CLB_CGROUP_PATH];
    int n = snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%s", root, *name ? "/" : "", name);

    if (n > 0 && (size_t)n < sizeof mount)
        walk_up(mount, path, v2, fn, arg);
}

/* Whether the comma-separated list holds the word. */
static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);

    for (const char *s = list; (s = strstr(s, word)); s += n)
        if ((s == list || s[-1] == ',') && (s[n] == ',' || s[n] == '\0'))
            return true;
    return false;
}

void clb_cgroup_each(const char *root, const char *controller, clb_cgroup_fn *fn, void *arg)
{
    char line[CLB_CGROUP_PATH];

    snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    FILE *f = fopen(line, "re");
    while (f && fgets(line, sizeof line, f)) { /* "4:cpu,cpuacct:/path", version 2: "0::/path" */
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path)
            continue;
        names++;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        if (!*names) {
            walk(root, "", path, true, fn, arg);
            walk(root, "unified", path, true, fn, arg);
        } else if (has_word(names, controller)) {
            walk(root, names, path, false, fn, arg);
            if (strcmp(names, controller))
                walk(root, controller, path, false, fn, arg);
        }
    }
    if (f)
        fclose(f);
}
