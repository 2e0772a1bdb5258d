/* cuda_backend.c - the CUDA backend behind the contract of backend.h. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_call.h"
#include "kernels/cuda/cuda_sizes.h"

#include <inttypes.h>
#include <stdio.h>

#include "kernels/cuda/cuda_device.h"
#include "lib/base/human.h"
#include "lib/base/mem.h"

/* Of the memory that is free, so much stays free: what the runtime takes for kernels and graphs. */
enum { SPARE_SHARE = 32 };

/* -- open and close ---------------------------------------------------------------------------- */

static void cuda_close(struct clb_backend *be)
{
    if (!be)
        return;
    if (be->link.copy) /* any thread may close; libraries let go of what is on that device */
        cudaSetDevice(be->device);
    clb_cuda_dense_close(be);
    clb_cuda_dnn_close_library(be);
    clb_cuda_peers_close(be);
    if (be->link.copy)
        cudaSetDevice(be->device);
    clb_cuda_unbind(be);
    clb_cuda_memory_done(be);
    clb_cuda_link_close(&be->link);
    clb_free(be->range);
    clb_free(be);
}

bool clb_cuda_budget(uint64_t *budget, const struct clb_cuda_device *d, uint64_t asked,
                     struct clb_err *err)
{
    uint64_t left = d->available;

    *budget = asked ? asked : left - left / SPARE_SHARE;
    if (asked <= left)
        return true;
    clb_fail(err, CLB_NO_SPACE,
             "%" PRIu64 " bytes of the memory of device %d are asked for, but %" PRIu64
             " of %" PRIu64 " are free; ask for less%s",
             asked, d->index, left, d->memory,
             asked <= d->memory ? ", or end other programs that use it ('nvidia-smi' shows them)"
                                : "");
    return clb_err_place(err, NULL, "gpu_memory", CLB_NO_OFFSET);
}

static bool open_device(struct clb_backend *be, const struct clb_backend_options *o,
                        struct clb_err *err)
{
    struct clb_cuda_device d;
    char use[CLB_HUMAN];

    if (!clb_cuda_device_open(&d, o->devices.n ? o->devices.id[0] : 0, err))
        return false;
    be->device = d.index;
    be->asked = o->device_memory;
    if (!clb_cuda_link_open(&be->link, d.index, err) ||
        !clb_cuda_device_set_up(&d, err) ||
        !clb_cuda_budget(&be->budget, &d, o->device_memory, err))
        return false;
    be->n_cta = (unsigned)d.n_sm * 4;
    be->no_graphs = o->devices.n > 1;
    be->cpu = o->cpu;
    be->offload = o->cpu ? o->offload : CLB_OFFLOAD_COPY;
    be->major = d.major;
    snprintf(be->name, sizeof be->name, "sm_%d%d", d.major, d.minor);
    if (!clb_cuda_peers_open(be, &o->devices, o->device_memory, err) ||
        ((o->dense_library || o->dense_widened) &&
         !clb_cuda_dense_open(be, o->dense_widened, err)) ||
        (o->attention_library && !clb_cuda_dnn_open_library(be, err)))
        return false;
    size_t n = (size_t)snprintf(be->text, sizeof be->text,
                                "device %d, %s, %s, %d multiprocessors, %s to use", d.index, d.name,
                                be->name, d.n_sm, clb_human_bytes(use, be->budget));
    clb_cuda_peers_describe(be, be->text + n, sizeof be->text - n);
    return true;
}

static bool cuda_open(struct clb_backend **out, const struct clb_backend_options *o,
                      struct clb_err *err)
{
    struct clb_backend *be = clb_new(1, sizeof *be, err);

    *out = NULL;
    if (!be)
        return false;
    be->no_routing_cache = o->no_routing_cache;
    be->ledger = o->device_ledger;
    clb_cuda_memory_init(be, o->slab_options);
    if (!open_device(be, o, err)) {
        cuda_close(be);
        return false;
    }
    *out = be;
    return true;
}

static const char *cuda_describe(const struct clb_backend *be)
{
    return be->dnn.takes ? clb_cuda_dnn_text(be) : be->text;
}

static const char *cuda_level(const struct clb_backend *be)
{
    return be->name;
}

static unsigned cuda_threads(const struct clb_backend *be)
{
    (void)be;
    return 1; /* the caller's, which enqueues */
}

static void cuda_watch(struct clb_backend *be, struct clb_pool_use *use)
{
    be->watched = use != NULL;
    if (be->n_host)
        clb_backend_cpu.watch(be->cpu, use);
}

/* -- memory of the device ---------------------------------------------------------------------- */

static bool cuda_reserve(struct clb_backend *be, uint64_t run_bytes, bool *wanted,
                         struct clb_err *err)
{
    uint64_t fixed = be->dense_bytes + be->head_bytes;

