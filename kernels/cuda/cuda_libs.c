#include "kernels/cuda/cuda_libs.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct entry {
    const char *name;
    size_t at; /* of its pointer in the table */
};

static void close_table(struct clb_cuda_lib *lib)
{
    if (lib->library)
        dlclose(lib->library);
    lib->library = NULL;
}

/* Fills the pointers of a table that begins with `lib`. */
static bool open_table(struct clb_cuda_lib *lib, const char *file, const struct entry *entry,
                       size_t n)
{
    lib->library = dlopen(file, RTLD_LAZY | RTLD_LOCAL);
    if (!lib->library) {
        snprintf(lib->reason, sizeof lib->reason, "%s is not found", file);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        void *f = dlsym(lib->library, entry[i].name);
        if (!f) {
            snprintf(lib->reason, sizeof lib->reason, "%s has no %s", file, entry[i].name);
            close_table(lib);
            return false;
        }
        memcpy((char *)lib + entry[i].at, &f, sizeof f);
    }
    return true;
}

static void set_version(struct clb_cuda_lib *lib, size_t v, size_t major, size_t minor)
{
    lib->major = (int)(v / major);
    lib->minor = (int)(v % major / minor);
    lib->patch = (int)(v % minor);
}

/* Libraries that belong to the toolkit have its major version. */
#define SO_(name, version) "lib" name ".so." #version
#define SO(name, version)  SO_(name, version)
#if CUDART_VERSION >= 14000
#error cuBLASLt of this toolkit is not known
#elif CUDART_VERSION >= 13000
#define TOOLKIT 13
#elif CUDART_VERSION >= 12000
#define TOOLKIT 12
#else
#define TOOLKIT 11
#endif

bool clb_cuda_blas_open(struct clb_cuda_blas *b)
{
#define ENTRY(name, field)                                                                         \
    {                                                                                              \
        "cublasLt" name, offsetof(struct clb_cuda_blas, field)                                     \
    }
    static const struct entry entry[] = {
        ENTRY("Create", create),
        ENTRY("Destroy", destroy),
        ENTRY("GetVersion", version),
        ENTRY("GetStatusString", status_text),
        ENTRY("MatmulDescCreate", desc_create),
        ENTRY("MatmulDescDestroy", desc_destroy),
        ENTRY("MatmulDescSetAttribute", desc_set),
        ENTRY("MatrixLayoutCreate", layout_create),
        ENTRY("MatrixLayoutDestroy", layout_destroy),
        ENTRY("MatmulPreferenceCreate", pref_create),
        ENTRY("MatmulPreferenceDestroy", pref_destroy),
        ENTRY("MatmulPreferenceSetAttribute", pref_set),
        ENTRY("MatmulAlgoGetHeuristic", heuristic),
        ENTRY("MatmulAlgoConfigGetAttribute", algo_get),
        ENTRY("Matmul", matmul),
    };
#undef ENTRY

    memset(b, 0, sizeof *b);
    if (!open_table(&b->lib, SO("cublasLt", TOOLKIT), entry, sizeof entry / sizeof *entry))
        return false;
    set_version(&b->lib, b->version(), 10000, 100);
    if (b->lib.major == TOOLKIT)
        return true;
    snprintf(b->lib.reason, sizeof b->lib.reason, "%s says that it is %d.%d.%d, not a %d",
             SO("cublasLt", TOOLKIT), b->lib.major, b->lib.minor, b->lib.patch, TOOLKIT);
    close_table(&b->lib);
    return false;
}

void clb_cuda_blas_close(struct clb_cuda_blas *b)
{
    close_table(&b->lib);
}

#define DNN "libcudnn.so.9"

