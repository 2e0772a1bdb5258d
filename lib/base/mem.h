/* mem.h - allocation with overflow-checked sizes, and the guard that proves that nothing is
 * allocated between two tokens. Every allocation of the library goes through here. */
#ifndef CLB_BASE_MEM_H
#define CLB_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

/* count * size bytes, zeroed, 64-byte aligned. NULL (and err filled) on overflow or when there is
 * no memory. count * size == 0 gives a valid pointer. Free with clb_free. */
void *clb_new(size_t count, size_t size, struct clb_err *err);
/* Like realloc, but 64-byte alignment is not promised and new bytes are not zeroed. On failure the
 * old block stays valid and NULL is returned. */
void *clb_grow(void *block, size_t count, size_t size, struct clb_err *err);
/* For blocks of clb_new and clb_grow; NULL is a no-op. */
void clb_free(void *block);
char *clb_strdup(const char *s, struct clb_err *err);

/* a * b, a + b, a rounded up to a multiple of `to` (a power of two): false on overflow. */
static inline bool clb_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}
static inline bool clb_add(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}
static inline bool clb_round_up(uint64_t a, uint64_t to, uint64_t *out)
{
    if (!clb_add(a, to - 1, out))
        return false;
    *out &= ~(to - 1);
    return true;
}

/* The guard. Between lock and unlock an allocation or release by this thread through this header
 * aborts the process when the guard is armed (test builds compile with -DCLB_ALLOC_GUARD); in other
 * builds both do nothing. Nests. */
void clb_alloc_guard_lock(void);
void clb_alloc_guard_unlock(void);
/* For those who take memory from the system themselves (lib/base/pages.c). */
void clb_alloc_guard_check(void);

#endif
