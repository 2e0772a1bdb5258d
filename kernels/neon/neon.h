/* neon.h - what the files of this folder share. */
#ifndef CLB_KERNELS_NEON_NEON_H
#define CLB_KERNELS_NEON_NEON_H

#include "kernels/kernels.h"

/* Each fills the slots of its file. */
void clb_fill_rows_neon(struct clb_kernels *k);
void clb_fill_quantise_neon(struct clb_kernels *k);
void clb_fill_attn_neon(struct clb_kernels *k);
void clb_fill_matmul_float_neon(struct clb_kernels *k);
void clb_fill_matmul_int_neon(struct clb_kernels *k);

#endif
