// cuda_product_wide.cu - products of f32 matrices with f32 rows, chunk by chunk as
// cuda_moe_experts.cu makes the others; by fused multiply-add, since tensor cores would round the
// operands. Eight warps take interleaved inputs of 16 outputs and 8 rows; a butterfly, then
// ascending warps add them up: an order that depends on nothing but the number of inputs.
#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/warp.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS, ROWS = 8 };

// Chunks as the kernel takes them: the lists of all classes, or n_row rows of one matrix.
struct wide_work {
    struct clb_cuda_product p;
    struct clb_cuda_chunks chunks; // n NULL: no lists
};

// What a block does at a time: up to ROWS rows of a chunk, a tile of the matrix.
struct wide_item {
    struct clb_cuda_chunk chunk;
    uint32_t tile;
};

static __device__ __forceinline__ uint32_t chunks_in(const wide_work &w, int size_class)
{
    return w.chunks.n ? w.chunks.n[size_class] : chunks_of(w.p.n_row, size_class);
}
// Pieces of ROWS that a chunk of a class may have.
static __device__ __forceinline__ uint32_t pieces_of(int size_class)
{
    return size_class == 2 ? 64 / ROWS : size_class == 1 ? 32 / ROWS : 1;
}

// The i-th item; false: no rows are left for it, or there is none.
static __device__ __forceinline__ bool find_item(const wide_work &w, uint32_t i, uint32_t tiles,
                                                 wide_item &out)
{
    out.tile = i % tiles;
    i /= tiles;
    for (int k = 0; k < CLB_CUDA_CLASSES; k++) {
        const uint32_t pieces = pieces_of(k), n = chunks_in(w, k) * pieces;
        if (i >= n) {
            i -= n;
            continue;
        }
        const uint32_t at = i % pieces * ROWS;
        out.chunk = w.chunks.n ? w.chunks.list[k][i / pieces] : chunk_of(w.p.n_row, k, i / pieces);
        if (at >= out.chunk.n)
            return false;
        out.chunk.first += at;
        out.chunk.n = out.chunk.n - at < ROWS ? out.chunk.n - at : ROWS;
        return true;
    }
    return false;
}

// One matrix: every thread below 16 * ROWS gets the sum of row threadIdx.x / 16 of x and output
// threadIdx.x % 16 of the tile.
static __device__ __forceinline__ float one_part(const struct clb_cuda_product &p,
                                                 const uint8_t *base, int part,
                                                 const float *const x[ROWS], uint32_t tile,
                                                 float *sums)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, quad = lane & 3;
    const uint8_t *w = base + p.part[part].tiles_at + (size_t)tile * p.cols * 64 + quad * 16;
    float acc[ROWS][4] = {};

    for (uint32_t c = warp * 8 + lane / 4; c < p.cols; c += 64) {
        const float4 v = load_const((const float4 *)(w + (size_t)c * 64));
        UNROLL
        for (int t = 0; t < ROWS; t++) {
            const float in = x[t][c];
            acc[t][0] = fmaf(v.x, in, acc[t][0]);
            acc[t][1] = fmaf(v.y, in, acc[t][1]);
            acc[t][2] = fmaf(v.z, in, acc[t][2]);
            acc[t][3] = fmaf(v.w, in, acc[t][3]);
        }
    }
    __syncthreads(); // what was in `sums` is read
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
    float sum = 0;
    if (t >= ROWS || row >= p.rows)
        return 0;
    for (uint32_t k = 0; k < WARPS; k++)
        sum += sums[(k * ROWS + t) * 16 + threadIdx.x % 16];
    if (p.part[part].bias_at != CLB_CUDA_NONE)
        sum += load_const((const float *)(base + p.part[part].bias_at) + row);
    return sum;
}

template <bool GATED>
static __global__ void __launch_bounds__(THREADS, 2) product_wide(const wide_work w)
{
    CLB_SHARED(float, sums, WARPS *ROWS * 16);
    const struct clb_cuda_product &p = w.p;
    const uint32_t tiles = (p.rows + 15) / 16;
    uint32_t n_item = 0;

    for (int k = 0; k < CLB_CUDA_CLASSES; k++)
        n_item += chunks_in(w, k) * pieces_of(k) * tiles;
    for (uint32_t i = blockIdx.x; i < n_item; i += gridDim.x) {
        const float *x[ROWS];
        wide_item item;
        if (!find_item(w, i, tiles, item))
            continue;
        const uint8_t *base = p.block ? p.block[item.chunk.expert] : p.base;
        if (!base)
            continue;
        UNROLL
        for (uint32_t t = 0; t < ROWS; t++) {
            uint32_t slot = item.chunk.first + (t < item.chunk.n ? t : 0);
            x[t] = (const float *)p.x + (p.index ? p.index[slot] : slot) * p.ldx;
        }
        float one = one_part(p, base, 0, x, item.tile, sums), two = 0;
        if (GATED)
            two = one_part(p, base, 1, x, item.tile, sums);
        const uint32_t t = threadIdx.x / 16, row = item.tile * 16 + threadIdx.x % 16;
        if (t < item.chunk.n && row < p.rows)
            ((float *)p.y)[(size_t)(item.chunk.first + t) * p.ldy + row] =
                GATED ? activate(p, one, two) : one;
    }
}

void clb_cuda_run_product_wide(const struct clb_cuda_product *p, struct CUstream_st *stream)
{
    wide_work w = { *p, {} };

    if (p->chunks)
        w.chunks = *p->chunks;
    if (p->gated)
        CLB_LAUNCH(product_wide<true>, p->n_cta, THREADS, 0, stream, w);
    else
        CLB_LAUNCH(product_wide<false>, p->n_cta, THREADS, 0, stream, w);
}
