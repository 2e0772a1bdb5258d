/* cuda_dnn.h - attention of prompts by cuDNN: as a graph, the plan of a shape, and running it; and
 * what the backend does with it. */
#ifndef CLB_KERNELS_CUDA_CUDA_DNN_H
#define CLB_KERNELS_CUDA_CUDA_DNN_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/cuda_libs.h"
#include "lib/backend/kv_dtype.h"
#include "lib/base/err.h"

/* Between the counts of clb_dnn_args: tensors are aligned to 16 bytes. */
enum { CLB_DNN_APART = 4 };

/* Room for n_query rows of one sequence and for n_key positions; how many of them there are is
 * said on the device. */
struct clb_dnn_shape {
    uint32_t n_head, n_kv_head, key_dim, value_dim;
    uint32_t n_query, n_key;
};

enum { CLB_DNN_MOST = 128 }; /* descriptors of a plan: 67 for the graph, and choices */
struct clb_dnn_plan {
    struct clb_dnn_shape shape;
    void *desc[CLB_DNN_MOST]; /* owned: a plan needs all that it was made of */
    unsigned n_desc;
    void *plan; /* NULL: there is none */
    uint64_t workspace;
    uint64_t used; /* by clb_cuda_dnn_mix */
};

/* On failure nothing is left. CLB_UNSUPPORTED: cuDNN cannot do this shape on this device with this
 * much memory; CLB_DEVICE: it failed. */
bool clb_dnn_plan_new(struct clb_dnn_plan *p, const struct clb_cuda_dnn *dnn, void *handle,
                      const struct clb_dnn_shape *s, uint64_t workspace_most, struct clb_err *err);
void clb_dnn_plan_free(struct clb_dnn_plan *p, const struct clb_cuda_dnn *dnn);

/* Device memory, but for scale. */
struct clb_dnn_args {
    const uint16_t *q; /* [n_query][n_head][key_dim] f16 */
    const uint16_t *k; /* [n_kv_head][n_key][key_dim] f16 */
    const uint16_t *v; /* [n_kv_head][n_key][value_dim] f16: finite everywhere */
    uint16_t *out;     /* [n_query][n_head][value_dim] f16: rows that are no queries: anything */
    /* of queries, and 16 bytes behind of keys: query i sees all but the last (queries - 1 - i) */
    const int32_t *count;
    float scale;
    void *workspace;
};
/* On the stream of the handle. */
bool clb_dnn_plan_run(struct clb_dnn_plan *p, const struct clb_cuda_dnn *dnn, void *handle,
                      const struct clb_dnn_args *a, struct clb_err *err);

/* -- cuda_dnn.c -------------------------------------------------------------------------------- */

struct clb_cuda_dnn_work; /* a handle, and plans */
enum { CLB_DNN_LEAST_ROOM = 64 };
enum { CLB_DNN_WORKSPACE = 4 << 20 }; /* most bytes of one; 256 are usual */
enum { CLB_CUDA_TEXT = 1200 }; /* room for the description of the backend */
struct clb_cuda_dnn_use {
    bool asked;
    struct clb_cuda_dnn lib;
    unsigned n_plan;  /* that a handle keeps */
    bool *takes;      /* [n_layer] owned */
    uint32_t n_layer; /* of which it takes so many, with a KV cache in f16 */
    char text[CLB_KV_INT8 + 1][CLB_CUDA_TEXT]; /* of the backend, by the type of the KV cache */
    /* under the lock of the backend */
    enum clb_kv_dtype kv;           /* of the activations that were made last; f16 before */
    struct clb_cuda_dnn_work *idle; /* owned */
};

/* Rows of one sequence, side by side and in order, whose attention is cuDNN's. */
struct clb_cuda_dnn_run {
    uint32_t sequence, first_row, n_row;
    uint32_t n_key; /* with those before */
};
struct clb_cuda_dnn_rows {
    struct clb_cuda_dnn_work *work; /* NULL: it has nothing to do here */
    struct clb_cuda_dnn_run *run;   /* [Q] owned */
    uint32_t n_run;                 /* of the pass at hand */
    /* of one run at a time: see clb_dnn_args */
    uint16_t *q, *k, *v, *out;
    uint8_t *workspace;
};

struct clb_acts;
struct clb_arch;
struct clb_backend;
struct clb_cuda_attention;
/* Only if that was asked for: fails without the library. */
bool clb_cuda_dnn_open_library(struct clb_backend *be, struct clb_err *err);
void clb_cuda_dnn_close_library(struct clb_backend *be);
/* The layers that it will do. */
bool clb_cuda_dnn_choose(struct clb_backend *be, struct clb_err *err);
/* The backend's description, if it was asked for. */
const char *clb_cuda_dnn_text(const struct clb_backend *be);
/* Room in a plan for n rows or keys, where activations have room for `all`: a power of two, or what
 * they have, since plans are compiled and should be few. In cuda_layout.c. */
uint32_t clb_cuda_dnn_room(uint32_t n, uint32_t all);
/* It has a part in passes with these activations. In cuda_layout.c. */
bool clb_cuda_dnn_serves(const struct clb_backend *be, const struct clb_acts *x);
/* What activations need beside their memory. */
bool clb_cuda_dnn_new(struct clb_backend *be, struct clb_acts *x, struct clb_err *err);
void clb_cuda_dnn_free(struct clb_backend *be, struct clb_acts *x);
/* Whether n rows of one sequence will be its: they are then noted. */
bool clb_cuda_dnn_wants(struct clb_acts *x, uint32_t row, uint32_t n);
/* The runs of the pass, as m says, whose tiles are not looked at. */
void clb_cuda_dnn_mix(struct clb_backend *be, struct clb_acts *x,
                      const struct clb_cuda_attention *m);

#endif
