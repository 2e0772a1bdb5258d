// cuda_moe_gate.cu - Gate: the router's product in f32, and by the block that comes last the choice
// of experts, one warp per row. Names follow kernels/cpu/cpu_router.c.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/rank.cuh"
#include "kernels/cuda/warp.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS };

// -- product -------------------------------------------------------------------------------------

// 16 outputs of ROWS rows. A lane has four outputs (one 16-byte load per input) and every 64th
// input; lanes add up by a butterfly, warps in ascending order. `sums` is [WARPS][ROWS][16].
template <int ROWS>
static __device__ __forceinline__ void product_tile(const struct clb_cuda_product_f32 &p,
                                                    uint32_t tile, uint32_t first, float *sums)
{
    enum { AHEAD = ROWS == 1 ? 8 : 2 }; // inputs that are loaded at a time
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, quad = lane & 3;
    const uint8_t *w = p.tiles + (size_t)tile * p.cols * 64 + quad * 16;
    const float *x[ROWS];
    float acc[ROWS][4] = {};

    UNROLL
    for (int t = 0; t < ROWS; t++)
        x[t] = p.x + (first + t < p.n_row ? first + t : p.n_row - 1) * p.ldx;
    if (ROWS == 1) // the tile is read once, by one block, which would wait at every step
        prefetch(w - quad * 16, (size_t)p.cols * 64);
    for (uint32_t from = warp * 8 + lane / 4; from < p.cols; from += 64 * AHEAD) {
        float4 v[AHEAD];
        float in[AHEAD][ROWS];
        UNROLL
        for (uint32_t k = 0, c = from; k < AHEAD; k++, c += 64) {
            v[k] = c < p.cols ? load_const((const float4 *)(w + (size_t)c * 64)) : float4{};
            UNROLL
            for (int t = 0; t < ROWS; t++)
                in[k][t] = c < p.cols ? x[t][c] : 0;
        }
        UNROLL
        for (uint32_t k = 0; k < AHEAD && from + 64 * k < p.cols; k++)
            UNROLL
        for (int t = 0; t < ROWS; t++) {
            acc[t][0] = fmaf(v[k].x, in[k][t], acc[t][0]);
            acc[t][1] = fmaf(v[k].y, in[k][t], acc[t][1]);
            acc[t][2] = fmaf(v[k].z, in[k][t], acc[t][2]);
            acc[t][3] = fmaf(v[k].w, in[k][t], acc[t][3]);
        }
    }
    UNROLL
    for (int t = 0; t < ROWS; t++)
        UNROLL
    for (int i = 0; i < 4; i++) {
        float v = acc[t][i];
        UNROLL
        for (int d = 4; d < 32; d <<= 1)
            v += __shfl_xor_sync(ALL_LANES, v, d);
        if (lane < 4)
            sums[(warp * ROWS + t) * 16 + quad * 4 + i] = v;
    }
    __syncthreads();
    const uint32_t t = threadIdx.x / 16, row = tile * 16 + threadIdx.x % 16;
    if (t >= ROWS || first + t >= p.n_row || row >= p.rows)
        return;
    float sum = 0;
    for (uint32_t k = 0; k < WARPS; k++)
        sum += sums[(k * ROWS + t) * 16 + threadIdx.x % 16];
    if (p.bias)
        sum += p.bias[row];
    p.y[(first + t) * p.ldy + row] = p.tanh ? tanhf(sum) : sum;
}

template <int ROWS>
static __global__ void __launch_bounds__(THREADS, 2)
    product_f32(const struct clb_cuda_product_f32 p)
{
    CLB_SHARED(float, sums, WARPS *ROWS * 16);

    product_tile<ROWS>(p, blockIdx.x, blockIdx.y * ROWS, sums);
}

// -- choice --------------------------------------------------------------------------------------

