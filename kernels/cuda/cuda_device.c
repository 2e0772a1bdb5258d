#include "kernels/cuda/cuda_device.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_libs.h"

/* Errors of the runtime stay with the thread until somebody asks for them. */
static cudaError_t forget(cudaError_t e)
{
    if (e != cudaSuccess)
        (void)cudaGetLastError();
    return e;
}

/* 12040 is 12.4. */
static void print_version(char text[16], int version)
{
    snprintf(text, 16, "%d.%d", version / 1000, version % 1000 / 10);
}

static bool fail_driver(cudaError_t e, struct clb_err *err)
{
    char has[16], needs[16];
    int driver = 0;

    if (forget(cudaDriverGetVersion(&driver)) != cudaSuccess || driver == 0)
        return clb_fail(err, CLB_UNSUPPORTED,
                        "no NVIDIA driver is installed here (libcuda.so.1 is not found); "
                        "install one");
    print_version(has, driver);
    print_version(needs, CUDART_VERSION);
    switch (e) {
    case cudaErrorInsufficientDriver:
        return clb_fail(err, CLB_UNSUPPORTED,
                        "the NVIDIA driver supports CUDA %s, but this build needs %s; update the "
                        "driver, or build with an older CUDA toolkit",
                        has, needs);
    case cudaErrorNoDevice:
        return clb_fail(err, CLB_UNSUPPORTED,
                        "the NVIDIA driver shows no GPU; check 'nvidia-smi' and "
                        "CUDA_VISIBLE_DEVICES");
    case cudaErrorSystemDriverMismatch:
        return clb_fail(err, CLB_UNSUPPORTED,
                        "the NVIDIA driver was updated, but its old version is still loaded; "
                        "restart the machine");
    default:
        return clb_fail(
            err, CLB_DEVICE,
            "CUDA does not start (driver for %s): %s; see whether 'nvidia-smi' works, else "
            "restart the machine",
            has, cudaGetErrorString(e));
    }
}

bool clb_cuda_device_count(int *n, struct clb_err *err)
{
    cudaError_t e = forget(cudaGetDeviceCount(n));

    if (e == cudaSuccess && *n == 0)
        e = cudaErrorNoDevice;
    return e == cudaSuccess || fail_driver(e, err);
}

static bool ask(int *value, enum cudaDeviceAttr what, int index)
{
    return forget(cudaDeviceGetAttribute(value, what, index)) == cudaSuccess;
}

/* What can be known without a context, which takes memory. */
static bool describe(struct clb_cuda_device *d, int index)
{
    struct cudaDeviceProp p;

    *d = (struct clb_cuda_device){ .index = index };
    if (forget(cudaGetDeviceProperties(&p, index)) != cudaSuccess ||
        !ask(&d->major, cudaDevAttrComputeCapabilityMajor, index) ||
        !ask(&d->minor, cudaDevAttrComputeCapabilityMinor, index) ||
        !ask(&d->n_sm, cudaDevAttrMultiProcessorCount, index))
        return false;
    snprintf(d->name, sizeof d->name, "%s", p.name);
    d->memory = p.totalGlobalMem;
    return true;
}

static bool is_old(const struct clb_cuda_device *d)
{
    return d->major * 10 + d->minor < CLB_CUDA_LOWEST;
}

static bool fail_context(const struct clb_cuda_device *d, cudaError_t e, struct clb_err *err)
{
    switch (e) {
    case cudaErrorMemoryAllocation:
        return clb_fail(err, CLB_NO_SPACE,
                        "device %d (%s) has no memory left for a CUDA context; end other programs "
                        "that use it ('nvidia-smi' shows them)",
                        d->index, d->name);
    case cudaErrorDevicesUnavailable:
        return clb_fail(err, CLB_DEVICE,
                        "device %d (%s) is used by another program alone, or its compute mode "
                        "forbids programs ('nvidia-smi -q -d COMPUTE')",
                        d->index, d->name);
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
        return clb_fail(err, CLB_UNSUPPORTED,
                        "device %d (%s) has compute capability %d.%d, for which this build has no "
                        "code; build with 'make CUDA=1 CUDA_ARCHS=%d%d'",
                        d->index, d->name, d->major, d->minor, d->major, d->minor);
    default:
        return clb_fail(err, CLB_DEVICE,
                        "device %d (%s) does not start: %s; see whether "
                        "'nvidia-smi' works, else restart the machine",
                        d->index, d->name, cudaGetErrorString(e));
    }
}

unsigned clb_cuda_devices(void)
{
    struct clb_err none;
    int n;

    return clb_cuda_device_count(&n, &none) ? (unsigned)n : 0;
}

