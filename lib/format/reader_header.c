/* reader_header.c - the JSON header to structs. Structure and counts are checked here, while
 * reading, so that messages carry the place in the text; places in the file are checked by
 * reader_check.c.
 *
 * The descriptor decides how many tensors and experts there must be, so it stands before them in
 * the file and nothing is ever allocated from a length that the file merely claims. */
#include <math.h>
#include <stdio.h>

#include "lib/base/mem.h"
#include "lib/format/layout.h"
#include "lib/format/reader_internal.h"

static const char *const size_keys[5] = { "num_experts", "top_k", "hidden_size", "vocab_size",
                                          "max_positions" };

/* A missing value inside an object. Always false. */
bool clb_header_missing(struct clb_header *h, const char *what, const char *key)
{
    return clb_json_fail(&h->j, "%s: '%s' is missing", what, key);
}

bool clb_header_no_memory(struct clb_header *h)
{
    return clb_json_fail(&h->j, "out of memory");
}

/* Index of key in a list that ends with NULL; -1: not there. */
int clb_header_index(struct clb_str key, const char *const *list)
{
    for (int i = 0; list[i]; i++)
        if (clb_str_is(key, list[i]))
            return i;
    return -1;
}

uint32_t clb_header_crc(struct clb_header *h)
{
    return (uint32_t)clb_json_u64(&h->j, UINT32_MAX);
}

uint64_t clb_header_place(struct clb_header *h)
{
    return clb_json_u64(&h->j, INT64_MAX);
}

/* Copies a string into a buffer of `room`, cut if need be. */
static void read_text(struct clb_header *h, char *out, size_t room)
{
    struct clb_str s = clb_json_string(&h->j);
    size_t n = s.n < room ? s.n : room - 1;

    if (clb_json_ok(&h->j) && n)
        memcpy(out, s.p, n);
}

/* A copy of a string on the heap, terminated; NULL after a failure. */
static char *read_copy(struct clb_header *h, size_t *n)
{
    struct clb_str s = clb_json_string(&h->j);
    char *copy = clb_json_ok(&h->j) ? clb_new(s.n + 1, 1, &h->oom) : NULL;

    if (clb_json_ok(&h->j) && !copy)
        clb_header_no_memory(h);
    if (copy && s.n)
        memcpy(copy, s.p, s.n);
    *n = s.n;
    return copy;
}

/* -- the top level ---------------------------------------------------------------------------- */

static void read_format(struct clb_header *h)
{
    uint64_t v = clb_json_u64(&h->j, UINT32_MAX);

    if (clb_json_ok(&h->j) && v != CLB_FORMAT_VERSION)
        clb_json_fail(&h->j, "'format' is %llu, but the first bytes of the file say %d",
                      (unsigned long long)v, CLB_FORMAT_VERSION);
}

/* Version 1 knows no words: what a file needs beyond it must not be guessed. */
static void read_requires(struct clb_header *h)
{
    clb_json_array(&h->j);
    while (clb_json_item(&h->j)) {
        struct clb_str s = clb_json_string(&h->j);
        if (clb_json_ok(&h->j))
            clb_json_fail(&h->j, "the file requires '%.*s', which this program does not know",
                          s.n > 60 ? 60 : (int)s.n, s.p);
    }
}

static void read_converter(struct clb_header *h)
{
    read_text(h, h->r->converter, sizeof h->r->converter);
}

static void read_scale(struct clb_header *h)
{
    read_text(h, h->r->scale, sizeof h->r->scale);
}

static void read_group(struct clb_header *h)
{
    uint64_t v = clb_json_u64(&h->j, UINT32_MAX);

    if (clb_json_ok(&h->j) && v != CLB_GROUP)
        clb_json_fail(&h->j, "'activation_group' is %llu, but this program knows only %d",
                      (unsigned long long)v, CLB_GROUP);
}

/* Padding must be exactly zero, so a book has a 0; -128 has no positive twin in the kernels. */
static void read_book(struct clb_header *h, int8_t *book)
{
    int i = 0;
    bool zero = false;

    clb_json_array(&h->j);
    while (clb_json_item(&h->j)) {
        int64_t v = clb_json_i64(&h->j, -127, 127);
        if (i < 16)
            book[i] = (int8_t)v;
        zero |= v == 0;
        i++;
    }
    if (clb_json_ok(&h->j) && (i != 16 || !zero))
        clb_json_fail(&h->j, "a book must have 16 values of -127 to 127, and a 0 among them");
}

static void read_code(struct clb_header *h)
{
    struct clb_str key;

    clb_json_object(&h->j);
    while (clb_json_key(&h->j, &key)) {
        if (clb_str_is(key, "int4")) {
            read_book(h, h->r->code_int4);
            h->has_int4 = true;
        } else if (clb_str_is(key, "mxfp4")) {
            read_book(h, h->r->code_mxfp4);
            h->has_mxfp4 = true;
            if (clb_json_ok(&h->j) && memcmp(h->r->code_mxfp4, clb_book_mxfp4, 16)) {
                snprintf(h->field, sizeof h->field, "code.mxfp4");
                clb_json_fail(&h->j, "'code.mxfp4' is not the one book that mxfp4 has");
            }
        } else {
            clb_json_skip(&h->j, NULL);
        }
    }
}