bool clb_cuda_dnn_open(struct clb_cuda_dnn *d)
{
#define ENTRY(name, field)                                                                         \
    {                                                                                              \
        "cudnn" name, offsetof(struct clb_cuda_dnn, field)                                         \
    }
    static const struct entry entry[] = {
        ENTRY("GetVersion", version),
        ENTRY("GetErrorString", status_text),
        ENTRY("Create", create),
        ENTRY("Destroy", destroy),
        ENTRY("SetStream", set_stream),
        ENTRY("BackendCreateDescriptor", make),
        ENTRY("BackendDestroyDescriptor", drop),
        ENTRY("BackendSetAttribute", set),
        ENTRY("BackendFinalize", finalize),
        ENTRY("BackendGetAttribute", get),
        ENTRY("BackendExecute", execute),
    };
#undef ENTRY

    memset(d, 0, sizeof *d);
    if (!open_table(&d->lib, DNN, entry, sizeof entry / sizeof *entry))
        return false;
    set_version(&d->lib, d->version(), 10000, 100);
    if (d->lib.major == CLB_DNN_MAJOR && d->lib.minor >= CLB_DNN_MINOR)
        return true;
    snprintf(d->lib.reason, sizeof d->lib.reason,
             DNN " is %d.%d.%d, but %d.%d or a later %d is needed", d->lib.major, d->lib.minor,
             d->lib.patch, CLB_DNN_MAJOR, CLB_DNN_MINOR, CLB_DNN_MAJOR);
    close_table(&d->lib);
    return false;
}

void clb_cuda_dnn_close(struct clb_cuda_dnn *d)
{
    close_table(&d->lib);
}

/* For the description only the version is asked of these. */
struct dnn {
    struct clb_cuda_lib lib;
    size_t (*version)(void);
};
struct nccl {
    struct clb_cuda_lib lib;
    int (*version)(int *version);
};

static void add(char *text, size_t n, const char *name, const struct clb_cuda_lib *lib)
{
    size_t at = strlen(text);
    const char *comma = at ? ", " : "";

    if (lib->library)
        snprintf(text + at, n - at, "%s%s %d.%d.%d", comma, name, lib->major, lib->minor,
                 lib->patch);
    else
        snprintf(text + at, n - at, "%sno %s", comma, name);
}

void clb_cuda_libs_describe(char *text, size_t n)
{
    static const struct entry dnn_entry = { "cudnnGetVersion", offsetof(struct dnn, version) };
    static const struct entry nccl_entry = { "ncclGetVersion", offsetof(struct nccl, version) };
    struct clb_cuda_blas blas;
    struct dnn dnn = { 0 };
    struct nccl nccl = { 0 };
    int version = 0;

    *text = '\0';
    clb_cuda_blas_open(&blas);
    add(text, n, "cuBLASLt", &blas.lib);
    clb_cuda_blas_close(&blas);
    if (open_table(&dnn.lib, DNN, &dnn_entry, 1))
        set_version(&dnn.lib, dnn.version(), 10000, 100);
    add(text, n, "cuDNN", &dnn.lib);
    close_table(&dnn.lib);
    if (open_table(&nccl.lib, "libnccl.so.2", &nccl_entry, 1) && nccl.version(&version) == 0)
        set_version(&nccl.lib, (size_t)version, 10000, 100);
    add(text, n, "NCCL", &nccl.lib);
    close_table(&nccl.lib);
}

