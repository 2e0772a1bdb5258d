/* test_device.c - why a GPU cannot be used, in one sentence each; and the libraries that are opened
 * where they are installed. */
#include <string.h>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_libs.h"
#include "test/check.h"
#include "test/cuda-emu/emu_control.h"

enum { GB = 1 << 30 };

static void begin(void)
{
    emu_devices(2, GB);
    emu_driver(CUDART_VERSION);
    emu_capability(8, 0);
    emu_odd_device(-1, 0, 0);
    emu_fail("", 0, cudaSuccess);
}

/* Opening fails with this code and text, and leaves no error in the runtime. */
static bool refused(uint32_t index, enum clb_code code, const char *says)
{
    struct clb_cuda_device d;
    struct clb_err err = { 0 };

    if (clb_cuda_device_open(&d, index, &err) && clb_cuda_device_set_up(&d, &err))
        return false;
    if (err.code != code || !strstr(err.text, says))
        printf("# %d: %s\n", err.code, err.text);
    return err.code == code && strstr(err.text, says) && cudaGetLastError() == cudaSuccess;
}

static void a_device_is_opened(void)
{
    struct clb_cuda_device d;
    struct clb_err err = { 0 };
    int now;

    begin();
    CHECK(clb_cuda_device_open(&d, 1, &err));
    CHECK_EQ(cudaGetDevice(&now), cudaSuccess);
    CHECK_EQ(now, 1);
    CHECK_EQ(d.index, 1);
    CHECK_EQ(d.major * 10 + d.minor, 80);
    CHECK_EQ(d.n_sm, 4);
    CHECK_EQ(d.memory, GB);
    CHECK_EQ(d.available, GB);
    CHECK_STR(d.name, "Emulated GPU");
    CHECK(clb_cuda_device_open(&d, 0, &err));
}

/* Of two that differ, in memory of which something is taken. */
static void each_device_is_itself(void)
{
    struct clb_cuda_device d;
    struct clb_err err = { 0 };
    void *taken;

    begin();
    emu_odd_device(1, 12, 1);
    CHECK(clb_cuda_device_open(&d, 0, &err));
    CHECK_STR(d.name, "Emulated GPU");
    CHECK_EQ(d.major * 10 + d.minor, 80);
    CHECK_EQ(d.n_sm, 4);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    CHECK_EQ(cudaMalloc(&taken, 1 << 20), cudaSuccess);
    CHECK(clb_cuda_device_open(&d, 1, &err));
    CHECK_STR(d.name, "Odd GPU");
    CHECK_EQ(d.major, 12);
    CHECK_EQ(d.minor, 1);
    CHECK_EQ(d.n_sm, 6);
    CHECK_EQ(d.memory, GB);
    CHECK_EQ(d.available, GB - (1 << 20));
    CHECK_EQ(cudaFree(taken), cudaSuccess);
}

static void why_there_is_none(void)
{
    begin();
    CHECK(refused(2, CLB_USAGE, "there is no device 2: there are 0 to 1"));
    emu_devices(1, GB);
    CHECK(refused(1, CLB_USAGE, "there is no device 1: the only one is 0"));
    CHECK(refused(UINT32_MAX, CLB_USAGE, "there is no device 4294967295"));
    emu_devices(0, 0);
    CHECK(refused(0, CLB_UNSUPPORTED, "the NVIDIA driver shows no GPU"));
    emu_driver(12040);
    CHECK(refused(0, CLB_UNSUPPORTED, "driver supports CUDA 12.4, but this build needs 13.0"));
    emu_driver(0);
    CHECK(refused(0, CLB_UNSUPPORTED, "no NVIDIA driver is installed here"));
    begin();
    emu_capability(7, 0);
    CHECK(refused(0, CLB_UNSUPPORTED,
                  "device 0 (Emulated GPU) has compute capability 7.0, but this build needs 7.5"));
    emu_capability(7, 5);
    struct clb_cuda_device d;
    struct clb_err err = { 0 };
    CHECK(clb_cuda_device_open(&d, 0, &err));
}

