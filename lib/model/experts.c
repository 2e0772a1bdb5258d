/* experts.c - the mapping, or a cache of equal slots with the least recently used expert replaced
 * first.
 *
 * A slot holds the largest expert block of the file. The oldest slot is found by looking at all
 * of them: a miss reads megabytes, next to which a few thousand comparisons are nothing. */
#include "lib/model/experts.h"

#include <inttypes.h>

#include "lib/base/crc.h"
#include "lib/base/mem.h"

#define NONE UINT32_MAX

struct slot {
    uint8_t *block;  /* [slot_bytes] owned */
    uint32_t expert; /* which one is in it, numbered through all layers; NONE */
    uint64_t used;   /* number of the last get that wanted it; 0: never */
    bool is_pinned;
};

struct clb_experts {
    const struct clb_reader *r;
    struct clb_experts_options o;
    uint32_t n_expert; /* of all layers */
    uint32_t *first;   /* [n_layer] number of the layer's expert 0 */
    bool *checked;     /* [n_expert] its checksum was compared */
    bool streams;      /* the mapping: reads far ahead by itself */
    bool *wanted;      /* [n_expert] the system was told once that it will be read */

    /* the cache; without one n_slot and slot_bytes are 0 */
    uint64_t slot_bytes;
    uint32_t n_slot;
    struct slot *slot; /* [n_expert], n_slot of them in use */
    uint32_t *in_slot; /* [n_expert] slot or NONE */
    uint64_t n_get;
    struct clb_experts_pins pins; /* `pin` NULL: not wanted */
};

static uint64_t largest_block(const struct clb_reader *r)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < r->n_expert_layers; i++)
        for (uint32_t e = 0; e < r->experts[i].count; e++)
            most = r->experts[i].size[e] > most ? r->experts[i].size[e] : most;
    return (most + CLB_PAGE - 1) & ~(uint64_t)(CLB_PAGE - 1);
}

static uint32_t count_experts(const struct clb_reader *r)
{
    uint32_t n = 0; /* layers and experts per layer are bounded: fits */

    for (uint32_t i = 0; i < r->n_expert_layers; i++)
        n += r->experts[i].count;
    return n;
}

/* The most experts that one row needs at the same time. */
static uint32_t least_slots(const struct clb_reader *r)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < r->n_expert_layers; i++) {
        uint32_t k = clb_arch_layer_top_k(&r->arch, r->experts[i].layer);
        most = k > most ? k : most;
    }
    return most;
}

uint64_t clb_experts_least_bytes(const struct clb_reader *r)
{
    return largest_block(r) * least_slots(r);
}

uint64_t clb_experts_all_bytes(const struct clb_reader *r)
{
    return largest_block(r) * count_experts(r);
}

uint64_t clb_experts_fit_bytes(const struct clb_reader *r, uint64_t budget)
{
    uint64_t slot = largest_block(r), least = least_slots(r), all = count_experts(r);
    uint64_t n = slot ? budget / slot : all;

    return slot * (n < least ? least : n < all ? n : all);
}

static bool index_layers(struct clb_experts *s, struct clb_err *err)
{
    const struct clb_reader *r = s->r;

    s->n_expert = count_experts(r);
    s->first = clb_new(r->arch.n_layer, sizeof *s->first, err);
    s->checked = s->first ? clb_new(s->n_expert, sizeof *s->checked, err) : NULL;
    s->wanted = s->checked ? clb_new(s->n_expert, sizeof *s->wanted, err) : NULL;
    if (!s->wanted)
        return false;
    for (uint32_t i = 0, n = 0; i < r->n_expert_layers; n += r->experts[i++].count)
        s->first[r->experts[i].layer] = n;
    return true;
}

static bool open_cache(struct clb_experts *s, uint64_t budget, struct clb_err *err)
{
    s->slot = clb_new(s->n_expert, sizeof *s->slot, err);
    s->in_slot = s->slot ? clb_new(s->n_expert, sizeof *s->in_slot, err) : NULL;
    if (!s->in_slot)
        return false;
    for (uint32_t i = 0; i < s->n_expert; i++)
        s->in_slot[i] = NONE;
    s->slot_bytes = largest_block(s->r);
    return clb_experts_resize(s, budget, err);
}

/* Experts are read from the first byte to the last. */
static bool stream_mapping(const struct clb_reader *r)
{
    uint64_t first = UINT64_MAX, end = 0;

    for (uint32_t i = 0; i < r->n_expert_layers; i++)
        for (uint32_t e = 0; e < r->experts[i].count; e++) {
            uint64_t at = r->experts[i].offset[e], behind = at + r->experts[i].size[e];

            first = at < first ? at : first;
            end = behind > end ? behind : end;
        }
    return first < end && clb_mapfile_use(&r->map, first, end - first, CLB_MAP_BLOCKS);
}

