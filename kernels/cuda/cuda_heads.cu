// cuda_heads.cu - the embedding, and what happens to queries, keys and values between products.
#include "kernels/cuda/rows.cuh"

// -- embedding -----------------------------------------------------------------------------------

static __device__ __forceinline__ float embedded(const struct clb_cuda_embed &e, size_t i)
{
    if (e.dtype == CLB_F32)
        return ((const float *)e.embed)[i];
    uint16_t bits = ((const uint16_t *)e.embed)[i];
    return e.dtype == CLB_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

// angle = position * inverse frequency in f32, as the reference has it; sine, cosine in double.
static __global__ void __launch_bounds__(ROW_THREADS) embed(const struct clb_cuda_embed e)
{
    const uint32_t row = blockIdx.x, half = e.rope_dim / 2;
    const size_t from = (size_t)e.token[row] * e.n;

    for (uint32_t c = threadIdx.x; c < e.n; c += ROW_THREADS)
        e.x[row * e.ld + c] = embedded(e, from + c) * (e.scale > 0 ? e.scale : 1);
    if (!half)
        return;
    const uint32_t sequence = e.sequence[row];
    const float *inv_freq = e.inv_freq[sequence];
    const float scale = e.rope_scale[sequence] > 0 ? e.rope_scale[sequence] : 1;
    for (uint32_t i = threadIdx.x; i < half; i += ROW_THREADS) {
        float angle = (float)e.position[row] * inv_freq[i];
        double sine, cosine;

        sine_cosine(angle, &sine, &cosine);
        e.cosine[(size_t)row * half + i] = (float)cosine * scale;
        e.sine[(size_t)row * half + i] = (float)sine * scale;
    }
}

// -- heads ---------------------------------------------------------------------------------------

// A warp, on its head.
static __device__ __forceinline__ void norm_head(const struct clb_cuda_heads &h, float *y)
{
    const uint32_t lane = threadIdx.x & 31;
    float sum = 0;

    for (uint32_t i = lane; i < h.norm_dim; i += 32)
        sum = fmaf(y[i], y[i], sum);
    const float factor = 1 / sqrtf(warp_sum(sum) / h.norm_dim + h.eps);
    for (uint32_t i = lane; i < h.norm_dim; i += 32)
        y[i] = y[i] * factor * (h.weight ? h.weight[i] : 1);
    __syncwarp();
}

static __device__ __forceinline__ void rotate_head(const struct clb_cuda_heads &h, float *y,
                                                   uint32_t row)
{
    const uint32_t half = h.rope_dim / 2;

    for (uint32_t i = threadIdx.x & 31; i < half; i += 32) {
        float *a = h.rope == CLB_ROPE_HALF ? y + i : y + 2 * i;
        float *b = h.rope == CLB_ROPE_HALF ? y + i + half : y + 2 * i + 1;
        const float c = h.cosine[(size_t)row * half + i], s = h.sine[(size_t)row * half + i];
        const float old = *a;

        *a = fmaf(-*b, s, old * c);
        *b = fmaf(old, s, *b * c);
    }
    __syncwarp();
}

static __device__ __forceinline__ float clipped(float v, float limit)
{
    return v > limit ? limit : v < -limit ? -limit : v;
}

// One head: everything but a norm over the whole row.
static __device__ __forceinline__ void finish_head(const struct clb_cuda_heads &h, float *y,
                                                   uint32_t row)
{
    const uint32_t lane = threadIdx.x & 31;

    if (h.norm == CLB_QK_NORM_HEAD)
        norm_head(h, y);
    if (h.clip > 0) {
        for (uint32_t i = lane; i < h.dim; i += 32)
            y[i] = clipped(y[i], h.clip);
        __syncwarp();
    }
    if (h.rope != CLB_ROPE_NONE)
        rotate_head(h, y + h.rope_at, row);
    if (h.norm == CLB_QK_NORM_HEAD_AFTER_ROPE || h.norm == CLB_QK_NORM_L2)
        norm_head(h, y);
    if (h.temperature > 0) {
        float steps = floorf(((float)h.position[row] + 1) / h.floor);
        float scale = 1 + h.temperature * logf(1 + steps);
        for (uint32_t i = lane; i < h.dim; i += 32)
            y[i] *= scale;
    }
}

// A block per row, a warp per head in turn.
static __global__ void __launch_bounds__(ROW_THREADS) heads(const struct clb_cuda_heads h)
{
    CLB_SHARED(float, part, ROW_WARPS);
    const uint32_t row = blockIdx.x, width = h.n_head * h.dim;
    float *y = h.y + row * h.ld;

    if (h.norm == CLB_QK_NORM_FULL) {
        const struct clb_cuda_norm n = { true, CLB_NORM_RMS, h.weight, NULL, h.eps };
        const struct row_norm m = measure(n, y, width, part);
        for (uint32_t c = threadIdx.x; c < width; c += ROW_THREADS)
            y[c] = normed(n, m, y[c], c);
        __syncthreads();
    }
    for (uint32_t head = threadIdx.x / 32; head < h.n_head; head += ROW_WARPS)
        finish_head(h, y + head * h.dim, row);
}

static __global__ void __launch_bounds__(ROW_THREADS) slice(const struct clb_cuda_slice s)
{
    const uint32_t row = blockIdx.x, head = blockIdx.y;
    const float *from = s.from + row * s.from_row + head * s.from_head;
    const size_t to = row * s.to_row + head * s.to_head;

    for (uint32_t i = threadIdx.x; i < s.n; i += ROW_THREADS) {
        float v = from[i];
        if (s.wide)
            s.wide[to + i] = v;
        if (s.half)
            s.half[to + i] = s.bf16 ? f32_to_bf16(v) : f32_to_f16(v);
    }
}

// -- host ----------------------------------------------------------------------------------------

void clb_cuda_run_embed(const struct clb_cuda_embed *e, struct CUstream_st *stream)
{
    CLB_LAUNCH(embed, e->n_row, ROW_THREADS, 0, stream, *e);
}
void clb_cuda_run_heads(const struct clb_cuda_heads *h, struct CUstream_st *stream)
{
    CLB_LAUNCH(heads, h->n_row, ROW_THREADS, 0, stream, *h);
}
void clb_cuda_run_slice(const struct clb_cuda_slice *s, struct CUstream_st *stream)
{
    CLB_LAUNCH(slice, dim3(s->n_row, s->n_head), ROW_THREADS, 0, stream, *s);
}
