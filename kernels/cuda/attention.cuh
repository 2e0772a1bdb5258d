/* attention.cuh - what kernels of attention share: which queries a tile has and what they see, and
 * how the sums of splits become an output. */
#ifndef CLB_KERNELS_CUDA_ATTENTION_CUH
#define CLB_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/warp.cuh"

enum { QUERIES = CLB_CUDA_QUERIES, PAGE = 64, SPLIT_PAGES = CLB_CUDA_SPLIT / PAGE };

/* Beyond the range of a half: the largest half, not infinity; NaN stays NaN. */
static __device__ __forceinline__ uint16_t f32_to_f16_within(float f)
{
    return f32_to_f16(f > 65504 ? 65504 : f < -65504 ? -65504 : f);
}

/* -- queries ----------------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t row_of(const struct clb_cuda_attention &a,
                                                  const struct clb_cuda_queries &t, uint32_t i)
{
    return t.first_row + (t.first + i) / (a.n_head / a.kv.n_head);
}
static __device__ __forceinline__ uint32_t head_of(const struct clb_cuda_attention &a,
                                                   const struct clb_cuda_queries &t, uint32_t i)
{
    uint32_t group = a.n_head / a.kv.n_head;

    return blockIdx.y * group + (t.first + i) % group;
}
static __device__ __forceinline__ const float *query_of(const struct clb_cuda_attention &a,
                                                        const struct clb_cuda_queries &t,
                                                        uint32_t i)
{
    return a.q + row_of(a, t, i) * a.ld_q + head_of(a, t, i) * a.kv.key_dim;
}

/* Keys first .. end - 1. */
struct seen {
    uint32_t first, end;
};
static __device__ __forceinline__ struct seen seen_by(const struct clb_cuda_attention &a,
                                                      const struct clb_cuda_queries &t, uint32_t i)
{
    const uint32_t position = a.position[row_of(a, t, i)];
    const uint32_t window = a.window && position >= a.window ? position - a.window + 1 : 0;
    const uint32_t chunk = a.chunk ? position / a.chunk * a.chunk : 0;

    return { window > chunk ? window : chunk, position + 1 };
}

static __device__ __forceinline__ const uint8_t *page_of(const struct clb_cuda_attention &a,
                                                         const struct clb_cuda_queries &t,
                                                         uint32_t page)
{
    return a.kv.pages + a.kv.table[t.sequence * a.kv.ld_table + page] * a.kv.page_bytes +
           blockIdx.y * a.kv.head_bytes;
}

/* A product as the model wants it: -inf where the query does not see the key. */
static __device__ __forceinline__ float score_of(const struct clb_cuda_attention &a, float product,
                                                 bool is_seen)
{
    float v = product * a.scale;

    if (a.softcap > 0)
        v = a.softcap * tanhf(v / a.softcap);
    return is_seen ? v : -INFINITY;
}

/* What sums with maximum m are worth when the maximum has become `most`. */
static __device__ __forceinline__ float decay_to(float most, float m)
{
    return m == -INFINITY ? 0 : expf(m - most);
}

/* -- folds ------------------------------------------------------------------------------------- */

/* Sums with maximum m_b join sums with maximum m: both are scaled to the new maximum. */
static __device__ __forceinline__ void fold(float *m, float *l, float m_b, float l_b, float *keep,
                                            float *add)
{
    float most = fmaxf(*m, m_b);

    *keep = decay_to(most, *m);
    *add = expf(m_b - most);
    *l = fmaf(*l, *keep, l_b * *add);
    *m = most;
}

/* One output of a head: value `column` of query i of the tile. */
static __device__ __forceinline__ void finish(const struct clb_cuda_attention &a,
                                              const struct clb_cuda_queries &t, uint32_t i,
                                              uint32_t column, float m, float l, float o)
{
    const uint32_t head = head_of(a, t, i);
    const size_t at = row_of(a, t, i) * a.ld_out + head * a.ld_head + column;

    if (a.sink) {
        float most = fmaxf(m, a.sink[head]), keep = expf(m - most);
        l = fmaf(l, keep, expf(a.sink[head] - most));
        o *= keep;
    }
    o /= l;
    if (a.wide)
        a.wide[at] = o;
    else
        a.out[at] = a.bf16 ? f32_to_bf16(o) : f32_to_f16(o);
}

/* What a split found for the queries of a tile: per query its o, then m and l. */
static __device__ __forceinline__ float *partial_of(const struct clb_cuda_attention &a,
                                                    uint32_t tile, uint32_t split)
{
    uint32_t splits = clb_cuda_splits(a.last_position);

    return a.partial +
           ((size_t)(tile * a.kv.n_head + blockIdx.y) * splits + split) * QUERIES *
               (a.kv.value_dim + 2);
}

/* -- other kernels ----------------------------------------------------------------------------- */

/* All splits of f32 pages, without the fold of `split_first`. */
void clb_cuda_run_attention_wide(const struct clb_cuda_attention *a, struct CUstream_st *stream);

#endif
