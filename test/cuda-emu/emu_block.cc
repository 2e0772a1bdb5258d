/* emu_block.cc - a grid runs block after block; the threads of a block are fibers that run until
 * they meet a barrier. A fiber switch saves the registers that a call saves; elsewhere than on
 * x86-64, or with -DEMU_UCONTEXT, ucontext does it (five times slower). */
#include "emu.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__) && !defined(EMU_UCONTEXT)
#define EMU_UCONTEXT
#endif
#ifdef EMU_UCONTEXT
#include <ucontext.h>
#endif

enum { MAX_THREADS = 1024, STACK = 128 * 1024, GUARD = 4096, WARP = 32 };
enum state { READY, AT_BLOCK, AT_WARP, DONE };

struct copy {
    void *to;
    const void *from;
    unsigned bytes;
};

struct fiber {
    void *sp;
    char *stack;
    void *fake_stack; /* ASan's */
#ifdef EMU_UCONTEXT
    ucontext_t context;
#endif
    state at;
    emu_kind kind;
    unsigned mask;
    uint64_t value;
    float a[8], b[4]; /* of mma, two values of each register */
    emu_dim id;
    std::vector<copy> pending;
    std::vector<size_t> group; /* groups that are committed: their numbers of copies */
    size_t uncommitted;
};

struct shared_block {
    const void *key;
    uint8_t *base;
    size_t bytes;
};

static struct {
    fiber *fibers;
    int n, current;
    const char *kernel;
    const emu_body *body;
    std::vector<shared_block> shared; /* the first is the dynamic one */
    emu_clock clock;
    uint16_t warp_epoch[MAX_THREADS / WARP];
    int votes, counted; /* of the block: at the barrier to come, at the last one */
    bool backwards, copies_early;
    void *scheduler, *scheduler_fake;
    const void *scheduler_stack;
    size_t scheduler_bytes;
#ifdef EMU_UCONTEXT
    ucontext_t scheduler_context;
#endif
} emu;

emu_view emu_self;
__thread bool emu_in_kernel;

void emu_die(const char *format, ...)
{
    va_list ap;

    va_start(ap, format);
    fputs("emu: ", stderr);
    vfprintf(stderr, format, ap);
    va_end(ap);
    if (emu_in_kernel)
        fprintf(stderr, " (%s, block %u,%u,%u, thread %u,%u,%u)", emu.kernel, emu_self.block.x,
                emu_self.block.y, emu_self.block.z, emu_self.thread.x, emu_self.thread.y,
                emu_self.thread.z);
    fputc('\n', stderr);
    abort();
}

/* -- fibers ------------------------------------------------------------------------------------ */

#ifndef EMU_UCONTEXT
extern "C" void emu_swap(void **save, void *load);
asm(".text\n.globl emu_swap\n.type emu_swap,@function\nemu_swap:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");
#endif

static fiber *me(void)
{
    return &emu.fibers[emu.current];
}

static void to_scheduler(bool last)
{
    fiber *f = me();
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(last ? nullptr : &f->fake_stack, emu.scheduler_stack,
                                   emu.scheduler_bytes);
#else
    (void)last;
#endif
#ifndef EMU_UCONTEXT
    emu_swap(&f->sp, emu.scheduler);
#else
    swapcontext(&f->context, &emu.scheduler_context);
#endif
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(f->fake_stack, nullptr, nullptr);
#endif
}

static void to_fiber(int i)
{
    fiber *f = &emu.fibers[i];

    emu.current = i;
    emu_self.thread = f->id;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&emu.scheduler_fake, f->stack, STACK);
#endif
#ifndef EMU_UCONTEXT
    emu_swap(&emu.scheduler, f->sp);
#else
    swapcontext(&emu.scheduler_context, &f->context);
#endif
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(emu.scheduler_fake, nullptr, nullptr);
#endif
}

static void park(state at)
{
    me()->at = at;
    to_scheduler(at == DONE);
}

static void fiber_main(void)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, &emu.scheduler_stack, &emu.scheduler_bytes);
#endif
    emu.body->call(emu.body->closure.get());
    if (!me()->pending.empty())
        emu_die("an asynchronous copy is still pending when the thread ends");
    park(DONE);
    abort();
}

