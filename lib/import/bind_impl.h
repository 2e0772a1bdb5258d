/* bind_impl.h - binding between its halves: whose place a tensor fills (bind.c), and how it lies
 * there (bind_view.c). Nobody else includes this. */
#ifndef CLB_IMPORT_BIND_IMPL_H
#define CLB_IMPORT_BIND_IMPL_H

#include "lib/import/bind.h"

/* Tensors that are left out for one reason: those of a line of the family's table, or of a layer
 * that predicts further tokens (line NULL). */
enum { CLB_UNUSED = 32 };
struct clb_unused {
    const struct clb_family_tensor *line;
    uint32_t layer;
    uint32_t n;
    const char *first; /* the name of one of them */
};

struct clb_binder {
    struct clb_binding *b;
    const struct clb_family *family;
    const struct clb_arch *arch;
    const struct clb_family_extra *extra;
    const struct clb_checkpoint *ckpt;
    uint32_t *place; /* [role][n_layer + 1] owned: index in b->dense plus 1; 0: no such tensor */
    struct clb_unused unused[CLB_UNUSED];
    uint32_t n_unused;
    struct clb_problems *problems;
    struct clb_text *notes;
};

/* A tensor and the places that it fills: matrices [rows[i]][cols], vectors of rows[i]. */
struct clb_claim {
    const struct clb_ckpt_tensor *t;
    int target;
    unsigned form;
    enum { CLB_CLAIM_VECTOR, CLB_CLAIM_ROWS, CLB_CLAIM_MATRIX, CLB_CLAIM_KV_B } kind;
    struct clb_view *view[3]; /* [n]; of further experts in steps of CLB_PARTS */
    uint32_t rows[3];
    uint32_t n, cols;
    uint32_t slices; /* experts */
    bool stacked;
};

/* Fills the views of a claim, or reports why the tensor does not fit. */
void clb_bind_views(const struct clb_binder *x, const struct clb_claim *c);
/* A tensor of scales that belongs to another one, which speaks for it. */
bool clb_bind_is_scale(const struct clb_binder *x, const struct clb_ckpt_tensor *t);
/* Fills slice_at, and which view counts for which slice. */
bool clb_bind_count(struct clb_binding *b, const struct clb_checkpoint *c, struct clb_err *err);

#endif
