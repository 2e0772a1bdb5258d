/* cpu_moe_scatter.c - a counting sort of (row, rank) pairs by expert. Rows are not copied: experts
 * read them through the index map. The map of a layer is kept and serves again while the choice
 * repeats. */
#include "kernels/cpu/cpu.h"

#include <string.h>

static bool same_choice(const struct clb_cpu_map *m, const struct clb_routes *r)
{
    return m->n_row == r->n_row && m->top_k == r->top_k &&
           !memcmp(m->expert, r->expert, (size_t)r->n_row * r->top_k * sizeof *m->expert);
}

static void count(struct clb_cpu_map *m, uint32_t n_expert)
{
    uint32_t n_slot = m->n_row * m->top_k;

    memset(m->first, 0, (n_expert + 1) * sizeof *m->first);
    for (uint32_t i = 0; i < n_slot; i++)
        m->first[m->expert[i] + 1]++;
    m->n_active = 0;
    for (uint32_t e = 0; e < n_expert; e++) {
        if (m->first[e + 1])
            m->active[m->n_active++] = e;
        m->first[e + 1] += m->first[e];
    }
}

/* first[e] serves as the cursor of expert e and so ends as first[e + 1]; one shift restores it. */
static void place(struct clb_cpu_map *m, uint32_t n_expert)
{
    uint32_t n_slot = m->n_row * m->top_k;

    for (uint32_t i = 0; i < n_slot; i++) {
        uint32_t slot = m->first[m->expert[i]]++;

        m->slot[i] = slot;
        m->row[slot] = i / m->top_k;
    }
    memmove(m->first + 1, m->first, n_expert * sizeof *m->first);
    m->first[0] = 0;
}

bool clb_cpu_moe_scatter(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                         const struct clb_routes **routes, struct clb_err *err)
{
    struct clb_cpu_map *m = &x->map[l->index];
    struct clb_routes *r = &x->routes;

    (void)err;
    r->reused = !be->no_routing_cache && same_choice(m, r);
    if (!r->reused) {
        m->n_row = r->n_row;
        m->top_k = r->top_k;
        memcpy(m->expert, r->expert, (size_t)r->n_row * r->top_k * sizeof *m->expert);
        count(m, r->n_expert);
        place(m, r->n_expert);
    }
    r->n_active = m->n_active;
    r->first = m->first;
    r->row = m->row;
    r->slot = m->slot;
    r->active = m->active;
    *routes = r;
    return true;
}
