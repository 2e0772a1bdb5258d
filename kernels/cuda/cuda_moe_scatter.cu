// cuda_moe_scatter.cu - Scatter: a counting sort of (row, rank) pairs by expert, without atomics:
// each warp counts and places its own part of the list, 32 pairs at a time. Rows are not moved,
// experts read them through the map. One block: the list is short, and a second launch costs more.
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/warp.cuh"

enum { WARPS = 16, THREADS = 32 * WARPS, COUNTERS = 10240 };

// Warps that count: as many as their counters have room in shared memory.
static __host__ __device__ __forceinline__ uint32_t counting_warps(uint32_t n_expert)
{
    return n_expert * WARPS <= COUNTERS ? (uint32_t)WARPS : COUNTERS / n_expert;
}

// Whether the routing is what the map was made from.
static __device__ __forceinline__ bool same_routing(const struct clb_cuda_scatter &s,
                                                    uint32_t *differ)
{
    const uint32_t n_slot = s.n_row * s.top_k;
    bool other = s.kept[0] != s.n_row || s.kept[1] != s.top_k;
    uint32_t any = 0;

    for (uint32_t i = threadIdx.x; !other && i < n_slot; i += THREADS)
        other = s.kept[2 + i] != s.expert[i];
    other = __any_sync(ALL_LANES, other);
    if (threadIdx.x % 32 == 0)
        differ[threadIdx.x / 32] = other;
    __syncthreads();
    for (uint32_t w = 0; w < WARPS; w++)
        any |= differ[w];
    return !any;
}

static __device__ __forceinline__ void keep_routing(const struct clb_cuda_scatter &s)
{
    for (uint32_t i = threadIdx.x; i < s.n_row * s.top_k; i += THREADS)
        s.kept[2 + i] = s.expert[i];
    if (!threadIdx.x) {
        s.kept[0] = s.n_row;
        s.kept[1] = s.top_k;
    }
}

// Walks the warp's part of the list. count [n_expert] goes up by the pairs of each expert; with
// PLACE, which starts from where the warp's first pair of each goes, the map is written.
template <bool PLACE>
static __device__ __forceinline__ void walk(const struct clb_cuda_scatter &s, uint32_t *count)
{
    const uint32_t warps = counting_warps(s.n_expert), warp = threadIdx.x / 32;
    const uint32_t lane = threadIdx.x & 31, n_slot = s.n_row * s.top_k;
    const uint32_t share = (n_slot + warps - 1) / warps;
    const uint32_t end = (warp + 1) * share < n_slot ? (warp + 1) * share : n_slot;

    for (uint32_t base = warp * share; base < end; base += 32) {
        const uint32_t i = base + lane;
        const unsigned there = __ballot_sync(ALL_LANES, i < end);
        unsigned same = 0;
        uint32_t id = 0;

        if (i < end) {
            id = s.expert[i];
            same = __match_any_sync(there, id);
        }
        if (PLACE && i < end) {
            uint32_t slot = count[id] + (uint32_t)__popc(same & ((1u << lane) - 1));
            s.slot[i] = slot;
            s.row[slot] = i / s.top_k;
        }
        __syncwarp();
        if (same && lane == (uint32_t)__ffs((int)same) - 1)
            count[id] += (uint32_t)__popc(same);
        __syncwarp();
    }
}

// One warp: from counts in first[1 ..] to where each expert's slots begin, and to the chunks.
static __device__ __forceinline__ void lay_out(const struct clb_cuda_scatter &s)
{
    const uint32_t lane = threadIdx.x & 31;
    uint32_t done = 0, n_list[CLB_CUDA_CLASSES] = {};

    for (uint32_t base = 0; base < s.n_expert; base += 32) {
        const uint32_t e = base + lane, n = e < s.n_expert ? s.first[e + 1] : 0;
        const uint32_t upto = done + warp_scan(n);

        UNROLL
        for (int k = 0; k < CLB_CUDA_CLASSES; k++) {
            uint32_t chunks = chunks_of(n, k), at = n_list[k] + warp_scan(chunks) - chunks;
            for (uint32_t i = 0; i < chunks; i++) {
                struct clb_cuda_chunk c = chunk_of(n, k, i);
                c.expert = e;
                c.first += upto - n;
                s.chunks.list[k][at + i] = c;
            }
            n_list[k] = __shfl_sync(ALL_LANES, at + chunks, 31);
        }
        if (e < s.n_expert)
            s.first[e + 1] = upto;
        done = __shfl_sync(ALL_LANES, upto, 31);
    }
    if (!lane) {
        s.first[0] = 0;
        for (int k = 0; k < CLB_CUDA_CLASSES; k++)
            s.chunks.n[k] = n_list[k];
    }
}

static __global__ void __launch_bounds__(THREADS) scatter(const struct clb_cuda_scatter s)
{
    CLB_DYNAMIC_SHARED(uint32_t, count); // [counting_warps][n_expert]
    CLB_SHARED(uint32_t, differ, WARPS);
    const uint32_t warps = counting_warps(s.n_expert), warp = threadIdx.x / 32;
    const bool same = same_routing(s, differ);

    if (!threadIdx.x)
        *s.reused = same;
    if (same)
        return;
    keep_routing(s);
    for (uint32_t i = threadIdx.x; i < warps * s.n_expert; i += THREADS)
        count[i] = 0;
    __syncthreads();
    if (warp < warps)
        walk<false>(s, count + warp * s.n_expert);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < s.n_expert; e += THREADS) {
        uint32_t sum = 0;
        for (uint32_t w = 0; w < warps; w++)
            sum += count[w * s.n_expert + e];
        s.first[e + 1] = sum;
    }
    __syncthreads();
    if (!warp)
        lay_out(s);
    __syncthreads();
    for (uint32_t e = threadIdx.x; e < s.n_expert; e += THREADS) {
        uint32_t at = s.first[e];
        for (uint32_t w = 0; w < warps; w++) {
            uint32_t n = count[w * s.n_expert + e];
            count[w * s.n_expert + e] = at;
            at += n;
        }
    }
    __syncthreads();
    if (warp < warps)
        walk<true>(s, count + warp * s.n_expert);
}

void clb_cuda_moe_scatter(const struct clb_cuda_scatter *s, struct CUstream_st *stream)
{
    size_t shared = (size_t)counting_warps(s->n_expert) * s->n_expert * sizeof(uint32_t);

    CLB_LAUNCH(scatter, 1, THREADS, shared, stream, *s);
}
