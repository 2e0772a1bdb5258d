/* bench.h - what colibri-bench measures, and who shows it.
 *
 * measure.c fills a struct bench_run per (threads, batch), with what the machine could do at best
 * (machine.h) and what bound it (bound.h); show.c, export.c and picture.c print it as tables, as
 * JSON or CSV, and as an SVG. quality.c is the other half: perplexity and the distance between two
 * models. */
#ifndef CMD_BENCH_H
#define CMD_BENCH_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "cmd/colibri-bench/bound.h"
#include "cmd/colibri-bench/machine.h"
#include "lib/base/err.h"
#include "lib/base/str.h"
#include "lib/cli/engine.h"
#include "lib/colibri.h"

#define BENCH_NAME "colibri-bench"

/* The stages of the library, and what a pass spends outside of them. */
enum { BENCH_OTHER = COLIBRI_STAGES, BENCH_STAGES };

struct bench_options {
    uint32_t depth;           /* positions of each sequence that are filled before */
    uint32_t prefill, decode; /* tokens of each sequence */
    uint32_t repeats;
    uint32_t context; /* 0: as long as needed */
    uint32_t experts_per_token;
    uint32_t max_tokens; /* of a document; 0: 512, or what the model has positions for */
    uint64_t seed;
    int32_t kv_dtype;
    bool ids; /* documents are token ids */
    bool quiet, verbose;
    bool mlock;
    const char *cpu_level, *numa;
    struct clb_where where;
    uint64_t memory; /* bytes; 0: no limit */
};

struct bench_tokens {
    int32_t *id; /* owned */
    size_t n;
};

/* One number measured in every repeat. */
struct bench_time {
    double median; /* seconds */
    double spread; /* half of (largest - smallest), as a part of the median */
};

struct bench_routing {
    double touched;   /* active experts per layer and pass */
    double imbalance; /* rows of a layer's busiest expert / its mean, averaged over layers */
    double reused;    /* part of the index maps that were kept from the pass before */
    uint32_t unused;  /* experts that no token chose */
    struct bench_expert {
        uint32_t layer, expert;
        double share; /* of the slots of its layer */
    } most, least;
};

struct bench_phase {
    const char *name; /* "prefill", "decode" */
    uint32_t tokens;  /* of all sequences together; 0: not measured */
    uint32_t from;    /* positions before the first of them */
    uint32_t steps;   /* passes in decode; 1 in prefill: the unit of the times in tables */
    struct bench_time wall;
    struct {
        const char *name;
        struct bench_time time;  /* of the whole phase */
        struct bench_work work;  /* the same time, and what was done in it */
        struct bench_bound bound;
    } stage[BENCH_STAGES];
    struct bench_work all; /* the sum */
    uint64_t disk_bytes;   /* that came from disks meanwhile */
    struct bench_verdict verdict;
    struct bench_routing routing;
};

struct bench_run {
    uint32_t threads, batch;
    bool has_ceilings;               /* the processor's; other devices have none here */
    struct bench_ceilings all, one;  /* of all threads, of one */
    struct bench_phase prefill, decode;
};

/* Everything that was measured, for those who show it. */
struct bench_result {
    const char *path;               /* of the model */
    struct colibri_model_info info; /* texts borrowed from the model that was loaded last */
    const struct bench_options *options;
    const struct bench_source *source; /* what was read for the ceilings */
    double before[3], after[3];        /* load averages */
    bool load_known;
    const struct bench_run *run; /* [n_run] */
    size_t n_run;
};

struct bench_quality {
    uint64_t documents, tokens, rows; /* tokens: those predicted; rows: positions with logits */
    double nll;                       /* sum over tokens, natural logarithm */
    double other_nll;                 /* of the model compared with */
    double kl;                        /* sum over rows of KL(other || model) */
    uint64_t same_choice;             /* rows with the same most probable token */
};

/* -- setup.c: models, batches, inputs -- */

struct bench_models {
    const char *path, *other_path; /* borrowed; other_path may be NULL */
    uint32_t threads;
    struct colibri_model *model, *other; /* owned; may be NULL */
    const struct bench_source *source;   /* borrowed; may be NULL */
};
/* A file that is truncated while it is mapped ends the program with a line that says so. */
void bench_watch(const struct bench_models *m);
void bench_unload(struct bench_models *m);

bool bench_load(struct colibri_model **out, struct colibri_model_info *info, const char *path,
                uint32_t threads, const struct bench_options *o, struct clb_err *err);
/* With -v; else only where options of a GPU are not met. Where a model runs is decided when its
 * first batch opens: ask for `info` after that. */
void bench_say_where(const char *path, const struct colibri_model_info *info,
                     const struct bench_options *o);
bool bench_read_file(struct clb_text *out, const char *path, struct clb_err *err); /* "-": stdin */
/* Of each sequence. */
uint64_t bench_positions(const struct bench_options *o);
bool bench_random_ids(struct bench_tokens *out, size_t n, uint64_t seed, uint32_t n_vocab,
                      struct clb_err *err);

/* -- measure.c -- */

/* Opens a batch of the largest run and closes it: that run decides where all of them compute, and
 * what cannot be is refused before anything is measured. */
bool bench_settle(const struct colibri_model *model, uint32_t most, const struct bench_options *o,
                  struct clb_err *err);
/* Samples of what the machine can do are taken in between. */
bool bench_measure(struct bench_run *out, const struct colibri_model *model, uint32_t batch,
                   const struct bench_tokens *tokens, const struct bench_options *o,
                   const struct bench_source *source, struct clb_err *err);
double bench_tokens_per_second(const struct bench_phase *p);

/* -- show.c, export.c, picture.c -- */

bool bench_show(const struct bench_result *r, FILE *f);
void bench_show_quality(const struct bench_quality *q, const char *path, const char *other,
                        FILE *f);
void bench_json(struct clb_text *t, const struct bench_result *r);
void bench_csv(struct clb_text *t, const struct bench_result *r);
void bench_json_quality(struct clb_text *t, const struct bench_quality *q, const char *path,
                        const char *other);
/* "name": "value" */
void bench_json_string(struct clb_text *t, const char *name, const char *value);
/* Prints a text for programs, and frees it. */
bool bench_print(struct clb_text *t, struct clb_err *err);
void bench_svg(struct clb_text *t, const struct bench_result *r);

/* -- quality.c -- */

/* Every line of `text`, which comes from `where`, is a document. Loads the models of m: both run on
 * the CPU, or both on a GPU. They stay open. */
bool bench_quality(struct bench_quality *q, struct bench_models *m, struct clb_str text,
                   const char *where, const struct bench_options *o, struct clb_err *err);

#endif
