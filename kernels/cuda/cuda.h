/* cuda.h - what the host files of the CUDA backend share. They are plain C: kernels are behind
 * cuda_kernels.h. A pass is enqueued stage by stage on the stream of its activations; what varies
 * from pass to pass (tokens, positions, page tables, tiles) lies in one region that `begin` copies
 * to the device. The host waits once, at the end. */
#ifndef CLB_KERNELS_CUDA_CUDA_H
#define CLB_KERNELS_CUDA_CUDA_H

#include <pthread.h>

#include "kernels/cuda/cuda_host.h"
#include "kernels/cuda/cuda_dnn.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_libs.h"
#include "lib/backend/backend.h"
#include "lib/base/carve.h"

/* What rows have to be for a matrix to multiply them. */
enum clb_cuda_kind { CLB_CUDA_HALF, CLB_CUDA_BRAIN, CLB_CUDA_WIDE, CLB_CUDA_KINDS };
static inline enum clb_cuda_kind clb_cuda_kind(enum clb_dtype t)
{
    return t == CLB_F32                      ? CLB_CUDA_WIDE
           : t == CLB_BF16 || t == CLB_MXFP4 ? CLB_CUDA_BRAIN
                                             : CLB_CUDA_HALF;
}

/* As the runtime's headers say, too. Sizes are counted in builds without them (cuda_layout.c,
 * cuda_sizes.c); who calls the runtime includes cuda_call.h. */
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;

/* -- memory ------------------------------------------------------------------------------------ */

enum { CLB_CUDA_IDLE = 8 }; /* slabs of a class that are kept */
struct clb_cuda_slabs {
    struct clb_slab_options o;
    void *idle[CLB_SLAB_CLASSES][CLB_CUDA_IDLE];
    unsigned n[CLB_SLAB_CLASSES];
};

/* Copies of weights from pageable memory to a device: two pinned buffers, one is filled while the
 * other is sent. */
struct clb_cuda_link {
    int device;
    cudaStream_t copy;
    uint8_t *buffer[2]; /* pinned, from the first copy on */
    cudaEvent_t sent[2];
    unsigned next;
    bool must_wait; /* copies are on their way from memory that may change soon */
};

/* Memory of the host that copies read directly. */
struct clb_cuda_range {
    const uint8_t *at;
    uint64_t bytes;
    bool fixed; /* nobody writes there */
};

/* -- weights ----------------------------------------------------------------------------------- */

/* k_up or v_up of MLA: every head's rows as a matrix of their own, which begins with a tile. */
struct clb_cuda_per_head {
    struct clb_matrix w;         /* of one head; no pointers but the book */
    struct clb_cuda_part part;   /* inside a head's block */
    const uint8_t *const *block; /* [n_head] on the device */
};

struct clb_cuda_layer {
    struct clb_layer w; /* pointers lead to the device, but for books and `experts` */
    struct clb_cuda_per_head k_up, v_up;
    const uint8_t *const *block; /* [n_expert] on the device, when all experts are there */
};

struct clb_cuda_slot {
    uint8_t *at;     /* on the device */
    uint32_t expert; /* numbered through all layers; CLB_CUDA_EMPTY */
    uint64_t used;   /* number of the last group that wanted it */
};
#define CLB_CUDA_EMPTY UINT32_MAX

/* Experts on the device: slots of one size, in chunks. With a slot for each expert they all stay,
 * else the least recently used goes first. */
struct clb_cuda_experts {
    uint32_t n_expert; /* of all layers */
    uint32_t n_local;  /* those that the first device has */
    uint32_t n_slot, n_filled;
    uint32_t least;  /* slots without which nothing runs */
    uint32_t *first; /* [n_layer] number of the layer's expert 0; owned */
    uint64_t slot_bytes;
    uint32_t per_chunk;
    uint8_t **chunk; /* [n_local / per_chunk + 1] owned */
    uint32_t n_chunk;
    struct clb_cuda_slot *slot; /* [n_local] owned */
    uint32_t *in_slot;          /* [n_expert] slot or CLB_CUDA_EMPTY; owned */
    const uint8_t **table;      /* [n_expert] on the device, valid when all are there */
    uint64_t group;             /* of the last call */
    cudaEvent_t computed[2];    /* groups, by turns */
    cudaEvent_t arrived;
};

