/* bind.h - which tensor of a checkpoint fills which place of the model, and how. Missing, surplus,
 * misshapen and mistyped ones are all reported together. */
#ifndef CLB_IMPORT_BIND_H
#define CLB_IMPORT_BIND_H

#include <stdint.h>

#include "lib/format/arch.h"
#include "lib/import/checkpoint.h"
#include "lib/import/family.h"
#include "lib/import/view.h"

struct clb_binding {
    /* [n_dense] owned, in the order of clb_arch_tensor; t NULL: computed by convert. */
    struct clb_view *dense;
    uint32_t n_dense;
    /* [n_expert_part] owned: layer by layer, expert by expert, gate, up, down. */
    struct clb_view *expert;
    struct clb_view *bias; /* [n_expert_part] owned, likewise; NULL: experts have no biases */
    uint32_t n_expert_part;
    uint32_t first[CLB_MAX_LAYERS]; /* of a layer, in `expert` and `bias` */
    /* An output matrix beside tied embeddings, which nothing uses; NULL: there is none. */
    const struct clb_ckpt_tensor *tied_output;
    /* [n_tensor of the checkpoint + 1] owned: the slices of all tensors in one row; where those of
     * each begin. */
    uint32_t *slice_at;
};

bool clb_bind(struct clb_binding *b, const struct clb_family *f, const struct clb_arch *a,
              const struct clb_family_extra *extra, const struct clb_checkpoint *c,
              struct clb_problems *problems, struct clb_text *notes, struct clb_err *err);
void clb_bind_free(struct clb_binding *b); /* safe on a zeroed struct */

static inline uint32_t clb_bound_index(const struct clb_binding *b, uint32_t layer, uint32_t expert,
                                       enum clb_part part)
{
    return b->first[layer] + expert * CLB_PARTS + part;
}

#endif