    *wanted = false;
    if (!clb_cuda_ok(cudaSetDevice(be->device), err, "choosing the device") ||
        !clb_cuda_send_dense(be, err))
        return false;
    uint64_t left = be->budget - fixed; /* dense weights have fitted */
    left = left > run_bytes ? left - run_bytes : 0;
    if (!clb_cuda_shares_reserve(be, left, run_bytes, err) ||
        !clb_cuda_experts_resize(be, left, err))
        return false;
    *wanted = be->experts.n_filled < be->experts.n_slot;
    for (unsigned i = 0; i < be->n_peer; i++)
        *wanted = *wanted || !be->peer[i].is_full;
    return true;
}

static bool cuda_copies(const struct clb_backend *be)
{
    return be->experts.n_slot < be->experts.n_local;
}

static const char *cuda_offload(const struct clb_backend *be)
{
    return be->offload_text;
}

/* An error that spoils a context (a kernel that went astray, memory that lost bits, a device that
 * is gone) is the answer to every later call, also to one that only asks for news. So there is no
 * list of such errors here. */
static bool is_spoilt(const struct clb_cuda_link *l)
{
    cudaError_t e = cudaSetDevice(l->device);

    if (e == cudaSuccess)
        e = cudaStreamQuery(l->copy);
    (void)cudaGetLastError();
    return e != cudaSuccess && e != cudaErrorNotReady;
}

static bool cuda_lost(struct clb_backend *be)
{
    bool lost = false;

    for (unsigned i = 0; i < be->n_peer; i++)
        lost = is_spoilt(&be->peer[i].link) || lost;
    return is_spoilt(&be->link) || lost; /* last: the first device stays chosen */
}

static const struct clb_memory *cuda_memory(struct clb_backend *be)
{
    return &be->memory;
}

static const struct clb_memory *cuda_pinned(struct clb_backend *be)
{
    return &be->pinned;
}

/* -- stages: those of a deferred pass come with its end (cuda_graph.c) ---------------------------
 */

static bool embed(struct clb_backend *be, struct clb_acts *x, struct clb_err *err)
{
    return x->deferred || clb_cuda_embed(be, x, err);
}
static bool attn_project(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                         struct clb_err *err)
{
    return x->deferred || clb_cuda_attn_project(be, x, l, err);
}
static bool attn_mix(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                     struct clb_err *err)
{
    return x->deferred || clb_cuda_attn_mix(be, x, l, err);
}
static bool attn_output(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                        struct clb_err *err)
{
    return x->deferred || clb_cuda_attn_output(be, x, l, err);
}
static bool gate(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                 struct clb_err *err)
{
    return x->deferred || clb_cuda_gate(be, x, l, err);
}
static bool scatter(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                    const struct clb_routes **routes, struct clb_err *err)
{
    *routes = NULL;
    return x->deferred || clb_cuda_scatter(be, x, l, routes, err);
}
static bool experts(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                    const uint8_t *const *block, struct clb_err *err)
{
    return x->deferred || clb_cuda_moe_experts(be, x, l, block, err);
}
static bool gather(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                   struct clb_err *err)
{
    return x->deferred || clb_cuda_gather(be, x, l, err);
}
static bool mlp(struct clb_backend *be, struct clb_acts *x, const struct clb_layer *l,
                struct clb_err *err)
{
    return x->deferred || clb_cuda_mlp(be, x, l, err);
}

static const struct clb_device_ops device = {
    .about = clb_cuda_about,
    .count = clb_cuda_devices,
    .bind = clb_cuda_bind,
    .available = clb_cuda_available,
    .holds = clb_cuda_holds,
    .reserve = cuda_reserve,
    .wants = clb_cuda_experts_want,
    .upload = clb_cuda_experts_upload,
    .settle = clb_cuda_experts_settle,
    .shares = clb_cuda_alone,
    .copies = cuda_copies,
    .offload = cuda_offload,
    .pin_host = clb_cuda_pin_host,
    .unpin_host = clb_cuda_unpin_host,
    .acts_host_bytes = clb_cuda_acts_host_bytes,
    .candidates = clb_cuda_most_candidates,
    .fetch = clb_cuda_fetch,
    .lost = cuda_lost,
    .kv_shape = clb_cuda_kv_shape,
    .plan = clb_cuda_plan,
    .memory = cuda_memory,
    .pinned = cuda_pinned,
};

const struct clb_backend_ops clb_backend_cuda = {
    .name = "cuda",
    .device = &device,
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .level = cuda_level,
    .threads = cuda_threads,
    .watch = cuda_watch,
    .acts_bytes = clb_cuda_acts_bytes,
    .acts_new = clb_cuda_acts_new,
    .acts_free = clb_cuda_acts_free,
    .begin = clb_cuda_begin,
    .embed = embed,
    .attn_project = attn_project,
    .attn_mix = attn_mix,
    .attn_output = attn_output,
    .moe_gate = gate,
    .moe_scatter = scatter,
    .moe_experts = experts,
    .moe_gather = gather,
    .mlp = mlp,
    .logits = clb_cuda_logits,
};
