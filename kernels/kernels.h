/* kernels.h - leaf kernels: the arithmetic of one CPU core, and its exact definition.
 *
 * The scalar implementation is the definition. Every other level gives the same bits (memcmp
 * in test/kernel), so the contract of each kernel fixes the order of every rounding. Kernels
 * allocate nothing, know nothing of models, and never fail. Unless said otherwise pointers do
 * not overlap and floats are 4-byte aligned; tiles, records and KV blocks are 64-byte aligned.
 * Levels are chosen at run time (kernels/cpu/dispatch.c). */
#ifndef CLB_KERNELS_KERNELS_H
#define CLB_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/format/dtype.h"

/* What a machine can do, best last for each architecture. x86-64: each level implies avx2, avx512
 * does not imply avxvnni. aarch64: neon has the dot product instructions; i8mm implies it. */
enum clb_isa {
    CLB_ISA_SCALAR,
    CLB_ISA_AVX2,
    CLB_ISA_AVXVNNI,
    CLB_ISA_AVX512,
    CLB_ISA_NEON,
    CLB_ISA_I8MM,
    CLB_ISA_COUNT,
};

/* Activations for quantised matrices, one record per token: `cols` padded to 32 signed bytes
 * (-127 to 127), then per group of 32 inputs { f32 scale; i32 -128 * sum of the group }. */
struct clb_group_info {
    float scale;
    int32_t minus128sum;
};
static inline size_t clb_record_bytes(uint32_t cols)
{
    uint32_t padded = (cols + CLB_GROUP - 1) / CLB_GROUP * CLB_GROUP;
    return (padded + padded / CLB_GROUP * sizeof(struct clb_group_info) + 63) & ~(size_t)63;
}

/* y[t][r] = sum over inputs of W[r][c] * x[t][c], for whole tiles.
 *
 * Float matrices: x rows are f32, padded with zeros to clb_cols_padded; one fmaf chain per output,
 * inputs ascending, from +0: acc = fmaf(w, x, acc), w widened exactly.
 * int8:  for ascending groups, d = exact int32 dot of (q - 128) and a;
 *        acc = fmaf((float)d, s_a, acc) from +0; y = acc * row_scale[r].
 * int4:  d = exact int32 dot of book[code] and a; acc = fmaf((float)d, s_w * s_a, acc) from +0;
 *        y = acc.
 * mxfp4: as int4 with s_w = clb_e8m0(scale byte) and magnitudes in the book of at most 12. */
struct clb_matmul {
    const uint8_t *tiles;   /* the first tile */
    size_t tile_bytes;
    uint32_t n_tile;
    uint32_t cols;          /* padded inputs */
    const float *row_scale; /* int8: of the first tile's first row */
    const int8_t *book;     /* 4-bit: 16 values, -127 to 127 */
    const void *const *x;   /* [n_row] f32 rows or records */
    uint32_t n_row;         /* >= 1 */
    float *y;               /* y[t * ldy + r], r from the first tile; 16 * n_tile values a row */
    size_t ldy;
    const uint8_t *next;    /* what the caller reads after this: may be prefetched; NULL: nothing */
    size_t next_bytes;
};
typedef void clb_matmul_fn(const struct clb_matmul *m);

/* Attention of several queries over one KV block of one KV head (lib/backend/kv.h has the layout).
 * For query i over its valid keys first[i] <= j < last[i] (first < last <= 64):
 *   s_j = (fmaf chain over key_dim ascending of q[d] * k[d][j]) * scale
 *         int8: (chain * k_scale[j]) * scale
 *   softcap c > 0: s_j = c * tanh(s_j / c)
 *   m = max s_j (a zero is +0);  p_j = expf(s_j - m), 0 for keys that are not valid
 *   l = sum of p: lane[i] = ((p[i] + p[16+i]) + p[32+i]) + p[48+i], then the tree below
 *   o[d] = fmaf chain over valid keys ascending of p_j * v[j][d] from +0
 *          int8: (p_j * v_scale[j]) * v[j][d]
 * k and v widened exactly. With `fold`, m, l and o hold those of the blocks before (m = -inf before
 * the first) and this block is folded into them as attn_fold does. */
enum { CLB_ATTN_QUERIES = 32 };
struct clb_attn_tile {
    uint32_t n_query, key_dim, value_dim; /* 1 to CLB_ATTN_QUERIES; >= 1 */
    const float *const *q;       /* [n_query][key_dim] */
    const void *k, *v;           /* [key_dim][64], [64][value_dim] */
    const float *k_scale, *v_scale; /* [64], int8 only */
    const uint8_t *first, *last; /* [n_query] */
    float scale, softcap;
    float *const *o;             /* [n_query][value_dim] out */
    float *m, *l;                /* [n_query] out */
    bool fold;
    const uint8_t *next; /* what the caller reads after this: may be prefetched; NULL: nothing */
    size_t next_bytes;
};
typedef void clb_attn_tile_fn(const struct clb_attn_tile *a);

enum { CLB_KV_KINDS = 3 }; /* f32, f16, int8: index = enum clb_kv_dtype */

