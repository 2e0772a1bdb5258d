/* cuda_experts.c - experts in the memory of the device: slots of the largest block's size, in
 * chunks. With a slot for each expert they are uploaded once and stay. With fewer, the experts of a
 * layer come in groups of at most half the slots, so that a group is copied while the one before it
 * is multiplied: what is copied over is never a slot of that one. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_call.h"
#include "kernels/cuda/cuda_sizes.h"

#include <inttypes.h>
#include <string.h>

#include "lib/base/mem.h"

enum { CHUNK_BYTES = 256 << 20 };

static bool open_events(struct clb_cuda_experts *x, struct clb_err *err)
{
    cudaEvent_t *const event[] = { &x->computed[0], &x->computed[1], &x->arrived };

    for (size_t i = 0; i < sizeof event / sizeof *event; i++)
        if (!clb_cuda_ok(cudaEventCreateWithFlags(event[i], cudaEventDisableTiming), err,
                         "an event"))
            return false;
    return true;
}

bool clb_cuda_experts_open(struct clb_backend *be, struct clb_err *err)
{
    struct clb_cuda_experts *x = &be->experts;

    if (!clb_cuda_experts_count(be, err))
        return false;
    x->per_chunk = x->slot_bytes < CHUNK_BYTES ? (uint32_t)(CHUNK_BYTES / x->slot_bytes) : 1;
    x->per_chunk = x->per_chunk < x->n_local ? x->per_chunk : x->n_local;
    x->chunk = clb_new(x->n_local / x->per_chunk + 1, sizeof *x->chunk, err);
    x->slot = x->chunk ? clb_new(x->n_local, sizeof *x->slot, err) : NULL;
    x->in_slot = x->slot ? clb_new(x->n_expert, sizeof *x->in_slot, err) : NULL;
    for (uint32_t i = 0; x->in_slot && i < x->n_expert; i++)
        x->in_slot[i] = CLB_CUDA_EMPTY;
    return x->in_slot && open_events(x, err);
}

/* -- slots ------------------------------------------------------------------------------------- */

/* Slots of chunk i; the last one may be smaller. */
static uint32_t slots_of(const struct clb_cuda_experts *x, uint32_t i)
{
    uint32_t left = x->n_local - i * x->per_chunk;

    return left < x->per_chunk ? left : x->per_chunk;
}

static void drop_chunk(struct clb_backend *be)
{
    struct clb_cuda_experts *x = &be->experts;
    uint32_t i = --x->n_chunk, n = x->n_slot - i * x->per_chunk;

    for (uint32_t s = i * x->per_chunk; s < x->n_slot; s++)
        if (x->slot[s].expert != CLB_CUDA_EMPTY) {
            x->in_slot[x->slot[s].expert] = CLB_CUDA_EMPTY;
            x->n_filled--;
        }
    clb_cuda_put(be, x->chunk[i], n * x->slot_bytes);
    x->n_slot -= n;
}

static bool add_chunk(struct clb_backend *be, uint32_t n, struct clb_err *err)
{
    struct clb_cuda_experts *x = &be->experts;
    uint8_t *p = clb_cuda_get(be, n * x->slot_bytes, "experts", err);

    if (!p)
        return false;
    x->chunk[x->n_chunk++] = p;
    for (uint32_t i = 0; i < n; i++)
        x->slot[x->n_slot++] =
            (struct clb_cuda_slot){ .at = p + i * x->slot_bytes, .expert = CLB_CUDA_EMPTY };
    return true;
}

bool clb_cuda_experts_resize(struct clb_backend *be, uint64_t bytes, struct clb_err *err)
{
    struct clb_cuda_experts *x = &be->experts;
    uint64_t table = clb_cuda_table_bytes(be);

    if (!x->table)
        x->table = clb_cuda_get(be, table, "table of experts", err);
    if (!x->table)
        return false;
    uint64_t fit = bytes > table ? (bytes - table) / x->slot_bytes : 0;
    uint32_t want = fit < x->n_local ? (uint32_t)fit : x->n_local;
    if (want < x->least)
        return clb_fail(err, CLB_NO_SPACE,
                        "CUDA: %" PRIu64 " bytes are left for experts on device %d, but %u of them "
                        "need %" PRIu64 "; a shorter context needs less",
                        bytes, be->device, x->least, table + x->least * x->slot_bytes);
    while (x->n_slot > want)
        drop_chunk(be);
    /* a smaller chunk can only be the last one: it makes room for a larger */
    if (x->n_slot < want && x->n_slot % x->per_chunk)
        drop_chunk(be);
    while (x->n_slot < want) {
        uint32_t all = slots_of(x, x->n_chunk), left = want - x->n_slot;

        if (!add_chunk(be, left < all ? left : all, err))
            return false;
    }
    return true;
}

void clb_cuda_experts_close(struct clb_backend *be)
{
    struct clb_cuda_experts *x = &be->experts;
    const cudaEvent_t event[] = { x->computed[0], x->computed[1], x->arrived };

    while (x->n_chunk)
        drop_chunk(be);
    clb_cuda_put(be, x->table, clb_cuda_table_bytes(be));
    for (size_t i = 0; i < sizeof event / sizeof *event; i++)
        if (event[i])
            cudaEventDestroy(event[i]);
    clb_free(x->first);
    clb_free(x->chunk);
    clb_free(x->slot);
    clb_free(x->in_slot);
}

