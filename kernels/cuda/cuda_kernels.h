/* cuda_kernels.h - kernels of the CUDA backend as the host launches them: one struct of arguments
 * and one function per stage. Every pointer in them is device memory, unless it says otherwise.
 * A launch that cannot be is reported by cudaGetLastError, as always.
 *
 * Arithmetic. Weights are widened to 16 bits and multiplied on tensor cores with f32 sums:
 *   int8, int4, fp16   f16: int8 exactly; int4 as f16(book value * group scale), one rounding
 *   bf16, mxfp4        bf16, exactly
 * Activations are rounded to the same type, sums are f32. Inputs are cut into pieces of 512; the
 * sum of a piece is one ascending chain of steps of 16 inputs from zero; pieces are added in
 * ascending order. That depends on the number of inputs alone, so the bits of a row do not depend
 * on how many rows share its pass or its expert. Everything else is f32. */
#ifndef CLB_KERNELS_CUDA_CUDA_KERNELS_H
#define CLB_KERNELS_CUDA_CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "lib/backend/kv_dtype.h"
#include "lib/base/candidate.h"
#include "lib/format/arch.h"
#include "lib/format/dtype.h"

struct CUstream_st; /* cudaStream_t points to it */

#ifdef __CUDACC__
#define CLB_CUDA_BOTH static inline __host__ __device__
#else
#define CLB_CUDA_BOTH static inline
#endif

/* Rows of 16-bit activations are padded to a multiple of this many values, with zeros. */
enum { CLB_CUDA_PAD = 64 };
static inline size_t clb_cuda_ld(size_t n)
{
    return (n + CLB_CUDA_PAD - 1) / CLB_CUDA_PAD * CLB_CUDA_PAD;
}

/* -- rows in chunks ---------------------------------------------------------------------------- */

/* Rows that share a matrix are cut into chunks, each multiplied by the kernel of its class: up to 8
 * rows by the one that is bound by memory, up to 32 or 64 by those that are bound by arithmetic. */
enum { CLB_CUDA_CLASSES = 3 };
struct clb_cuda_chunk {
    uint32_t expert, first, n; /* slots first .. first + n - 1 */
};
struct clb_cuda_chunks {
    struct clb_cuda_chunk *list[CLB_CUDA_CLASSES]; /* [clb_cuda_chunks_most()] each */
    uint32_t *n;                                   /* [CLB_CUDA_CLASSES] */
};
/* Room for one list. */
static inline size_t clb_cuda_chunks_most(uint32_t n_expert, size_t n_slot)
{
    return n_expert + n_slot / 64;
}

/* -- rows of the residual stream --------------------------------------------------------------- */

struct clb_cuda_norm {
    bool on;
    enum clb_norm_kind kind;
    const float *weight, *bias; /* [width] or NULL */
    float eps;
};
/* What a branch reads: the norm of a row, or the row; in f32, in 16 bits, or both. */
struct clb_cuda_branch {
    struct clb_cuda_norm norm;
    float *wide; /* [n_row][ld_wide] or NULL */
    size_t ld_wide;
    uint16_t *half; /* [n_row][ld_half] or NULL: zeros from the width on */
    size_t ld_half; /* clb_cuda_ld(width), always */
    bool bf16;
    const uint32_t *row; /* [n_row] row i is the norm of x[row[i]]; NULL: of x[i] */
};
/* x: [][ld], n values each. */
void clb_cuda_run_branch(const struct clb_cuda_branch *b, const float *x, size_t ld, uint32_t n,
                         uint32_t n_row, struct CUstream_st *stream);

/* -- embedding, heads -------------------------------------------------------------------------- */

/* The start of a pass: rows of the embedding, and the angles of their positions for all layers. */
struct clb_cuda_embed {
    uint32_t n_row, n;
    enum clb_dtype dtype; /* f32, fp16 or bf16 */
    const void *embed;    /* [vocab][n] */
    const int32_t *token; /* [n_row] */
    float scale;          /* 0: 1 */
    float *x;             /* [n_row][ld] */
    size_t ld;
    uint32_t rope_dim;                   /* 0: no angles */
    const uint32_t *position, *sequence; /* [n_row] */
    const float *const *inv_freq;        /* [n_seq] [rope_dim / 2] */
    const float *rope_scale;             /* [n_seq] 0: 1 */
    float *cosine, *sine;                /* [n_row][rope_dim / 2] */
};
void clb_cuda_run_embed(const struct clb_cuda_embed *e, struct CUstream_st *stream);

