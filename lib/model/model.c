#include "lib/model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/crc.h"
#include "lib/base/mem.h"
#include "lib/model/bind.h"
#include "lib/model/pinned.h"
#include "lib/model/resident.h"
#include "lib/model/upload.h"

static uint64_t expert_file_bytes(const struct clb_reader *r)
{
    uint64_t sum = 0; /* blocks do not overlap: at most the file's size */

    for (uint32_t i = 0; i < r->n_expert_layers; i++)
        for (uint32_t e = 0; e < r->experts[i].count; e++)
            sum += r->experts[i].size[e];
    return sum;
}

/* Dense tensors are all read by every pass, so their first touch is now. */
static bool verify_dense(const struct clb_reader *r, struct clb_err *err)
{
    for (uint32_t i = 0; i < r->n_tensors; i++) {
        const struct clb_tensor *t = &r->tensors[i];
        uint32_t crc = clb_crc32(0, r->data + t->offset, t->size);

        if (crc == t->crc32)
            continue;
        clb_fail(err, CLB_BAD_INPUT,
                 "%s: tensor '%s': crc32 is %08" PRIx32 ", but the header says %08" PRIx32, r->path,
                 t->name, crc, t->crc32);
        return clb_err_place(err, r->path, t->name, t->offset);
    }
    return true;
}

static bool open_file(struct clb_model *m, const struct clb_model_source *from,
                      const struct clb_model_options *o, struct clb_err *err)
{
    struct clb_reader *r = &m->reader;

    if (from->path ? !clb_reader_open(r, from->path, err)
                   : !clb_reader_open_memory(r, from->bytes, from->n, err))
        return false;
    if (!clb_arch_runnable(&r->arch, err)) {
        clb_err_place(err, r->path, NULL, CLB_NO_OFFSET);
        return clb_fail_in(err, "%s", r->path);
    }
    m->limit = o->memory;
    if (!clb_resident_begin(m, err))
        return false;
    if (o->verify && !verify_dense(r, err))
        return false;
    return clb_weights_bind(&m->weights, r, err);
}

static bool open_experts(struct clb_model *m, const struct clb_model_options *o,
                         struct clb_err *err)
{
    const struct clb_reader *r = &m->reader;
    bool cache = o->memory > 0 && r->map.size > 0;
    uint64_t least = cache ? clb_experts_least_bytes(r) : 0;
    uint64_t held = cache ? r->size - expert_file_bytes(r) : r->size;

    m->dense_bytes = r->size - expert_file_bytes(r);
    if (m->limit && (held > m->limit || m->limit - held < least))
        return clb_fail(
            err, CLB_NO_SPACE,
            "%s: the memory limit is %" PRIu64 " bytes, but weights need at least %" PRIu64
            ": %" PRIu64 " dense, %" PRIu64 " for experts",
            r->path, m->limit, held + least, m->dense_bytes, held + least - m->dense_bytes);
    if (!clb_resident_lock(m, err))
        return false;
    m->block = clb_new(r->arch.n_expert, sizeof *m->block, err);
    if (!m->block)
        return false;
    clb_ledger_add(&m->ledger[CLB_POOL_WEIGHTS], held, held);
    const struct clb_experts_options eo = {
        .budget = cache ? m->limit - held : 0,
        .verify = o->verify,
        .ledger = &m->ledger[CLB_POOL_WEIGHTS],
        .residence = &m->residence,
        .ahead = m->ahead,
        .again = m->is_large,
    };
    return clb_experts_new(&m->experts, r, &eo, err);
}

static bool slabs_disabled(void)
{
    const char *v = getenv("COLIBRI_MEMORY_POOL_DISABLE");

    return v && !strcmp(v, "1");
}

static void close_backend(struct clb_model *m)
{
    if (m->be)
        m->op->close(m->be);
    m->be = NULL;
}

static void close_backends(struct clb_model *m)
{
    if (m->device_be)
        clb_backend_device()->close(m->device_be);
    close_backend(m);
    clb_backend_cpu.close(m->cpu);
}

/* The device can hold the model, and something beside it. */
static bool try_backend(struct clb_model *m, const struct clb_backend_ops *op,
                        const struct clb_backend_options *o, struct clb_err *err)
{
    m->op = op;
    if (op->device && o->offload != CLB_OFFLOAD_COPY && !m->cpu &&
        !clb_backend_cpu.open(&m->cpu, o, err))
        return false;
    struct clb_backend_options full = *o;
    full.cpu = m->cpu;
    if (!op->open(&m->be, &full, err))
        return false;
    return !op->device ||
           (op->device->bind(m->be, &m->weights, err) && op->device->holds(m->be, err));
}

/* A device if there is one that can, else the CPU. */
static bool auto_backend(struct clb_model *m, const struct clb_backend_options *o,
                         struct clb_err *err)
{
    const struct clb_backend_ops *device = clb_backend_device();

