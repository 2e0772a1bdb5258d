/* candidate.h - tokens that may come next, where not all logits of a row are at hand: what a device
 * gives and sampling takes. */
#ifndef CLB_BASE_CANDIDATE_H
#define CLB_BASE_CANDIDATE_H

#include <stdint.h>

struct clb_candidate {
    uint32_t id;
    float logit;
};

#endif
