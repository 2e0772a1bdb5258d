/* cuda_host_cpu.c - the CPU's side of cuda_host.h: the CPU backend's own stage, on rows and routes
 * that come from elsewhere. Of its activations only what ExpertCompute needs is there. */
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cuda/cuda_host.h"
#include "lib/base/clock.h"

void clb_cuda_host_lay_out_cpu(const struct clb_backend *cpu, struct clb_carver *c,
                               const struct clb_arch *a, uint32_t rows, uint32_t top_k, size_t ld,
                               struct clb_acts **out)
{
    struct clb_acts *to = clb_carve(c, 1, sizeof *to);
    uint64_t slots = (uint64_t)rows * top_k, width = sizeof(float);
    struct clb_acts x = { .a = a,
                          .top_k = top_k,
                          .n_thread = clb_pool_threads(cpu->pool),
                          .ld_hidden = ld,
                          .hidden_record = clb_record_bytes(a->hidden_size) };

    x.record = clb_carve_rows(c, rows, x.hidden_record, 1);
    x.inner = clb_carve_rows(c, slots, clb_cpu_ld(a->expert_size), width);
    x.inner_record = clb_carve_rows(c, slots, clb_record_bytes(a->expert_size), 1);
    x.slot_record = clb_carve_rows(c, a->scale_expert_input ? slots : 0, x.hidden_record, 1);
    x.linear = clb_carve(c, 2 * (uint64_t)a->n_expert, sizeof *x.linear);
    x.gated = clb_carve_rows(c, x.n_thread, 2 * CLB_CPU_ROWS * CLB_CPU_TILES * CLB_TILE, width);
    if (to) {
        *to = x;
        *out = to;
    }
}

/* -- a layer ----------------------------------------------------------------------------------- */

struct job {
    struct clb_backend *be;
    struct clb_acts *x;
};

static void quantise(void *arg, unsigned thread, unsigned n_thread)
{
    const struct job *j = arg;
    const struct clb_acts *x = j->x;
    uint32_t first, last;

    clb_share(x->routes.n_row, thread, n_thread, &first, &last);
    for (uint32_t r = first; r < last; r++)
        j->be->k.quantise(x->record + r * x->hidden_record, x->norm + r * x->ld_hidden,
                          x->a->hidden_size);
}

void clb_cuda_host_begin(struct clb_backend *cpu, struct clb_acts *x,
                         const struct clb_cuda_host_layer *l)
{
    const struct clb_expert_part *part = l->l->experts->part;
    bool quantised = !clb_dtype_is_float(part[CLB_GATE].dtype);
    struct job j = { cpu, x };

    x->w = l->w;
    x->routes = *l->routes;
    x->routes.n_active = l->n_active;
    x->norm = (float *)(uintptr_t)l->in; /* only read */
    x->slot_out = l->out;
    if (quantised && !x->a->scale_expert_input) /* else by slot, in the stage */
        clb_cpu_run(cpu, (uint64_t)x->routes.n_row * x->a->hidden_size * 8, quantise, &j);
}

bool clb_cuda_host_compute(struct clb_backend *cpu, struct clb_acts *x, const struct clb_layer *l,
                           const uint8_t *const *block, struct clb_err *err)
{
    return clb_cpu_moe_experts(cpu, x, l, block, err);
}

/* -- how fast threads read --------------------------------------------------------------------- */

enum { TRIES = 3 }; /* the best of them: others may be running */

struct reading {
    const uint8_t *at;
    uint64_t words;
    _Atomic uint64_t sum; /* so that nothing is left out */
};

static void read_share(void *arg, unsigned thread, unsigned n_thread)
{
    struct reading *r = arg;
    uint64_t from = r->words / n_thread * thread, n = r->words / n_thread, sum[8] = { 0 };

    for (uint64_t i = 0; i + 8 <= n; i += 8) {
        uint64_t word[8];

        memcpy(word, r->at + (from + i) * sizeof *word, sizeof word);
        for (int k = 0; k < 8; k++)
            sum[k] += word[k];
    }
    for (int k = 1; k < 8; k++)
        sum[0] += sum[k];
    atomic_fetch_add_explicit(&r->sum, sum[0], memory_order_relaxed);
}

double clb_cuda_host_rate(struct clb_backend *cpu, const uint8_t *at, uint64_t bytes)
{
    struct reading r = { .at = at, .words = bytes / sizeof(uint64_t) };
    double seconds = 0;

    clb_pool_run(cpu->pool, read_share, &r); /* threads are awake, pages are mapped */
    for (int i = 0; i < TRIES; i++) {
        double start = clb_now(), took;

        clb_pool_run(cpu->pool, read_share, &r);
        took = clb_now() - start;
        seconds = i && seconds < took ? seconds : took;
    }
    return seconds > 0 ? (double)bytes / seconds : 0;
}