static void read_architecture(struct clb_header *h)
{
    struct clb_reader *r = h->r;
    struct clb_err err = { 0 };

    if (!clb_arch_read(&r->arch, &h->j))
        return;
    if (!clb_arch_check(&r->arch, &err)) {
        snprintf(h->field, sizeof h->field, "architecture.%.100s", err.field);
        clb_json_fail(&h->j, "%s", err.text);
        return;
    }
    r->n_tensors = clb_arch_tensor_count(&r->arch);
    r->tensors = clb_new(r->n_tensors, sizeof *r->tensors, &h->oom);
    r->experts = clb_new(r->arch.n_layer, sizeof *r->experts, &h->oom);
    if (!r->tensors || !r->experts) {
        r->n_tensors = 0;
        clb_header_no_memory(h);
        return;
    }
    for (uint32_t i = 0; i < r->n_tensors; i++) {
        clb_arch_tensor(&r->arch, i, &r->tensors[i].spec);
        clb_spec_name(&r->tensors[i].spec, r->tensors[i].name);
    }
}

static int32_t read_id(struct clb_header *h)
{
    return (int32_t)clb_json_u64(&h->j,
                                 h->r->arch.vocab_size ? h->r->arch.vocab_size - 1 : INT32_MAX);
}

static float read_real(struct clb_header *h, double max)
{
    double v = clb_json_f64(&h->j);

    if (clb_json_ok(&h->j) && (v < 0 || v > max))
        clb_json_fail(&h->j, "%g is out of range (0 to %g)", v, max);
    return (float)v;
}

static void add_eos(struct clb_header *h, int32_t id)
{
    struct clb_generation *g = &h->r->generation;

    if (g->n_eos < sizeof g->eos_token / sizeof *g->eos_token)
        g->eos_token[g->n_eos++] = id;
    else
        clb_json_fail(&h->j, "more than 16 end tokens");
}

static void read_generation(struct clb_header *h)
{
    static const char *const names[] = { "bos_token", "eos_token",      "temperature",
                                         "top_p",     "min_p",          "repetition_penalty",
                                         "top_k",     "text_eos_token", NULL };
    struct clb_generation *g = &h->r->generation;
    struct clb_str key;
    int32_t text_eos = -1;

    clb_json_object(&h->j);
    while (clb_json_key(&h->j, &key)) {
        switch (clb_header_index(key, names)) {
        case 0:
            g->bos_token = read_id(h);
            break;
        case 1:
            clb_json_array(&h->j);
            while (clb_json_item(&h->j))
                add_eos(h, read_id(h));
            break;
        case 2:
            g->temperature = read_real(h, 1e6);
            break;
        case 3:
            g->top_p = read_real(h, 1);
            break;
        case 4:
            g->min_p = read_real(h, 1);
            break;
        case 5:
            g->repetition_penalty = read_real(h, 1e6);
            break;
        case 6:
            g->top_k = (int32_t)clb_json_u64(&h->j, INT32_MAX);
            break;
        case 7:
            text_eos = read_id(h);
            break;
        default:
            clb_json_skip(&h->j, NULL);
        }
    }
    if (text_eos >= 0 && clb_json_ok(&h->j)) {
        add_eos(h, text_eos);
        g->n_text_eos = 1;
    }
}

/* Makes room for one more element of a list: 1, 2, 4, 8, ... in proportion to what was read. */
void *clb_header_grow(struct clb_header *h, void *list, uint32_t n, size_t size)
{
    void *more = list;

    if ((n & (n - 1)) == 0) {
        more = clb_grow(list, n ? 2 * (size_t)n : 1, size, &h->oom);
        if (!more)
            clb_header_no_memory(h);
    }
    return more;
}

static void read_source_file(struct clb_header *h)
{
    struct clb_reader *r = h->r;
    struct clb_source_file *list = clb_header_grow(h, r->sources, r->n_sources, sizeof *list), *f;
    struct clb_str key;
    size_t n;

    if (!list)
        return;
    r->sources = list;
    f = &list[r->n_sources++];
    *f = (struct clb_source_file){ 0 };
    clb_json_object(&h->j);
    while (clb_json_key(&h->j, &key)) {
        if (clb_str_is(key, "file"))
            f->file = read_copy(h, &n);
        else if (clb_str_is(key, "size"))
            f->size = clb_header_place(h);
        else if (clb_str_is(key, "crc32"))
            f->crc32 = clb_header_crc(h);
        else
            clb_json_skip(&h->j, NULL);
    }
    if (clb_json_ok(&h->j) && !f->file)
        clb_header_missing(h, "source", "file");
}

static void read_source(struct clb_header *h)
{
    clb_json_array(&h->j);
    while (clb_json_item(&h->j))
        read_source_file(h);
}

