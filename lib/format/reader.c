/* reader.c - opening a colibri.bin, and access to its blocks. */
#include "lib/format/reader.h"

#include <stdio.h>

#include "lib/base/crc.h"
#include "lib/base/mem.h"
#include "lib/format/reader_internal.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "colibri.bin is mapped as it is: a little-endian machine is needed"
#endif

static uint64_t load_le(const uint8_t *p, int bytes)
{
    uint64_t v = 0;

    for (int i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << 8 * i;
    return v;
}

/* What the first bytes of some other file look like, so that the message can say so. */
static const char *guess(const uint8_t *p, size_t n)
{
    static const struct {
        const char *start, *what;
    } known[] = {
        { "version https://git-lfs", "a Git LFS pointer: fetch the real file with 'git lfs pull'" },
        { "GGUF", "a GGUF file: convert the original checkpoint with colibri-convert" },
        { "PK\003\004", "a zip archive, perhaps a PyTorch checkpoint: safetensors are needed" },
        { "<", "a web page or XML, not a model: was the download refused?" },
        { "\177ELF", "a program" },
        { "{", "JSON, not a model" },
    };
    struct clb_str s = { (const char *)p, n };

    if (n == 0)
        return "an empty file";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (clb_str_starts(s, known[i].start))
            return known[i].what;
    if (n > 9 && load_le(p, 8) < n && p[8] == '{')
        return "a safetensors file: convert its folder with colibri-convert";
    return "not a colibri model";
}

static bool fail_at(struct clb_reader *r, struct clb_err *err, uint64_t offset, const char *field)
{
    return clb_err_place(err, r->path, field, offset);
}

/* The 24 bytes before the JSON. Sets r->json. */
static bool read_prefix(struct clb_reader *r, struct clb_err *err)
{
    const uint8_t *p = r->data;
    uint64_t version, json, room;

    if (r->size < sizeof CLB_MAGIC || memcmp(p, CLB_MAGIC, sizeof CLB_MAGIC)) {
        clb_fail(err, CLB_BAD_INPUT, "this is %s", guess(p, r->size));
        return fail_at(r, err, 0, "magic");
    }
    if (r->size < CLB_PREFIX_BYTES) {
        clb_fail(err, CLB_BAD_INPUT, "the file is cut short: %llu bytes, the header needs more",
                 (unsigned long long)r->size);
        return fail_at(r, err, r->size, "header");
    }
    version = load_le(p + 8, 4);
    if (version != CLB_FORMAT_VERSION) {
        clb_fail(err, CLB_BAD_INPUT, "format %llu, but this program reads format %d%s",
                 (unsigned long long)version, CLB_FORMAT_VERSION,
                 version > CLB_FORMAT_VERSION ? ": a newer colibri is needed" : "");
        return fail_at(r, err, 8, "format");
    }
    json = load_le(p + 16, 8);
    room = r->size - CLB_PREFIX_BYTES;
    if (json == 0 || json > room || (CLB_PREFIX_BYTES + json) % CLB_PAGE) {
        clb_fail(err, CLB_BAD_INPUT, "header length %llu is wrong: the file has %llu bytes%s",
                 (unsigned long long)json, (unsigned long long)r->size,
                 json > room ? " (cut short?)" : "");
        return fail_at(r, err, 16, "header length");
    }
    r->json = (struct clb_str){ (const char *)p + CLB_PREFIX_BYTES, (size_t)json };
    uint32_t want = (uint32_t)load_le(p + 12, 4), got = clb_crc32(0, r->json.p, r->json.n);
    if (want != got) {
        clb_fail(err, CLB_BAD_INPUT, "the header is damaged: crc32 %08x, expected %08x", got, want);
        return fail_at(r, err, 12, "header crc32");
    }
    while (r->json.n && r->json.p[r->json.n - 1] == ' ')
        r->json.n--;
    return true;
}

static bool open_bytes(struct clb_reader *r, struct clb_err *err)
{
    uint64_t data_at;

    if (!read_prefix(r, err))
        return clb_fail_in(err, "%s", r->path);
    data_at = CLB_PREFIX_BYTES + load_le(r->data + 16, 8);
    if (!clb_header_parse(r, err))
        return false; /* names the file itself */
    if (!clb_header_check(r, data_at, err)) {
        if (err->code == CLB_BAD_INPUT)
            clb_err_place(err, r->path, NULL, CLB_NO_OFFSET);
        return clb_fail_in(err, "%s", r->path);
    }
    return true;
}

bool clb_reader_open(struct clb_reader *r, const char *path, struct clb_err *err)
{
    *r = (struct clb_reader){ .map = { .fd = -1 } };
    if (!clb_mapfile_open(&r->map, path, err))
        return false;
    r->data = r->map.data;
    r->size = r->map.size;
    r->path = r->map.path;
    if (open_bytes(r, err))
        return true;
    clb_reader_close(r);
    return false;
}

bool clb_reader_open_memory(struct clb_reader *r, const void *bytes, size_t n, struct clb_err *err)
{
    *r = (struct clb_reader){ .map = { .fd = -1 }, .data = bytes, .size = n, .path = "memory" };
    if ((uintptr_t)bytes % CLB_ALIGN)
        return clb_fail(err, CLB_USAGE, "a model in memory must be aligned to %d bytes", CLB_ALIGN);
    if (open_bytes(r, err))
        return true;
    clb_reader_close(r);
    return false;
}

void clb_reader_close(struct clb_reader *r)
{
    for (uint32_t l = 0; l < r->n_expert_layers; l++) {
        clb_free(r->experts[l].offset);
        clb_free(r->experts[l].size);
        clb_free(r->experts[l].crc32);
    }
    for (uint32_t i = 0; i < r->n_sources; i++)
        clb_free(r->sources[i].file);
    for (uint32_t i = 0; i < r->n_ignored; i++)
        clb_free((char *)(uintptr_t)r->ignored_keys[i].p);
    clb_free(r->experts);
    clb_free(r->tensors);
    clb_free(r->sections);
    clb_free(r->sources);
    clb_free(r->ignored_keys);
    clb_mapfile_close(&r->map);
    *r = (struct clb_reader){ .map = { .fd = -1 } };
}

const struct clb_tensor *clb_reader_find(const struct clb_reader *r, enum clb_role role,
                                         uint32_t layer)
{
    for (uint32_t i = 0; i < r->n_tensors; i++)
        if (r->tensors[i].spec.role == role && r->tensors[i].spec.layer == layer)
            return &r->tensors[i];
    return NULL;
}

const void *clb_reader_data(const struct clb_reader *r, const struct clb_tensor *t)
{
    return t ? r->data + t->offset : NULL;
}

static const int8_t *book(const struct clb_reader *r, enum clb_dtype t)
{
    return t == CLB_INT4 ? r->code_int4 : t == CLB_MXFP4 ? r->code_mxfp4 : NULL;
}

/* Row scales and biases are 64-byte aligned in the file, and the file is in memory. */
static const float *floats(const uint8_t *at)
{
    return (const float *)(const void *)at;
}

struct clb_matrix clb_reader_matrix(const struct clb_reader *r, const struct clb_tensor *t)
{
    if (!t)
        return (struct clb_matrix){ .tiles = NULL };
    return (struct clb_matrix){
        .dtype = t->dtype,
        .rows = t->spec.rows,
        .cols = t->spec.cols,
        .tiles = r->data + t->offset,
        .row_scale = t->scale_offset ? floats(r->data + t->scale_offset) : NULL,
        .book = book(r, t->dtype),
    };
}

const struct clb_expert_layer *clb_reader_experts(const struct clb_reader *r, uint32_t layer)
{
    for (uint32_t l = 0; l < r->n_expert_layers; l++)
        if (r->experts[l].layer == layer)
            return &r->experts[l];
    return NULL;
}

struct clb_matrix clb_expert_matrix(const struct clb_reader *r, const struct clb_expert_layer *l,
                                    enum clb_part part, const uint8_t *block)
{
    const struct clb_expert_part *p = &l->part[part];

    return (struct clb_matrix){
        .dtype = p->dtype,
        .rows = p->rows,
        .cols = p->cols,
        .tiles = block + p->at,
        .row_scale = p->scale_at ? floats(block + p->scale_at) : NULL,
        .bias = p->bias_at ? floats(block + p->bias_at) : NULL,
        .book = book(r, p->dtype),
    };
}

const struct clb_section *clb_reader_section(const struct clb_reader *r, const char *name)
{
    for (uint32_t i = 0; i < r->n_sections; i++)
        if (!strcmp(r->sections[i].name, name))
            return &r->sections[i];
    return NULL;
}
