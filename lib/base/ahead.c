#include "lib/base/ahead.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/base/pages.h"

/* Enough requests to keep a fast disk busy; threads need little stack. */
enum { THREADS = 4, STACK_BYTES = 128 << 10, QUEUE = 1024, SAMPLES = 64 };

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

struct clb_ahead {
    const struct clb_mapfile *map;
    const struct clb_numa *numa;
    bool told; /* what is in memory */
    pthread_t id[THREADS];
    unsigned n_started;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t called, idle;
    bool stop;
    unsigned n_busy;
    uint32_t first, n; /* of the ring */
    struct range {
        uint64_t at, end;
    } range[QUEUE];
};

/* Whether mincore speaks the truth: to others it says that all is in memory. */
static bool is_told(const struct clb_mapfile *m)
{
    struct stat st;

    return fstat(m->fd, &st) == 0 &&
           (geteuid() == 0 || st.st_uid == geteuid() || eaccess(m->path, W_OK) == 0);
}

static bool is_resident(const struct clb_mapfile *m, uint64_t at)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    unsigned char yes = 1;

    /* In doubt yes: then nothing is done. */
    return mincore((void *)(uintptr_t)(m->data + at / page * page), 1, &yes) != 0 || (yes & 1);
}

static bool waits_for_disk(const struct clb_mapfile *m, uint64_t at)
{
    struct rusage before, after;

    getrusage(RUSAGE_THREAD, &before);
    (void)*(const volatile uint8_t *)(m->data + at);
    getrusage(RUSAGE_THREAD, &after);
    return after.ru_majflt > before.ru_majflt;
}

bool clb_ahead_is_cold(const struct clb_mapfile *m, uint64_t at, uint64_t n)
{
    bool told = is_told(m);

    for (uint64_t i = 0; i < SAMPLES && n > 0; i++) {
        uint64_t one = at + n / SAMPLES * i;
        if (told ? !is_resident(m, one) : waits_for_disk(m, one))
            return true;
    }
    return false;
}

/* One huge page or a part of it. */
static void read_piece(const struct clb_ahead *a, uint64_t at, uint64_t end)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const struct clb_mapfile *m = a->map;

    if (a->told && is_resident(m, at))
        return;
    at = at / page * page;
    if (madvise((void *)(uintptr_t)(m->data + at), end - at, MADV_POPULATE_READ) != 0)
        clb_mapfile_want(m, at, end - at); /* a system that cannot, or a file that was cut */
}

/* The next piece of the first range. The caller holds the lock and knows that there is one. */
static struct range take(struct clb_ahead *a)
{
    struct range *r = &a->range[a->first];
    uint64_t end = (r->at / CLB_PAGES_HUGE + 1) * CLB_PAGES_HUGE;
    struct range piece = { r->at, end < r->end ? end : r->end };

    r->at = piece.end;
    if (r->at == r->end) {
        a->first = (a->first + 1) % QUEUE;
        a->n--;
    }
    return piece;
}

static void *work(void *arg)
{
    struct clb_ahead *a = arg;

    if (a->numa)
        clb_numa_join(a->numa, 0, 1); /* where pages go, that is; they wait for a disk */
    pthread_mutex_lock(&a->lock);
    while (!a->stop) {
        if (a->n == 0) {
            pthread_cond_wait(&a->called, &a->lock);
            continue;
        }
        struct range piece = take(a);
        a->n_busy++;
        pthread_mutex_unlock(&a->lock);
        read_piece(a, piece.at, piece.end);
        pthread_mutex_lock(&a->lock);
        a->n_busy--;
        if (a->n == 0 && a->n_busy == 0)
            pthread_cond_broadcast(&a->idle);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

/* Fewer threads than wanted are slower, not wrong. */
static void start(struct clb_ahead *a)
{
    pthread_attr_t attr;
    sigset_t all, old;

    if (pthread_attr_init(&attr) != 0)
        return;
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (a->n_started < THREADS && pthread_create(&a->id[a->n_started], &attr, work, a) == 0)
        a->n_started++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
}

bool clb_ahead_new(struct clb_ahead **out, const struct clb_mapfile *m,
                   const struct clb_numa *numa, struct clb_err *err)
{
    struct clb_ahead *a = clb_new(1, sizeof *a, err);

    *out = a;
    if (!a)
        return false;
    a->map = m;
    a->numa = numa;
    a->told = is_told(m);
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->called, NULL);
    pthread_cond_init(&a->idle, NULL);
    start(a);
    return true;
}

void clb_ahead_free(struct clb_ahead *a)
{
    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    a->stop = true;
    pthread_cond_broadcast(&a->called);
    pthread_mutex_unlock(&a->lock);
    for (unsigned i = 0; i < a->n_started; i++)
        pthread_join(a->id[i], NULL);
    pthread_cond_destroy(&a->idle);
    pthread_cond_destroy(&a->called);
    pthread_mutex_destroy(&a->lock);
    clb_free(a);
}

void clb_ahead_want(struct clb_ahead *a, uint64_t at, uint64_t n)
{
    uint64_t end;

    if (!a || a->n_started == 0 || at >= a->map->size || n == 0 || !clb_add(at, n, &end))
        return;
    if (end > a->map->size)
        end = a->map->size;
    pthread_mutex_lock(&a->lock);
    if (a->n < QUEUE) {
        a->range[(a->first + a->n++) % QUEUE] = (struct range){ at, end };
        pthread_cond_broadcast(&a->called);
    }
    pthread_mutex_unlock(&a->lock);
}

void clb_ahead_wait(struct clb_ahead *a)
{
    pthread_mutex_lock(&a->lock);
    while (a->n_started > 0 && (a->n > 0 || a->n_busy > 0))
        pthread_cond_wait(&a->idle, &a->lock);
    pthread_mutex_unlock(&a->lock);
}
