/* widen.cuh - from bytes of a tile to the registers of mma. A lane is 4g + t; its warp works on two
 * tiles, g < 4 on the first, g >= 4 on the second, and r4 = g & 3. In a group of 32 inputs each
 * lane loads LOADS times 16 bytes: word i of a load belongs to row 4 r4 + i of its tile. What comes
 * out are two halves of 16 inputs by two mma: mma m has row 4 r4 + 2m in its slot g and the next
 * row in slot g + 8. The four inputs 4t .. 4t+3 of a lane fill the slots 2t, 2t+1, 2t+8, 2t+9, so
 * that B is 8 bytes side by side: activations 4t .. 4t+3 of the half, in natural order. */
#ifndef CLB_KERNELS_CUDA_WIDEN_CUH
#define CLB_KERNELS_CUDA_WIDEN_CUH

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device.cuh"

struct fragments {
    uint32_t a[2][2][4]; /* [half][mma] */
};

/* What formats with f16 activations share. */
struct f16_format {
    static __device__ __forceinline__ void mma(float c[4], const uint32_t a[4], const uint32_t b[2])
    {
        mma_f16(c, a, b);
    }
    static __device__ __forceinline__ uint16_t narrow(float f)
    {
        return f32_to_f16(f);
    }
};
struct bf16_format {
    static __device__ __forceinline__ void mma(float c[4], const uint32_t a[4], const uint32_t b[2])
    {
        mma_bf16(c, a, b);
    }
    static __device__ __forceinline__ uint16_t narrow(float f)
    {
        return f32_to_bf16(f);
    }
};

/* Row j of the lane's four: pairs of inputs (4t, 4t+1), (4t+2, 4t+3) of a half. */
static __device__ __forceinline__ void place(fragments &f, int half, int j, uint32_t low,
                                             uint32_t high)
{
    f.a[half][j >> 1][j & 1] = low;
    f.a[half][j >> 1][2 + (j & 1)] = high;
}

/* -- int8: q + 128 in a byte ------------------------------------------------------------------- */

/* 0x64 above a byte u is the f16 1024 + u; 1152 less is u - 128, exactly. */
static __device__ __forceinline__ void widen_bytes(uint32_t w, uint32_t &low, uint32_t &high)
{
    low = f16x2_sub(permute(w, 0x64646464u, 0x4140), 0x64806480u);
    high = f16x2_sub(permute(w, 0x64646464u, 0x4342), 0x64806480u);
}

template <enum clb_dtype> struct format;

template <> struct format<CLB_INT8> : f16_format {
    enum { LOADS = 2, STAGES = 3 };
    static __device__ __forceinline__ uint64_t steps_at(uint32_t)
    {
        return 0;
    }
    static __device__ __forceinline__ uint64_t tile_bytes(uint32_t cols)
    {
        return (uint64_t)((cols + 31) / 32) * 512;
    }
    /* Where load i of a group stands behind the scales, for lane quad r4 and t; whether it is. */
    static __device__ __forceinline__ uint32_t load_at(uint32_t group, int i, uint32_t t,
                                                       uint32_t r4)
    {
        return group * 512 + (uint32_t)i * 256 + t * 64 + r4 * 16;
    }
    static __device__ __forceinline__ bool there(uint32_t group, int, uint32_t, uint32_t cols)
    {
        return group * 32 < cols;
    }
    static __device__ __forceinline__ uint2 scales(const uint8_t *, uint32_t, uint32_t)
    {
        return make_uint2(0, 0);
    }
    static __device__ __forceinline__ void expand(fragments &f, const uint4 v[LOADS], uint2,
                                                  const uint32_t *)
    {
        UNROLL
        for (int half = 0; half < 2; half++) {
            const uint32_t w[4] = { v[half].x, v[half].y, v[half].z, v[half].w };
            UNROLL
            for (int j = 0; j < 4; j++) {
                uint32_t low, high;
                widen_bytes(w[j], low, high);
                place(f, half, j, low, high);
            }
        }
    }
};

/* -- 4 bits: byte j holds inputs 4t+j (low) and 16+4t+j (high nibble) of a group --------------- */

struct format_4bit {
    enum { LOADS = 1, STAGES = 4 };
    static __device__ __forceinline__ uint32_t load_at(uint32_t group, int, uint32_t t, uint32_t r4)
    {
        return group * 256 + t * 64 + r4 * 16;
    }
    static __device__ __forceinline__ bool there(uint32_t group, int, uint32_t, uint32_t cols)
    {
        return group * 32 < cols;
    }
};

/* Bytes low0 high0 low1 high1 (or 2, 3) of a word through a table of 16 bytes in four registers.
 * Two look-ups by three bits, a third chooses between them by the fourth. */
static __device__ __forceinline__ uint32_t look_up(const uint32_t table[4], uint32_t three_bits,
                                                   uint32_t fourth)
{
    return permute(permute(table[0], table[1], three_bits & 0xffff),
                   permute(table[2], table[3], three_bits & 0xffff), fourth & 0xffff);
}

