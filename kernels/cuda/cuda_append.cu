// cuda_append.cu - keys and values of a pass into their pages, rounded as the CPU does it
// (kernels/cpu/cpu_append.c).
#include "kernels/cuda/attention.cuh"

enum { THREADS = 64 };

// Where the numbers of one key or value go.
struct strided {
    uint8_t *part; // of all 64 positions
    uint32_t first, stride;
};

// Zeros where `lost`.
static __device__ __forceinline__ void put_f32(const strided &to, const float *x, uint32_t n,
                                               bool lost)
{
    for (uint32_t i = threadIdx.x & 31; i < n; i += 32)
        ((float *)to.part)[to.first + i * to.stride] = lost ? 0 : x[i];
}

static __device__ __forceinline__ void put_f16(const strided &to, const float *x, uint32_t n,
                                               bool lost)
{
    for (uint32_t i = threadIdx.x & 31; i < n; i += 32)
        ((uint16_t *)to.part)[to.first + i * to.stride] = lost ? 0 : f32_to_f16_within(x[i]);
}

// Returns the scale.
static __device__ __forceinline__ float put_int8(const strided &to, const float *x, uint32_t n,
                                                 bool lost)
{
    const uint32_t lane = threadIdx.x & 31;
    float most = 0;

    for (uint32_t i = lane; i < n; i += 32)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    most = warp_max(most);
    const float inverse = 127 / most;
    const bool zero = lost || !(inverse <= 3.40282347e38f);
    for (uint32_t i = lane; i < n; i += 32) {
        float q = zero ? 0 : rintf(x[i] * inverse);
        ((int8_t *)to.part)[to.first + i * to.stride] =
            (int8_t)(q > 127 ? 127 : q >= -127 ? q : -127); // NaN: -127
    }
    return zero ? 0 : most / 127;
}

// Whether the type would hold something of a value that is no finite number.
static __device__ __forceinline__ bool is_lost(enum clb_kv_dtype type, const float *x, uint32_t n)
{
    bool lost = false;

    for (uint32_t i = threadIdx.x & 31; i < n; i += 32)
        lost |= type == CLB_KV_F16    ? x[i] != x[i]
                : type == CLB_KV_INT8 ? fabsf(x[i]) == INFINITY
                                      : !(fabsf(x[i]) <= 3.40282347e38f);
    return __any_sync(ALL_LANES, lost);
}

// A block per row and KV head: the first warp has the key, the second one the value.
static __global__ void __launch_bounds__(THREADS) append(const struct clb_cuda_append a)
{
    CLB_SHARED(uint32_t, value_lost, 1);
    const enum clb_kv_dtype type = a.kv.dtype;
    const uint32_t row = blockIdx.x, head = blockIdx.y;
    const uint32_t at = a.position[row] % PAGE;
    const size_t page = a.kv.table[a.sequence[row] * a.kv.ld_table + a.position[row] / PAGE];
    const bool is_value = threadIdx.x >= 32;
    const uint32_t n = is_value ? a.kv.value_dim : a.kv.key_dim;
    const uint32_t width = is_value ? clb_cuda_kv_values(type, n) : clb_cuda_kv_keys(type, n);
    const float *x = is_value ? a.value + row * a.ld_value : a.key + row * a.ld_key;
    strided to = { a.kv.pages + page * a.kv.page_bytes + head * a.kv.head_bytes, at, PAGE };

    x += head * n;
    const bool lost = is_value && is_lost(type, x, n);
    if (threadIdx.x == 32)
        value_lost[0] = lost;
    __syncthreads();
    const bool marked = !threadIdx.x && value_lost[0]; // this thread has the key's first number
    if (is_value)
        to.part += clb_cuda_kv_values_at(type, a.kv.key_dim);
    if (is_value == (type == CLB_KV_F32)) { // numbers of a position lie side by side
        to.first = at * width;
        to.stride = 1;
    }
    if (type == CLB_KV_F32) {
        put_f32(to, x, n, lost);
        if (marked)
            ((float *)to.part)[to.first] = NAN;
    } else if (type == CLB_KV_F16) {
        put_f16(to, x, n, lost);
        if (marked)
            ((uint16_t *)to.part)[to.first] = 0x7fff;
    } else {
        const float scale = put_int8(to, x, n, lost);
        if (!(threadIdx.x & 31))
            ((float *)(to.part + clb_cuda_kv_numbers_bytes(type, width)))[at] =
                marked ? NAN : scale;
    }
}

void clb_cuda_run_append(const struct clb_cuda_append *a, struct CUstream_st *stream)
{
    CLB_LAUNCH(append, dim3(a->n_row, a->kv.n_head), THREADS, 0, stream, *a);
}