/* Products by cuBLASLt. A plan serves all matrices of a shape. */
struct clb_cuda_blas_plan {
    enum clb_dtype dtype; /* of the rows on the device: f16 or bf16 */
    uint32_t rows, cols;
    void *weights; /* their layout */
    struct clb_lt_algo algo;
};
enum { CLB_CUDA_PLANS = 32 };
/* Of a tensor: rows in 16 bits on the device, weights are what they hold times alpha. */
struct clb_cuda_by_rows {
    const struct clb_cuda_blas_plan *plan; /* NULL: tiles, for the kernels of our own */
    float alpha;
};
struct clb_cuda_dense {
    bool asked, widen; /* int8 and int4 as well */
    struct clb_cuda_blas blas;
    void *handle, *desc;
    struct clb_cuda_blas_plan plan[CLB_CUDA_PLANS];
    uint32_t n_plan;
    struct clb_cuda_by_rows *of;   /* [n_tensors] owned; NULL: nothing is asked of the library */
    uint64_t row_bytes, file_bytes; /* of those tensors: on the device, and in the file */
};

/* A device beside the first: it has its share of every layer's experts, in one piece. */
struct clb_cuda_peer {
    struct clb_cuda_link link;
    bool direct;  /* copies from and to the first device; else the driver's, through the host */
    bool is_full; /* its experts are there */
    unsigned n_cta;
    uint64_t budget, used;
    uint64_t *bytes;       /* [n_layer] of its experts; owned */
    uint8_t **layer;       /* [n_layer] where they lie; owned */
    const uint8_t **table; /* [n_expert] there: NULL for experts of others */
    const uint8_t **block; /* the same table here; owned */
    char text[400];
};

struct clb_backend {
    int device;
    int major;      /* of its compute capability */
    unsigned n_cta; /* blocks that are resident at a time, as products want them */
    bool no_routing_cache;
    bool no_graphs;            /* the host learns the routing of every layer */
    bool watched;              /* stages are timed: each waits until it is done */
    struct clb_ledger *ledger; /* borrowed; may be NULL */
    pthread_mutex_t lock;      /* of slabs and `used` */
    struct clb_cuda_slabs slabs;
    uint64_t asked;        /* most bytes of each device; 0: what is free */
    uint64_t budget, used; /* bytes of the device that may be, and are taken */
    struct clb_memory memory, pinned;
    struct clb_cuda_link link; /* copies of weights, and what has no pass */

    struct clb_cuda_dense dense_lib;
    struct clb_cuda_dnn_use dnn;
    unsigned n_peer;
    struct clb_cuda_peer *peer; /* [n_peer] owned */
    uint32_t *share; /* [n_layer][n_peer + 2] see clb_cuda_share; NULL: not decided; owned */
    enum clb_offload offload;
    struct clb_backend *cpu; /* borrowed: another backend, for experts that do not fit; or NULL */
    uint64_t n_host;         /* experts of all layers that it multiplies */
    char offload_text[240];
    struct clb_cuda_range *range; /* [n_range] of most_range, by address; owned */
    uint32_t n_range, most_range;

    const struct clb_weights *host; /* what it was bound to */
    bool has[CLB_CUDA_KINDS];       /* kinds of its matrices */
    uint64_t *tensor_at;            /* [n_tensors] inside `dense`; owned */
    uint64_t dense_bytes, head_bytes;
    bool there;                   /* dense weights are on the device */
    uint8_t *dense;               /* dense tensors */
    uint8_t *heads;               /* blocks of heads, and tables of them (MLA) */
    struct clb_weights w;         /* as `host`, on the device; `layer` is not used */
    struct clb_cuda_layer *layer; /* [n_layer] owned */
    struct clb_cuda_experts experts;
    char name[16], text[CLB_CUDA_TEXT];
};

/* -- activations ------------------------------------------------------------------------------- */

/* What the host tells a pass, on either side. R rows, L logits, Q sequences. */
struct clb_cuda_told {
    int32_t *token;                /* [R] */
    uint32_t *position, *sequence; /* [R] */
    uint32_t *logit_row;           /* [L] */
    struct clb_cuda_want *want;    /* [L] */
    const float **inv_freq;        /* [Q] on the device */
    float *rope_scale;             /* [Q] */
    struct clb_cuda_queries *tile; /* [n_tile] */
    uint32_t *n_chunk;             /* [CLB_CUDA_CLASSES] of the products of heads (MLA) */
    struct clb_cuda_chunk *chunk[CLB_CUDA_CLASSES];
    int32_t *count;  /* [Q][2 * CLB_DNN_APART] of runs of rows that cuDNN has */
    uint32_t *table; /* [Q][ld_table] */
};

