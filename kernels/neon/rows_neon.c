/* rows_neon.c - operations on one row of activations. */
#include <math.h>

#include "kernels/neon/neon.h"
#include "kernels/neon/vec.h"
#include "lib/base/fmath.h"
#include "lib/base/half.h"
#include "lib/format/arch.h"

#include "kernels/wide/math.inc"
#include "kernels/wide/rows.inc"

PLAIN_CODE void clb_fill_rows_neon(struct clb_kernels *k)
{
    fill_rows(k);
}
