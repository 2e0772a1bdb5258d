/* bind.h - which tensor of a checkpoint fills which place of the model. Missing, surplus, misshapen
 * and mistyped ones are all reported together. */
#ifndef CLB_IMPORT_BIND_H
#define CLB_IMPORT_BIND_H

#include <stdint.h>

#include "lib/format/arch.h"
#include "lib/import/checkpoint.h"
#include "lib/import/family.h"

struct clb_binding {
    const struct clb_ckpt_tensor *
        *dense; /* [n_dense] owned, in the order of clb_arch_tensor; NULL: computed by convert */
    uint32_t n_dense;
    const struct clb_ckpt_tensor *
        *expert; /* [n_expert_part] owned: layer by layer, expert by expert, gate, up, down */
    uint32_t n_expert_part;
    uint32_t first[CLB_MAX_LAYERS]; /* of a layer, in `expert` */
};

bool clb_bind(struct clb_binding *b, const struct clb_family *f, const struct clb_arch *a,
              uint32_t n_further, const struct clb_checkpoint *c, struct clb_problems *problems,
              struct clb_text *notes, struct clb_err *err);
void clb_bind_free(struct clb_binding *b); /* safe on a zeroed struct */

static inline const struct clb_ckpt_tensor *
clb_bound_expert(const struct clb_binding *b, uint32_t layer, uint32_t expert, enum clb_part part)
{
    return b->expert[b->first[layer] + expert * CLB_PARTS + part];
}

#endif
