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

/* -- cuDNN: its graphs, which are described attribute by attribute ----------------------------- */

enum { CLB_DNN_SUCCESS = 0, CLB_DNN_NOT_SUPPORTED = 3000 }; /* 3000 to 3999: it cannot do that */
enum { /* descriptors */
       CLB_DNN_POINTWISE = 0,
       CLB_DNN_ENGINECFG = 3,
       CLB_DNN_ENGINEHEUR = 4,
       CLB_DNN_PLAN = 5,
       CLB_DNN_OPERATION_POINTWISE = 13,
       CLB_DNN_GRAPH = 15,
       CLB_DNN_PACK = 16,
       CLB_DNN_TENSOR = 17,
       CLB_DNN_MATMUL = 18,
       CLB_DNN_OPERATION_MATMUL = 19,
       CLB_DNN_REDUCTION = 21,
       CLB_DNN_OPERATION_REDUCTION = 22
};
enum { /* types of attributes */
       CLB_DNN_OF_HANDLE = 0,
       CLB_DNN_OF_DATA_TYPE = 1,
       CLB_DNN_OF_BOOLEAN = 2,
       CLB_DNN_OF_INT64 = 3,
       CLB_DNN_OF_DOUBLE = 5,
       CLB_DNN_OF_POINTER = 6,
       CLB_DNN_OF_HEUR_MODE = 8,
       CLB_DNN_OF_POINTWISE_MODE = 14,
       CLB_DNN_OF_DESCRIPTOR = 15,
       CLB_DNN_OF_REDUCTION = 18
};
enum { /* attributes */
       CLB_DNN_POINTWISE_MODE = 0,
       CLB_DNN_POINTWISE_MATH = 1,
       CLB_DNN_POINTWISE_AXIS = 9,
       CLB_DNN_HEUR_MODE = 200,
       CLB_DNN_HEUR_GRAPH = 201,
       CLB_DNN_HEUR_RESULTS = 202,
       CLB_DNN_PLAN_HANDLE = 400,
       CLB_DNN_PLAN_CONFIG = 401,
       CLB_DNN_PLAN_WORKSPACE = 402,
       CLB_DNN_POINTWISE_DESC = 750,
       CLB_DNN_POINTWISE_X = 751,
       CLB_DNN_POINTWISE_B = 752,
       CLB_DNN_POINTWISE_Y = 753,
       CLB_DNN_POINTWISE_T = 758,
       CLB_DNN_GRAPH_HANDLE = 800,
       CLB_DNN_GRAPH_OPS = 801,
       CLB_DNN_TENSOR_ALIGNMENT = 900,
       CLB_DNN_TENSOR_TYPE = 901,
       CLB_DNN_TENSOR_DIMS = 902,
       CLB_DNN_TENSOR_STRIDES = 903,
       CLB_DNN_TENSOR_ID = 906,
       CLB_DNN_TENSOR_VIRTUAL = 907,
       CLB_DNN_TENSOR_BY_VALUE = 908,
       CLB_DNN_PACK_IDS = 1000,
       CLB_DNN_PACK_POINTERS = 1001,
       CLB_DNN_PACK_WORKSPACE = 1003,
       CLB_DNN_MATMUL_MATH = 1500,
       CLB_DNN_MATMUL_PADDING = 1503,
       CLB_DNN_MATMUL_A = 1520,
       CLB_DNN_MATMUL_B = 1521,
       CLB_DNN_MATMUL_C = 1522,
       CLB_DNN_MATMUL_DESC = 1523,
       CLB_DNN_MATMUL_M = 1525, /* rows, columns, inputs that count, of each batch */
       CLB_DNN_MATMUL_N = 1526,
       CLB_DNN_MATMUL_K = 1527,
       CLB_DNN_REDUCTION_OP = 1600,
       CLB_DNN_REDUCTION_MATH = 1601,
       CLB_DNN_REDUCTION_X = 1610,
       CLB_DNN_REDUCTION_Y = 1611,
       CLB_DNN_REDUCTION_DESC = 1612
};
enum { CLB_DNN_FLOAT = 0, CLB_DNN_HALF = 2, CLB_DNN_INT32 = 4, CLB_DNN_BOOL = 11 }; /* elements */
enum { /* modes */
       CLB_DNN_ADD = 0,
       CLB_DNN_MUL = 1,
       CLB_DNN_DIV = 6,
       CLB_DNN_SUB = 9,
       CLB_DNN_EXP = 13,
       CLB_DNN_CMP_GE = 303,
       CLB_DNN_CMP_LT = 304,
       CLB_DNN_AND = 400,
       CLB_DNN_INDEX = 501,
       CLB_DNN_SELECT = 601,
       CLB_DNN_REDUCE_ADD = 0,
       CLB_DNN_REDUCE_MAX = 3,
       CLB_DNN_HEUR_FALLBACK = 2,
       CLB_DNN_HEUR_A = 3
};
struct clb_cuda_dnn {
    struct clb_cuda_lib lib;
    size_t (*version)(void);
    const char *(*status_text)(int status);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, struct CUstream_st *stream);
    int (*make)(int descriptor, void **desc);
    int (*drop)(void *desc);
    int (*set)(void *desc, int attribute, int type, int64_t n, const void *values);
    int (*finalize)(void *desc);
    int (*get)(void *desc, int attribute, int type, int64_t n, int64_t *got, void *values);
    int (*execute)(void *handle, void *plan, void *pack);
};
/* Older ones than this do not have all that is described, or have known mistakes in it. */
enum { CLB_DNN_MAJOR = 9, CLB_DNN_MINOR = 11 };
bool clb_cuda_dnn_open(struct clb_cuda_dnn *d);
void clb_cuda_dnn_close(struct clb_cuda_dnn *d);

/* What is installed, in words: "cuBLASLt 13.1.0, no cuDNN, NCCL 2.28.3". Of the last one only the
 * version is asked. */
void clb_cuda_libs_describe(char *text, size_t n);

#endif
