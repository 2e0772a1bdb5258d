/* cuda_spread.c - ExpertCompute on several devices. The host knows the routes of the layer. For
 * each peer that has rows it makes the lists of chunks, then enqueues, and waits for nothing:
 *
 *   first device   list of rows > pack > ready ------- its own experts --- shared expert --- Gather
 *   peer           lists of chunks ----- wait > rows > products > results > done ----------- wait
 *
 * Rows are packed where the peer's results come to lie later. Its slots are a range, numbered from
 * 0 there. A row's product does not depend on the device, so the bits are those of one device. No
 * collective: who has no rows is not asked. */
#include <string.h>

#include "kernels/cuda/chunks.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_call.h"
#include "kernels/cuda/cuda_sizes.h"
#include "lib/base/mem.h"

/* -- activations ------------------------------------------------------------------------------- */

static bool new_on_peer(struct clb_backend *be, struct clb_acts *x, unsigned i, struct clb_err *err)
{
    struct clb_cuda_peer_acts *p = &x->peer[i];
    struct clb_carver there = { 0 }, here = { 0 }, c = { 0 };
    const struct clb_arch *a = be->host->arch;

    clb_cuda_peer_lay_out(p, &there, be, x, a);
    clb_cuda_peer_lay_out_pinned(p, &here, a, x);
    p->bytes = there.at;
    c.base = p->block = clb_cuda_peer_get(be, &be->peer[i], p->bytes, "activations", err);
    if (!p->block)
        return false;
    clb_cuda_peer_lay_out(p, &c, be, x, a);
    c = (struct clb_carver){ .base = p->pin = be->pinned.get(be, here.at, err) };
    if (!p->pin || !clb_cuda_choose(be->peer[i].link.device, err))
        return false;
    clb_cuda_peer_lay_out_pinned(p, &c, a, x);
    return clb_cuda_ok(cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking), err,
                       "a stream") &&
           clb_cuda_ok(cudaEventCreateWithFlags(&p->done, cudaEventDisableTiming), err, "an event");
}

bool clb_cuda_spread_new(struct clb_backend *be, struct clb_acts *x, struct clb_err *err)
{
    if (!be->n_peer)
        return true;
    if (!clb_cuda_ok(cudaEventCreateWithFlags(&x->ready, cudaEventDisableTiming), err, "an event"))
        return false;
    x->peer = clb_new(be->n_peer, sizeof *x->peer, err);
    for (unsigned i = 0; x->peer && i < be->n_peer; i++)
        if (!new_on_peer(be, x, i, err))
            return false;
    return x->peer && clb_cuda_choose(be->device, err);
}

void clb_cuda_spread_free(struct clb_backend *be, struct clb_acts *x)
{
    for (unsigned i = 0; x->peer && i < be->n_peer; i++) {
        struct clb_cuda_peer_acts *p = &x->peer[i];

        cudaSetDevice(be->peer[i].link.device);
        if (p->stream) {
            cudaStreamSynchronize(p->stream);
            cudaStreamDestroy(p->stream);
        }
        if (p->done)
            cudaEventDestroy(p->done);
        clb_cuda_peer_put(be, &be->peer[i], p->block, p->bytes);
        be->pinned.put(be, p->pin, 0);
    }
    cudaSetDevice(be->device);
    if (x->ready)
        cudaEventDestroy(x->ready);
    clb_free(x->peer);
}

/* -- what a peer is told ----------------------------------------------------------------------- */

/* The peer's slots of this layer. */
static void find_slots(const struct clb_backend *be, struct clb_acts *x, unsigned i,
                       const struct clb_layer *l)
{
    struct clb_cuda_peer_acts *p = &x->peer[i];

    p->first_slot = x->routes.first[clb_cuda_share(be, l->index, i + 1)];
    p->n_slot = x->routes.first[clb_cuda_share(be, l->index, i + 2)] - p->first_slot;
}

