/* backend.h - the contract between the engine and a device: batch-level operations that follow the
 * stages of a pass. All of them work on every row of the pass at once, and take all active experts
 * at once, so that a GPU can do one grouped launch and the CPU can spread rows over threads.
 * lib/forward sees only this file, never kernels/.
 *
 * Activations live in `struct clb_acts`, opaque here, sized before the first pass for a number of
 * rows; nothing allocates during a pass. */
#ifndef CLB_BACKEND_BACKEND_H
#define CLB_BACKEND_BACKEND_H

#include <stdint.h>

#include "lib/backend/kv.h"
#include "lib/backend/offload.h"
#include "lib/backend/weights.h"
#include "lib/base/candidate.h"
#include "lib/base/err.h"
#include "lib/base/pool.h"
#include "lib/base/slab.h"

struct clb_backend;
struct clb_acts;

/* The rows of one pass. Rows of one sequence are consecutive and in ascending position. */
struct clb_pass {
    uint32_t n_row;
    const int32_t *token;          /* [n_row] each < vocab_size */
    const uint32_t *position;      /* [n_row] */
    const uint32_t *sequence;      /* [n_row] index into seq */
    struct clb_kv_seq *const *seq; /* [n_seq]; blocks for every position of the pass are reserved */
    uint32_t n_seq;
    const uint32_t *logit_row; /* [n_logit] rows whose logits are wanted, ascending */
    uint32_t n_logit;
    uint32_t top_k;   /* experts per token; 0: the layer's own */
    bool want_routes; /* moe_scatter shall give routes, even if nobody needs them for the pass */
    /* [n_logit] how many of the row's largest logits are enough (ties: lowest ids; NaN last), at
     * most what candidates() says and the vocabulary; 0: the whole row. NULL: whole rows */
    const uint32_t *n_candidate;
    struct clb_candidate *candidate; /* where those go: row after row, ascending ids in a row */
};

/* What Gate and Scatter found, visible to the host. A slot is one (row, rank) pair; slots of one
 * expert are side by side, ascending rows. */
struct clb_routes {
    uint32_t n_row, top_k, n_expert, n_active;
    const uint32_t *expert; /* [n_row * top_k]  chosen ids, largest score first; ties: lowest id */
    const float *weight;    /* [n_row * top_k]  what multiplies the expert's output */
    const uint32_t *first;  /* [n_expert + 1]   slots of expert e are first[e] .. first[e+1]-1 */
    const uint32_t *row;    /* [n_row * top_k]  slot -> row */
    const uint32_t *slot;   /* [n_row * top_k]  row * top_k + rank -> slot */
    const uint32_t *active; /* [n_active] ids of experts with at least one slot, ascending */
    bool reused;            /* the index map of an earlier pass was the same and was kept */
    bool at_hand;           /* the backend holds all experts: moe_experts gets no blocks */
    uint32_t n_held;        /* of `active`, the last ones, which the backend holds in any case */
};

/* Numbers of devices; the first one runs all but its share of the experts. */
enum { CLB_DEVICES_MOST = 16 };
struct clb_devices {
    uint32_t n, id[CLB_DEVICES_MOST];
};

struct clb_backend_options {
    unsigned n_thread;           /* 0: clb_pool_default_threads */
    const char *cpu_level;       /* NULL: the best this machine has; else a name, refused with
                                    the reason when lacking */
    bool no_routing_cache;       /* tests: rebuild the index map every time */
    struct clb_slab *slab;       /* borrowed: where activations come from */
    const struct clb_numa *numa; /* borrowed: where threads go; NULL: anywhere */
    /* of a device */
    const struct clb_slab_options *slab_options; /* borrowed while it opens: sizes of its slabs */
    struct clb_devices devices;                  /* none: device 0 */
    uint64_t device_memory;                      /* most bytes of each; 0: what is free */
    bool dense_library; /* bf16 and fp16 dense matrices by the maker's library (cuBLASLt) */
    bool dense_widened; /* int8 and int4 ones as well, widened to f16 */
    bool attention_library; /* attention of prompts by the maker's library (cuDNN): bits then
                               depend on how prompts are cut */
    struct clb_ledger *device_ledger; /* borrowed: of all its memory; NULL: not counted */
    enum clb_offload offload;         /* of experts that do not fit on the devices */
    struct clb_backend *cpu; /* borrowed: the CPU's, which multiplies them; NULL: only copies */
};

