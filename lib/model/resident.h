/* resident.h - how the file of a model comes into memory, and stays there. */
#ifndef CLB_MODEL_RESIDENT_H
#define CLB_MODEL_RESIDENT_H

#include "lib/model/model.h"

/* Tells the system how each part of the mapping will be read, and starts to read ahead what is not
 * in memory. After the limit is known, before the first weight is touched. */
bool clb_resident_begin(struct clb_model *m, struct clb_err *err);
/* With mlock: locks the weights that lie in the file: all, or beside a cache, which locks its own,
 * the dense ones. CLB_NO_SPACE with the numbers. */
bool clb_resident_lock(struct clb_model *m, struct clb_err *err);
/* Rows of the embedding will be looked up: each is a page somewhere, so they are asked for side by
 * side. Nothing happens when the file was in memory. Ids of the vocabulary. */
void clb_resident_rows(const struct clb_model *m, const int32_t *id, uint32_t n);
/* The end of all; safe when they failed or were not called. */
void clb_resident_end(struct clb_model *m);

#endif
