// test_emu.cu - the emulation itself: what it runs, and that it finds what kernels and host code do
// wrong. Every mistake here is planted.
#include <cmath>
#include <string>

#include "kernels/cuda/device.cuh"
#include "test/cuda-emu/emu_test.h"

static const unsigned ALL = 0xffffffffu;

// -- threads -------------------------------------------------------------------------------------

static __global__ void number_threads(unsigned *out)
{
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);

    out[block * blockDim.x * blockDim.y * blockDim.z + thread] =
        threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z + 1000 * blockIdx.x +
        10000 * blockIdx.y + 100000 * blockIdx.z;
}

static void grid_and_block(void)
{
    stream s;
    device<unsigned> out(2 * 3 * 2 * 5 * 4 * 3);

    CLB_LAUNCH(number_threads, dim3(2, 3, 2), dim3(5, 4, 3), 0, s.s, out.p);
    std::vector<unsigned> v = out.get();
    CHECK_EQ(v[0], 0);
    CHECK_EQ(v[1 + 5 * (2 + 4 * 2)], 221);
    CHECK_EQ(v[60 * (1 + 2 * (2 + 3 * 1)) + 59], 121234);
}

// Sums a block: shuffles in warps, then shared memory. Without the barrier it reads too early.
template <bool BARRIER> static __global__ void block_sum(const float *x, float *out)
{
    CLB_SHARED(float, part, 4);
    float v = x[blockIdx.x * blockDim.x + threadIdx.x];

    for (int d = 16; d; d >>= 1)
        v += __shfl_xor_sync(ALL, v, d);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = v;
    if (BARRIER)
        __syncthreads();
    if (threadIdx.x == 0)
        out[blockIdx.x] = part[0] + part[1] + part[2] + part[3];
}

template <bool BARRIER> static bool sums_are_right(void)
{
    stream s;
    std::vector<float> x(3 * 128);
    bool right = true;

    for (size_t i = 0; i < x.size(); i++)
        x[i] = (float)(i % 100);
    device<float> in(x), out(3);
    for (int times = 0; times < 2; times++) { // threads run in either order
        CLB_LAUNCH((block_sum<BARRIER>), 3, 128, 0, s.s, in.p, out.p);
        std::vector<float> got = out.get();
        for (size_t b = 0; b < 3; b++) {
            float want = 0;
            for (size_t i = 0; i < 128; i++)
                want += x[b * 128 + i];
            right &= got[b] == want;
        }
    }
    return right;
}

static void barriers_and_shared_memory(void)
{
    CHECK(sums_are_right<true>());
}

static void missing_syncthreads_is_found(void)
{
    if (emu_race_build())
        CHECK(dies("race: byte", [] { sums_are_right<false>(); }));
    else
        CHECK(!sums_are_right<false>());
}

// Every thread learns how many voted, twice with nothing between; a thread that waits at another
// barrier is a mistake.
static __global__ void count_votes(int *out, unsigned elsewhere)
{
    int n = __syncthreads_count(threadIdx.x % 3 == 0);

    n = 1000 * n + __syncthreads_count(threadIdx.x > 9);
    if (threadIdx.x == elsewhere)
        __syncthreads();
    else
        __syncthreads_count(1);
    out[threadIdx.x] = n;
}

static void votes_of_a_block(void)
{
    stream s;
    device<int> out(40);

    CHECK(dies("different barriers", [&] { CLB_LAUNCH(count_votes, 1, 40, 0, s.s, out.p, 17u); }));
    CLB_LAUNCH(count_votes, 1, 40, 0, s.s, out.p, 40u);
    for (int n : out.get())
        CHECK_EQ(n, 14030);
}

// Lanes hand a value on through shared memory: that needs __syncwarp, a shuffle orders nothing.
template <bool BARRIER> static __global__ void hand_on(int *out)
{
    CLB_SHARED(int, box, 32);
    int lane = threadIdx.x;

    box[lane] = lane;
    if (BARRIER)
        __syncwarp();
    else
        __shfl_sync(ALL, lane, 0);
    out[lane] = box[lane ^ 1];
}

static void missing_syncwarp_is_found(void)
{
    stream s;
    device<int> out(32);

    CLB_LAUNCH(hand_on<true>, 1, 32, 0, s.s, out.p);
    CHECK_EQ(out.get()[4], 5);
    if (emu_race_build())
        CHECK(dies("race: byte", [&] { CLB_LAUNCH(hand_on<false>, 1, 32, 0, s.s, out.p); }));
}

