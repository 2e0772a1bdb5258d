/* kv_dtype.h - what numbers of the KV cache are stored as; apart from kv.h for the kernels of
 * devices, which are not C. */
#ifndef CLB_BACKEND_KV_DTYPE_H
#define CLB_BACKEND_KV_DTYPE_H

enum clb_kv_dtype { CLB_KV_F32, CLB_KV_F16, CLB_KV_INT8 };

#endif