bool clb_experts_new(struct clb_experts **out, const struct clb_reader *r,
                     const struct clb_experts_options *o, struct clb_err *err)
{
    struct clb_experts *s = clb_new(1, sizeof *s, err);

    *out = NULL;
    if (!s)
        return false;
    *s = (struct clb_experts){ .r = r, .o = *o };
    if (!index_layers(s, err) || (o->budget > 0 && !open_cache(s, o->budget, err))) {
        clb_experts_free(s);
        return false;
    }
    if (!s->slot)
        s->streams = stream_mapping(r);
    *out = s;
    return true;
}

static bool pin_slot(struct clb_experts *s, struct slot *slot, struct clb_err *err)
{
    slot->is_pinned = s->pins.pin && s->pins.pin(s->pins.arg, slot->block, s->slot_bytes, err);
    return slot->is_pinned;
}

static void unpin_slot(struct clb_experts *s, struct slot *slot)
{
    if (slot->is_pinned)
        s->pins.unpin(s->pins.arg, slot->block);
    slot->is_pinned = false;
}

bool clb_experts_pin(struct clb_experts *s, const struct clb_experts_pins *pins,
                     struct clb_err *err)
{
    for (uint32_t i = 0; i < s->n_slot; i++)
        unpin_slot(s, &s->slot[i]);
    s->pins = pins ? *pins : (struct clb_experts_pins){ 0 };
    for (uint32_t i = 0; pins && i < s->n_slot; i++)
        if (!pin_slot(s, &s->slot[i], err))
            return clb_experts_pin(s, NULL, err) && false;
    return true;
}

uint64_t clb_experts_held_bytes(const struct clb_experts *s)
{
    return s->n_slot * s->slot_bytes;
}

uint64_t clb_experts_pinned_bytes(const struct clb_experts *s)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < s->n_slot; i++)
        n += s->slot[i].is_pinned;
    return n * s->slot_bytes;
}

/* Mapped one by one, so that a dropped slot goes back to the system at once. */
static bool add_slot(struct clb_experts *s, struct clb_err *err)
{
    void *block = clb_pages_new(s->slot_bytes, true, s->o.residence, "cached experts", err);

    if (!block)
        return clb_fail_in(err, "expert cache");
    s->slot[s->n_slot] = (struct slot){ .block = block, .expert = NONE };
    pin_slot(s, &s->slot[s->n_slot++], &(struct clb_err){ 0 });
    clb_ledger_add(s->o.ledger, s->slot_bytes, s->slot_bytes);
    return true;
}

static void drop_slot(struct clb_experts *s, uint32_t i)
{
    struct slot *last = &s->slot[s->n_slot - 1];

    if (s->slot[i].expert != NONE)
        s->in_slot[s->slot[i].expert] = NONE;
    unpin_slot(s, &s->slot[i]);
    clb_pages_free(s->slot[i].block, s->slot_bytes, s->o.residence);
    clb_ledger_sub(s->o.ledger, s->slot_bytes, s->slot_bytes);
    s->slot[i] = *last;
    if (last != &s->slot[i] && last->expert != NONE)
        s->in_slot[last->expert] = i;
    s->n_slot--;
}

void clb_experts_free(struct clb_experts *s)
{
    if (!s)
        return;
    while (s->n_slot > 0)
        drop_slot(s, s->n_slot - 1);
    clb_free(s->slot);
    clb_free(s->in_slot);
    clb_free(s->first);
    clb_free(s->checked);
    clb_free(s->wanted);
    clb_free(s);
}

static uint32_t oldest_slot(const struct clb_experts *s)
{
    uint32_t oldest = 0;

    for (uint32_t i = 1; i < s->n_slot; i++)
        if (s->slot[i].used < s->slot[oldest].used)
            oldest = i;
    return oldest;
}

bool clb_experts_resize(struct clb_experts *s, uint64_t budget, struct clb_err *err)
{
    uint32_t least = least_slots(s->r);

    if (!s->slot)
        return true;
    if (budget / s->slot_bytes < least)
        return clb_fail(err, CLB_NO_SPACE,
                        "expert cache: %" PRIu64 " bytes hold %" PRIu64
                        " experts; a layer needs %u at a time: %" PRIu64 " bytes",
                        budget, budget / s->slot_bytes, least, s->slot_bytes * least);
    uint64_t fit = budget / s->slot_bytes;
    uint32_t n = fit < s->n_expert ? (uint32_t)fit : s->n_expert;
    while (s->n_slot > n)
        drop_slot(s, oldest_slot(s));
    while (s->n_slot < n)
        if (!add_slot(s, err))
            return false;
    return true;
}

