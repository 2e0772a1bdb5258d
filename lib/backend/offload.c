#include "lib/backend/offload.h"

#include <math.h>

struct clb_offload_guess clb_offload_guess(const struct clb_offload_facts *f)
{
    double there = f->n_expert ? (double)f->n_slot / (double)f->n_expert : 1;
    double bytes = f->per_token * (double)f->expert_bytes;
    struct clb_offload_guess g = { .hits = (double)f->n_slot >= f->per_token ? there : 0 };

    g.copy = f->n_slot < 2 ? INFINITY : f->link > 0 ? bytes * (1 - g.hits) / f->link : 0;
    g.cpu = f->host > 0 ? bytes * (1 - there) / f->host : INFINITY;
    g.use_cpu = g.cpu < g.copy || f->n_slot < 2;
    return g;
}