static __global__ void warp_words(unsigned *out)
{
    unsigned lane = threadIdx.x, got[8];

    got[0] = __ballot_sync(ALL, lane % 3 == 0);
    got[1] = __match_any_sync(ALL, lane % 5);
    got[2] = (unsigned)__any_sync(ALL, lane == 7) + 2 * (unsigned)__all_sync(ALL, lane < 31);
    got[3] = __shfl_sync(ALL, lane * 2, 9);
    got[4] = __shfl_up_sync(ALL, lane, 3);
    got[5] = (unsigned)(__shfl_xor_sync(ALL, (uint64_t)lane << 40, 5) >> 40);
    got[6] = lane < 8 ? __ballot_sync(0xffu, lane & 1) : 0;
    got[7] = (unsigned)__popc(0x70f0) + 100 * (unsigned)__ffs(8);
    for (int i = 0; i < 8; i++)
        out[8 * lane + i] = got[i];
}

static void warp_operations(void)
{
    stream s;
    device<unsigned> out(8 * 32);

    CLB_LAUNCH(warp_words, 1, 32, 0, s.s, out.p);
    std::vector<unsigned> v = out.get();
    CHECK_EQ(v[0], 0x49249249);
    CHECK_EQ(v[8 * 7 + 1], 0x08421084);
    CHECK_EQ(v[2], 1);
    CHECK_EQ(v[8 * 30 + 3], 18);
    CHECK_EQ(v[8 * 2 + 4], 2);
    CHECK_EQ(v[8 * 20 + 4], 17);
    CHECK_EQ(v[8 * 20 + 5], 17);
    CHECK_EQ(v[8 * 3 + 6], 0xaa);
    CHECK_EQ(v[7], 407);
}

static __global__ void bad_lanes(int what)
{
    int lane = threadIdx.x;

    if (what == 0 && lane < 16)
        __syncwarp();
    if (what == 1)
        __shfl_sync(0xffffu, lane, lane);
    if (what == 2 && lane < 16)
        __shfl_sync(0xffffu, lane, 20);
    if (what == 3) {
        if (lane < 16)
            __ballot_sync(ALL, 1);
        else
            __syncwarp();
    }
}

static void lanes_that_miss_each_other(void)
{
    static const char *const says[] = { "threads wait for others", "not in its own mask",
                                        "not in mask", "different operations" };
    stream s;

    for (int i = 0; i < 4; i++)
        CHECK(dies(says[i], [&] { CLB_LAUNCH(bad_lanes, 1, 32, 0, s.s, i); }));
}

// -- memory --------------------------------------------------------------------------------------

static const size_t LARGE = 700001;

static __global__ void touch(float *global, const float *host, int what)
{
    CLB_DYNAMIC_SHARED(float, shared);
    CLB_SHARED(float, fixed, 10);

    if (what == 0)
        shared[8] = 1;
    if (what == 1)
        fixed[10] = 1;
    if (what == 2)
        global[10] = 1;
    if (what == 3)
        global[0] = host[0];
    if (what == 4)
        global[0] = 1;
    if (what == 5)
        global[LARGE] = 1;
}

static void touch_one(float *global, const float *host, int what)
{
    stream s;

    CLB_LAUNCH(touch, 1, 1, 8 * sizeof(float), s.s, global, host, what);
}

static void kernels_stay_in_bounds(void)
{
    device<float> out(10);
    const char *says = emu_race_build() ? "emu: a kernel" : "AddressSanitizer";
    float *gone, *host = (float *)malloc(4);

    *host = 1;
    OK(cudaMalloc((void **)&gone, 40));
    OK(cudaFree(gone));
    touch_one(out.p, host, 4);
    CHECK_EQ(out.get()[0], 1);
    for (int what = 0; what < 3; what++)
        CHECK(dies(says, [&] { touch_one(out.p, host, what); }));
    CHECK(dies(says, [&] { touch_one(gone, host, 4); }));
    if (emu_race_build())
        CHECK(dies("no memory of the device", [&] { touch_one(out.p, host, 3); }));
    if (BUILD_ASAN) // the host may not look at device memory
        CHECK(dies("AddressSanitizer", [&] { *host = out.p[0]; }));
    free(host);
}

