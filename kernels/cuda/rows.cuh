/* rows.cuh - steps on one row by one block. Each thread keeps to its own columns, so that only sums
 * over the row need barriers. */
#ifndef CLB_KERNELS_CUDA_ROWS_CUH
#define CLB_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/warp.cuh"

enum { ROW_WARPS = 8, ROW_THREADS = 32 * ROW_WARPS };
/* Columns that a thread takes at a time, so that it waits for several loads at once. */
enum { ROW_EACH = 4, ROW_STEP = ROW_EACH * ROW_THREADS };

struct row_norm {
    float mean, factor;
};

/* x was written by the threads that read it here. */
static __device__ __forceinline__ struct row_norm
measure(const struct clb_cuda_norm &n, const float *x, uint32_t width, float *part)
{
    struct row_norm m = { 0, 0 };
    float sum = 0;

    if (n.kind == CLB_NORM_LAYER) {
        for (uint32_t c = threadIdx.x; c < width; c += ROW_THREADS)
            sum += x[c];
        m.mean = block_sum<ROW_WARPS>(sum, part) / width;
        sum = 0;
    }
    for (uint32_t c = threadIdx.x; c < width; c += ROW_THREADS)
        sum = fmaf(x[c] - m.mean, x[c] - m.mean, sum);
    m.factor = 1 / sqrtf(block_sum<ROW_WARPS>(sum, part) / width + n.eps);
    return m;
}

static __device__ __forceinline__ float normed(const struct clb_cuda_norm &n,
                                               const struct row_norm &m, float v, uint32_t c)
{
    v = (v - m.mean) * m.factor;
    if (n.weight)
        v *= n.weight[c];
    return n.bias ? v + n.bias[c] : v;
}

/* What the next branch reads, in the forms it is read in; 16-bit rows are padded with zeros. */
static __device__ __forceinline__ void write_branch(const struct clb_cuda_branch &b, const float *x,
                                                    uint32_t width, uint32_t row, float *part)
{
    struct row_norm m = { 0, 1 };

    if (!b.wide && !b.half)
        return;
    if (b.norm.on)
        m = measure(b.norm, x, width, part);
    for (uint32_t first = threadIdx.x; first < b.ld_half; first += ROW_STEP) {
        float v[ROW_EACH];
        UNROLL
        for (uint32_t i = 0; i < ROW_EACH; i++) {
            const uint32_t c = first + i * ROW_THREADS;
            v[i] = c < width ? (b.norm.on ? normed(b.norm, m, x[c], c) : x[c]) : 0;
        }
        UNROLL
        for (uint32_t i = 0; i < ROW_EACH; i++) {
            const uint32_t c = first + i * ROW_THREADS;
            if (b.wide && c < width)
                b.wide[row * b.ld_wide + c] = v[i];
            if (b.half && c < b.ld_half)
                b.half[row * b.ld_half + c] = b.bf16 ? f32_to_bf16(v[i]) : f32_to_f16(v[i]);
        }
    }
}

#endif
