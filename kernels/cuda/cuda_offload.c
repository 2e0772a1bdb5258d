/* cuda_offload.c - who multiplies experts that no device has room for. For AUTO both ways are
 * measured: the path of copies, after dense weights have gone it, and the threads that would read
 * instead. Both read dense weights again, which are in memory by now. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_call.h"
#include "lib/base/clock.h"

enum { MEASURED = 256 << 20, SCRATCH = 32 << 20 };

/* Experts that a token is routed to, in all layers. */
static uint64_t wanted(const struct clb_weights *w)
{
    uint64_t sum = 0;

    for (uint32_t l = 0; l < w->arch->n_layer; l++)
        sum += w->layer[l].top_k;
    return sum;
}

/* Tensors, in pieces that fit `to`. */
static bool send_again(struct clb_backend *be, void *to, uint64_t bytes, uint64_t *sent,
                       struct clb_err *err)
{
    const struct clb_reader *r = be->host->reader;

    *sent = 0;
    for (uint32_t i = 0; i < r->n_tensors && *sent < MEASURED; i++)
        for (uint64_t at = 0, n; at < r->tensors[i].size && *sent < MEASURED; at += n) {
            n = r->tensors[i].size - at < bytes ? r->tensors[i].size - at : bytes;
            if (!clb_cuda_send(&be->link, to, r->data + r->tensors[i].offset + at, n, err))
                return false;
            *sent += n;
        }
    return clb_cuda_ok(cudaStreamSynchronize(be->link.copy), err, "copying weights");
}

static bool measure_link(struct clb_backend *be, uint64_t room, double *rate, struct clb_err *err)
{
    uint64_t bytes = room < SCRATCH ? room : SCRATCH, sent;
    void *to = bytes ? clb_cuda_get(be, bytes, "trying the link", err) : NULL;
    double start = clb_now();

    *rate = 0;
    if (!to)
        return !bytes;
    bool ok = clb_cuda_ok(cudaStreamSynchronize(be->link.copy), err, "copying weights") &&
              send_again(be, to, bytes, &sent, err);
    double seconds = clb_now() - start;
    if (ok && seconds > 0)
        *rate = (double)sent / seconds;
    clb_cuda_put(be, to, bytes);
    return ok;
}

static double measure_host(struct clb_backend *be)
{
    const struct clb_reader *r = be->host->reader;
    uint64_t first = r->size, end = 0;

    for (uint32_t i = 0; i < r->n_tensors; i++) {
        uint64_t at = r->tensors[i].offset, behind = at + r->tensors[i].size;

        first = at < first ? at : first;
        end = behind > end ? behind : end;
    }
    end = end - first < MEASURED ? end : first + MEASURED;
    return clb_cuda_host_rate(be->cpu, r->data + first, end - first);
}

static void tell(struct clb_backend *be, uint64_t n_rest, uint64_t n_host,
                 const struct clb_offload_facts *f, const struct clb_offload_guess *g)
{
    char *text = be->offload_text;
    size_t size = sizeof be->offload_text;
    int n = snprintf(text, size, "%" PRIu64 " of %u experts are %s", n_rest, be->experts.n_expert,
                     n_host ? "multiplied by the CPU" : "copied when they are wanted");

    if (!g)
        return;
    n += snprintf(text + n, size - (size_t)n,
                  "; a token is guessed at %.3g ms on the CPU (%.1f GB/s), ", g->cpu * 1e3,
                  f->host / 1e9);
    if (g->copy == (double)INFINITY)
        snprintf(text + n, size - (size_t)n, "and for copies there is no room");
    else
        snprintf(text + n, size - (size_t)n, "%.3g ms by copies (%.1f GB/s, %.0f %% are there)",
                 g->copy * 1e3, f->link / 1e9, g->hits * 100);
}

bool clb_cuda_offload_decide(struct clb_backend *be, uint64_t n_rest, uint64_t n_slot,
                             uint64_t n_peer, uint64_t *n_host, struct clb_err *err)
{
    uint64_t n_all = be->experts.n_expert;
    struct clb_offload_facts f = {
        .n_expert = n_all - n_peer,
        .n_slot = n_slot,
        .per_token = (double)wanted(be->host) * (double)(n_all - n_peer) / (double)n_all,
        .expert_bytes = be->experts.slot_bytes,
    };

    *n_host = be->offload == CLB_OFFLOAD_CPU ? n_rest : 0;
    if (!n_rest)
        return true;
    if (be->offload != CLB_OFFLOAD_AUTO) {
        tell(be, n_rest, *n_host, &f, NULL);
        return true;
    }
    if (!measure_link(be, n_slot * be->experts.slot_bytes, &f.link, err))
        return false;
    f.host = measure_host(be);
    struct clb_offload_guess g = clb_offload_guess(&f);
    *n_host = g.use_cpu ? n_rest : 0;
    tell(be, n_rest, *n_host, &f, &g);
    return true;
}
