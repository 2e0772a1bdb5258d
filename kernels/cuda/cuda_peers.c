/* cuda_peers.c - devices beside the first: opening them, whether rows go there directly, and their
 * memory. Many machines say that two devices reach each other where what is copied is lost (IOMMU,
 * ACS), so a pattern has to arrive both ways; else the driver stages rows through the host. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_call.h"
#include "kernels/cuda/cuda_device.h"
#include "lib/base/human.h"
#include "lib/base/mem.h"

enum { PATTERN = 64 << 10, TRIES = 3 };

bool clb_cuda_choose(int device, struct clb_err *err)
{
    return clb_cuda_ok(cudaSetDevice(device), err, "choosing the device");
}

/* -- do copies arrive? ------------------------------------------------------------------------- */

/* One end of a connection. */
struct end {
    int device;
    cudaStream_t stream; /* of the device */
    void *at;            /* [PATTERN] of the device */
};

static bool copy(const struct end *e, void *to, const void *from, enum cudaMemcpyKind kind,
                 struct clb_err *err)
{
    return clb_cuda_ok(cudaMemcpyAsync(to, from, PATTERN, kind, e->stream), err, "trying a peer") &&
           clb_cuda_ok(cudaStreamSynchronize(e->stream), err, "trying a peer");
}

/* A pattern from one to the other. Nothing else runs: every step waits. *same: it is there. */
static bool arrives(const struct end *to, const struct end *from, uint8_t *sent, uint8_t *got,
                    unsigned seed, bool *same, struct clb_err *err)
{
    for (unsigned i = 0; i < PATTERN; i++)
        sent[i] = (uint8_t)(i * 37 + i / 256 + seed);
    memset(got, (uint8_t)~sent[0], PATTERN);
    bool ok = copy(to, to->at, got, cudaMemcpyHostToDevice, err) &&
              copy(from, from->at, sent, cudaMemcpyHostToDevice, err) &&
              clb_cuda_ok(cudaMemcpyPeerAsync(to->at, to->device, from->at, from->device, PATTERN,
                                              from->stream),
                          err, "trying a peer") &&
              clb_cuda_ok(cudaStreamSynchronize(from->stream), err, "trying a peer") &&
              copy(to, got, to->at, cudaMemcpyDeviceToHost, err);
    *same = ok && !memcmp(sent, got, PATTERN);
    return ok;
}

static bool try_both_ways(const struct end *a, const struct end *b, uint8_t *host, bool *same,
                          struct clb_err *err)
{
    *same = true;
    for (unsigned i = 0; *same && i < TRIES; i++) {
        bool there, back;

        if (!arrives(b, a, host, host + PATTERN, i, &there, err) ||
            !arrives(a, b, host, host + PATTERN, ~i, &back, err))
            return false;
        *same = there && back;
    }
    return true;
}

/* From the thread's device to `peer`; on already is as good. */
static bool enable(int peer)
{
    cudaError_t e = cudaDeviceEnablePeerAccess(peer, 0);

    if (e != cudaSuccess)
        (void)cudaGetLastError();
    return e == cudaSuccess || e == cudaErrorPeerAccessAlreadyEnabled;
}

static void disable(int device, int peer)
{
    cudaSetDevice(device);
    if (cudaDeviceDisablePeerAccess(peer) != cudaSuccess)
        (void)cudaGetLastError();
}

static bool can_access(int device, int peer)
{
    int can = 0;

    if (cudaDeviceCanAccessPeer(&can, device, peer) != cudaSuccess)
        (void)cudaGetLastError();
    return can;
}

static bool check_pattern(const struct clb_backend *be, struct clb_cuda_peer *p, uint8_t *host,
                          struct clb_err *err)
{
    struct end here = { be->device, be->link.copy, NULL };
    struct end there = { p->link.device, p->link.copy, NULL };

    bool ok = clb_cuda_choose(here.device, err) &&
              clb_cuda_ok(cudaMalloc(&here.at, PATTERN), err, "trying a peer") &&
              clb_cuda_choose(there.device, err) &&
              clb_cuda_ok(cudaMalloc(&there.at, PATTERN), err, "trying a peer") &&
              try_both_ways(&here, &there, host, &p->direct, err);
    cudaFree(there.at);
    cudaFree(here.at);
    return ok;
}

/* Decides p->direct. Access that does not work is switched off again. */
static bool connect(const struct clb_backend *be, struct clb_cuda_peer *p, struct clb_err *err)
{
    int first = be->device, peer = p->link.device;
    bool on = can_access(first, peer) && can_access(peer, first);

    on = on && clb_cuda_choose(peer, err) && enable(first);
    on = on && clb_cuda_choose(first, err) && enable(peer);
    if (!on)
        return clb_cuda_choose(first, err);
    uint8_t *host = clb_new(2, PATTERN, err);
    bool ok = host && check_pattern(be, p, host, err);
    clb_free(host);
    if (!p->direct) {
        disable(first, peer);
        disable(peer, first);
    }
    return ok && clb_cuda_choose(first, err);
}

