/* Every block carries, in the 8 bytes before it, the distance back to what malloc returned. That
 * lets zeroed blocks come from calloc, which leaves a fresh large mapping untouched (a KV cache of
 * gigabytes costs nothing until it is used), and still be 64-byte aligned. */
#include "lib/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, GROW_HEAD = 16 };

/* What no machine has. The sanitizer's malloc ends the process on sizes that it thinks absurd, so
 * the limit lies below its own there. */
#ifdef __SANITIZE_ADDRESS__
#define MOST_BYTES (UINT64_C(1) << 38)
#else
#define MOST_BYTES (UINT64_C(1) << 46)
#endif

#ifdef CLB_ALLOC_GUARD
static _Thread_local unsigned guarded;

void clb_alloc_guard_lock(void)
{
    guarded++;
}

void clb_alloc_guard_unlock(void)
{
    guarded--;
}

void clb_alloc_guard_check(void)
{
    if (guarded) {
        static const char say[] = "clb: memory was allocated or released between two tokens\n";
        fwrite(say, 1, sizeof say - 1, stderr);
        abort();
    }
}
#else
void clb_alloc_guard_lock(void)
{
}

void clb_alloc_guard_unlock(void)
{
}

void clb_alloc_guard_check(void)
{
}
#endif

/* The distance from the start of the malloc block to `block`. */
static size_t head_of(const void *block)
{
    uint64_t head;

    memcpy(&head, (const char *)block - sizeof head, sizeof head);
    return (size_t)head;
}

static void *place(char *raw, size_t head)
{
    uint64_t h = head;

    memcpy(raw + head - sizeof h, &h, sizeof h);
    return raw + head;
}

static bool size_of(size_t count, size_t size, size_t extra, uint64_t *bytes, struct clb_err *err)
{
    if (!clb_mul(count, size, bytes))
        return clb_fail(err, CLB_NO_SPACE, "out of memory: %zu times %zu bytes were asked for",
                        count, size);
    if (*bytes > MOST_BYTES)
        return clb_fail_nomem(err, *bytes);
    *bytes += extra;
    return true;
}

void *clb_new(size_t count, size_t size, struct clb_err *err)
{
    uint64_t bytes;

    clb_alloc_guard_check();
    if (!size_of(count, size, 2 * ALIGN, &bytes, err))
        return NULL;
    char *raw = calloc(1, bytes);
    if (!raw) {
        clb_fail_nomem(err, bytes - 2 * ALIGN);
        return NULL;
    }
    /* At least 8 bytes are left before the block, since raw is 16-byte aligned. */
    return place(raw, ALIGN - ((uintptr_t)raw & (ALIGN - 1)));
}

void *clb_grow(void *block, size_t count, size_t size, struct clb_err *err)
{
    size_t head = block ? head_of(block) : GROW_HEAD;
    uint64_t bytes;

    clb_alloc_guard_check();
    if (!size_of(count, size, head, &bytes, err))
        return NULL;
    char *raw = realloc(block ? (char *)block - head : NULL, bytes);
    if (!raw) {
        clb_fail_nomem(err, bytes - head);
        return NULL;
    }
    return place(raw, head);
}

void clb_free(void *block)
{
    if (!block)
        return;
    clb_alloc_guard_check();
    free((char *)block - head_of(block));
}

char *clb_strdup(const char *s, struct clb_err *err)
{
    size_t n = strlen(s) + 1;
    char *copy = clb_new(n, 1, err);

    if (copy)
        memcpy(copy, s, n);
    return copy;
}
