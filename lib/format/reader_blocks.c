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

/* -- objects ---------------------------------------------------------------------------------- */

/* One key of an object and what reads its value into `to`. */
struct member {
    const char *key;
    void (*read)(struct clb_header *h, void *to);
    bool optional;
};

/* `what` names the object when a key is missing; unknown keys are passed over. */
static void read_members(struct clb_header *h, const struct member *m, int n, const char *what,
                         void *to)
{
    struct clb_str key;
    uint32_t seen = 0;

    clb_json_object(&h->j);
    while (clb_json_key(&h->j, &key)) {
        int k = 0;
        while (k < n && !clb_str_is(key, m[k].key))
            k++;
        if (k == n) {
            clb_json_skip(&h->j, NULL);
            continue;
        }
        seen |= 1u << k;
        m[k].read(h, to);
    }
    for (int k = 0; k < n && clb_json_ok(&h->j); k++)
        if (!m[k].optional && !(seen >> k & 1))
            clb_header_missing(h, what, m[k].key);
}

#define COUNT(table) ((int)(sizeof(table) / sizeof *(table)))

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

static void tensor_dtype(struct clb_header *h, void *to)
{
    ((struct clb_tensor *)to)->dtype = read_dtype(h);
}
static void tensor_layout(struct clb_header *h, void *to)
{
    read_word(h, "layout", clb_form_layout(((struct clb_tensor *)to)->spec.form));
}
static void tensor_shape(struct clb_header *h, void *to)
{
    read_shape(h, &((struct clb_tensor *)to)->spec);
}
static void tensor_offset(struct clb_header *h, void *to)
{
    ((struct clb_tensor *)to)->offset = clb_header_place(h);
}
static void tensor_size(struct clb_header *h, void *to)
{
    ((struct clb_tensor *)to)->size = clb_header_place(h);
}
static void tensor_crc(struct clb_header *h, void *to)
{
    ((struct clb_tensor *)to)->crc32 = clb_header_crc(h);
}
static void tensor_scale(struct clb_header *h, void *to)
{
    ((struct clb_tensor *)to)->scale_offset = clb_header_place(h);
}
static const struct member tensor_members[] = {
    { "dtype", tensor_dtype, false },   { "layout", tensor_layout, false },
    { "shape", tensor_shape, false },   { "offset", tensor_offset, false },
    { "size", tensor_size, false },     { "crc32", tensor_crc, false },
    { "scale_offset", tensor_scale, true },
};

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
        struct clb_tensor *t = &r->tensors[i++];
        read_members(h, tensor_members, COUNT(tensor_members), t->name, t);
    }
    if (clb_json_ok(&h->j) && i < r->n_tensors)
        clb_json_fail(&h->j, "tensor '%s' is missing", r->tensors[i].name);
}

/* -- experts ---------------------------------------------------------------------------------- */

static void part_dtype(struct clb_header *h, void *to)
{
    ((struct clb_expert_part *)to)->dtype = read_dtype(h);
}
static void part_shape(struct clb_header *h, void *to)
{
    const struct clb_expert_part *p = to;

    read_shape(h, &(struct clb_tensor_spec){
                      .form = CLB_FORM_MATRIX, .rows = p->rows, .cols = p->cols });
}
static void part_at(struct clb_header *h, void *to)
{
    ((struct clb_expert_part *)to)->at = clb_header_place(h);
}
static void part_scale(struct clb_header *h, void *to)
{
    read_word(h, "scale", clb_scale_word(((struct clb_expert_part *)to)->dtype));
}
static void part_scale_at(struct clb_header *h, void *to)
{
    ((struct clb_expert_part *)to)->scale_at = clb_header_place(h);
}
static void part_bias_at(struct clb_header *h, void *to)
{
    ((struct clb_expert_part *)to)->bias_at = clb_header_place(h);
}
static const struct member part_members[] = {
    { "dtype", part_dtype, false },      { "shape", part_shape, false },
    { "at", part_at, false },            { "scale", part_scale, false },
    { "scale_at", part_scale_at, true }, { "bias_at", part_bias_at, true },
};

static void read_parts(struct clb_header *h, void *to)
{
    struct clb_expert_layer *x = to;
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
        read_members(h, part_members, COUNT(part_members), clb_part_name[i], &x->part[i]);
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

static void read_crcs(struct clb_header *h, void *to)
{
    struct clb_expert_layer *x = to;
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

static void expert_layer(struct clb_header *h, void *to)
{
    read_fixed(h, "layer", ((struct clb_expert_layer *)to)->layer);
}
static void expert_count(struct clb_header *h, void *to)
{
    read_fixed(h, "count", ((struct clb_expert_layer *)to)->count);
}
static void expert_offsets(struct clb_header *h, void *to)
{
    struct clb_expert_layer *x = to;

    read_numbers(h, "offset", x->offset, x->count, INT64_MAX);
}
static void expert_sizes(struct clb_header *h, void *to)
{
    struct clb_expert_layer *x = to;

    read_numbers(h, "size", x->size, x->count, INT64_MAX);
}
static const struct member expert_members[] = {
    { "layer", expert_layer, false },     { "count", expert_count, false },
    { "offset", expert_offsets, false },  { "size", expert_sizes, false },
    { "crc32", read_crcs, false },        { "parts", read_parts, false },
};

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
        if (!new_expert_layer(h, x))
            return;
        read_members(h, expert_members, COUNT(expert_members), "experts", x);
    }
    for (; layer < r->arch.n_layer && clb_json_ok(&h->j); layer++)
        if (clb_arch_is_moe(&r->arch, layer))
            clb_json_fail(&h->j, "the experts of layer %u are missing", layer);
}

/* -- sections --------------------------------------------------------------------------------- */

static void section_offset(struct clb_header *h, void *to)
{
    ((struct clb_section *)to)->offset = clb_header_place(h);
}
static void section_size(struct clb_header *h, void *to)
{
    ((struct clb_section *)to)->size = clb_header_place(h);
}
static void section_crc(struct clb_header *h, void *to)
{
    ((struct clb_section *)to)->crc32 = clb_header_crc(h);
}
static const struct member section_members[] = {
    { "offset", section_offset, false },
    { "size", section_size, false },
    { "crc32", section_crc, false },
};

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
        read_members(h, section_members, COUNT(section_members), s->name, s);
    }
}