/* One value per row and column in the forms that matrices take; pads are zero. */
struct clb_cuda_rows {
    float *wide;
    uint16_t *half[2]; /* by kind */
    size_t ld;
};

/* The index map of a layer, kept from pass to pass. */
struct clb_cuda_map {
    uint32_t *kept, *first, *row, *slot, *reused;
    struct clb_cuda_chunks chunks;
};

/* What the host tells a peer of a layer, on either side: chunks of its slots, slot -> row. */
struct clb_cuda_peer_told {
    struct clb_cuda_chunks chunks;
    uint32_t *index; /* [S] */
};

/* What a pass needs on another device. */
struct clb_cuda_peer_acts {
    uint64_t bytes;
    uint8_t *block; /* of the peer */
    uint8_t *pin;   /* pinned */
    cudaStream_t stream;
    cudaEvent_t done;
    struct clb_cuda_peer_told here, there;
    struct clb_cuda_rows in, inner; /* [R], or [S] where inputs are scaled; [S] */
    float *out;                     /* [S][ld_hidden] */
    uint32_t *row, *number;         /* [R] pinned: rows it needs, and their numbers there */
    /* of the layer at hand */
    uint32_t first_slot, n_slot, n_row;
    const void *rows; /* [n_row] on the first device */
};

/* What a pass needs for experts on the CPU. */
struct clb_cuda_host_acts {
    uint8_t *pin;         /* all of it is pinned; NULL: there are none */
    float *rows, *out;    /* [R][ld_hidden], [S][ld_hidden] */
    struct clb_acts *cpu; /* of the other backend: nobody looks inside here */
    cudaStream_t stream;
    cudaEvent_t done;
    /* of the layer at hand */
    uint32_t n_active;
    bool has_begun;
    struct clb_cuda_host_layer layer;
};

/* What the kernels of a pass depend on, and the graph of such passes. */
struct clb_cuda_shape {
    uint32_t n_row, n_logit, n_tile, splits, top_k;
    bool chooses; /* rows have candidates */
    const struct clb_kv_pool *pool;
};
struct clb_cuda_graph {
    struct clb_cuda_shape shape;
    cudaGraphExec_t exec; /* NULL: none */
    uint64_t used;
};
enum { CLB_CUDA_GRAPHS = 8 };

/* S = R * most top_k slots, H heads. */
struct clb_acts {
    struct clb_acts_shape shape;
    uint32_t top_k, group;                  /* query heads per KV head */
    uint32_t n_kv_head, key_dim, value_dim; /* as attention meets them */
    uint32_t ld_table, most_tiles, most_partials, most_chunks;
    size_t ld_hidden, ld_q, ld_k, ld_v, ld_query, ld_expert, ld_head;
    uint64_t bytes, told_bytes;
    uint8_t *block; /* of the device */
    uint8_t *pin;   /* [told_bytes] pinned */
    cudaStream_t stream;

    struct clb_cuda_told here, there;
    /* set by begin */
    const struct clb_pass *p;
    uint32_t n_tile, last_position, n_candidate;
    uint32_t n_own_tile; /* the first ones: those of cuDNN's rows are behind */
    struct clb_cuda_dnn_rows dnn;
    struct clb_kv_pool *pool;
    struct clb_cuda_shape pass_shape;
    bool under_way; /* since begin, until the host has waited for its end; still if it failed */
    bool deferred;  /* stages enqueue nothing: the end of the pass launches a graph */
    struct clb_cuda_graph graph[CLB_CUDA_GRAPHS];
    uint64_t n_replay;
    unsigned n_unrecorded; /* passes that could not be recorded */
    bool no_graphs;        /* they never can */
    struct clb_err failed; /* a product by cuBLASLt of the stage at hand */