struct clb_acts_shape {
    uint32_t max_rows, max_logits, max_seqs;
    uint32_t max_context; /* the longest sequence */
    uint32_t top_k;       /* the most experts per token of any pass; 0: the model's own */
    enum clb_kv_dtype kv_dtype;
    uint32_t max_candidates; /* of all rows of a pass */
};

/* CLB_USAGE when activations of this shape, for top_k experts per token, do not hold the pass. */
bool clb_pass_check(const struct clb_pass *p, const struct clb_acts_shape *s, uint32_t top_k,
                    struct clb_err *err);
/* Of all rows of the pass. */
uint32_t clb_pass_candidates(const struct clb_pass *p);

/* What lies on devices when a run is open. */
struct clb_device_plan {
    uint32_t n_device;
    uint64_t budget;            /* most bytes of the first one */
    uint64_t dense, experts;    /* bytes of weights; experts: on all devices, with their tables */
    uint64_t peer_acts;         /* activations on devices beside the first */
    uint64_t n_expert, n_there; /* of all layers; that are there at a time */
};

/* What a backend offers that computes in memory of its own. `bind` comes right after open, then any
 * number of times reserve, uploads, settle; acts and passes after the first of them. */
struct clb_device_ops {
    /* Before anything is opened, in one line for people: which devices there are, or why none. */
    void (*about)(char *text, size_t n);
    /* Likewise, how many the driver shows. */
    unsigned (*count)(void);
    /* The weights that all passes will use; borrowed until close. Refuses what the device cannot
     * run. Nothing is copied yet. */
    bool (*bind)(struct clb_backend *be, const struct clb_weights *w, struct clb_err *err);
    /* Bytes for runs, all together: what is left beside dense weights and the fewest experts. */
    uint64_t (*available)(const struct clb_backend *be);
    /* CLB_NO_SPACE, with the sizes, where that is nothing. */
    bool (*holds)(const struct clb_backend *be, struct clb_err *err);
    /* What will lie there beside run_bytes of all runs (available() has them), the one with
     * activations of this shape among them. CLB_NO_SPACE where another device lacks room. */
    bool (*plan)(const struct clb_backend *be, const struct clb_acts_shape *s, uint64_t run_bytes,
                 struct clb_device_plan *p, struct clb_err *err);
    /* Dense weights are there, and run_bytes are left for all runs: the rest of the memory may hold
     * experts. *wanted: upload them. */
    bool (*reserve)(struct clb_backend *be, uint64_t run_bytes, bool *wanted, struct clb_err *err);
    /* Whether this expert is to be uploaded. */
    bool (*wants)(const struct clb_backend *be, uint32_t layer, uint32_t expert);
    /* One expert from host memory, which may go as soon as this returns. *full: no room for more.
     */
    bool (*upload)(struct clb_backend *be, uint32_t layer, uint32_t expert, const uint8_t *block,
                   bool *full, struct clb_err *err);
    bool (*settle)(struct clb_backend *be, struct clb_err *err);
    /* Passes of several activations may run at the same time, until the next reserve; not those
     * that are watched or want routes. */
    bool (*shares)(const struct clb_backend *be);
    /* Experts are copied to the device while passes run. */
    bool (*copies)(const struct clb_backend *be);
    /* Where experts are that do not fit, and why, for people; "": all fit, or not decided yet. */
    const char *(*offload)(const struct clb_backend *be);
    /* Memory of the host that experts are copied from: copies from it are direct until unpin_host.
     * `fixed`: nobody writes there until then, and it may be read-only; else copies have read it
     * when an upload or a stage returns. Ranges do not overlap, and a block lies in one of them.
     * No pass runs meanwhile. */
    bool (*pin_host)(struct clb_backend *be, const void *at, uint64_t bytes, bool fixed,
                     struct clb_err *err);
    void (*unpin_host)(struct clb_backend *be, const void *at);
    /* Memory of the host that activations of this shape take, at most. */
    uint64_t (*acts_host_bytes)(const struct clb_backend *be, const struct clb_arch *a,
                                const struct clb_acts_shape *s);
    /* The most candidates that a row of so many logits can have: the others stay there. */
    uint32_t (*candidates)(uint32_t n_vocab);
    /* Row i of the logits [n_logit] of the last pass, until the next one begins. Called as a pass
     * is, with a turn or beside others. */
    bool (*fetch)(struct clb_backend *be, struct clb_acts *x, uint32_t i, float *out,
                  struct clb_err *err);
    /* After a failure: whether it is final, so that whatever this process asks of the devices from
     * now on fails. */
    bool (*lost)(struct clb_backend *be);
    /* Sizes of the KV cache as the device stores it. */
    bool (*kv_shape)(struct clb_kv_shape *s, const struct clb_arch *a, enum clb_kv_dtype dtype,
                     struct clb_err *err);
    /* Of the device, for the KV cache; of the host, for what passes read and write. */
    const struct clb_memory *(*memory)(struct clb_backend *be);
    const struct clb_memory *(*pinned)(struct clb_backend *be);
};