/* What happens to queries or keys between their projection and attention, in place, in this order:
 * norm, clip, rope, norm after rope, temperature. For MLA a head is its latent with the shared key
 * behind: norm_dim and rope_at keep them apart. */
struct clb_cuda_heads {
    uint32_t n_row, n_head, dim;
    float *y; /* [n_row][ld] heads side by side */
    size_t ld;
    enum clb_qk_norm norm;
    uint32_t norm_dim;   /* leading values of a head that a norm of heads covers */
    const float *weight; /* [norm_dim], or full: [n_head * dim]; NULL: without */
    float eps, clip;     /* clip 0: none */
    enum clb_rope_kind rope;
    uint32_t rope_at, rope_dim;
    const float *cosine, *sine; /* [n_row][rope_dim / 2] */
    float temperature, floor;   /* temperature 0: none */
    const uint32_t *position;   /* [n_row] for the temperature */
};
void clb_cuda_run_heads(const struct clb_cuda_heads *h, struct CUstream_st *stream);

/* n values of every head of every row elsewhere, as f32 or in 16 bits: value i of head h of row r
 * goes from from[r * from_row + h * from_head + i] to the same in `to`. */
struct clb_cuda_slice {
    uint32_t n_row, n_head, n;
    const float *from;
    size_t from_row, from_head;
    float *wide;    /* or NULL */
    uint16_t *half; /* or NULL */
    size_t to_row, to_head;
    bool bf16;
};
void clb_cuda_run_slice(const struct clb_cuda_slice *s, struct CUstream_st *stream);

/* -- attention --------------------------------------------------------------------------------- */

/* Keys and values of one layer. A page holds 64 positions; per KV head its keys, then its values:
 *
 *   f16   keys [64][key_dim padded to 16], values [value_dim padded to 8][64]: what a lane takes
 *         for mma lies side by side, four dimensions of a key, four positions of a value
 *   int8  the same with 8 numbers in the place of 4 (key_dim padded to 32), and f32 scales [64]
 *         behind keys and behind values, one for each position. Codes and scales are those that
 *         the CPU stores: scale = max / 127, code = x * (127 / max) to the nearest, half to even
 *   f32   keys [key_dim padded to 4][64], values [64][value_dim]: lanes are keys, then dimensions
 *
 * Every part begins at a multiple of 256 bytes. Pads are zero, and what was not written yet is
 * finite: memory that was set to zero. Values always are, since a query multiplies those that it
 * does not see by 0, in its own pages and in pages that others have left: a value with NaN (f32:
 * or infinity), or whose scale is infinite, is stored as zeros, and its key's first number, for
 * codes its key's scale, as NaN. So what sees it becomes NaN, and nothing else does. */
struct clb_cuda_kv {
    enum clb_kv_dtype dtype;
    uint8_t *pages; /* of this layer in page 0 */
    uint64_t page_bytes, head_bytes;
    uint32_t n_head, key_dim, value_dim;
    const uint32_t *table; /* [n_seq][ld_table] page of positions 64 i .. 64 i + 63 */
    size_t ld_table;
};
/* Padded sizes of a key and a value. */
CLB_CUDA_BOTH uint32_t clb_cuda_kv_keys(enum clb_kv_dtype t, uint32_t key_dim)
{
    uint32_t pad = t == CLB_KV_F32 ? 4 : t == CLB_KV_F16 ? 16 : 32;

    return (key_dim + pad - 1) / pad * pad;
}
CLB_CUDA_BOTH uint32_t clb_cuda_kv_values(enum clb_kv_dtype t, uint32_t value_dim)
{
    return t == CLB_KV_F32 ? value_dim : (value_dim + 7) / 8 * 8;
}
/* Bytes of 64 keys or values of n numbers, and with their scales. */
CLB_CUDA_BOTH uint32_t clb_cuda_kv_numbers_bytes(enum clb_kv_dtype t, uint32_t n)
{
    return 64 * n * (t == CLB_KV_F32 ? 4 : t == CLB_KV_F16 ? 2 : 1);
}
CLB_CUDA_BOTH uint32_t clb_cuda_kv_part_bytes(enum clb_kv_dtype t, uint32_t n)
{
    return clb_cuda_kv_numbers_bytes(t, n) + (t == CLB_KV_INT8 ? 64 * 4 : 0);
}
/* Where values begin behind the keys of a head. */
CLB_CUDA_BOTH uint32_t clb_cuda_kv_values_at(enum clb_kv_dtype t, uint32_t key_dim)
{
    return clb_cuda_kv_part_bytes(t, clb_cuda_kv_keys(t, key_dim));
}
static inline uint32_t clb_cuda_kv_head_bytes(enum clb_kv_dtype t, uint32_t key_dim,
                                              uint32_t value_dim)
{
    return clb_cuda_kv_values_at(t, key_dim) +
           clb_cuda_kv_part_bytes(t, clb_cuda_kv_values(t, value_dim));
}

