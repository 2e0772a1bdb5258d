// cuda_moe_experts.cu - ExpertCompute: chunks of rows, each with the matrices of its expert, read
// as the tiles of the file. The same kernels serve every other product of a pass.
//
// Weights are the 16 rows (A) of mma, rows of activations its 8 columns (B), also for one row: a
// second arithmetic for few rows would have other bits. A warp owns two tiles (gated: the same tile
// of gate and up, which meet by a shuffle) and all rows of the chunk, so nothing is widened twice.
// Each lane copies the very bytes that it will read into a ring of its own: deep prefetch without
// barriers or bank conflicts. Every block strides over the work, whose length is read on the
// device.
#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/chunks.h"
#include "kernels/cuda/widen.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, PIECE = 512 / 32 /* groups */ };

// -- what both kernels share ---------------------------------------------------------------------

// Arguments as the kernels take them: the list of one class.
struct work {
    struct clb_cuda_product p;
    const struct clb_cuda_chunk *list;
    const uint32_t *n_list; // NULL: chunks of p.n_row rows
    int size_class;
};

static __device__ __forceinline__ uint32_t chunk_count(const work &w)
{
    return w.n_list ? *w.n_list : chunks_of(w.p.n_row, w.size_class);
}
static __device__ __forceinline__ struct clb_cuda_chunk chunk_at(const work &w, uint32_t i)
{
    return w.n_list ? w.list[i] : chunk_of(w.p.n_row, w.size_class, i);
}

// The lane's tile of a pair of tiles.
struct lane_tile {
    const uint8_t *base; // of the expert's block
    const uint8_t *tile; // NULL: there is no such tile
    uint32_t t, r4;
};
template <enum clb_dtype F, bool GATED>
static __device__ __forceinline__ lane_tile find_tile(const struct clb_cuda_product &p,
                                                      const uint8_t *base, uint32_t pair)
{
    uint32_t lane = threadIdx.x & 31, second = lane >> 4;
    uint32_t index = GATED ? pair : 2 * pair + second;
    uint64_t at = p.part[GATED ? second : 0].tiles_at;
    lane_tile l;

    l.base = base;
    l.tile = index * 16 < p.rows ? base + at + index * format<F>::tile_bytes(p.cols) : NULL;
    l.t = lane & 3;
    l.r4 = lane >> 2 & 3;
    return l;
}

// Asks for the lane's bytes of a group; nothing where there is no such group.
template <enum clb_dtype F>
static __device__ __forceinline__ void fetch(uint4 *to, uint32_t stride, const lane_tile &l,
                                             uint32_t group, uint32_t cols)
{
    const uint8_t *steps = (l.tile ? l.tile : l.base) + format<F>::steps_at(cols);

    UNROLL
    for (int i = 0; i < format<F>::LOADS; i++) {
        bool there = l.tile && format<F>::there(group, i, l.t, cols);
        copy_async(to + (uint32_t)i * stride,
                   there ? steps + format<F>::load_at(group, i, l.t, l.r4) : l.base,
                   there ? 16 : 0);
    }
}

template <enum clb_dtype F>
static __device__ __forceinline__ void expand(fragments &f, const uint4 *from, uint32_t stride,
                                              const lane_tile &l, uint32_t group,
                                              const struct clb_cuda_product &p)
{
    uint4 v[format<F>::LOADS];
    uint2 scale = make_uint2(0, 0);

    UNROLL
    for (int i = 0; i < format<F>::LOADS; i++)
        v[i] = from[(uint32_t)i * stride];
    if (l.tile && group * 32 < p.cols)
        scale = format<F>::scales(l.tile, group, l.r4);
    format<F>::expand(f, v, scale, p.book);
}

// One sum: the row's scale and bias.
template <enum clb_dtype F>
static __device__ __forceinline__ float finish(const struct clb_cuda_part &part,
                                               const uint8_t *base, float sum, uint32_t row)
{
    float scale = 1, bias = 0;

    if (F == CLB_INT8)
        scale = load_const((const float *)(base + part.scale_at) + row);
    if (part.bias_at != CLB_CUDA_NONE)
        bias = load_const((const float *)(base + part.bias_at) + row);
    return fmaf(sum, scale, bias);
}

// -- up to 8 rows: as fast as weights arrive -----------------------------------------------------