static void read_ignored(struct clb_header *h)
{
    struct clb_reader *r = h->r;

    clb_json_array(&h->j);
    while (clb_json_item(&h->j)) {
        struct clb_str *list = clb_header_grow(h, r->ignored_keys, r->n_ignored, sizeof *list), *s;
        if (!list)
            return;
        r->ignored_keys = list;
        s = &list[r->n_ignored++];
        *s = (struct clb_str){ NULL, 0 };
        s->p = read_copy(h, &s->n);
    }
}

/* -- the whole -------------------------------------------------------------------------------- */

typedef void read_fn(struct clb_header *h);
static const struct {
    const char *name;
    read_fn *read;
    bool optional;
} keys[] = {
    { "format", read_format, false },
    { "requires", read_requires, false },
    { "converter", read_converter, true },
    { "activation_group", read_group, false },
    { "scale", read_scale, true },
    { "code", read_code, true },
    { "architecture", read_architecture, false },
    { "generation", read_generation, true },
    { "source", read_source, true },
    { "ignored_keys", read_ignored, true },
    { "tensors", clb_header_tensors, false },
    { "experts", clb_header_experts, false },
    { "sections", clb_header_sections, false },
};
enum { N_KEYS = sizeof keys / sizeof *keys, N_SIZES = sizeof size_keys / sizeof *size_keys };

static void read_key(struct clb_header *h, struct clb_str key)
{
    for (uint32_t i = 0; i < N_KEYS; i++)
        if (clb_str_is(key, keys[i].name)) {
            h->seen |= 1u << i;
            keys[i].read(h);
            return;
        }
    for (uint32_t i = 0; i < N_SIZES; i++)
        if (clb_str_is(key, size_keys[i])) {
            h->seen |= 1u << (N_KEYS + i);
            h->size[i] = clb_json_u64(&h->j, UINT32_MAX);
            return;
        }
    clb_json_skip(&h->j, NULL);
}

/* What can be said only when everything was read. */
static bool check_whole(struct clb_header *h)
{
    const struct clb_reader *r = h->r;
    const struct clb_arch *a = &r->arch;
    const uint32_t want[N_SIZES] = { a->n_expert, a->top_k, a->hidden_size, a->vocab_size,
                                     a->max_positions };

    for (uint32_t i = 0; i < N_KEYS; i++)
        if (!keys[i].optional && !(h->seen >> i & 1))
            return clb_header_missing(h, "header", keys[i].name);
    for (uint32_t i = 0; i < N_SIZES; i++) {
        if (!(h->seen >> (N_KEYS + i) & 1))
            return clb_header_missing(h, "header", size_keys[i]);
        if (h->size[i] != want[i])
            return clb_json_fail(&h->j, "'%s' is %llu, but the architecture says %u", size_keys[i],
                                 (unsigned long long)h->size[i], want[i]);
    }
    for (uint32_t i = 0; i < r->generation.n_eos; i++)
        if ((uint32_t)r->generation.eos_token[i] >= a->vocab_size)
            return clb_json_fail(&h->j, "'eos_token' %d is not in the vocabulary",
                                 r->generation.eos_token[i]);
    if (r->generation.bos_token >= 0 && (uint32_t)r->generation.bos_token >= a->vocab_size)
        return clb_json_fail(&h->j, "'bos_token' %d is not in the vocabulary",
                             r->generation.bos_token);
    return true;
}

static bool check_books(struct clb_header *h)
{
    const struct clb_reader *r = h->r;
    bool used[CLB_DTYPE_COUNT] = { false };

    for (uint32_t i = 0; i < r->n_tensors; i++)
        used[r->tensors[i].dtype] = true;
    for (uint32_t l = 0; l < r->n_expert_layers; l++)
        for (int p = 0; p < CLB_PARTS; p++)
            used[r->experts[l].part[p].dtype] = true;
    if (used[CLB_INT4] && !h->has_int4)
        return clb_header_missing(h, "code", "int4");
    return !used[CLB_MXFP4] || h->has_mxfp4 || clb_header_missing(h, "code", "mxfp4");
}

bool clb_header_parse(struct clb_reader *r, struct clb_err *err)
{
    struct clb_header h = { .r = r };
    struct clb_str key;
    char name[300];

    snprintf(name, sizeof name, "%.255s: header", r->path);
    r->generation = (struct clb_generation){ .bos_token = -1,
                                             .temperature = NAN,
                                             .top_p = NAN,
                                             .min_p = NAN,
                                             .repetition_penalty = NAN,
                                             .top_k = -1 };
    clb_json_open(&h.j, r->json.p, r->json.n, name);
    clb_json_object(&h.j);
    while (clb_json_key(&h.j, &key))
        read_key(&h, key);
    if (clb_json_ok(&h.j) && check_whole(&h))
        check_books(&h);
    if (clb_json_close(&h.j, err))
        return true;
    if (h.oom.code != CLB_OK) {
        *err = h.oom;
        return false;
    }
    /* The reader counted from the start of the text. */
    clb_err_place(err, r->path, h.field[0] ? h.field : NULL,
                  err->has_offset ? err->offset + CLB_PREFIX_BYTES : CLB_NO_OFFSET);
    return false;
}
