/* warp.cuh - sums and maxima of a warp or a block, in one fixed order whatever else runs. */
#ifndef CLB_KERNELS_CUDA_WARP_CUH
#define CLB_KERNELS_CUDA_WARP_CUH

#include "kernels/cuda/device.cuh"

#define ALL_LANES 0xffffffffu

template <class T> static __device__ __forceinline__ T warp_sum(T v)
{
    UNROLL
    for (int d = 16; d; d >>= 1)
        v += __shfl_xor_sync(ALL_LANES, v, d);
    return v;
}
template <class T> static __device__ __forceinline__ T warp_max(T v)
{
    UNROLL
    for (int d = 16; d; d >>= 1) {
        T other = __shfl_xor_sync(ALL_LANES, v, d);
        v = other > v ? other : v;
    }
    return v;
}
/* Of lanes 0 to this one. */
static __device__ __forceinline__ uint32_t warp_scan(uint32_t v)
{
    UNROLL
    for (int d = 1; d < 32; d <<= 1) {
        uint32_t below = __shfl_up_sync(ALL_LANES, v, d);
        v += (int)(threadIdx.x & 31) >= d ? below : 0;
    }
    return v;
}

/* Every thread of WARPS warps gets the sum; `part` [WARPS] is shared memory. */
template <int WARPS> static __device__ __forceinline__ float block_sum(float v, float *part)
{
    float sum = 0;

    v = warp_sum(v);
    __syncthreads(); /* the last sum is read */
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = v;
    __syncthreads();
    UNROLL
    for (int w = 0; w < WARPS; w++)
        sum += part[w];
    return sum;
}

#endif
