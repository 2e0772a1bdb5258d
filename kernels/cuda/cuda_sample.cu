// cuda_sample.cu - the candidates of a row: its largest logits, first of each slice of the
// vocabulary, then of what slices kept. Threads hold their keys (rank.cuh) in registers; how large
// the k-th one is they find bit by bit, by counting, which takes the same time whatever the logits
// are: no sorting, and no atomics but for places in a list.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/rank.cuh"
#include "kernels/cuda/warp.cuh"

enum { EACH = 8 }; // keys of a thread
enum { SLICE_THREADS = CLB_CUDA_SLICE / EACH, KEPT_THREADS = CLB_CUDA_KEPT / EACH };

// -- the k largest keys of a block ---------------------------------------------------------------

static __device__ __forceinline__ uint64_t largest(const uint64_t key[EACH], uint64_t *part)
{
    const uint32_t lane = threadIdx.x & 31;
    uint64_t most = key[0];

    UNROLL
    for (int i = 1; i < EACH; i++)
        most = key[i] > most ? key[i] : most;
    most = warp_max(most);
    if (lane == 0)
        part[threadIdx.x / 32] = most;
    __syncthreads();
    return warp_max(lane < blockDim.x / 32 ? part[lane] : 0);
}

static __device__ __forceinline__ uint32_t count_from(const uint64_t key[EACH], uint64_t bound)
{
    uint32_t own = 0, n = 0;

    UNROLL
    for (int i = 0; i < EACH; i++)
        own += key[i] >= bound;
    UNROLL
    for (int b = 0; 1 << b <= EACH; b++)
        n += (uint32_t)__syncthreads_count(own >> b & 1) << b;
    return n;
}

// What exactly k keys reach, of keys that differ; 0 if they are n_key or fewer (0 is no key).
static __device__ __forceinline__ uint64_t bound_of(const uint64_t key[EACH], uint32_t n_key,
                                                    uint32_t k, uint64_t *part)
{
    uint64_t bound = 0;
    uint32_t n = 0;

    if (n_key <= k)
        return 0;
    if (k == 1)
        return largest(key, part);
    for (int bit = 63; bit >= 0 && n != k; bit--) {
        uint64_t higher = bound | (uint64_t)1 << bit;
        uint32_t reach = count_from(key, higher);
        if (reach >= k) {
            bound = higher;
            n = reach;
        }
    }
    return bound;
}

// Keys from `bound` on into `list`, in any order; returns how many. *n is 0 before.
static __device__ __forceinline__ uint32_t collect(const uint64_t key[EACH], uint64_t bound,
                                                   uint64_t *list, uint32_t *n)
{
    UNROLL
    for (int i = 0; i < EACH; i++)
        if (key[i] && key[i] >= bound)
            list[atomicAdd(n, 1u)] = key[i];
    __syncthreads();
    return *n;
}

// -- kernels -------------------------------------------------------------------------------------

// A row and a slice of it for each block.
static __global__ void __launch_bounds__(SLICE_THREADS)
    keep_of_slice(const struct clb_cuda_choose c)
{
    CLB_SHARED(uint64_t, part, 32);
    CLB_SHARED(uint32_t, n, 1);
    const struct clb_cuda_want want = c.want[blockIdx.x];
    const uint32_t first = blockIdx.y * CLB_CUDA_SLICE, left = c.n - first;
    const float *logits = c.logits + ((size_t)blockIdx.x * c.n + first);
    uint64_t *kept = c.kept + ((size_t)want.at * gridDim.y + (size_t)blockIdx.y * want.n);
    uint64_t key[EACH];

    if (want.n == 0)
        return;
    if (threadIdx.x == 0)
        n[0] = 0;
    UNROLL
    for (int i = 0; i < EACH; i++) {
        uint32_t at = i * SLICE_THREADS + threadIdx.x;
        key[i] = at < left ? rank_key(logits[at], first + at) : 0;
    }
    __syncthreads();
    uint64_t bound = bound_of(key, left, want.n, part);
    for (uint32_t i = collect(key, bound, kept, n) + threadIdx.x; i < want.n; i += SLICE_THREADS)
        kept[i] = 0;
}

// A row for each block; candidates go where as many of lower ids come before them.
static __global__ void __launch_bounds__(KEPT_THREADS)
    choose_of_row(const struct clb_cuda_choose c, uint32_t n_slice)
{
    CLB_SHARED(uint64_t, part, 32);
    CLB_SHARED(uint64_t, chosen, CLB_CUDA_CANDIDATES);
    CLB_SHARED(uint32_t, n, 1);
    const struct clb_cuda_want want = c.want[blockIdx.x];
    const uint64_t *kept = c.kept + (size_t)want.at * n_slice;
    const uint32_t n_key = n_slice * want.n; // with zeros of short slices
    uint64_t key[EACH];

    if (want.n == 0)
        return;
    if (threadIdx.x == 0)
        n[0] = 0;
    UNROLL
    for (int i = 0; i < EACH; i++) {
        uint32_t at = i * blockDim.x + threadIdx.x;
        key[i] = at < n_key ? kept[at] : 0;
    }
    __syncthreads();
    collect(key, bound_of(key, n_key, want.n, part), chosen, n);
    for (uint32_t own = threadIdx.x; own < want.n; own += blockDim.x) {
        uint32_t id = id_of(chosen[own]), before = 0;
        for (uint32_t i = 0; i < want.n; i++)
            before += id_of(chosen[i]) < id;
        c.out[want.at + before] = { id, score_of(chosen[own]) };
    }
}

void clb_cuda_run_choose(const struct clb_cuda_choose *c, struct CUstream_st *stream)
{
    const uint32_t n_slice = clb_cuda_slices(c->n);
    const uint32_t keys = n_slice * clb_cuda_most_candidates(c->n);

    CLB_LAUNCH(keep_of_slice, dim3(c->n_row, n_slice), SLICE_THREADS, 0, stream, *c);
    CLB_LAUNCH(choose_of_row, c->n_row, (keys + 32 * EACH - 1) / (32 * EACH) * 32, 0, stream, *c,
               n_slice);
}
