/* rank.cuh - numbers with their ids as integers, so that the better of two is the larger one. */
#ifndef CLB_KERNELS_CUDA_RANK_CUH
#define CLB_KERNELS_CUDA_RANK_CUH

#include "kernels/cuda/device.cuh"

/* Orders (score, id): larger scores first, equal ones by id; never 0. NaN comes last. */
static __device__ __forceinline__ uint64_t rank_key(float score, uint32_t id)
{
    uint32_t bits = __float_as_uint(score), order;

    if (score != score)
        order = 0;
    else if (score == 0)
        order = 0x80000000u;
    else
        order = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)order << 32 | (0xffffffffu - id);
}
static __device__ __forceinline__ uint32_t id_of(uint64_t key)
{
    return 0xffffffffu - (uint32_t)key;
}
/* 0 for -0. */
static __device__ __forceinline__ float score_of(uint64_t key)
{
    uint32_t order = (uint32_t)(key >> 32);

    return __uint_as_float(order & 0x80000000u ? order ^ 0x80000000u : ~order);
}

#endif