// Per block: each warp's ring, and two turns of sums [2][WARPS][32 rows][8].
template <enum clb_dtype F> struct few {
    enum { RING = 16 / format<F>::LOADS };
    static const size_t shared = WARPS * 16 * 512 + 2 * WARPS * 256 * sizeof(float);
};

// One piece: the chain of its groups.
template <enum clb_dtype F>
static __device__ __forceinline__ void few_step(float c[2][4], const uint4 *ring,
                                                const lane_tile &l, uint32_t group,
                                                const uint16_t *x, const struct clb_cuda_product &p)
{
    uint2 b[2] = { make_uint2(0, 0), make_uint2(0, 0) };
    fragments f;

    if (x) {
        b[0] = *(const uint2 *)(x + group * 32 + 4 * l.t);
        b[1] = *(const uint2 *)(x + group * 32 + 16 + 4 * l.t);
    }
    copy_wait<few<F>::RING - 1>();
    expand<F>(f, ring, 32, l, group, p);
    UNROLL
    for (int half = 0; half < 2; half++) {
        const uint32_t column[2] = { b[half].x, b[half].y };
        format<F>::mma(c[0], f.a[half][0], column);
        format<F>::mma(c[1], f.a[half][1], column);
    }
}

// The sums of a piece, for the threads that add pieces up.
static __device__ __forceinline__ void store_sums(float *to, float c[2][4])
{
    uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;

    UNROLL
    for (int m = 0; m < 2; m++)
        UNROLL
    for (int i = 0; i < 4; i++) {
        uint32_t row = (g >> 2) * 16 + 4 * (g & 3) + 2 * (uint32_t)m + (uint32_t)(i >> 1);
        to[row * 8 + 2 * t + (uint32_t)(i & 1)] = c[m][i];
        c[m][i] = 0;
    }
}

// Thread e has row e / 8 of both tiles and column e % 8.
template <enum clb_dtype F, bool GATED>
static __device__ __forceinline__ void few_output(const work &w, const uint8_t *base,
                                                  const struct clb_cuda_chunk &chunk, uint32_t pair,
                                                  float one, float two)
{
    const struct clb_cuda_product &p = w.p;
    uint32_t column = threadIdx.x & 7, row = (GATED ? pair : 2 * pair) * 16 + (threadIdx.x >> 3);
    size_t at = (size_t)(chunk.first + column) * p.ldy;

    if (column >= chunk.n || row >= p.rows)
        return;
    one = finish<F>(p.part[0], base, one, row);
    if (GATED) {
        two = finish<F>(p.part[1], base, two, row);
        ((uint16_t *)p.y)[at + row] = format<F>::narrow(activate(p, one, two));
        return;
    }
    ((float *)p.y)[at + row] = one;
    if (row + 16 < p.rows)
        ((float *)p.y)[at + row + 16] = finish<F>(p.part[0], base, two, row + 16);
}