// It is made in another way.
static void large_memory_is_alike(void)
{
    const char *says = emu_race_build() ? "emu: a kernel" : "AddressSanitizer";
    float *gone, *pinned;

    OK(cudaMalloc((void **)&gone, LARGE * sizeof(float)));
    OK(cudaFree(gone));
    OK(cudaHostAlloc((void **)&pinned, LARGE * sizeof(float), cudaHostAllocDefault));
    device<float> out(LARGE);
    for (float f : out.get())
        if (f == f)
            CHECK(!"it is NaN at first");
    touch_one(out.p, pinned, 3);
    CHECK(out.get()[0] != out.get()[0]);
    touch_one(out.p, pinned, 4);
    CHECK_EQ(out.get()[0], 1);
    CHECK(dies(says, [&] { touch_one(out.p, pinned, 5); }));
    CHECK(dies(says, [&] { touch_one(gone, pinned, 4); }));
    if (BUILD_ASAN) {
        CHECK(dies("AddressSanitizer", [&] { *pinned = out.p[LARGE / 2]; }));
        CHECK(dies("AddressSanitizer", [&] { pinned[LARGE] = 1; }));
    }
    OK(cudaFreeHost(pinned));
    CHECK(dies("free already", [&] { OK(cudaFreeHost(pinned)); }));
}

static void copies_are_checked(void)
{
    stream s;
    device<float> a(8);
    std::vector<float> v(9);
    float *pinned;
    auto copy = [&](void *to, const void *from, size_t n, cudaMemcpyKind kind) {
        OK(cudaMemcpyAsync(to, from, n, kind, s.s));
    };

    OK(cudaHostAlloc((void **)&pinned, 32, cudaHostAllocDefault));
    CHECK(dies("is called kind", [&] { copy(v.data(), a.p, 32, cudaMemcpyHostToDevice); }));
    CHECK(dies("has 32 left", [&] { copy(a.p, v.data(), 36, cudaMemcpyHostToDevice); }));
    CHECK(dies("has 28 left", [&] { copy(a.p, pinned + 1, 32, cudaMemcpyHostToDevice); }));
    CHECK(dies("not allocated", [&] { OK(cudaFree(pinned)); }));
    CHECK(dies("free already", [&] {
        OK(cudaFreeHost(pinned));
        OK(cudaFreeHost(pinned));
    }));
    CHECK(dies("still needs", [&] {
        emu_streams_late(true, 1);
        copy(a.p, pinned, 32, cudaMemcpyHostToDevice);
        OK(cudaFreeHost(pinned));
    }));
    CHECK(dies("no stream", [&] { OK(cudaMemsetAsync(a.p, 0, 32, nullptr)); }));
    OK(cudaMemsetAsync(a.p, 0, 32, s.s));
    CHECK_EQ(a.get()[7], 0);
    OK(cudaFreeHost(pinned));
}

static void leaks_are_counted(void)
{
    void *p, *q;
    cudaStream_t s;
    int before = emu_leaks();

    OK(cudaMalloc(&p, 1));
    OK(cudaHostAlloc(&q, 1, cudaHostAllocDefault));
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK_EQ(emu_leaks(), before + 3);
    OK(cudaFree(p));
    OK(cudaFreeHost(q));
    OK(cudaStreamDestroy(s));
    CHECK_EQ(emu_leaks(), before);
}

// -- blocks --------------------------------------------------------------------------------------

// All blocks write one word; or each its own, and the last one adds them up.
static __global__ void meet(int *word, int *counter, bool same)
{
    if (same) {
        word[0] = 1;
        return;
    }
    word[blockIdx.x] = (int)blockIdx.x + 1;
    if (atomicAdd(counter, 1) != (int)gridDim.x - 1)
        return;
    acquire_blocks();
    int sum = 0;
    for (unsigned i = 0; i < gridDim.x; i++)
        sum += word[i];
    word[gridDim.x] = sum;
}

static void blocks_that_meet_are_found(void)
{
    stream s;
    device<int> word(9), counter(std::vector<int>{ 0 });

    CLB_LAUNCH(meet, 8, 1, 0, s.s, word.p, counter.p, false);
    CHECK_EQ(word.get()[8], 36);
    if (emu_race_build())
        CHECK(dies("of device memory",
                   [&] { CLB_LAUNCH(meet, 8, 1, 0, s.s, word.p, counter.p, true); }));
}

// -- asynchronous copies, mma --------------------------------------------------------------------

template <int LEFT> static __global__ void through_ring(const uint4 *x, unsigned *out, bool end)
{
    CLB_DYNAMIC_SHARED(uint4, ring);

    for (int i = 0; i < 2; i++) {
        copy_async(ring + i * 32 + threadIdx.x, x + i * 32 + threadIdx.x, i ? 16 : 0);
        copy_commit();
    }
    copy_wait<LEFT>();
    for (int i = 0; i < 2; i++)
        out[i * 32 + threadIdx.x] = ring[i * 32 + threadIdx.x].y;
    if (end)
        copy_wait<0>();
}

