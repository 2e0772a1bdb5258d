/* cuda_runtime.h - stands in for the header of that name: .cu files that include it compile with
 * the host compiler, and run on emu_block.cc. It has what the kernels use. */
#ifndef TEST_CUDA_EMU_CUDA_RUNTIME_H
#define TEST_CUDA_EMU_CUDA_RUNTIME_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <cuda_runtime_api.h>

#include "emu.h"

/* -- language ---------------------------------------------------------------------------------- */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

#define threadIdx (emu_self.thread)
#define blockIdx  (emu_self.block)
#define blockDim  (emu_self.block_dim)
#define gridDim   (emu_self.grid_dim)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned nx = 1, unsigned ny = 1, unsigned nz = 1) : x(nx), y(ny), z(nz)
    {
    }
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return { x, y };
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return { x, y, z, w };
}

/* What kernels say instead of the keyword, so that shared memory has an owner here. */
#define CLB_SHARED(type, name, n)                                                                  \
    static const char emu_key_##name = 0;                                                          \
    type *const name = (type *)emu_shared(&emu_key_##name, (n) * sizeof(type))
#define CLB_DYNAMIC_SHARED(type, name) type *const name = (type *)emu_dynamic_shared()
#define CLB_LAUNCH(kernel, grid, block, shared, stream, ...)                                       \
    do {                                                                                           \
        dim3 grid_ = (grid), block_ = (block);                                                     \
        emu_launch((const void *)(kernel), #kernel, { grid_.x, grid_.y, grid_.z },                 \
                   { block_.x, block_.y, block_.z }, (shared), (stream),                           \
                   emu_bind(kernel, __VA_ARGS__));                                                 \
    } while (0)

/* -- what threads do together ------------------------------------------------------------------ */

static inline void __syncthreads(void)
{
    emu_block_barrier();
}
static inline int __syncthreads_count(int vote)
{
    return emu_block_count(vote != 0);
}
static inline void __syncwarp(unsigned mask = ~0u)
{
    emu_warp_barrier(mask, EMU_SYNC);
}
static inline void __threadfence(void)
{
}
template <class T> static inline T __shfl_sync(unsigned mask, T v, int from)
{
    static_assert(sizeof v == 4 || sizeof v == 8, "shuffles move 4 or 8 bytes");
    uint64_t bits = 0;

    memcpy(&bits, &v, sizeof v);
    bits = emu_exchange(mask, bits, from & 31);
    memcpy(&v, &bits, sizeof v);
    return v;
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int lanes)
{
    return __shfl_sync(mask, v, emu_lane() ^ lanes);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T v, int lanes)
{
    return __shfl_sync(mask, v, emu_lane() < lanes ? emu_lane() : emu_lane() - lanes);
}
static inline unsigned __ballot_sync(unsigned mask, int vote)
{
    return emu_ballot(mask, vote != 0);
}
static inline int __any_sync(unsigned mask, int vote)
{
    return emu_ballot(mask, vote != 0) != 0;
}
static inline int __all_sync(unsigned mask, int vote)
{
    return emu_ballot(mask, vote != 0) == mask;
}
static inline unsigned __match_any_sync(unsigned mask, unsigned value)
{
    return emu_match(mask, value);
}
static inline int __popc(unsigned v)
{
    return __builtin_popcount(v);
}
static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}
static inline unsigned __float_as_uint(float f)
{
    unsigned u;

    memcpy(&u, &f, sizeof u);
    return u;
}
static inline float __uint_as_float(unsigned u)
{
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}
/* One thread runs at a time, and no other touches the address but by atomics: no race. */
#define EMU_ATOMIC static inline __attribute__((noinline)) EMU_UNSEEN
template <class T> EMU_ATOMIC T atomicAdd(T *p, T v)
{
    T before = *p;

    *p = before + v;
    return before;
}

/* -- host -------------------------------------------------------------------------------------- */

template <class F>
static inline cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute what, int bytes)
{
    return cudaFuncSetAttribute((const void *)kernel, what, bytes);
}

#endif
