/* reader_blocks.c - the parts of the header that say where things lie. */
#include "lib/base/mem.h"
#include "lib/format/layout.h"
#include "lib/format/reader_internal.h"

static enum clb_dtype read_dtype(struct clb_header *h)
{
    struct clb_str s = clb_json_string(&h->j);
    enum clb_dtype t = CLB_F32;

    if (clb_json_ok(&h->j) && !clb_dtype_parse(s, &t))
        clb_json_fail(&h->j, "unknown dtype '%.*s'", s.n > 40 ? 40 : (int)s.n, s.p);
    return t;
}

/* An array of exactly n numbers. */
static void read_numbers(struct clb_header *h, const char *what, uint64_t *out, uint32_t n,
                         uint64_t max)
{
    uint32_t i = 0;

    clb_json_array(&h->j);
    while (clb_json_item(&h->j)) {
        if (i == n) {
            clb_json_fail(&h->j, "'%s' has more than %u values", what, n);
            return;
        }
        out[i++] = clb_json_u64(&h->j, max);
    }
    if (i != n)
        clb_json_fail(&h->j, "'%s' has %u values, but must have %u", what, i, n);
}

static void read_word(struct clb_header *h, const char *what, const char *want)
{
    struct clb_str s = clb_json_string(&h->j);

    if (clb_json_ok(&h->j) && !clb_str_is(s, want))
        clb_json_fail(&h->j, "'%s' is '%.*s', but must be '%s'", what, s.n > 40 ? 40 : (int)s.n,
                      s.p, want);
}

/* -- tensors ---------------------------------------------------------------------------------- */

/* [rows, cols], or [n] of a vector, as demanded. */
static void read_shape(struct clb_header *h, const struct clb_tensor_spec *s)
{
    uint64_t got[2] = { 1, 1 };

    if (s->form == CLB_FORM_VECTOR)
        read_numbers(h, "shape", &got[1], 1, UINT32_MAX);
    else
        read_numbers(h, "shape", got, 2, UINT32_MAX);
    if (clb_json_ok(&h->j) && (got[0] != s->rows || got[1] != s->cols))
        clb_json_fail(&h->j, "'shape' is %llu x %llu, but the architecture demands %u x %u",
                      (unsigned long long)got[0], (unsigned long long)got[1], s->rows, s->cols);
}

static void read_tensor(struct clb_header *h, struct clb_tensor *t)
{
    static const char *const names[] = { "dtype", "layout", "shape",        "offset",
                                         "size",  "crc32",  "scale_offset", NULL };
    struct clb_str key;
    uint32_t seen = 0;
    int k;

    clb_json_object(&h->j);
    while (clb_json_key(&h->j, &key)) {
        k = clb_header_index(key, names);
        seen |= k >= 0 ? 1u << k : 0;
        switch (k) {
        case 0:
            t->dtype = read_dtype(h);
            break;
        case 1:
            read_word(h, "layout", clb_form_layout(t->spec.form));
            break;
        case 2:
            read_shape(h, &t->spec);
            break;
        case 3:
            t->offset = clb_header_place(h);
            break;
        case 4:
            t->size = clb_header_place(h);
            break;
        case 5:
            t->crc32 = clb_header_crc(h);
            break;
        case 6:
            t->scale_offset = clb_header_place(h);
            break;
        default:
            clb_json_skip(&h->j, NULL);
        }
    }
    for (k = 0; k < 6 && clb_json_ok(&h->j); k++)
        if (!(seen >> k & 1))
            clb_header_missing(h, t->name, names[k]);
}

