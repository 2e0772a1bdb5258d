// ceiling.cu - what this GPU reaches at most, so that stages can be held against it: bytes read per
// second, and f16 products per second of the mma that the kernels use. Prints "GB/s TFLOPS".
#include <stdio.h>

#include "kernels/cuda/device.cuh"

enum { THREADS = 256, REPEATS = 5, ROUNDS = 4096 };

static __global__ void read_all(const uint4 *p, size_t n, unsigned *out)
{
    uint4 sum = make_uint4(0, 0, 0, 0);

    for (size_t i = blockIdx.x * (size_t)THREADS + threadIdx.x; i < n;
         i += (size_t)gridDim.x * THREADS) {
        uint4 v = load_const(p + i);
        sum.x ^= v.x;
        sum.y ^= v.y;
        sum.z ^= v.z;
        sum.w ^= v.w;
    }
    if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x12345678) // never, but nobody knows
        *out = sum.x;
}

// Four independent products per round and warp.
static __global__ void multiply_all(float *out)
{
    uint32_t a[4] = { threadIdx.x, 1, 2, 3 }, b[2] = { threadIdx.x, 5 };
    float c[4][4] = {};

    for (int i = 0; i < ROUNDS; i++) {
        UNROLL
        for (int j = 0; j < 4; j++)
            mma_f16(c[j], a, b);
    }
    if (c[0][0] + c[1][1] + c[2][2] + c[3][3] == 12345)
        *out = c[0][0];
}

static bool failed(cudaError_t e, const char *what)
{
    if (e != cudaSuccess)
        fprintf(stderr, "ceiling: %s: %s\n", what, cudaGetErrorString(e));
    return e != cudaSuccess;
}

int main(void)
{
    size_t bytes = (size_t)1 << 31, left, total;
    cudaEvent_t from, to;
    cudaStream_t stream;
    void *p;
    int n_sm;
    float ms, best_read = 1e9f, best_multiply = 1e9f;

    if (failed(cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, 0), "device") ||
        failed(cudaMemGetInfo(&left, &total), "memory"))
        return 1;
    bytes = bytes < left / 2 ? bytes : left / 2 / 16 * 16;
    if (failed(cudaMalloc(&p, bytes), "memory") || failed(cudaMemset(p, 1, bytes), "memory") ||
        failed(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream") ||
        failed(cudaEventCreateWithFlags(&from, cudaEventDefault), "event") ||
        failed(cudaEventCreateWithFlags(&to, cudaEventDefault), "event") ||
        failed(cudaDeviceSynchronize(), "memory"))
        return 1;
    for (int i = 0; i < 2 * REPEATS; i++) {
        cudaEventRecord(from, stream);
        if (i % 2)
            CLB_LAUNCH(read_all, n_sm * 8, THREADS, 0, stream, (const uint4 *)p, bytes / 16,
                       (unsigned *)p);
        else
            CLB_LAUNCH(multiply_all, n_sm * 4, THREADS, 0, stream, (float *)p);
        cudaEventRecord(to, stream);
        if (failed(cudaEventSynchronize(to), "kernel") || failed(cudaGetLastError(), "kernel") ||
            failed(cudaEventElapsedTime(&ms, from, to), "time"))
            return 1;
        float *best = i % 2 ? &best_read : &best_multiply;
        *best = ms < *best ? ms : *best;
    }
    double flops = 2.0 * 16 * 8 * 16 * 4 * ROUNDS * (THREADS / 32) * (n_sm * 4);
    printf("%.1f %.2f\n", (double)bytes / best_read * 1e-6, flops / best_multiply * 1e-9);
    return failed(cudaFree(p), "memory");
}
