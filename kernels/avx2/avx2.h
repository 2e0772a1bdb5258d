/* avx2.h - what the files of this folder share. */
#ifndef CLB_KERNELS_AVX2_AVX2_H
#define CLB_KERNELS_AVX2_AVX2_H

#include "kernels/kernels.h"

/* Each fills the slots of its file. */
void clb_fill_rows_avx2(struct clb_kernels *k);
void clb_fill_quantise_avx2(struct clb_kernels *k);
void clb_fill_attn_avx2(struct clb_kernels *k);
void clb_fill_matmul_float_avx2(struct clb_kernels *k);
void clb_fill_matmul_int_avx2(struct clb_kernels *k);

#endif
