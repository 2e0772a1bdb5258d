/* decode.h - weights that are published as codes and scales, to numbers. */
#ifndef CLB_IMPORT_DECODE_H
#define CLB_IMPORT_DECODE_H

#include <stddef.h>
#include <stdint.h>

/* F8_E4M3: sign, 4 bits of exponent (bias 7), 3 of fraction; no infinity, 0x7f and 0xff are NaN. */
float clb_e4m3(uint8_t code);

/* The scales of an F8_E4M3 matrix with rows of `line` elements: one for each block of block_rows x
 * block_cols, row by row; blocks at the edges are cut. */
struct clb_fp8_scales {
    const float *scale;
    uint32_t line, block_rows, block_cols;
};
/* n elements that follow element `index` of the matrix: code times scale, rounded to f32. */
void clb_decode_fp8(float *out, const uint8_t *code, uint64_t index, size_t n,
                    const struct clb_fp8_scales *s);

/* MXFP4: groups of 32, two codes a byte, the low one first: e2m1 times 2^(scale - 127), exactly. */
void clb_decode_mxfp4(float *out, const uint8_t *code, const uint8_t *scale, size_t n_group);
/* One group in the order of a tile (lib/format/dtype.h): four steps of 4 bytes, `step` bytes
 * apart. */
void clb_mxfp4_steps(uint8_t *out, size_t step, const uint8_t code[16]);

#endif
