/* disk.c - how fast the disk is read, as far as possible past the page cache: with O_DIRECT, or
 * after asking the system to forget the pages of the file. */
#include "cmd/colibri-bench/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/pool.h"

enum { BLOCK = 2 << 20, AT_ONCE = 4, TEMPORARY = 256 << 20, MOST_BLOCKS = 512 };
#define MOST_SECONDS 2.0

static void give_up(struct bench_disk *d, const char *what, int why)
{
    snprintf(d->why_not, sizeof d->why_not, "%s: %s", what, strerror(why));
}

/* -- reading ---------------------------------------------------------------------------------- */

struct reading {
    int fd;
    uint32_t n_block;
    uint8_t *buffer; /* [AT_ONCE][BLOCK] */
    double deadline;
    atomic_uint next;
    atomic_uint_least64_t bytes;
    atomic_int failed; /* errno */
};

static void read_blocks(void *arg, unsigned thread, unsigned n_thread)
{
    struct reading *r = arg;
    uint32_t block;

    (void)n_thread;
    while (clb_now() < r->deadline && clb_take(&r->next, r->n_block, &block)) {
        ssize_t n = pread(r->fd, r->buffer + (size_t)thread * BLOCK, BLOCK, (off_t)block * BLOCK);

        if (n != BLOCK) {
            atomic_store(&r->failed, n < 0 ? errno : EIO);
            return;
        }
        atomic_fetch_add(&r->bytes, BLOCK);
    }
}

/* Several reads at a time, as disks like it. */
static void time_reading(struct bench_disk *d, struct reading *r)
{
    struct clb_pool *pool;
    struct clb_err err;

    if (!clb_pool_new(&pool, AT_ONCE, &err)) {
        snprintf(d->why_not, sizeof d->why_not, "%.150s", err.text);
        return;
    }
    double start = clb_now();
    r->deadline = start + MOST_SECONDS;
    clb_pool_run(pool, read_blocks, r);
    double seconds = clb_now() - start;
    clb_pool_free(pool);
    if (atomic_load(&r->failed))
        give_up(d, "reading", atomic_load(&r->failed));
    d->bytes = atomic_load(&r->bytes);
    d->read = seconds > 0 ? (double)d->bytes / seconds : 0;
}

/* Reads the file behind `fd`; `path` opens it anew. */
static void measure(struct bench_disk *d, const char *path, int fd)
{
    struct reading r = { .fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT) };
    struct stat st;
    void *buffer = MAP_FAILED;

    if (fstat(fd, &st) || st.st_size < BLOCK) {
        snprintf(d->why_not, sizeof d->why_not, "the file is smaller than 2 MiB");
        goto done;
    }
    buffer = mmap(NULL, (size_t)AT_ONCE * BLOCK, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (buffer == MAP_FAILED) {
        give_up(d, "memory", errno);
        goto done;
    }
    r.buffer = buffer;
    r.n_block = st.st_size / BLOCK < MOST_BLOCKS ? (uint32_t)(st.st_size / BLOCK) : MOST_BLOCKS;
    d->direct = r.fd >= 0 && pread(r.fd, buffer, BLOCK, 0) == BLOCK;
    if (!d->direct) { /* file systems in memory, some network ones */
        if (r.fd >= 0)
            close(r.fd);
        r.fd = open(path, O_RDONLY | O_CLOEXEC);
        if (r.fd < 0) {
            give_up(d, path, errno);
            goto done;
        }
        posix_fadvise(r.fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    time_reading(d, &r);
done:
    if (buffer != MAP_FAILED)
        munmap(buffer, (size_t)AT_ONCE * BLOCK);
    if (r.fd >= 0)
        close(r.fd);
}

/* -- a temporary file ------------------------------------------------------------------------- */

/* Numbers that neither a file system nor a disk can make smaller. */
static void fill(uint64_t *word, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        word[i] = seed;
    }
}

static bool write_all(struct bench_disk *d, int fd)
{
    static const char what[] = "writing a temporary file";
    uint64_t *block = malloc(BLOCK);
    double start = clb_now();
    bool ok = block != NULL;

    if (!ok)
        give_up(d, what, ENOMEM);
    for (size_t at = 0; ok && at < TEMPORARY; at += BLOCK) {
        fill(block, BLOCK / sizeof *block, at + 1);
        ok = write(fd, block, BLOCK) == BLOCK;
    }
    if (block && (!ok || fsync(fd)))
        give_up(d, what, errno);
    free(block);
    d->write = TEMPORARY / (clb_now() - start);
    return !*d->why_not;
}

/* Has no name when it is written, so that nothing can leave it behind. */
static void measure_temporary(struct bench_disk *d)
{
    const char *folder = getenv("TMPDIR");
    char path[64];

    if (!folder || !*folder)
        folder = access("/var/tmp", W_OK) ? "/tmp" : "/var/tmp";
    snprintf(d->path, sizeof d->path, "%s", folder);
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0) {
        give_up(d, folder, errno);
        return;
    }
    if (write_all(d, fd)) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        measure(d, path, fd);
    }
    close(fd);
}

void bench_disk_measure(struct bench_disk *d, const char *path)
{
    *d = (struct bench_disk){ 0 };
    if (!path) {
        measure_temporary(d);
    } else {
        int fd = open(path, O_RDONLY | O_CLOEXEC);

        snprintf(d->path, sizeof d->path, "%s", path);
        if (fd < 0) {
            give_up(d, path, errno);
            return;
        }
        measure(d, path, fd);
        close(fd);
    }
    if (*d->why_not)
        d->read = d->write = 0;
}
