/* cgroup.h - the control groups that this process is in, and the groups above them. */
#ifndef CLB_BASE_CGROUP_H
#define CLB_BASE_CGROUP_H

#include <stdbool.h>

enum { CLB_CGROUP_PATH = 4096 }; /* room for a folder; a longer one is passed over */

/* `folder` of one group; v2: of the unified hierarchy, else of the controller asked for. */
typedef void clb_cgroup_fn(void *arg, const char *folder, bool v2);

/* Calls `fn` for every group of /proc/self/cgroup that limits `controller` ("cpu", "memory") and
 * those above it, up to the mount point; a folder may be missing or come twice. `root` stands
 * before every path ("" outside tests). */
void clb_cgroup_each(const char *root, const char *controller, clb_cgroup_fn *fn, void *arg);

#endif