/* Keys and values of n_row rows, f32, heads side by side, into their pages. */
struct clb_cuda_append {
    struct clb_cuda_kv kv;
    uint32_t n_row;
    const float *key, *value; /* [n_row][ld_key], [n_row][ld_value] */
    size_t ld_key, ld_value;
    const uint32_t *position, *sequence; /* [n_row] */
};
void clb_cuda_run_append(const struct clb_cuda_append *a, struct CUstream_st *stream);

/* 16 queries that share a KV head, at most: heads of its group and rows of one sequence. Query i is
 * row first_row + (first + i) / group, head kv_head * group + (first + i) % group. */
struct clb_cuda_queries {
    uint32_t sequence, first_row, first, n;
};
/* Splits of 512 positions, from position 0, each with a running maximum over blocks of 64 keys, are
 * folded in ascending order. Inside a split:
 *
 *   f16   queries rounded to f16; f16 products with f32 sums; p = exp(s - max) rounded to f16 for
 *         its product with values
 *   int8  the same with codes in the place of keys and values; a score is multiplied by its key's
 *         scale, p by its value's over the largest that the query has seen, which f16 holds well
 *         whatever the scales are; sums are taken to a new largest as they are to a new maximum
 *   f32   one chain of fused multiply-add in ascending order for each score, and for each output
 *
 * `split_first`: every split on its own block, then a fold, for few queries on long contexts; else
 * one block takes all splits in turn. The bits are the same, and those of a query depend on its
 * position and on nothing that is beside it. */
enum { CLB_CUDA_SPLIT = 512, CLB_CUDA_QUERIES = 16 };
struct clb_cuda_attention {
    struct clb_cuda_kv kv;
    const struct clb_cuda_queries *tile; /* [n_tile] */
    uint32_t n_tile, n_head;
    const float *q; /* [n_row][ld_q], heads side by side, key_dim each */
    size_t ld_q;
    const uint32_t *position; /* [n_row] the row's own key is in its page */
    uint32_t last_position;   /* the largest of them */
    uint32_t window, chunk;   /* 0: none */
    float scale, softcap;     /* softcap 0: none */
    const float *sink;        /* [n_head] or NULL */
    /* value_dim values of head h of row r, and no others, go to r * ld_out + h * ld_head: in 16
     * bits, or to `wide` as f32, where that is not NULL */
    uint16_t *out;
    float *wide;
    size_t ld_out, ld_head;
    bool bf16;
    bool split_first;
    float *partial; /* clb_cuda_partial_floats(); only for split_first */
};
CLB_CUDA_BOTH uint32_t clb_cuda_splits(uint32_t last_position)
{
    return last_position / CLB_CUDA_SPLIT + 1;
}
static inline uint64_t clb_cuda_partial_floats(uint32_t n_tile, uint32_t n_kv_head,
                                               uint32_t last_position, uint32_t value_dim)
{
    return (uint64_t)n_tile * n_kv_head * clb_cuda_splits(last_position) * CLB_CUDA_QUERIES *
           (value_dim + 2);
}
/* value_dim at most 512, key_dim at most 1024. */
void clb_cuda_run_attention(const struct clb_cuda_attention *a, struct CUstream_st *stream);

/* Keys and values of one sequence out of their pages, for a library: positions side by side, head
 * by head. Whole pages are copied. */
struct clb_cuda_unpage {
    struct clb_cuda_kv kv; /* f16; key_dim and value_dim: multiples of 8 */
    uint32_t sequence, n_page;
    uint32_t n_key;        /* room of a head, at least 64 n_page */
    uint16_t *key, *value; /* [n_head][n_key][key_dim], [n_head][n_key][value_dim] */
};
void clb_cuda_run_unpage(const struct clb_cuda_unpage *u, struct CUstream_st *stream);

/* n f16 values of a row as f32, f16 or bf16: what a library made becomes an input of products. */
struct clb_cuda_convert {
    uint32_t n_row, n;
    const uint16_t *from; /* [n_row][n] */
    float *wide;          /* [n_row][ld], or NULL: to half */
    uint16_t *half;
    size_t ld;
    bool bf16;
};
void clb_cuda_run_convert(const struct clb_cuda_convert *c, struct CUstream_st *stream);

