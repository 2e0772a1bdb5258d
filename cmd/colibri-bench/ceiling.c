/* ceiling.c - measures what this machine can do at best.
 *
 * All threads start a pass together; its rate is all that was done over the time from the first
 * start to the last end. A pass lasts about a millisecond for arithmetic and ten for reading, and a
 * sample is the best of its passes, so that work of others, which only takes away, falls out as
 * long as some passes are left alone. */
#include "cmd/colibri-bench/machine.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/peak.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"

enum { PASSES = 20, READ_PASSES = 6, PAGE = 4096 };
#define MOST_SECONDS 60e-3 /* for the passes of one kind; they need a third, or all for reading */

/* -- what is read ----------------------------------------------------------------------------- */

/* Far more than caches hold, and a share of memory that nobody misses. */
static size_t window_bytes(const struct bench_facts *f)
{
    uint64_t want = 4 * f->last_level, most = f->memory ? f->memory / 8 : UINT64_MAX;

    want = want < 512u << 20 ? 512u << 20 : want;
    want = want < most ? want : most;
    return (size_t)(want / PAGE * PAGE);
}

/* Page faults are not part of what is measured. */
static void touch(const uint8_t *at, size_t bytes)
{
    uint8_t sum = 0;

    for (size_t i = 0; i < bytes; i += PAGE)
        sum ^= *(const volatile uint8_t *)(at + i);
    (void)sum;
}

static bool take_file(struct bench_source *s, const char *path, const struct bench_facts *f,
                      struct clb_err *err)
{
    size_t window = window_bytes(f);

    if (!clb_mapfile_open(&s->file, path, err))
        return false;
    if (f->memory && s->file.size > f->memory / 10 * 9) { /* would read the disk */
        clb_mapfile_close(&s->file);
        s->file = (struct clb_mapfile){ .fd = -1 };
        return true;
    }
    s->bytes = s->file.size < window ? s->file.size : window;
    s->at = s->file.data + (s->file.size - s->bytes) / 2 / PAGE * PAGE;
    s->bytes = s->bytes / 256 * 256;
    touch(s->at, s->bytes);
    return true;
}

bool bench_source_open(struct bench_source *s, const char *path, const struct bench_facts *f,
                       enum clb_numa_mode numa, struct clb_err *err)
{
    struct clb_cpus allowed;

    *s = (struct bench_source){ .file.fd = -1 };
    if (clb_cpus_allowed(&allowed))
        clb_numa_decide(&s->numa, "", numa, &allowed);
    if (path && !take_file(s, path, f, err))
        return false;
    if (!s->at) {
        s->bytes = window_bytes(f);
        s->own = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (s->own == MAP_FAILED) {
            s->own = NULL;
            return clb_fail_nomem(err, s->bytes);
        }
        s->at = s->own;
        clb_numa_place(&s->numa, s->own, s->bytes);
        for (size_t i = 0; i < s->bytes; i += PAGE) /* or all would be one page of zeros */
            ((uint8_t *)s->own)[i] = 1;
    }
    s->cached = s->bytes <= f->last_level;
    return true;
}

bool bench_source_has(const struct bench_source *s, const void *address, uint64_t *offset,
                      const char **path)
{
    uintptr_t at = (uintptr_t)address, first = (uintptr_t)s->file.data;

    if (!first || at < first || at - first >= s->file.size)
        return false;
    *offset = at - first;
    *path = s->file.path;
    return true;
}

void bench_source_close(struct bench_source *s)
{
    if (s->own)
        munmap(s->own, s->bytes);
    if (s->file.data)
        clb_mapfile_close(&s->file);
    clb_numa_done(&s->numa);
    *s = (struct bench_source){ .file.fd = -1 };
}

/* -- passes ----------------------------------------------------------------------------------- */

struct moment {
    _Alignas(64) double start, stop;
};

