/* cuda_acts.c - the activations of a batch: one block of the device's memory, cut once, its pinned
 * counterpart for what the host tells a pass, and a stream. cuda_layout.c knows the shapes. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_call.h"
#include "kernels/cuda/cuda_sizes.h"

#include <inttypes.h>

#include "lib/base/mem.h"

enum { MOST_ROWS = 8 * 65535 }; /* 8 for each block of a grid's second dimension */

/* -- new and free ------------------------------------------------------------------------------ */

static bool take_memory(struct clb_backend *be, struct clb_acts *x, const struct clb_arch *a,
                        struct clb_err *err)
{
    struct clb_carver there = { 0 }, here = { 0 }, size = { 0 };

    x->map = clb_new(a->n_layer, sizeof *x->map, err);
    there.base = x->block = x->map ? clb_cuda_slab_get(be, x->bytes, err) : NULL;
    if (!x->block)
        return clb_fail_in(err, "activations of %u rows", x->shape.max_rows);
    clb_cuda_lay_out_pinned(x, &size, a);
    here.base = x->pin = be->pinned.get(be, size.at, err);
    if (!x->pin)
        return false;
    clb_cuda_lay_out(x, &there, be, a);
    clb_cuda_lay_out_pinned(x, &here, a);
    return clb_cuda_ok(cudaStreamCreateWithFlags(&x->stream, cudaStreamNonBlocking), err,
                       "a stream") &&
           clb_cuda_dnn_new(be, x, err) && clb_cuda_spread_new(be, x, err) &&
           clb_cuda_host_new(be, x, err);
}

bool clb_cuda_acts_new(struct clb_backend *be, struct clb_acts **out, const struct clb_arch *a,
                       const struct clb_acts_shape *s, struct clb_err *err)
{
    struct clb_acts *x;

    *out = NULL;
    if (!clb_arch_runnable(a, err))
        return false;
    if (s->top_k > CLB_MAX_TOP_K)
        return clb_fail(err, CLB_USAGE, "%u experts per token; the most is %d", s->top_k,
                        CLB_MAX_TOP_K);
    if (s->max_rows > MOST_ROWS)
        return clb_fail(err, CLB_USAGE, "passes of %u rows; on CUDA the most is %d", s->max_rows,
                        MOST_ROWS);
    x = clb_new(1, sizeof *x, err);
    if (!x)
        return false;
    if (!clb_cuda_measure(x, be, a, s)) {
        clb_free(x);
        return clb_fail(err, CLB_NO_SPACE, "activations of %u rows are larger than memory can be",
                        s->max_rows);
    }
    if (!take_memory(be, x, a, err)) {
        clb_cuda_acts_free(be, x);
        return false;
    }
    *out = x;
    return true;
}

void clb_cuda_acts_free(struct clb_backend *be, struct clb_acts *x)
{
    if (!x)
        return;
    cudaSetDevice(be->device);
    clb_cuda_graph_free(x);
    clb_cuda_spread_free(be, x);
    clb_cuda_host_free(be, x);
    if (x->stream) {
        cudaStreamSynchronize(x->stream);
        cudaStreamDestroy(x->stream);
    }
    clb_cuda_dnn_free(be, x);
    clb_cuda_slab_put(be, x->block, x->bytes);
    be->pinned.put(be, x->pin, 0);
    clb_free(x->map);
    clb_free(x);
}
