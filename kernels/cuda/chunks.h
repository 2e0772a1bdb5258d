/* chunks.h - how the rows of one matrix are cut: as many chunks of 64 as are more than half full,
 * then what is left as one of 32 or of 8. */
#ifndef CLB_KERNELS_CUDA_CHUNKS_H
#define CLB_KERNELS_CUDA_CHUNKS_H

#include "kernels/cuda/cuda_kernels.h"

CLB_CUDA_BOTH uint32_t chunks_of(uint32_t n, int size_class)
{
    uint32_t rest = n % 64 > 32 ? 0 : n % 64;

    return size_class == 2   ? n / 64 + (n % 64 > 32)
           : size_class == 1 ? rest > 8
                             : rest && rest <= 8;
}

/* The i-th chunk of a class of n rows from slot 0 on. */
CLB_CUDA_BOTH struct clb_cuda_chunk chunk_of(uint32_t n, int size_class, uint32_t i)
{
    struct clb_cuda_chunk c;

    c.expert = 0;
    c.first = size_class == 2 ? 64 * i : n / 64 * 64;
    c.n = n - c.first < 64 ? n - c.first : 64;
    return c;
}

#endif
