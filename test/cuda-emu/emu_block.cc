/* emu_block.cc - a grid runs block after block; the threads of a block are fibers. One runs until
 * it meets a barrier, and then hands on to the next; when none can run, complete barriers open. A
 * fiber switch saves the registers that a call saves; elsewhere than on x86-64, or with
 * -DEMU_UCONTEXT, ucontext does it (five times slower).
 *
 * Most of the time of the emulation goes here. So this file is optimised and has no sanitizers in
 * it; with them elsewhere, EMU_ASAN says that ASan must be told of the stacks. */
#include "emu.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <vector>

#include "lib/base/half.h"

#ifdef EMU_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#if !defined(__x86_64__) && !defined(EMU_UCONTEXT)
#define EMU_UCONTEXT
#endif
#ifdef EMU_UCONTEXT
#include <ucontext.h>
#endif

enum { MAX_THREADS = 1024, STACK = 128 * 1024, GUARD = 4096, WARP = 32 };
enum state { READY, AT_BLOCK, AT_WARP, DONE, STATES };

struct copy {
    void *to;
    const void *from;
    unsigned bytes;
};

struct fiber {
    void *sp;
    char *stack;
#ifdef EMU_UCONTEXT
    ucontext_t context;
#endif
    emu_kind kind; /* of the barrier that it is at */
    unsigned mask;
    uint64_t value; /* what it brings to its warp, and what it gets there */
    int from;       /* the lane whose value it wants */
    uint32_t a[4], b[2];
    float c[4];
    emu_dim id;
    std::vector<copy> pending;
    std::vector<size_t> group; /* groups that are committed: their numbers of copies */
    size_t uncommitted;
};

