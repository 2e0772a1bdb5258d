/* convert.h - a Hugging Face checkpoint folder in, a colibri.bin out.
 *
 * Two steps: plan reads configuration and headers only and refuses everything that can be refused
 * without reading weights (all missing, surplus and misshapen tensors in one report); run streams
 * the weights in parallel, in bounded memory, and writes the same bytes at any thread count. */
#ifndef CLB_IMPORT_CONVERT_H
#define CLB_IMPORT_CONVERT_H

#include <stdint.h>

#include "lib/base/err.h"
#include "lib/base/str.h"
#include "lib/format/dtype.h"

struct clb_convert_options {
    const char *source_dir;
    enum clb_dtype dtype; /* experts (and dense, unless dense_dtype_set) */
    bool source_dtype;    /* --dtype source */
    enum clb_dtype dense_dtype;
    bool dense_dtype_set;
    enum { CLB_SCALE_ROW, CLB_SCALE_EXPERT, CLB_SCALE_TENSOR } scale;
    const char *map;               /* --map; NULL: a known family */
    const char *const *ignore_key; /* [n_ignore] */
    uint32_t n_ignore;
    bool ignore_surplus;     /* a name that config.json does not need is no error */
    float clip_gate_softmax; /* 0: off */
    uint32_t threads;        /* 0: default */
    const char *cpu_level;   /* NULL: the best of this machine; changes no byte */
    const char *command;     /* recorded in the header as `converter` */
};

struct clb_conversion;

/* *out is set (and must be freed) even on failure, so that the problems can be shown; NULL only
 * without memory. What the options point to must outlive it. */
bool clb_convert_plan(struct clb_conversion **out, const struct clb_convert_options *o,
                      struct clb_err *err);
void clb_convert_free(struct clb_conversion *c);
/* After a failed plan: one line per problem when there are several ("" otherwise: the error says
 * it). */
const char *clb_convert_problems(const struct clb_conversion *c);
uint64_t clb_convert_size(const struct clb_conversion *c); /* exact bytes of the output */
uint64_t
clb_convert_work(const struct clb_conversion *c); /* bytes that will be read (for progress) */
/* A folder entry of the source (so that the output cannot be one of its inputs): compares device
 * and inode. */
bool clb_convert_is_source(const struct clb_conversion *c, const char *path);
/* Notes for people (files not used, tensors ignored), one line each; run may add some. */
const char *clb_convert_notes(const struct clb_conversion *c);
/* What became of each key of config.json, in the order of the file (those inside rope_scaling
 * behind the others): "used", "irrelevant", "unknown" or "ignored", and the value as written, in
 * one line. */
typedef void clb_convert_key_fn(void *arg, const char *key, const char *state, const char *value);
void clb_convert_keys(const struct clb_conversion *c, clb_convert_key_fn *fn, void *arg);
/* The family, or the name of the map. NULL: the plan failed before all keys were looked at. */
const char *clb_convert_family(const struct clb_conversion *c);
/* fd: an empty file, written by pwrite in any order. progress is called from any thread with the
 * bytes read so far. */
bool clb_convert_run(struct clb_conversion *c, int fd, void (*progress)(uint64_t done),
                     struct clb_err *err);

/* Fidelity after run, one row per kind of tensor ("experts", "attention", "output", ...): what
 * quantisation lost. */
struct clb_fidelity {
    char kind[32];
    enum clb_dtype dtype;
    uint64_t tensors, values;
    double sqnr_db; /* 10 log10(sum w^2 / sum (w - w')^2); INFINITY when exact */
    double worst_sqnr_db;
    char worst[96];      /* "layer 3 expert 17 down" */
    uint64_t underflows; /* fp16: non-zero values that became zero or subnormal-rounded */
};
uint32_t clb_convert_fidelity(const struct clb_conversion *c, struct clb_fidelity *rows,
                              uint32_t room);
/* The same per tensor and expert as JSON lines, for --report. */
void clb_convert_report(const struct clb_conversion *c, struct clb_text *out);

#endif
