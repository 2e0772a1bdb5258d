#include "lib/api/api.h"

#include <string.h>

#include "lib/base/crc.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"

static bool take_slab_classes(struct clb_model_options *to, const size_t from[CLB_SLAB_CLASSES],
                              struct clb_err *err)
{
    bool given = from[0] || from[1] || from[2];

    for (int i = 0; i < CLB_SLAB_CLASSES && given; i++)
        if (from[i] == 0 || from[i] % 4096 != 0 || (i > 0 && from[i] <= from[i - 1])) {
            clb_fail(err, CLB_USAGE,
                     "slab_classes[%d] is %zu: must be a multiple of 4096 above the one before", i,
                     from[i]);
            return clb_err_place(err, NULL, "slab_classes", CLB_NO_OFFSET);
        }
    memcpy(to->slab_classes, from, sizeof to->slab_classes);
    return true;
}

static bool take_numa(struct clb_model_options *to, int32_t numa, struct clb_err *err)
{
    static const enum clb_numa_mode mode[] = {
        [COLIBRI_NUMA_DEFAULT] = CLB_NUMA_AUTO,
        [COLIBRI_NUMA_INTERLEAVE] = CLB_NUMA_INTERLEAVE,
        [COLIBRI_NUMA_LOCAL] = CLB_NUMA_LOCAL,
        [COLIBRI_NUMA_OFF] = CLB_NUMA_OFF,
    };

    if (numa < 0 || numa > COLIBRI_NUMA_OFF) {
        clb_fail(err, CLB_USAGE, "numa is %d: must be a value of enum colibri_numa", numa);
        return clb_err_place(err, NULL, "numa", CLB_NO_OFFSET);
    }
    to->numa = mode[numa];
    return true;
}

/* An id twice is refused whatever the backend: with "auto" there may be no GPU that refuses it. */
static bool take_devices(struct clb_devices *to, const struct colibri_load_options *from,
                         struct clb_err *err)
{
    to->n = from->n_devices ? from->n_devices : 1;
    to->id[0] = from->device;
    if (to->n > CLB_DEVICES_MOST) {
        clb_fail(err, CLB_USAGE, "%u devices: at most %d", to->n, CLB_DEVICES_MOST);
        return clb_err_place(err, NULL, "devices", CLB_NO_OFFSET);
    }
    for (uint32_t i = 0; i < from->n_devices; i++) {
        to->id[i] = from->devices[i];
        for (uint32_t k = 0; k < i; k++)
            if (to->id[k] == to->id[i]) {
                clb_fail(err, CLB_USAGE, "device %u is listed twice", to->id[i]);
                return clb_err_place(err, NULL, "devices", CLB_NO_OFFSET);
            }
    }
    return true;
}

/* With "auto" they may stay without effect; who says "cpu" and means a GPU is mistaken. */
static bool check_backend(const struct colibri_load_options *o, struct clb_err *err)
{
    const char *field = o->n_devices               ? "n_devices"
                        : o->device                ? "device"
                        : o->gpu_memory            ? "gpu_memory"
                        : o->gpu_experts           ? "gpu_experts"
                        : o->gpu_dense_library     ? "gpu_dense_library"
                        : o->gpu_dense_widened     ? "gpu_dense_widened"
                        : o->gpu_attention_library ? "gpu_attention_library"
                                                   : NULL;

    if (!field || !o->backend || strcmp(o->backend, "cpu"))
        return true;
    clb_fail(err, CLB_USAGE, "%s does not go with backend 'cpu'", field);
    return clb_err_place(err, NULL, field, CLB_NO_OFFSET);
}

static bool take_options(struct clb_model_options *to, const struct colibri_load_options *from,
                         struct clb_err *err)
{
    struct colibri_load_options o;