// The best of score[0..n) after `before`.
static __device__ __forceinline__ uint64_t next_best(const float *score, uint32_t n,
                                                     uint64_t before)
{
    uint64_t best = 0;

    for (uint32_t e = threadIdx.x & 31; e < n; e += 32) {
        uint64_t key = rank_key(score[e], e);
        best = key < before && key > best ? key : best;
    }
    return warp_max(best);
}

static __device__ __forceinline__ float greatest(const float *score, uint32_t n)
{
    float most = -INFINITY;

    for (uint32_t e = threadIdx.x & 31; e < n; e += 32)
        most = score[e] > most ? score[e] : most;
    return warp_max(most);
}

static __device__ __forceinline__ void softmax(float *score, uint32_t n)
{
    float most = greatest(score, n), sum = 0;

    for (uint32_t e = threadIdx.x & 31; e < n; e += 32) {
        score[e] = expf(score[e] - most);
        sum += score[e];
    }
    sum = warp_sum(sum);
    for (uint32_t e = threadIdx.x & 31; e < n; e += 32)
        score[e] /= sum;
}

static __device__ __forceinline__ float group_worth(enum clb_group_score kind, const float *score,
                                                    uint32_t n)
{
    float best = -INFINITY, second = -INFINITY;

    for (uint32_t e = 0; e < n; e++)
        if (score[e] > best) {
            second = best;
            best = score[e];
        } else if (score[e] > second) {
            second = score[e];
        }
    return kind == CLB_GROUP_MAX || n == 1 ? best : best + second;
}

// A lane per group. Scores outside the best groups cannot be chosen.
static __device__ __forceinline__ void keep_best_groups(const struct clb_cuda_gate &g, float *score)
{
    const uint32_t n = g.product.rows / g.n_group, lane = threadIdx.x & 31;
    uint64_t last = ~(uint64_t)0;

    for (uint32_t i = 0; i < g.top_groups; i++) {
        uint64_t best = 0;
        for (uint32_t k = lane; k < g.n_group; k += 32) {
            uint64_t key = rank_key(group_worth(g.group_score, score + k * n, n), k);
            best = key < last && key > best ? key : best;
        }
        last = warp_max(best);
    }
    for (uint32_t k = lane; k < g.n_group; k += 32)
        if (rank_key(group_worth(g.group_score, score + k * n, n), k) < last)
            for (uint32_t e = 0; e < n; e++)
                score[k * n + e] = -INFINITY;
}

// SparseMixer: each in turn is the best; its weight is its softmax among the experts no further
// away than 2 * jitter; then it is gone.
static __device__ __forceinline__ void sparsemixer(const struct clb_cuda_gate &g, float *score,
                                                   uint32_t *expert, float *weight)
{
    const uint32_t n = g.product.rows, lane = threadIdx.x & 31;

    for (uint32_t i = 0; i < g.top_k; i++) {
        uint32_t id = id_of(next_best(score, n, ~(uint64_t)0));
        float best = score[id], sum = 0;

        for (uint32_t e = lane; e < n; e += 32) {
            float size = fabsf(score[e]), factor = size > best ? size : best;
            sum += (best - score[e]) / factor > 2 * g.jitter ? 0 : expf(score[e] - best);
        }
        sum = warp_sum(sum);
        __syncwarp();
        if (!lane) {
            expert[i] = id;
            weight[i] = (g.scale > 0 ? g.scale : 1) / sum;
            score[id] = -INFINITY;
        }
        __syncwarp();
    }
}

