#include "lib/import/convert_write.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/format/dtype.h"

enum {
    WRITERS = 2,           /* the disk has one to do while the next is on its way */
    PIECE = 2 << 20,       /* bytes */
    LEAST_PIECE = 1 << 18, /* when there are many threads ... */
    ALL = 1 << 28,         /* ... and all pieces would take more than this */
};

struct clb_writers {
    int fd;              /* borrowed */
    int direct;          /* owned: the same file without page cache; -1: there is no such way */
    atomic_bool indirect; /* direct writes were refused */
    pthread_t thread[WRITERS];
    unsigned n_started;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t more;  /* something to write, or stop */
    pthread_cond_t less;  /* something was written */
    struct clb_piece *free, *first, **last; /* empty pieces; the queue */
    unsigned n_busy;                        /* in the queue or being written */
    bool stop, failed;
    struct clb_err err; /* when failed */
    struct clb_piece *piece; /* [n_piece] owned */
    uint8_t *bytes;          /* owned: of all pieces */
};

/* -- writing --------------------------------------------------------------------------------- */

static bool write_bytes(int fd, const uint8_t *p, size_t n, uint64_t at, struct clb_err *err)
{
    while (n > 0) {
        ssize_t put = pwrite(fd, p, n, (off_t)at);

        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return clb_fail_sys(err, CLB_FAILED, "cannot write at byte %llu",
                                (unsigned long long)at);
        if (put == 0)
            return clb_fail(err, CLB_FAILED, "cannot write at byte %llu: nothing is taken",
                            (unsigned long long)at);
        p += put;
        at += (uint64_t)put;
        n -= (size_t)put;
    }
    return true;
}

/* Whole pages directly, the rest (a page that other blocks may share) through the page cache. A
 * file system may refuse what it allowed at open: then everything goes there. */
static bool write_piece(struct clb_writers *w, const struct clb_piece *piece, struct clb_err *err)
{
    size_t pages = piece->at % CLB_PAGE == 0 ? piece->n / CLB_PAGE * CLB_PAGE : 0;
    bool direct = pages && w->direct >= 0 && !atomic_load(&w->indirect);

    if (direct && !write_bytes(w->direct, piece->bytes, pages, piece->at, err)) {
        if (err->sys != EINVAL)
            return false;
        atomic_store(&w->indirect, true);
        direct = false;
    }
    if (!direct)
        pages = 0;
    return write_bytes(w->fd, piece->bytes + pages, piece->n - pages, piece->at + pages, err);
}

/* With the lock held. */
static struct clb_piece *next_piece(struct clb_writers *w)
{
    struct clb_piece *p;

    while (!w->first && !w->stop)
        pthread_cond_wait(&w->more, &w->lock);
    if (w->stop)
        return NULL;
    p = w->first;
    w->first = p->next;
    if (!w->first)
        w->last = &w->first;
    return p;
}

static void *work(void *arg)
{
    struct clb_writers *w = arg;
    struct clb_piece *p;

    pthread_mutex_lock(&w->lock);
    while ((p = next_piece(w)) != NULL) {
        struct clb_err err = { 0 };
        bool skip = w->failed, ok;

        pthread_mutex_unlock(&w->lock);
        ok = skip || write_piece(w, p, &err);
        pthread_mutex_lock(&w->lock);
        if (!ok && !w->failed) {
            w->failed = true;
            w->err = err;
        }
        p->n = 0;
        p->next = w->free;
        w->free = p;
        w->n_busy--;
        pthread_cond_broadcast(&w->less);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* -- new and free ---------------------------------------------------------------------------- */

static bool make_pieces(struct clb_writers *w, unsigned n_thread, size_t least, struct clb_err *err)
{
    size_t n = (size_t)n_thread * 2 + WRITERS, room = ALL / n;
    size_t needed = (least + 2 * CLB_PAGE - 1) / CLB_PAGE * CLB_PAGE;

    room = room > PIECE ? PIECE : room < LEAST_PIECE ? LEAST_PIECE : room / CLB_PAGE * CLB_PAGE;
    room = room > needed ? room : needed;
    w->piece = clb_new(n, sizeof *w->piece, err);
    w->bytes = clb_new(n * room + CLB_PAGE, 1, err);
    if (!w->piece || !w->bytes)
        return false;
    for (size_t i = 0; i < n; i++) {
        size_t ahead = (CLB_PAGE - (uintptr_t)w->bytes % CLB_PAGE) % CLB_PAGE;

        w->piece[i] = (struct clb_piece){ w->bytes + ahead + i * room, room, 0, 0, w->free };
        w->free = &w->piece[i];
    }
    return true;
}

/* Opens the file a second time; a way round the page cache is not worth an error. */
static int open_direct(int fd)
{
    char path[32];
    struct stat st;

    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_WRONLY | O_CLOEXEC | O_DIRECT);
}

static bool start(struct clb_writers *w, struct clb_err *err)
{
    sigset_t all, old;
    int rc = 0;

    sigfillset(&all); /* signals are for the threads of the program */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (; rc == 0 && w->n_started < WRITERS; w->n_started += rc == 0)
        rc = pthread_create(&w->thread[w->n_started], NULL, work, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    errno = rc;
    return rc == 0 || clb_fail_sys(err, CLB_FAILED, "cannot start a thread that writes");
}

bool clb_writers_new(struct clb_writers **out, int fd, unsigned n_thread, size_t least,
                     struct clb_err *err)
{
    struct clb_writers *w = *out = clb_new(1, sizeof *w, err);

    if (!w)
        return false;
    w->fd = fd;
    w->direct = open_direct(fd);
    w->last = &w->first;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    pthread_cond_init(&w->less, NULL);
    return make_pieces(w, n_thread, least, err) && start(w, err);
}

void clb_writers_free(struct clb_writers *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->more);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->n_started; i++)
        pthread_join(w->thread[i], NULL);
    pthread_cond_destroy(&w->less);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
    if (w->direct >= 0)
        close(w->direct);
    clb_free(w->piece);
    clb_free(w->bytes);
    clb_free(w);
}

/* -- for threads that compute ---------------------------------------------------------------- */

struct clb_piece *clb_writers_take(struct clb_writers *w, struct clb_err *err)
{
    struct clb_piece *p;

    pthread_mutex_lock(&w->lock);
    while (!w->free && !w->failed)
        pthread_cond_wait(&w->less, &w->lock);
    p = w->failed ? NULL : w->free;
    if (p)
        w->free = p->next;
    else
        *err = w->err;
    pthread_mutex_unlock(&w->lock);
    return p;
}

void clb_writers_give(struct clb_writers *w, struct clb_piece *piece)
{
    pthread_mutex_lock(&w->lock);
    if (piece->n) {
        piece->next = NULL;
        *w->last = piece;
        w->last = &piece->next;
        w->n_busy++;
        pthread_cond_signal(&w->more);
    } else {
        piece->next = w->free;
        w->free = piece;
        pthread_cond_broadcast(&w->less);
    }
    pthread_mutex_unlock(&w->lock);
}

bool clb_writers_wait(struct clb_writers *w, struct clb_err *err)
{
    bool ok;

    pthread_mutex_lock(&w->lock);
    while (w->n_busy)
        pthread_cond_wait(&w->less, &w->lock);
    ok = !w->failed;
    if (!ok)
        *err = w->err;
    pthread_mutex_unlock(&w->lock);
    return ok;
}
