/* emu_memory.cc - allocations of the device and of pinned host memory. Device memory starts as NaN
 * and, under ASan, is closed to the host: only kernels and copies open it. */
#include "cuda_runtime.h"

#include <cstdio>
#include <cstdlib>
#include <map>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

struct allocation {
    size_t bytes;
    emu_memory kind;
    int device;
};

static std::map<const uint8_t *, allocation> allocations;
static int n_device = 1, current_device;
static size_t device_bytes = (size_t)1 << 30, device_used[16];
static bool device_open;

void emu_devices(int count, size_t bytes)
{
    n_device = count;
    device_bytes = bytes;
}

int emu_current_device(void)
{
    return current_device;
}

static void guard(const uint8_t *p, const allocation &a, bool open)
{
#ifdef __SANITIZE_ADDRESS__
    if (a.kind == EMU_DEVICE && open)
        ASAN_UNPOISON_MEMORY_REGION(p, a.bytes);
    else if (a.kind == EMU_DEVICE)
        ASAN_POISON_MEMORY_REGION(p, a.bytes);
#else
    (void)p, (void)a, (void)open;
#endif
}

void emu_open_device(void)
{
    device_open = true;
    for (const auto &a : allocations)
        guard(a.first, a.second, true);
}

void emu_close_device(void)
{
    device_open = false;
    for (const auto &a : allocations)
        guard(a.first, a.second, false);
}

/* The allocation that begins at or before p and reaches it, or its end. */
static std::map<const uint8_t *, allocation>::iterator find(const void *p)
{
    auto i = allocations.upper_bound((const uint8_t *)p);

    if (i == allocations.begin())
        return allocations.end();
    --i;
    return (const uint8_t *)p < i->first + i->second.bytes ? i : allocations.end();
}

bool emu_find_global(const void *p, emu_range *out)
{
    auto i = find(p);

    if (i == allocations.end())
        return false;
    *out = { (uint8_t *)i->first, i->second.bytes };
    return true;
}

emu_memory emu_memory_of(const void *p, size_t bytes, const char *call)
{
    auto i = find(p);

    if (i == allocations.end())
        return EMU_PAGEABLE;
    size_t left = i->second.bytes - (size_t)((const uint8_t *)p - i->first);
    if (bytes > left)
        emu_die("%s: %zu bytes where an allocation has %zu left", call, bytes, left);
    return i->second.kind;
}

static cudaError_t allocate(void **out, size_t bytes, emu_memory kind)
{
    uint8_t *p = (uint8_t *)aligned_alloc(256, (bytes + 255) / 256 * 256 + (bytes ? 0 : 256));

    if (!p)
        return cudaErrorMemoryAllocation;
    memset(p, 0xff, bytes);
#ifdef __SANITIZE_ADDRESS__ /* the bytes that rounding up has added */
    size_t room = (bytes + 255) / 256 * 256 + (bytes ? 0 : 256);
    ASAN_POISON_MEMORY_REGION(p + bytes, room - bytes);
#endif
    allocations[p] = { bytes, kind, current_device };
    guard(p, allocations[p], device_open);
    *out = p;
    return cudaSuccess;
}

static cudaError_t release(void *p, emu_memory kind, const char *call)
{
    auto i = allocations.find((const uint8_t *)p);

    if (!p)
        return cudaSuccess;
    if (i == allocations.end() || i->second.kind != kind)
        emu_die("%s: %p was not allocated by its counterpart, or is free already", call, p);
    if (emu_stream_uses(p, i->second.bytes))
        emu_die("%s: a copy that waits in a stream still needs %p", call, p);
    if (kind == EMU_DEVICE)
        device_used[i->second.device] -= i->second.bytes;
    emu_race_forget(p, i->second.bytes + 1);
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(p,
                                (i->second.bytes + 255) / 256 * 256 + (i->second.bytes ? 0 : 256));
#endif
    allocations.erase(i);
    free(p);
    return cudaSuccess;
}

int emu_leaks(void)
{
    int n = emu_stream_leaks();

    for (const auto &a : allocations) {
        printf("# emu: %zu bytes of %s memory were not freed\n", a.second.bytes,
               a.second.kind == EMU_DEVICE ? "device" : "pinned");
        n++;
    }
    return n;
}

extern "C" {
cudaError_t cudaMalloc(void **p, size_t bytes)
{
    if (!n_device)
        return cudaErrorNoDevice;
    if (device_used[current_device] + bytes > device_bytes)
        return cudaErrorMemoryAllocation;
    device_used[current_device] += bytes;
    return allocate(p, bytes, EMU_DEVICE);
}
/* Waits for the device, as the real one does. */
cudaError_t cudaFree(void *p)
{
    if (p)
        emu_stream_drain_all();
    return release(p, EMU_DEVICE, "cudaFree");
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    return n_device ? allocate(p, bytes, EMU_PINNED) : cudaErrorNoDevice;
}
cudaError_t cudaFreeHost(void *p)
{
    return release(p, EMU_PINNED, "cudaFreeHost");
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    if (!n_device)
        return cudaErrorNoDevice;
    *total = device_bytes;
    *available = device_bytes - device_used[current_device];
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *n)
{
    *n = n_device;
    return n_device ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return n_device ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaSetDevice(int device)
{
    if (!n_device)
        return cudaErrorNoDevice;
    if (device < 0 || device >= n_device)
        return cudaErrorInvalidDevice;
    current_device = device;
    return cudaSuccess;
}
}
