/* emu_libs.cc - fakes of NVIDIA's libraries, found under their names when a test says that they are
 * there. cuBLASLt multiplies as it is told and in f32, with bits that depend on the algorithm: one
 * that splits K adds two halves. A product that names no algorithm gets one by its columns, as the
 * real library chooses by shape. */
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <set>
#include <string>

#include "emu_call.h"
#include "emu_libs.h"
#include "kernels/cuda/cuda_libs.h"
#include "lib/base/half.h"

static std::set<std::string> &missing(void)
{
    static std::set<std::string> of = { "libcublasLt.so.13", "libcudnn.so.9", "libnccl.so.2" };

    return of;
}
static std::string &lacking(void) /* a function that no library has */
{
    static std::string name;

    return name;
}
static std::map<std::string, size_t> &versions(void) /* other than the usual ones */
{
    static std::map<std::string, size_t> of;

    return of;
}
static int open_libraries, open_objects;

void emu_library_version(const char *file, size_t version)
{
    versions()[file] = version;
}

size_t emu_library_version_of(const char *file, size_t usual)
{
    auto v = versions().find(file);

    return v == versions().end() || !v->second ? usual : v->second;
}

void emu_library(const char *file, bool there, const char *lacks)
{
    if (there)
        missing().erase(file);
    else
        missing().insert(file);
    lacking() = lacks ? lacks : "";
}

int emu_library_leaks(void)
{
    if (open_libraries || open_objects)
        printf("# emu: %d libraries and %d of their objects were not closed\n", open_libraries,
               open_objects);
    return open_libraries + open_objects + emu_dnn_leaks();
}

/* -- cuBLASLt ---------------------------------------------------------------------------------- */

/* Calls take turns, are counted, and may be told to fail. */
#define LT_CALL(name)                                                                              \
    emu_turn turn_;                                                                                \
    if (emu_refuses("cublasLt" name, true))                                                        \
    return NOT_SUPPORTED

enum { INVALID_VALUE = 7, NOT_SUPPORTED = 15, ALGO = 0x636f6c69 };
enum kind { HANDLE = 1, DESC, LAYOUT, PREF };
struct object {
    kind is;
    int type, trans_a;
    uint64_t rows, cols;
    int64_t ld;
    uint32_t reductions;
    uint64_t workspace;
};

static object *check(void *p, kind is, const char *call)
{
    object *o = (object *)p;

    if (!o || o->is != is)
        emu_die("%s: an argument is of another kind", call);
    return o;
}

static int make(void **out, const object &o)
{
    *out = new object(o);
    open_objects++;
    return CLB_LT_SUCCESS;
}

static int destroy(void *p)
{
    object *o = (object *)p;

    if (!o || o->is < HANDLE || o->is > PREF)
        emu_die("cuBLASLt: what is destroyed is no object");
    delete o;
    open_objects--;
    return CLB_LT_SUCCESS;
}

static int create(void **handle)
{
    LT_CALL("Create");
    return make(handle, { HANDLE, 0, 0, 0, 0, 0, 0, 0 });
}
static size_t version(void)
{
    return emu_library_version_of("libcublasLt.so.13", 130100);
}
static const char *status_text(int status)
{
    return status == CLB_LT_SUCCESS  ? "CUBLAS_STATUS_SUCCESS"
           : status == INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
                                     : "CUBLAS_STATUS_NOT_SUPPORTED";
}
static int desc_create(void **desc, int compute, int scale_type)
{
    LT_CALL("MatmulDescCreate");
    if (compute != CLB_LT_COMPUTE_32F || scale_type != CLB_LT_R_32F)
        return NOT_SUPPORTED;
    return make(desc, { DESC, 0, 0, 0, 0, 0, 0, 0 });
}
static int desc_set(void *desc, int what, const void *value, size_t bytes)
{
    LT_CALL("MatmulDescSetAttribute");
    if (what != CLB_LT_DESC_TRANSA || bytes != 4)
        return INVALID_VALUE;
    memcpy(&check(desc, DESC, "cublasLtMatmulDescSetAttribute")->trans_a, value, 4);
    return CLB_LT_SUCCESS;
}
static int layout_create(void **layout, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
    LT_CALL("MatrixLayoutCreate");
    if (!rows || !cols || ld < (int64_t)rows)
        return INVALID_VALUE;
    return make(layout, { LAYOUT, type, 0, rows, cols, ld, 0, 0 });
}
static int pref_create(void **pref)
{
    LT_CALL("MatmulPreferenceCreate");
    return make(pref, { PREF, 0, 0, 0, 0, 0, ~0u, 32 << 20 });
}
static int pref_set(void *pref, int what, const void *value, size_t bytes)
{
    LT_CALL("MatmulPreferenceSetAttribute");
    object *o = check(pref, PREF, "cublasLtMatmulPreferenceSetAttribute");

    if (what == CLB_LT_PREF_MAX_WORKSPACE && bytes == 8)
        memcpy(&o->workspace, value, 8);
    else if (what == CLB_LT_PREF_REDUCTION_MASK && bytes == 4)
        memcpy(&o->reductions, value, 4);
    else
        return INVALID_VALUE;
    return CLB_LT_SUCCESS;
}

