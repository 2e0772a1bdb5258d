/* cuda_peers.c - expert parallelism: every device has its share of each layer's experts, and slots
 * of experts that are side by side are one range. The first device does all the rest. For each
 * layer the host learns how many rows every device has, then enqueues: rows and index map to the
 * devices that have any, their products there, and the range of their results back. No collective:
 * who has no rows is not asked. */
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_device.h"
#include "lib/base/mem.h"

enum { PATTERN = 4096 }; /* bytes that try a connection */

static bool choose(int device, struct clb_err *err)
{
    return clb_cuda_ok(cudaSetDevice(device), err, "choosing the device");
}

/* -- devices ----------------------------------------------------------------------------------- */

static void fill(uint8_t p[PATTERN], unsigned seed)
{
    for (unsigned i = 0; i < PATTERN; i++)
        p[i] = (uint8_t)(i * 37 + i / 256 + seed);
}

/* What goes from one device to another arrives: with direct access switched on, some machines lose
 * it without a word. */
static bool arrives(void *to, int to_device, void *from, int from_device, cudaStream_t stream,
                    bool *same, struct clb_err *err)
{
    uint8_t sent[PATTERN], got[PATTERN];

    fill(sent, (unsigned)to_device);
    memset(got, 0, sizeof got);
    bool ok = clb_cuda_ok(cudaMemcpyAsync(from, sent, PATTERN, cudaMemcpyHostToDevice, stream), err,
                          "trying a peer") &&
              clb_cuda_ok(cudaMemcpyPeerAsync(to, to_device, from, from_device, PATTERN, stream),
                          err, "trying a peer") &&
              clb_cuda_ok(cudaMemcpyAsync(got, to, PATTERN, cudaMemcpyDeviceToHost, stream), err,
                          "trying a peer") &&
              clb_cuda_ok(cudaStreamSynchronize(stream), err, "trying a peer");
    *same = ok && !memcmp(sent, got, PATTERN);
    return ok;
}

/* Both ways; *same: it arrived. */
static bool try_both(const struct clb_backend *be, const struct clb_cuda_peer *p, void *here,
                     void *there, bool *same, struct clb_err *err)
{
    bool back;

    if (!arrives(there, p->link.device, here, be->device, be->link.copy, same, err) ||
        !arrives(here, be->device, there, p->link.device, be->link.copy, &back, err))
        return false;
    *same = *same && back;
    return true;
}

/* Direct access where it works; else copies go through the host, which the runtime does. */
static bool connect(struct clb_backend *be, struct clb_cuda_peer *p, struct clb_err *err)
{
    void *here = NULL, *there = NULL;
    int reach = 0, back = 0;
    bool same = false, ok;

    (void)cudaDeviceCanAccessPeer(&reach, be->device, p->link.device);
    (void)cudaDeviceCanAccessPeer(&back, p->link.device, be->device);
    bool direct = reach && back && cudaDeviceEnablePeerAccess(be->device, 0) == cudaSuccess;
    (void)cudaGetLastError(); /* on already, or not at all: copies work either way */
    ok = clb_cuda_ok(cudaMalloc(&there, PATTERN), err, "trying a peer") &&
         choose(be->device, err) && clb_cuda_ok(cudaMalloc(&here, PATTERN), err, "trying a peer");
    if (ok && direct)
        (void)cudaDeviceEnablePeerAccess(p->link.device, 0);
    (void)cudaGetLastError();
    ok = ok && try_both(be, p, here, there, &same, err);
    if (ok && !same && direct) {
        (void)cudaDeviceDisablePeerAccess(p->link.device);
        (void)cudaGetLastError();
        ok = try_both(be, p, here, there, &same, err);
    }
    cudaFree(here);
    cudaFree(there);
    if (ok && !same)
        ok = clb_fail(err, CLB_DEVICE,
                      "CUDA: what is copied between devices %d and %d does not arrive as it was "
                      "sent; use one device",
                      be->device, p->link.device);
    return ok;
}

static bool open_peer(struct clb_backend *be, struct clb_cuda_peer *p, uint32_t index,
                      uint64_t most, struct clb_err *err)
{
    struct clb_cuda_device d;

    if (!clb_cuda_device_open(&d, index, err) || !clb_cuda_link_open(&p->link, d.index, err) ||
        !clb_cuda_ok((cudaError_t)clb_cuda_product_setup(), err, "setting up kernels"))
        return false;
    p->n_cta = (unsigned)d.n_sm * 4;
    p->budget = most && most < d.available ? most : d.available;
    be->major = d.major < be->major ? d.major : be->major;
    return connect(be, p, err);
}