struct bench_sampler {
    struct clb_peaks peaks;
    struct clb_pool *pool; /* owned */
    const struct bench_source *source;
    uint32_t threads, room, taken;
    const struct clb_peak_dot *dot;
    uint64_t dot_rounds, fma_rounds, clock_rounds; /* of a pass */
    size_t piece, laps;     /* of a reading pass: bytes of a thread, and how often */
    size_t at;              /* where the next one starts */
    struct moment *moment;  /* [threads] */
    double *sample[BENCH_LIMITS + 1]; /* [room]; the clock last */
    atomic_uint_least64_t sink; /* results go here, so that nothing is left out */
};

enum work { READ = BENCH_READ, DOT = BENCH_INT8, FMA = BENCH_F32, CLOCK };

/* A pass of one thread; returns what it did. */
static double work(struct bench_sampler *s, enum work work, unsigned thread)
{
    int8_t w[CLB_PEAK_VALUES] = { 1, -2, 3, 127 }, a[CLB_PEAK_VALUES] = { 5, 6, -7, 127 };
    uint64_t result = 0;
    double done = 0;

    switch (work) {
    case READ:
        for (size_t lap = 0; lap < s->laps; lap++)
            result ^= s->peaks.read(s->source->at + s->at + thread * s->piece, s->piece);
        done = (double)s->laps * (double)s->piece;
        break;
    case DOT:
        result = s->dot->run(w, a, s->dot_rounds);
        done = (double)s->dot_rounds * s->dot->macs;
        break;
    case FMA:
        result = (uint64_t)s->peaks.fma.run(0.5f, 0.25f, s->fma_rounds);
        done = (double)s->fma_rounds * s->peaks.fma.macs;
        break;
    case CLOCK:
        result = clb_peak_clock(s->clock_rounds);
        done = (double)s->clock_rounds * 64;
    }
    atomic_fetch_xor_explicit(&s->sink, result, memory_order_relaxed);
    return done;
}

struct passes {
    struct bench_sampler *s;
    enum work work;
    int n;
    double until; /* no pass begins later: on a busy machine threads wait long for each other */
    bool over;
    double best; /* out */
};

/* From the first start to the last end. */
static double rate_of(const struct bench_sampler *s, double done)
{
    double start = s->moment[0].start, stop = s->moment[0].stop;

    for (uint32_t t = 1; t < s->threads; t++) {
        start = s->moment[t].start < start ? s->moment[t].start : start;
        stop = s->moment[t].stop > stop ? s->moment[t].stop : stop;
    }
    return stop > start ? done * s->threads / (stop - start) : 0;
}

static void run_passes(void *arg, unsigned thread, unsigned n_thread)
{
    struct passes *p = arg;
    struct bench_sampler *s = p->s;

    (void)n_thread;
    for (int i = 0; i < p->n; i++) {
        clb_pool_barrier(s->pool);
        if (p->over)
            return;
        s->moment[thread].start = clb_now();
        double done = work(s, p->work, thread);
        s->moment[thread].stop = clb_now();
        clb_pool_barrier(s->pool);
        if (thread)
            continue;
        double rate = rate_of(s, done);
        p->over = s->moment[0].stop > p->until;
        p->best = rate > p->best ? rate : p->best;
        if (p->work == READ) { /* the next pass finds nothing of this one in the caches */
            s->at += s->threads * s->piece;
            if (s->at + s->threads * s->piece > s->source->bytes)
                s->at = 0;
        }
    }
}

/* Of all threads together; the clock is one core's. */
static double best_of(struct bench_sampler *s, enum work work, int n)
{
    struct passes p = { .s = s, .work = work, .n = n, .until = clb_now() + MOST_SECONDS };

    if (work == READ && !s->piece)
        return 0;
    clb_pool_run(s->pool, run_passes, &p);
    return work == CLOCK ? p.best / s->threads : p.best;
}

/* -- how long a pass is ----------------------------------------------------------------------- */

/* Rounds that take one thread about a millisecond. */
static void rounds_for(struct bench_sampler *s, enum work kind, uint64_t *rounds)
{
    double start, seconds = 0;

    for (*rounds = 1; *rounds < UINT32_MAX; *rounds *= 2) {
        start = clb_now();
        work(s, kind, 0);
        seconds = clb_now() - start;
        if (seconds > 0.3e-3)
            break;
    }
    *rounds = (uint64_t)((double)*rounds * 1e-3 / seconds) + 1;
}

