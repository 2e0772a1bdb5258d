/* cuda_pinned.c - memory of the host that was registered: copies from it to a device are direct.
 * The ranges are sorted by address. What may change when an upload or a stage returns (`fixed`
 * false) must have been read by then. */
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_call.h"
#include "lib/base/mem.h"

/* Of the first range that begins behind p. */
static uint32_t behind(const struct clb_backend *be, const void *p)
{
    uint32_t from = 0, to = be->n_range;

    while (from < to) {
        uint32_t middle = from + (to - from) / 2;

        if (be->range[middle].at <= (const uint8_t *)p)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

static const struct clb_cuda_range *range_of(const struct clb_backend *be, const void *p,
                                             uint64_t bytes)
{
    uint32_t i = behind(be, p);
    const struct clb_cuda_range *r = i ? &be->range[i - 1] : NULL;
    uint64_t at = r ? (uint64_t)((const uint8_t *)p - r->at) : 0;

    return r && at < r->bytes && bytes <= r->bytes - at ? r : NULL;
}

static bool make_room(struct clb_backend *be, struct clb_err *err)
{
    uint32_t most = be->most_range ? be->most_range * 2 : 16;

    if (be->n_range < be->most_range)
        return true;
    struct clb_cuda_range *more = clb_grow(be->range, most, sizeof *more, err);
    if (!more)
        return false;
    be->range = more;
    be->most_range = most;
    return true;
}

bool clb_cuda_pin_host(struct clb_backend *be, const void *at, uint64_t bytes, bool fixed,
                       struct clb_err *err)
{
    unsigned flags = cudaHostRegisterPortable | (fixed ? cudaHostRegisterReadOnly : 0u);
    uint32_t i = behind(be, at);

    if (!make_room(be, err) || !clb_cuda_choose(be->device, err) ||
        !clb_cuda_ok(cudaHostRegister((void *)(uintptr_t)at, bytes, flags), err,
                     "registering memory of the host"))
        return false;
    memmove(be->range + i + 1, be->range + i, (be->n_range - i) * sizeof *be->range);
    be->range[i] = (struct clb_cuda_range){ at, bytes, fixed };
    be->n_range++;
    return true;
}

void clb_cuda_unpin_host(struct clb_backend *be, const void *at)
{
    uint32_t i = behind(be, at) - 1;

    cudaSetDevice(be->device);
    cudaHostUnregister((void *)(uintptr_t)at);
    be->n_range--;
    memmove(be->range + i, be->range + i + 1, (be->n_range - i) * sizeof *be->range);
}

bool clb_cuda_send_block(struct clb_backend *be, struct clb_cuda_link *l, void *to,
                         const void *from, uint64_t bytes, struct clb_err *err)
{
    const struct clb_cuda_range *r = range_of(be, from, bytes);

    if (!r)
        return clb_cuda_send(l, to, from, bytes, err);
    l->must_wait = l->must_wait || !r->fixed;
    return clb_cuda_ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, l->copy), err,
                       "copying experts");
}

bool clb_cuda_sent(struct clb_cuda_link *l, struct clb_err *err)
{
    if (!l->must_wait) /* nor is it written: passes beside each other copy nothing */
        return true;
    l->must_wait = false;
    return clb_cuda_ok(cudaStreamSynchronize(l->copy), err, "copying experts");
}