    if (!device)
        return try_backend(m, &clb_backend_cpu, o, err);
    if (!clb_backend_cpu.open(&m->cpu, o, err))
        return false;
    if (try_backend(m, device, o, err)) {
        m->may_change = true;
        return true;
    }
    close_backend(m);
    m->device_unused = device->device->count() > 0;
    snprintf(m->why_cpu, sizeof m->why_cpu, "%s", err->text);
    *err = (struct clb_err){ 0 };
    m->op = &clb_backend_cpu;
    m->be = m->cpu;
    m->cpu = NULL;
    return true;
}

static bool open_backend(struct clb_model *m, const struct clb_model_options *o,
                         struct clb_err *err)
{
    /* Slabs that are kept for later would count against a limit. */
    m->slab_options = (struct clb_slab_options){ .disabled = m->limit > 0 || slabs_disabled(),
                                                 .residence = &m->residence };
    memcpy(m->slab_options.class_bytes, o->slab_classes, sizeof o->slab_classes);
    if (!clb_slab_new(&m->slab, &m->slab_options, &m->ledger[CLB_POOL_ACTIVATIONS], err))
        return false;
    struct clb_backend_options bo = {
        .n_thread = o->n_thread,
        .cpu_level = o->cpu_level,
        .no_routing_cache = o->no_routing_cache,
        .slab = m->slab,
        .numa = &m->residence.numa,
        .slab_options = &m->slab_options,
        .devices = o->devices,
        .dense_library = o->gpu_dense_library,
        .dense_widened = o->gpu_dense_widened,
        .attention_library = o->gpu_attention_library,
        .device_memory = o->gpu_memory,
        .offload = o->offload,
        .device_ledger = &m->device,
    };
    m->device_limit = o->gpu_memory;
    m->upload = o->upload;
    m->upload_arg = o->upload_arg;
    if (!o->ops && (!o->backend || !strcmp(o->backend, "auto")))
        return auto_backend(m, &bo, err);
    const struct clb_backend_ops *op = o->ops ? o->ops : clb_backend_find(o->backend, err);
    return op && try_backend(m, op, &bo, err);
}

static void decide_residence(struct clb_model *m, const struct clb_model_options *o)
{
    struct clb_cpus allowed;

    m->residence.lock = o->mlock;
    if (clb_cpus_allowed(&allowed))
        clb_numa_decide(&m->residence.numa, "", o->numa, &allowed);
}

bool clb_model_open(struct clb_model **out, const struct clb_model_source *from,
                    const struct clb_model_options *o, struct clb_err *err)
{
    struct clb_model *m = clb_new(1, sizeof *m, err);
    struct clb_numa_policy policy;

    *out = NULL;
    if (!m)
        return false;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->called, NULL);
    decide_residence(m, o);
    clb_numa_enter(&m->residence.numa, &policy); /* what is read now lies where it should */
    bool ok = open_file(m, from, o, err) && open_experts(m, o, err) && open_backend(m, o, err);
    clb_numa_leave(&policy);
    if (!ok) {
        clb_model_close(m);
        return false;
    }
    *out = m;
    return true;
}

void clb_model_close(struct clb_model *m)
{
    if (!m)
        return;
    clb_pinned_end(m);
    close_backends(m);
    clb_slab_free(m->slab);
    clb_experts_free(m->experts);
    clb_resident_end(m);
    clb_weights_done(&m->weights);
    clb_reader_close(&m->reader);
    clb_free(m->block);
    clb_numa_done(&m->residence.numa);
    pthread_cond_destroy(&m->called);
    pthread_mutex_destroy(&m->lock);
    clb_free(m);
}

