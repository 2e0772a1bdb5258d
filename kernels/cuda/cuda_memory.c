/* cuda_memory.c - memory of the device, pinned memory, copies from the host; errors of the runtime.
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_call.h"

#include <inttypes.h>
#include <string.h>

#include "lib/base/mem.h"

enum { LINK_BYTES = 16 << 20 }; /* of a buffer of a link */

/* -- errors ------------------------------------------------------------------------------------ */

/* The device has failed, or a kernel: the runtime knows no more than that. */
static bool is_of_device(cudaError_t e)
{
    return e == cudaErrorLaunchFailure || e == cudaErrorIllegalAddress ||
           e == cudaErrorECCUncorrectable || e == cudaErrorUnknown;
}

bool clb_cuda_ok(cudaError_t e, struct clb_err *err, const char *what)
{
    if (e == cudaSuccess)
        return true;
    cudaGetLastError(); /* told once */
    return clb_fail(err, e == cudaErrorMemoryAllocation ? CLB_NO_SPACE : CLB_DEVICE,
                    "CUDA: %s: %s%s", what, cudaGetErrorString(e),
                    is_of_device(e) ? "; the log of the system may say why ('dmesg | grep Xid')"
                                    : "");
}

bool clb_cuda_launched(const struct clb_backend *be, struct clb_acts *x, struct clb_err *err,
                       const char *stage)
{
    if (x->failed.code) {
        *err = x->failed;
        x->failed = (struct clb_err){ 0 };
        return clb_fail_in(err, "%s", stage);
    }
    return clb_cuda_ok(cudaGetLastError(), err, stage) &&
           (!be->watched || clb_cuda_ok(cudaStreamSynchronize(x->stream), err, stage));
}

/* -- the device's ------------------------------------------------------------------------------ */

static bool fits(struct clb_backend *be, uint64_t bytes, uint64_t *left)
{
    pthread_mutex_lock(&be->lock);
    *left = be->budget - be->used;
    bool ok = bytes <= *left;
    be->used += ok ? bytes : 0;
    pthread_mutex_unlock(&be->lock);
    return ok;
}

static void uncount(struct clb_backend *be, uint64_t bytes)
{
    pthread_mutex_lock(&be->lock);
    be->used -= bytes;
    pthread_mutex_unlock(&be->lock);
}

static void release(struct clb_backend *be, void *p, uint64_t bytes)
{
    cudaSetDevice(be->device);
    cudaFree(p);
    uncount(be, bytes);
}

static void release_slabs(struct clb_backend *be)
{
    for (unsigned c = 0; c < CLB_SLAB_CLASSES; c++)
        while (be->slabs.n[c]) {
            uint64_t bytes = be->slabs.o.class_bytes[c];

            if (be->ledger)
                clb_ledger_sub(be->ledger, 0, bytes);
            release(be, be->slabs.idle[c][--be->slabs.n[c]], bytes);
        }
}

/* Slabs that nobody uses make room. */
static bool count(struct clb_backend *be, uint64_t bytes, const char *what, struct clb_err *err)
{
    uint64_t left;

    if (fits(be, bytes, &left))
        return true;
    release_slabs(be);
    return fits(be, bytes, &left) || clb_fail(err, CLB_NO_SPACE,
                                              "CUDA: %s: %" PRIu64 " bytes are needed, %" PRIu64
                                              " of %" PRIu64 " are left on device %d",
                                              what, bytes, left, be->budget, be->device);
}

/* On the copy stream, and waits: nobody has the memory yet. */
static bool zero(struct clb_backend *be, void *p, uint64_t bytes, struct clb_err *err)
{
    return clb_cuda_ok(cudaMemsetAsync(p, 0, bytes, be->link.copy), err, "clearing memory") &&
           clb_cuda_ok(cudaStreamSynchronize(be->link.copy), err, "clearing memory");
}

