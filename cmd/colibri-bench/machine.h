/* machine.h - what this machine is, and what it can do at best.
 *
 * facts.c reads what the system tells; ceiling.c and disk.c measure; machine.c runs --machine, and
 * show_machine.c prints what it found. A ceiling is a rate that no stage of a model can exceed:
 * reading memory the way weights are read, exact int8 products, f32 fused multiply-adds. */
#ifndef CMD_BENCH_MACHINE_H
#define CMD_BENCH_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/kernels.h"
#include "lib/base/err.h"
#include "lib/base/mapfile.h"
#include "lib/base/numa.h"
#include "lib/base/str.h"

/* -- facts.c -- */

struct bench_cache {
    uint32_t level;
    char type[16];   /* "Data", "Instruction", "Unified" */
    uint64_t bytes;  /* of one */
    uint32_t n;      /* how many */
    uint32_t shared; /* processors that share one */
};

struct bench_facts {
    char cpu[128], kernel[160];
    bool virtual_machine;
    uint32_t sockets, cores, processors, nodes; /* 0: unknown */
    uint32_t threads;                           /* that this process should use by default */
    char why[96];                               /* the reason */
    struct bench_cache cache[8];
    uint32_t n_cache;
    uint64_t last_level; /* bytes of all caches of the last level together */
    uint64_t memory, available;
    char huge_pages[16]; /* of anonymous memory: "always", "madvise", "never"; "": unknown */
};
void bench_facts_read(struct bench_facts *f);
/* The three numbers of /proc/loadavg; false: unknown. */
bool bench_load_average(double load[3]);

/* Bytes that this process has had read from disks, page faults included; 0: unknown. */
uint64_t bench_disk_bytes(void);

/* -- ceiling.c -- */

/* Memory to be read: a part of a model's mapping, or memory of our own. */
struct bench_source {
    struct clb_mapfile file; /* data NULL: none */
    void *own;
    const uint8_t *at;
    size_t bytes;
    bool cached;          /* so small that caches hold it: no measure of memory */
    struct clb_numa numa; /* where own memory lies and threads run */
};
/* path NULL, or a file that memory cannot hold: own memory. */
bool bench_source_open(struct bench_source *s, const char *path, const struct bench_facts *f,
                       enum clb_numa_mode numa, struct clb_err *err);
/* For a SIGBUS handler: whether the address lies in the file's mapping, where, and its name. */
bool bench_source_has(const struct bench_source *s, const void *address, uint64_t *offset,
                      const char **path);
void bench_source_close(struct bench_source *s); /* safe on a zeroed struct */

enum bench_limit { BENCH_READ, BENCH_INT8, BENCH_F32, BENCH_LIMITS };

struct bench_rate {
    double median;     /* bytes or multiply-accumulates a second; 0: not measured */
    double least, most;
};

struct bench_ceilings {
    uint32_t threads, samples;
    struct bench_rate rate[BENCH_LIMITS];
    struct bench_rate clock;   /* cycles a second of one core while all compute */
    const char *int8_by, *f32_by; /* instructions; static */
};

/* Takes samples: a sample is the best of several short passes on all threads. */
struct bench_sampler;
bool bench_sampler_open(struct bench_sampler **out, enum clb_isa isa, uint32_t threads,
                        uint32_t samples, const struct bench_source *source, struct clb_err *err);
void bench_sampler_take(struct bench_sampler *s); /* at most `samples` times */
void bench_sampler_sum(const struct bench_sampler *s, struct bench_ceilings *out);
void bench_sampler_close(struct bench_sampler *s); /* NULL is fine */

/* -- disk.c -- */

struct bench_disk {
    double read, write; /* bytes a second; 0: not measured */
    uint64_t bytes;
    bool direct;       /* past the page cache; else after asking the system to drop its pages */
    char path[256];    /* the file, or the folder of a temporary one */
    char why_not[160]; /* "" when measured */
};
/* Reads `path`, or a temporary file when it is NULL. Failures are told in why_not. */
void bench_disk_measure(struct bench_disk *d, const char *path);

/* -- machine.c, show_machine.c -- */

struct bench_machine_options {
    const char *model; /* may be NULL */
    const char *cpu_level;
    enum clb_numa_mode numa;
    const uint32_t *threads; /* [n_threads]; none: 1 to one per core */
    uint32_t n_threads, repeats;
    bool json, csv, quiet;
};
bool bench_machine(const struct bench_machine_options *o, struct clb_err *err);

/* Everything that was found. */
enum { BENCH_COUNTS = 32 };

struct bench_machine {
    const struct bench_machine_options *o;
    struct bench_facts facts;
    enum clb_isa isa; /* in use */
    struct bench_source source;
    struct bench_disk disk;
    uint32_t threads[BENCH_COUNTS], n;
    struct bench_ceilings at[BENCH_COUNTS];    /* of the level in use, per number of threads */
    struct bench_ceilings level[CLB_ISA_COUNT]; /* with one thread; samples 0: not available */
    double before[3], after[3];               /* load averages */
    bool load_known;
};
bool bench_machine_show(const struct bench_machine *m, FILE *out);
void bench_machine_json(struct clb_text *t, const struct bench_machine *m);
void bench_machine_csv(struct clb_text *t, const struct bench_machine *m);
void bench_json_ceilings(struct clb_text *t, const struct bench_ceilings *c);
void bench_json_load(struct clb_text *t, const double before[3], const double after[3]);

#endif
