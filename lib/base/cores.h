/* cores.h - how much of the machine this process may use. */
#ifndef CLB_BASE_CORES_H
#define CLB_BASE_CORES_H

/* The smallest cgroup quota (v2 and v1) of this process's group and the groups above it, in
 * processors; 0: no limit. `root` stands before /proc and /sys ("" outside tests). */
double clb_cores_quota(const char *root);

#endif