/* Sums over a vector use 16 lanes: lane i takes elements i, i+16, i+32, ... in ascending order
 * (fmaf where a product is summed; missing elements are not touched), then one tree: s[i] +=
 * s[i+8]; s[i] += s[i+4]; s[i] += s[i+2]; s[i] += s[i+1]. */
struct clb_kernels {
    const char *name;
    enum clb_isa isa;
    clb_matmul_fn *matmul[CLB_DTYPE_COUNT];

    /* One activation row to a record. Per group: amax = max |x|; scale = amax / 127; inverse =
     * 127 / amax; a = (int)rint(x * inverse) clamped to +-127 (round half to even). amax 0 or
     * inverse not finite: scale 0 and zeros. A NaN or infinity among x: scale NaN and zeros,
     * so that it shows in every output. cols need not be a multiple of 32. */
    void (*quantise)(void *record, const float *x, uint32_t cols);
    /* y[i] = (x[i] * r) * w[i], r = 1 / sqrt(sum(x*x) / n + eps); w NULL: without. y may be x.
     * n >= 1. */
    void (*rms_norm)(float *y, const float *x, const float *w, uint32_t n, float eps);
    /* y[i] = fmaf((x[i] - mean) * r, w[i], b[i]), mean = sum(x) / n,
     * r = 1 / sqrt(sum((x-mean)^2) / n + eps); b NULL: a product. y may be x. n >= 1. */
    void (*layer_norm)(float *y, const float *x, const float *w, const float *b, uint32_t n,
                       float eps);
    /* y[i] = act(gate[i]) * up[i]; act by enum clb_act of lib/format/arch.h. y may be gate.
     * Clamped SwiGLU: g = min(gate, limit), u = up clamped to +-limit,
     * y = (u + 1) * (g * sigmoid(alpha * g)). */
    void (*glu)(uint32_t act, float *y, const float *gate, const float *up, uint32_t n, float limit,
                float alpha);
    /* x[i] = exp(x[i] - max) / sum, in place; n >= 1; max ignores NaN */
    void (*softmax)(float *x, uint32_t n);
    void (*add)(float *y, const float *x, uint32_t n);                  /* y[i] += x[i] */
    void (*scale_add)(float *y, const float *x, float s, uint32_t n);   /* y = fmaf(s, x, y) */
    void (*scale)(float *y, float s, uint32_t n);                       /* y[i] *= s */
    void (*clip)(float *y, float limit, uint32_t n);                    /* to +-limit; NaN stays */
    /* Rotates the first `dim` of x. half: pairs (i, i + dim/2); interleaved: (2i, 2i+1).
     * a' = fmaf(-b, sin, a * cos); b' = fmaf(a, sin, b * cos), cos and sin [dim / 2]. */
    void (*rope_half)(float *x, const float *cosine, const float *sine, uint32_t dim);
    void (*rope_interleaved)(float *x, const float *cosine, const float *sine, uint32_t dim);
    clb_attn_tile_fn *attn_tile[CLB_KV_KINDS];
    /* Folds a block's (m_b, l_b, o_b) into (m, l, o): M = max(m, m_b); a = expf(m - M);
     * b = expf(m_b - M); l = fmaf(l, a, l_b * b); o = fmaf(o, a, o_b * b). Starts from m = -inf,
     * l = 0, o = 0 (a is then 0 by definition). */
    void (*attn_fold)(float *m, float *l, float *o, float m_b, float l_b, const float *o_b,
                      uint32_t n);
    /* Row-major embedding row to f32. */
    void (*widen)(float *y, const void *row, enum clb_dtype t, uint32_t n);
    /* y[i] = x[i] as a half, at most the largest one; NaN stays NaN (clb_f32_to_f16_within). */
    void (*narrow)(uint16_t *y, const float *x, uint32_t n);
};

/* "scalar", "avx2", "avxvnni", "avx512", "neon", "i8mm" */
const char *clb_isa_name(enum clb_isa isa);
bool clb_isa_parse(const char *name, enum clb_isa *out);
/* Whether this machine and its operating system support it; if not, *why (static text) says what
 * lacks. */
bool clb_isa_available(enum clb_isa isa, const char **why);
enum clb_isa clb_isa_best(void);
/* By name; NULL: the best. Refused with the reason when there is no such level, or not here. */
bool clb_isa_choose(const char *name, enum clb_isa *out, struct clb_err *err);
/* Fills every slot for exactly `isa`. A pure function: tests hold several levels side by side. */
void clb_kernels_for(struct clb_kernels *k, enum clb_isa isa);

/* One per folder. A fill function overwrites only the slots it improves. It runs on machines
 * that lack the level, so it is compiled without the folder's instructions. */
#if defined(__x86_64__)
#define PLAIN_CODE __attribute__((target("no-sse3")))
#elif defined(__aarch64__) && !defined(__clang__)
#define PLAIN_CODE __attribute__((target("arch=armv8-a")))
#else
#define PLAIN_CODE
#endif
void clb_kernels_fill_scalar(struct clb_kernels *k);
void clb_kernels_fill_avx2(struct clb_kernels *k);
void clb_kernels_fill_avxvnni(struct clb_kernels *k);
void clb_kernels_fill_avx512(struct clb_kernels *k);
void clb_kernels_fill_neon(struct clb_kernels *k);
void clb_kernels_fill_i8mm(struct clb_kernels *k);

#endif
