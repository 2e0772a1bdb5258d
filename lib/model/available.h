/* available.h - how much memory this process may still take. */
#ifndef CLB_MODEL_AVAILABLE_H
#define CLB_MODEL_AVAILABLE_H

#include <stdint.h>

/* The smaller of what the system has available (/proc/meminfo) and what the limits of the control
 * groups above this process leave (version 1 and 2; cached file pages count as free). 0: unknown.
 * `root` is put before every path; "" but in tests. */
uint64_t clb_memory_available(const char *root);

#endif
