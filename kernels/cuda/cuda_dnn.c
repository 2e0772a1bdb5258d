/* cuda_dnn.c - attention of prompts by cuDNN, where that is asked for: which layers it can do, and
 * which rows of a pass. A run of enough rows of one sequence goes to it: queries in f16, keys and
 * values without pages, and the result as the next product reads it. All other rows, decoding above
 * all, are the kernels' of our own, and so are layers that it cannot do. Its bits depend on how a
 * prompt is cut. */
#include "kernels/cuda/cuda_dnn.h"

#include <stdio.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_call.h"
#include "lib/base/mem.h"

enum { LEAST_ROWS = 32 }; /* fewer do not fill its blocks */
enum { PLANS = 32, WHY = 300 };

/* A handle and its plans: of one set of activations at a time. */
struct clb_cuda_dnn_work {
    void *handle;
    cudaStream_t stream; /* of the activations; NULL: before the first ones */
    struct clb_dnn_plan plan[PLANS];
    uint64_t n_run;
    struct clb_cuda_dnn_work *next; /* of those that are idle */
};

static bool dnn_ok(const struct clb_backend *be, int status, struct clb_err *err, const char *what)
{
    return status == CLB_DNN_SUCCESS ||
           clb_fail(err, CLB_DEVICE, "cuDNN: %s: %s", what, be->dnn.lib.status_text(status));
}

/* -- handles and plans ------------------------------------------------------------------------- */

static void free_work(struct clb_backend *be, struct clb_cuda_dnn_work *w)
{
    for (int i = 0; i < PLANS; i++)
        clb_dnn_plan_free(&w->plan[i], &be->dnn.lib);
    if (w->handle)
        be->dnn.lib.destroy(w->handle);
    clb_free(w);
}

static struct clb_cuda_dnn_work *new_work(struct clb_backend *be, struct clb_err *err)
{
    struct clb_cuda_dnn_work *w = clb_new(1, sizeof *w, err);

    int status = w ? be->dnn.lib.create(&w->handle) : CLB_DNN_SUCCESS;
    if (status == CLB_DNN_SUCCESS)
        return w;
    clb_fail(err, CLB_DEVICE,
             "attention by cuDNN: it does not start: %s; leave attention to the kernels of this "
             "program",
             be->dnn.lib.status_text(status));
    free_work(be, w);
    return NULL;
}

static struct clb_cuda_dnn_work *take_work(struct clb_backend *be, struct clb_err *err)
{
    pthread_mutex_lock(&be->lock);
    struct clb_cuda_dnn_work *w = be->dnn.idle;
    if (w)
        be->dnn.idle = w->next;
    pthread_mutex_unlock(&be->lock);
    return w ? w : new_work(be, err);
}

static void put_work(struct clb_backend *be, struct clb_cuda_dnn_work *w)
{
    pthread_mutex_lock(&be->lock);
    w->next = be->dnn.idle;
    be->dnn.idle = w;
    pthread_mutex_unlock(&be->lock);
}

static struct clb_dnn_shape shape_of(const struct clb_arch *a, uint32_t n_query, uint32_t n_key)
{
    return (struct clb_dnn_shape){ a->n_head,    a->n_kv_head, a->head_dim,
                                   a->value_dim, n_query,      n_key };
}

/* Of that shape, or a new one in the place of the least recently used. The pass at hand may have
 * enqueued that one: it is dropped when nothing runs any more. */
static struct clb_dnn_plan *plan_of(struct clb_backend *be, struct clb_cuda_dnn_work *w,
                                    const struct clb_dnn_shape *s, struct clb_err *err)
{
    struct clb_dnn_plan *p = &w->plan[0];

    for (unsigned i = 0; i < be->dnn.n_plan; i++) {
        if (w->plan[i].plan && !memcmp(&w->plan[i].shape, s, sizeof *s))
            return &w->plan[i];
        if (w->plan[i].used < p->used)
            p = &w->plan[i];
    }
    if (p->plan && !clb_cuda_ok(cudaStreamSynchronize(w->stream), err, "attention by cuDNN"))
        return NULL;
    clb_dnn_plan_free(p, &be->dnn.lib);
    return clb_dnn_plan_new(p, &be->dnn.lib, w->handle, s, CLB_DNN_WORKSPACE, err) ? p : NULL;
}

/* -- which layers ------------------------------------------------------------------------------ */

bool clb_cuda_dnn_open_library(struct clb_backend *be, struct clb_err *err)
{
    if (!clb_cuda_dnn_open(&be->dnn.lib))
        return clb_fail(err, CLB_UNSUPPORTED,
                        "attention by cuDNN: %s; install it, or leave attention to the kernels of "
                        "this program",
                        be->dnn.lib.lib.reason);
    be->dnn.asked = true;
    be->dnn.n_plan = PLANS;
    return true;
}

