/* upload.c - the device says how much it has room for, the store says where experts lie. */
#include "lib/model/upload.h"

#include "lib/model/pinned.h"

static uint64_t layer_bytes(const struct clb_expert_layer *l)
{
    uint64_t sum = 0;

    for (uint32_t e = 0; e < l->count; e++)
        sum += l->size[e];
    return sum;
}

static bool upload_layer(struct clb_model *m, const struct clb_expert_layer *l, uint64_t *done,
                         uint64_t total, struct clb_err *err)
{
    for (uint32_t e = 0; e < l->count; e++) {
        const uint8_t *block;
        bool full = false;

        if (m->op->device->wants(m->be, l->layer, e) &&
            (!clb_experts_get(m->experts, l->layer, &e, 1, &block, err) ||
             !m->op->device->upload(m->be, l->layer, e, block, &full, err)))
            return false;
        *done = full ? total : *done + l->size[e];
        if (m->upload)
            m->upload(m->upload_arg, *done, total);
        if (full)
            break;
    }
    return true;
}

bool clb_upload(struct clb_model *m, uint64_t run_bytes, struct clb_err *err)
{
    const struct clb_device_ops *d = m->op->device;
    uint64_t done = 0, total = 0;
    bool wanted;

    if (!d->reserve(m->be, run_bytes, &wanted, err))
        return false;
    clb_pinned_update(m);
    for (uint32_t i = 0; wanted && i < m->reader.n_expert_layers; i++)
        total += layer_bytes(&m->reader.experts[i]);
    for (uint32_t i = 0; done < total; i++)
        if (!upload_layer(m, &m->reader.experts[i], &done, total, err))
            return false;
    return d->settle(m->be, err);
}