/* Where their headers are, they must say the same. */
#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is not " #theirs)
#if !defined CUDA_IS_EMULATED && __has_include(<cublasLt.h>)
#include <cublasLt.h>
SAME(CLB_LT_SUCCESS, CUBLAS_STATUS_SUCCESS);
SAME(CLB_LT_COMPUTE_32F, CUBLAS_COMPUTE_32F);
SAME(CLB_LT_OP_T, CUBLAS_OP_T);
SAME(CLB_LT_R_32F, CUDA_R_32F);
SAME(CLB_LT_R_16F, CUDA_R_16F);
SAME(CLB_LT_R_16BF, CUDA_R_16BF);
SAME(CLB_LT_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(CLB_LT_PREF_MAX_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(CLB_LT_PREF_REDUCTION_MASK, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SAME(CLB_LT_CONFIG_SPLITK, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
SAME(CLB_LT_CONFIG_REDUCTION, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME);
SAME(sizeof(struct clb_lt_algo), sizeof(cublasLtMatmulAlgo_t));
SAME(sizeof(struct clb_lt_result), sizeof(cublasLtMatmulHeuristicResult_t));
SAME(offsetof(struct clb_lt_result, state), offsetof(cublasLtMatmulHeuristicResult_t, state));
#endif
#if !defined CUDA_IS_EMULATED && __has_include(<cudnn.h>)
#include <cudnn.h>
/* The functions take what the table says that they take. */
SAME(sizeof cudnnCreate((cudnnHandle_t *)NULL), sizeof(int));
SAME(sizeof cudnnSetStream((cudnnHandle_t)NULL, (struct CUstream_st *)NULL), sizeof(int));
SAME(sizeof cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, (void **)NULL),
     sizeof(int));
SAME(sizeof cudnnBackendSetAttribute((void *)NULL, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64,
                                     (int64_t)1, (const void *)NULL),
     sizeof(int));
SAME(sizeof cudnnBackendGetAttribute((void *)NULL, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64,
                                     (int64_t)1, (int64_t *)NULL, (void *)NULL),
     sizeof(int));
SAME(sizeof cudnnBackendExecute((cudnnHandle_t)NULL, (void *)NULL, (void *)NULL), sizeof(int));
SAME(sizeof(cudnnBackendDescriptorType_t), sizeof(int));
SAME(sizeof(cudnnDataType_t), sizeof(int));
SAME(sizeof(cudnnPointwiseMode_t), sizeof(int));
SAME(CLB_DNN_SUCCESS, CUDNN_STATUS_SUCCESS);
SAME(CLB_DNN_NOT_SUPPORTED, CUDNN_STATUS_NOT_SUPPORTED);
SAME(CLB_DNN_POINTWISE, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
SAME(CLB_DNN_ENGINECFG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
SAME(CLB_DNN_ENGINEHEUR, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
SAME(CLB_DNN_PLAN, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
SAME(CLB_DNN_OPERATION_POINTWISE, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
SAME(CLB_DNN_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
SAME(CLB_DNN_PACK, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
SAME(CLB_DNN_TENSOR, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
SAME(CLB_DNN_MATMUL, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
SAME(CLB_DNN_OPERATION_MATMUL, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
SAME(CLB_DNN_REDUCTION, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
SAME(CLB_DNN_OPERATION_REDUCTION, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
SAME(CLB_DNN_OF_HANDLE, CUDNN_TYPE_HANDLE);
SAME(CLB_DNN_OF_DATA_TYPE, CUDNN_TYPE_DATA_TYPE);
SAME(CLB_DNN_OF_BOOLEAN, CUDNN_TYPE_BOOLEAN);
SAME(CLB_DNN_OF_INT64, CUDNN_TYPE_INT64);
SAME(CLB_DNN_OF_DOUBLE, CUDNN_TYPE_DOUBLE);
SAME(CLB_DNN_OF_POINTER, CUDNN_TYPE_VOID_PTR);
SAME(CLB_DNN_OF_HEUR_MODE, CUDNN_TYPE_HEUR_MODE);
SAME(CLB_DNN_OF_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE);
SAME(CLB_DNN_OF_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR);
SAME(CLB_DNN_OF_REDUCTION, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
SAME(CLB_DNN_POINTWISE_MODE, CUDNN_ATTR_POINTWISE_MODE);
SAME(CLB_DNN_POINTWISE_MATH, CUDNN_ATTR_POINTWISE_MATH_PREC);
SAME(CLB_DNN_POINTWISE_AXIS, CUDNN_ATTR_POINTWISE_AXIS);
SAME(CLB_DNN_HEUR_MODE, CUDNN_ATTR_ENGINEHEUR_MODE);
SAME(CLB_DNN_HEUR_GRAPH, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
SAME(CLB_DNN_HEUR_RESULTS, CUDNN_ATTR_ENGINEHEUR_RESULTS);
SAME(CLB_DNN_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
SAME(CLB_DNN_PLAN_CONFIG, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
SAME(CLB_DNN_PLAN_WORKSPACE, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
SAME(CLB_DNN_POINTWISE_DESC, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
SAME(CLB_DNN_POINTWISE_X, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
SAME(CLB_DNN_POINTWISE_B, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
SAME(CLB_DNN_POINTWISE_Y, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
SAME(CLB_DNN_POINTWISE_T, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
SAME(CLB_DNN_GRAPH_HANDLE, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
SAME(CLB_DNN_GRAPH_OPS, CUDNN_ATTR_OPERATIONGRAPH_OPS);
SAME(CLB_DNN_TENSOR_ALIGNMENT, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
SAME(CLB_DNN_TENSOR_TYPE, CUDNN_ATTR_TENSOR_DATA_TYPE);
SAME(CLB_DNN_TENSOR_DIMS, CUDNN_ATTR_TENSOR_DIMENSIONS);
SAME(CLB_DNN_TENSOR_STRIDES, CUDNN_ATTR_TENSOR_STRIDES);
SAME(CLB_DNN_TENSOR_ID, CUDNN_ATTR_TENSOR_UNIQUE_ID);
SAME(CLB_DNN_TENSOR_VIRTUAL, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
SAME(CLB_DNN_TENSOR_BY_VALUE, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
SAME(CLB_DNN_PACK_IDS, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
SAME(CLB_DNN_PACK_POINTERS, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
SAME(CLB_DNN_PACK_WORKSPACE, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
SAME(CLB_DNN_MATMUL_MATH, CUDNN_ATTR_MATMUL_COMP_TYPE);
SAME(CLB_DNN_MATMUL_PADDING, CUDNN_ATTR_MATMUL_PADDING_VALUE);
SAME(CLB_DNN_MATMUL_A, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
SAME(CLB_DNN_MATMUL_B, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
SAME(CLB_DNN_MATMUL_C, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
SAME(CLB_DNN_MATMUL_DESC, CUDNN_ATTR_OPERATION_MATMUL_DESC);
SAME(CLB_DNN_MATMUL_M, CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC);
SAME(CLB_DNN_MATMUL_N, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC);
SAME(CLB_DNN_MATMUL_K, CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC);
SAME(CLB_DNN_REDUCTION_OP, CUDNN_ATTR_REDUCTION_OPERATOR);
SAME(CLB_DNN_REDUCTION_MATH, CUDNN_ATTR_REDUCTION_COMP_TYPE);
SAME(CLB_DNN_REDUCTION_X, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
SAME(CLB_DNN_REDUCTION_Y, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
SAME(CLB_DNN_REDUCTION_DESC, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
SAME(CLB_DNN_FLOAT, CUDNN_DATA_FLOAT);
SAME(CLB_DNN_HALF, CUDNN_DATA_HALF);
SAME(CLB_DNN_INT32, CUDNN_DATA_INT32);
SAME(CLB_DNN_BOOL, CUDNN_DATA_BOOLEAN);
SAME(CLB_DNN_ADD, CUDNN_POINTWISE_ADD);
SAME(CLB_DNN_MUL, CUDNN_POINTWISE_MUL);
SAME(CLB_DNN_DIV, CUDNN_POINTWISE_DIV);
SAME(CLB_DNN_SUB, CUDNN_POINTWISE_SUB);
SAME(CLB_DNN_EXP, CUDNN_POINTWISE_EXP);
SAME(CLB_DNN_CMP_GE, CUDNN_POINTWISE_CMP_GE);
SAME(CLB_DNN_CMP_LT, CUDNN_POINTWISE_CMP_LT);
SAME(CLB_DNN_AND, CUDNN_POINTWISE_LOGICAL_AND);
SAME(CLB_DNN_INDEX, CUDNN_POINTWISE_GEN_INDEX);
SAME(CLB_DNN_SELECT, CUDNN_POINTWISE_BINARY_SELECT);
SAME(CLB_DNN_REDUCE_ADD, CUDNN_REDUCE_TENSOR_ADD);
SAME(CLB_DNN_REDUCE_MAX, CUDNN_REDUCE_TENSOR_MAX);
SAME(CLB_DNN_HEUR_FALLBACK, CUDNN_HEUR_MODE_FALLBACK);
SAME(CLB_DNN_HEUR_A, CUDNN_HEUR_MODE_A);
#endif
