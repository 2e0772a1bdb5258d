/* model.h - an open model: file, bound weights, expert store, backend and the memory that passes
 * use.
 *
 * Weights do not change after open. Passes of several threads take turns: whoever uses the backend
 * or the expert store holds the turn; a device that has all weights runs several at a time. Several
 * models live side by side; nothing is shared between them. */
#ifndef CLB_MODEL_MODEL_H
#define CLB_MODEL_MODEL_H

#include <pthread.h>

#include "lib/backend/backend.h"
#include "lib/model/experts.h"

/* Of `total` bytes of experts, `done` are on the device. */
typedef void clb_upload_fn(void *arg, uint64_t done, uint64_t total);

struct clb_model_options {
    unsigned n_thread;     /* 0: clb_pool_default_threads */
    const char *cpu_level; /* NULL: the best */
    const char *backend;   /* NULL, "auto": a device when there is one that can run the model */
    uint64_t memory;       /* most bytes for weights and all runs together; 0: no limit */
    bool verify;           /* checksums of blocks on first touch */
    bool mlock;            /* lock weights and the memory of runs */
    enum clb_numa_mode numa;
    bool no_routing_cache;
    size_t slab_classes[CLB_SLAB_CLASSES]; /* all 0: the slab's defaults */
    struct clb_devices devices;            /* of backends that have several; none: the first */
    uint64_t gpu_memory;    /* most bytes of each device for all of it; 0: what is free */
    bool gpu_dense_library; /* bf16 and fp16 dense matrices by the library of the device's maker */
    bool gpu_dense_widened; /* int8 and int4 ones as well */
    bool gpu_attention_library; /* attention of prompts by the maker's library; only on a device */
    enum clb_offload offload;   /* of experts that do not fit on the devices */
    const struct clb_backend_ops *ops; /* this one instead of a backend by name; or NULL */
    clb_upload_fn *upload;      /* told how far the weights are on their way to a device; or NULL */
    void *upload_arg;
};

enum clb_pool_kind { CLB_POOL_WEIGHTS, CLB_POOL_ACTIVATIONS, CLB_POOL_HOST, CLB_POOL_KINDS };

struct clb_model {
    struct clb_reader reader;
    struct clb_weights weights;
    struct clb_ahead *ahead; /* NULL: the file was in memory when it was opened */
    struct clb_experts *experts;
    const struct clb_backend_ops *op;
    struct clb_backend *be;
    /* Beside a device: what multiplies experts that do not fit there, and what "auto" takes if the
     * first run does not fit; or NULL. Both are written under the turn and `lock`. */
    struct clb_backend *cpu;
    struct clb_backend *device_be; /* of a device that "auto" has left; or NULL */
    bool may_change;               /* "auto" has taken a device, and no run was opened yet */
    struct clb_slab *slab;         /* activations */
    struct clb_slab_options slab_options;
    struct clb_ledger ledger[CLB_POOL_KINDS];
    struct clb_residence residence; /* of all memory but small things */
    const uint8_t *locked;          /* weights that were locked in the file's mapping */
    uint64_t locked_bytes;
    const uint8_t **block;     /* [largest n_expert] scratch of a pass */
    uint64_t available;        /* memory that the system had left; 0: unknown */
    bool is_large;             /* the file is larger than that */
    uint64_t dense_bytes;      /* of the file without expert blocks */
    uint64_t limit;            /* of memory; 0: none */
    uint64_t committed;        /* bytes that open runs were promised; under the turn */
    uint64_t committed_device; /* likewise, on the device */
    uint64_t device_limit;     /* most bytes of each device; 0: what is free */
    struct clb_ledger device;  /* all memory of the device */
    char why_cpu[512];         /* what "auto" found instead of a device; "": nothing to say */
    bool device_lost;          /* it fails for good */
    bool device_unused;        /* why_cpu is about one that the driver shows */
    char offload[420];         /* of experts that do not fit there; "": all do, or unknown */
    const uint8_t *pinned_at;  /* in the mapping: what is registered with the device; or NULL */
    char pinned[200];          /* how experts are copied; "": they are not */
    clb_upload_fn *upload;
    void *upload_arg;
    pthread_mutex_t lock; /* of the two tickets, and of what is said about the backend */
    pthread_cond_t called;
    uint64_t ticket, serving; /* whose turn it is: in order of arrival */
    uint32_t n_pass;          /* that run without a turn: who has one waits for them */
};

/* `path`, or `bytes` of a file in memory that outlive the model (64-byte aligned) when path is
 * NULL. The file is checked whole against its descriptor, and refused when this engine cannot run
 * it or the memory limit cannot hold it. */
struct clb_model_source {
    const char *path;
    const void *bytes;
    size_t n;
};
bool clb_model_open(struct clb_model **out, const struct clb_model_source *from,
                    const struct clb_model_options *o, struct clb_err *err);
void clb_model_close(struct clb_model *m); /* NULL is fine */

void clb_model_take_turn(struct clb_model *m);
void clb_model_end_turn(struct clb_model *m);
/* For one pass: a turn, or less where the device runs several at the same time (and this one does
 * not have to be `alone`). Returns what end_pass is to be told. */
bool clb_model_take_pass(struct clb_model *m, bool alone);
void clb_model_end_pass(struct clb_model *m, bool shared);

/* After a failure of a run, from its opening on: notes whether the device can go on. */
void clb_model_failed(struct clb_model *m);

/* Whether a cache instead of the mapping holds the experts. */
bool clb_model_has_cache(const struct clb_model *m);

/* A run (batch, infer call) needs `bytes` beside the weights, and `device` bytes on the device,
 * from now until release. Under a memory limit the expert cache takes what is left; CLB_NO_SPACE
 * when that is too little for one layer. Where a device computes, its weights are there afterwards.
 * Both wait for the turn. */
bool clb_model_commit(struct clb_model *m, uint64_t bytes, uint64_t device, struct clb_err *err);
void clb_model_release(struct clb_model *m, uint64_t bytes, uint64_t device);
/* Bytes that the device has left for runs. */
uint64_t clb_model_device_left(const struct clb_model *m);
/* How a backend stores keys and values. */
bool clb_model_kv_shape(const struct clb_model *m, const struct clb_backend_ops *op,
                        struct clb_kv_shape *s, enum clb_kv_dtype dtype, struct clb_err *err);
/* A run that was planned for this backend opens. False: meanwhile another run has decided that the
 * model runs elsewhere. `why`: what "auto" found against the device. Waits for the turn. */
bool clb_model_settle(struct clb_model *m, const struct clb_backend_ops *op, const char *why);
/* Where the model runs, for people; until the first run opens that may change. */
struct clb_model_place {
    const struct clb_backend_ops *op;
    const struct clb_backend *be;
    const char *why_cpu, *offload;
    bool device_lost; /* everything fails from now on */
    bool device_unused;
};
struct clb_model_place clb_model_place(struct clb_model *m);

#endif
