/* compare.h - values of two models, tensor by tensor, in parallel. */
#ifndef COLIBRI_INSPECT_COMPARE_H
#define COLIBRI_INSPECT_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/format/reader.h"
#include "lib/import/origin.h"

/* Where a value comes from: `expert` is UINT32_MAX for a dense tensor. */
struct compare_item {
    struct clb_tensor_spec spec; /* of an expert's part: layer, rows, cols */
    uint32_t index;              /* of a dense tensor: as clb_arch_tensor counts */
    uint32_t expert;
    enum clb_part part;
    bool bias; /* of that part */
};

/* One matrix of one side. */
struct compare_rows {
    const char *dtype; /* static */
    uint32_t rows, cols;
    bool tiled;
    struct clb_matrix m;      /* tiled: everything; else tiles is where the rows start */
    struct clb_origin origin; /* a checkpoint: everything */
};

/* A model. get: false when there is no such tensor. row: one row as f32. done: after the last one;
 * NULL: there is nothing to do. */
struct compare_side {
    const void *model;
    bool (*get)(const void *model, const struct compare_item *item, struct compare_rows *out);
    bool (*row)(struct compare_rows *rows, uint32_t row, float *out, struct clb_err *err);
    void (*done)(struct compare_rows *rows);
};
struct compare_side compare_file(const struct clb_reader *r);

struct compare_result {
    bool missing; /* the second side lacks it */
    bool shape;   /* or has another shape */
    const char *dtype[2];
    double signal, noise; /* sums of a^2 and (a - b)^2 */
    double most;          /* largest |a - b| */
    uint32_t row, col;    /* where that is */
    uint64_t beyond;      /* values that are farther apart than b's type explains */
};

/* Compares the items [n] into result [n]. On behalf of people there is a progress line. */
bool compare_all(const struct compare_side *a, const struct compare_side *b,
                 const struct compare_item *item, uint32_t n, struct compare_result *result,
                 bool quiet, struct clb_err *err);
/* All items of a file: dense tensors, then experts layer by layer, with their biases. */
bool compare_items(const struct clb_reader *r, struct compare_item **item, uint32_t *n,
                   struct clb_err *err);

/* Results in lines for a table: a line is a dense tensor, or one part of all experts of a layer. */
struct compare_line {
    char name[64];             /* "layers.3.q", "layers.3.experts.gate" */
    uint32_t count, differ;    /* items, and those that differ */
    uint32_t expert;           /* of the largest difference; UINT32_MAX: a dense tensor */
    struct compare_result all; /* sums; the rest is that of the largest difference */
};
bool compare_lines(const struct compare_item *item, const struct compare_result *result, uint32_t n,
                   struct compare_line **line, uint32_t *n_line, struct clb_err *err);
/* 10 log10(signal / noise); INFINITY when nothing differs. */
double compare_sqnr(const struct compare_result *r);
bool compare_differs(const struct compare_result *r);

#endif
