/* cuda_call.h - calls of the CUDA runtime. */
#ifndef CLB_KERNELS_CUDA_CUDA_CALL_H
#define CLB_KERNELS_CUDA_CUDA_CALL_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "lib/base/err.h"

/* A call of the runtime that failed: what was done, and its text. */
bool clb_cuda_ok(cudaError_t e, struct clb_err *err, const char *what);

#endif
