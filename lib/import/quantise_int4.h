/* quantise_int4.h - groups of 32 weights to codes into a book of 16 values, and an f16 scale. */
#ifndef CLB_IMPORT_QUANTISE_INT4_H
#define CLB_IMPORT_QUANTISE_INT4_H

#include <stdint.h>

#include "lib/format/dtype.h"

struct clb_loss;

/* Which code is nearest to x (in units of the scale): entry floor(2x) + CLB_NEAREST_ORIGIN. Twice a
 * book value is at most 254, and midpoints between two of them are whole numbers when doubled, so
 * the table is exact. */
enum { CLB_NEAREST_ORIGIN = 512, CLB_NEAREST_SIZE = 1024 };
struct clb_nearest {
    uint8_t code[CLB_NEAREST_SIZE];
    float value[CLB_NEAREST_SIZE];
    int8_t lowest, highest; /* of the book */
    uint8_t zero;           /* the code with the smallest magnitude */
};
void clb_nearest_init(struct clb_nearest *n, const int8_t book[16]);

/* Magnitudes up to this have a finite f16 scale. */
#define CLB_INT4_LIMIT (65504.0f * 100)

/* Finds the scale (an f16, possibly negative: the book need not be symmetric) with the least
 * squared error that the search meets; every code is the nearest for that scale as rounded. Adds to
 * loss->signal and noise. */
uint16_t clb_int4_group(const struct clb_nearest *n, uint8_t code[CLB_GROUP],
                        const float w[CLB_GROUP], struct clb_loss *loss);

#endif
