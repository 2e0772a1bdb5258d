#include "cmd/colibri-bench/bound.h"

#define NEAR  0.5   /* limits that explain less than this do not bind */
#define DISK  0.1   /* such a part of all bytes from the disk makes the rest wait for it */
#define TELL  0.015 /* smaller parts are not worth a word */

/* Of work of which a part was done by one thread. */
static double ceiling(const struct bench_work *w, enum bench_limit l,
                      const struct bench_ceilings *all, const struct bench_ceilings *one)
{
    return w->alone * one->rate[l].median + (1 - w->alone) * all->rate[l].median;
}

static double least_seconds(uint64_t work, double rate)
{
    return rate > 0 ? (double)work / rate : 0;
}

struct bench_bound bench_bound_of(const struct bench_work *w, const struct bench_ceilings *all,
                                  const struct bench_ceilings *one)
{
    double read = least_seconds(w->bytes, ceiling(w, BENCH_READ, all, one));
    double int8 = least_seconds(w->macs - w->f32_macs, ceiling(w, BENCH_INT8, all, one));
    double f32 = least_seconds(w->f32_macs, ceiling(w, BENCH_F32, all, one));
    struct bench_bound b = { .limit = BENCH_READ, .seconds = read };

    if (int8 + f32 > read) {
        b.limit = int8 >= f32 ? BENCH_INT8 : BENCH_F32;
        b.seconds = int8 + f32;
    }
    if (b.seconds > 0 && w->seconds > 0)
        b.of_ceiling = b.seconds / w->seconds;
    else
        b = (struct bench_bound){ .limit = BENCH_LIMITS };
    return b;
}

struct bench_verdict bench_verdict_of(const struct bench_work *stage, uint32_t n, double outside,
                                      double wall, const struct bench_ceilings *all,
                                      const struct bench_ceilings *one)
{
    struct bench_verdict v = { .limit = BENCH_READ };

    if (wall <= 0)
        return v;
    for (uint32_t i = 0; i < n; i++) {
        struct bench_bound b = bench_bound_of(&stage[i], all, one);

        if (b.limit < BENCH_LIMITS)
            v.by[b.limit] += b.seconds / wall;
        v.waited += stage[i].waited * stage[i].seconds / wall;
        v.alone += stage[i].alone * stage[i].seconds / wall;
    }
    for (int l = 0; l < BENCH_LIMITS; l++) {
        v.of_ceiling += v.by[l];
        if (v.by[l] > v.by[v.limit])
            v.limit = (enum bench_limit)l;
    }
    v.near = v.of_ceiling >= NEAR;
    v.outside = outside / wall;
    return v;
}

const char *bench_limit_name(enum bench_limit limit)
{
    return limit == BENCH_READ ? "memory" : limit == BENCH_INT8 ? "int8" : "f32";
}

const char *bench_bound_name(const struct bench_verdict *v)
{
    return v->near                   ? bench_limit_name(v->limit) :
           v->from_disk >= DISK      ? "disk" :
           v->waited > v->of_ceiling ? "waiting" :
                                       "overhead";
}

static void put_limit(struct clb_text *t, const struct bench_verdict *v, enum bench_limit l,
                      const struct bench_ceilings *c, bool cached)
{
    double rate = c->rate[l].median / 1e9;

    clb_text_printf(t, "%.0f %% of %.*f ", v->by[l] * 100, rate < 9.995 ? 2 : rate < 999.5, rate);
    clb_text_puts(t, l != BENCH_READ ? "GMAC/s" : cached ? "GB/s from cache" :
                                                          "GB/s streaming read");
}

static void put_part(struct clb_text *t, double part, const char *what)
{
    if (part >= TELL)
        clb_text_printf(t, "; %s %.0f %%", what, part * 100);
}

void bench_verdict_text(struct clb_text *t, const struct bench_verdict *v,
                        const struct bench_ceilings *all, const struct bench_ceilings *one,
                        bool cached)
{
    static const char *const word[BENCH_LIMITS] = { "memory", "int8 arithmetic", "f32 arithmetic" };

    if (v->near)
        clb_text_printf(t, "bound by %s: ", word[v->limit]);
    else
        clb_text_printf(t, "bound by %s; nearest ceiling %s, ", bench_bound_name(v),
                        word[v->limit]);
    put_limit(t, v, v->limit, v->alone < 0.5 ? all : one, cached);
    for (int l = 0; l < BENCH_LIMITS; l++)
        if (l != (int)v->limit)
            put_part(t, v->by[l], word[l]);
    if (v->from_disk >= TELL)
        clb_text_printf(t, "; %.0f %% of the bytes came from the disk, at %.2f GB/s",
                        v->from_disk * 100, v->disk / 1e9);
    put_part(t, v->waited, "waiting for threads");
    put_part(t, v->alone, "one thread alone");
    put_part(t, v->outside, "outside of stages");
}