// A block has one pair of tiles; its warps take the pieces in turn. A warp's pieces follow each
// other through its ring; after every turn the block adds the sums up, in ascending order.
template <enum clb_dtype F, bool GATED>
static __global__ void __launch_bounds__(THREADS, 4) product_few(const work w)
{
    CLB_DYNAMIC_SHARED(uint4, shared);
    const struct clb_cuda_product &p = w.p;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2;
    uint4 *ring = shared + warp * 16 * 32 + lane;
    float *sums = (float *)(shared + WARPS * 16 * 32);
    const uint32_t tiles = (p.rows + 15) / 16, pairs = GATED ? tiles : (tiles + 1) / 2;
    const uint32_t groups = (p.cols + 31) / 32, pieces = (groups + PIECE - 1) / PIECE;
    const uint32_t n_item = chunk_count(w) * pairs;
    uint32_t turn = 0;

    for (uint32_t item = blockIdx.x; item < n_item; item += gridDim.x) {
        const struct clb_cuda_chunk chunk = chunk_at(w, item / pairs);
        const uint8_t *base = p.block ? p.block[chunk.expert] : p.base;
        if (!base)
            continue;
        const lane_tile l = find_tile<F, GATED>(p, base, item % pairs);
        const uint32_t slot = chunk.first + (g < chunk.n ? g : 0);
        const uint16_t *rows = (const uint16_t *)p.x;
        const uint16_t *x = g < chunk.n ? rows + (p.index ? p.index[slot] : slot) * p.ldx : NULL;
        float c[2][4] = {}, one = 0, two = 0;
        // the warp's i-th group
        auto group_at = [=](uint32_t i) {
            return (warp + WARPS * (i / PIECE)) * PIECE + i % PIECE;
        };
        auto ask = [&](uint32_t i) {
            if (group_at(i) < groups)
                fetch<F>(ring + i % few<F>::RING * format<F>::LOADS * 32, 32, l, group_at(i),
                         p.cols);
            copy_commit();
        };

        for (uint32_t i = 0; i < few<F>::RING; i++)
            ask(i);
        for (uint32_t first = 0; first < pieces; first += WARPS, turn ^= 1) {
            uint32_t i = first / WARPS * PIECE;
            for (uint32_t end = i + PIECE; i < end && group_at(i) < groups; i++) {
                few_step<F>(c, ring + i % few<F>::RING * format<F>::LOADS * 32, l, group_at(i), x,
                            p);
                ask(i + few<F>::RING);
            }
            store_sums(sums + (turn * WARPS + warp) * 256, c);
            __syncthreads(); // the other turn's sums are read before the barrier after this one
            for (uint32_t k = 0; k < WARPS && first + k < pieces; k++) {
                one += sums[(turn * WARPS + k) * 256 + threadIdx.x];
                two += sums[(turn * WARPS + k) * 256 + 128 + threadIdx.x];
            }
        }
        copy_wait<0>();
        few_output<F, GATED>(w, base, chunk, item % pairs, one, two);
    }
}

// -- up to N rows: weights and activations through shared memory ---------------------------------

// Per stage of 64 inputs: activations [N][64], 16-byte cells of row m at c ^ 2 (m & 3), so that
// reading them has no bank conflicts; then each lane's own weights.
// At the end the sums of a warp: [N][32 rows of both tiles], rows LD_SUMS apart.
enum { LD_SUMS = 36 };
template <enum clb_dtype F, int N> struct many {
    enum { STAGES = format<F>::STAGES, CELLS = N * 8, OWN = 2 * format<F>::LOADS * 32 };
    enum { STAGE = CELLS + WARPS * OWN };
    static const size_t shared = (size_t)STAGES * STAGE * 16;
    static_assert(WARPS * N * LD_SUMS * sizeof(float) <= shared, "sums fit where stages were");
};

template <enum clb_dtype F, int N>
static __device__ __forceinline__ void many_ask(uint4 *stage, const lane_tile &l,
                                                const uint16_t *const x[N / 16], uint32_t slab,
                                                uint32_t cols)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, cell = threadIdx.x & 7;
    uint4 *own = stage + many<F, N>::CELLS + warp * many<F, N>::OWN + lane;

    if (slab * 64 < cols) {
        UNROLL
        for (int i = 0; i < N / 16; i++) {
            uint32_t m = threadIdx.x / 8 + 16 * (uint32_t)i;
            copy_async(stage + m * 8 + (cell ^ (m & 3) << 1), x[i] + slab * 64, 16);
        }
        fetch<F>(own, 32, l, 2 * slab, cols);
        fetch<F>(own + format<F>::LOADS * 32, 32, l, 2 * slab + 1, cols);
    }
    copy_commit();
}

template <enum clb_dtype F, int N>
static __device__ __forceinline__ void many_slab(float acc[2][N / 8][4], const uint4 *stage,
                                                 const lane_tile &l, uint32_t slab,
                                                 const struct clb_cuda_product &p)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, g = lane >> 2;
    const uint4 *own = stage + many<F, N>::CELLS + warp * many<F, N>::OWN + lane;

    UNROLL
    for (int q = 0; q < 2; q++) {
        fragments f;
        expand<F>(f, own + q * format<F>::LOADS * 32, 32, l, 2 * slab + (uint32_t)q, p);
        UNROLL
        for (int half = 0; half < 2; half++)
            UNROLL
        for (int n = 0; n < N / 8; n++) {
            uint32_t cell = (uint32_t)(4 * q + 2 * half) + l.t / 2, m = (uint32_t)n * 8 + g;
            const uint2 b = ((const uint2 *)(stage + m * 8 + (cell ^ (m & 3) << 1)))[l.t & 1];
            const uint32_t column[2] = { b.x, b.y };
            format<F>::mma(acc[0][n], f.a[half][0], column);
            format<F>::mma(acc[1][n], f.a[half][1], column);
        }
    }
}

