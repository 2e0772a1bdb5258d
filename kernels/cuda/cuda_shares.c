/* cuda_shares.c - which device has which experts. Every device has as many as it has room for, but
 * none more than its equal share as long as others have room; in each layer they are a range of
 * ids, so that their results are a range of slots. What there is no room for is the CPU's, and the
 * lowest ids of a layer, if that was asked for; else the first device's, which has those used last.
 * Decided once, when the first run says what it needs. */
#include "kernels/cuda/cuda.h"

#include "lib/base/mem.h"

/* Of a peer's memory so much at most is kept for activations: they are a part of the first's. */
enum { SPARE_SHARE = 8 };

static uint64_t table_bytes(const struct clb_backend *be)
{
    return be->experts.n_expert * sizeof(uint8_t *);
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* -- how many ---------------------------------------------------------------------------------- */

static bool rooms(const struct clb_backend *be, uint64_t left, uint64_t run_bytes, uint64_t *room,
                  struct clb_err *err)
{
    uint64_t table = table_bytes(be), slot = be->experts.slot_bytes;

    room[0] = left > table ? smaller((left - table) / slot, be->experts.n_expert) : 0;
    for (unsigned i = 0; i < be->n_peer; i++) {
        const struct clb_cuda_peer *p = &be->peer[i];
        uint64_t taken = p->used + table + smaller(run_bytes, p->budget / SPARE_SHARE);

        if (p->budget < taken + slot)
            return clb_fail(err, CLB_NO_SPACE,
                            "CUDA: the %llu bytes to use of device %d have no room for an expert; "
                            "leave it out, or end other programs that use it",
                            (unsigned long long)p->budget, p->link.device);
        room[i + 1] = smaller((p->budget - taken) / slot, be->experts.n_expert);
    }
    return true;
}

/* Equal numbers, but no more than there is room for; what nobody has room for stays out. */
static void fill_equally(uint64_t *number, const uint64_t *room, unsigned n_device, uint64_t left)
{
    for (bool more = true; more && left;) {
        unsigned n_open = 0;

        for (unsigned d = 0; d < n_device; d++)
            n_open += number[d] < room[d];
        more = n_open > 0;
        uint64_t each = more && left > n_open ? left / n_open : 1;
        for (unsigned d = 0; d < n_device && left; d++) {
            uint64_t n = smaller(smaller(each, room[d] - number[d]), left);

            number[d] += n;
            left -= n;
        }
    }
}

/* -- which ------------------------------------------------------------------------------------- */

/* Peer d's part of `n` experts that are numbered from `first` on, so that all parts together are
 * number[d]. */
static uint32_t part(const struct clb_backend *be, uint64_t number, uint32_t first, uint32_t n)
{
    uint64_t all = be->experts.n_expert;

    return (uint32_t)(number * (first + n) / all - number * first / all);
}

static uint32_t *shares_of(struct clb_backend *be, const struct clb_expert_layer *l)
{
    return be->share + l->layer * (size_t)(be->n_peer + 2);
}

static void cut_layer(struct clb_backend *be, const struct clb_expert_layer *l,
                      const uint64_t *number, uint64_t n_host)
{
    uint32_t *share = shares_of(be, l), left = l->count;

    share[be->n_peer + 1] = left;
    for (unsigned d = be->n_peer; d > 0; d--) {
        uint32_t n = part(be, number[d], be->experts.first[l->layer], l->count);

        left -= n < left ? n : left;
        share[d] = left;
    }
    uint32_t n = part(be, n_host, be->experts.first[l->layer], l->count);
    share[0] = n < left ? n : left;
    be->experts.n_local += left - share[0];
}

/* Parts are rounded: what that has put on the first device beyond its room is the CPU's. */
static void keep_room(struct clb_backend *be, uint64_t room)
{
    const struct clb_reader *r = be->host->reader;

    for (uint32_t l = 0; be->experts.n_local > room; l = (l + 1) % r->n_expert_layers) {
        uint32_t *share = shares_of(be, &r->experts[l]);

        if (share[0] < share[1]) {
            share[0]++;
            be->experts.n_local--;
        }
    }
}

static bool decide(struct clb_backend *be, uint64_t left, uint64_t run_bytes, struct clb_err *err)
{
    const struct clb_reader *r = be->host->reader;
    uint64_t room[CLB_DEVICES_MOST], number[CLB_DEVICES_MOST] = { 0 };
    uint64_t n_there = 0, n_host;

    if (!rooms(be, left, run_bytes, room, err))
        return false;
    fill_equally(number, room, be->n_peer + 1, be->experts.n_expert);
    for (unsigned d = 0; d <= be->n_peer; d++)
        n_there += number[d];
    if (!clb_cuda_offload_decide(be, be->experts.n_expert - n_there, room[0], n_there - number[0],
                                 &n_host, err))
        return false;
    be->share = clb_new((size_t)be->host->arch->n_layer * (be->n_peer + 2), sizeof *be->share, err);
    if (!be->share)
        return false;
    be->experts.n_local = 0;
    for (uint32_t l = 0; l < r->n_expert_layers; l++)
        cut_layer(be, &r->experts[l], number, n_host);
    if (n_host)
        keep_room(be, number[0]);
    be->n_host = n_host;
    be->no_graphs = be->no_graphs || n_host;
    be->experts.least = be->experts.n_local < 2 ? be->experts.n_local : 2;
    return true;
}

/* -- room on the peers ------------------------------------------------------------------------- */

static bool reserve_layer(struct clb_backend *be, unsigned i, uint32_t layer, struct clb_err *err)
{
    struct clb_cuda_peer *p = &be->peer[i];
    uint32_t from = clb_cuda_share(be, layer, i + 1), to = clb_cuda_share(be, layer, i + 2);
    uint64_t slot = be->experts.slot_bytes;

    if (p->layer[layer] || from == to)
        return true;
    p->bytes[layer] = (to - from) * slot;
    p->layer[layer] = clb_cuda_peer_get(be, p, p->bytes[layer], "experts", err);
    for (uint32_t e = from; p->layer[layer] && e < to; e++)
        p->block[be->experts.first[layer] + e] = p->layer[layer] + (e - from) * slot;
    return p->layer[layer] != NULL;
}

static bool reserve_peer(struct clb_backend *be, unsigned i, struct clb_err *err)
{
    const struct clb_reader *r = be->host->reader;
    uint32_t n_layer = be->host->arch->n_layer, n_expert = be->experts.n_expert;
    struct clb_cuda_peer *p = &be->peer[i];

    if (!p->bytes && !(p->bytes = clb_new(n_layer, sizeof *p->bytes, err)))
        return false;
    if (!p->block && !(p->block = clb_new(n_expert, sizeof *p->block, err)))
        return false;
    if (!p->layer && !(p->layer = clb_new(n_layer, sizeof *p->layer, err)))
        return false;
    if (!p->table &&
        !(p->table = clb_cuda_peer_get(be, p, table_bytes(be), "table of experts", err)))
        return false;
    for (uint32_t l = 0; l < r->n_expert_layers; l++)
        if (!reserve_layer(be, i, r->experts[l].layer, err))
            return false;
    return true;
}

bool clb_cuda_shares_reserve(struct clb_backend *be, uint64_t left, uint64_t run_bytes,
                             struct clb_err *err)
{
    if (!be->share && !decide(be, left, run_bytes, err))
        return false;
    for (unsigned i = 0; i < be->n_peer; i++)
        if (!reserve_peer(be, i, err))
            return false;
    return clb_cuda_choose(be->device, err);
}

void clb_cuda_shares_free(struct clb_backend *be)
{
    for (unsigned i = 0; i < be->n_peer; i++) {
        struct clb_cuda_peer *p = &be->peer[i];

        for (uint32_t l = 0; p->layer && l < be->host->arch->n_layer; l++)
            clb_cuda_peer_put(be, p, p->layer[l], p->bytes[l]);
        clb_cuda_peer_put(be, p, p->table, p->table ? table_bytes(be) : 0);
        clb_free(p->bytes);
        clb_free(p->layer);
        clb_free(p->block);
    }
    clb_free(be->share);
}

/* -- weights ----------------------------------------------------------------------------------- */

bool clb_cuda_experts_want(const struct clb_backend *be, uint32_t layer, uint32_t expert)
{
    uint32_t number = be->experts.first[layer] + expert;
    unsigned i = 0;

    if (expert < clb_cuda_share(be, layer, 1))
        return expert >= clb_cuda_share(be, layer, 0) &&
               be->experts.in_slot[number] == CLB_CUDA_EMPTY;
    while (expert >= clb_cuda_share(be, layer, i + 2))
        i++;
    return !be->peer[i].is_full;
}

bool clb_cuda_shares_upload(struct clb_backend *be, uint32_t layer, uint32_t expert,
                            const uint8_t *block, struct clb_err *err)
{
    const struct clb_expert_layer *l = clb_reader_experts(be->host->reader, layer);
    unsigned i = 0;

    while (expert >= clb_cuda_share(be, layer, i + 2))
        i++;
    struct clb_cuda_peer *p = &be->peer[i];
    uint8_t *to =
        p->layer[layer] + (expert - clb_cuda_share(be, layer, i + 1)) * be->experts.slot_bytes;

    if (p->is_full)
        return true;
    return clb_cuda_choose(p->link.device, err) &&
           clb_cuda_send_block(be, &p->link, to, block, l->size[expert], err) &&
           clb_cuda_sent(&p->link, err) && clb_cuda_choose(be->device, err);
}

bool clb_cuda_shares_settle(struct clb_backend *be, struct clb_err *err)
{
    for (unsigned i = 0; i < be->n_peer; i++) {
        struct clb_cuda_peer *p = &be->peer[i];

        if (p->is_full)
            continue;
        if (!clb_cuda_choose(p->link.device, err) ||
            !clb_cuda_send(&p->link, p->table, p->block, table_bytes(be), err) ||
            !clb_cuda_ok(cudaStreamSynchronize(p->link.copy), err, "copying weights"))
            return false;
        p->is_full = true;
    }
    return !be->n_peer || clb_cuda_choose(be->device, err);
}