    if (!clb_api_take(&o, sizeof o, from, "load_options", err))
        return false;
    if (o.threads > CLB_POOL_MOST) {
        clb_fail(err, CLB_USAGE, "%u threads: at most %d", o.threads, CLB_POOL_MOST);
        return clb_err_place(err, NULL, "threads", CLB_NO_OFFSET);
    }
    if (o.gpu_experts < 0 || o.gpu_experts > COLIBRI_GPU_EXPERTS_AUTO) {
        clb_fail(err, CLB_USAGE, "gpu_experts is %d: must be a value of enum colibri_gpu_experts",
                 o.gpu_experts);
        return clb_err_place(err, NULL, "gpu_experts", CLB_NO_OFFSET);
    }
    *to = (struct clb_model_options){
        .n_thread = o.threads,
        .cpu_level = o.cpu_level,
        .backend = o.backend,
        .memory = o.memory,
        .verify = o.verify,
        .no_routing_cache = o.no_routing_cache,
        .mlock = o.mlock,
        .gpu_dense_library = o.gpu_dense_library,
        .gpu_dense_widened = o.gpu_dense_widened,
        .gpu_attention_library = o.gpu_attention_library,
        .gpu_memory = o.gpu_memory,
        .offload = (enum clb_offload)o.gpu_experts,
        .upload = o.on_upload,
        .upload_arg = o.on_upload_arg,
    };
    return check_backend(&o, err) && take_numa(to, o.numa, err) &&
           take_slab_classes(to, o.slab_classes, err) && take_devices(&to->devices, &o, err);
}

static bool open_tokenizer(struct colibri_model *model, bool verify, struct clb_err *err)
{
    const struct clb_reader *r = &model->m->reader;
    const struct clb_section *s = clb_reader_section(r, "tokenizer.tables");

    if (!s)
        return true;
    if (verify && clb_crc32(0, r->data + s->offset, s->size) != s->crc32) {
        clb_fail(err, CLB_BAD_INPUT, "%s: section '%s': the checksum differs from the header's",
                 r->path, s->name);
        return clb_err_place(err, r->path, s->name, s->offset);
    }
    if (clb_tokenizer_open(&model->tokenizer, r->data + s->offset, s->size, err))
        return true;
    clb_err_place(err, r->path, s->name, s->offset);
    return clb_fail_in(err, "%s", r->path);
}

static struct colibri_model *load(const struct clb_model_source *from,
                                  const struct colibri_load_options *options,
                                  const struct clb_backend_ops *ops, struct clb_err *err)
{
    struct clb_model_options o;
    struct colibri_model *model = NULL;

    if (take_options(&o, options, err))
        model = clb_new(1, sizeof *model, err);
    if (!model)
        return NULL;
    o.ops = ops;
    if (clb_model_open(&model->m, from, &o, err) && open_tokenizer(model, o.verify, err))
        return model;
    colibri_unload_model(model);
    return NULL;
}

struct colibri_model *clb_api_load(const struct clb_model_source *from,
                                   const struct colibri_load_options *options,
                                   const struct clb_backend_ops *ops, struct colibri_error *error)
{
    struct clb_err err;
    struct colibri_model *model = load(from, options, ops, &err);

    if (model)
        return model;
    clb_api_fail(&err);
    if (error)
        clb_api_error(error, &err);
    return NULL;
}

struct colibri_model *colibri_load_model_ex(const char *path,
                                            const struct colibri_load_options *options,
                                            struct colibri_error *error)
{
    struct clb_model_source from = { .path = path };

    if (path)
        return clb_api_load(&from, options, NULL, error);
    clb_api_null("path");
    if (error)
        *error = *colibri_last_error_info();
    return NULL;
}

struct colibri_model *colibri_load_model(const char *path)
{
    return colibri_load_model_ex(path, NULL, NULL);
}

struct colibri_model *colibri_load_model_from_memory(const void *bytes, size_t n,
                                                     const struct colibri_load_options *options,
                                                     struct colibri_error *error)
{
    struct clb_model_source from = { .bytes = bytes, .n = n };

    if (bytes)
        return clb_api_load(&from, options, NULL, error);
    clb_api_null("bytes");
    if (error)
        *error = *colibri_last_error_info();
    return NULL;
}

void colibri_unload_model(struct colibri_model *model)
{
    if (!model)
        return;
    struct clb_chat *chat = model->chat;
    if (chat)
        chat->free(chat);
    clb_tokenizer_close(model->tokenizer);
    clb_model_close(model->m);
    clb_free(model);
}

bool colibri_address_in_model(const struct colibri_model *model, const void *address,
                              uint64_t *offset, const char **path)
{
    const struct clb_reader *r = model ? &model->m->reader : NULL;
    uintptr_t at = (uintptr_t)address, start = r ? (uintptr_t)r->data : 0;

    if (!r || at < start || at - start >= r->size)
        return false;
    if (offset)
        *offset = at - start;
    if (path)
        *path = r->path;
    return true;
}

/* -- information ------------------------------------------------------------------------------- */