/* -- Gate -------------------------------------------------------------------------------------- */

/* y[row][r] = W x + bias in f32, W f32 tiles: 8 warps, each an interleaved part of the inputs, then
 * a fixed tree. */
struct clb_cuda_product_f32 {
    const uint8_t *tiles;
    const float *bias; /* [rows] or NULL */
    uint32_t rows, cols, n_row;
    const float *x;
    size_t ldx;
    float *y;
    size_t ldy;
    bool tanh; /* y = tanh(...): between the layers of a router of two */
};
void clb_cuda_run_product_f32(const struct clb_cuda_product_f32 *p, struct CUstream_st *stream);

/* The router's logits of all experts (product.y, overwritten by their scores), and from them the
 * top_k experts of each row, best first, ties to the lowest id, and what weighs them. */
struct clb_cuda_gate {
    struct clb_cuda_product_f32 product;
    const float *correction; /* [n_expert] added for the choice only; or NULL */
    float *choice;           /* like product.y: scratch, for correction and groups; else NULL */
    uint32_t *arrived;       /* [(n_row + 7) / 8] zero before the first launch, and after each */
    uint32_t *expert;        /* [n_row][top_k] */
    float *weight;           /* [n_row][top_k] */
    uint32_t top_k, n_group, top_groups;
    enum clb_router_kind router;
    enum clb_group_score group_score;
    bool normalise;
    float normalise_min, clip, scale, jitter; /* 0: none */
};
void clb_cuda_moe_gate(const struct clb_cuda_gate *g, struct CUstream_st *stream);

/* -- Scatter ----------------------------------------------------------------------------------- */

/* Slots: one per (row, rank), those of an expert side by side, ascending rows. When the layer's
 * routing is what it was the last time, its map is kept (reused 1). */
struct clb_cuda_scatter {
    uint32_t n_row, top_k, n_expert;
    const uint32_t *expert; /* [n_row * top_k] */
    uint32_t *kept;         /* [2 + most slots] the routing of this map: n_row, top_k, experts */
    uint32_t *first;        /* [n_expert + 1] slots of expert e are first[e] .. first[e+1]-1 */
    uint32_t *row;          /* [n_row * top_k] slot -> row */
    uint32_t *slot;         /* [n_row * top_k] row * top_k + rank -> slot */
    struct clb_cuda_chunks chunks;
    uint32_t *reused; /* one */
};
void clb_cuda_moe_scatter(const struct clb_cuda_scatter *s, struct CUstream_st *stream);

/* Rows row[i] of `from` side by side at `to`: what another device needs. */
struct clb_cuda_pack {
    const void *from;
    const uint32_t *row; /* [n_row] */
    uint32_t n_row;
    uint64_t row_bytes; /* a multiple of 16 */
    void *to;
};
void clb_cuda_run_pack(const struct clb_cuda_pack *p, struct CUstream_st *stream);

/* -- ExpertCompute and every other product ----------------------------------------------------- */

/* Where a matrix lies, from the start of its expert's block. Differences of any two pointers serve:
 * sums wrap. */
struct clb_cuda_part {
    uint64_t tiles_at;
    uint64_t scale_at; /* int8: f32[rows padded to 16] */
    uint64_t bias_at;  /* f32[rows]; CLB_CUDA_NONE: no bias */
};
#define CLB_CUDA_NONE UINT64_MAX

/* Chunks of rows with the matrix of their expert: y = W x + bias in f32; or, gated,
 * y = act(gate x + bias) * (up x + bias) in the 16 bits of the next product. Row i of a chunk is
 * slot first + i: its input is row index[slot] of x, its output row `slot` of y. */
struct clb_cuda_product {
    enum clb_dtype dtype; /* f32: rows of x, and gated those of y, are f32 as well */
    bool gated;
    const uint8_t *const *block; /* [n_expert] NULL entries: not in this call; or NULL: base */
    const uint8_t *base;         /* without chunks: n_row rows of one matrix */
    struct clb_cuda_part part[2];
    uint32_t rows, cols;
    uint32_t book[4]; /* int4: the 16 values + 128, bytes in order */
    const void *x;    /* 16 bits [][ldx], ldx a multiple of CLB_CUDA_PAD, zeros from cols on */
    size_t ldx;
    const uint32_t *index;                /* or NULL: x has a row per slot */
    const struct clb_cuda_chunks *chunks; /* host memory; or NULL */
    uint32_t n_row;                       /* rows; with chunks: the most that an expert can have */
    void *y;                              /* [][ldy] f32, or gated 16 bits; only `rows` values */
    size_t ldy;
    enum clb_act act;
    float limit, alpha; /* clamped SwiGLU */
    uint32_t n_cta;     /* resident blocks of the device: multiprocessors times 4 */
};
/* Once per device, before the first product. Returns a cudaError_t. */
int clb_cuda_product_setup(void);
void clb_cuda_run_product(const struct clb_cuda_product *p, struct CUstream_st *stream);
/* The same for f32. */
void clb_cuda_run_product_wide(const struct clb_cuda_product *p, struct CUstream_st *stream);