static bool fits(const object *desc, const object *a, const object *b, const object *c,
                 const object *d)
{
    return desc->trans_a == CLB_LT_OP_T && a->type == b->type && a->type != CLB_LT_R_32F &&
           (d->type == a->type || d->type == CLB_LT_R_32F) && c->type == d->type &&
           a->rows == b->rows && d->rows == a->cols && d->cols == b->cols && c->rows == d->rows &&
           c->cols == d->cols && a->ld % 8 == 0 && b->ld % 8 == 0;
}

/* What the library would choose: it splits K for few columns, unless it may not. */
static void choose(clb_lt_result *r, uint64_t columns, bool may_split)
{
    memset(r, 0, sizeof *r);
    r->algo.data[0] = ALGO;
    r->algo.data[1] = may_split && columns < 64 ? 2 : 1; /* parts of K */
    r->algo.data[2] = r->algo.data[1] > 1;               /* reduction scheme */
    r->workspace = r->algo.data[1] > 1 ? 1 << 20 : 0;
    r->waves = 1;
}

static int heuristic(void *handle, void *desc, void *a, void *b, void *c, void *d, void *pref,
                     int wanted, clb_lt_result *result, int *found)
{
    const char *call = "cublasLtMatmulAlgoGetHeuristic";
    LT_CALL("MatmulAlgoGetHeuristic");
    object *p = check(pref, PREF, call), *lb = check(b, LAYOUT, call);

    check(handle, HANDLE, call);
    *found = 0;
    if (wanted < 1)
        return INVALID_VALUE;
    if (!fits(check(desc, DESC, call), check(a, LAYOUT, call), lb, check(c, LAYOUT, call),
              check(d, LAYOUT, call)))
        return NOT_SUPPORTED;
    if (wanted > 1) { /* one that it has looked at, and that cannot be used */
        choose(&result[*found], lb->cols, false);
        result[*found].algo.data[3] = 1;
        result[(*found)++].state = NOT_SUPPORTED;
    }
    choose(&result[(*found)++], lb->cols, p->reductions != 0 && p->workspace >= 1 << 20);
    return CLB_LT_SUCCESS;
}

static int algo_get(const clb_lt_algo *algo, int what, void *value, size_t bytes, size_t *written)
{
    LT_CALL("MatmulAlgoConfigGetAttribute");
    if (bytes != 4 || algo->data[0] != ALGO)
        return INVALID_VALUE;
    uint32_t v = (uint32_t)(what == CLB_LT_CONFIG_SPLITK ? algo->data[1] : algo->data[2]);
    memcpy(value, &v, 4);
    if (written)
        *written = 4;
    return CLB_LT_SUCCESS;
}

static float widen(int type, uint16_t bits)
{
    return type == CLB_LT_R_16F ? clb_f16_to_f32(bits) : clb_bf16_to_f32(bits);
}

static void store(int type, void *to, uint64_t at, float f)
{
    if (type == CLB_LT_R_32F)
        ((float *)to)[at] = f;
    else
        ((uint16_t *)to)[at] = type == CLB_LT_R_16F ? clb_f32_to_f16(f) : clb_f32_to_bf16(f);
}

static void multiply(const object &a, const uint16_t *x, const object &b, const uint16_t *y,
                     const object &d, void *z, float factor, uint64_t parts)
{
    uint64_t part = (a.rows + parts - 1) / parts;

    for (uint64_t j = 0; j < b.cols; j++)
        for (uint64_t i = 0; i < a.cols; i++) {
            float all = 0;
            for (uint64_t from = 0; from < a.rows; from += part) {
                float sum = 0;
                for (uint64_t k = from; k < from + part && k < a.rows; k++)
                    sum += widen(a.type, x[i * (uint64_t)a.ld + k]) *
                           widen(b.type, y[j * (uint64_t)b.ld + k]);
                all += sum;
            }
            store(d.type, z, j * (uint64_t)d.ld + i, factor * all);
        }
}