    float *x;                /* [R][ld_hidden] residual stream */
    struct clb_cuda_rows in; /* [R] input of the branch at hand */
    bool in_has[CLB_CUDA_KINDS];
    float *out;               /* [R][ld_hidden] output of a branch */
    float *cosine, *sine;     /* [R][rope_dim / 2] */
    float *q, *k, *v;         /* [R][ld_q], [R][ld_k], [R][ld_v] */
    float *query;             /* [R][ld_query] what meets keys: q, but for MLA */
    struct clb_cuda_rows mix; /* [R] attention's output */
    float *partial;
    /* MLA */
    float *q_a;                 /* [R][ld of q_lora_rank] */
    struct clb_cuda_rows q_in;  /* [R] its norm */
    struct clb_cuda_rows nope;  /* [H * R] queries before k_up */
    struct clb_cuda_rows mixed; /* [H * R] what each head mixed out of latents */
    float *head_out;            /* [H * R][ld_head] */

    float *score, *choice, *score_in;                      /* [R][ld_expert] */
    uint32_t *arrived;                                     /* [R / 8 + 1] */
    uint32_t *chosen;                                      /* [S] */
    float *weight;                                         /* [S] */
    struct clb_cuda_map *map;                              /* [n_layer] host */
    struct clb_cuda_rows inner, shared_inner, dense_inner; /* [S], [R], [R] */
    float *gate_up[2]; /* [R][ld of the wider of both MLPs] of products by cuBLASLt */
    struct clb_cuda_rows slot_in;                          /* [S] scaled inputs, if they are */
    float *slot_out;                                       /* [S][ld_hidden] */
    float *shared_gate;                                    /* [R] */
    struct clb_cuda_rows last; /* [L] normed rows for the output matrix */
    float *logits;             /* [L][vocab] */
    uint64_t *kept;            /* of slices of rows that have candidates */
    struct clb_candidate *candidate;

    struct clb_cuda_peer_acts *peer; /* [n_peer] owned */
    uint32_t *pack_row;              /* [n_peer][R] */
    bool is_spread;                  /* experts of devices have been asked in this layer */
    struct clb_cuda_host_acts host;
    cudaEvent_t ready;               /* what other devices read is there */

    /* what the host learns of routes: pinned */
    struct clb_routes routes;
    uint32_t *r_expert, *r_first, *r_row, *r_slot, *r_active, *r_reused;
    float *r_weight;
    const uint8_t **r_block[2]; /* [n_expert] pinned, of a call by turns */
    const uint8_t **call_block; /* [n_expert] on the device */
};

/* -- cuda_memory.c ----------------------------------------------------------------------------- */

/* What was launched since the last check; waits for it while stages are timed. */
bool clb_cuda_launched(const struct clb_backend *be, struct clb_acts *x, struct clb_err *err,
                       const char *stage);
void clb_cuda_memory_init(struct clb_backend *be, const struct clb_slab_options *slabs);
/* Gives back the slabs that are kept. */
void clb_cuda_memory_done(struct clb_backend *be);
/* Zeroed memory of the device; NULL: CLB_NO_SPACE. */
void *clb_cuda_get(struct clb_backend *be, uint64_t bytes, const char *what, struct clb_err *err);
void clb_cuda_put(struct clb_backend *be, void *p, uint64_t bytes);
/* The same from slabs. */
void *clb_cuda_slab_get(struct clb_backend *be, uint64_t bytes, struct clb_err *err);
void clb_cuda_slab_put(struct clb_backend *be, void *p, uint64_t bytes);
bool clb_cuda_link_open(struct clb_cuda_link *l, int device, struct clb_err *err);
void clb_cuda_link_close(struct clb_cuda_link *l); /* safe on a zeroed struct */
/* Copies from any memory of the host, which may change when it returns. The link's device is the
 * thread's. */
bool clb_cuda_send(struct clb_cuda_link *l, void *to, const void *from, uint64_t bytes,
                   struct clb_err *err);

/* cuda_pinned.c: pin_host and unpin_host of the device; */
bool clb_cuda_pin_host(struct clb_backend *be, const void *at, uint64_t bytes, bool fixed,
                       struct clb_err *err);
void clb_cuda_unpin_host(struct clb_backend *be, const void *at);
/* a block from memory that was registered, directly, or as clb_cuda_send does; */
bool clb_cuda_send_block(struct clb_backend *be, struct clb_cuda_link *l, void *to,
                         const void *from, uint64_t bytes, struct clb_err *err);
