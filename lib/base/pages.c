#include "lib/base/pages.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lib/base/mem.h"

/* -- locking --------------------------------------------------------------------------------- */

bool clb_pages_lock(const void *at, uint64_t bytes, struct clb_residence *how, const char *what,
                    struct clb_err *err)
{
    struct rlimit most;

    if (!how || !how->lock || bytes == 0)
        return true;
    if (mlock(at, bytes) == 0) {
        atomic_fetch_add(&how->locked, bytes);
        return true;
    }
    int why = errno;
    munlock(at, bytes); /* what was locked before it failed */
    if (getrlimit(RLIMIT_MEMLOCK, &most) == 0 && most.rlim_cur != RLIM_INFINITY)
        clb_fail(err, CLB_NO_SPACE,
                 "cannot lock %" PRIu64 " bytes of %s in memory: this process may lock %" PRIu64
                 " (RLIMIT_MEMLOCK) and has locked %" PRIu64 " for the model; raise the limit "
                 "('ulimit -l', limits.conf, LimitMEMLOCK= of a service) or do without locking",
                 bytes, what, (uint64_t)most.rlim_cur, atomic_load(&how->locked));
    else
        clb_fail(err, CLB_NO_SPACE, "cannot lock %" PRIu64 " bytes of %s in memory: %s", bytes,
                 what, strerror(why));
    err->sys = why;
    return false;
}

void clb_pages_unlock(const void *at, uint64_t bytes, struct clb_residence *how)
{
    if (!how || !how->lock || bytes == 0)
        return;
    munlock(at, bytes);
    atomic_fetch_sub(&how->locked, bytes);
}

/* -- blocks ---------------------------------------------------------------------------------- */

/* The sanitizer sees what goes beyond a block only when its own malloc made it. */
#ifdef __SANITIZE_ADDRESS__
static void *map(uint64_t bytes, struct clb_err *err)
{
    return clb_new(1, bytes, err);
}

static void unmap(void *block, uint64_t bytes)
{
    (void)bytes;
    clb_free(block);
}
#else
static uint64_t whole_pages(uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), n;

    return clb_round_up(bytes ? bytes : 1, page, &n) ? n : UINT64_MAX;
}

/* Older systems align large mappings to a page only: more is taken, and the ends given back. */
static void *map(uint64_t bytes, struct clb_err *err)
{
    uint64_t n = whole_pages(bytes), more = n >= CLB_PAGES_HUGE ? CLB_PAGES_HUGE : 0, all;

    clb_alloc_guard_check();
    if (!clb_add(n, more, &all) || all > SIZE_MAX) {
        clb_fail_nomem(err, bytes);
        return NULL;
    }
    char *raw = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) {
        clb_fail_nomem(err, bytes);
        return NULL;
    }
    uint64_t head = more ? -(uint64_t)(uintptr_t)raw & (CLB_PAGES_HUGE - 1) : 0;
    if (head)
        munmap(raw, head);
    if (more > head)
        munmap(raw + head + n, more - head);
    return raw + head;
}

static void unmap(void *block, uint64_t bytes)
{
    clb_alloc_guard_check();
    munmap(block, whole_pages(bytes));
}
#endif

/* For the huge pages that fit into the block as a whole. */
static void advise(void *block, uint64_t bytes, int advice)
{
    uintptr_t from = ((uintptr_t)block + CLB_PAGES_HUGE - 1) & ~(uintptr_t)(CLB_PAGES_HUGE - 1);
    uintptr_t to = ((uintptr_t)block + bytes) & ~(uintptr_t)(CLB_PAGES_HUGE - 1);

    if (from < to)
        madvise((void *)from, to - from, advice);
}

void *clb_pages_new(uint64_t bytes, bool huge, struct clb_residence *how, const char *what,
                    struct clb_err *err)
{
    void *block = map(bytes, err);

    if (!block)
        return NULL;
    /* some systems give them unasked */
    advise(block, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (how) /* both before locking, which takes the memory */
        clb_numa_place(&how->numa, block, bytes);
    if (clb_pages_lock(block, bytes, how, what, err))
        return block;
    unmap(block, bytes);
    return NULL;
}

void clb_pages_free(void *block, uint64_t bytes, struct clb_residence *how)
{
    if (!block)
        return;
    clb_pages_unlock(block, bytes, how);
    unmap(block, bytes);
}

void clb_pages_huge(void *block, uint64_t bytes)
{
    advise(block, bytes, MADV_HUGEPAGE);
}
