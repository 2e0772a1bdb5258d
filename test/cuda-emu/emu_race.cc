/* emu_race.cc - the race detector. Kernels are compiled with -fsanitize=thread, but libtsan is not
 * linked: the calls that the compiler makes before every access come here. Two threads race when
 * they touch one byte, one of them writes, and nothing orders them: in shared memory no
 * __syncthreads between, or __syncwarp inside a warp; in global memory also two blocks of a launch.
 * What is no shared or device memory, and not the thread's own, may not be touched at all. */
#include "emu.h"

#include <cstdlib>
#include <cstring>
#include <map>

extern "C" char __executable_start, end; /* of the program, from the linker */

/* Per byte, who wrote and who read it last. time 0: nobody. */
struct touch {
    uint32_t time;
    uint16_t thread, epoch;
};
struct cell {
    touch write, read;
};
/* Several threads read it at that time: all of one warp (which is added), or of several. */
enum { MANY_OF_WARP = 0x8000, MANY = 0xffff };

/* What was touched last, of shared and of device memory, in the launch that began then: mostly it
 * is touched again. */
struct place {
    emu_range range;
    cell *cells;
    uint32_t launch;
};
static place last[2];

/* By the start of what they belong to. */
static auto &shadows = *new std::map<const uint8_t *, cell *>;

static cell *shadow_of(const emu_range &r)
{
    cell *&c = shadows[r.base];

    if (!c)
        c = (cell *)calloc(r.bytes ? r.bytes : 1, sizeof *c);
    return c;
}

void emu_race_forget(const void *p, size_t bytes)
{
    auto from = shadows.lower_bound((const uint8_t *)p);

    last[0] = last[1] = {};
    auto to = shadows.lower_bound((const uint8_t *)p + bytes);

    for (auto i = from; i != to; ++i)
        free(i->second);
    shadows.erase(from, to);
}

static int warp_of(uint16_t thread)
{
    return thread == MANY ? -1 : thread & MANY_OF_WARP ? thread & ~MANY_OF_WARP : thread / 32;
}

static bool unordered(const touch &before, const emu_clock &now, bool global)
{
    if (!before.time || before.time < now.launch_start)
        return false;
    if (before.time < now.block_start)
        return global; /* another block of this launch */
    if (before.time != now.now || before.thread == now.thread)
        return false;
    return warp_of(before.thread) != now.thread / 32 || before.epoch == now.warp_epoch;
}

static void remember_read(touch &read, const touch &mine)
{
    if (read.time == mine.time && warp_of(read.thread) != mine.thread / 32)
        read.thread = MANY;
    else if (read.time == mine.time && read.epoch == mine.epoch && read.thread != mine.thread)
        read = { mine.time, (uint16_t)(MANY_OF_WARP | mine.thread / 32), mine.epoch };
    else
        read = mine;
}

static void check(const emu_clock &now, bool global, cell *c, size_t at, bool write)
{
    touch mine = { now.now, now.thread, now.warp_epoch };
    bool wrote = unordered(c->write, now, global);

    if (wrote || (write && unordered(c->read, now, global))) {
        const touch &other = wrote ? c->write : c->read;
        emu_die(
            "race: byte %zu of %s: thread %d %s it and thread %d %s it, and nothing orders them",
            at, global ? "device memory" : "shared memory",
            other.thread & MANY_OF_WARP ? -1 : (int)other.thread, wrote ? "wrote" : "read",
            now.thread, write ? "writes" : "reads");
    }
    if (write)
        c->write = mine;
    else
        remember_read(c->read, mine);
}

static bool lies_in(const void *p, const place &l, const emu_clock &now)
{
    return l.launch == now.launch_start &&
           (size_t)((const uint8_t *)p - l.range.base) < l.range.bytes;
}

/* Where p lies, if a kernel may touch it. */
static const place &find(const void *p, bool write, const emu_clock &now)
{
    place l = { {}, nullptr, now.launch_start };
    bool global = !emu_find_shared(p, &l.range);

    if (global && !emu_find_global(p, &l.range))
        emu_die("a kernel %s %p, which is no memory of the device", write ? "writes" : "reads", p);
    l.cells = shadow_of(l.range);
    return last[global] = l;
}

void emu_access(const void *p, size_t bytes, bool write)
{
    if (!emu_in_kernel || !bytes || emu_is_stack(p))
        return;
    if ((const char *)p >= &__executable_start && (const char *)p < &end) {
        if (write)
            emu_die("a kernel writes a variable of the host");
        return;
    }
    emu_clock now = emu_clock_now();
    const place &l = lies_in(p, last[0], now)   ? last[0]
                     : lies_in(p, last[1], now) ? last[1]
                                                : find(p, write, now);
    bool global = &l == &last[1];
    size_t at = (size_t)((const uint8_t *)p - l.range.base);
    if (at + bytes > l.range.bytes)
        emu_die("a kernel %s %zu bytes at %zu of %zu of %s memory", write ? "writes" : "reads",
                bytes, at, l.range.bytes, global ? "device" : "shared");
    for (size_t i = 0; i < bytes; i++)
        check(now, global, l.cells + at + i, at + i, write);
}

bool emu_race_build(void)
{
    return true;
}

/* -- what the compiler calls ------------------------------------------------------------------- */

extern "C" {
void __tsan_init(void)
{
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit(void)
{
}
void __tsan_vptr_read(void *)
{
}
void __tsan_vptr_update(void *, void *)
{
}
#define SIZE(n)                                                                                    \
    void __tsan_read##n(void *p)                                                                   \
    {                                                                                              \
        emu_access(p, n, false);                                                                   \
    }                                                                                              \
    void __tsan_write##n(void *p)                                                                  \
    {                                                                                              \
        emu_access(p, n, true);                                                                    \
    }                                                                                              \
    void __tsan_unaligned_read##n(void *p)                                                         \
    {                                                                                              \
        emu_access(p, n, false);                                                                   \
    }                                                                                              \
    void __tsan_unaligned_write##n(void *p)                                                        \
    {                                                                                              \
        emu_access(p, n, true);                                                                    \
    }
SIZE(1)
SIZE(2)
SIZE(4)
SIZE(8)
SIZE(16)
/* Of shared_ptr in host code. */
int __tsan_atomic32_fetch_add(volatile int *p, int n, int)
{
    return __atomic_fetch_add(p, n, __ATOMIC_SEQ_CST);
}
void __tsan_read_range(void *p, long n)
{
    emu_access(p, (size_t)n, false);
}
void __tsan_write_range(void *p, long n)
{
    emu_access(p, (size_t)n, true);
}
}
