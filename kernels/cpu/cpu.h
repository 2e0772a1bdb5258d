/* cpu.h - what the files of the CPU backend share. One file per stage, with the stem that the stage
 * has in lib/forward; each stage is one run of the thread pool, its steps separated by barriers.
 * Every output element is computed by one thread in a fixed order, so who takes which piece of work
 * does not show in the result. */
#ifndef CLB_KERNELS_CPU_CPU_H
#define CLB_KERNELS_CPU_CPU_H

#include <stdatomic.h>

#include "kernels/kernels.h"
#include "lib/backend/backend.h"
#include "lib/base/pool.h"

enum {
    CLB_CPU_ROWS = 128,   /* most rows of one piece of a product: their records stay in L2 */
    CLB_CPU_TILES = 8,    /* most tiles of one piece of a gated product: its scratch stays in L2 */
    CLB_CPU_HEAD_ROWS = 16, /* most rows of one head's product in MLA */
    CLB_CPU_FEW_ITEMS = 4, /* of each thread; with more, each item of attention is one thread's */
    CLB_CPU_QUERIES = CLB_ATTN_QUERIES, /* most queries that share a KV block */
    CLB_CPU_RANGES = 16,    /* of a list of products, at most: more threads share them */
};

struct clb_backend {
    struct clb_kernels k;
    struct clb_pool *pool; /* owned */
    struct clb_slab *slab; /* borrowed */
    bool no_routing_cache;
    char text[320];
};

/* The index map of one layer, kept from pass to pass. */
struct clb_cpu_map {
    uint32_t n_row, top_k, n_active; /* n_row 0: nothing is kept */
    uint32_t *expert;                /* [rows * top_k] the choice it was made from */
    uint32_t *row, *slot;            /* [rows * top_k] */
    uint32_t *first, *active;        /* [n_expert + 1], [n_expert] */
};

/* Consecutive rows of one sequence that attend together. */
struct clb_cpu_group {
    uint32_t row, n;
};

/* Weights of a norm of hidden_size values; bias NULL: none. */
struct clb_cpu_norm {
    const float *weight, *bias;
};

/* Inputs and outputs of a head's product in MLA: rows of f32, records, rows of whole tiles. */
struct clb_cpu_head_scratch {
    float *in, *out;
    uint8_t *record;
};

/* What choosing experts for one row needs, one per thread. */
struct clb_cpu_choice {
    float *score, *best, *group_score; /* [n_expert], [top_k or n_group], [n_group] */
    uint32_t *group;                   /* [n_group] */
    bool *kept;                        /* [n_group] */
};

static inline struct clb_cpu_norm clb_cpu_attn_norm(const struct clb_layer *l)
{
    return (struct clb_cpu_norm){ l->attn_norm, l->attn_norm_bias };
}
static inline struct clb_cpu_norm clb_cpu_mlp_norm(const struct clb_layer *l)
{
    return (struct clb_cpu_norm){ l->mlp_norm, l->mlp_norm_bias };
}

/* Rows that meet a matrix: as f32 for float matrices, as records for quantised ones. */
struct clb_cpu_rows {
    const float *f32;
    size_t ld; /* floats from row to row */
    const uint8_t *record;
    size_t record_bytes;
    const uint32_t *index; /* row i is row index[i]; NULL: row i */
};

/* y = W x + bias; or, with `up`, y = act(W x + bias) * (Up x + bias). */
struct clb_cpu_linear {
    struct clb_matrix w, up; /* up.tiles NULL: a plain product */
    struct clb_cpu_rows x;
    uint32_t n_row;
    float *y; /* [n_row][ldy], ldy >= w.rows; up to padded rows are written where ldy has room */
    size_t ldy;
    /* how it is cut; filled by clb_cpu_list_plan */
    uint32_t tiles, rows, n_row_piece, first, end;
};

/* Pieces of a list that a thread takes one after the other; when none is left, it helps the other
 * threads with theirs. */
struct clb_cpu_range {
    _Alignas(64) atomic_uint next;
    uint32_t end;
};

/* Products that run side by side: pieces are numbered through, and shared out in ranges, so that
 * each thread reads on where it has just been. */
struct clb_cpu_list {
    struct clb_cpu_linear *l;
    uint32_t n, n_piece, n_range;
    uint64_t cost; /* see clb_cpu_run */
    struct clb_cpu_range range[CLB_CPU_RANGES];
};

