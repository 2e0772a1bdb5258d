/* emu_shared.cc - the shared memory of blocks. It is kept from launch to launch, and closed to
 * everybody while no launch uses it. A block finds NaN in it. */
#include "emu.h"

#include <cstdlib>
#include <cstring>
#include <vector>

#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#endif

struct shared_block {
    const void *key;
    uint8_t *base;
    size_t bytes, room;
    uint64_t launch; /* that uses it */
};

/* The first is the dynamic one. Never destroyed, as all such tables here. */
static auto &blocks = *new std::vector<shared_block>;
static uint64_t launch;
enum {
    EDGE = 64, /* bytes behind that nobody may touch */
    DYNAMIC_MOST = 256 * 1024,
};

static void open(shared_block *s, size_t bytes)
{
    if (bytes > s->bytes) /* what the race detector knows of it is too short */
        emu_race_forget(s->base, s->room);
    s->bytes = bytes;
    s->launch = launch;
#ifdef EMU_ASAN
    __asan_unpoison_memory_region(s->base, bytes);
#endif
    memset(s->base, 0xff, bytes);
}

static void add(const void *key, size_t bytes)
{
    size_t room = (bytes + 255) / 256 * 256 + 256;
    uint8_t *p = (uint8_t *)aligned_alloc(256, room);

    if (!p)
        emu_die("no memory for shared memory");
#ifdef EMU_ASAN
    __asan_poison_memory_region(p, room);
#endif
    blocks.push_back({ key, p, 0, room, 0 });
}

void *emu_dynamic_shared(void)
{
    return blocks[0].base;
}

void *emu_shared(const void *key, size_t bytes)
{
    size_t i = 0;

    while (i < blocks.size() && blocks[i].key != key)
        i++;
    if (i == blocks.size())
        add(key, bytes);
    if (!blocks[i].bytes || blocks[i].launch != launch)
        open(&blocks[i], bytes);
    return blocks[i].base;
}

void emu_open_shared(size_t dynamic)
{
    if (blocks.empty())
        add(nullptr, DYNAMIC_MOST);
    launch++;
    open(&blocks[0], dynamic);
}

void emu_fill_shared(void)
{
    for (const shared_block &s : blocks)
        if (s.launch == launch)
            memset(s.base, 0xff, s.bytes);
}

void emu_close_shared(void)
{
#ifdef EMU_ASAN
    for (const shared_block &s : blocks)
        if (s.launch == launch)
            __asan_poison_memory_region(s.base, (s.bytes + 255) / 256 * 256);
#endif
    launch++; /* nobody's */
}

bool emu_find_shared(const void *p, emu_range *out)
{
    for (const shared_block &s : blocks)
        if (s.launch == launch && (const uint8_t *)p >= s.base &&
            (const uint8_t *)p < s.base + s.bytes + EDGE) {
            *out = { s.base, s.bytes };
            return true;
        }
    return false;
}
