/* fill_avx512.c - the slots that AVX-512 improves. */
#include "kernels/kernels.h"

void clb_kernels_fill_avx512(struct clb_kernels *k)
{
    (void)k;
}