/* The least recently used slot. */
static uint32_t oldest(const struct clb_cuda_experts *x)
{
    uint32_t oldest = 0;

    for (uint32_t i = 1; i < x->n_slot; i++)
        if (x->slot[i].used < x->slot[oldest].used)
            oldest = i;
    return oldest;
}

/* Expert number `expert` to slot i, on the copy stream. */
static bool fill(struct clb_backend *be, uint32_t i, uint32_t expert, const uint8_t *block,
                 uint64_t bytes, struct clb_err *err)
{
    struct clb_cuda_experts *x = &be->experts;
    struct clb_cuda_slot *s = &x->slot[i];

    if (s->expert != CLB_CUDA_EMPTY) {
        x->in_slot[s->expert] = CLB_CUDA_EMPTY;
        x->n_filled--;
    }
    s->expert = CLB_CUDA_EMPTY;
    if (!clb_cuda_send_block(be, &be->link, s->at, block, bytes, err))
        return false;
    s->expert = expert;
    x->in_slot[expert] = i;
    x->n_filled++;
    return true;
}

/* -- all at once ------------------------------------------------------------------------------- */

bool clb_cuda_experts_upload(struct clb_backend *be, uint32_t layer, uint32_t expert,
                             const uint8_t *block, bool *full, struct clb_err *err)
{
    struct clb_cuda_experts *x = &be->experts;
    const struct clb_expert_layer *l = clb_reader_experts(be->host->reader, layer);
    uint32_t number = x->first[layer] + expert;

    *full = false;
    if (!clb_cuda_experts_want(be, layer, expert))
        return true;
    if (expert >= clb_cuda_share(be, layer, 1))
        return clb_cuda_shares_upload(be, layer, expert, block, err);
    bool no_room = x->n_filled == x->n_slot;
    *full = no_room && !be->n_peer;
    if (no_room)
        return true;
    uint32_t i = 0;
    while (x->slot[i].expert != CLB_CUDA_EMPTY)
        i++;
    return fill(be, i, number, block, l->size[expert], err) && clb_cuda_sent(&be->link, err);
}

bool clb_cuda_experts_settle(struct clb_backend *be, struct clb_err *err)
{
    struct clb_cuda_experts *x = &be->experts;
    bool ok = true;

    if (clb_cuda_resident(be)) {
        const uint8_t **table = clb_new(x->n_expert, sizeof *table, err);

        for (uint32_t e = 0; table && e < x->n_expert; e++)
            if (x->in_slot[e] != CLB_CUDA_EMPTY)
                table[e] = x->slot[x->in_slot[e]].at;
        ok = table && clb_cuda_send(&be->link, x->table, table, x->n_expert * sizeof *table, err);
        clb_free(table);
    }
    for (uint32_t l = 0; l < be->host->arch->n_layer; l++)
        be->layer[l].block = x->table + x->first[l];
    return ok && clb_cuda_ok(cudaStreamSynchronize(be->link.copy), err, "copying weights") &&
           clb_cuda_shares_settle(be, err);
}

/* -- layer by layer ---------------------------------------------------------------------------- */

/* One more expert for the group. */
static bool join(struct clb_backend *be, uint32_t layer, uint32_t e, const uint8_t *block,
                 const uint8_t **table, struct clb_err *err)
{
    struct clb_cuda_experts *s = &be->experts;
    const struct clb_expert_layer *l = clb_reader_experts(be->host->reader, layer);
    uint32_t number = s->first[layer] + e, i = s->in_slot[number];

    if (i == CLB_CUDA_EMPTY) {
        i = oldest(s);
        if (!fill(be, i, number, block, l->size[e], err))
            return clb_fail_in(err, "expert %u", e);
    }
    s->slot[i].used = s->group;
    table[e] = s->slot[i].at;
    return true;
}

bool clb_cuda_experts_group(struct clb_backend *be, struct clb_acts *x, uint32_t layer,
                            const uint8_t *const *block, uint32_t *i, struct clb_err *err)
{
    struct clb_cuda_experts *s = &be->experts;
    const struct clb_routes *r = &x->routes;
    uint32_t most = s->n_slot / 2, n = 0, side = (uint32_t)(++s->group % 2);
    const uint8_t **table = x->r_block[side];
    bool ok = true;

    /* the group before the last is done: its slots, and its table, may be written over */
    if (!clb_cuda_ok(cudaEventSynchronize(s->computed[side]), err, "experts"))
        return false;
    memset(table, 0, r->n_expert * sizeof *table);
    for (; ok && *i < r->n_active - r->n_held && n < most; (*i)++)
        if (block[*i]) {
            ok = join(be, layer, r->active[*i], block[*i], table, err);
            n++;
        }
    return ok && clb_cuda_ok(cudaEventRecord(s->arrived, be->link.copy), err, "copying experts") &&
           clb_cuda_ok(cudaStreamWaitEvent(x->stream, s->arrived, 0), err, "copying experts") &&
           clb_cuda_ok(cudaMemcpyAsync(x->call_block, table, r->n_expert * sizeof *table,
                                       cudaMemcpyHostToDevice, x->stream),
                       err, "table of experts");
}

bool clb_cuda_experts_computed(struct clb_backend *be, struct clb_acts *x, struct clb_err *err)
{
    struct clb_cuda_experts *s = &be->experts;

    return clb_cuda_ok(cudaEventRecord(s->computed[s->group % 2], x->stream), err, "experts");
}
