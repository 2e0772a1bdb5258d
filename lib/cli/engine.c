#include "lib/cli/engine.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/cli/opt.h"
#include "lib/cli/report.h"

bool clb_engine_fail(struct clb_err *err)
{
    const struct colibri_error *e = colibri_last_error_info();

    clb_fail(err, (enum clb_code)e->code, "%s", e->text);
    if (!*e->file && (!strcmp(e->field, "device") || !strcmp(e->field, "devices")))
        clb_fail_in(err, "--device");
    if (!*e->file && !strcmp(e->field, "gpu_memory"))
        clb_fail_in(err, "--gpu-memory");
    err->sys = e->sys;
    return clb_err_place(err, e->file, e->field, e->offset);
}

int32_t clb_engine_kv_dtype(const char *word)
{
    return !word                  ? COLIBRI_KV_DEFAULT
           : !strcmp(word, "f32") ? COLIBRI_KV_F32
           : !strcmp(word, "f16") ? COLIBRI_KV_F16
                                  : COLIBRI_KV_INT8;
}

const char *clb_engine_kv_word(int32_t dtype)
{
    return dtype == COLIBRI_KV_F32 ? "f32" : dtype == COLIBRI_KV_F16 ? "f16" : "int8";
}

int32_t clb_engine_numa(const char *word)
{
    return !word                         ? COLIBRI_NUMA_DEFAULT
           : !strcmp(word, "interleave") ? COLIBRI_NUMA_INTERLEAVE
           : !strcmp(word, "local")      ? COLIBRI_NUMA_LOCAL
                                         : COLIBRI_NUMA_OFF;
}

static void show_upload(void *where, uint64_t done, uint64_t total)
{
    struct clb_where *w = where;

    if (!w->uploading)
        clb_progress_start("to the GPU", total, false);
    clb_progress_at(done);
    w->uploading = done < total;
    if (!w->uploading)
        clb_progress_done();
}

enum { CLB_DEVICES = sizeof((struct colibri_load_options *)0)->devices / sizeof(uint32_t) };

/* "2" or "0-3", of n characters, behind those that are there. */
static bool add_devices(struct colibri_load_options *o, const char *text, size_t n)
{
    const char *dash = memchr(text, '-', n);
    size_t n_first = dash ? (size_t)(dash - text) : n;
    char word[16] = "";
    uint64_t from, to;

    if (n >= sizeof word)
        return false;
    memcpy(word, text, n);
    word[n_first] = 0;
    if (!clb_parse_uint(word, 0, 1023, &from) ||
        !clb_parse_uint(dash ? word + n_first + 1 : word, from, 1023, &to) ||
        to - from >= CLB_DEVICES - o->n_devices)
        return false;
    while (from <= to)
        o->devices[o->n_devices++] = (uint32_t)from++;
    return true;
}

static bool parse_devices(struct colibri_load_options *o, const char *text)
{
    for (size_t n;; text += n + 1) {
        n = strcspn(text, ",");
        if (!add_devices(o, text, n))
            return false;
        if (!text[n])
            return true;
    }
}

/* The next option of a GPU that was given, from *i on; NULL: no more. */
static const char *gpu_option(const struct clb_where *w, size_t *i)
{
    const struct {
        const char *name;
        bool given;
    } all[] = {
        { "--device", w->device != NULL },
        { "--gpu-memory", w->gpu_memory > 0 },
        { "--gpu-experts", w->gpu_experts != NULL },
        { "--gpu-dense", w->gpu_dense != NULL },
        { "--attention", w->attention != NULL },
    };

    while (*i < sizeof all / sizeof *all)
        if (all[(*i)++].given)
            return all[*i - 1].name;
    return NULL;
}

bool clb_engine_names_where(const struct clb_where *w)
{
    size_t first = 0;

    return w->backend || gpu_option(w, &first);
}

