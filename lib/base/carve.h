/* carve.h - cuts one block of memory into arrays. */
#ifndef CLB_BASE_CARVE_H
#define CLB_BASE_CARVE_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/mem.h"

/* Without a base it only measures: the same code first counts `at` bytes, then cuts. */
struct clb_carver {
    uint8_t *base;
    uint64_t at;
    bool overflow; /* the sizes do not fit 64 bits; every cut since then is NULL */
};

enum { CLB_CARVE_ALIGN = 64 };

/* Room for n items of `bytes`, aligned like the base up to 64 bytes. */
static inline void *clb_carve(struct clb_carver *c, uint64_t n, uint64_t bytes)
{
    uint64_t part, end;

    if (c->overflow || !clb_mul(n, bytes, &part) || !clb_round_up(part, CLB_CARVE_ALIGN, &part) ||
        !clb_add(c->at, part, &end)) {
        c->overflow = true;
        return NULL;
    }
    void *p = c->base ? c->base + c->at : NULL;
    c->at = end;
    return p;
}

/* Room for rows of n items. */
static inline void *clb_carve_rows(struct clb_carver *c, uint64_t rows, uint64_t n, uint64_t bytes)
{
    uint64_t row;

    if (!clb_mul(n, bytes, &row))
        c->overflow = true;
    return c->overflow ? NULL : clb_carve(c, rows, row);
}

#endif
