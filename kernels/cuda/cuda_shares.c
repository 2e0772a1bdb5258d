/* cuda_shares.c - which device has which experts. Every device has as many as it has room for, but
 * none more than its equal share as long as others have room; in each layer they are a range of
 * ids, so that their results are a range of slots. What there is no room for is the CPU's, and the
 * lowest ids of a layer, if that was asked for; else the first device's, which has those used last.
 * Decided once, when the first run says what it needs. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_call.h"
#include "kernels/cuda/cuda_sizes.h"

#include "lib/base/mem.h"

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
    struct clb_cuda_division d;
    uint64_t n_host;

    if (!clb_cuda_divide(&d, be, left, run_bytes, err) ||
        !clb_cuda_offload_decide(be, d.n_rest, d.room[0],
                                 be->experts.n_expert - d.n_rest - d.number[0], &n_host, err))
        return false;
    be->share = clb_new((size_t)be->host->arch->n_layer * (be->n_peer + 2), sizeof *be->share, err);
    if (!be->share)
        return false;
    be->experts.n_local = 0;
    for (uint32_t l = 0; l < r->n_expert_layers; l++)
        cut_layer(be, &r->experts[l], d.number, n_host);
    if (n_host)
        keep_room(be, d.number[0]);
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
        !(p->table = clb_cuda_peer_get(be, p, clb_cuda_table_bytes(be), "table of experts", err)))
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
        clb_cuda_peer_put(be, p, p->table, p->table ? clb_cuda_table_bytes(be) : 0);
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
            !clb_cuda_send(&p->link, p->table, p->block, clb_cuda_table_bytes(be), err) ||
            !clb_cuda_ok(cudaStreamSynchronize(p->link.copy), err, "copying weights"))
            return false;
        p->is_full = true;
    }
    return !be->n_peer || clb_cuda_choose(be->device, err);
}