bool clb_cuda_peers_open(struct clb_backend *be, const struct clb_backend_options *o,
                         struct clb_err *err)
{
    uint32_t n = o->devices.n > 1 ? o->devices.n - 1 : 0;

    be->peer = clb_new(n, sizeof *be->peer, err);
    if (!be->peer)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        be->n_peer++;
        if (!open_peer(be, &be->peer[i], o->devices.id[i + 1], o->device_memory, err))
            return false;
    }
    return choose(be->device, err);
}

/* -- memory of a peer -------------------------------------------------------------------------- */

static void *take(struct clb_backend *be, struct clb_cuda_peer *p, uint64_t bytes, const char *what,
                  struct clb_err *err)
{
    void *at = NULL;

    if (p->budget - p->used < bytes) {
        clb_fail(err, CLB_NO_SPACE, "CUDA: %s: %llu bytes are needed, %llu are left on device %d",
                 what, (unsigned long long)bytes, (unsigned long long)(p->budget - p->used),
                 p->link.device);
        return NULL;
    }
    if (!choose(p->link.device, err) || !clb_cuda_ok(cudaMalloc(&at, bytes), err, what))
        return NULL;
    p->used += bytes;
    if (be->ledger)
        clb_ledger_add(be->ledger, bytes, bytes);
    if (clb_cuda_ok(cudaMemsetAsync(at, 0, bytes, p->link.copy), err, what) &&
        clb_cuda_ok(cudaStreamSynchronize(p->link.copy), err, what))
        return at;
    cudaFree(at);
    p->used -= bytes;
    if (be->ledger)
        clb_ledger_sub(be->ledger, bytes, bytes);
    return NULL;
}

static void put(struct clb_backend *be, struct clb_cuda_peer *p, void *at, uint64_t bytes)
{
    if (!at)
        return;
    cudaSetDevice(p->link.device);
    cudaFree(at);
    p->used -= bytes;
    if (be->ledger)
        clb_ledger_sub(be->ledger, bytes, bytes);
}

static uint64_t table_bytes(const struct clb_backend *be)
{
    return be->experts.n_expert * sizeof(uint8_t *);
}

void clb_cuda_peers_close(struct clb_backend *be)
{
    for (unsigned i = 0; i < be->n_peer; i++) {
        struct clb_cuda_peer *p = &be->peer[i];

        for (uint32_t l = 0; p->layer && p->bytes && l < be->host->arch->n_layer; l++)
            put(be, p, p->layer[l], p->bytes[l]);
        put(be, p, p->table, p->table ? table_bytes(be) : 0);
        cudaSetDevice(p->link.device);
        clb_cuda_link_close(&p->link);
        clb_free(p->bytes);
        clb_free(p->layer);
        clb_free(p->block);
    }
    clb_free(be->peer);
}

/* -- weights ----------------------------------------------------------------------------------- */

static bool reserve_layer(struct clb_backend *be, unsigned i, const struct clb_expert_layer *l,
                          struct clb_err *err)
{
    struct clb_cuda_peer *p = &be->peer[i];
    uint32_t from = clb_cuda_share(be, l->count, i + 1), to = clb_cuda_share(be, l->count, i + 2);
    uint64_t slot = be->experts.slot_bytes;

    if (p->layer[l->layer] || from == to)
        return true;
    p->bytes[l->layer] = (to - from) * slot;
    p->layer[l->layer] = take(be, p, p->bytes[l->layer], "experts", err);
    for (uint32_t e = from; p->layer[l->layer] && e < to; e++)
        p->block[be->experts.first[l->layer] + e] = p->layer[l->layer] + (e - from) * slot;
    return p->layer[l->layer] != NULL;
}

bool clb_cuda_peers_reserve(struct clb_backend *be, struct clb_err *err)
{
    const struct clb_reader *r = be->host->reader;
    uint32_t n_layer = be->host->arch->n_layer;

    for (unsigned i = 0; i < be->n_peer; i++) {
        struct clb_cuda_peer *p = &be->peer[i];

        if (!p->layer && (!(p->bytes = clb_new(n_layer, sizeof *p->bytes, err)) ||
                          !(p->block = clb_new(be->experts.n_expert, sizeof *p->block, err)) ||
                          !(p->layer = clb_new(n_layer, sizeof *p->layer, err))))
            return false;
        if (!p->table && !(p->table = take(be, p, table_bytes(be), "table of experts", err)))
            return false;
        for (uint32_t l = 0; l < r->n_expert_layers; l++)
            if (!reserve_layer(be, i, &r->experts[l], err))
                return false;
    }
    return choose(be->device, err);
}

