/* device.cuh - what C++ has no words for: instructions, launches, shared memory. Every function
 * here has a twin in test/cuda-emu/clb_device_twin.h, which runs on the CPU; the instructions
 * themselves are what only a GPU can prove, so nothing else in this folder contains any. */
#ifndef CLB_KERNELS_CUDA_DEVICE_CUH
#define CLB_KERNELS_CUDA_DEVICE_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#ifndef __CUDACC__
#include <clb_device_twin.h>
#else

#include <cuda_fp16.h>

#define UNROLL                         _Pragma("unroll")
#define CLB_PRAGMA(text)               _Pragma(#text)
#define UNROLL_BY(n)                   CLB_PRAGMA(unroll n)
#define CLB_SHARED(type, name, n)      __shared__ type name[n]
#define CLB_DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) type name[]
#define CLB_LAUNCH(kernel, grid, block, shared, stream, ...)                                       \
    kernel<<<(grid), (block), (shared), (stream)>>>(__VA_ARGS__)

static __device__ __forceinline__ float f16_to_f32(uint16_t bits)
{
    return __half2float(__ushort_as_half(bits));
}
static __device__ __forceinline__ uint16_t f32_to_f16(float f)
{
    return __half_as_ushort(__float2half_rn(f));
}
static __device__ __forceinline__ float bf16_to_f32(uint16_t bits)
{
    return __uint_as_float((uint32_t)bits << 16);
}
/* Round half to even; NaN stays NaN. */
static __device__ __forceinline__ uint16_t f32_to_bf16(float f)
{
    uint32_t u = __float_as_uint(f);

    return f != f ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Byte i of the result is byte (selector nibble i) & 7 of b:a; nibbles below 8. */
static __device__ __forceinline__ uint32_t permute(uint32_t a, uint32_t b, uint32_t selector)
{
    return __byte_perm(a, b, selector);
}
static __device__ __forceinline__ uint32_t f16x2_sub(uint32_t a, uint32_t b)
{
    uint32_t d;

    asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
static __device__ __forceinline__ uint32_t f16x2_mul(uint32_t a, uint32_t b)
{
    uint32_t d;

    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
/* a * b with one rounding (an addition of -0 changes nothing; sm_80 has no plain product). */
static __device__ __forceinline__ uint32_t bf16x2_mul(uint32_t a, uint32_t b)
{
    uint32_t d = 0;

#if __CUDA_ARCH__ >= 800
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
#else
    __trap(); /* the host refuses bf16 there */
#endif
    return d;
}

/* c[16x8] += a[16x16] b[16x8]: registers as PTX lays out mma.m16n8k16. */
static __device__ __forceinline__ void mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
}
static __device__ __forceinline__ void mma_bf16(float c[4], const uint32_t a[4],
                                                const uint32_t b[2])
{
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __trap();
#endif
}

/* 16 bytes from global to shared memory, both aligned: the first `bytes` (0 or 16) of them, else
 * zeros. They are there after the wait. Without the instruction (sm_75) at once. */
static __device__ __forceinline__ void copy_async(void *to, const void *from, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
#else
    *(uint4 *)to = bytes ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
#endif
}
static __device__ __forceinline__ void copy_commit(void)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/* Until at most N of this thread's groups are under way. */
template <int N> static __device__ __forceinline__ void copy_wait(void)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

/* Asks for n bytes, 128 at a time, to be in the L2 cache: the block's threads share them. */
static __device__ __forceinline__ void prefetch(const void *p, size_t n)
{
    UNROLL_BY(1)
    for (size_t at = threadIdx.x * 128; at < n; at += blockDim.x * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(
            __cvta_generic_to_global((const char *)p + at)));
}

/* Memory that no kernel of this launch writes. */
template <class T> static __device__ __forceinline__ T load_const(const T *p)
{
    return __ldg(p);
}

/* Quick ones for the inside of an MLP: 2 ulp and more (a plain division is a call). */
static __device__ __forceinline__ float exp_quick(float x)
{
    return __expf(x);
}
static __device__ __forceinline__ float divide_quick(float a, float b)
{
    return __fdividef(a, b);
}

/* Of an angle up to 1e6 or so, to 1e-10: without the slow path of a reduction for any angle. */
static __device__ __forceinline__ void sine_cosine(double angle, double *sine, double *cosine)
{
    sincospi(angle * 0.31830988618379067154, sine, cosine);
}

/* What other blocks wrote before they counted themselves may be read from here on. */
static __device__ __forceinline__ void acquire_blocks(void)
{
    __threadfence();
}

#endif
#endif
