#include "lib/model/pinned.h"

#include <stdio.h>

#include "lib/model/available.h"

static bool pin(void *arg, const void *at, uint64_t bytes, struct clb_err *err)
{
    struct clb_model *m = arg;

    return m->op->device->pin_host(m->be, at, bytes, false, err);
}

static void unpin(void *arg, const void *at)
{
    struct clb_model *m = arg;

    m->op->device->unpin_host(m->be, at);
}

/* The part of the file that has experts. */
static uint64_t find_experts(const struct clb_reader *r, uint64_t *bytes)
{
    uint64_t first = r->size, end = 0;

    for (uint32_t i = 0; i < r->n_expert_layers; i++)
        for (uint32_t e = 0; e < r->experts[i].count; e++) {
            uint64_t at = r->experts[i].offset[e], behind = at + r->experts[i].size[e];

            first = at < first ? at : first;
            end = behind > end ? behind : end;
        }
    *bytes = end - first;
    return first;
}

/* Why not. */
static bool check(const struct clb_model *m, uint64_t bytes, struct clb_err *err)
{
    uint64_t available = clb_memory_available("");

    if (m->reader.map.size == 0)
        return clb_fail(err, CLB_UNSUPPORTED, "the file is memory of the caller");
    if (!clb_model_has_cache(m) && m->ahead && !m->residence.lock)
        return clb_fail(err, CLB_UNSUPPORTED, "the file was not in memory when it was opened");
    if (bytes > available - available / 4)
        return clb_fail(err, CLB_NO_SPACE, "%.1f MB to register, but %.1f MB are available",
                        (double)bytes / 1e6, (double)available / 1e6);
    return true;
}

static bool begin(struct clb_model *m, uint64_t *bytes, struct clb_err *err)
{
    const struct clb_experts_pins pins = { pin, unpin, m };

    if (clb_model_has_cache(m)) {
        *bytes = clb_experts_held_bytes(m->experts);
        return check(m, *bytes, err) && clb_experts_pin(m->experts, &pins, err);
    }
    const uint8_t *at = m->reader.data + find_experts(&m->reader, bytes);
    if (!check(m, *bytes, err) || !m->op->device->pin_host(m->be, at, *bytes, true, err))
        return false;
    m->pinned_at = at;
    return true;
}

static void tell(struct clb_model *m, uint64_t bytes)
{
    snprintf(m->pinned, sizeof m->pinned, "directly: %.1f MB are registered", (double)bytes / 1e6);
}

void clb_pinned_update(struct clb_model *m)
{
    struct clb_err why = { 0 };
    uint64_t bytes = clb_experts_pinned_bytes(m->experts);

    if (!m->op->device->copies(m->be)) {
        clb_pinned_end(m);
        return;
    }
    if (bytes) /* of a cache, which changes its size */
        tell(m, bytes);
    if (*m->pinned) /* it is, or cannot be */
        return;
    if (begin(m, &bytes, &why))
        tell(m, bytes);
    else
        snprintf(m->pinned, sizeof m->pinned, "through buffers: %.160s", why.text);
}

void clb_pinned_end(struct clb_model *m)
{
    if (m->pinned_at)
        unpin(m, m->pinned_at);
    m->pinned_at = NULL;
    if (m->experts)
        clb_experts_pin(m->experts, NULL, NULL);
    *m->pinned = '\0';
}
