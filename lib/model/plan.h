/* plan.h - what a run will take, by category, before anything is allocated. */
#ifndef CLB_MODEL_PLAN_H
#define CLB_MODEL_PLAN_H

#include "lib/model/model.h"

/* What a batch or an infer call reserves. */
struct clb_run_shape {
    struct clb_acts_shape acts;
    bool kv_default;     /* what suits file and backend instead of the type in there */
    uint32_t n_block;    /* of the KV pool */
    uint64_t host_bytes; /* token ids, logits, tables */
};

struct clb_memory_plan {
    uint64_t weights; /* the file, or dense weights and the expert cache under a memory limit */
    uint64_t kv_cache, activations, host_buffers, total;
    uint64_t locked;           /* of the total: weights, KV cache and activations, or nothing */
    uint64_t available;        /* what the system or the limit leaves for all of it; 0: unknown */
    uint64_t device;           /* of the total: KV cache and activations, where a device computes */
    uint64_t device_available; /* what the device has for them, beside dense weights */
    uint64_t device_limit;     /* of its memory, as it was asked for; 0: none */
    struct clb_device_plan there; /* of devices; of experts none where `device` has no room */
    uint32_t context;
    enum clb_kv_dtype kv_dtype;
    uint32_t n_block;
    const struct clb_backend_ops *op; /* the backend it is for */
    char why_cpu[512];                /* why not the device that "auto" has taken; or "" */
};

/* CLB_USAGE when a size does not fit in 64 bits. As long as "auto" may change its mind it is for
 * the CPU when the device cannot run that. */
bool clb_plan_run(struct clb_memory_plan *p, struct clb_model *m, const struct clb_run_shape *s,
                  struct clb_err *err);
/* The run takes so many bytes of the host more; under a limit the expert cache gets less. */
bool clb_plan_add_host(struct clb_memory_plan *p, struct clb_model *m, uint64_t bytes,
                       struct clb_err *err);
/* Everything but the weights. */
uint64_t clb_plan_run_bytes(const struct clb_memory_plan *p);
/* That without what lies on a device. */
uint64_t clb_plan_host_bytes(const struct clb_memory_plan *p);
/* CLB_NO_SPACE, by category, when what must be allocated is more than the system has. Mapped
 * weights are not counted: the system reads them again when it has to. */
bool clb_plan_check(const struct clb_memory_plan *p, struct clb_err *err);

#endif
