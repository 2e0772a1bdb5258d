/* matrix_rig.h - random matrices as the file holds them, activations in 16 bits, and products of
 * both in f64 to hold kernels against. */
#ifndef TEST_CUDA_EMU_MATRIX_RIG_H
#define TEST_CUDA_EMU_MATRIX_RIG_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device.cuh"
#include "test/cuda-emu/emu_test.h"

struct generator {
    uint64_t state;
    uint32_t next(uint32_t n)
    {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (uint32_t)(state >> 33) % n;
    }
    float real(float most) /* -most .. most */
    {
        return most * ((float)next(200001) / 100000 - 1);
    }
};

static inline bool is_bf16(enum clb_dtype t)
{
    return t == CLB_BF16 || t == CLB_MXFP4;
}
static inline uint16_t narrow(enum clb_dtype t, float f)
{
    return is_bf16(t) ? clb_f32_to_bf16(f) : clb_f32_to_f16(f);
}
static inline float widen(enum clb_dtype t, uint16_t bits)
{
    return is_bf16(t) ? clb_bf16_to_f32(bits) : clb_f16_to_f32(bits);
}

/* A block of bytes with tiles, row scales and a bias, and the matrix in it. */
struct host_matrix {
    enum clb_dtype dtype;
    uint32_t rows, cols;
    std::vector<uint8_t> bytes;
    struct clb_cuda_part part;
    bool biased;
    std::vector<float> wide; /* [rows][cols] */

    host_matrix(generator &r, enum clb_dtype t, uint32_t n_row, uint32_t n_col, bool with_bias)
        : dtype(t), rows(n_row), cols(n_col), biased(with_bias)
    {
        uint64_t tiles = (clb_tiles_bytes(t, rows, cols) + 63) / 64 * 64;
        uint64_t scales = (clb_row_scale_bytes(t, rows) + 63) / 64 * 64;

        bytes.resize(tiles + scales + rows * 4);
        part = { 0, tiles, with_bias ? tiles + scales : CLB_CUDA_NONE };
        fill_tiles(r);
        for (uint64_t i = 0; i < clb_row_scale_bytes(t, rows) / 4; i++)
            set(tiles + 4 * i, 0.001f + r.real(0.0005f));
        for (uint64_t i = 0; i < rows; i++)
            set(tiles + scales + 4 * i, r.real(0.5f));
        wide.resize((size_t)rows * cols);
        struct clb_matrix m = view();
        for (uint32_t i = 0; i < rows; i++)
            clb_matrix_row(&m, i, &wide[(size_t)i * cols]);
    }
    void set(uint64_t at, float f)
    {
        memcpy(&bytes[at], &f, 4);
    }
    void fill_tiles(generator &r)
    {
        uint64_t tile = clb_tile_bytes(dtype, cols), steps = clb_tile_steps_at(dtype, cols);
        uint32_t groups = (cols + 31) / 32, zero = dtype == CLB_INT4 ? zero_code() : 0;

        for (uint64_t t = 0; t < (rows + 15) / 16; t++) {
            uint8_t *p = &bytes[t * tile];
            for (uint32_t i = 0; i < groups * 16; i++)
                if (dtype == CLB_INT4) {
                    uint16_t h = clb_f32_to_f16(0.0007f + r.real(0.0006f));
                    memcpy(p + 2 * i, &h, 2);
                } else if (dtype == CLB_MXFP4) {
                    p[i] = (uint8_t)(118 + r.next(6));
                }
            for (uint32_t row = 0; row < 16; row++)
                for (uint32_t c = 0; c < clb_cols_padded(dtype, cols); c++)
                    put(r, p + steps, row, c, t * 16 + row < rows && c < cols, zero);
        }
    }
    static uint32_t zero_code(void)
    {
        uint32_t best = 0;

        for (uint32_t i = 1; i < 16; i++)
            if (abs(clb_book_int4[i]) < abs(clb_book_int4[best]))
                best = i;
        return best;
    }
    void put(generator &r, uint8_t *p, uint32_t row, uint32_t c, bool there, uint32_t zero)
    {
        if (dtype == CLB_INT8) {
            p[c / 4 * 64 + row * 4 + c % 4] = (uint8_t)(there ? 1 + r.next(255) : 128);
        } else if (dtype == CLB_INT4 || dtype == CLB_MXFP4) {
            uint32_t code = there ? r.next(16) : zero, high = c % 32 / 16;
            uint8_t *at = p + c / 32 * 256 + c % 16 / 4 * 64 + row * 4 + c % 4;
            *at = (uint8_t)(high ? (*at & 15) | code << 4 : (*at & 240) | code);
        } else if (dtype == CLB_F32) {
            float f = there ? r.real(0.1f) : 0;
            memcpy(p + c * 64 + row * 4, &f, 4);
        } else {
            uint16_t h = narrow(dtype, there ? r.real(0.1f) : 0);
            memcpy(p + c / 2 * 64 + row * 4 + c % 2 * 2, &h, 2);
        }
    }
    struct clb_matrix view(void) const
    {
        const uint8_t *p = bytes.data();

        return { dtype,
                 rows,
                 cols,
                 p,
                 dtype == CLB_INT8 ? (const float *)(const void *)(p + part.scale_at) : nullptr,
                 biased ? (const float *)(const void *)(p + part.bias_at) : nullptr,
                 dtype == CLB_INT4    ? clb_book_int4
                 : dtype == CLB_MXFP4 ? clb_book_mxfp4
                                      : nullptr };
    }
    /* Row r times x, with the bias; *size: the sum of magnitudes. */
    double times(uint32_t r, const float *x, double *size) const
    {
        const float *w = &wide[(size_t)r * cols];
        double sum = biased ? view().bias[r] : 0;

        *size = fabs(sum);
        for (uint32_t c = 0; c < cols; c++) {
            sum += (double)w[c] * x[c];
            *size += fabs((double)w[c] * x[c]);
        }
        return sum;
    }
};

/* How far a product may be off, as a share of its sum of magnitudes: f32 sums, and int4 weights
 * that are rounded once. */
static inline double product_bound(enum clb_dtype t, uint32_t cols)
{
    return (t == CLB_INT4 ? 0x1p-11 : 0) + (cols + 8) * 0x1p-23;
}

/* Rows of activations: what is stored, and its f32. */
struct host_rows {
    size_t ld;
    std::vector<uint16_t> bits;
    std::vector<float> wide;

    host_rows(generator &r, enum clb_dtype t, size_t n, uint32_t cols)
        : ld(clb_cuda_ld(cols)), bits(n * ld), wide(n * ld)
    {
        for (size_t i = 0; i < n; i++)
            for (uint32_t c = 0; c < cols; c++) {
                bits[i * ld + c] = narrow(t, r.real(2));
                wide[i * ld + c] = widen(t, bits[i * ld + c]);
            }
    }
    const float *row(size_t i) const
    {
        return &wide[i * ld];
    }
};

static inline void pack_book(uint32_t book[4])
{
    memset(book, 0, 16);
    for (int i = 0; i < 16; i++)
        book[i / 4] |= (uint32_t)(clb_book_int4[i] + 128) << 8 * (i % 4);
}

#endif
