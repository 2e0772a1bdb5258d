/* test_backend_dense.c - int8 and int4 matrices that are widened to f16 for cuBLASLt, gated
 * products by it, what that costs, and a library that fails at every step. */
#include "test/cuda-emu/backend_rig.h"
#include "test/unit/rig_archs.h"

#include "lib/base/half.h"

static const struct cut whole = { 1, LENGTH, LENGTH };

static struct rig_options on_device(const struct tiny *file)
{
    return (struct rig_options){ .file = file,
                                 .op = clb_backend_device(),
                                 .kv = CLB_KV_F16,
                                 .max_rows = 256,
                                 .dense_widened = true };
}

/* Sizes that are multiples of 8, so that the library takes all of them, the output matrix too. */
static void even_arch(struct clb_arch *a)
{
    rig_mixed_arch(a);
    a->vocab_size = 104;
}

static void build(struct tiny *file, struct tiny *wide, const struct clb_arch *a, enum clb_dtype t)
{
    struct tiny_options make = { .arch = a, .seed = 3, .expert = CLB_INT8, .dense = t };

    CHECK(tiny_build(file, &make));
    make.expert = make.dense = CLB_F32;
    CHECK(tiny_build(wide, &make));
}

static float *reference(const struct tiny *file, struct tiny *wide)
{
    widen_file(wide, file);
    return run(&(struct rig_options){ .file = wide, .n_thread = 1 }, whole);
}

/* -- how near, and the same bits --------------------------------------------------------------- */

static void near_the_cpu_and_itself(enum clb_dtype t)
{
    struct clb_arch a;
    struct tiny file, wide;

    rig_mixed_arch(&a);
    build(&file, &wide, &a, t);
    struct rig_options o = on_device(&file);
    float *cpu = reference(&file, &wide);
    uint64_t before = emu_calls("cublasLtMatmul");
    float *got = run(&o, whole);
    /* of a pass: 3 layers of 4, and gate, up, down of 2 shared experts and a dense MLP */
    CHECK_EQ(emu_calls("cublasLtMatmul") - before, 3 * 4 + 3 * 3);
    double d = distance(cpu, got);
    printf("# %s as f16: %.2g of the largest logit\n", clb_dtype_name(t), d);
    CHECK(d <= rig_bound[CLB_F16]);
    same_rows(&o, got, (struct cut){ 1, 9, 1 });
    same_rows(&o, got, (struct cut){ 2, 41, 17 });
    free(cpu);
    free(got);
    tiny_free(&file);
    tiny_free(&wide);
}

static void int8_and_int4_are_widened(void)
{
    near_the_cpu_and_itself(CLB_INT8);
    near_the_cpu_and_itself(CLB_INT4);
}

/* -- range ------------------------------------------------------------------------------------- */

static void scale_role(struct tiny *file, enum clb_role role, float factor)
{
    struct clb_reader r;
    struct clb_err err = { 0 };

    CHECK(clb_reader_open_memory(&r, file->bytes, file->n, &err));
    for (uint32_t i = 0; i < r.n_tensors; i++) {
        float *scale = (void *)(file->bytes + r.tensors[i].scale_offset);

        for (uint32_t k = 0; r.tensors[i].spec.role == role && k < r.tensors[i].spec.rows; k++)
            scale[k] *= factor;
    }
    clb_reader_close(&r);
}

/* Queries are normed, so weights of any size will do: far beyond what f16 holds, and far below. */
static void scales_of_any_size(void)
{
    static const float factor[] = { 0x1p30f, 0x1p-5f };

    for (int i = 0; i < 2; i++) {
        struct clb_arch a;
        struct tiny file, wide;

        rig_mixed_arch(&a);
        a.norm_eps = a.qk_norm_eps = 1e-12f;
        build(&file, &wide, &a, CLB_INT8);
        scale_role(&file, CLB_Q, factor[i]);
        scale_role(&file, CLB_K, 1 / factor[i] * 0x1p-20f);
        struct rig_options o = on_device(&file);
        float *cpu = reference(&file, &wide);
        float *got = run(&o, whole);
        double d = distance(cpu, got);
        printf("# weights times %g: %.2g of the largest logit\n", (double)factor[i], d);
        CHECK(d <= rig_bound[CLB_F16]);
        free(cpu);
        free(got);
        tiny_free(&file);
        tiny_free(&wide);
    }
}

/* -- memory ------------------------------------------------------------------------------------ */

static uint64_t room(const struct tiny *file, bool widened, char *text, size_t n)
{
    struct rig_options o = on_device(file);
    struct rig g;
    uint64_t left = 0;

    o.dense_widened = widened;
    if (rig_open(&g, &o)) {
        left = g.op->device->available(g.be);
        snprintf(text, n, "%s", g.op->describe(g.be));
        rig_close(&g);
    }
    return left;
}

