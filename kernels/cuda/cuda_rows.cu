// cuda_rows.cu - a branch's input from the residual stream.
#include "kernels/cuda/rows.cuh"

static __global__ void __launch_bounds__(ROW_THREADS)
    branch(const struct clb_cuda_branch b, const float *x, size_t ld, uint32_t n)
{
    CLB_SHARED(float, part, ROW_WARPS);

    write_branch(b, x + blockIdx.x * ld, n, blockIdx.x, part);
}

void clb_cuda_run_branch(const struct clb_cuda_branch *b, const float *x, size_t ld, uint32_t n,
                         uint32_t n_row, struct CUstream_st *stream)
{
    CLB_LAUNCH(branch, n_row, ROW_THREADS, 0, stream, *b, x, ld, n);
}