/* What an expert reads where its weight scales the input: slot of a row and rank = x[row] times the
 * weight of both, as f32 or in 16 bits. */
struct clb_cuda_scale_rows {
    uint32_t n_row, top_k, n;
    const float *x, *weight; /* [n_row][ld], [n_row * top_k] */
    const uint32_t *slot;    /* [n_row * top_k] */
    float *wide;             /* [n_row * top_k][ld] or NULL */
    uint16_t *half;          /* likewise */
    size_t ld;
    bool bf16;
};
void clb_cuda_run_scale_rows(const struct clb_cuda_scale_rows *s, struct CUstream_st *stream);

/* What a gated product does at its end, of both products in f32: y = act(gate) * up in 16 bits. */
struct clb_cuda_activate {
    uint32_t n_row, n;
    const float *gate, *up; /* [n_row][ld] */
    size_t ld;
    uint16_t *y; /* [n_row][ldy]; only n values of a row */
    size_t ldy;
    bool bf16;
    struct clb_cuda_product of; /* its act, limit, alpha */
};
void clb_cuda_run_activate(const struct clb_cuda_activate *a, struct CUstream_st *stream);

/* y = cap * tanh(scale * y / cap), [n_row][n] side by side; scale 0: 1, cap 0: no cap. */
void clb_cuda_run_cap(float *y, uint32_t n_row, uint32_t n, float scale, float cap,
                      struct CUstream_st *stream);

/* -- candidates -------------------------------------------------------------------------------- */

/* The largest logits of rows: of equal ones those of the lowest ids, -0 equals 0, NaN comes last.
 * A first kernel keeps those of every slice of a row, a second one those of all slices. */
enum { CLB_CUDA_SLICE = 4096, CLB_CUDA_CANDIDATES = 128, CLB_CUDA_KEPT = 8192 };
struct clb_cuda_want {
    uint32_t n, at; /* of a row, at most clb_cuda_most_candidates(); of all rows before it */
};
struct clb_cuda_choose {
    uint32_t n_row, n;                /* rows of n logits */
    const float *logits;              /* [n_row][n] */
    const struct clb_cuda_want *want; /* [n_row] at most n each */
    uint64_t *kept;                   /* [sum of want.n][clb_cuda_slices(n)] */
    struct clb_candidate *out;        /* [sum of want.n] ascending ids in a row */
};
static inline uint32_t clb_cuda_slices(uint32_t n)
{
    return n / CLB_CUDA_SLICE + (n % CLB_CUDA_SLICE != 0);
}
/* As many as one block can choose from what slices kept. */
static inline uint32_t clb_cuda_most_candidates(uint32_t n)
{
    uint32_t most = CLB_CUDA_CANDIDATES, fit = n ? CLB_CUDA_KEPT / clb_cuda_slices(n) : 0;

    return fit < most ? fit : most;
}
void clb_cuda_run_choose(const struct clb_cuda_choose *c, struct CUstream_st *stream);

/* -- Gather ------------------------------------------------------------------------------------ */

/* x += residual_scale * norm(sum over ranks of weight * expert_out[slot] + gate * shared), then the
 * input of the next branch. Without experts (top_k 0): any branch's output into the stream. */
struct clb_cuda_gather {
    uint32_t n_row, n, top_k;
    size_t ld;                /* of all f32 rows here */
    float *expert_out;        /* [n_row * top_k][ld] overwritten */
    const uint32_t *slot;     /* [n_row * top_k] */
    const float *weight;      /* [n_row * top_k]; NULL: 1 each */
    float *shared;            /* [n_row][ld] or NULL; overwritten */
    const float *shared_gate; /* [n_row] before its sigmoid; NULL: 1 */
    float *x;                 /* [n_row][ld] */
    float residual_scale;     /* 0: 1 */
    struct clb_cuda_norm after;
    struct clb_cuda_branch next;
};
void clb_cuda_moe_gather(const struct clb_cuda_gather *g, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
