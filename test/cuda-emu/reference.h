/* reference.h - the CPU's own functions, for tests in C++, which cannot include their headers. */
#ifndef TEST_CUDA_EMU_REFERENCE_H
#define TEST_CUDA_EMU_REFERENCE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "lib/format/arch.h"

/* clb_cpu_choose with the scalar kernels. score [n] is overwritten. */
void reference_choose(const struct clb_arch *a, const float *correction, float *score, uint32_t n,
                      uint32_t top_k, uint32_t *chosen, float *weight);

/* What clb_cpu_append stores of a row of n numbers in an int8 cache. Returns its scale; NAN: no
 * memory. */
float reference_codes(const float *x, uint32_t n, int8_t *code);

#ifdef __cplusplus
}
#endif

#endif