/* -- open, close ------------------------------------------------------------------------------- */

static bool check_kind(const struct clb_backend *be, const struct clb_cuda_device *d,
                       struct clb_err *err)
{
    return (be->major < 8) == (d->major < 8) ||
           clb_fail(err, CLB_UNSUPPORTED,
                    "devices %d and %d have compute capability %d and %d: results of 7 have other "
                    "bits than those of later ones; use devices of one kind",
                    be->device, d->index, be->major, d->major);
}

static bool open_peer(struct clb_backend *be, struct clb_cuda_peer *p, uint32_t index,
                      uint64_t asked, struct clb_err *err)
{
    struct clb_cuda_device d;
    char use[CLB_HUMAN];

    if (!clb_cuda_device_open(&d, index, err) || !check_kind(be, &d, err) ||
        !clb_cuda_link_open(&p->link, d.index, err) || !clb_cuda_device_set_up(&d, err) ||
        !clb_cuda_budget(&p->budget, &d, asked, err))
        return false;
    if (!connect(be, p, err))
        return clb_fail_in(err, "device %u", index);
    p->n_cta = (unsigned)d.n_sm * 4;
    snprintf(p->text, sizeof p->text, "device %d (%s, sm_%d%d, %s to use, %s)", d.index, d.name,
             d.major, d.minor, clb_human_bytes(use, p->budget),
             p->direct ? "direct copies" : "copies through the host");
    return true;
}

bool clb_cuda_peers_open(struct clb_backend *be, const struct clb_devices *of, uint64_t asked,
                         struct clb_err *err)
{
    uint32_t n = of->n > 1 ? of->n - 1 : 0;

    be->peer = clb_new(n, sizeof *be->peer, err);
    if (!be->peer)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k <= i; k++)
            if (of->id[k] == of->id[i + 1]) {
                clb_fail(err, CLB_USAGE, "device %u is listed twice", of->id[k]);
                return clb_err_place(err, NULL, "devices", CLB_NO_OFFSET);
            }
        be->n_peer++;
        if (!open_peer(be, &be->peer[i], of->id[i + 1], asked, err))
            return false;
    }
    return clb_cuda_choose(be->device, err);
}

void clb_cuda_peers_close(struct clb_backend *be)
{
    clb_cuda_shares_free(be);
    for (unsigned i = 0; i < be->n_peer; i++) {
        cudaSetDevice(be->peer[i].link.device);
        clb_cuda_link_close(&be->peer[i].link);
    }
    clb_free(be->peer);
}

size_t clb_cuda_peers_describe(const struct clb_backend *be, char *text, size_t n)
{
    size_t at = 0;

    for (unsigned i = 0; i < be->n_peer && at < n; i++)
        at += (size_t)snprintf(text + at, n - at, "%s%s", i ? ", " : "; experts also on ",
                               be->peer[i].text);
    return at;
}

/* -- memory ------------------------------------------------------------------------------------ */

static bool count(struct clb_backend *be, struct clb_cuda_peer *p, uint64_t bytes, const char *what,
                  struct clb_err *err)
{
    uint64_t left;

    pthread_mutex_lock(&be->lock);
    left = p->budget - p->used;
    bool fits = bytes <= left;
    p->used += fits ? bytes : 0;
    pthread_mutex_unlock(&be->lock);
    return fits || clb_fail(err, CLB_NO_SPACE,
                            "CUDA: %s: %" PRIu64 " bytes are needed, %" PRIu64 " of %" PRIu64
                            " are left on device %d",
                            what, bytes, left, p->budget, p->link.device);
}

static void uncount(struct clb_backend *be, struct clb_cuda_peer *p, uint64_t bytes)
{
    pthread_mutex_lock(&be->lock);
    p->used -= bytes;
    pthread_mutex_unlock(&be->lock);
}

void *clb_cuda_peer_get(struct clb_backend *be, struct clb_cuda_peer *p, uint64_t bytes,
                        const char *what, struct clb_err *err)
{
    void *at = NULL;

    if (!clb_cuda_choose(p->link.device, err) || !count(be, p, bytes, what, err))
        return NULL;
    if (!clb_cuda_ok(cudaMalloc(&at, bytes), err, what)) {
        uncount(be, p, bytes);
        clb_fail_in(err, "device %d", p->link.device);
        return NULL;
    }
    if (be->ledger)
        clb_ledger_add(be->ledger, bytes, bytes);
    if (clb_cuda_ok(cudaMemsetAsync(at, 0, bytes, p->link.copy), err, what) &&
        clb_cuda_ok(cudaStreamSynchronize(p->link.copy), err, what))
        return at;
    clb_cuda_peer_put(be, p, at, bytes);
    return NULL;
}

void clb_cuda_peer_put(struct clb_backend *be, struct clb_cuda_peer *p, void *at, uint64_t bytes)
{
    if (!at)
        return;
    cudaSetDevice(p->link.device);
    cudaFree(at);
    uncount(be, p, bytes);
    if (be->ledger)
        clb_ledger_sub(be->ledger, bytes, bytes);
}