/* Every byte counts against the memory of the device, and the description says how many. */
static void memory_is_counted(void)
{
    struct clb_arch a;
    struct tiny file;
    struct clb_reader r;
    struct clb_err err = { 0 };
    char text[1200];
    int64_t more = 0;

    even_arch(&a);
    CHECK(tiny_build(&file, &(struct tiny_options){
                                .arch = &a, .seed = 3, .expert = CLB_INT8, .dense = CLB_INT8 }));
    CHECK(clb_reader_open_memory(&r, file.bytes, file.n, &err));
    for (uint32_t i = 0; i < r.n_tensors; i++)
        if (r.tensors[i].dtype == CLB_INT8 && r.tensors[i].spec.rows >= 16) {
            uint64_t rows = 2ull * r.tensors[i].spec.rows * r.tensors[i].spec.cols;
            more +=
                (int64_t)((rows + 255) & ~255ull) - (int64_t)((r.tensors[i].size + 255) & ~255ull);
        }
    clb_reader_close(&r);
    uint64_t own = room(&file, false, text, sizeof text);
    CHECK(!strstr(text, "cuBLASLt"));
    CHECK_EQ((int64_t)(own - room(&file, true, text, sizeof text)), more);
    CHECK(more > 0);
    CHECK_HAS(text, "cuBLASLt 13.1.0 has 0.");
    CHECK_HAS(text, " MB of dense matrices in f16, 0.");
    tiny_free(&file);
}

/* -- a library that is not as it should be ----------------------------------------------------- */

static bool runs(const struct rig_options *o, struct clb_err *err)
{
    static float out[2 * 104];
    struct rig g;
    bool ok =
        rig_try_open(&g, o, err) &&
        rig_run(&g, &(struct rig_batch){
                        .n_seq = 1, .chunk = 2, .ids = { ids }, .length = { 2 }, .out = { out } });

    rig_close(&g);
    return ok;
}

static void refused(const struct rig_options *o, const char *why)
{
    struct clb_err err = { 0 };

    CHECK(!runs(o, &err));
    CHECK_HAS(err.text, "dense matrices by cuBLASLt: ");
    CHECK_HAS(err.text, why);
    CHECK_EQ(err.code, CLB_UNSUPPORTED);
}

static void bad_libraries(void)
{
    static const char *const need[] = { "cublasLtCreate", "cublasLtMatmulDescSetAttribute",
                                        "cublasLtMatmul" };
    static const char *const call[] = {
        "cublasLtCreate",
        "cublasLtMatmulDescCreate",
        "cublasLtMatmulDescSetAttribute",
        "cublasLtMatrixLayoutCreate",
        "cublasLtMatmulPreferenceCreate",
        "cublasLtMatmulPreferenceSetAttribute",
        "cublasLtMatmul",
        "cublasLtMatmulAlgoGetHeuristic", /* these have another way: kernels of our own */
        "cublasLtMatmulAlgoConfigGetAttribute",
    };
    struct clb_arch a;
    struct tiny file;

    even_arch(&a);
    CHECK(tiny_build(&file, &(struct tiny_options){
                                .arch = &a, .seed = 3, .expert = CLB_INT8, .dense = CLB_INT8 }));
    struct rig_options o = on_device(&file);
    emu_library("libcublasLt.so.13", false, NULL);
    refused(&o, "libcublasLt.so.13 is not found");
    for (size_t i = 0; i < sizeof need / sizeof *need; i++) {
        char text[100];

        snprintf(text, sizeof text, "libcublasLt.so.13 has no %s", need[i]);
        emu_library("libcublasLt.so.13", true, need[i]);
        refused(&o, text);
    }
    emu_library("libcublasLt.so.13", true, NULL);
    emu_library_version("libcublasLt.so.13", 120803);
    refused(&o, "libcublasLt.so.13 says that it is 12.8.3, not a 13");
    emu_library_version("libcublasLt.so.13", 0);
    for (size_t i = 0; i < sizeof call / sizeof *call; i++)
        for (int nth = 1; nth <= 2; nth++) {
            struct clb_err err = { 0 };

            emu_fail(call[i], nth, cudaErrorUnknown);
            bool ok = runs(&o, &err);
            CHECK(ok == (i >= 7 || (nth == 2 && i < 3)));
            CHECK(ok || i == 6 || strstr(err.text, "cuBLASLt: "));
            CHECK(ok || i == 6 || strstr(err.text, "CUBLAS_STATUS_NOT_SUPPORTED"));
            CHECK_EQ(emu_leaks(), 0);
        }
    emu_fail("", 0, cudaSuccess);
    tiny_free(&file);
}

int main(void)
{
    rig_tokens(ids, RIG_CONTEXT, VOCAB, 5);
    emu_configure("libraries=1");
    TEST(int8_and_int4_are_widened);
    TEST(scales_of_any_size);
    TEST(memory_is_counted);
    TEST(bad_libraries);
    TEST(nothing_leaks);
    return test_result();
}
