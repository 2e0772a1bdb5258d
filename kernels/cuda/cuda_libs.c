#include "kernels/cuda/cuda_libs.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct entry {
    const char *name;
    size_t at; /* of its pointer in the table */
};

static void give_up(struct clb_cuda_lib *lib)
{
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
            give_up(lib);
            return false;
        }
        memcpy((char *)lib + entry[i].at, &f, sizeof f);
    }
    return true;
}

static void close_table(struct clb_cuda_lib *lib)
{
    if (lib->library)
        give_up(lib);
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
        ENTRY("MatmulAlgoCheck", algo_check),
        ENTRY("MatmulAlgoConfigGetAttribute", algo_get),
        ENTRY("Matmul", matmul),
    };
#undef ENTRY

    memset(b, 0, sizeof *b);
    if (!open_table(&b->lib, SO("cublasLt", TOOLKIT), entry, sizeof entry / sizeof *entry))
        return false;
    set_version(&b->lib, b->version(), 10000, 100);
    return true;
}

void clb_cuda_blas_close(struct clb_cuda_blas *b)
{
    close_table(&b->lib);
}

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
    if (open_table(&dnn.lib, "libcudnn.so.9", &dnn_entry, 1))
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
