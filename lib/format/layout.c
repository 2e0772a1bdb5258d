/* layout.c - sizes of blocks and their order in the file. */
#include "lib/format/layout.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/base/mem.h"

static uint64_t to_64(uint64_t n)
{
    return (n + CLB_ALIGN - 1) / CLB_ALIGN * CLB_ALIGN;
}

bool clb_form_takes(enum clb_form form, enum clb_dtype t)
{
    switch (form) {
    case CLB_FORM_MATRIX:
        return true;
    case CLB_FORM_ROWS:
        return clb_dtype_is_float(t);
    default:
        return t == CLB_F32;
    }
}

const char *clb_form_layout(enum clb_form form)
{
    return form == CLB_FORM_VECTOR || form == CLB_FORM_ROWS ? "rows" : "tiles";
}

const char *clb_scale_word(enum clb_dtype t)
{
    return clb_dtype_is_float(t) ? "none" : t == CLB_INT8 ? "row" : "group";
}

uint64_t clb_block_bytes(const struct clb_tensor_spec *s, enum clb_dtype t, uint64_t *scale_at)
{
    *scale_at = 0;
    if (s->form == CLB_FORM_VECTOR || s->form == CLB_FORM_ROWS)
        return to_64(clb_rows_bytes(t, s->rows, s->cols));
    uint64_t tiles = clb_tiles_bytes(t, s->rows, s->cols), scales = clb_row_scale_bytes(t, s->rows);

    if (scales)
        *scale_at = tiles;
    return tiles + to_64(scales);
}

uint64_t clb_part_bytes(const struct clb_expert_part *p)
{
    uint64_t bias = p->bias_at ? to_64(sizeof(float) * (uint64_t)p->rows) : 0;

    return clb_tiles_bytes(p->dtype, p->rows, p->cols) +
           to_64(clb_row_scale_bytes(p->dtype, p->rows)) + bias;
}

uint64_t clb_expert_layout(const struct clb_arch *a, enum clb_dtype t,
                           struct clb_expert_part part[CLB_PARTS])
{
    uint64_t at = 0;

    for (int i = 0; i < CLB_PARTS; i++) {
        uint32_t rows = i == CLB_DOWN ? a->hidden_size : a->expert_size;
        uint32_t cols = i == CLB_DOWN ? a->expert_size : a->hidden_size;
        uint64_t tiles = clb_tiles_bytes(t, rows, cols), scales = clb_row_scale_bytes(t, rows);

        part[i] = (struct clb_expert_part){
            .dtype = t,
            .rows = rows,
            .cols = cols,
            .at = at,
            .scale_at = scales ? at + tiles : 0,
            .bias_at = a->expert_bias ? at + tiles + to_64(scales) : 0,
        };
        at += clb_part_bytes(&part[i]);
    }
    return at;
}

static int ascending(const void *x, const void *y)
{
    const struct clb_extent *a = x, *b = y;

    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

bool clb_extents_new(const struct clb_reader *r, struct clb_extent **out, size_t *n,
                     struct clb_err *err)
{
    size_t total = (size_t)r->n_tensors + r->n_sections;
    struct clb_extent *e;

    for (uint32_t l = 0; l < r->n_expert_layers; l++)
        total += r->experts[l].count;
    *out = e = clb_new(total, sizeof **out, err);
    if (!e)
        return false;
    for (uint32_t i = 0; i < r->n_tensors; i++) {
        const struct clb_tensor *t = &r->tensors[i];
        *e++ = (struct clb_extent){ t->offset, t->size, t->crc32, CLB_EXTENT_TENSOR, i, 0 };
    }
    for (uint32_t l = 0; l < r->n_expert_layers; l++) {
        const struct clb_expert_layer *x = &r->experts[l];
        for (uint32_t i = 0; i < x->count; i++)
            *e++ = (struct clb_extent){ x->offset[i],      x->size[i], x->crc32[i],
                                        CLB_EXTENT_EXPERT, l,          i };
    }
    for (uint32_t i = 0; i < r->n_sections; i++) {
        const struct clb_section *s = &r->sections[i];
        *e++ = (struct clb_extent){ s->offset, s->size, s->crc32, CLB_EXTENT_SECTION, i, 0 };
    }
    qsort(*out, total, sizeof **out, ascending);
    *n = total;
    return true;
}

const char *clb_extent_name(const struct clb_reader *r, const struct clb_extent *e,
                            char buf[static 96])
{
    switch (e->kind) {
    case CLB_EXTENT_TENSOR:
        snprintf(buf, 96, "tensor '%s'", r->tensors[e->a].name);
        break;
    case CLB_EXTENT_EXPERT:
        snprintf(buf, 96, "layer %u expert %u", r->experts[e->a].layer, e->b);
        break;
    default:
        snprintf(buf, 96, "section '%s'", r->sections[e->a].name);
    }
    return buf;
}
