#include "lib/base/mapfile.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/mem.h"

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode)    ? "a folder"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
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
    void *p = mmap(NULL, m->size, PROT_READ, MAP_SHARED, m->fd, 0);
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

/* Hints are hints: what is out of range or refused is ignored. */
static void advise(const struct clb_mapfile *m, uint64_t at, uint64_t n, bool inward, int advice)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end;

    if (!m->data || at >= m->size || !clb_add(at, n, &end))
        return;
    if (end > m->size)
        end = m->size;
    if (inward) { /* whole pages of the range only; the last page of the file counts as whole */
        at = (at + page - 1) / page * page;
        end = end == m->size ? end : end / page * page;
    } else {
        at = at / page * page;
    }
    if (at < end)
        madvise((void *)(uintptr_t)(m->data + at), end - at, advice);
}

void clb_mapfile_want(const struct clb_mapfile *m, uint64_t at, uint64_t n)
{
    advise(m, at, n, false, MADV_WILLNEED);
}

void clb_mapfile_drop(const struct clb_mapfile *m, uint64_t at, uint64_t n)
{
    advise(m, at, n, true, MADV_DONTNEED);
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