/* Why none of the model's layers; NULL: layers differ. */
static const char *why_none(const struct clb_backend *be, const struct clb_arch *a)
{
    return be->major < 8                             ? "compute capability below 8.0"
           : a->attention == CLB_ATTN_MLA            ? "latent attention"
           : a->head_dim % 8 || a->value_dim % 8     ? "heads are no multiple of 8"
           : a->head_dim > 256 || a->value_dim > 256 ? "heads are wider than 256"
           : a->attn_softcap > 0                     ? "scores are capped"
                                                     : NULL;
}

static const char *why_not(const struct clb_backend *be, const struct clb_arch *a, uint32_t layer)
{
    const char *none = why_none(be, a);

    return none                           ? none
           : be->host->layer[layer].sinks ? "sinks"
           : a->window[layer]             ? "a window"
           : a->chunk[layer]              ? "chunks"
                                          : NULL;
}

/* One plan of the model's heads, the smallest: whether there are kernels, and all that they need.
 * *why: there are none. */
static bool try_one(struct clb_backend *be, char *why, size_t n, struct clb_err *err)
{
    const struct clb_dnn_shape s = shape_of(be->host->arch, CLB_DNN_LEAST_ROOM, CLB_DNN_LEAST_ROOM);
    struct clb_err e = { 0 };
    struct clb_cuda_dnn_work *w = new_work(be, err);

    if (!w)
        return false;
    put_work(be, w);
    if (plan_of(be, w, &s, &e))
        return true;
    if (e.code != CLB_UNSUPPORTED) {
        *err = e;
        return false;
    }
    snprintf(why, n, "%.*s", (int)n - 1, e.text);
    return true;
}

/* As it will be with a KV cache of that type: `reason` speaks against it, or NULL. */
static void describe(struct clb_backend *be, enum clb_kv_dtype kv, const char *why,
                     const char *reason)
{
    const struct clb_cuda_lib *lib = &be->dnn.lib.lib;
    const uint32_t n_layer = be->host->arch->n_layer, n_take = reason ? 0 : be->dnn.n_layer;
    char *text = be->dnn.text[kv];
    size_t n = (size_t)snprintf(text, CLB_CUDA_TEXT, "%s", be->text);

    n += (size_t)snprintf(text + n, CLB_CUDA_TEXT - n,
                          "; cuDNN %d.%d.%d has attention of prompts in %u of %u layers",
                          lib->major, lib->minor, lib->patch, n_take, n_layer);
    if (n_take < n_layer && n < CLB_CUDA_TEXT)
        snprintf(text + n, CLB_CUDA_TEXT - n, " (others: %s%s%s)", why, *why && reason ? ", " : "",
                 reason ? reason : "");
}

bool clb_cuda_dnn_choose(struct clb_backend *be, struct clb_err *err)
{
    const struct clb_arch *a = be->host->arch;
    char why[WHY] = "";

    if (!be->dnn.asked)
        return true;
    be->dnn.takes = clb_new(a->n_layer, sizeof *be->dnn.takes, err);
    if (!be->dnn.takes)
        return false;
    for (uint32_t i = 0; i < a->n_layer; i++) {
        const char *reason = why_not(be, a, i);

        be->dnn.takes[i] = !reason;
        be->dnn.n_layer += !reason;
        if (reason && !strstr(why, reason)) {
            size_t n = strlen(why);
            snprintf(why + n, sizeof why - n, "%s%s", n ? ", " : "", reason);
        }
    }
    if (be->dnn.n_layer) {
        char none[WHY] = "";

        if (!try_one(be, none, WHY, err))
            return false;
        if (none[0]) {
            be->dnn.n_layer = 0;
            memset(be->dnn.takes, 0, a->n_layer * sizeof *be->dnn.takes);
            memcpy(why, none, sizeof why);
        }
    }
    const bool all_ours = be->dnn.n_layer == 0; /* in any case */
    be->dnn.kv = CLB_KV_F16;
    describe(be, CLB_KV_F16, why, NULL);
    describe(be, CLB_KV_F32, why, all_ours ? NULL : "a KV cache in f32");
    describe(be, CLB_KV_INT8, why, all_ours ? NULL : "a KV cache in int8");
    return true;
}

const char *clb_cuda_dnn_text(const struct clb_backend *be)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&be->lock; /* taking it changes nothing */
    pthread_mutex_lock(lock);
    enum clb_kv_dtype kv = be->dnn.kv;
    pthread_mutex_unlock(lock);
    return be->dnn.text[kv];
}

void clb_cuda_dnn_close_library(struct clb_backend *be)
{
    while (be->dnn.idle) {
        struct clb_cuda_dnn_work *w = be->dnn.idle;

        be->dnn.idle = w->next;
        free_work(be, w);
    }
    clb_free(be->dnn.takes);
    if (be->dnn.asked)
        clb_cuda_dnn_close(&be->dnn.lib);
    be->dnn = (struct clb_cuda_dnn_use){ .asked = false };
}

/* -- activations ------------------------------------------------------------------------------- */