static void asynchronous_copies(void)
{
    stream s;
    std::vector<uint4> x(64);
    bool stale = false;

    for (unsigned i = 0; i < 64; i++)
        x[i] = make_uint4(0, i, 0, 0);
    device<uint4> in(x);
    device<unsigned> out(64);
    for (int times = 0; times < 4; times++) { // copies happen early or late, by turns
        CLB_LAUNCH(through_ring<0>, 1, 32, 64 * sizeof(uint4), s.s, in.p, out.p, false);
        CHECK_EQ(out.get()[5], 0);
        CHECK_EQ(out.get()[40], 40);
        CLB_LAUNCH(through_ring<1>, 1, 32, 64 * sizeof(uint4), s.s, in.p, out.p, true);
        stale |= out.get()[40] != 40;
        CLB_LAUNCH(warp_words, 1, 32, 0, s.s, device<unsigned>(256).p); // an odd number of launches
    }
    CHECK(stale); // the wait was one too weak
    CHECK(dies("still pending", [&] {
        CLB_LAUNCH(through_ring<1>, 1, 32, 64 * sizeof(uint4), s.s, in.p, out.p, false);
    }));
}

template <bool BF16> static __global__ void multiply(const uint16_t *a, const uint16_t *b, float *c)
{
    unsigned g = threadIdx.x >> 2, t = threadIdx.x & 3;
    uint32_t fa[4], fb[2];
    float fc[4] = { 1, 1, 1, 1 };

    for (unsigned i = 0; i < 4; i++)
        fa[i] = *(const uint32_t *)(a + (g + 8 * (i & 1)) * 16 + 2 * t + 8 * (i >> 1));
    for (unsigned i = 0; i < 2; i++)
        fb[i] = *(const uint32_t *)(b + g * 16 + 2 * t + 8 * i); // columns side by side
    if (BF16)
        mma_bf16(fc, fa, fb);
    else
        mma_f16(fc, fa, fb);
    for (unsigned i = 0; i < 4; i++)
        c[(g + 8 * (i >> 1)) * 8 + 2 * t + (i & 1)] = fc[i];
}

template <bool BF16> static void check_mma(void)
{
    stream s;
    std::vector<uint16_t> a(16 * 16), b(8 * 16);
    auto narrow = [](float f) { return BF16 ? f32_to_bf16(f) : f32_to_f16(f); };

    for (int i = 0; i < 256; i++)
        a[(size_t)i] = narrow((float)(i * 37 % 31 - 15));
    for (int i = 0; i < 128; i++)
        b[(size_t)i] = narrow((float)(i * 53 % 29 - 14) / 16);
    device<uint16_t> da(a), db(b);
    device<float> dc(128);
    CLB_LAUNCH((multiply<BF16>), 1, 32, 0, s.s, da.p, db.p, dc.p);
    std::vector<float> c = dc.get();
    for (int r = 0; r < 16; r++)
        for (int n = 0; n < 8; n++) {
            float sum = 1;
            for (int k = 0; k < 16; k++)
                sum += (float)((r * 16 + k) * 37 % 31 - 15) * (float)((n * 16 + k) * 53 % 29 - 14) /
                       16;
            CHECK(c[(size_t)(r * 8 + n)] == sum);
        }
}

static void matrix_products_of_a_warp(void)
{
    check_mma<false>();
    check_mma<true>();
}

// -- streams -------------------------------------------------------------------------------------

static __global__ void double_it(const int *in, int *out)
{
    out[threadIdx.x] = 2 * in[threadIdx.x];
}

// A copy on one stream, a kernel on another, the result back on the first: two events keep order.
// leave_out: which wait is missing. Whether the result was right.
static bool two_streams(uint64_t seed, int leave_out)
{
    stream up, work;
    cudaEvent_t copied, computed;
    device<int> in(4), out(4);
    int *pinned, *back;
    bool right = true;

    OK(cudaHostAlloc((void **)&pinned, 16, cudaHostAllocDefault));
    OK(cudaHostAlloc((void **)&back, 16, cudaHostAllocDefault));
    OK(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&computed, cudaEventDisableTiming));
    emu_streams_late(true, seed);
    for (int i = 0; i < 4; i++)
        pinned[i] = i + 1;
    OK(cudaMemcpyAsync(in.p, pinned, 16, cudaMemcpyHostToDevice, up.s));
    OK(cudaEventRecord(copied, up.s));
    if (leave_out != 1)
        OK(cudaStreamWaitEvent(work.s, copied, 0));
    CLB_LAUNCH(double_it, 1, 4, 0, work.s, in.p, out.p);
    OK(cudaEventRecord(computed, work.s));
    if (leave_out != 2)
        OK(cudaStreamWaitEvent(up.s, computed, 0));
    OK(cudaMemcpyAsync(back, out.p, 16, cudaMemcpyDeviceToHost, up.s));
    if (leave_out != 3)
        OK(cudaStreamSynchronize(up.s));
    for (int i = 0; i < 4; i++)
        right &= back[i] == 2 * (i + 1);
    emu_streams_late(false, 0);
    OK(cudaEventDestroy(copied));
    OK(cudaEventDestroy(computed));
    OK(cudaFreeHost(pinned));
    OK(cudaFreeHost(back));
    return right;
}