bool clb_cuda_peers_upload(struct clb_backend *be, uint32_t layer, uint32_t expert,
                           const uint8_t *block, struct clb_err *err)
{
    const struct clb_expert_layer *l = clb_reader_experts(be->host->reader, layer);
    uint32_t number = be->experts.first[layer] + expert;
    unsigned i = 0;

    while (!be->peer[i].block[number])
        i++;
    struct clb_cuda_peer *p = &be->peer[i];
    return choose(p->link.device, err) &&
           clb_cuda_send(&p->link, (uint8_t *)(uintptr_t)p->block[number], block, l->size[expert],
                         err) &&
           choose(be->device, err);
}

bool clb_cuda_peers_settle(struct clb_backend *be, struct clb_err *err)
{
    for (unsigned i = 0; i < be->n_peer; i++) {
        struct clb_cuda_peer *p = &be->peer[i];

        if (!choose(p->link.device, err) ||
            !clb_cuda_send(&p->link, p->table, p->block, table_bytes(be), err) ||
            !clb_cuda_ok(cudaStreamSynchronize(p->link.copy), err, "copying weights"))
            return false;
    }
    return choose(be->device, err);
}

/* -- activations ------------------------------------------------------------------------------- */

static struct clb_cuda_rows rows_like(struct clb_carver *c, const struct clb_cuda_rows *r,
                                      uint64_t n)
{
    struct clb_cuda_rows to = { .ld = r->ld };

    if (r->wide)
        to.wide = clb_carve_rows(c, n, r->ld, sizeof *to.wide);
    for (int k = 0; k < 2; k++)
        if (r->half[k])
            to.half[k] = clb_carve_rows(c, n, r->ld, sizeof *to.half[k]);
    return to;
}

static void lay_out(struct clb_cuda_peer_acts *p, struct clb_carver *c,
                    const struct clb_backend *be, const struct clb_acts *x)
{
    const struct clb_arch *a = be->host->arch;
    uint64_t rows = x->shape.max_rows, slots = rows * x->top_k, map = 0;

    for (uint32_t l = 0; l < a->n_layer; l++)
        map = x->map[l].bytes > map ? x->map[l].bytes : map;
    p->in = a->scale_expert_input ? rows_like(c, &x->slot_in, slots) : rows_like(c, &x->in, rows);
    p->inner = rows_like(c, &x->inner, slots);
    p->out = clb_carve_rows(c, slots, x->ld_hidden, sizeof *p->out);
    p->map = clb_carve(c, map, 1);
}

static bool new_on_peer(struct clb_backend *be, struct clb_acts *x, unsigned i, struct clb_err *err)
{
    struct clb_cuda_peer_acts *p = &x->peer[i];
    struct clb_carver size = { 0 }, c = { 0 };

    lay_out(p, &size, be, x);
    p->bytes = size.at;
    c.base = p->block = take(be, &be->peer[i], p->bytes, "activations", err);
    if (!p->block)
        return false;
    lay_out(p, &c, be, x);
    return clb_cuda_ok(cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking), err,
                       "a stream") &&
           clb_cuda_ok(cudaEventCreateWithFlags(&p->done, cudaEventDisableTiming), err, "an event");
}

bool clb_cuda_peers_acts_new(struct clb_backend *be, struct clb_acts *x, struct clb_err *err)
{
    if (!be->n_peer)
        return true;
    if (!clb_cuda_ok(cudaEventCreateWithFlags(&x->ready, cudaEventDisableTiming), err, "an event"))
        return false;
    x->peer = clb_new(be->n_peer, sizeof *x->peer, err);
    for (unsigned i = 0; x->peer && i < be->n_peer; i++)
        if (!new_on_peer(be, x, i, err))
            return false;
    return x->peer && choose(be->device, err);
}

void clb_cuda_peers_acts_free(struct clb_backend *be, struct clb_acts *x)
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
        put(be, &be->peer[i], p->block, p->bytes);
    }
    cudaSetDevice(be->device);
    if (x->ready)
        cudaEventDestroy(x->ready);
    clb_free(x->peer);
}

/* -- a layer ----------------------------------------------------------------------------------- */

/* A place of the layer's map, in the peer's copy of it. */
static void *moved(const struct clb_cuda_map *m, uint8_t *map, const void *at)
{
    return map + ((const uint8_t *)at - (const uint8_t *)m->row);
}

