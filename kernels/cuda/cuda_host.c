/* cuda_host.c - experts on the CPU: the host is a place with a share of every layer's experts, the
 * lowest ids, so that its results are a range of slots from 0 on.
 *
 *   first device   Scatter > rows > routes -- its own experts --- shared expert --- wait > Gather
 *   host           ------- wait for both ---- products > results > done
 *
 * All rows come, once: what some layer does not need is small beside the weights that the CPU
 * reads. Rows are read and results written only between two waits of the host, so nothing is
 * written over: the routes of the next layer are there when this one's results have been added. */
#include "kernels/cuda/cuda_host.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_call.h"
#include "kernels/cuda/cuda_sizes.h"
#include "lib/base/mem.h"

bool clb_cuda_host_new(struct clb_backend *be, struct clb_acts *x, struct clb_err *err)
{
    const struct clb_arch *a = be->host->arch;
    struct clb_cuda_host_acts *h = &x->host;
    struct clb_carver c = { 0 };

    if (!be->n_host)
        return true;
    c.base = h->pin = be->pinned.get(be, clb_cuda_host_bytes(be, x, a), err);
    if (!h->pin)
        return false;
    clb_cuda_host_lay_out(h, &c, be, x, a);
    return clb_cuda_ok(cudaStreamCreateWithFlags(&h->stream, cudaStreamNonBlocking), err,
                       "a stream") &&
           clb_cuda_ok(cudaEventCreateWithFlags(&h->done, cudaEventDisableTiming), err, "an event");
}

void clb_cuda_host_free(struct clb_backend *be, struct clb_acts *x)
{
    struct clb_cuda_host_acts *h = &x->host;

    if (h->stream) {
        cudaStreamSynchronize(h->stream);
        cudaStreamDestroy(h->stream);
    }
    if (h->done)
        cudaEventDestroy(h->done);
    be->pinned.put(be, h->pin, 0);
}

bool clb_cuda_host_fetch(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                         struct clb_err *err)
{
    x->host.n_active = 0;
    return !clb_cuda_share(be, l->index, 0) ||
           clb_cuda_ok(cudaMemcpyAsync(x->host.rows, x->in.wide,
                                       x->routes.n_row * x->in.ld * sizeof *x->host.rows,
                                       cudaMemcpyDeviceToHost, x->stream),
                       err, "Scatter: rows for the CPU");
}

void clb_cuda_host_routed(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l)
{
    const struct clb_cuda_host_layer layer = {
        .w = be->host, .l = l, .routes = &x->routes, .in = x->host.rows, .out = x->host.out
    };
    uint32_t n = 0;

    while (n < x->routes.n_active && x->r_active[n] < clb_cuda_share(be, l->index, 0))
        n++;
    x->host.n_active = n;
    x->host.layer = layer;
    x->host.layer.n_active = n;
    x->host.has_begun = false;
}

/* Slots of the experts that have a block: neighbours, as the store gives them. */
static void find_slots(const struct clb_acts *x, const uint8_t *const *block, uint32_t *from,
                       uint32_t *to)
{
    const struct clb_routes *r = &x->routes;

    *from = *to = 0;
    for (uint32_t i = 0; i < x->host.n_active; i++)
        if (block[i]) {
            *from = *to ? *from : r->first[r->active[i]];
            *to = r->first[r->active[i] + 1];
        }
}

bool clb_cuda_host_run(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                       const uint8_t *const *block, struct clb_err *err)
{
    struct clb_cuda_host_acts *h = &x->host;
    uint32_t from, to;

    find_slots(x, block, &from, &to);
    if (from == to)
        return true;
    if (!h->has_begun)
        clb_cuda_host_begin(be->cpu, h->cpu, &h->layer);
    h->has_begun = true;
    size_t at = from * x->ld_hidden, n = (to - from) * x->ld_hidden;
    return clb_cuda_host_compute(be->cpu, h->cpu, l, block, err) &&
           clb_cuda_ok(cudaMemcpyAsync(x->slot_out + at, h->out + at, n * sizeof *h->out,
                                       cudaMemcpyHostToDevice, h->stream),
                       err, "ExpertCompute: results of the CPU") &&
           clb_cuda_ok(cudaEventRecord(h->done, h->stream), err, "ExpertCompute");
}

bool clb_cuda_host_join(struct clb_acts *x, struct clb_err *err)
{
    return !x->host.n_active ||
           clb_cuda_ok(cudaStreamWaitEvent(x->stream, x->host.done, 0), err, "ExpertCompute");
}