/* and blocks that were sent may change. */
bool clb_cuda_sent(struct clb_cuda_link *l, struct clb_err *err);

/* Most bytes of a device to use. */
struct clb_cuda_device;
bool clb_cuda_budget(uint64_t *budget, const struct clb_cuda_device *d, uint64_t asked,
                     struct clb_err *err);

/* -- cuda_weights.c, cuda_heads_up.c ----------------------------------------------------------- */

bool clb_cuda_bind(struct clb_backend *be, const struct clb_weights *w, struct clb_err *err);
void clb_cuda_unbind(struct clb_backend *be);
/* Dense weights are on the device. */
bool clb_cuda_send_dense(struct clb_backend *be, struct clb_err *err);
/* The tensor whose bytes begin there: in the mapping, or on the device. n_tensors: none. */
uint32_t clb_cuda_tensor_at(const struct clb_backend *be, const void *host);
uint32_t clb_cuda_tensor_there(const struct clb_backend *be, const void *there);
/* Where a tensor of the mapping lies on the device; NULL: NULL. */
const void *clb_cuda_there(const struct clb_backend *be, const void *host);
/* Copies of the matrices of heads. */
bool clb_cuda_send_heads(struct clb_backend *be, struct clb_err *err);

/* -- cuda_experts.c ---------------------------------------------------------------------------- */

bool clb_cuda_experts_open(struct clb_backend *be, struct clb_err *err);
void clb_cuda_experts_close(struct clb_backend *be);
/* As many slots as `bytes` hold. */
bool clb_cuda_experts_resize(struct clb_backend *be, uint64_t bytes, struct clb_err *err);
bool clb_cuda_experts_upload(struct clb_backend *be, uint32_t layer, uint32_t expert,
                             const uint8_t *block, bool *full, struct clb_err *err);
bool clb_cuda_experts_settle(struct clb_backend *be, struct clb_err *err);
static inline bool clb_cuda_resident(const struct clb_backend *be)
{
    return be->experts.n_filled == be->experts.n_local;
}
/* Nobody but devices multiplies, and nothing is copied. */
static inline bool clb_cuda_alone(const struct clb_backend *be)
{
    return clb_cuda_resident(be) && !be->n_host;
}
/* The next of the active experts from *i on that can be on the device together, of those with a
 * block: call_block says where they are. *i moves behind them. */
bool clb_cuda_experts_group(struct clb_backend *be, struct clb_acts *x, uint32_t layer,
                            const uint8_t *const *block, uint32_t *i, struct clb_err *err);
/* The group's products are enqueued. */
bool clb_cuda_experts_computed(struct clb_backend *be, struct clb_acts *x, struct clb_err *err);

/* -- cuda_dense.c: dense matrices by cuBLASLt -------------------------------------------------- */

struct clb_cuda_linear;
/* Only if that was asked for: fails without the library. */
bool clb_cuda_dense_open(struct clb_backend *be, bool widen, struct clb_err *err);
void clb_cuda_dense_close(struct clb_backend *be);
/* Chooses the matrices that it will multiply: nothing is copied yet. */
bool clb_cuda_dense_choose(struct clb_backend *be, struct clb_err *err);
/* Bytes that tensor i takes on the device. */
uint64_t clb_cuda_dense_bytes(const struct clb_backend *be, uint32_t i);
/* One of them becomes row-major on the device. */
bool clb_cuda_dense_send(struct clb_backend *be, uint32_t i, struct clb_err *err);
/* Of a matrix on the device; NULL: the kernels of our own multiply it. */
const struct clb_cuda_by_rows *clb_cuda_dense_of(const struct clb_backend *be,
                                                 const struct clb_matrix *m);
/* What fails is told by clb_cuda_launched. */
void clb_cuda_dense_run(struct clb_backend *be, struct clb_acts *x,
                        const struct clb_cuda_by_rows *r, const struct clb_cuda_linear *l);

/* -- cuda_peers.c, cuda_shares.c, cuda_spread.c: experts of other devices ---------------------- */

bool clb_cuda_choose(int device, struct clb_err *err); /* becomes the thread's */
bool clb_cuda_peers_open(struct clb_backend *be, const struct clb_devices *of, uint64_t asked,
                         struct clb_err *err);
