/* bound.h - what a phase was bound by: arithmetic on what it did and what the machine can do. */
#ifndef CMD_BENCH_BOUND_H
#define CMD_BENCH_BOUND_H

#include "cmd/colibri-bench/machine.h"

/* What a stage did in some seconds. */
struct bench_work {
    double seconds;
    uint64_t bytes; /* of weights and KV cache, each once per pass */
    uint64_t macs, f32_macs;
    double alone;  /* part of the time in which one thread computed alone, 0 to 1 */
    double waited; /* part of the time in which threads waited for each other */
};

/* The least time that work needs, and for what. Reading and computing go side by side; products of
 * int8 and f32 need the same units, one after the other. */
struct bench_bound {
    enum bench_limit limit; /* BENCH_LIMITS: nothing that has a ceiling */
    double seconds;
    double of_ceiling; /* that time as a part of what it took; 0 without a limit */
};
/* `one` are the ceilings of one thread, used for the part computed alone; may be `all`. */
struct bench_bound bench_bound_of(const struct bench_work *w, const struct bench_ceilings *all,
                                  const struct bench_ceilings *one);

/* A phase: its stages one after the other. Parts of its whole time, 0 to 1. */
struct bench_verdict {
    enum bench_limit limit;        /* the one that takes most */
    bool near;                     /* limits explain half of the time or more */
    double of_ceiling;             /* what all stages need at least */
    double by[BENCH_LIMITS];       /* that, by the limit of the stage */
    double waited, alone, outside; /* threads waiting; one thread computing; not in any stage */
    /* Set by who knows: bytes a second that came from disks, and what part of all bytes. */
    double disk, from_disk;
};
/* n stages, and what of `wall` seconds was outside of them. */
struct bench_verdict bench_verdict_of(const struct bench_work *stage, uint32_t n, double outside,
                                      double wall, const struct bench_ceilings *all,
                                      const struct bench_ceilings *one);

const char *bench_limit_name(enum bench_limit limit); /* "memory", "int8", "f32" */
const char *bench_bound_name(const struct bench_verdict *v); /* or "disk", "waiting", "overhead" */
/* "bound by memory: 91 % of 26.0 GB/s streaming read; ..."; cached: reading is from caches. */
void bench_verdict_text(struct clb_text *t, const struct bench_verdict *v,
                        const struct bench_ceilings *all, const struct bench_ceilings *one,
                        bool cached);

#endif