static void make_fibers(void)
{
    char *p = (char *)mmap(nullptr, (size_t)MAX_THREADS * (STACK + GUARD), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        emu_die("no memory for the stacks of threads");
    emu.fibers = new fiber[MAX_THREADS]();
    for (int i = 0; i < MAX_THREADS; i++, p += STACK + GUARD) {
        mprotect(p, GUARD, PROT_NONE);
        emu.fibers[i].stack = p + GUARD;
    }
}

static void start_fiber(fiber *f, int i, emu_dim block)
{
    unsigned n = (unsigned)i;

    f->at = READY;
    f->fake_stack = nullptr;
    f->id = { n % block.x, n / block.x % block.y, n / (block.x * block.y) };
    f->pending.clear();
    f->group.clear();
    f->uncommitted = 0;
#ifdef __SANITIZE_ADDRESS__ /* the frames of the last thread never returned */
    ASAN_UNPOISON_MEMORY_REGION(f->stack + STACK - 4096, 4096);
#endif
#ifndef EMU_UCONTEXT
    uint64_t *s = (uint64_t *)(f->stack + STACK - 16);
    *--s = 0;
    *--s = (uint64_t)fiber_main;
    s -= 6;
    memset(s, 0, 48);
    f->sp = s;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = nullptr;
    makecontext(&f->context, fiber_main, 0);
#endif
}

bool emu_is_stack(const void *p)
{
    const char *first = emu.fibers[0].stack;

    return (const char *)p >= first &&
           (const char *)p < first + (size_t)MAX_THREADS * (STACK + GUARD);
}

/* -- barriers ---------------------------------------------------------------------------------- */

static bool warp_complete(int warp, unsigned mask, emu_kind kind)
{
    for (int l = 0; l < WARP; l++) {
        if (!(mask >> l & 1))
            continue;
        int i = warp + l;
        if (i >= emu.n || emu.fibers[i].at != AT_WARP || emu.fibers[i].mask != mask)
            return false;
        if (emu.fibers[i].kind != kind) {
            emu.current = i;
            emu_die("lanes of a warp meet in different operations");
        }
    }
    return true;
}

static bool release_warps(void)
{
    bool any = false;

    for (int i = 0; i < emu.n; i++) {
        fiber *f = &emu.fibers[i];
        if (f->at != AT_WARP || !warp_complete(i & ~31, f->mask, f->kind))
            continue;
        unsigned mask = f->mask;
        if (f->kind == EMU_SYNC)
            emu.warp_epoch[i / WARP]++;
        for (int l = 0; l < WARP; l++)
            if (mask >> l & 1)
                emu.fibers[(i & ~31) + l].at = READY;
        any = true;
    }
    return any;
}

/* Called when nobody can run: opens the barriers that are complete. Threads that have ended do not
 * count at the block's. */
static bool release(void)
{
    int waiting = 0, done = 0;

    if (release_warps())
        return true;
    for (int i = 0; i < emu.n; i++) {
        waiting += emu.fibers[i].at == AT_BLOCK;
        done += emu.fibers[i].at == DONE;
    }
    if (!waiting || waiting + done != emu.n)
        return false;
    emu.clock.now++;
    emu.counted = emu.votes;
    emu.votes = 0;
    for (int i = 0, kind = -1; i < emu.n; i++)
        if (emu.fibers[i].at == AT_BLOCK) {
            emu.current = i;
            if (kind >= 0 && emu.fibers[i].kind != kind)
                emu_die("threads of a block meet at different barriers");
            kind = emu.fibers[i].kind;
            emu.fibers[i].at = READY;
        }
    return true;
}

void emu_block_barrier(void)
{
    me()->kind = EMU_SYNC;
    park(AT_BLOCK);
}

int emu_block_count(bool vote)
{
    me()->kind = EMU_COUNT;
    emu.votes += vote;
    park(AT_BLOCK);
    return emu.counted;
}

int emu_lane(void)
{
    return emu.current & 31;
}

void emu_warp_barrier(unsigned mask, emu_kind kind)
{
    fiber *f = me();

    if (!(mask >> emu_lane() & 1))
        emu_die("a lane is not in its own mask %08x", mask);
    f->mask = mask;
    f->kind = kind;
    park(AT_WARP);
}

/* Twice: when all have published, and when all have read. */
uint64_t emu_exchange(unsigned mask, uint64_t value, int from, emu_kind kind)
{
    me()->value = value;
    emu_warp_barrier(mask, kind);
    if (!(mask >> from & 1))
        emu_die("a shuffle reads lane %d, which is not in mask %08x", from, mask);
    uint64_t got = emu.fibers[(emu.current & ~31) + from].value;
    emu_warp_barrier(mask, kind);
    return got;
}

unsigned emu_ballot(unsigned mask, bool vote)
{
    unsigned all = 0;

    me()->value = vote;
    emu_warp_barrier(mask, EMU_VOTE);
    for (int l = 0; l < WARP; l++)
        if (mask >> l & 1)
            all |= (unsigned)emu.fibers[(emu.current & ~31) + l].value << l;
    emu_warp_barrier(mask, EMU_VOTE);
    return all;
}

unsigned emu_match(unsigned mask, uint64_t value)
{
    unsigned same = 0;

    me()->value = value;
    emu_warp_barrier(mask, EMU_MATCH);
    for (int l = 0; l < WARP; l++)
        if (mask >> l & 1)
            same |= (unsigned)(emu.fibers[(emu.current & ~31) + l].value == value) << l;
    emu_warp_barrier(mask, EMU_MATCH);
    return same;
}

/* PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": a_i of lane 4g+t is row g
 * (i of 0,1,4,5) or g+8, column 2t + i%2 (+8 for i >= 4); b_i row 2t + i%2 (+8 for i >= 2), column
 * g; c_i row g or g+8 (i >= 2), column 2t + i%2. The order of the sum is the emulation's own. */
void emu_mma_16816(float c[4], const uint32_t a[4], const uint32_t b[2], emu_widen_fn *widen)
{
    fiber *f = me(), *warp = &emu.fibers[emu.current & ~31];
    int g = emu_lane() >> 2, t = emu_lane() & 3;

    for (int i = 0; i < 8; i++)
        f->a[i] = widen((uint16_t)(a[i / 2] >> 16 * (i & 1)));
    for (int i = 0; i < 4; i++)
        f->b[i] = widen((uint16_t)(b[i / 2] >> 16 * (i & 1)));
    emu_warp_barrier(~0u, EMU_MMA);
    for (int i = 0; i < 4; i++) {
        int column = 2 * t + (i & 1), half = i >> 1;
        float sum = 0;
        for (int k = 0; k < 16; k++) {
            int quad = (k & 7) >> 1, odd = k & 1, upper = k >> 3;
            sum += warp[4 * g + quad].a[2 * (half + 2 * upper) + odd] *
                   warp[4 * column + quad].b[2 * upper + odd];
        }
        c[i] += sum;
    }
    emu_warp_barrier(~0u, EMU_MMA);
}

/* -- asynchronous copies ----------------------------------------------------------------------- */

static void copy_now(const copy &c)
{
    emu_access(c.from, c.bytes, false);
    emu_access(c.to, 16, true);
    memcpy(c.to, c.from, c.bytes);
    memset((char *)c.to + c.bytes, 0, 16 - c.bytes);
}

void emu_copy_async(void *to, const void *from, unsigned bytes)
{
    if (bytes > 16 || (uintptr_t)to % 16 || (bytes && (uintptr_t)from % 16))
        emu_die("an asynchronous copy of %u bytes from %p to %p", bytes, from, to);
    if (emu.copies_early)
        copy_now({ to, from, bytes });
    else
        emu_access(to, 16, true);
    me()->pending.push_back({ to, from, bytes });
    me()->uncommitted++;
}

void emu_copy_commit(void)
{
    me()->group.push_back(me()->uncommitted);
    me()->uncommitted = 0;
}

void emu_copy_wait(unsigned groups_left)
{
    fiber *f = me();

    while (f->group.size() > groups_left) {
        size_t n = f->group.front();
        for (size_t i = 0; i < n && !emu.copies_early; i++)
            copy_now(f->pending[i]);
        f->pending.erase(f->pending.begin(), f->pending.begin() + (ptrdiff_t)n);
        f->group.erase(f->group.begin());
    }
}

/* -- shared memory ----------------------------------------------------------------------------- */

enum { EDGE = 64 }; /* bytes behind that nobody may touch */

static void add_shared(const void *key, size_t bytes)
{
    size_t room = (bytes + 255) / 256 * 256 + 256;
    uint8_t *p = (uint8_t *)aligned_alloc(256, room);

    if (!p)
        emu_die("no memory for shared memory");
    memset(p, 0xff, room);
#ifdef __SANITIZE_ADDRESS__
    ASAN_POISON_MEMORY_REGION(p + bytes, room - bytes);
#endif
    emu.shared.push_back({ key, p, bytes });
}

static void free_shared(void)
{
    for (const shared_block &s : emu.shared) {
        size_t room = (s.bytes + 255) / 256 * 256 + 256;
#ifdef __SANITIZE_ADDRESS__
        ASAN_UNPOISON_MEMORY_REGION(s.base, room);
#endif
        emu_race_forget(s.base, room);
        free(s.base);
    }
    emu.shared.clear();
}

void *emu_dynamic_shared(void)
{
    return emu.shared[0].base;
}

void *emu_shared(const void *key, size_t bytes)
{
    for (const shared_block &s : emu.shared)
        if (s.key == key)
            return s.base;
    add_shared(key, bytes);
    return emu.shared.back().base;
}

bool emu_find_shared(const void *p, emu_range *out)
{
    for (const shared_block &s : emu.shared)
        if ((const uint8_t *)p >= s.base && (const uint8_t *)p < s.base + s.bytes + EDGE) {
            *out = { s.base, s.bytes };
            return true;
        }
    return false;
}

/* -- a grid ------------------------------------------------------------------------------------ */

emu_clock emu_clock_now(void)
{
    emu_clock c = emu.clock;

    c.thread = (uint16_t)emu.current;
    c.warp_epoch = emu.warp_epoch[emu.current / WARP];
    return c;
}

void emu_acquire_blocks(void)
{
    emu.clock.launch_start = emu.clock.block_start;
}

/* Every launch runs its threads in the other order than the one before. */
static void run_block(emu_dim block)
{
    int left = emu.n;

    emu.clock.block_start = ++emu.clock.now;
    memset(emu.warp_epoch, 0, sizeof emu.warp_epoch);
    for (int i = 0; i < emu.n; i++)
        start_fiber(&emu.fibers[i], i, block);
    for (const shared_block &s : emu.shared)
        memset(s.base, 0xff, s.bytes);
    while (left) {
        bool ran = false;
        for (int j = 0; j < emu.n; j++) {
            int i = emu.backwards ? emu.n - 1 - j : j;
            if (emu.fibers[i].at != READY)
                continue;
            to_fiber(i);
            ran = true;
            left -= emu.fibers[i].at == DONE;
        }
        if (left && !ran && !release())
            emu_die("threads wait for others that never come");
    }
}

void emu_run_grid(int device, const char *name, emu_dim grid, emu_dim block, size_t shared,
                  const emu_body &body)
{
    if (!emu.fibers)
        make_fibers();
    emu.n = (int)(block.x * block.y * block.z);
    emu.kernel = name;
    emu.body = &body;
    emu.backwards = !emu.backwards;
    emu.copies_early = emu.backwards != emu.copies_early;
    emu_self.grid_dim = grid;
    emu_self.block_dim = block;
    add_shared(nullptr, shared);
    emu_open_device(device);
    emu_in_kernel = true;
    emu.clock.launch_start = emu.clock.now + 1;
    size_t blocks = (size_t)grid.x * grid.y * grid.z;
    for (size_t j = 0; j < blocks; j++) {
        size_t i = emu.backwards ? blocks - 1 - j : j;
        emu_self.block = { (unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y),
                           (unsigned)(i / ((size_t)grid.x * grid.y)) };
        run_block(block);
    }
    emu_in_kernel = false;
    emu_close_device();
    free_shared();
}
