/* avx512.h - what the files of this folder share. */
#ifndef CLB_KERNELS_AVX512_AVX512_H
#define CLB_KERNELS_AVX512_AVX512_H

#include "kernels/kernels.h"

/* Each fills the slots of its file. */
void clb_fill_rows_avx512(struct clb_kernels *k);
void clb_fill_attn_avx512(struct clb_kernels *k);
void clb_fill_matmul_float_avx512(struct clb_kernels *k);
void clb_fill_matmul_int_avx512(struct clb_kernels *k);

#endif