// A piece is done.
template <int N>
static __device__ __forceinline__ void many_fold(float tot[2][N / 8][4], float acc[2][N / 8][4])
{
    UNROLL
    for (int m = 0; m < 2; m++)
        UNROLL
    for (int n = 0; n < N / 8; n++)
        UNROLL
    for (int i = 0; i < 4; i++) {
        tot[m][n][i] += acc[m][n][i];
        acc[m][n][i] = 0;
    }
}

// The warp's sums go through its own part of shared memory: a lane then has one row of weights, so
// that neighbours write side by side, and the code of the end is there once and not for every sum.
template <int N>
static __device__ __forceinline__ void many_store(float *sums, const float tot[2][N / 8][4])
{
    const uint32_t lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;

    UNROLL
    for (int m = 0; m < 2; m++)
        UNROLL
    for (int n = 0; n < N / 8; n++)
        UNROLL
    for (int i = 0; i < 2; i++) { // of a column two neighbours
        const uint32_t row = (g >> 2) * 16 + 4 * (g & 3) + 2 * (uint32_t)m;
        const uint32_t column = (uint32_t)n * 8 + 2 * t + (uint32_t)i;
        *(float2 *)(sums + column * LD_SUMS + row) = { tot[m][n][i], tot[m][n][i + 2] };
    }
    __syncwarp();
}

template <enum clb_dtype F, bool GATED>
static __device__ __forceinline__ void many_output(const work &w, const uint8_t *base,
                                                   const struct clb_cuda_chunk &chunk,
                                                   uint32_t pair, const float *sums)
{
    const struct clb_cuda_product &p = w.p;
    const uint32_t lane = threadIdx.x & 31, own = GATED ? lane & 15 : lane;
    const uint32_t row = (GATED ? pair : 2 * pair) * 16 + own;

    if (row >= p.rows)
        return;
    for (uint32_t m = GATED ? lane >> 4 : 0; m < chunk.n; m += GATED ? 2 : 1) {
        const size_t at = (size_t)(chunk.first + m) * p.ldy + row;
        const float one = finish<F>(p.part[0], base, sums[m * LD_SUMS + own], row);
        if (GATED) {
            const float two = finish<F>(p.part[1], base, sums[m * LD_SUMS + 16 + own], row);
            ((uint16_t *)p.y)[at] = format<F>::narrow(activate(p, one, two));
        } else {
            ((float *)p.y)[at] = one;
        }
    }
}

// A block has four pairs of tiles, one per warp, and all rows of the chunk.
template <enum clb_dtype F, bool GATED, int N>
static __global__ void __launch_bounds__(THREADS, 2) product_many(const work w)
{
    CLB_DYNAMIC_SHARED(uint4, shared);
    enum { S = many<F, N>::STAGES, STAGE = many<F, N>::STAGE };
    const struct clb_cuda_product &p = w.p;
    const uint32_t tiles = (p.rows + 15) / 16, pairs = GATED ? tiles : (tiles + 1) / 2;
    const uint32_t quads = (pairs + WARPS - 1) / WARPS, slabs = (p.cols + 63) / 64;
    const uint32_t n_item = chunk_count(w) * quads;

    for (uint32_t item = blockIdx.x; item < n_item; item += gridDim.x) {
        const struct clb_cuda_chunk chunk = chunk_at(w, item / quads);
        const uint8_t *base = p.block ? p.block[chunk.expert] : p.base;
        if (!base)
            continue;
        const uint32_t pair = item % quads * WARPS + threadIdx.x / 32;
        const lane_tile l = find_tile<F, GATED>(p, base, pair);
        const uint16_t *x[N / 16];
        float acc[2][N / 8][4] = {}, tot[2][N / 8][4] = {};

        UNROLL
        for (int i = 0; i < N / 16; i++) {
            uint32_t m = threadIdx.x / 8 + 16 * (uint32_t)i;
            uint32_t slot = chunk.first + (m < chunk.n ? m : chunk.n - 1);
            x[i] = (const uint16_t *)p.x + (p.index ? p.index[slot] : slot) * p.ldx +
                   (threadIdx.x & 7) * 8;
        }
        for (uint32_t s = 0; s < S - 1; s++)
            many_ask<F, N>(shared + s * STAGE, l, x, s, p.cols);
        for (uint32_t slab = 0; slab < slabs; slab++) {
            copy_wait<S - 2>();
            __syncthreads(); // everybody's copies are there, and the stage before is free
            many_ask<F, N>(shared + (slab + S - 1) % S * STAGE, l, x, slab + S - 1, p.cols);
            many_slab<F, N>(acc, shared + slab % S * STAGE, l, slab, p);
            if (slab % (PIECE / 2) != PIECE / 2 - 1 && slab + 1 < slabs)
                continue;
            many_fold<N>(tot, acc);
        }
        copy_wait<0>();
        __syncthreads(); // nobody reads a stage any more
        float *sums = (float *)shared + threadIdx.x / 32 * N * LD_SUMS;
        many_store<N>(sums, tot);
        many_output<F, GATED>(w, base, chunk, pair, sums);
        __syncthreads(); // nor sums
    }
}