static void need_device(const void *p, uint64_t bytes, const char *what)
{
    if ((uintptr_t)p % 16 || emu_memory_of(p, bytes, "cublasLtMatmul") != EMU_DEVICE)
        emu_die("cublasLtMatmul: %s is no device memory, or not aligned to 16 bytes", what);
}

static int matmul(void *handle, void *desc, const void *alpha, const void *x, void *la,
                  const void *y, void *lb, const void *beta, const void *, void *lc, void *z,
                  void *ld, const clb_lt_algo *algo, void *workspace, size_t workspace_bytes,
                  CUstream_st *stream)
{
    const char *call = "cublasLtMatmul";
    object a = *check(la, LAYOUT, call), b = *check(lb, LAYOUT, call), d = *check(ld, LAYOUT, call);
    const float factor = *(const float *)alpha; /* of the host: read now */
    clb_lt_result chosen;

    LT_CALL("Matmul");
    check(handle, HANDLE, call);
    emu_check_stream(stream, call);
    if (!fits(check(desc, DESC, call), &a, &b, check(lc, LAYOUT, call), &d) ||
        *(const float *)beta != 0)
        return NOT_SUPPORTED;
    choose(&chosen, b.cols, workspace != nullptr && workspace_bytes >= 1 << 20);
    if (algo && (algo->data[0] != ALGO || algo->data[3]))
        return INVALID_VALUE;
    uint64_t parts = (algo ? *algo : chosen.algo).data[1];
    need_device(x, ((a.cols - 1) * (uint64_t)a.ld + a.rows) * 2, "A");
    need_device(y, ((b.cols - 1) * (uint64_t)b.ld + b.rows) * 2, "B");
    need_device(z, ((d.cols - 1) * (uint64_t)d.ld + d.rows) * (d.type == CLB_LT_R_32F ? 4 : 2),
                "D");
    emu_step step;
    int device = stream->device;
    step.run = [=] {
        emu_open_device(device);
        multiply(a, (const uint16_t *)x, b, (const uint16_t *)y, d, z, factor, parts);
        emu_close_device();
    };
    emu_enqueue(stream, step);
    return CLB_LT_SUCCESS;
}

/* -- the others -------------------------------------------------------------------------------- */

static int nccl_version(int *v)
{
    *v = 22803;
    return 0;
}

static const struct {
    const char *file, *name;
    void *function;
} functions[] = {
#define BLAS(name, f)                                                                              \
    {                                                                                              \
        "libcublasLt.so.13", "cublasLt" name, (void *)f                                            \
    }
    BLAS("Create", create),
    BLAS("Destroy", destroy),
    BLAS("GetVersion", version),
    BLAS("GetStatusString", status_text),
    BLAS("MatmulDescCreate", desc_create),
    BLAS("MatmulDescDestroy", destroy),
    BLAS("MatmulDescSetAttribute", desc_set),
    BLAS("MatrixLayoutCreate", layout_create),
    BLAS("MatrixLayoutDestroy", destroy),
    BLAS("MatmulPreferenceCreate", pref_create),
    BLAS("MatmulPreferenceDestroy", destroy),
    BLAS("MatmulPreferenceSetAttribute", pref_set),
    BLAS("MatmulAlgoGetHeuristic", heuristic),
    BLAS("MatmulAlgoConfigGetAttribute", algo_get),
    BLAS("Matmul", matmul),
    { "libcudnn.so.9", "cudnnGetVersion", emu_dnn_function("cudnnGetVersion") },
    { "libnccl.so.2", "ncclGetVersion", (void *)nccl_version },
};

void *emu_dlopen(const char *file, int)
{
    for (const auto &f : functions)
        if (!strcmp(f.file, file) && !missing().count(file)) {
            open_libraries++;
            return (void *)f.file;
        }
    return nullptr;
}

void *emu_dlsym(void *library, const char *name)
{
    if (!strcmp((const char *)library, "libcudnn.so.9") && lacking() != name)
        return emu_dnn_function(name);
    for (const auto &f : functions)
        if (!strcmp(f.file, (const char *)library) && !strcmp(f.name, name) && lacking() != name)
            return f.function;
    return nullptr;
}

int emu_dlclose(void *)
{
    open_libraries--;
    return 0;
}
