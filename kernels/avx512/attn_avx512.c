/* attn_avx512.c - attention over one KV block. */
#include <math.h>

#include "kernels/avx512/avx512.h"
#include "kernels/avx512/vec.h"
#include "lib/backend/kv.h"
#include "lib/base/half.h"

#include "kernels/wide/math.inc"
#include "kernels/wide/attn.inc"

PLAIN_CODE void clb_fill_attn_avx512(struct clb_kernels *k)
{
    fill_attn(k);
}