static void calibrate_dot(struct bench_sampler *s)
{
    double best = 0;
    const struct clb_peak_dot *fastest = s->peaks.dot;

    for (uint32_t i = 0; i < s->peaks.n_dot; i++) {
        s->dot = &s->peaks.dot[i];
        rounds_for(s, DOT, &s->dot_rounds);
        double rate = best_of(s, DOT, 5);
        if (rate > best) {
            best = rate;
            fastest = s->dot;
        }
    }
    s->dot = fastest;
    rounds_for(s, DOT, &s->dot_rounds);
}

/* Pieces such that a pass takes about ten milliseconds; small sources are read several times. */
static void calibrate_read(struct bench_sampler *s)
{
    size_t all = s->source->bytes / s->threads / 256 * 256;

    s->laps = 1;
    s->piece = all < 8u << 20 ? all : 8u << 20;
    if (!s->piece)
        return;
    double rate = best_of(s, READ, 2);
    double piece = rate * 10e-3 / s->threads;
    s->at = 0;
    if (piece < (double)all) {
        s->piece = (size_t)piece / PAGE * PAGE;
        s->piece = s->piece < 4 * PAGE ? 4 * PAGE : s->piece;
        s->piece = s->piece < all ? s->piece : all;
    } else {
        s->piece = all;
        s->laps = (size_t)(piece / 5 / (double)all) + 1;
    }
}

bool bench_sampler_open(struct bench_sampler **out, enum clb_isa isa, uint32_t threads,
                        uint32_t samples, const struct bench_source *source, struct clb_err *err)
{
    struct bench_sampler *s = *out = clb_new(1, sizeof *s, err);
    bool ok = s != NULL;

    if (!ok || !clb_pool_new_on(&s->pool, threads, &source->numa, err))
        return false;
    s->source = source;
    s->threads = threads;
    s->room = samples;
    s->moment = clb_new(threads, sizeof *s->moment, err);
    ok = s->moment != NULL;
    for (int i = 0; ok && i <= BENCH_LIMITS; i++)
        ok = (s->sample[i] = clb_new(samples, sizeof(double), err)) != NULL;
    if (!ok)
        return false;
    clb_peaks_for(&s->peaks, isa);
    calibrate_dot(s);
    rounds_for(s, FMA, &s->fma_rounds);
    rounds_for(s, CLOCK, &s->clock_rounds);
    calibrate_read(s);
    return true;
}

void bench_sampler_close(struct bench_sampler *s)
{
    if (!s)
        return;
    clb_pool_free(s->pool);
    clb_free(s->moment);
    for (int i = 0; i <= BENCH_LIMITS; i++)
        clb_free(s->sample[i]);
    clb_free(s);
}

void bench_sampler_take(struct bench_sampler *s)
{
    if (s->taken == s->room)
        return;
    s->sample[BENCH_INT8][s->taken] = best_of(s, DOT, PASSES);
    s->sample[BENCH_LIMITS][s->taken] = best_of(s, CLOCK, 8); /* as int8 arithmetic left it */
    s->sample[BENCH_F32][s->taken] = best_of(s, FMA, PASSES);
    s->sample[BENCH_READ][s->taken] = best_of(s, READ, READ_PASSES);
    s->taken++;
}

/* -- the result ------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static struct bench_rate summary(double *sample, uint32_t n)
{
    if (!n)
        return (struct bench_rate){ 0 };
    qsort(sample, n, sizeof *sample, ascending);
    return (struct bench_rate){ .median = (sample[n / 2] + sample[(n - 1) / 2]) / 2,
                                .least = sample[0],
                                .most = sample[n - 1] };
}

void bench_sampler_sum(const struct bench_sampler *s, struct bench_ceilings *out)
{
    *out = (struct bench_ceilings){ .threads = s->threads,
                                    .samples = s->taken,
                                    .int8_by = s->dot->name,
                                    .f32_by = s->peaks.fma.name };
    for (int i = 0; i < BENCH_LIMITS; i++)
        out->rate[i] = summary(s->sample[i], s->taken);
    out->clock = summary(s->sample[BENCH_LIMITS], s->taken);
}
