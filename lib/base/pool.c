/* Threads meet at three words: `run` (a new run began), `busy` (workers not yet finished) and
 * `phase` (barriers passed). Whoever waits for a word to change spins for a bounded time and then
 * sleeps in the kernel; whoever changes it wakes only if someone sleeps. A core that is taken away
 * from a thread therefore costs the others a sleep, never a spin without end. */
#include "lib/base/pool.h"

#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/fpstate.h"
#include "lib/base/mem.h"
#include "lib/base/numa.h"

/* A worker's stack does not depend on the limit for the stack of the program ('ulimit -s'), which
 * may be too small, and counts against the address space in full when it is large. */
enum { SPINS = 2000, STACK_BYTES = 1 << 20 };

/* A word that threads wait on, alone on its cache line. */
struct gate {
    _Alignas(64) atomic_uint word;
    atomic_uint sleepers;
};

struct clb_pool {
    struct gate run, busy, phase;
    _Alignas(64) atomic_uint arrived; /* at the barrier */
    unsigned n_thread, n_started, spins;
    bool alone; /* the caller runs without the workers */
    atomic_bool stop;
    const struct clb_numa *numa; /* borrowed; NULL: workers are not placed */
    clb_pool_fn *fn; /* of this run; written before `run` changes */
    void *arg;
    struct clb_pool_use *use;           /* borrowed; NULL: nobody measures */
    _Alignas(64) atomic_ullong busy_ns; /* of all threads in this run, when somebody does */
    struct worker {
        pthread_t id;
        struct clb_pool *pool;
        unsigned thread;
    } * worker; /* owned; n_thread - 1 */
};

/* -- waiting --------------------------------------------------------------------------------- */

static inline void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Returns when the word is no longer `old` (or, rarely, before: callers look again). */
static void wait_change(struct gate *g, unsigned old, unsigned spins)
{
    for (unsigned i = 0; i < spins; i++) {
        if (atomic_load_explicit(&g->word, memory_order_acquire) != old)
            return;
        pause_cpu();
    }
    /* Sequentially consistent with wake(): either it sees the sleeper or the kernel sees the
     * change. */
    atomic_fetch_add(&g->sleepers, 1);
    if (atomic_load(&g->word) == old)
        syscall(SYS_futex, &g->word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&g->sleepers, 1);
}

static void wake(struct gate *g)
{
    if (atomic_load(&g->sleepers))
        syscall(SYS_futex, &g->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* -- measuring ------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    return (uint64_t)(clb_now() * 1e9);
}

void clb_pool_watch(struct clb_pool *p, struct clb_pool_use *use)
{
    p->use = use;
}

/* This thread's share of a run. */
static void run_part(struct clb_pool *p, unsigned thread)
{
    if (!p->use) {
        p->fn(p->arg, thread, p->n_thread);
        return;
    }
    uint64_t start = now_ns();
    p->fn(p->arg, thread, p->n_thread);
    atomic_fetch_add(&p->busy_ns, now_ns() - start);
}

static void add_use(struct clb_pool *p, uint64_t start)
{
    double busy = (double)atomic_exchange(&p->busy_ns, 0) * 1e-9;
    double wall = (double)(now_ns() - start) * 1e-9, waited = wall - busy / p->n_thread;

    p->use->shared++;
    if (p->n_thread > 1 && waited > 0)
        p->use->waited += waited;
}

/* -- the pool -------------------------------------------------------------------------------- */

static void *work(void *arg)
{
    struct worker *w = arg;
    struct clb_pool *p = w->pool;
    unsigned seen = 0;

    if (p->numa)
        clb_numa_join(p->numa, w->thread, p->n_thread);
    clb_fp_enter();
    for (;;) {
        while (atomic_load(&p->run.word) == seen)
            wait_change(&p->run, seen, p->spins);
        seen++; /* a run does not begin before the last one has ended, so none is missed */
        if (atomic_load(&p->stop))
            return NULL;
        run_part(p, w->thread);
        if (atomic_fetch_sub(&p->busy.word, 1) == 1)
            wake(&p->busy);
    }
}

/* Signals for the process are handled by the threads of the program, except those that a fault of
 * the worker itself raises. */
static void block_signals(sigset_t *old)
{
    sigset_t all;

    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    sigdelset(&all, SIGTRAP);
    pthread_sigmask(SIG_SETMASK, &all, old);
}

static bool start(struct clb_pool *p, struct clb_err *err)
{
    pthread_attr_t attr;
    sigset_t old;
    int rc = pthread_attr_init(&attr);

    if (rc == 0)
        rc = pthread_attr_setstacksize(&attr, STACK_BYTES);
    block_signals(&old);
    for (unsigned i = 0; rc == 0 && i + 1 < p->n_thread; i++) {
        p->worker[i] = (struct worker){ .pool = p, .thread = i + 1 };
        rc = pthread_create(&p->worker[i].id, &attr, work, &p->worker[i]);
        p->n_started += rc == 0;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (rc == 0)
        return true;
    errno = rc;
    return clb_fail_sys(err, CLB_FAILED, "cannot start thread %u of %u", p->n_started + 2,
                        p->n_thread);
}

/* More threads than processors: whoever spins keeps another from working. */
static unsigned spins_for(unsigned n_thread)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0 && (unsigned)CPU_COUNT(&set) < n_thread)
        return 0;
    return SPINS;
}