/* A gated MLP, or many: in[i] makes the inner rows, out[i] reads them (through their records). */
struct clb_cpu_mlp {
    struct clb_cpu_list in, out;
};

/* Where partial results of attention lie: one set of queries over one block. */
struct clb_cpu_partial {
    float *o; /* [queries][ld_value] */
    float *m, *l;
};

/* Shapes: R max rows, S = R * most top_k slots; ld_x is x rounded up. All buffers lie in one block,
 * see lay_out in cpu_acts.c. */
struct clb_acts {
    uint64_t bytes; /* of the block, this struct included */
    struct clb_acts_shape shape;
    uint32_t top_k, n_thread;
    uint32_t n_kv_head, key_dim, value_dim; /* as attention meets them (see clb_kv_shape) */
    size_t ld_hidden, ld_q, ld_k, ld_v, ld_mix, ld_expert, ld_value, ld_query, ld_mixed, ld_q_a;
    size_t hidden_record, mix_record_bytes, q_a_record_bytes;
    uint32_t n_partial; /* queries that `partial` has room for */
    bool huge;          /* huge pages were asked for */

    /* set by begin */
    const struct clb_weights *w;
    const struct clb_arch *a;
    const struct clb_pass *p;
    uint32_t n_group;

    float *x;             /* [R][ld_hidden] residual stream */
    float *norm;          /* [R][ld_hidden] input of a branch */
    uint8_t *record;      /* [R][hidden_record] the same, quantised */
    float *branch;        /* [R][ld_hidden] output of a branch */
    float *cosine, *sine; /* [R][rope_dim / 2] */

    /* MLA: k is the latent and the rotated key, v the same rows */
    float *q, *k, *v;               /* [R][ld_q], [R][ld_k], [R][ld_v] */
    float *query;                   /* [R][ld_query] what meets keys: q, but for MLA */
    float *mixed;                   /* [R][ld_mixed] what values were mixed to: mix, but for MLA */
    float *q_a;                     /* [R][ld_q_a] MLA: the query's latent */
    uint8_t *q_a_record;            /* [R][q_a_record_bytes] */
    struct clb_cpu_head_scratch *head; /* [n_thread] MLA */
    float *mix;                     /* [R][ld_mix] attention's output, heads side by side */
    uint8_t *mix_record;            /* [R][mix_record_bytes] */
    struct clb_cpu_group *group;    /* [R] */
    atomic_uint *left; /* [n_thread * CLB_CPU_FEW_ITEMS] blocks of an item to come */
    struct clb_cpu_partial partial; /* [n_partial] blocks that wait to be folded */
    float *total_m, *total_l;       /* [R * n_head], by item */

    float *score;            /* [R][ld_expert] router logits, then scores */
    float *score_in;         /* [R][ld_expert] routers of two layers: between them */
    struct clb_cpu_choice *choice; /* [n_thread] */
    uint32_t *chosen;        /* [S] */
    float *weight;           /* [S] */
    struct clb_cpu_map *map; /* [n_layer] */
    struct clb_routes routes;
    float *inner; /* inner rows of experts [S], of the shared expert or of a dense MLP [R] */
    uint8_t *inner_record;
    float *slot_out;               /* [S][ld_hidden]; first the scaled inputs, if they are */
    uint8_t *slot_record;          /* [S][hidden_record] scaled inputs, quantised */
    struct clb_cpu_linear *linear; /* [2 * n_expert + 4] */
    float *gated;                  /* [n_thread][2][CLB_CPU_ROWS][16 * CLB_CPU_TILES] */
};

/* Floats from row to row: a whole number of tiles, and no multiple of 4096 bytes, which would put
 * all rows into the same sets of the cache. */
static inline size_t clb_cpu_ld(uint64_t n)
{
    size_t ld = (size_t)((n + 15) / 16 * 16);
    return ld % 1024 ? ld : ld + 16;
}

/* cpu_acts.c */
uint64_t clb_cpu_acts_bytes(const struct clb_backend *be, const struct clb_arch *a,
                            const struct clb_acts_shape *s);
bool clb_cpu_acts_new(struct clb_backend *be, struct clb_acts **out, const struct clb_arch *a,
                      const struct clb_acts_shape *s, struct clb_err *err);
void clb_cpu_acts_free(struct clb_backend *be, struct clb_acts *x);

/* Runs a stage on all threads, or on the caller alone when the stage is too short to share. Cost is
 * counted in bytes of weights read for one row and multiplied, times 5 (see tile_cost). */
void clb_cpu_run(const struct clb_backend *be, uint64_t cost, clb_pool_fn *fn, void *arg);