template <> struct format<CLB_INT4> : f16_format, format_4bit {
    static __device__ __forceinline__ uint64_t steps_at(uint32_t cols)
    {
        return (uint64_t)((cols + 31) / 32 * 32 + 63) / 64 * 64;
    }
    static __device__ __forceinline__ uint64_t tile_bytes(uint32_t cols)
    {
        return steps_at(cols) + (uint64_t)((cols + 31) / 32) * 256;
    }
    /* f16 of the four rows of a quad */
    static __device__ __forceinline__ uint2 scales(const uint8_t *tile, uint32_t group, uint32_t r4)
    {
        return load_const((const uint2 *)(tile + group * 32 + r4 * 8));
    }
    static __device__ __forceinline__ void expand(fragments &f, const uint4 v[LOADS], uint2 scale,
                                                  const uint32_t book[4])
    {
        const uint32_t w[4] = { v[0].x, v[0].y, v[0].z, v[0].w };

        UNROLL
        for (int j = 0; j < 4; j++) {
            uint32_t s = permute(j & 2 ? scale.y : scale.x, 0, j & 1 ? 0x3232 : 0x1010);
            uint32_t three = w[j] & 0x77777777u;
            uint32_t fourth = ((w[j] >> 1) & 0x44444444u) | 0x32103210u;
            uint32_t a = look_up(book, three, fourth);
            uint32_t b = look_up(book, three >> 16, fourth >> 16);
            UNROLL
            for (int half = 0; half < 2; half++) {
                uint32_t pick = half ? 0x4341 : 0x4240;
                place(f, half, j,
                      f16x2_mul(f16x2_sub(permute(a, 0x64646464u, pick), 0x64806480u), s),
                      f16x2_mul(f16x2_sub(permute(b, 0x64646464u, pick), 0x64806480u), s));
            }
        }
    }
};

template <> struct format<CLB_MXFP4> : bf16_format, format_4bit {
    static __device__ __forceinline__ uint64_t steps_at(uint32_t cols)
    {
        return (uint64_t)((cols + 31) / 32 * 16 + 63) / 64 * 64;
    }
    static __device__ __forceinline__ uint64_t tile_bytes(uint32_t cols)
    {
        return steps_at(cols) + (uint64_t)((cols + 31) / 32) * 256;
    }
    /* e8m0 of the four rows of a quad, one byte each */
    static __device__ __forceinline__ uint2 scales(const uint8_t *tile, uint32_t group, uint32_t r4)
    {
        return make_uint2(load_const((const uint32_t *)(tile + group * 16 + r4 * 4)), 0);
    }
    /* 2^(e - 127) as a bf16 pair; e = 0 is a subnormal */
    static __device__ __forceinline__ uint32_t power(uint32_t e)
    {
        return (e ? e << 7 : 0x40) * 0x10001u;
    }
    /* The bf16 of 0, .5, 1, 1.5, 2, 3, 4, 6 have four different low and three high bytes. */
    static __device__ __forceinline__ void expand(fragments &f, const uint4 v[LOADS], uint2 scale,
                                                  const uint32_t *)
    {
        const uint32_t w[4] = { v[0].x, v[0].y, v[0].z, v[0].w };
        const uint32_t top[4] = { 0x3f3f3f00u, 0x40404040u, 0xbfbfbf80u, 0xc0c0c0c0u };

        UNROLL
        for (int j = 0; j < 4; j++) {
            uint32_t s = power(scale.x >> 8 * j & 255);
            UNROLL
            for (int pair = 0; pair < 2; pair++) { /* inputs 4t, 4t+1, then 4t+2, 4t+3 */
                uint32_t n = w[j] >> 16 * pair;
                uint32_t three = n & 0x7777u;
                uint32_t high = look_up(top, three, ((n >> 1) & 0x4444u) | 0x3210u);
                uint32_t low = permute(0xc0800000u, 0xc0804000u, three);
                f.a[0][j >> 1][2 * pair + (j & 1)] = bf16x2_mul(permute(low, high, 0x6240), s);
                f.a[1][j >> 1][2 * pair + (j & 1)] = bf16x2_mul(permute(low, high, 0x7351), s);
            }
        }
    }
};

/* -- 16-bit floats: a step has two inputs of each row ------------------------------------------ */

struct format_16bit {
    enum { LOADS = 4, STAGES = 2 };
    static __device__ __forceinline__ uint64_t steps_at(uint32_t)
    {
        return 0;
    }
    static __device__ __forceinline__ uint64_t tile_bytes(uint32_t cols)
    {
        return (uint64_t)((cols + 1) / 2) * 64;
    }
    static __device__ __forceinline__ uint32_t step(uint32_t group, int i, uint32_t t)
    {
        return group * 16 + (uint32_t)(i >> 1) * 8 + 2 * t + (uint32_t)(i & 1);
    }
    static __device__ __forceinline__ uint32_t load_at(uint32_t group, int i, uint32_t t,
                                                       uint32_t r4)
    {
        return step(group, i, t) * 64 + r4 * 16;
    }
    static __device__ __forceinline__ bool there(uint32_t group, int i, uint32_t t, uint32_t cols)
    {
        return step(group, i, t) * 2 < cols;
    }
    static __device__ __forceinline__ uint2 scales(const uint8_t *, uint32_t, uint32_t)
    {
        return make_uint2(0, 0);
    }
    static __device__ __forceinline__ void expand(fragments &f, const uint4 v[LOADS], uint2,
                                                  const uint32_t *)
    {
        UNROLL
        for (int half = 0; half < 2; half++) {
            const uint4 a = v[2 * half], b = v[2 * half + 1];
            place(f, half, 0, a.x, b.x);
            place(f, half, 1, a.y, b.y);
            place(f, half, 2, a.z, b.z);
            place(f, half, 3, a.w, b.w);
        }
    }
};
template <> struct format<CLB_F16> : f16_format, format_16bit {
};
template <> struct format<CLB_BF16> : bf16_format, format_16bit {
};

#endif
