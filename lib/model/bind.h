/* bind.h - binds the tensors of an open file to the fields that a backend reads. */
#ifndef CLB_MODEL_BIND_H
#define CLB_MODEL_BIND_H

#include "lib/backend/weights.h"

/* Everything in `w` is borrowed from the reader, but the array of layers. */
bool clb_weights_bind(struct clb_weights *w, const struct clb_reader *r, struct clb_err *err);
void clb_weights_done(struct clb_weights *w); /* safe on a zeroed struct */

#endif
