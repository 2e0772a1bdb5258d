/* clb_device_twin.h - what kernels/cuda/device.cuh says in instructions, said in C++. */
#ifndef TEST_CUDA_EMU_CLB_DEVICE_TWIN_H
#define TEST_CUDA_EMU_CLB_DEVICE_TWIN_H

#include <cuda_runtime.h>

#include "lib/base/half.h"

#define UNROLL
#define UNROLL_BY(n)

static inline float f16_to_f32(uint16_t bits)
{
    return clb_f16_to_f32(bits);
}
static inline uint16_t f32_to_f16(float f)
{
    return clb_f32_to_f16(f);
}
static inline float bf16_to_f32(uint16_t bits)
{
    return clb_bf16_to_f32(bits);
}
static inline uint16_t f32_to_bf16(float f)
{
    return clb_f32_to_bf16(f);
}

static inline uint32_t permute(uint32_t a, uint32_t b, uint32_t selector)
{
    uint64_t bytes = a | (uint64_t)b << 32;
    uint32_t d = 0;

    for (int i = 0; i < 4; i++) {
        uint32_t n = selector >> 4 * i & 15;
        if (n > 7)
            emu_die("a permutation selects byte %u of 8", n);
        d |= (uint32_t)(bytes >> 8 * n & 255) << 8 * i;
    }
    return d;
}

/* One rounding: f32 holds differences of the f16 that occur here, and all products, exactly. */
static inline uint32_t f16x2_sub(uint32_t a, uint32_t b)
{
    uint32_t low = clb_f32_to_f16(clb_f16_to_f32((uint16_t)a) - clb_f16_to_f32((uint16_t)b));

    return low | (uint32_t)clb_f32_to_f16(clb_f16_to_f32((uint16_t)(a >> 16)) -
                                          clb_f16_to_f32((uint16_t)(b >> 16)))
                     << 16;
}
static inline uint32_t f16x2_mul(uint32_t a, uint32_t b)
{
    uint32_t low = clb_f32_to_f16(clb_f16_to_f32((uint16_t)a) * clb_f16_to_f32((uint16_t)b));

    return low | (uint32_t)clb_f32_to_f16(clb_f16_to_f32((uint16_t)(a >> 16)) *
                                          clb_f16_to_f32((uint16_t)(b >> 16)))
                     << 16;
}
static inline uint32_t bf16x2_mul(uint32_t a, uint32_t b)
{
    uint32_t low = clb_f32_to_bf16(clb_bf16_to_f32((uint16_t)a) * clb_bf16_to_f32((uint16_t)b));

    return low | (uint32_t)clb_f32_to_bf16(clb_bf16_to_f32((uint16_t)(a >> 16)) *
                                           clb_bf16_to_f32((uint16_t)(b >> 16)))
                     << 16;
}

static inline void mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    emu_mma_16816(c, a, b, EMU_MMA_F16);
}
static inline void mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    emu_mma_16816(c, a, b, EMU_MMA_BF16);
}

static inline void copy_async(void *to, const void *from, uint32_t bytes)
{
    emu_copy_async(to, from, bytes);
}
static inline void copy_commit(void)
{
    emu_copy_commit();
}
template <int N> static inline void copy_wait(void)
{
    emu_copy_wait(N);
}

/* Nobody sees that: but it is no mistake of the kernel's, either. */
static inline void prefetch(const void *p, size_t n)
{
    for (size_t at = threadIdx.x * 128; at < n; at += blockDim.x * 128)
        emu_access((const char *)p + at, n - at < 128 ? n - at : 128, false);
}

template <class T> static inline T load_const(const T *p)
{
    return *p;
}

static inline float exp_quick(float x)
{
    return expf(x);
}
static inline float divide_quick(float a, float b)
{
    return a / b;
}

static inline void sine_cosine(double angle, double *sine, double *cosine)
{
    *sine = sin(angle);
    *cosine = cos(angle);
}

static inline void acquire_blocks(void)
{
    emu_acquire_blocks();
}

#endif
