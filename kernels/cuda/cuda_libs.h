/* cuda_libs.h - libraries of NVIDIA that are used where they are installed: opened at run time,
 * through tables of functions, so that a program starts without them and needs none of their
 * headers. Handles are theirs and opaque; numbers have the names of their headers.
 *
 * Each open fills a table, or leaves `library` NULL and says in `reason` what is missing. A table
 * is used by one backend, which closes it. */
#ifndef CLB_KERNELS_CUDA_CUDA_LIBS_H
#define CLB_KERNELS_CUDA_CUDA_LIBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct CUstream_st;

struct clb_cuda_lib {
    void *library; /* NULL: not there */
    int major, minor, patch;
    char reason[160];
};

/* -- cuBLASLt ---------------------------------------------------------------------------------- */

enum { CLB_LT_SUCCESS = 0, CLB_LT_COMPUTE_32F = 68, CLB_LT_OP_T = 1 };
enum { CLB_LT_R_32F = 0, CLB_LT_R_16F = 2, CLB_LT_R_16BF = 14 };        /* element types */
enum { CLB_LT_DESC_TRANSA = 3 };                                        /* of a product */
enum { CLB_LT_PREF_MAX_WORKSPACE = 1, CLB_LT_PREF_REDUCTION_MASK = 3 }; /* of a preference */
enum { CLB_LT_CONFIG_SPLITK = 2, CLB_LT_CONFIG_REDUCTION = 3 };         /* of an algorithm */
struct clb_lt_algo {
    uint64_t data[8];
};
struct clb_lt_result {
    struct clb_lt_algo algo;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};
struct clb_cuda_blas {
    struct clb_cuda_lib lib;
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    size_t (*version)(void);
    const char *(*status_text)(int status);
    int (*desc_create)(void **desc, int compute, int scale_type);
    int (*desc_destroy)(void *desc);
    int (*desc_set)(void *desc, int what, const void *value, size_t bytes);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
    int (*layout_destroy)(void *layout);
    int (*pref_create)(void **pref);
    int (*pref_destroy)(void *pref);
    int (*pref_set)(void *pref, int what, const void *value, size_t bytes);
    int (*heuristic)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *pref,
                     int wanted, struct clb_lt_result *result, int *found);
    int (*algo_check)(void *handle, void *desc, void *a, void *b, void *c, void *d,
                      const struct clb_lt_algo *algo, struct clb_lt_result *result);
    int (*algo_get)(const struct clb_lt_algo *algo, int what, void *value, size_t bytes,
                    size_t *written);
    /* alpha, beta: host memory. Column-major, as all of it. */
    int (*matmul)(void *handle, void *desc, const void *alpha, const void *a, void *la,
                  const void *b, void *lb, const void *beta, const void *c, void *lc, void *d,
                  void *ld, const struct clb_lt_algo *algo, void *workspace, size_t workspace_bytes,
                  struct CUstream_st *stream);
};
bool clb_cuda_blas_open(struct clb_cuda_blas *b);
void clb_cuda_blas_close(struct clb_cuda_blas *b);

/* What is installed, in words: "cuBLASLt 13.1.0, no cuDNN, NCCL 2.28.3". Of the last two only the
 * version is asked. */
void clb_cuda_libs_describe(char *text, size_t n);

#endif
