/* ahead.h - fetching into L2 what a kernel reads next, spread evenly over its own work. */
#ifndef CLB_KERNELS_WIDE_AHEAD_H
#define CLB_KERNELS_WIDE_AHEAD_H

#include <stddef.h>
#include <stdint.h>

struct ahead {
    const uint8_t *at;
    uint32_t lines; /* to be fetched with each group */
};

static inline __attribute__((always_inline)) void fetch_ahead(struct ahead *a)
{
    for (uint32_t i = 0; i < a->lines; i++, a->at += 64)
        __builtin_prefetch(a->at, 0, 2);
}

/* Lines per group, so that all of `bytes` are fetched when `n_group` groups are done. */
static struct ahead look_ahead(const uint8_t *at, size_t bytes, size_t n_group)
{
    size_t lines = (bytes + 63) / 64;
    return (struct ahead){ at, at ? (uint32_t)((lines + n_group - 1) / n_group) : 0 };
}

#endif
