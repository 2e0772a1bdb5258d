/* emu_memory.cc - allocations of the device and of pinned host memory. Device memory starts as NaN
 * and, under ASan, is closed to the host: only kernels and copies open it. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

#include "emu_call.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

struct allocation {
    size_t bytes;
    emu_memory kind;
    int device;
    bool registered; /* memory of the process that was pinned */
    bool read_only;
};

/* Never destroyed, as all such tables here: programs look for leaks when they end. */
static auto &allocations = *new std::map<const uint8_t *, allocation>;
static size_t device_used[EMU_DEVICES];
enum { CLOSED = -2, ALL = -1 };
static int open_device = CLOSED;

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

static bool is_open(const allocation &a)
{
    return a.kind != EMU_DEVICE || open_device == ALL ||
           (open_device != CLOSED && emu_reaches(open_device, a.device));
}

void emu_open_device(int device)
{
    open_device = device;
    for (const auto &a : allocations)
        if (is_open(a.second))
            guard(a.first, a.second, true);
}

void emu_close_device(void)
{
    open_device = CLOSED;
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

    if (i == allocations.end() || !is_open(i->second))
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

bool emu_is_read_only(const void *p)
{
    auto i = find(p);

    return i != allocations.end() && i->second.read_only;
}

int emu_device_of(const void *p)
{
    auto i = find(p);

    return i == allocations.end() ? -1 : i->second.device;
}

/* -- NaN --------------------------------------------------------------------------------------- */

/* Large memory is mapped, a piece again and again, from one of NaN: what nobody touches costs
 * nothing. Between two pages that nobody may touch. */
enum { LARGE = 1 << 18, PIECE = 1 << 20, PAGE = 4096 };

static int piece_of_nan(void)
{
    static int fd = -1;

    if (fd < 0) {
        std::vector<uint8_t> nan(PIECE, 0xff);
        fd = memfd_create("emu", MFD_CLOEXEC);
        if (fd < 0 || write(fd, nan.data(), PIECE) != PIECE)
            emu_die("no memory for memory");
    }
    return fd;
}

static uint8_t *map_nan(size_t bytes)
{
    size_t room = (bytes + PAGE - 1) / PAGE * PAGE;
    void *all = mmap(nullptr, room + 2 * PAGE, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (all == MAP_FAILED)
        return nullptr;
    uint8_t *p = (uint8_t *)all + PAGE;
    for (size_t at = 0; at < room; at += PIECE)
        if (mmap(p + at, room - at < PIECE ? room - at : (size_t)PIECE, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_FIXED, piece_of_nan(), 0) == MAP_FAILED)
            emu_die("no memory for memory");
    return p;
}

/* Bytes up to the end of what was taken for so many. */
static size_t room_of(size_t bytes)
{
    size_t unit = bytes >= LARGE ? PAGE : 256;

    return bytes ? (bytes + unit - 1) / unit * unit : unit;
}

static uint8_t *take(size_t bytes)
{
    if (bytes >= LARGE)
        return map_nan(bytes);
    uint8_t *p = (uint8_t *)aligned_alloc(256, room_of(bytes));
    if (p)
        memset(p, 0xff, bytes);
    return p;
}

/* For a while nobody else gets the addresses, so that who still uses them is found. */
static void unmap_later(uint8_t *p, size_t room)
{
    enum { GONE = 64 };
    static struct {
        uint8_t *p;
        size_t room;
    } gone[GONE];
    static unsigned n;

    mmap(p, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    auto &old = gone[n++ % GONE];
    if (old.p)
        munmap(old.p - PAGE, old.room + 2 * PAGE);
    old = { p, room };
}

static void give_back(uint8_t *p, size_t bytes)
{
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(p, room_of(bytes));
#endif
    if (bytes < LARGE)
        free(p);
    else
        unmap_later(p, room_of(bytes));
}

/* -- allocations ------------------------------------------------------------------------------- */

static cudaError_t allocate(void **out, size_t bytes, emu_memory kind)
{
    uint8_t *p = take(bytes);

    if (!p)
        return emu_error(cudaErrorMemoryAllocation);
#ifdef __SANITIZE_ADDRESS__ /* the bytes that rounding up has added */
    ASAN_POISON_MEMORY_REGION(p + bytes, room_of(bytes) - bytes);
#endif
    allocations[p] = { bytes, kind, emu_current_device(), false, false };
    guard(p, allocations[p], is_open(allocations[p]));
    *out = p;
    return cudaSuccess;
}

static cudaError_t release(void *p, emu_memory kind, const char *call)
{
    auto i = allocations.find((const uint8_t *)p);

    if (!p)
        return cudaSuccess;
    if (i == allocations.end() || i->second.kind != kind || i->second.registered)
        emu_die("%s: %p was not allocated by its counterpart, or is free already", call, p);
    if (emu_stream_uses(p, i->second.bytes))
        emu_die("%s: a copy that waits in a stream still needs %p", call, p);
    if (kind == EMU_DEVICE)
        device_used[i->second.device] -= i->second.bytes;
    emu_race_forget(p, i->second.bytes + 1);
    size_t bytes = i->second.bytes;
    allocations.erase(i);
    give_back((uint8_t *)p, bytes);
    return cudaSuccess;
}

int emu_leaks(void)
{
    int n = emu_stream_leaks() + emu_graph_leaks() + emu_library_leaks();

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
    EMU_CALL(cudaMalloc);
    emu_check_capture("cudaMalloc");
    if (bytes > emu_device_bytes() - device_used[emu_current_device()])
        return emu_error(cudaErrorMemoryAllocation);
    cudaError_t e = allocate(p, bytes, EMU_DEVICE);
    if (e == cudaSuccess)
        device_used[emu_current_device()] += bytes;
    return e;
}
/* Waits for the device, as the real one does. */
cudaError_t cudaFree(void *p)
{
    EMU_CALL(cudaFree);
    emu_check_capture("cudaFree");
    emu_end_begun();
    if (p)
        emu_stream_drain_all();
    return release(p, EMU_DEVICE, "cudaFree");
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    EMU_CALL(cudaHostAlloc);
    emu_check_capture("cudaHostAlloc");
    return allocate(p, bytes, EMU_PINNED);
}
cudaError_t cudaFreeHost(void *p)
{
    EMU_CALL(cudaFreeHost);
    emu_check_capture("cudaFreeHost");
    return release(p, EMU_PINNED, "cudaFreeHost");
}
cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    EMU_CALL(cudaHostRegister);
    emu_check_capture("cudaHostRegister");
    if (!p || !bytes)
        return emu_error(cudaErrorInvalidValue);
    auto next = allocations.lower_bound((const uint8_t *)p);
    if (find(p) != allocations.end() ||
        (next != allocations.end() && next->first < (const uint8_t *)p + bytes))
        return emu_error(cudaErrorHostMemoryAlreadyRegistered);
    bool read_only = flags & cudaHostRegisterReadOnly;
    allocations[(uint8_t *)p] = { bytes, EMU_PINNED, emu_current_device(), true, read_only };
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *p)
{
    EMU_CALL(cudaHostUnregister);
    emu_check_capture("cudaHostUnregister");
    auto i = allocations.find((const uint8_t *)p);
    if (i == allocations.end() || !i->second.registered)
        emu_die("cudaHostUnregister: %p was not registered", p);
    if (emu_stream_uses(p, i->second.bytes))
        emu_die("cudaHostUnregister: a copy that waits in a stream still needs %p", p);
    allocations.erase(i);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    EMU_CALL(cudaMemGetInfo);
    *total = emu_device_bytes();
    *available = *total - device_used[emu_current_device()];
    return cudaSuccess;
}
}