/* Alone: no pass runs without a turn. */
static void wait_for_turn(struct clb_model *m, bool alone)
{
    pthread_mutex_lock(&m->lock);
    uint64_t mine = m->ticket++;
    while (m->serving != mine || (alone && m->n_pass > 0))
        pthread_cond_wait(&m->called, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

void clb_model_take_turn(struct clb_model *m)
{
    wait_for_turn(m, true);
}

void clb_model_end_turn(struct clb_model *m)
{
    pthread_mutex_lock(&m->lock);
    m->serving++;
    pthread_cond_broadcast(&m->called);
    pthread_mutex_unlock(&m->lock);
}

static void count_pass(struct clb_model *m, uint32_t more)
{
    pthread_mutex_lock(&m->lock);
    m->n_pass += more;
    pthread_cond_broadcast(&m->called);
    pthread_mutex_unlock(&m->lock);
}

bool clb_model_take_pass(struct clb_model *m, bool alone)
{
    const struct clb_device_ops *d = m->op->device;

    if (alone || !d) {
        clb_model_take_turn(m);
        return false;
    }
    wait_for_turn(m, false);
    bool shared = d->shares(m->be); /* it stays so while the pass runs: only a turn changes it */
    if (shared)
        count_pass(m, 1);
    clb_model_end_turn(m);
    if (!shared)
        clb_model_take_turn(m);
    return shared;
}

void clb_model_end_pass(struct clb_model *m, bool shared)
{
    if (shared)
        count_pass(m, -1u);
    else
        clb_model_end_turn(m);
}

void clb_model_failed(struct clb_model *m)
{
    if (!m->op->device || !m->op->device->lost(m->be))
        return;
    pthread_mutex_lock(&m->lock);
    m->device_lost = true;
    pthread_mutex_unlock(&m->lock);
}

bool clb_model_has_cache(const struct clb_model *m)
{
    return m->limit > 0 && m->reader.map.size > 0;
}

/* Under a limit the expert cache is as large as the committed bytes allow. */
static bool fit_cache(struct clb_model *m, uint64_t committed, struct clb_err *err)
{
    uint64_t held = clb_model_has_cache(m) ? m->dense_bytes : m->reader.size;
    uint64_t least = clb_model_has_cache(m) ? clb_experts_least_bytes(&m->reader) : 0;
    uint64_t left = m->limit - held; /* open_experts has checked it */

    if (committed > left || left - committed < least)
        return clb_fail(err, CLB_NO_SPACE,
                        "the memory limit is %" PRIu64 " bytes; weights need at least %" PRIu64
                        ", and KV cache, activations and host buffers %" PRIu64
                        "; a shorter context needs less",
                        m->limit, held + least, committed);
    return clb_experts_resize(m->experts, left - committed, err);
}

uint64_t clb_model_device_left(const struct clb_model *m)
{
    uint64_t left = m->op->device->available(m->be);

    return left > m->committed_device ? left - m->committed_device : 0;
}

bool clb_model_kv_shape(const struct clb_model *m, const struct clb_backend_ops *op,
                        struct clb_kv_shape *s, enum clb_kv_dtype dtype, struct clb_err *err)
{
    const struct clb_arch *a = &m->reader.arch;

    if (op->device)
        return op->device->kv_shape(s, a, dtype, err);
    return clb_kv_shape_init(s, a, dtype) ||
           clb_fail(err, CLB_USAGE, "a KV cache of this model is larger than memory can be");
}

/* What the device had to say is kept until the model is closed: others may be reading it. */
static void leave_device(struct clb_model *m, const char *why)
{
    pthread_mutex_lock(&m->lock);
    m->device_be = m->be;
    m->be = m->cpu;
    m->cpu = NULL;
    m->op = &clb_backend_cpu;
    m->device_unused = true;
    snprintf(m->why_cpu, sizeof m->why_cpu, "%s", why);
    pthread_mutex_unlock(&m->lock);
}

bool clb_model_settle(struct clb_model *m, const struct clb_backend_ops *op, const char *why)
{
    clb_model_take_turn(m);
    if (m->may_change && op != m->op)
        leave_device(m, why);
    m->may_change = false;
    bool same = op == m->op;
    clb_model_end_turn(m);
    return same;
}

struct clb_model_place clb_model_place(struct clb_model *m)
{
    pthread_mutex_lock(&m->lock);
    struct clb_model_place p = { .op = m->op,
                                 .be = m->be,
                                 .why_cpu = m->why_cpu,
                                 .offload = m->offload,
                                 .device_lost = m->device_lost,
                                 .device_unused = m->device_unused };
    pthread_mutex_unlock(&m->lock);
    return p;
}

static bool upload(struct clb_model *m, uint64_t run_bytes, struct clb_err *err)
{
    bool ok = clb_upload(m, run_bytes, err);
    char text[sizeof m->offload];

    snprintf(text, sizeof text, "%s%s%s", m->op->device->offload(m->be),
             *m->pinned ? "; copies go " : "", m->pinned);
    pthread_mutex_lock(&m->lock);
    if (strcmp(text, m->offload)) /* somebody may be reading it */
        memcpy(m->offload, text, sizeof text);
    pthread_mutex_unlock(&m->lock);
    return ok;
}

bool clb_model_commit(struct clb_model *m, uint64_t bytes, uint64_t device, struct clb_err *err)
{
    uint64_t sum;
    bool ok;

    clb_model_take_turn(m);
    if (!clb_add(m->committed, bytes, &sum))
        ok = clb_fail_nomem(err, bytes);
    else
        ok = m->limit == 0 || fit_cache(m, sum, err);
    if (ok && m->op->device && device)
        ok = upload(m, m->committed_device + device, err);
    if (ok) {
        m->committed = sum;
        m->committed_device += device;
    }
    clb_model_end_turn(m);
    return ok;
}

void clb_model_release(struct clb_model *m, uint64_t bytes, uint64_t device)
{
    clb_model_take_turn(m);
    m->committed -= bytes;
    m->committed_device -= device;
    clb_model_end_turn(m);
}
