#include "lib/base/mapfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/base/pages.h"

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)    ? "a folder"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

/* At an address that agrees with offset 0 of a huge page, so that pages of the file's cache which
 * are huge can be mapped as they are. Not every file system sees to that itself. */
static void *map_aligned(size_t size, int fd)
{
    if (size < CLB_PAGES_HUGE || size > SIZE_MAX - CLB_PAGES_HUGE)
        return mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    size_t room = size + CLB_PAGES_HUGE;
    char *raw = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    size_t head = -(uintptr_t)raw & (CLB_PAGES_HUGE - 1), page = (size_t)sysconf(_SC_PAGESIZE);
    void *p = mmap(raw + head, size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
    int why = errno;
    size_t end = p == MAP_FAILED ? 0 : head + (size + page - 1) / page * page;
    if (end && head)
        munmap(raw, head);
    munmap(raw + end, room - end);
    errno = why;
    return p;
}

/* Checks what fd is and maps it. */
static bool map(struct clb_mapfile *m, struct clb_err *err)
{
    struct stat st;

    if (fstat(m->fd, &st) != 0)
        return clb_fail_sys(err, CLB_BAD_INPUT, "%s: cannot be examined", m->path);
    if (!S_ISREG(st.st_mode))
        return clb_fail(err, CLB_BAD_INPUT, "%s: is %s, not a file", m->path, kind_of(st.st_mode));
    if ((uint64_t)st.st_size > SIZE_MAX)
        return clb_fail(err, CLB_UNSUPPORTED, "%s: too large for this machine", m->path);
    m->size = (size_t)st.st_size;
    if (m->size == 0)
        return true;
    void *p = map_aligned(m->size, m->fd);
    if (p == MAP_FAILED)
        return clb_fail_sys(err, CLB_BAD_INPUT, "%s: cannot be mapped", m->path);
    m->data = p;
    return true;
}

bool clb_mapfile_open(struct clb_mapfile *m, const char *path, struct clb_err *err)
{
    *m = (struct clb_mapfile){ .fd = -1 };
    if (!(m->path = clb_strdup(path, err)))
        return false;
    /* Without O_NONBLOCK a pipe would wait for its writer. */
    m->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool ok = m->fd >= 0 || clb_fail_sys(err, CLB_BAD_INPUT, "%s: cannot be opened", path);
    if (!ok || !map(m, err)) {
        clb_err_place(err, path, NULL, CLB_NO_OFFSET);
        clb_mapfile_close(m);
        return false;
    }
    return true;
}

void clb_mapfile_close(struct clb_mapfile *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->size);
    if (m->path && m->fd >= 0) /* a zeroed struct has fd 0 but no path */
        close(m->fd);
    clb_free(m->path);
    *m = (struct clb_mapfile){ .fd = -1 };
}

/* For every page that the range touches. Hints are hints: what is out of range or refused is
 * ignored. */
static bool advise(const struct clb_mapfile *m, uint64_t at, uint64_t n, int advice)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end;

    if (!m->data || n == 0 || at >= m->size || !clb_add(at, n, &end))
        return false;
    if (end > m->size)
        end = m->size;
    at = at / page * page;
    return madvise((void *)(uintptr_t)(m->data + at), end - at, advice) == 0;
}

/* For the huge pages that lie in the range as a whole. */
static bool advise_within(const struct clb_mapfile *m, uint64_t at, uint64_t n, int advice)
{
    uint64_t first, end;

    if (!clb_add(at, n, &end) || !clb_round_up(at, CLB_PAGES_HUGE, &first))
        return false;
    end = (end < m->size ? end : m->size) / CLB_PAGES_HUGE * CLB_PAGES_HUGE;
    return first < end && advise(m, first, end - first, advice);
}

void clb_mapfile_want(const struct clb_mapfile *m, uint64_t at, uint64_t n)
{
    advise(m, at, n, MADV_WILLNEED);
}

/* Since Linux 5.18 a fault in a mapping that wants huge pages reads 2 MB, whatever else was said
 * about it. Before, MADV_RANDOM would make it a page. */
static bool faults_read_huge(void)
{
    struct utsname u;
    unsigned major, minor;

    return uname(&u) == 0 && sscanf(u.release, "%u.%u", &major, &minor) == 2 &&
           (major > 5 || (major == 5 && minor >= 18));
}

bool clb_mapfile_use(const struct clb_mapfile *m, uint64_t at, uint64_t n, enum clb_map_use use)
{
    if (use != CLB_MAP_LOOKUP && !faults_read_huge())
        return false;
    switch (use) {
    case CLB_MAP_STREAM:
        return advise(m, at, n, MADV_HUGEPAGE);
    case CLB_MAP_STREAM_WITHIN:
        advise(m, at, n, MADV_NOHUGEPAGE);
        return advise_within(m, at, n, MADV_HUGEPAGE);
    case CLB_MAP_BLOCKS:
        return advise(m, at, n, MADV_HUGEPAGE) && advise(m, at, n, MADV_RANDOM);
    case CLB_MAP_LOOKUP:
        advise(m, at, n, MADV_NOHUGEPAGE);
        return advise(m, at, n, MADV_RANDOM);
    }
    return false;
}

bool clb_mapfile_read(const struct clb_mapfile *m, void *dst, uint64_t at, size_t n,
                      struct clb_err *err)
{
    uint8_t *p = dst;
    uint64_t end;

    if (!clb_add(at, n, &end) || end > INT64_MAX)
        return clb_fail(err, CLB_BAD_INPUT, "%s: %zu bytes at %llu lie beyond any file", m->path, n,
                        (unsigned long long)at);
    while (n > 0) {
        ssize_t got = pread(m->fd, p, n > 1u << 30 ? 1u << 30 : n, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            clb_fail_sys(err, CLB_BAD_INPUT, "%s: byte %llu: cannot be read", m->path,
                         (unsigned long long)at);
        else if (got == 0)
            clb_fail(err, CLB_BAD_INPUT,
                     "%s: byte %llu: the file ends here, but %zu more bytes were "
                     "expected (it was cut while in use)",
                     m->path, (unsigned long long)at, n);
        if (got <= 0)
            return clb_err_place(err, m->path, NULL, at);
        p += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return true;
}