static void list_chunks(const struct clb_backend *be, struct clb_acts *x, unsigned i,
                        const struct clb_layer *l)
{
    uint32_t from = clb_cuda_share(be, l->index, i + 1), to = clb_cuda_share(be, l->index, i + 2);
    struct clb_cuda_peer_acts *p = &x->peer[i];

    for (int k = 0; k < CLB_CUDA_CLASSES; k++) {
        p->here.chunks.n[k] = 0;
        for (uint32_t e = from; e < to; e++) {
            uint32_t first = x->routes.first[e], n = x->routes.first[e + 1] - first;

            for (uint32_t j = 0; j < chunks_of(n, k); j++) {
                struct clb_cuda_chunk c = chunk_of(n, k, j);

                c.expert = e;
                c.first += first - p->first_slot;
                p->here.chunks.list[k][p->here.chunks.n[k]++] = c;
            }
        }
    }
}

/* Rows that the peer's experts read, each once, ascending; and where each slot's row is there. */
static void list_rows(struct clb_acts *x, struct clb_cuda_peer_acts *p)
{
    const uint32_t *row = x->routes.row + p->first_slot;

    memset(p->number, 0, x->routes.n_row * sizeof *p->number);
    for (uint32_t s = 0; s < p->n_slot; s++)
        p->number[row[s]] = 1;
    p->n_row = 0;
    for (uint32_t r = 0; r < x->routes.n_row; r++)
        if (p->number[r]) {
            p->row[p->n_row] = r;
            p->number[r] = p->n_row++;
        }
    for (uint32_t s = 0; s < p->n_slot; s++)
        p->here.index[s] = p->number[row[s]];
}

/* -- on the first device ----------------------------------------------------------------------- */

static enum clb_cuda_kind kind_of(const struct clb_layer *l)
{
    return clb_cuda_kind(l->experts->part[CLB_GATE].dtype);
}

static uint64_t row_bytes(const struct clb_acts *x, const struct clb_layer *l)
{
    return x->in.ld * (kind_of(l) == CLB_CUDA_WIDE ? sizeof(float) : sizeof(uint16_t));
}

/* Where the rows are that the peer needs: side by side in the input already, or packed. Rows of
 * x->in are no longer than those of x->slot_out, and there are no more of them than slots. */
static bool find_rows(struct clb_backend *be, struct clb_acts *x, unsigned i,
                      const struct clb_layer *l, struct clb_err *err)
{
    struct clb_cuda_peer_acts *p = &x->peer[i];
    const struct clb_matrix gate = { .dtype = l->experts->part[CLB_GATE].dtype };

    if (be->host->arch->scale_expert_input) {
        p->rows = (uint8_t *)clb_cuda_as(&x->slot_in, kind_of(l)) + p->first_slot * row_bytes(x, l);
        p->n_row = p->n_slot;
        return true;
    }
    list_rows(x, p);
    p->rows = clb_cuda_input(be, x, &gate);
    if (p->n_row == x->routes.n_row)
        return true;
    uint32_t *there = x->pack_row + i * (size_t)x->shape.max_rows;
    const struct clb_cuda_pack pack = {
        .from = p->rows,
        .row = there,
        .n_row = p->n_row,
        .row_bytes = row_bytes(x, l),
        .to = x->slot_out + p->first_slot * x->ld_hidden,
    };
    p->rows = pack.to;
    if (!clb_cuda_ok(cudaMemcpyAsync(there, p->row, p->n_row * sizeof *there,
                                     cudaMemcpyHostToDevice, x->stream),
                     err, "ExpertCompute: rows for other devices"))
        return false;
    clb_cuda_run_pack(&pack, x->stream);
    return clb_cuda_ok(cudaGetLastError(), err, "ExpertCompute: rows for other devices");
}

/* -- on a peer --------------------------------------------------------------------------------- */

/* On the peer's stream. Where the devices do not reach each other the driver takes it through the
 * host: a copy of another kind in a stream of one device must not name memory of the other. */