// -- host ----------------------------------------------------------------------------------------

template <enum clb_dtype F, bool GATED> static int setup_one(void)
{
    const enum cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
    int e = cudaFuncSetAttribute(product_few<F, GATED>, most, (int)few<F>::shared);

    if (!e)
        e = cudaFuncSetAttribute(product_many<F, GATED, 32>, most, (int)many<F, 32>::shared);
    return e ? e : cudaFuncSetAttribute(product_many<F, GATED, 64>, most, (int)many<F, 64>::shared);
}
template <enum clb_dtype F> static int setup_both(void)
{
    int e = setup_one<F, false>();

    return e ? e : setup_one<F, true>();
}

int clb_cuda_product_setup(void)
{
    int e = setup_both<CLB_INT8>();

    e = e ? e : setup_both<CLB_INT4>();
    e = e ? e : setup_both<CLB_MXFP4>();
    e = e ? e : setup_both<CLB_F16>();
    return e ? e : setup_both<CLB_BF16>();
}

template <enum clb_dtype F, bool GATED> static void launch(work w, struct CUstream_st *stream)
{
    const struct clb_cuda_chunks *c = w.p.chunks;

    for (int k = 0; k < CLB_CUDA_CLASSES; k++) {
        // with chunks, how many there are is known on the device alone; but an expert with
        // no more than 8 rows has none of the larger classes
        if (c ? k && w.p.n_row <= (k == 1 ? 8u : 32u) : !chunks_of(w.p.n_row, k))
            continue;
        w.size_class = k;
        w.list = c ? c->list[k] : NULL;
        w.n_list = c ? c->n + k : NULL;
        if (k == 0)
            CLB_LAUNCH((product_few<F, GATED>), w.p.n_cta, THREADS, few<F>::shared, stream, w);
        else if (k == 1)
            CLB_LAUNCH((product_many<F, GATED, 32>), w.p.n_cta, THREADS, (many<F, 32>::shared),
                       stream, w);
        else
            CLB_LAUNCH((product_many<F, GATED, 64>), w.p.n_cta, THREADS, (many<F, 64>::shared),
                       stream, w);
    }
}
template <enum clb_dtype F> static void launch_any(const work &w, struct CUstream_st *stream)
{
    if (w.p.gated)
        launch<F, true>(w, stream);
    else
        launch<F, false>(w, stream);
}

void clb_cuda_run_product(const struct clb_cuda_product *p, struct CUstream_st *stream)
{
    work w = { *p, NULL, NULL, 0 };

    switch (p->dtype) {
    case CLB_F32:
        return clb_cuda_run_product_wide(p, stream);
    case CLB_INT8:
        return launch_any<CLB_INT8>(w, stream);
    case CLB_INT4:
        return launch_any<CLB_INT4>(w, stream);
    case CLB_MXFP4:
        return launch_any<CLB_MXFP4>(w, stream);
    case CLB_F16:
        return launch_any<CLB_F16>(w, stream);
    default:
        return launch_any<CLB_BF16>(w, stream);
    }
}