// The best by `choice`, weighed by `score`. Lane i % 32 keeps the weight of rank i.
static __device__ __forceinline__ void take_best(const struct clb_cuda_gate &g, const float *score,
                                                 const float *choice, uint32_t *expert,
                                                 float *weight)
{
    enum { KEPT = CLB_MAX_TOP_K / 32 };
    const uint32_t lane = threadIdx.x & 31;
    const bool exponents = g.router == CLB_ROUTER_TOPK_SOFTMAX;
    uint64_t last = ~(uint64_t)0;
    float mine[KEPT] = {}, most = 0, sum = 0;

    for (uint32_t i = 0; i < g.top_k; i++) {
        last = next_best(choice, g.product.rows, last);
        float w = score[id_of(last)];
        most = i ? most : w;
        w = exponents ? expf(w - most) : w;
        sum += w;
        UNROLL
        for (uint32_t k = 0; k < KEPT; k++)
            if (i == lane + 32 * k)
                mine[k] = w;
        if (!lane)
            expert[i] = id_of(last);
    }
    float least = g.normalise_min > 0 ? g.normalise_min : 1e-20f;
    float divisor = exponents ? sum : !g.normalise ? 1 : sum < least ? least : sum;
    UNROLL
    for (uint32_t k = 0; k < KEPT; k++)
        if (lane + 32 * k < g.top_k)
            weight[lane + 32 * k] = mine[k] / divisor * (g.scale > 0 ? g.scale : 1);
}

// One warp, one row.
static __device__ __forceinline__ void choose(const struct clb_cuda_gate &g, uint32_t row)
{
    const uint32_t n = g.product.rows, lane = threadIdx.x & 31;
    float *score = g.product.y + row * g.product.ldy, *choice = score;
    uint32_t *expert = g.expert + (size_t)row * g.top_k;
    float *weight = g.weight + (size_t)row * g.top_k;

    for (uint32_t e = lane; e < n; e += 32) {
        float s = score[e];
        if (g.clip > 0)
            s = s > g.clip ? g.clip : s < -g.clip ? -g.clip : s;
        score[e] = g.router == CLB_ROUTER_SIGMOID ? 1 / (1 + expf(-s)) : s;
    }
    __syncwarp();
    if (g.router == CLB_ROUTER_SPARSEMIXER) {
        sparsemixer(g, score, expert, weight);
        return;
    }
    if (g.router == CLB_ROUTER_SOFTMAX_TOPK)
        softmax(score, n);
    if (g.choice) {
        choice = g.choice + row * g.product.ldy;
        for (uint32_t e = lane; e < n; e += 32)
            choice[e] = score[e] + (g.correction ? g.correction[e] : 0);
        __syncwarp();
        if (g.n_group > 1)
            keep_best_groups(g, choice);
    }
    __syncwarp();
    take_best(g, score, choice, expert, weight);
}

// Blocks of 16 experts by ROWS rows; the last one of these rows chooses.
template <int ROWS>
static __global__ void __launch_bounds__(THREADS, 2) gate(const struct clb_cuda_gate g)
{
    CLB_SHARED(float, sums, WARPS *ROWS * 16);
    CLB_SHARED(uint32_t, last, 1);
    const uint32_t first = blockIdx.y * ROWS, warp = threadIdx.x / 32;

    product_tile<ROWS>(g.product, blockIdx.x, first, sums);
    __threadfence();
    __syncthreads();
    if (!threadIdx.x)
        last[0] = atomicAdd(g.arrived + blockIdx.y, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!last[0])
        return;
    acquire_blocks();
    if (warp < ROWS && first + warp < g.product.n_row)
        choose(g, first + warp);
    if (!threadIdx.x)
        g.arrived[blockIdx.y] = 0;
}

// -- host ----------------------------------------------------------------------------------------

void clb_cuda_run_product_f32(const struct clb_cuda_product_f32 *p, struct CUstream_st *stream)
{
    dim3 grid((p->rows + 15) / 16, (p->n_row + 7) / 8);

    if (p->n_row == 1)
        CLB_LAUNCH(product_f32<1>, grid, THREADS, 0, stream, *p);
    else
        CLB_LAUNCH(product_f32<8>, grid, THREADS, 0, stream, *p);
}

void clb_cuda_moe_gate(const struct clb_cuda_gate *g, struct CUstream_st *stream)
{
    dim3 grid((g->product.rows + 15) / 16, (g->product.n_row + 7) / 8);

    if (g->product.n_row == 1)
        CLB_LAUNCH(gate<1>, grid, THREADS, 0, stream, *g);
    else
        CLB_LAUNCH(gate<8>, grid, THREADS, 0, stream, *g);
}
