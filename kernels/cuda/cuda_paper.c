/* cuda_paper.c - a CUDA backend that only says what it would take: for plans of runs on devices
 * that are elsewhere, in builds without CUDA as well. The numbers are those of the backend itself
 * (cuda_sizes.c, cuda_layout.c). A budget has to be given, and nothing can run. */
#include "kernels/cuda/cuda_sizes.h"
#include "lib/base/mem.h"

static void paper_close(struct clb_backend *be)
{
    if (!be)
        return;
    clb_free(be->tensor_at);
    clb_free(be->experts.first);
    clb_free(be->peer);
    clb_free(be);
}

static bool check(const struct clb_backend_options *o, struct clb_err *err)
{
    if (!o->device_memory)
        return clb_fail(err, CLB_USAGE, "a plan for a GPU that is elsewhere needs its memory");
    return (!o->dense_library && !o->dense_widened && !o->attention_library) ||
           clb_fail(err, CLB_UNSUPPORTED,
                    "what cuBLASLt and cuDNN take is known only where they are; plan without them");
}

static bool paper_open(struct clb_backend **out, const struct clb_backend_options *o,
                       struct clb_err *err)
{
    struct clb_backend *be = check(o, err) ? clb_new(1, sizeof *be, err) : NULL;

    *out = NULL;
    if (!be)
        return false;
    be->major = 8;
    be->budget = be->asked = o->device_memory;
    be->cpu = o->cpu;
    be->offload = o->cpu ? o->offload : CLB_OFFLOAD_COPY;
    be->device = (int)o->devices.id[0];
    be->n_peer = o->devices.n > 1 ? o->devices.n - 1 : 0;
    be->peer = clb_new(be->n_peer, sizeof *be->peer, err);
    for (unsigned i = 0; be->peer && i < be->n_peer; i++) {
        be->peer[i].budget = o->device_memory;
        be->peer[i].link.device = (int)o->devices.id[i + 1];
    }
    if (!be->peer) {
        paper_close(be);
        return false;
    }
    *out = be;
    return true;
}

static bool paper_bind(struct clb_backend *be, const struct clb_weights *w, struct clb_err *err)
{
    be->host = w;
    be->head_bytes = clb_cuda_per_head_bytes(w);
    return clb_cuda_check(be, err) && clb_cuda_place(be, err) && clb_cuda_experts_count(be, err);
}

static const char *paper_describe(const struct clb_backend *be)
{
    return be->n_peer ? "GPUs that are elsewhere" : "a GPU that is elsewhere";
}

static const char *paper_level(const struct clb_backend *be)
{
    (void)be;
    return "";
}

static unsigned paper_threads(const struct clb_backend *be)
{
    (void)be;
    return 1;
}

/* -- what a run would begin with --------------------------------------------------------------- */

static bool paper_reserve(struct clb_backend *be, uint64_t run_bytes, bool *wanted,
                          struct clb_err *err)
{
    (void)be, (void)run_bytes, (void)wanted;
    return clb_fail(err, CLB_USAGE, "the model was loaded for plans: it cannot run");
}

static const char *paper_offload(const struct clb_backend *be)
{
    (void)be;
    return "";
}

/* A run that has not begun is closed with it: there is no such memory. */
static const struct clb_memory *paper_pinned(struct clb_backend *be)
{
    (void)be;
    return NULL;
}

static bool paper_lost(struct clb_backend *be)
{
    (void)be;
    return false;
}

static const struct clb_device_ops device = {
    .bind = paper_bind,
    .available = clb_cuda_available,
    .holds = clb_cuda_holds,
    .plan = clb_cuda_plan,
    .reserve = paper_reserve,
    .offload = paper_offload,
    .acts_host_bytes = clb_cuda_acts_host_bytes,
    .candidates = clb_cuda_most_candidates,
    .lost = paper_lost,
    .kv_shape = clb_cuda_kv_shape,
    .pinned = paper_pinned,
};

/* What comes behind a reserve is not there. */
const struct clb_backend_ops clb_backend_paper = {
    .name = "cuda",
    .device = &device,
    .open = paper_open,
    .close = paper_close,
    .describe = paper_describe,
    .level = paper_level,
    .threads = paper_threads,
    .acts_bytes = clb_cuda_acts_bytes,
};
