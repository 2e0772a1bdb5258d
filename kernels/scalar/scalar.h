/* scalar.h - what the files of this folder share. */
#ifndef CLB_KERNELS_SCALAR_SCALAR_H
#define CLB_KERNELS_SCALAR_SCALAR_H

#include "kernels/kernels.h"

/* Each fills the slots of its file. */
void clb_fill_matmul_scalar(struct clb_kernels *k);
void clb_fill_rows_scalar(struct clb_kernels *k);
void clb_fill_attn_scalar(struct clb_kernels *k);

/* The tree that ends every sum over 16 lanes. */
static inline float clb_tree16(float lane[16])
{
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; i++)
            lane[i] += lane[i + width];
    return lane[0];
}

#endif