uint32_t clb_experts_max_get(const struct clb_experts *s)
{
    return s->slot ? s->n_slot : s->n_expert;
}

static bool check(struct clb_experts *s, const struct clb_expert_layer *l, uint32_t e,
                  const uint8_t *block, struct clb_err *err)
{
    bool *checked = &s->checked[s->first[l->layer] + e];

    if (!s->o.verify || *checked)
        return true;
    uint32_t crc = clb_crc32(0, block, l->size[e]);
    if (crc != l->crc32[e]) {
        clb_fail(err, CLB_BAD_INPUT,
                 "%s: layer %u: expert %u: crc32 is %08" PRIx32 ", but the header says %08" PRIx32,
                 s->r->path, l->layer, e, crc, l->crc32[e]);
        return clb_err_place(err, s->r->path, "experts", l->offset[e]);
    }
    *checked = true;
    return true;
}

/* Reads an expert that is not in the cache over the oldest one. Slots that this get has given out
 * already are newer than all others, so they are never chosen. */
static bool load(struct clb_experts *s, const struct clb_expert_layer *l, uint32_t e,
                 uint32_t *into, struct clb_err *err)
{
    uint32_t i = oldest_slot(s), expert = s->first[l->layer] + e;
    struct slot *slot = &s->slot[i];

    if (slot->expert != NONE)
        s->in_slot[slot->expert] = NONE;
    slot->expert = NONE;
    slot->used = 0;
    if (!clb_mapfile_read(&s->r->map, slot->block, l->offset[e], l->size[e], err))
        return clb_fail_in(err, "layer %u: expert %u", l->layer, e);
    if (!check(s, l, e, slot->block, err))
        return false;
    slot->expert = expert;
    s->in_slot[expert] = i;
    *into = i;
    return true;
}

static bool get_cached(struct clb_experts *s, const struct clb_expert_layer *l, const uint32_t *id,
                       uint32_t n, const uint8_t **block, struct clb_err *err)
{
    const uint32_t *in_slot = s->in_slot + s->first[l->layer];

    s->n_get++;
    for (uint32_t i = 0; i < n; i++) /* first, so that loading replaces none of them */
        if (in_slot[id[i]] != NONE)
            s->slot[in_slot[id[i]]].used = s->n_get;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = in_slot[id[i]];

        if (at == NONE && !load(s, l, id[i], &at, err))
            return false;
        s->slot[at].used = s->n_get;
        block[i] = s->slot[at].block;
    }
    return true;
}

bool clb_experts_get(struct clb_experts *s, uint32_t layer, const uint32_t *id, uint32_t n,
                     const uint8_t **block, struct clb_err *err)
{
    const struct clb_expert_layer *l = clb_reader_experts(s->r, layer);

    clb_experts_prefetch(s, layer, id, n); /* so that the system reads them side by side */
    if (s->slot)
        return get_cached(s, l, id, n, block, err);
    for (uint32_t i = 0; i < n; i++) {
        block[i] = s->r->data + l->offset[id[i]];
        if (!check(s, l, id[i], block[i], err))
            return false;
    }
    return true;
}

/* A mapped expert is announced once: later it is in memory, unless the system is short of it, and a
 * call for each expert and token would cost more than it brings. WILLNEED takes 0.3 ms for one that
 * is in memory, and reads single pages of 4 KB: only for systems that cannot do better. */
static void announce_mapped(struct clb_experts *s, const struct clb_expert_layer *l, uint32_t e)
{
    bool *wanted = &s->wanted[s->first[l->layer] + e];

    if (*wanted && !s->o.again)
        return;
    *wanted = true;
    if (s->o.ahead)
        clb_ahead_want(s->o.ahead, l->offset[e], l->size[e]);
    else if (!s->streams)
        clb_mapfile_want(&s->r->map, l->offset[e], l->size[e]);
}

void clb_experts_prefetch(struct clb_experts *s, uint32_t layer, const uint32_t *id, uint32_t n)
{
    const struct clb_expert_layer *l = clb_reader_experts(s->r, layer);

    for (uint32_t i = 0; i < n && s->r->map.size > 0; i++)
        if (!s->slot)
            announce_mapped(s, l, id[i]);
        else if (s->in_slot[s->first[layer] + id[i]] == NONE)
            clb_mapfile_want(&s->r->map, l->offset[id[i]], l->size[id[i]]);
}