static bool take(struct clb_backend *be, void **p, uint64_t bytes, const char *what,
                 struct clb_err *err)
{
    if (!clb_cuda_ok(cudaSetDevice(be->device), err, "choosing the device") ||
        !count(be, bytes, what, err))
        return false;
    cudaError_t e = cudaMalloc(p, bytes ? bytes : 1);
    if (e == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        uncount(be, bytes);
        return clb_fail(err, CLB_NO_SPACE,
                        "CUDA: %s: device %d has no %" PRIu64 " bytes left, since others use it, "
                        "too; end them, or set a lower limit of GPU memory",
                        what, be->device, bytes);
    }
    if (!clb_cuda_ok(e, err, what)) {
        uncount(be, bytes);
        return false;
    }
    return true;
}

void *clb_cuda_get(struct clb_backend *be, uint64_t bytes, const char *what, struct clb_err *err)
{
    void *p = NULL;

    if (!take(be, &p, bytes, what, err))
        return NULL;
    if (be->ledger)
        clb_ledger_add(be->ledger, bytes, bytes);
    if (zero(be, p, bytes, err))
        return p;
    clb_cuda_put(be, p, bytes);
    return NULL;
}

void clb_cuda_put(struct clb_backend *be, void *p, uint64_t bytes)
{
    if (!p)
        return;
    if (be->ledger)
        clb_ledger_sub(be->ledger, bytes, bytes);
    release(be, p, bytes);
}

/* -- slabs ------------------------------------------------------------------------------------- */

/* The class whose slabs cost this much; CLB_SLAB_CLASSES: none. */
static unsigned class_of(const struct clb_cuda_slabs *s, uint64_t cost)
{
    unsigned c = 0;

    while (c < CLB_SLAB_CLASSES && s->o.class_bytes[c] != cost)
        c++;
    return s->o.disabled ? CLB_SLAB_CLASSES : c;
}

void *clb_cuda_slab_get(struct clb_backend *be, uint64_t bytes, struct clb_err *err)
{
    uint64_t cost = clb_slab_cost(&be->slabs.o, bytes);
    unsigned c = class_of(&be->slabs, cost);
    bool fresh = c == CLB_SLAB_CLASSES || be->slabs.n[c] == 0;
    void *p = NULL;

    if (!fresh)
        p = be->slabs.idle[c][--be->slabs.n[c]];
    else if (!take(be, &p, cost, "activations", err))
        return NULL;
    if (be->ledger)
        clb_ledger_add(be->ledger, bytes, fresh ? cost : 0);
    if (zero(be, p, cost, err))
        return p;
    clb_cuda_slab_put(be, p, bytes);
    return NULL;
}

void clb_cuda_slab_put(struct clb_backend *be, void *p, uint64_t bytes)
{
    uint64_t cost = clb_slab_cost(&be->slabs.o, bytes);
    unsigned c = class_of(&be->slabs, cost);

    if (!p)
        return;
    bool keep = c < CLB_SLAB_CLASSES && be->slabs.n[c] < CLB_CUDA_IDLE;
    if (be->ledger)
        clb_ledger_sub(be->ledger, bytes, keep ? 0 : cost);
    if (keep)
        be->slabs.idle[c][be->slabs.n[c]++] = p;
    else
        release(be, p, cost);
}

/* -- what sessions are given ------------------------------------------------------------------- */

static void *memory_get(void *arg, uint64_t bytes, struct clb_err *err)
{
    return clb_cuda_get(arg, bytes, "memory of a run", err);
}
static void memory_put(void *arg, void *p, uint64_t bytes)
{
    clb_cuda_put(arg, p, bytes);
}
static bool memory_copy(void *arg, void *to, const void *from, uint64_t bytes, struct clb_err *err)
{
    struct clb_backend *be = arg;

    return clb_cuda_ok(cudaSetDevice(be->device), err, "choosing the device") &&
           clb_cuda_ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, be->link.copy),
                       err, "copying on the device") &&
           clb_cuda_ok(cudaStreamSynchronize(be->link.copy), err, "copying on the device");
}

