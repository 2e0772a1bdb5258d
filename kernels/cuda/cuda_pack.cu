// cuda_pack.cu - rows that another device needs, side by side.
#include "kernels/cuda/rows.cuh"

static __global__ void __launch_bounds__(ROW_THREADS) pack(const struct clb_cuda_pack p)
{
    const uint4 *from = (const uint4 *)((const char *)p.from + p.row[blockIdx.x] * p.row_bytes);
    uint4 *to = (uint4 *)((char *)p.to + blockIdx.x * p.row_bytes);

    for (size_t i = threadIdx.x; i < p.row_bytes / sizeof *to; i += ROW_THREADS)
        to[i] = from[i];
}

void clb_cuda_run_pack(const struct clb_cuda_pack *p, struct CUstream_st *stream)
{
    CLB_LAUNCH(pack, p->n_row, ROW_THREADS, 0, stream, *p);
}