/* Keys stand in the order in which the descriptor demands them. */
void clb_header_tensors(struct clb_header *h)
{
    struct clb_reader *r = h->r;
    struct clb_str key;
    uint32_t i = 0;

    if (!r->tensors) {
        clb_json_fail(&h->j, "'tensors' stands before 'architecture'");
        return;
    }
    clb_json_object(&h->j);
    while (clb_json_key(&h->j, &key)) {
        if (i == r->n_tensors || !clb_str_is(key, r->tensors[i].name)) {
            clb_json_fail(&h->j, "tensor '%.*s' where the architecture demands %s%.63s%s",
                          key.n > 60 ? 60 : (int)key.n, key.p, i < r->n_tensors ? "'" : "no more",
                          i < r->n_tensors ? r->tensors[i].name : "", i < r->n_tensors ? "'" : "");
            return;
        }
        read_tensor(h, &r->tensors[i++]);
    }
    if (clb_json_ok(&h->j) && i < r->n_tensors)
        clb_json_fail(&h->j, "tensor '%s' is missing", r->tensors[i].name);
}

/* -- experts ---------------------------------------------------------------------------------- */

static void read_part(struct clb_header *h, struct clb_expert_part *p, enum clb_part which)
{
    static const char *const names[] = { "dtype",    "shape",   "at", "scale",
                                         "scale_at", "bias_at", NULL };
    struct clb_tensor_spec spec = { .form = CLB_FORM_MATRIX, .rows = p->rows, .cols = p->cols };
    struct clb_str key;
    uint32_t seen = 0;
    int k;

    clb_json_object(&h->j);
    while (clb_json_key(&h->j, &key)) {
        k = clb_header_index(key, names);
        seen |= k >= 0 ? 1u << k : 0;
        switch (k) {
        case 0:
            p->dtype = read_dtype(h);
            break;
        case 1:
            read_shape(h, &spec);
            break;
        case 2:
            p->at = clb_header_place(h);
            break;
        case 3:
            read_word(h, "scale", clb_scale_word(p->dtype));
            break;
        case 4:
            p->scale_at = clb_header_place(h);
            break;
        case 5:
            p->bias_at = clb_header_place(h);
            break;
        default:
            clb_json_skip(&h->j, NULL);
        }
    }
    for (k = 0; k < 4 && clb_json_ok(&h->j); k++)
        if (!(seen >> k & 1))
            clb_header_missing(h, clb_part_name[which], names[k]);
}

static void read_parts(struct clb_header *h, struct clb_expert_layer *x)
{
    struct clb_str key;
    int i = 0;

    clb_expert_layout(&h->r->arch, CLB_F32, x->part); /* for the shapes */
    clb_json_object(&h->j);
    while (clb_json_key(&h->j, &key)) {
        if (i == CLB_PARTS || !clb_str_is(key, clb_part_name[i])) {
            clb_json_fail(&h->j, "part '%.*s' is not known or not in order",
                          key.n > 40 ? 40 : (int)key.n, key.p);
            return;
        }
        x->part[i].scale_at = x->part[i].bias_at = 0;
        read_part(h, &x->part[i], (enum clb_part)i);
        i++;
    }
    if (i < CLB_PARTS)
        clb_header_missing(h, "parts", clb_part_name[i]);
}

static bool new_expert_layer(struct clb_header *h, struct clb_expert_layer *x)
{
    x->offset = clb_new(x->count, sizeof *x->offset, &h->oom);
    x->size = clb_new(x->count, sizeof *x->size, &h->oom);
    x->crc32 = clb_new(x->count, sizeof *x->crc32, &h->oom);
    return (x->offset && x->size && x->crc32) || clb_header_no_memory(h);
}

static void read_crcs(struct clb_header *h, struct clb_expert_layer *x)
{
    uint32_t i = 0;

    clb_json_array(&h->j);
    while (clb_json_item(&h->j)) {
        uint32_t crc = clb_header_crc(h);
        if (i < x->count)
            x->crc32[i] = crc;
        i++;
    }
    if (i != x->count)
        clb_json_fail(&h->j, "'crc32' has %u values, but must have %u", i, x->count);
}

/* A number that the descriptor has fixed already. */
static void read_fixed(struct clb_header *h, const char *what, uint32_t want)
{
    uint64_t v = clb_json_u64(&h->j, UINT32_MAX);

    if (clb_json_ok(&h->j) && v != want)
        clb_json_fail(&h->j, "'%s' is %llu, but the architecture demands %u", what,
                      (unsigned long long)v, want);
}

