/* fill_avx2.c - the slots that AVX2 improves. */
#include "kernels/kernels.h"

void clb_kernels_fill_avx2(struct clb_kernels *k)
{
    (void)k;
}

void clb_kernels_fill_avxvnni(struct clb_kernels *k)
{
    (void)k;
}