static void *pin(int device, uint64_t bytes, struct clb_err *err)
{
    void *p = NULL;

    if (!clb_cuda_ok(cudaSetDevice(device), err, "choosing the device"))
        return NULL;
    cudaError_t e = cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocPortable);
    if (clb_cuda_ok(e, err, "pinned host memory"))
        return p;
    if (e == cudaErrorMemoryAllocation)
        clb_fail(err, CLB_NO_SPACE,
                 "CUDA: pinned host memory: the system does not lock %" PRIu64
                 " bytes; end other programs, or allow this one more memory",
                 bytes);
    return NULL;
}
static void unpin(void *p)
{
    if (p)
        cudaFreeHost(p);
}
static void *pinned_get(void *arg, uint64_t bytes, struct clb_err *err)
{
    void *p = pin(((struct clb_backend *)arg)->device, bytes, err);

    return p ? memset(p, 0, bytes) : NULL;
}
static void pinned_put(void *arg, void *p, uint64_t bytes)
{
    (void)arg, (void)bytes;
    unpin(p);
}
static bool pinned_copy(void *arg, void *to, const void *from, uint64_t bytes, struct clb_err *err)
{
    (void)arg, (void)err;
    memcpy(to, from, bytes);
    return true;
}

void clb_cuda_memory_init(struct clb_backend *be, const struct clb_slab_options *slabs)
{
    static const size_t classes[CLB_SLAB_CLASSES] = { 128 << 10, 512 << 10, 2 << 20 };

    pthread_mutex_init(&be->lock, NULL);
    if (slabs)
        be->slabs.o = *slabs;
    if (!be->slabs.o.class_bytes[CLB_SLAB_CLASSES - 1])
        memcpy(be->slabs.o.class_bytes, classes, sizeof classes);
    be->memory = (struct clb_memory){ memory_get, memory_put, memory_copy, be };
    be->pinned = (struct clb_memory){ pinned_get, pinned_put, pinned_copy, be };
}

void clb_cuda_memory_done(struct clb_backend *be)
{
    release_slabs(be);
    pthread_mutex_destroy(&be->lock);
}

/* -- copies from pageable memory --------------------------------------------------------------- */

bool clb_cuda_link_open(struct clb_cuda_link *l, int device, struct clb_err *err)
{
    l->device = device;
    return clb_cuda_ok(cudaStreamCreateWithFlags(&l->copy, cudaStreamNonBlocking), err, "a stream");
}

void clb_cuda_link_close(struct clb_cuda_link *l)
{
    for (int i = 0; i < 2; i++) {
        if (l->sent[i])
            cudaEventDestroy(l->sent[i]);
        unpin(l->buffer[i]);
    }
    if (l->copy)
        cudaStreamDestroy(l->copy);
    *l = (struct clb_cuda_link){ 0 };
}

static bool open_buffers(struct clb_cuda_link *l, struct clb_err *err)
{
    for (int i = 0; i < 2; i++) {
        if (!l->buffer[i] && !(l->buffer[i] = pin(l->device, LINK_BYTES, err)))
            return false;
        if (!l->sent[i] &&
            !clb_cuda_ok(cudaEventCreateWithFlags(&l->sent[i], cudaEventDisableTiming), err,
                         "an event"))
            return false;
    }
    return true;
}

bool clb_cuda_send(struct clb_cuda_link *l, void *to, const void *from, uint64_t bytes,
                   struct clb_err *err)
{
    if (!open_buffers(l, err))
        return false;
    for (uint64_t at = 0, n; at < bytes; at += n) {
        unsigned i = l->next++ % 2;

        n = bytes - at < LINK_BYTES ? bytes - at : LINK_BYTES;
        if (!clb_cuda_ok(cudaEventSynchronize(l->sent[i]), err, "copying weights"))
            return false;
        memcpy(l->buffer[i], (const uint8_t *)from + at, n);
        if (!clb_cuda_ok(cudaMemcpyAsync((uint8_t *)to + at, l->buffer[i], n,
                                         cudaMemcpyHostToDevice, l->copy),
                         err, "copying weights") ||
            !clb_cuda_ok(cudaEventRecord(l->sent[i], l->copy), err, "copying weights"))
            return false;
    }
    return true;
}