bool clb_pool_new(struct clb_pool **out, unsigned n_thread, struct clb_err *err)
{
    return clb_pool_new_on(out, n_thread, NULL, err);
}

bool clb_pool_new_on(struct clb_pool **out, unsigned n_thread, const struct clb_numa *numa,
                     struct clb_err *err)
{
    *out = NULL;
    if (n_thread < 1 || n_thread > CLB_POOL_MOST)
        return clb_fail(err, CLB_USAGE, "%u threads; between 1 and %d are possible", n_thread,
                        CLB_POOL_MOST);
    struct clb_pool *p = clb_new(1, sizeof *p, err);
    if (!p)
        return false;
    p->n_thread = n_thread;
    p->numa = numa;
    p->spins = spins_for(n_thread);
    p->worker = clb_new(n_thread, sizeof *p->worker, err);
    if (!p->worker || !start(p, err)) {
        clb_pool_free(p);
        return false;
    }
    *out = p;
    return true;
}

void clb_pool_free(struct clb_pool *p)
{
    if (!p)
        return;
    atomic_store(&p->stop, true);
    atomic_fetch_add(&p->run.word, 1);
    wake(&p->run);
    for (unsigned i = 0; i < p->n_started; i++)
        pthread_join(p->worker[i].id, NULL);
    clb_free(p->worker);
    clb_free(p);
}

unsigned clb_pool_threads(const struct clb_pool *p)
{
    return p->n_thread;
}

void clb_pool_run(struct clb_pool *p, clb_pool_fn *fn, void *arg)
{
    struct clb_fp caller = clb_fp_enter();
    uint64_t start = p->use ? now_ns() : 0;

    p->fn = fn;
    p->arg = arg;
    if (p->n_thread > 1) {
        atomic_store(&p->busy.word, p->n_thread - 1);
        atomic_fetch_add(&p->run.word, 1);
        wake(&p->run);
    }
    run_part(p, 0);
    for (unsigned left; (left = atomic_load(&p->busy.word)) != 0;)
        wait_change(&p->busy, left, p->spins);
    if (p->use)
        add_use(p, start);
    clb_fp_leave(caller);
}

void clb_pool_run_alone(struct clb_pool *p, clb_pool_fn *fn, void *arg)
{
    struct clb_fp caller = clb_fp_enter();

    p->alone = true;
    fn(arg, 0, 1);
    p->alone = false;
    if (p->use)
        p->use->alone++;
    clb_fp_leave(caller);
}

void clb_pool_barrier(struct clb_pool *p)
{
    unsigned phase = atomic_load(&p->phase.word);

    if (p->alone)
        return;
    uint64_t start = p->use ? now_ns() : 0;
    if (atomic_fetch_add(&p->arrived, 1) + 1 == p->n_thread) {
        atomic_store(&p->arrived, 0);
        atomic_fetch_add(&p->phase.word, 1);
        wake(&p->phase);
        return;
    }
    while (atomic_load(&p->phase.word) == phase)
        wait_change(&p->phase, phase, p->spins);
    if (p->use)
        atomic_fetch_sub(&p->busy_ns, now_ns() - start);
}
