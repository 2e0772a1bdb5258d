/* attn_neon.c - attention over one KV block. */
#include <math.h>

#include "kernels/neon/neon.h"
#include "kernels/neon/vec.h"
#include "lib/backend/kv.h"
#include "lib/base/half.h"

#include "kernels/wide/math.inc"
#include "kernels/wide/attn.inc"

PLAIN_CODE void clb_fill_attn_neon(struct clb_kernels *k)
{
    fill_attn(k);
}