const char *clb_engine_cpu_note(char text[CLB_CPU_NOTE], const struct clb_where *w,
                                const struct colibri_model_info *info)
{
    const char *name;
    size_t i = 0, n = 0, at = 0;

    text[0] = 0;
    if (strcmp(info->backend, "cpu"))
        return text;
    if (*info->no_device)
        at = (size_t)snprintf(text, CLB_CPU_NOTE, "no GPU: %s", info->no_device);
    for (; at < CLB_CPU_NOTE && (name = gpu_option(w, &i)); n++)
        at += (size_t)snprintf(text + at, CLB_CPU_NOTE - at, "%s%s",
                               n    ? ", "
                               : at ? "; without effect: "
                                    : "without effect: ",
                               name);
    return text;
}

void clb_engine_warn_cpu(const char *program, const struct clb_where *w,
                         const struct colibri_model_info *info)
{
    char note[CLB_CPU_NOTE];
    size_t first = 0;

    if (info->device_unused && gpu_option(w, &first))
        clb_warn(program, "the CPU is used; %s", clb_engine_cpu_note(note, w, info));
}

bool clb_engine_where(struct colibri_load_options *o, const struct clb_where *w,
                      struct clb_err *err)
{
    size_t first = 0;
    const char *name = gpu_option(w, &first);

    if (name && w->backend && !strcmp(w->backend, "cpu"))
        return clb_fail(err, CLB_USAGE, "%s does not go with --backend cpu", name);
    o->backend = w->backend;
    o->gpu_memory = w->gpu_memory;
    o->gpu_experts = !w->gpu_experts || !strcmp(w->gpu_experts, "copy") ? COLIBRI_GPU_EXPERTS_COPY
                     : !strcmp(w->gpu_experts, "cpu")                   ? COLIBRI_GPU_EXPERTS_CPU
                                                                        : COLIBRI_GPU_EXPERTS_AUTO;
    o->gpu_dense_library = w->gpu_dense && !strcmp(w->gpu_dense, "cublas");
    o->gpu_attention_library = w->attention && !strcmp(w->attention, "cudnn");
    o->gpu_dense_widened = w->gpu_dense && !strcmp(w->gpu_dense, "f16");
    if (!w->device || parse_devices(o, w->device))
        return true;
    return clb_fail(err, CLB_USAGE,
                    "--device: '%s' is not a list of at most %d numbers from 0 to 1023 (0,2-3)",
                    w->device, CLB_DEVICES);
}

void clb_engine_show_upload(struct colibri_load_options *o, struct clb_where *w)
{
    o->on_upload = show_upload;
    o->on_upload_arg = w;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* One id from `word` (no white space in it); UINT64_MAX when it is none. */
static uint64_t parse_id(struct clb_str word, uint32_t n_vocab)
{
    uint64_t id = 0;

    for (size_t i = 0; i < word.n; i++) {
        if (word.p[i] < '0' || word.p[i] > '9')
            return UINT64_MAX;
        id = id * 10 + (uint64_t)(word.p[i] - '0');
        if (id >= n_vocab)
            return UINT64_MAX;
    }
    return id;
}

bool clb_engine_parse_ids(int32_t **ids, size_t *n, struct clb_str text, uint32_t n_vocab,
                          struct clb_err *err)
{
    size_t room = 0;

    *ids = NULL;
    *n = 0;
    for (size_t at = 0, end; at < text.n; at = end + 1) {
        for (end = at; end < text.n && !is_space(text.p[end]);)
            end++;
        struct clb_str word = { text.p + at, end - at };
        if (word.n == 0)
            continue;
        uint64_t id = parse_id(word, n_vocab);
        if (id >= n_vocab) {
            clb_fail(err, CLB_BAD_INPUT, "token %zu: '%.*s' is not an id from 0 to %u", *n + 1,
                     word.n > 40 ? 40 : (int)word.n, word.p, n_vocab - 1);
            goto failed;
        }
        if (*n == room) {
            room = room ? room * 2 : 256;
            int32_t *more = clb_grow(*ids, room, sizeof **ids, err);
            if (!more)
                goto failed;
            *ids = more;
        }
        (*ids)[(*n)++] = (int32_t)id;
    }
    return true;
failed:
    clb_free(*ids);
    *ids = NULL;
    *n = 0;
    return false;
}