static bool fail_index(uint32_t index, int n, struct clb_err *err)
{
    if (n == 1)
        clb_fail(err, CLB_USAGE, "there is no device %u: the only one is 0", index);
    else
        clb_fail(err, CLB_USAGE, "there is no device %u: there are 0 to %d", index, n - 1);
    return clb_err_place(err, NULL, "device", CLB_NO_OFFSET);
}

bool clb_cuda_device_open(struct clb_cuda_device *d, uint32_t index, struct clb_err *err)
{
    size_t available, total;
    int n;

    if (!clb_cuda_device_count(&n, err))
        return false;
    if (index >= (uint32_t)n)
        return fail_index(index, n, err);
    if (!describe(d, (int)index))
        return clb_fail(err, CLB_DEVICE,
                        "device %u does not say what it is; see whether 'nvidia-smi' works, else "
                        "restart the machine",
                        index);
    if (is_old(d))
        return clb_fail(err, CLB_UNSUPPORTED,
                        "device %u (%s) has compute capability %d.%d, but this build needs %d.%d "
                        "or later; use another device",
                        index, d->name, d->major, d->minor, CLB_CUDA_LOWEST / 10,
                        CLB_CUDA_LOWEST % 10);
    cudaError_t e = forget(cudaSetDevice((int)index));
    if (e == cudaSuccess) /* makes the context, where setting the device did not */
        e = forget(cudaMemGetInfo(&available, &total));
    if (e != cudaSuccess)
        return fail_context(d, e, err);
    d->available = available;
    d->memory = total;
    return true;
}

/* The first call that needs code of this device: without any, it is the one that says so. */
bool clb_cuda_device_set_up(const struct clb_cuda_device *d, struct clb_err *err)
{
    cudaError_t e = forget((cudaError_t)clb_cuda_product_setup());

    return e == cudaSuccess || fail_context(d, e, err);
}

/* -- for people -------------------------------------------------------------------------------- */

static void add_devices(char *text, size_t n, size_t *at, int count)
{
    struct clb_cuda_device d;

    for (int i = 0; i < count && *at < n; i++) {
        if (!describe(&d, i))
            *at += (size_t)snprintf(text + *at, n - *at, "; device %d: does not answer", i);
        else
            *at += (size_t)snprintf(text + *at, n - *at, "; device %d: %s (%.0f GB, sm_%d%d%s)", i,
                                    d.name, (double)d.memory / 1e9, d.major, d.minor,
                                    is_old(&d) ? ", too old" : "");
    }
}

/* As the driver says; whether what is copied arrives is tried when they are opened. */
static bool reach(int a, int b)
{
    int there = 0, back = 0;

    return forget(cudaDeviceCanAccessPeer(&there, a, b)) == cudaSuccess && there &&
           forget(cudaDeviceCanAccessPeer(&back, b, a)) == cudaSuccess && back;
}

static void add_peers(char *text, size_t n, size_t *at, int count)
{
    int pairs = count * (count - 1) / 2, n_reach = 0;

    for (int a = 0; a < count; a++)
        for (int b = a + 1; b < count; b++)
            n_reach += reach(a, b);
    if (pairs && (n_reach == 0 || n_reach == pairs) && *at < n)
        *at += (size_t)snprintf(text + *at, n - *at, "; %s",
                                n_reach ? "they reach each other" : "none reaches another");
    if (n_reach == 0 || n_reach == pairs)
        return;
    for (int a = 0, done = 0; a < count; a++)
        for (int b = a + 1; b < count && *at < n; b++)
            if (reach(a, b))
                *at += (size_t)snprintf(text + *at, n - *at, "%s%d-%d",
                                        done++ ? ", " : "; reaching each other: ", a, b);
}

void clb_cuda_about(char *text, size_t n)
{
    struct clb_err err;
    char runtime[16], driver[16], found[160];
    int version = 0, count;

    print_version(runtime, CUDART_VERSION);
    if (!clb_cuda_device_count(&count, &err)) {
        snprintf(text, n, "CUDA %s: %s", runtime, err.text);
        return;
    }
    (void)forget(cudaDriverGetVersion(&version));
    print_version(driver, version);
    size_t at = (size_t)snprintf(text, n, "CUDA %s, driver for %s", runtime, driver);
    add_devices(text, n, &at, count);
    add_peers(text, n, &at, count);
    clb_cuda_libs_describe(found, sizeof found);
    if (at < n)
        snprintf(text + at, n - at, "; %s", found);
}