struct clb_backend_ops {
    const char *name;                    /* "cpu", "cuda" */
    const struct clb_device_ops *device; /* NULL: it computes in host memory */

    bool (*open)(struct clb_backend **out, const struct clb_backend_options *o,
                 struct clb_err *err);
    void (*close)(struct clb_backend *be);
    /* "avx2, 2 threads (2 cores, affinity 2)": for -v; borrowed until close */
    const char *(*describe)(const struct clb_backend *be);
    const char *(*level)(const struct clb_backend *be); /* "scalar", "avx2", ... */
    unsigned (*threads)(const struct clb_backend *be);
    /* From now on adds what its threads do to *use; NULL: no longer. Between stages only. */
    void (*watch)(struct clb_backend *be, struct clb_pool_use *use);

    /* Bytes of activations for this shape (exact), without allocating; and the real thing. */
    uint64_t (*acts_bytes)(const struct clb_backend *be, const struct clb_arch *a,
                           const struct clb_acts_shape *s);
    bool (*acts_new)(struct clb_backend *be, struct clb_acts **out, const struct clb_arch *a,
                     const struct clb_acts_shape *s, struct clb_err *err);
    void (*acts_free)(struct clb_backend *be, struct clb_acts *acts);

    /* A pass: begin, then the stages in this order. x is the residual stream inside acts. */
    bool (*begin)(struct clb_backend *be, struct clb_acts *x, const struct clb_weights *w,
                  const struct clb_pass *p, struct clb_err *err);
    bool (*embed)(struct clb_backend *be, struct clb_acts *x, struct clb_err *err);
    /* norm, q/k/v, biases, clip, q/k norm, rope, append to the KV cache */
    bool (*attn_project)(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                         struct clb_err *err);
    /* scores, softmax, weighted values */
    bool (*attn_mix)(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                     struct clb_err *err);
    /* output projection, residual */
    bool (*attn_output)(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                        struct clb_err *err);
    /* norm, router, top-k */
    bool (*moe_gate)(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                     struct clb_err *err);
    /* counts, prefix sum, index map: rows of one expert side by side. *routes NULL: nobody
     * needs to know, all experts are at hand */
    bool (*moe_scatter)(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                        const struct clb_routes **routes, struct clb_err *err);
    /* each active expert on all its rows; block[i] is where the weights of routes->active[i] lie,
     * or NULL: not in this call; block NULL: all are at hand (a store that cannot hold all active
     * experts at once makes several calls) */
    bool (*moe_experts)(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                        const uint8_t *const *block, struct clb_err *err);
    /* weighted sum in ascending rank, shared experts, residual */
    bool (*moe_gather)(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                       struct clb_err *err);
    /* norm, MLP, residual of a dense layer */
    bool (*mlp)(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                struct clb_err *err);
    /* final norm, output projection of the rows in logit_row, scale, soft cap: [n_logit][vocab],
     * but for rows that have candidates */
    bool (*logits)(struct clb_backend *be, struct clb_acts *x, float *out, struct clb_err *err);
};

extern const struct clb_backend_ops clb_backend_cpu;
extern const struct clb_backend_ops clb_backend_cuda; /* only in builds that have it */
/* In every build: CUDA as far as plans need it. Devices of device_memory bytes are elsewhere. */
extern const struct clb_backend_ops clb_backend_paper;

/* By name ("cpu", "cuda"). CLB_UNSUPPORTED with the reason and what to do when this build has no
 * such backend. */
const struct clb_backend_ops *clb_backend_find(const char *name, struct clb_err *err);
/* The backend of a device that this build has; NULL: none. */
const struct clb_backend_ops *clb_backend_device(void);

#endif