bool clb_cuda_dnn_new(struct clb_backend *be, struct clb_acts *x, struct clb_err *err)
{
    pthread_mutex_lock(&be->lock);
    be->dnn.kv = x->shape.kv_dtype;
    pthread_mutex_unlock(&be->lock);
    if (!clb_cuda_dnn_serves(be, x))
        return true;
    x->dnn.run = clb_new(x->shape.max_seqs, sizeof *x->dnn.run, err);
    if (!x->dnn.run)
        return false;
    x->dnn.work = take_work(be, err);
    if (!x->dnn.work)
        return false;
    x->dnn.work->stream = x->stream;
    return dnn_ok(be, be->dnn.lib.set_stream(x->dnn.work->handle, x->stream), err, "a stream");
}

void clb_cuda_dnn_free(struct clb_backend *be, struct clb_acts *x)
{
    if (x->dnn.work)
        put_work(be, x->dnn.work);
    clb_free(x->dnn.run);
}

/* -- a pass ------------------------------------------------------------------------------------ */

bool clb_cuda_dnn_wants(struct clb_acts *x, uint32_t row, uint32_t n)
{
    const struct clb_pass *p = x->p;
    struct clb_cuda_dnn_rows *d = &x->dnn;

    if (!d->work || n < LEAST_ROWS || d->n_run == x->shape.max_seqs)
        return false;
    for (uint32_t i = 1; i < n; i++)
        if (p->position[row + i] != p->position[row] + i)
            return false;
    int32_t *count = x->here.count + (size_t)d->n_run * 2 * CLB_DNN_APART;
    count[0] = (int32_t)n;
    count[CLB_DNN_APART] = (int32_t)(p->position[row] + n);
    d->run[d->n_run++] =
        (struct clb_cuda_dnn_run){ p->sequence[row], row, n, p->position[row] + n };
    return true;
}

/* Queries in f16; keys and values side by side. */
static void prepare(struct clb_acts *x, const struct clb_cuda_attention *m,
                    const struct clb_cuda_dnn_run *r, uint32_t n_key)
{
    const uint32_t width = m->n_head * m->kv.key_dim;
    const struct clb_cuda_slice q = {
        .n_row = r->n_row,
        .n_head = 1,
        .n = width,
        .from = m->q + r->first_row * m->ld_q,
        .from_row = m->ld_q,
        .half = x->dnn.q,
        .to_row = width,
    };
    const struct clb_cuda_unpage kv = {
        .kv = m->kv,
        .sequence = r->sequence,
        .n_page = (r->n_key + CLB_KV_BLOCK - 1) / CLB_KV_BLOCK,
        .n_key = n_key,
        .key = x->dnn.k,
        .value = x->dnn.v,
    };

    clb_cuda_run_slice(&q, x->stream);
    clb_cuda_run_unpage(&kv, x->stream);
}

static void give(struct clb_acts *x, const struct clb_cuda_attention *m,
                 const struct clb_cuda_dnn_run *r)
{
    const size_t first = r->first_row * m->ld_out;
    const struct clb_cuda_convert out = {
        .n_row = r->n_row,
        .n = m->n_head * m->kv.value_dim,
        .from = x->dnn.out,
        .wide = m->wide ? m->wide + first : NULL,
        .half = m->out ? m->out + first : NULL,
        .ld = m->ld_out,
        .bf16 = m->bf16,
    };

    clb_cuda_run_convert(&out, x->stream);
}

static bool one_run(struct clb_backend *be, struct clb_acts *x, const struct clb_cuda_attention *m,
                    uint32_t i, struct clb_err *err)
{
    const struct clb_cuda_dnn_run *r = &x->dnn.run[i];
    const struct clb_dnn_shape s =
        shape_of(be->host->arch, clb_cuda_dnn_room(r->n_row, x->shape.max_rows),
                 clb_cuda_dnn_room(r->n_key, x->shape.max_context));
    struct clb_dnn_plan *p = plan_of(be, x->dnn.work, &s, err);
    const struct clb_dnn_args a = {
        .q = x->dnn.q,
        .k = x->dnn.k,
        .v = x->dnn.v,
        .out = x->dnn.out,
        .count = x->there.count + (size_t)i * 2 * CLB_DNN_APART,
        .scale = m->scale,
        .workspace = x->dnn.workspace,
    };

    if (!p)
        return false;
    p->used = ++x->dnn.work->n_run;
    prepare(x, m, r, s.n_key);
    if (!clb_dnn_plan_run(p, &be->dnn.lib, x->dnn.work->handle, &a, err))
        return false;
    give(x, m, r);
    return true;
}

void clb_cuda_dnn_mix(struct clb_backend *be, struct clb_acts *x,
                      const struct clb_cuda_attention *m)
{
    struct clb_err err = { 0 };

    for (uint32_t i = 0; i < x->dnn.n_run && !x->failed.code; i++)
        if (!one_run(be, x, m, i, &err))
            x->failed = err; /* the stage tells it */
}