static struct {
    fiber *fibers;
    uint8_t at[MAX_THREADS];          /* each one's state */
    int in[STATES];                   /* how many are in each state */
    uint64_t ready[MAX_THREADS / 64]; /* a bit for each */
    int n, current;
    const char *kernel;
    const emu_body *body;
    emu_clock clock;
    uint16_t warp_epoch[MAX_THREADS / WARP];
    int votes, counted; /* of the block: at the barrier to come, at the last one */
    bool backwards, copies_early;
    void *host, *host_fake; /* who launched; ASan's */
    const void *host_stack;
    size_t host_bytes;
    bool entering;
#ifdef EMU_UCONTEXT
    ucontext_t host_context;
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

/* To ASan the stacks of all fibers are one: it hears of a switch when a block begins and ends. */
static void enter_block(int first)
{
    emu.current = first;
    emu_self.thread = me()->id;
    emu.entering = true;
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(&emu.host_fake, emu.fibers[0].stack,
                                   (size_t)MAX_THREADS * (STACK + GUARD) - GUARD);
#endif
#ifndef EMU_UCONTEXT
    emu_swap(&emu.host, me()->sp);
#else
    swapcontext(&emu.host_context, &me()->context);
#endif
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(emu.host_fake, nullptr, nullptr);
#endif
}

static void leave_block(void)
{
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(nullptr, emu.host_stack, emu.host_bytes);
#endif
#ifndef EMU_UCONTEXT
    emu_swap(&me()->sp, emu.host);
#else
    swapcontext(&me()->context, &emu.host_context);
#endif
}

/* From the fiber `from`, which runs. */
static void go_on(int from, int to)
{
    emu.current = to;
    emu_self.thread = me()->id;
    if (to == from)
        return;
#ifndef EMU_UCONTEXT
    emu_swap(&emu.fibers[from].sp, me()->sp);
#else
    swapcontext(&emu.fibers[from].context, &me()->context);
#endif
}

static void set_state(int i, state to)
{
    emu.in[emu.at[i]]--;
    emu.in[to]++;
    emu.at[i] = (uint8_t)to;
    emu.ready[i / 64] &= ~(UINT64_C(1) << i % 64);
    emu.ready[i / 64] |= (uint64_t)(to == READY) << i % 64;
}

/* The next one that can run, from i on in the order of this launch; -1: none. */
static int next_ready(int i)
{
    if (i < 0 || i >= MAX_THREADS)
        return -1;
    int w = i / 64, step = emu.backwards ? -1 : 1;
    uint64_t bits = emu.backwards ? emu.ready[w] << (63 - i % 64) >> (63 - i % 64)
                                  : emu.ready[w] >> i % 64 << i % 64;
    while (!bits) {
        w += step;
        if (w < 0 || w >= MAX_THREADS / 64)
            return -1;
        bits = emu.ready[w];
    }
    return 64 * w + (emu.backwards ? 63 - __builtin_clzll(bits) : __builtin_ctzll(bits));
}

static int first_ready(void)
{
    return next_ready(emu.backwards ? emu.n - 1 : 0);
}

static bool release(void);

/* Others run until this one may go on, which after its end it never does. */
static void park(state at)
{
    int self = emu.current;

    set_state(self, at);
    int next = emu.in[READY] ? next_ready(self + (emu.backwards ? -1 : 1)) : -1;
    if (next < 0 && emu.in[DONE] == emu.n)
        return leave_block();
    if (next < 0) {
        if (!release())
            emu_die("threads wait for others that never come");
        next = first_ready();
    }
    go_on(self, next);
}

static void fiber_main(void)
{
#ifdef EMU_ASAN
    if (emu.entering)
        __sanitizer_finish_switch_fiber(nullptr, &emu.host_stack, &emu.host_bytes);
#endif
    emu.entering = false;
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

    f->id = { n % block.x, n / block.x % block.y, n / (block.x * block.y) };
    f->pending.clear();
    f->group.clear();
    f->uncommitted = 0;
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

/* -- what a warp does when it meets ------------------------------------------------------------ */

/* Lanes of the warp that begins at `w`: everybody's value is there. */
static void exchange(fiber *w, unsigned mask)
{
    uint64_t got[WARP];

    for (int l = 0; l < WARP; l++) {
        if (!(mask >> l & 1))
            continue;
        if (!(mask >> w[l].from & 1)) {
            emu.current = (int)(w + l - emu.fibers);
            emu_die("a shuffle reads lane %d, which is not in mask %08x", w[l].from, mask);
        }
        got[l] = w[w[l].from].value;
    }
    for (int l = 0; l < WARP; l++)
        if (mask >> l & 1)
            w[l].value = got[l];
}

static void match(fiber *w, unsigned mask)
{
    unsigned same[WARP] = {};

    for (int l = 0; l < WARP; l++)
        for (int k = 0; k < WARP && mask >> l & 1; k++)
            if (mask >> k & 1)
                same[l] |= (unsigned)(w[k].value == w[l].value) << k;
    for (int l = 0; l < WARP; l++)
        if (mask >> l & 1)
            w[l].value = same[l];
}

static void ballot(fiber *w, unsigned mask)
{
    unsigned all = 0;

    for (int l = 0; l < WARP; l++)
        if (mask >> l & 1)
            all |= (unsigned)w[l].value << l;
    for (int l = 0; l < WARP; l++)
        if (mask >> l & 1)
            w[l].value = all;
}

/* PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": a_i of lane 4g+t is row g
 * (i of 0,1,4,5) or g+8, column 2t + i%2 (+8 for i >= 4); b_i row 2t + i%2 (+8 for i >= 2), column
 * g; c_i row g or g+8 (i >= 2), column 2t + i%2. The order of the sum is the emulation's own. */
template <float widen(uint16_t)> static void multiply(fiber *w)
{
    float a[16][16], b[16][8], sum[16][8] = {};

    for (int l = 0; l < WARP; l++) {
        int g = l >> 2, t = l & 3;
        for (int i = 0; i < 8; i++)
            a[g + 8 * (i >> 1 & 1)][2 * t + (i & 1) + 8 * (i >> 2)] =
                widen((uint16_t)(w[l].a[i / 2] >> 16 * (i & 1)));
        for (int i = 0; i < 4; i++)
            b[2 * t + (i & 1) + 8 * (i >> 1)][g] = widen((uint16_t)(w[l].b[i / 2] >> 16 * (i & 1)));
    }
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 8; n++)
                sum[r][n] += a[r][k] * b[k][n];
    for (int l = 0; l < WARP; l++)
        for (int i = 0; i < 4; i++)
            w[l].c[i] += sum[(l >> 2) + 8 * (i >> 1)][2 * (l & 3) + (i & 1)];
}

/* -- barriers ---------------------------------------------------------------------------------- */

static bool warp_complete(int warp, unsigned mask, emu_kind kind)
{
    for (int l = 0; l < WARP; l++) {
        if (!(mask >> l & 1))
            continue;
        int i = warp + l;
        if (i >= emu.n || emu.at[i] != AT_WARP || emu.fibers[i].mask != mask)
            return false;
        if (emu.fibers[i].kind != kind) {
            emu.current = i;
            emu_die("lanes of a warp meet in different operations");
        }
    }
    return true;
}

static void meet(int warp, unsigned mask, emu_kind kind)
{
    fiber *w = &emu.fibers[warp];

    switch (kind) {
    case EMU_SYNC:
        emu.warp_epoch[warp / WARP]++;
        break;
    case EMU_SHUFFLE:
        exchange(w, mask);
        break;
    case EMU_VOTE:
        ballot(w, mask);
        break;
    case EMU_MATCH:
        match(w, mask);
        break;
    case EMU_MMA_F16:
        multiply<clb_f16_to_f32>(w);
        break;
    case EMU_MMA_BF16:
        multiply<clb_bf16_to_f32>(w);
        break;
    case EMU_COUNT:
        break; /* of blocks only */
    }
    for (int l = 0; l < WARP; l++)
        if (mask >> l & 1)
            set_state(warp + l, READY);
}

static bool release_warps(void)
{
    bool any = false;

    for (int i = 0; i < emu.n; i++) {
        const fiber &f = emu.fibers[i];
        if (emu.at[i] != AT_WARP || !warp_complete(i & ~31, f.mask, f.kind))
            continue;
        meet(i & ~31, f.mask, f.kind);
        any = true;
    }
    return any;
}

/* Called when nobody can run: opens the barriers that are complete. Threads that have ended do not
 * count at the block's. */
static bool release(void)
{
    if (emu.in[AT_WARP] && release_warps())
        return true;
    if (!emu.in[AT_BLOCK] || emu.in[AT_BLOCK] + emu.in[DONE] != emu.n)
        return false;
    emu.clock.now++;
    emu.counted = emu.votes;
    emu.votes = 0;
    for (int i = 0, kind = -1; i < emu.n; i++)
        if (emu.at[i] == AT_BLOCK) {
            emu.current = i;
            if (kind >= 0 && emu.fibers[i].kind != kind)
                emu_die("threads of a block meet at different barriers");
            kind = emu.fibers[i].kind;
            set_state(i, READY);
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

uint64_t emu_exchange(unsigned mask, uint64_t value, int from)
{
    fiber *f = me();

    f->value = value;
    f->from = from;
    emu_warp_barrier(mask, EMU_SHUFFLE);
    return f->value;
}

unsigned emu_ballot(unsigned mask, bool vote)
{
    fiber *f = me();

    f->value = vote;
    emu_warp_barrier(mask, EMU_VOTE);
    return (unsigned)f->value;
}

unsigned emu_match(unsigned mask, uint64_t value)
{
    fiber *f = me();

    f->value = value;
    emu_warp_barrier(mask, EMU_MATCH);
    return (unsigned)f->value;
}

void emu_mma_16816(float c[4], const uint32_t a[4], const uint32_t b[2], emu_kind type)
{
    fiber *f = me();

    memcpy(f->a, a, sizeof f->a);
    memcpy(f->b, b, sizeof f->b);
    memcpy(f->c, c, sizeof f->c);
    emu_warp_barrier(~0u, type);
    memcpy(c, f->c, sizeof f->c);
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
    emu.clock.block_start = ++emu.clock.now;
    memset(emu.warp_epoch, 0, sizeof emu.warp_epoch);
    for (int i = 0; i < emu.n; i++)
        start_fiber(&emu.fibers[i], i, block);
    memset(emu.at, READY, sizeof emu.at);
    memset(emu.in, 0, sizeof emu.in);
    emu.in[READY] = emu.n;
    for (int i = 0; i < emu.n; i++)
        set_state(i, READY);
    emu_fill_shared();
    enter_block(first_ready());
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
    emu_open_shared(shared);
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
    emu_close_shared();
}