void clb_cuda_peers_close(struct clb_backend *be);
/* Behind the first device's description; returns its length. */
size_t clb_cuda_peers_describe(const struct clb_backend *be, char *text, size_t n);
/* Zeroed memory of a peer, which becomes the thread's device. */
void *clb_cuda_peer_get(struct clb_backend *be, struct clb_cuda_peer *p, uint64_t bytes,
                        const char *what, struct clb_err *err);
void clb_cuda_peer_put(struct clb_backend *be, struct clb_cuda_peer *p, void *at, uint64_t bytes);

/* The first expert of a layer that device d of the backend has (0: the first device). Those below
 * all are the CPU's. */
static inline uint32_t clb_cuda_share(const struct clb_backend *be, uint32_t layer, uint32_t d)
{
    return be->share[layer * (size_t)(be->n_peer + 2) + d];
}
/* The first time: shares are decided, of `left` bytes of the first device for runs and experts.
 * Peers have room for theirs. */
bool clb_cuda_shares_reserve(struct clb_backend *be, uint64_t left, uint64_t run_bytes,
                             struct clb_err *err);
void clb_cuda_shares_free(struct clb_backend *be);
/* Whether the first device or a peer is to have the expert, and has it not yet. */
bool clb_cuda_experts_want(const struct clb_backend *be, uint32_t layer, uint32_t expert);
bool clb_cuda_shares_upload(struct clb_backend *be, uint32_t layer, uint32_t expert,
                            const uint8_t *block, struct clb_err *err);
bool clb_cuda_shares_settle(struct clb_backend *be, struct clb_err *err);

bool clb_cuda_spread_new(struct clb_backend *be, struct clb_acts *x, struct clb_err *err);
void clb_cuda_spread_free(struct clb_backend *be, struct clb_acts *x);
/* Peers are given their rows of the layer, multiply them and send results back; a second call for
 * the layer does nothing. The pass's routes are known. After the join they are there. */
bool clb_cuda_spread(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                     struct clb_err *err);
bool clb_cuda_join(struct clb_backend *be, struct clb_acts *x, struct clb_err *err);

/* Where experts are multiplied: cuda_moe.c. */
struct clb_cuda_site {
    const void *in;      /* of the experts' kind */
    const uint32_t *row; /* NULL: `in` has a row per slot */
    struct clb_cuda_chunks chunks;
    const uint8_t *const *table;
    void *inner;
    float *out;
    unsigned n_cta;
    cudaStream_t stream;
};
void clb_cuda_run_experts(const struct clb_backend *be, const struct clb_acts *x,
                          const struct clb_layer *l, const struct clb_cuda_site *s);

/* -- cuda_host.c: experts on the CPU; cuda_offload.c: whether there are any -------------------- */

bool clb_cuda_host_new(struct clb_backend *be, struct clb_acts *x, struct clb_err *err);
void clb_cuda_host_free(struct clb_backend *be, struct clb_acts *x);
/* The rows of the layer are on their way; its routes are there. */
bool clb_cuda_host_fetch(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                         struct clb_err *err);
void clb_cuda_host_routed(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l);
/* Multiplies those of its experts that have a block; results are on their way to the device, and
 * there after the join. */
bool clb_cuda_host_run(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                       const uint8_t *const *block, struct clb_err *err);
bool clb_cuda_host_join(struct clb_acts *x, struct clb_err *err);

/* Of n_rest experts of all layers, for which there is no room: how many the CPU multiplies. The
 * first device has room for n_slot; peers have n_peer. */
bool clb_cuda_offload_decide(struct clb_backend *be, uint64_t n_rest, uint64_t n_slot,
                             uint64_t n_peer, uint64_t *n_host, struct clb_err *err);

/* -- cuda_acts.c ------------------------------------------------------------------------------- */

bool clb_cuda_acts_new(struct clb_backend *be, struct clb_acts **out, const struct clb_arch *a,
                       const struct clb_acts_shape *s, struct clb_err *err);
void clb_cuda_acts_free(struct clb_backend *be, struct clb_acts *x);

/* -- cuda_linear.c: steps that stages share ---------------------------------------------------- */

