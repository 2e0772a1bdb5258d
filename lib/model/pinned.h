/* pinned.h - memory of the host that experts are copied from while passes run, registered with the
 * device: copies from it are direct instead of through buffers.
 *
 * Registering locks pages and reads those that are not in memory yet. So nothing is registered but
 * what will be copied from: the cache of experts under a memory limit, or the part of the mapping
 * that has experts if it is in memory already; and only as long as a quarter of the memory that is
 * available stays free. */
#ifndef CLB_MODEL_PINNED_H
#define CLB_MODEL_PINNED_H

#include "lib/model/model.h"

/* With the turn, when the device knows how many experts it has room for. Registers, or not any
 * longer; where it cannot be, m->pinned says why. */
void clb_pinned_update(struct clb_model *m);
/* Nothing is registered any more; safe at any time. */
void clb_pinned_end(struct clb_model *m);

#endif
