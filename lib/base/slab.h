/* slab.h - the ledger that every memory pool keeps, and the slab allocator for activations.
 *
 * Three pools: weights, activations, host buffers. Each counts its bytes in a ledger. */
#ifndef CLB_BASE_SLAB_H
#define CLB_BASE_SLAB_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/pages.h"

struct clb_ledger {
    _Atomic uint64_t used;     /* bytes handed out now */
    _Atomic uint64_t peak;     /* the most ever handed out */
    _Atomic uint64_t reserved; /* bytes held from the system (>= used; the rest is fragmentation) */
    _Atomic uint64_t reserved_peak;
};
void clb_ledger_add(struct clb_ledger *l, uint64_t used, uint64_t reserved);
void clb_ledger_sub(struct clb_ledger *l, uint64_t used, uint64_t reserved);

/* The slab allocator: sizes up to the largest class come from slabs of that class, larger ones are
 * mapped on their own (rounded to pages). Freed slabs are kept and reused. Memory is 64-byte
 * aligned and zeroed only when fresh. With `disabled` every request is mapped on its own. Thread
 * safe. */
struct clb_slab;
enum { CLB_SLAB_CLASSES = 3 };
struct clb_slab_options {
    /* Ascending, multiples of 4096; all 0: 128 KB, 512 KB, 2 MB. */
    size_t class_bytes[CLB_SLAB_CLASSES];
    bool disabled;
    uint64_t limit; /* most bytes reserved; 0: no limit. Over it: CLB_NO_SPACE with both numbers */
    struct clb_residence *residence; /* borrowed; NULL: anywhere, not locked */
};
bool clb_slab_new(struct clb_slab **out, const struct clb_slab_options *opt,
                  struct clb_ledger *ledger, struct clb_err *err);
void clb_slab_free(struct clb_slab *s); /* NULL is fine; every block must have been put back */
void *clb_slab_get(struct clb_slab *s, size_t bytes, struct clb_err *err);
/* `bytes` as asked for; a NULL block is fine. */
void clb_slab_put(struct clb_slab *s, void *block, size_t bytes);
/* Bytes that a request of this size takes from the system (for plans). */
uint64_t clb_slab_cost(const struct clb_slab_options *opt, size_t bytes);

#endif