/* The norms before attention and MLP of a layer, as weights of a branch. */
struct clb_cuda_norm clb_cuda_attn_norm(const struct clb_backend *be, const struct clb_layer *l);
struct clb_cuda_norm clb_cuda_mlp_norm(const struct clb_backend *be, const struct clb_layer *l);
/* What the branch after this one reads: attention of layer l (NULL: nothing), or its MLP. */
struct clb_cuda_branch clb_cuda_next(struct clb_backend *be, struct clb_acts *x,
                                     const struct clb_layer *l, bool mlp);
/* The branch's input as w takes it. */
const void *clb_cuda_input(struct clb_backend *be, struct clb_acts *x, const struct clb_matrix *w);
static inline void *clb_cuda_as(const struct clb_cuda_rows *r, enum clb_cuda_kind kind)
{
    return kind == CLB_CUDA_WIDE ? (void *)r->wide : (void *)r->half[kind];
}
/* y = W in + bias, or gated with `up`; rows of `in` have its kind. */
struct clb_cuda_linear {
    const struct clb_matrix *w, *up; /* up NULL: a plain product */
    const void *in;
    size_t ld_in;
    uint32_t n_row;
    void *y;
    size_t ldy;
};
void clb_cuda_linear(struct clb_backend *be, struct clb_acts *x, const struct clb_cuda_linear *l);
/* What every product says of its matrices. */
struct clb_cuda_product clb_cuda_product_of(const struct clb_backend *be, enum clb_dtype dtype,
                                            uint32_t rows, uint32_t cols, const int8_t *book);
/* in -> gate, up -> inner -> down -> y: a dense MLP, or the shared expert. */
void clb_cuda_gated(struct clb_backend *be, struct clb_acts *x,
                    const struct clb_matrix part[CLB_PARTS], const struct clb_cuda_rows *inner,
                    float *y);
/* The branch's output `y` into the residual stream, and the input of the next branch. */
void clb_cuda_residual(struct clb_backend *be, struct clb_acts *x, float *y,
                       struct clb_cuda_norm own, const struct clb_cuda_branch *next);

/* -- the stages, see lib/backend/backend.h ----------------------------------------------------- */

bool clb_cuda_begin(struct clb_backend *be, struct clb_acts *x, const struct clb_weights *w,
                    const struct clb_pass *p, struct clb_err *err);
bool clb_cuda_embed(struct clb_backend *be, struct clb_acts *x, struct clb_err *err);
bool clb_cuda_attn_project(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                           struct clb_err *err);
bool clb_cuda_attn_mix(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                       struct clb_err *err);
bool clb_cuda_attn_output(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                          struct clb_err *err);
bool clb_cuda_gate(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                   struct clb_err *err);
bool clb_cuda_scatter(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                      const struct clb_routes **routes, struct clb_err *err);
bool clb_cuda_moe_experts(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                          const uint8_t *const *block, struct clb_err *err);
bool clb_cuda_gather(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                     struct clb_err *err);
bool clb_cuda_mlp(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                  struct clb_err *err);
bool clb_cuda_logits(struct clb_backend *be, struct clb_acts *x, float *out, struct clb_err *err);
bool clb_cuda_fetch(struct clb_backend *be, struct clb_acts *x, uint32_t i, float *out,
                    struct clb_err *err);

/* The end of a pass but for the wait: final norm, output matrix. */
bool clb_cuda_output(struct clb_backend *be, struct clb_acts *x, struct clb_err *err);

/* cuda_graph.c: decides whether the pass is deferred; runs one that was; frees graphs. */
void clb_cuda_graph_begin(struct clb_backend *be, struct clb_acts *x);
bool clb_cuda_graph_run(struct clb_backend *be, struct clb_acts *x, struct clb_err *err);
void clb_cuda_graph_free(struct clb_acts *x);

/* cuda_mla.c */
void clb_cuda_mla_project(struct clb_backend *be, struct clb_acts *x,
                          const struct clb_cuda_layer *l);
void clb_cuda_mla_values(struct clb_backend *be, struct clb_acts *x,
                         const struct clb_cuda_layer *l);
/* cuda_attn.c */
struct clb_cuda_kv clb_cuda_kv_of(const struct clb_backend *be, const struct clb_acts *x,
                                  uint32_t layer);
void clb_cuda_finish_heads(struct clb_backend *be, struct clb_acts *x, struct clb_cuda_heads h,
                           uint32_t layer);

#endif
