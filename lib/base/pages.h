/* pages.h - memory straight from the system, for what is large and lives long: KV cache,
 * activations, cached experts. It can stand on huge pages, be locked, and be spread over NUMA
 * nodes. */
#ifndef CLB_BASE_PAGES_H
#define CLB_BASE_PAGES_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/base/numa.h"

enum { CLB_PAGES_HUGE = 2 << 20 }; /* bytes of a huge page: of one PMD on x86-64 and aarch64 */

/* How the memory of a model resides. Owned by the model; outlives every block. */
struct clb_residence {
    bool lock;               /* mlock all of it */
    struct clb_numa numa;    /* where it lies */
    _Atomic uint64_t locked; /* bytes now */
};

/* Zeroed and untouched: a page costs memory when it is first written (at once when locked). Page
 * aligned, from 2 MB on aligned to that. `huge`: see clb_pages_huge; else no huge pages, not even
 * where the system gives them to all. `how` may be NULL: not locked, where the system likes.
 * CLB_NO_SPACE when there is no memory or it may not be locked; `what` names it there. */
void *clb_pages_new(uint64_t bytes, bool huge, struct clb_residence *how, const char *what,
                    struct clb_err *err);
/* `bytes` and `how` as given to clb_pages_new; NULL is a no-op. */
void clb_pages_free(void *block, uint64_t bytes, struct clb_residence *how);
/* Asks for huge pages wherever a whole one fits into the block: never more memory than its bytes,
 * but each first touch now costs 2 MB of it. A wish that the system may not grant. */
void clb_pages_huge(void *block, uint64_t bytes);

/* Locks [at, at + bytes), of any memory, and counts it; the message tells the limit and what to do.
 * Nothing happens unless how->lock. */
bool clb_pages_lock(const void *at, uint64_t bytes, struct clb_residence *how, const char *what,
                    struct clb_err *err);
void clb_pages_unlock(const void *at, uint64_t bytes, struct clb_residence *how);

#endif