/* cpu_rows.c: steps on single rows */
/* norm[i] = the norm of `in`, padded with zeros; as a record too when `quantised`. */
void clb_cpu_norm_row(const struct clb_backend *be, struct clb_acts *x, uint32_t i, const float *in,
                      struct clb_cpu_norm w, bool quantised);
/* norm[row] = what a branch reads: the norm of x[row], or x[row] itself where norms come after. */
void clb_cpu_branch_row(const struct clb_backend *be, struct clb_acts *x, uint32_t row,
                        struct clb_cpu_norm w, bool quantised);
/* x[row] += residual_scale * branch; where norms come after, the branch's norm (taken in place). */
void clb_cpu_residual_row(const struct clb_backend *be, const struct clb_acts *x, uint32_t row,
                          float *branch, struct clb_cpu_norm w);
/* Rotates one head of a row, unless the layer has no positions. */
void clb_cpu_rotate(const struct clb_backend *be, const struct clb_acts *x,
                    const struct clb_layer *l, float *head, uint32_t row);
/* Keys and values of rows first..last-1 to the KV cache of their sequences. */
void clb_cpu_append(const struct clb_backend *be, const struct clb_acts *x, uint32_t layer,
                    uint32_t first, uint32_t last);

/* cpu_linear.c */
static inline bool clb_cpu_quantised(const struct clb_matrix *m)
{
    return m->tiles && !clb_dtype_is_float(m->dtype);
}
struct clb_cpu_rows clb_cpu_norm_rows(const struct clb_acts *x);
void clb_cpu_list_plan(const struct clb_backend *be, struct clb_cpu_list *list);
/* Called by every thread; returns when no piece is left to take (others may still compute). */
void clb_cpu_list_run(const struct clb_backend *be, const struct clb_acts *x,
                      struct clb_cpu_list *list, unsigned thread);

/* cpu_mla.c: the stage of projections; and, called by every thread, what each head mixed to values
 * (mixed to mix). */
bool clb_cpu_mla_project(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l);
void clb_cpu_mla_values(const struct clb_backend *be, const struct clb_acts *x,
                        const struct clb_layer *l, atomic_uint *next, unsigned thread);

/* cpu_router.c: one row's logits score[n] (overwritten) to chosen[top_k], best first, and their
 * weights. correction: [n] or NULL. */
void clb_cpu_choose(const struct clb_kernels *k, const struct clb_arch *a, const float *correction,
                    struct clb_cpu_choice *c, float *score, uint32_t n, uint32_t top_k,
                    uint32_t *chosen, float *weight);

/* cpu_mlp.c */
/* Entry i of the list: `part` on n_row rows of `from`; inner rows from row `at` on, results to
 * y[n_row][ld_hidden]. */
void clb_cpu_mlp_set(const struct clb_acts *x, struct clb_cpu_mlp *m, uint32_t i,
                     const struct clb_matrix part[CLB_PARTS], const struct clb_cpu_rows *from,
                     uint32_t n_row, size_t at, float *y);
void clb_cpu_mlp_plan(const struct clb_backend *be, struct clb_cpu_mlp *m);
/* Called by every thread; returns when no piece is left to take (others may still compute). */
void clb_cpu_mlp_run(const struct clb_backend *be, const struct clb_acts *x, struct clb_cpu_mlp *m,
                     unsigned thread, unsigned n_thread);

/* The stages, see lib/backend/backend.h; each in its own file. */
bool clb_cpu_begin(struct clb_backend *be, struct clb_acts *x, const struct clb_weights *w,
                   const struct clb_pass *p, struct clb_err *err);
bool clb_cpu_embed(struct clb_backend *be, struct clb_acts *x, struct clb_err *err);
bool clb_cpu_attn_project(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                          struct clb_err *err);
bool clb_cpu_attn_mix(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                      struct clb_err *err);
bool clb_cpu_attn_output(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                         struct clb_err *err);
bool clb_cpu_moe_gate(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                      struct clb_err *err);
bool clb_cpu_moe_scatter(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                         const struct clb_routes **routes, struct clb_err *err);
bool clb_cpu_moe_experts(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                         const uint8_t *const *block, struct clb_err *err);
bool clb_cpu_moe_gather(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                        struct clb_err *err);
bool clb_cpu_mlp(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                 struct clb_err *err);
bool clb_cpu_logits(struct clb_backend *be, struct clb_acts *x, float *out, struct clb_err *err);

#endif