static bool carry(const struct clb_backend *be, struct clb_acts *x, unsigned i, bool back, void *to,
                  const void *from, uint64_t bytes, struct clb_err *err)
{
    int first = be->device, peer = be->peer[i].link.device;

    return clb_cuda_ok(cudaMemcpyPeerAsync(to, back ? first : peer, from, back ? peer : first,
                                           bytes, x->peer[i].stream),
                       err, "ExpertCompute: copying rows between devices");
}

static bool send_lists(struct clb_backend *be, struct clb_acts *x, unsigned i,
                       const struct clb_layer *l, struct clb_err *err)
{
    struct clb_cuda_peer_acts *p = &x->peer[i];
    uint32_t n_index = be->host->arch->scale_expert_input ? 0 : p->n_slot;
    size_t bytes = (size_t)((uint8_t *)(p->here.index + n_index) - p->pin);

    list_chunks(be, x, i, l);
    return clb_cuda_ok(cudaMemcpyAsync(p->block, p->pin, bytes, cudaMemcpyHostToDevice, p->stream),
                       err, "ExpertCompute: lists for other devices");
}

static bool run_on_peer(struct clb_backend *be, struct clb_acts *x, unsigned i,
                        const struct clb_layer *l, struct clb_err *err)
{
    struct clb_cuda_peer_acts *p = &x->peer[i];
    const struct clb_cuda_site site = {
        .in = clb_cuda_as(&p->in, kind_of(l)),
        .row = be->host->arch->scale_expert_input ? NULL : p->there.index,
        .chunks = p->there.chunks,
        .table = be->peer[i].table + be->experts.first[l->index],
        .inner = clb_cuda_as(&p->inner, kind_of(l)),
        .out = p->out,
        .n_cta = be->peer[i].n_cta,
        .stream = p->stream,
    };

    if (!clb_cuda_choose(be->peer[i].link.device, err) || !send_lists(be, x, i, l, err) ||
        !clb_cuda_ok(cudaStreamWaitEvent(p->stream, x->ready, 0), err, "ExpertCompute") ||
        !carry(be, x, i, false, clb_cuda_as(&p->in, kind_of(l)), p->rows,
               p->n_row * row_bytes(x, l), err))
        return false;
    clb_cuda_run_experts(be, x, l, &site);
    return clb_cuda_ok(cudaGetLastError(), err, "ExpertCompute on another device") &&
           carry(be, x, i, true, x->slot_out + p->first_slot * x->ld_hidden, p->out,
                 p->n_slot * x->ld_hidden * sizeof *p->out, err) &&
           clb_cuda_ok(cudaEventRecord(p->done, p->stream), err, "ExpertCompute");
}

bool clb_cuda_spread(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                     struct clb_err *err)
{
    if (x->is_spread)
        return true;
    x->is_spread = true;
    if (!be->n_peer)
        return true;
    for (unsigned i = 0; i < be->n_peer; i++) {
        find_slots(be, x, i, l);
        if (x->peer[i].n_slot && !find_rows(be, x, i, l, err))
            return false;
    }
    if (!clb_cuda_ok(cudaEventRecord(x->ready, x->stream), err, "ExpertCompute"))
        return false;
    for (unsigned i = 0; i < be->n_peer; i++)
        if (x->peer[i].n_slot && !run_on_peer(be, x, i, l, err))
            return clb_fail_in(err, "device %d", be->peer[i].link.device);
    return clb_cuda_choose(be->device, err);
}

bool clb_cuda_join(struct clb_backend *be, struct clb_acts *x, struct clb_err *err)
{
    for (unsigned i = 0; i < be->n_peer; i++)
        if (x->peer[i].n_slot &&
            !clb_cuda_ok(cudaStreamWaitEvent(x->stream, x->peer[i].done, 0), err, "ExpertCompute"))
            return false;
    return clb_cuda_host_join(x, err);
}