static void missing_event_wait_is_found(void)
{
    for (int leave_out = 0; leave_out <= 3; leave_out++) {
        int wrong = 0;
        for (uint64_t seed = 0; seed < 20; seed++)
            wrong += !two_streams(seed, leave_out);
        CHECK_EQ(wrong > 0, leave_out > 0);
    }
}

// Pageable memory is read when the copy is called, pinned memory when it happens.
static void buffers_used_too_early_are_found(void)
{
    device<int> to(1);
    int *pinned, pageable = 1;
    cudaEvent_t done;
    stream s;

    OK(cudaHostAlloc((void **)&pinned, 4, cudaHostAllocDefault));
    OK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    emu_streams_late(true, 1);
    OK(cudaMemcpyAsync(to.p, &pageable, 4, cudaMemcpyHostToDevice, s.s));
    pageable = 2;
    CHECK_EQ(to.get()[0], 1);
    *pinned = 1;
    OK(cudaMemcpyAsync(to.p, pinned, 4, cudaMemcpyHostToDevice, s.s));
    *pinned = 2;
    OK(cudaEventRecord(done, s.s));
    CHECK_EQ(cudaEventQuery(done), cudaErrorNotReady);
    CHECK_EQ(cudaGetLastError(), cudaErrorNotReady);
    OK(cudaEventSynchronize(done));
    OK(cudaEventQuery(done));
    CHECK_EQ(to.get()[0], 2);
    OK(cudaMemcpyAsync(&pageable, to.p, 4, cudaMemcpyDeviceToHost, s.s));
    CHECK_EQ(pageable, 2); // to pageable memory it waits
    emu_streams_late(false, 0);
    OK(cudaEventDestroy(done));
    OK(cudaFreeHost(pinned));
}

// -- errors --------------------------------------------------------------------------------------

static cudaError_t launch(unsigned grid_y, unsigned threads, size_t shared)
{
    stream s;
    device<float> out(10);

    CLB_LAUNCH(touch, dim3(1, grid_y), threads, shared, s.s, out.p, nullptr, 4);
    return cudaGetLastError();
}

static void impossible_launches(void)
{
    CHECK_EQ(launch(1, 1, 0), cudaSuccess);
    CHECK_EQ(launch(1, 1025, 0), cudaErrorInvalidConfiguration);
    CHECK_EQ(launch(1, 0, 0), cudaErrorInvalidConfiguration);
    CHECK_EQ(launch(65536, 1, 0), cudaErrorInvalidConfiguration);
    CHECK_EQ(launch(1, 1, 49153), cudaErrorInvalidValue);
    OK(cudaFuncSetAttribute(touch, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000));
    CHECK_EQ(launch(1, 1, 100000), cudaSuccess);
    CHECK_EQ(launch(1, 1, 100001), cudaErrorInvalidValue);
    CHECK_EQ(cudaFuncSetAttribute(touch, cudaFuncAttributeMaxDynamicSharedMemorySize, 300000),
             cudaErrorInvalidValue);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidValue);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    CHECK_STR(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
}

int main(void)
{
    TEST(grid_and_block);
    TEST(barriers_and_shared_memory);
    TEST(missing_syncthreads_is_found);
    TEST(votes_of_a_block);
    TEST(missing_syncwarp_is_found);
    TEST(warp_operations);
    TEST(lanes_that_miss_each_other);
    TEST(kernels_stay_in_bounds);
    TEST(large_memory_is_alike);
    TEST(copies_are_checked);
    TEST(leaks_are_counted);
    TEST(blocks_that_meet_are_found);
    TEST(asynchronous_copies);
    TEST(matrix_products_of_a_warp);
    TEST(missing_event_wait_is_found);
    TEST(buffers_used_too_early_are_found);
    TEST(impossible_launches);
    CHECK_EQ(emu_leaks(), 0);
    return test_result() || test_bad;
}
