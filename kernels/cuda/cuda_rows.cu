// cuda_rows.cu - steps on rows: the input of a branch, rows that are scaled, what gate and up make,
// logits that are capped.
#include "kernels/cuda/activate.cuh"
#include "kernels/cuda/rows.cuh"

static __global__ void __launch_bounds__(ROW_THREADS)
    branch(const struct clb_cuda_branch b, const float *x, size_t ld, uint32_t n)
{
    CLB_SHARED(float, part, ROW_WARPS);

    write_branch(b, x + (b.row ? b.row[blockIdx.x] : blockIdx.x) * ld, n, blockIdx.x, part);
}

static __global__ void __launch_bounds__(ROW_THREADS) scale_rows(const struct clb_cuda_scale_rows s)
{
    const uint32_t row = blockIdx.x, pair = row * s.top_k + blockIdx.y;
    const float *x = s.x + row * s.ld, weight = s.weight[pair];
    const size_t to = s.slot[pair] * s.ld;

    for (uint32_t c = threadIdx.x; c < s.n; c += ROW_THREADS) {
        float v = x[c] * weight;
        if (s.wide)
            s.wide[to + c] = v;
        if (s.half)
            s.half[to + c] = s.bf16 ? f32_to_bf16(v) : f32_to_f16(v);
    }
}

static __global__ void __launch_bounds__(ROW_THREADS)
    activate_rows(const struct clb_cuda_activate a)
{
    const uint32_t c = blockIdx.y * ROW_THREADS + threadIdx.x, row = blockIdx.x;

    if (c < a.n) {
        float v = activate(a.of, a.gate[row * a.ld + c], a.up[row * a.ld + c]);
        a.y[row * a.ldy + c] = a.bf16 ? f32_to_bf16(v) : f32_to_f16(v);
    }
}

static __global__ void __launch_bounds__(ROW_THREADS)
    cap_values(float *y, uint32_t n, float scale, float cap)
{
    const uint32_t c = blockIdx.y * ROW_THREADS + threadIdx.x;

    if (c < n) {
        float v = y[(size_t)blockIdx.x * n + c] * scale;
        y[(size_t)blockIdx.x * n + c] = cap > 0 ? cap * tanhf(v / cap) : v;
    }
}

void clb_cuda_run_branch(const struct clb_cuda_branch *b, const float *x, size_t ld, uint32_t n,
                         uint32_t n_row, struct CUstream_st *stream)
{
    CLB_LAUNCH(branch, n_row, ROW_THREADS, 0, stream, *b, x, ld, n);
}

void clb_cuda_run_scale_rows(const struct clb_cuda_scale_rows *s, struct CUstream_st *stream)
{
    CLB_LAUNCH(scale_rows, dim3(s->n_row, s->top_k), ROW_THREADS, 0, stream, *s);
}

void clb_cuda_run_activate(const struct clb_cuda_activate *a, struct CUstream_st *stream)
{
    const dim3 grid(a->n_row, (a->n + ROW_THREADS - 1) / ROW_THREADS);

    CLB_LAUNCH(activate_rows, grid, ROW_THREADS, 0, stream, *a);
}

void clb_cuda_run_cap(float *y, uint32_t n_row, uint32_t n, float scale, float cap,
                      struct CUstream_st *stream)
{
    const dim3 grid(n_row, (n + ROW_THREADS - 1) / ROW_THREADS);

    CLB_LAUNCH(cap_values, grid, ROW_THREADS, 0, stream, y, n, scale > 0 ? scale : 1, cap);
}