/* The first matrix of the dense part. */
static const char *dense_dtype(const struct clb_reader *r)
{
    for (uint32_t i = 0; i < r->n_tensors; i++)
        if (r->tensors[i].spec.form == CLB_FORM_MATRIX && r->tensors[i].spec.role != CLB_OUTPUT)
            return clb_dtype_name(r->tensors[i].dtype);
    return clb_dtype_name(CLB_F32);
}

static bool is_rope(enum clb_role role)
{
    return role == CLB_ROPE_INV_FREQ || role == CLB_ROPE_INV_FREQ_LONG;
}

/* A tied output is the embedding once more; of the embedding a token reads one row. */
static void count_dense(struct colibri_model_info *info, const struct clb_reader *r)
{
    for (uint32_t i = 0; i < r->n_tensors; i++) {
        const struct clb_tensor *t = &r->tensors[i];
        uint64_t n = (uint64_t)t->spec.rows * t->spec.cols;

        if (t->spec.role == CLB_EMBED) {
            info->parameters += n;
            info->active_parameters += t->spec.cols;
            info->bytes_per_token += clb_rows_bytes(t->dtype, 1, t->spec.cols);
            continue;
        }
        if (!is_rope(t->spec.role)) {
            info->parameters += t->spec.role == CLB_OUTPUT && r->arch.tied_embeddings ? 0 : n;
            info->active_parameters += n;
        }
        info->bytes_per_token += t->size;
    }
}

static void count_experts(struct colibri_model_info *info, const struct clb_reader *r)
{
    for (uint32_t i = 0; i < r->n_expert_layers; i++) {
        const struct clb_expert_layer *l = &r->experts[i];
        uint32_t top_k = clb_arch_layer_top_k(&r->arch, l->layer);
        uint64_t n = 0;

        for (int p = 0; p < CLB_PARTS; p++)
            n += (uint64_t)l->part[p].rows * l->part[p].cols +
                 (l->part[p].bias_at ? l->part[p].rows : 0);
        info->parameters += n * l->count;
        info->active_parameters += n * top_k;
        info->bytes_per_token += l->size[0] * top_k;
    }
}

static void tell_generation(struct colibri_model_info *info, const struct clb_generation *g)
{
    info->bos_token = g->bos_token;
    info->n_eos = g->n_eos;
    info->n_text_eos = g->n_text_eos;
    for (uint32_t i = 0; i < 16; i++)
        info->eos_token[i] = i < g->n_eos ? g->eos_token[i] : -1;
    info->temperature = g->temperature;
    info->top_p = g->top_p;
    info->min_p = g->min_p;
    info->repetition_penalty = g->repetition_penalty;
    info->top_k = g->top_k;
}

void colibri_describe_devices(char *text, size_t size)
{
    const struct clb_backend_ops *op = clb_backend_device();

    if (size == 0)
        return;
    *text = '\0';
    if (op)
        op->device->about(text, size);
}

int colibri_model_info(const struct colibri_model *model, struct colibri_model_info *info)
{
    struct clb_err err;

    if (!model)
        return clb_api_null("model");
    if (!info)
        return clb_api_null("info");
    const struct clb_model_place place = clb_model_place(model->m);
    const struct clb_reader *r = &model->m->reader;
    const struct clb_arch *a = &r->arch;
    struct colibri_model_info full = {
        .n_layer = a->n_layer,
        .n_moe_layer = r->n_expert_layers,
        .hidden_size = a->hidden_size,
        .vocab_size = a->vocab_size,
        .max_positions = a->max_positions,
        .n_expert = a->n_expert,
        .experts_per_token = a->top_k,
        .expert_size = a->expert_size,
        .n_head = a->n_head,
        .n_kv_head = a->n_kv_head,
        .head_dim = a->head_dim,
        .file_bytes = r->size,
        .expert_dtype = clb_dtype_name(r->experts[0].part[CLB_GATE].dtype),
        .dense_dtype = dense_dtype(r),
        .backend = place.op->name,
        .cpu_level = place.op->level(place.be),
        .device = place.op->describe(place.be),
        .no_device = place.why_cpu,
        .offload = place.offload,
        .device_lost = place.device_lost,
        .device_unused = place.device_unused,
        .threads = place.op->threads(place.be),
        .has_tokenizer = model->tokenizer != NULL,
        .has_chat_template = clb_reader_section(r, "chat_template") != NULL,
    };
    count_dense(&full, r);
    count_experts(&full, r);
    tell_generation(&full, &r->generation);
    return clb_api_give(info, &full, sizeof full, "model_info", &err) ? COLIBRI_OK
                                                                      : clb_api_fail(&err);
}