static struct clb_cuda_site site_of(const struct clb_backend *be, const struct clb_acts *x,
                                    unsigned i, const struct clb_layer *l)
{
    const struct clb_cuda_map *m = &x->map[l->index];
    const struct clb_cuda_peer_acts *p = &x->peer[i];
    enum clb_cuda_kind kind = clb_cuda_kind(l->experts->part[CLB_GATE].dtype);
    struct clb_cuda_site s = {
        .in = clb_cuda_as(&p->in, kind),
        .row = be->host->arch->scale_expert_input ? NULL : moved(m, p->map, m->row),
        .chunks.n = moved(m, p->map, m->chunks.n),
        .table = be->peer[i].table + be->experts.first[l->index],
        .inner = clb_cuda_as(&p->inner, kind),
        .out = p->out,
        .n_cta = be->peer[i].n_cta,
        .stream = p->stream,
    };

    for (int k = 0; k < CLB_CUDA_CLASSES; k++)
        s.chunks.list[k] = moved(m, p->map, m->chunks.list[k]);
    return s;
}

/* From the first device to peer i, or back. */
static bool carry(const struct clb_backend *be, const struct clb_acts *x, unsigned i, bool back,
                  void *to, const void *from, uint64_t bytes, struct clb_err *err)
{
    int here = be->device, there = be->peer[i].link.device;

    return clb_cuda_ok(cudaMemcpyPeerAsync(to, back ? here : there, from, back ? there : here,
                                           bytes, x->peer[i].stream),
                       err, "ExpertCompute: copying rows between devices");
}

/* The rows that its experts read: all of the pass, or its slots where inputs are scaled. */
static bool carry_rows(struct clb_backend *be, struct clb_acts *x, unsigned i,
                       const struct clb_layer *l, uint32_t first, uint32_t n, struct clb_err *err)
{
    const struct clb_matrix gate = { .dtype = l->experts->part[CLB_GATE].dtype };
    enum clb_cuda_kind kind = clb_cuda_kind(gate.dtype);
    uint64_t row = x->in.ld * (kind == CLB_CUDA_WIDE ? sizeof(float) : sizeof(uint16_t));
    uint8_t *to = clb_cuda_as(&x->peer[i].in, kind);

    if (be->host->arch->scale_expert_input)
        return carry(be, x, i, false, to + first * row,
                     (uint8_t *)clb_cuda_as(&x->slot_in, kind) + first * row, n * row, err);
    return carry(be, x, i, false, to, clb_cuda_as(&x->in, kind), x->p->n_row * row, err);
}

static bool run_on_peer(struct clb_backend *be, struct clb_acts *x, unsigned i,
                        const struct clb_layer *l, struct clb_err *err)
{
    const struct clb_cuda_map *m = &x->map[l->index];
    struct clb_cuda_peer_acts *p = &x->peer[i];
    uint32_t first = x->routes.first[clb_cuda_share(be, l->n_expert, i + 1)];
    uint32_t n = x->routes.first[clb_cuda_share(be, l->n_expert, i + 2)] - first;
    size_t at = first * x->ld_hidden;

    if (n == 0)
        return true;
    if (!choose(be->peer[i].link.device, err) ||
        !clb_cuda_ok(cudaStreamWaitEvent(p->stream, x->ready, 0), err, "ExpertCompute") ||
        !carry(be, x, i, false, p->map, m->row, m->bytes, err) ||
        !carry_rows(be, x, i, l, first, n, err))
        return false;
    const struct clb_cuda_site s = site_of(be, x, i, l);
    clb_cuda_run_experts(be, x, l, &s);
    return clb_cuda_ok(cudaGetLastError(), err, "ExpertCompute on another device") &&
           carry(be, x, i, true, x->slot_out + at, p->out + at, n * x->ld_hidden * sizeof *p->out,
                 err) &&
           clb_cuda_ok(cudaEventRecord(p->done, p->stream), err, "ExpertCompute");
}

bool clb_cuda_peers_run(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                        struct clb_err *err)
{
    if (!clb_cuda_ok(cudaEventRecord(x->ready, x->stream), err, "ExpertCompute"))
        return false;
    for (unsigned i = 0; i < be->n_peer; i++)
        if (!run_on_peer(be, x, i, l, err))
            return false;
    return choose(be->device, err);
}

bool clb_cuda_peers_join(struct clb_backend *be, struct clb_acts *x, struct clb_err *err)
{
    for (unsigned i = 0; i < be->n_peer; i++)
        if (!clb_cuda_ok(cudaStreamWaitEvent(x->stream, x->peer[i].done, 0), err, "ExpertCompute"))
            return false;
    return true;
}
