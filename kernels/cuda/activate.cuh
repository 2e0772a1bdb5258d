/* activate.cuh - what a gated MLP makes of its gate and its up projection. */
#ifndef CLB_KERNELS_CUDA_ACTIVATE_CUH
#define CLB_KERNELS_CUDA_ACTIVATE_CUH

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device.cuh"

static __device__ __forceinline__ float activate(const struct clb_cuda_product &p, float g, float u)
{
    switch (p.act) {
    case CLB_ACT_SILU:
        return divide_quick(g, 1 + exp_quick(-g)) * u;
    case CLB_ACT_GELU:
        return 0.5f * g * (1 + erff(g * 0.70710678f)) * u;
    case CLB_ACT_GELU_TANH:
        return 0.5f * g * (1 + tanhf(0.79788456f * (g + 0.044715f * g * g * g))) * u;
    case CLB_ACT_RELU:
        return (g < 0 ? 0 : g) * u;
    case CLB_ACT_CLAMPED_SWIGLU:
        g = g > p.limit ? p.limit : g;
        u = u > p.limit ? p.limit : u < -p.limit ? -p.limit : u;
        return divide_quick(g, 1 + exp_quick(-p.alpha * g)) * (u + 1);
    }
    return 0;
}

#endif
