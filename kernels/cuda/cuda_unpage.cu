// cuda_unpage.cu - what an attention that is not ours reads and writes: keys and values without
// pages, results as the next product takes them.
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device.cuh"

enum { THREADS = 256, PAGE = 64, COLUMNS = 32, LD = PAGE + 2 };

// A block per page and head. Values lie transposed in a page: 32 columns at a time they go through
// shared memory, so that both sides are read and written side by side.
static __global__ void __launch_bounds__(THREADS) unpage(const struct clb_cuda_unpage u)
{
    CLB_SHARED(uint16_t, turned, COLUMNS *LD);
    const uint32_t page = blockIdx.x, head = blockIdx.y;
    const uint32_t keys = u.kv.key_dim, values = u.kv.value_dim;
    const uint32_t width = clb_cuda_kv_keys(CLB_KV_F16, keys), eighths = keys / 8;
    const size_t first = (size_t)head * u.n_key + page * PAGE;
    const uint16_t *key =
        (const uint16_t *)(u.kv.pages +
                           u.kv.table[u.sequence * u.kv.ld_table + page] * u.kv.page_bytes +
                           head * u.kv.head_bytes);
    const uint16_t *value =
        (const uint16_t *)((const uint8_t *)key + clb_cuda_kv_values_at(CLB_KV_F16, keys));

    for (uint32_t i = threadIdx.x; i < PAGE * eighths; i += THREADS)
        *(uint4 *)(u.key + (first + i / eighths) * keys + i % eighths * 8) =
            *(const uint4 *)(key + i / eighths * width + i % eighths * 8);
    for (uint32_t c = 0; c < values; c += COLUMNS) {
        const uint32_t n = values - c < (uint32_t)COLUMNS ? values - c : (uint32_t)COLUMNS;
        for (uint32_t i = threadIdx.x; i < PAGE * n; i += THREADS)
            turned[i / PAGE * LD + i % PAGE] = value[c * PAGE + i];
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < PAGE * n; i += THREADS)
            u.value[(first + i / n) * values + c + i % n] = turned[i % n * LD + i / n];
        __syncthreads();
    }
}

static __global__ void __launch_bounds__(THREADS) convert(const struct clb_cuda_convert c)
{
    const size_t row = blockIdx.x;

    for (uint32_t i = threadIdx.x; i < c.n; i += THREADS) {
        uint16_t v = c.from[row * c.n + i];
        if (c.wide)
            c.wide[row * c.ld + i] = f16_to_f32(v);
        else
            c.half[row * c.ld + i] = c.bf16 ? f32_to_bf16(f16_to_f32(v)) : v;
    }
}

void clb_cuda_run_unpage(const struct clb_cuda_unpage *u, struct CUstream_st *stream)
{
    CLB_LAUNCH(unpage, dim3(u->n_page, u->kv.n_head), THREADS, 0, stream, *u);
}
void clb_cuda_run_convert(const struct clb_cuda_convert *c, struct CUstream_st *stream)
{
    CLB_LAUNCH(convert, c->n_row, THREADS, 0, stream, *c);
}
