// cuda_product_wide.cu - products of f32 matrices with f32 rows, chunk by chunk as
// cuda_moe_experts.cu makes the others. Tensor cores would round the operands, so every output is
// one thread's: a chain of fused multiply-add over ascending inputs, as on the CPU.
#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/chunks.h"

enum { ROWS = 8, THREADS = 16 * ROWS };

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
    return size_class == 2 ? 64u / ROWS : size_class == 1 ? 32u / ROWS : 1u;
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
        out.chunk.n = out.chunk.n - at < ROWS ? out.chunk.n - at : (uint32_t)ROWS;
        return true;
    }
    return false;
}

// Output threadIdx.x % 16 of the tile.
static __device__ __forceinline__ float one_part(const struct clb_cuda_product &p,
                                                 const uint8_t *base, int part, const float *x,
                                                 uint32_t tile)
{
    const uint32_t row = tile * 16 + threadIdx.x % 16;
    const float *w = (const float *)(base + p.part[part].tiles_at) + (size_t)tile * p.cols * 16 +
                     threadIdx.x % 16;
    float sum = 0;

    for (uint32_t c = 0; c < p.cols; c++)
        sum = fmaf(load_const(w + (size_t)c * 16), x[c], sum);
    if (p.part[part].bias_at != CLB_CUDA_NONE && row < p.rows)
        sum += load_const((const float *)(base + p.part[part].bias_at) + row);
    return sum;
}

template <bool GATED>
static __global__ void __launch_bounds__(THREADS) product_wide(const wide_work w)
{
    const struct clb_cuda_product &p = w.p;
    const uint32_t tiles = (p.rows + 15) / 16, t = threadIdx.x / 16;
    uint32_t n_item = 0;

    for (int k = 0; k < CLB_CUDA_CLASSES; k++)
        n_item += chunks_in(w, k) * pieces_of(k) * tiles;
    for (uint32_t i = blockIdx.x; i < n_item; i += gridDim.x) {
        wide_item item;
        if (!find_item(w, i, tiles, item) || t >= item.chunk.n)
            continue;
        const uint8_t *base = p.block ? p.block[item.chunk.expert] : p.base;
        if (!base)
            continue;
        const uint32_t slot = item.chunk.first + t, row = item.tile * 16 + threadIdx.x % 16;
        const float *x = (const float *)p.x + (p.index ? p.index[slot] : slot) * p.ldx;
        float y = one_part(p, base, 0, x, item.tile);
        if (GATED)
            y = activate(p, y, one_part(p, base, 1, x, item.tile));
        if (row < p.rows)
            ((float *)p.y)[slot * p.ldy + row] = y;
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