static void read_expert_layer(struct clb_header *h, struct clb_expert_layer *x)
{
    static const char *const names[] = {
        "layer", "count", "offset", "size", "crc32", "parts", NULL
    };
    struct clb_str key;
    uint32_t seen = 0;
    int k;

    if (!new_expert_layer(h, x))
        return;
    clb_json_object(&h->j);
    while (clb_json_key(&h->j, &key)) {
        k = clb_header_index(key, names);
        seen |= k >= 0 ? 1u << k : 0;
        switch (k) {
        case 0:
            read_fixed(h, "layer", x->layer);
            break;
        case 1:
            read_fixed(h, "count", x->count);
            break;
        case 2:
            read_numbers(h, "offset", x->offset, x->count, INT64_MAX);
            break;
        case 3:
            read_numbers(h, "size", x->size, x->count, INT64_MAX);
            break;
        case 4:
            read_crcs(h, x);
            break;
        case 5:
            read_parts(h, x);
            break;
        default:
            clb_json_skip(&h->j, NULL);
        }
    }
    for (k = 0; k < 6 && clb_json_ok(&h->j); k++)
        if (!(seen >> k & 1))
            clb_header_missing(h, "experts", names[k]);
}

/* One entry for each layer that has experts, ascending. */
void clb_header_experts(struct clb_header *h)
{
    struct clb_reader *r = h->r;
    uint32_t layer = 0;

    if (!r->experts) {
        clb_json_fail(&h->j, "'experts' stands before 'architecture'");
        return;
    }
    clb_json_array(&h->j);
    while (clb_json_item(&h->j)) {
        while (layer < r->arch.n_layer && !clb_arch_is_moe(&r->arch, layer))
            layer++;
        if (layer == r->arch.n_layer) {
            clb_json_fail(&h->j, "more entries than layers with experts");
            return;
        }
        struct clb_expert_layer *x = &r->experts[r->n_expert_layers++];
        x->layer = layer;
        x->count = r->arch.layer_experts[layer++];
        read_expert_layer(h, x);
    }
    for (; layer < r->arch.n_layer && clb_json_ok(&h->j); layer++)
        if (clb_arch_is_moe(&r->arch, layer))
            clb_json_fail(&h->j, "the experts of layer %u are missing", layer);
}

/* -- sections --------------------------------------------------------------------------------- */

static void read_section(struct clb_header *h, struct clb_section *s)
{
    static const char *const names[] = { "offset", "size", "crc32", NULL };
    struct clb_str key;
    uint32_t seen = 0;
    int k;

    clb_json_object(&h->j);
    while (clb_json_key(&h->j, &key)) {
        k = clb_header_index(key, names);
        seen |= k >= 0 ? 1u << k : 0;
        if (k == 0)
            s->offset = clb_header_place(h);
        else if (k == 1)
            s->size = clb_header_place(h);
        else if (k == 2)
            s->crc32 = clb_header_crc(h);
        else
            clb_json_skip(&h->j, NULL);
    }
    for (k = 0; k < 3 && clb_json_ok(&h->j); k++)
        if (!(seen >> k & 1))
            clb_header_missing(h, s->name, names[k]);
}

void clb_header_sections(struct clb_header *h)
{
    struct clb_reader *r = h->r;
    struct clb_str key;

    clb_json_object(&h->j);
    while (clb_json_key(&h->j, &key)) {
        struct clb_section *list = clb_header_grow(h, r->sections, r->n_sections, sizeof *list), *s;
        if (!list)
            return;
        r->sections = list;
        s = &list[r->n_sections++];
        *s = (struct clb_section){ 0 };
        if (!key.n || key.n >= sizeof s->name || memchr(key.p, 0, key.n)) {
            clb_json_fail(&h->j, "the name of a section has %zu bytes, but must have 1 to %zu",
                          key.n, sizeof s->name - 1);
            return;
        }
        memcpy(s->name, key.p, key.n);
        read_section(h, s);
    }
}
