/* rng.h - random numbers by counter: Philox4x32-10 (Salmon et al., SC 2011). A pure function, so
 * that the number drawn for a position does not depend on what was drawn before or elsewhere. */
#ifndef CLB_SAMPLE_RNG_H
#define CLB_SAMPLE_RNG_H

#include <stdint.h>

void clb_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* 64 uniform bits for (seed, position). */
uint64_t clb_rng_at(uint64_t seed, uint64_t position);

#endif