static void calls_that_fail_are_told(void)
{
    static const struct {
        const char *call;
        cudaError_t e;
        enum clb_code code;
        const char *says;
    } cases[] = {
        { "cudaGetDeviceCount", cudaErrorSystemDriverMismatch, CLB_UNSUPPORTED, "restart" },
        { "cudaGetDeviceCount", cudaErrorInitializationError, CLB_DEVICE,
          "CUDA does not start (driver for 13.0): initialization error; see whether" },
        { "cudaGetDeviceProperties", cudaErrorUnknown, CLB_DEVICE, "does not say what it is" },
        { "cudaDeviceGetAttribute", cudaErrorUnknown, CLB_DEVICE, "does not say what it is" },
        { "cudaSetDevice", cudaErrorMemoryAllocation, CLB_NO_SPACE,
          "device 1 (Emulated GPU) has no memory left" },
        { "cudaMemGetInfo", cudaErrorMemoryAllocation, CLB_NO_SPACE, "no memory left" },
        { "cudaSetDevice", cudaErrorDevicesUnavailable, CLB_DEVICE,
          "device 1 (Emulated GPU) is used by another program alone" },
        { "cudaSetDevice", cudaErrorNoKernelImageForDevice, CLB_UNSUPPORTED,
          "device 1 (Emulated GPU) has compute capability 8.6" },
        { "cudaSetDevice", cudaErrorUnsupportedPtxVersion, CLB_UNSUPPORTED, "CUDA_ARCHS=86" },
        { "cudaFuncSetAttribute", cudaErrorNoKernelImageForDevice, CLB_UNSUPPORTED,
          "for which this build has no code; build with 'make CUDA=1 CUDA_ARCHS=86'" },
        { "cudaFuncSetAttribute", cudaErrorInvalidDeviceFunction, CLB_UNSUPPORTED, "has no code" },
        { "cudaSetDevice", cudaErrorLaunchFailure, CLB_DEVICE,
          "device 1 (Emulated GPU) does not start: unspecified launch failure" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin();
        emu_capability(8, 6);
        emu_fail(cases[i].call, 1, cases[i].e);
        CHECK(refused(1, cases[i].code, cases[i].says));
    }
}

static bool about_says(const char *what)
{
    char text[400];

    clb_cuda_about(text, sizeof text);
    if (!strstr(text, what))
        printf("# %s\n", text);
    return strstr(text, what) != NULL;
}

static void what_there_is_in_words(void)
{
    char small[40] = "";

    begin();
    emu_driver(CUDART_VERSION + 10);
    emu_odd_device(1, 12, 0);
    CHECK(about_says("driver for 13.1; "));
    CHECK(about_says("; device 1: Odd GPU (1 GB, sm_120)"));
    emu_fail("cudaGetDeviceProperties", 2, cudaErrorUnknown);
    CHECK(about_says("(1 GB, sm_80); device 1: does not answer"));
    begin();
    CHECK(
        about_says("CUDA 13.0, driver for 13.0; device 0: Emulated GPU (1 GB, sm_80); device 1: "));
    CHECK(about_says("; they reach each other; no cuBLASLt, no cuDNN, no NCCL"));
    emu_peers(false);
    CHECK(about_says("; none reaches another; no cuBLASLt"));
    emu_peers(true);
    for (int device = 0; device < 2; device++) {
        emu_blind_device(device);
        CHECK(about_says("; none reaches another; no cuBLASLt"));
    }
    emu_blind_device(-1);
    emu_devices(3, GB);
    emu_lonely_device(1);
    CHECK(about_says("; reaching each other: 0-2; no cuBLASLt"));
    emu_lonely_device(-1);
    emu_devices(1, GB);
    CHECK(about_says("sm_80); no cuBLASLt"));
    emu_devices(2, GB);
    emu_configure("libraries=1");
    CHECK(about_says("; cuBLASLt 13.1.0, cuDNN 9.19.0, NCCL 2.28.3"));
    memset(small, 'x', sizeof small - 1);
    clb_cuda_about(small, 20);
    CHECK_STR(small, "CUDA 13.0, driver f");
    CHECK_STR(small + 20, "xxxxxxxxxxxxxxxxxxx");
    emu_configure("libraries=0,capability=6.1");
    CHECK(about_says("sm_61, too old"));
    emu_driver(0);
    CHECK(about_says("CUDA 13.0: no NVIDIA driver is installed here"));
}

static void libraries_that_are_not_there(void)
{
    struct clb_cuda_blas b;

    CHECK(!clb_cuda_blas_open(&b));
    CHECK_STR(b.lib.reason, "libcublasLt.so.13 is not found");
    CHECK(!b.lib.library);
    clb_cuda_blas_close(&b);
    emu_library("libcublasLt.so.13", true, "cublasLtMatmul");
    CHECK(!clb_cuda_blas_open(&b));
    CHECK_STR(b.lib.reason, "libcublasLt.so.13 has no cublasLtMatmul");
    emu_library("libcublasLt.so.13", true, NULL);
    CHECK(clb_cuda_blas_open(&b));
    CHECK_EQ(b.lib.major, 13);
    CHECK_EQ(b.lib.minor, 1);
    clb_cuda_blas_close(&b);
    emu_library("libcublasLt.so.13", false, NULL);
}

int main(void)
{
    TEST(a_device_is_opened);
    TEST(each_device_is_itself);
    TEST(why_there_is_none);
    TEST(calls_that_fail_are_told);
    TEST(what_there_is_in_words);
    TEST(libraries_that_are_not_there);
    begin();
    CHECK_EQ(emu_leaks(), 0);
    return test_result() || test_bad;
}
