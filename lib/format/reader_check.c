/* reader_check.c - every block of the file is where and what it must be. */
#include <stdio.h>

#include "lib/base/mem.h"
#include "lib/format/layout.h"
#include "lib/format/reader_internal.h"

typedef unsigned long long ull;

static bool wrong(struct clb_err *err, const char *where, const char *field, uint64_t got,
                  const char *must)
{
    char path[128];

    clb_fail(err, CLB_BAD_INPUT, "%s: '%s' is %llu, but must %s", where, field, (ull)got, must);
    snprintf(path, sizeof path, "%s: %s", where, field);
    return clb_err_place(err, NULL, path, CLB_NO_OFFSET);
}

static bool equals(struct clb_err *err, const char *where, const char *field, uint64_t got,
                   uint64_t want)
{
    char must[48];

    snprintf(must, sizeof must, "be %llu", (ull)want);
    return got == want || wrong(err, where, field, got, must);
}

/* The end of the file is checked for all extents together. */
static bool check_place(struct clb_err *err, const char *where, uint64_t offset, uint64_t align,
                        uint64_t data_at)
{
    if (offset % align)
        return wrong(err, where, "offset", offset,
                     align == CLB_PAGE ? "be a multiple of 4096" : "be a multiple of 64");
    return offset >= data_at || wrong(err, where, "offset", offset, "lie behind the header");
}

static bool check_tensor(const struct clb_tensor *t, uint64_t data_at, struct clb_err *err)
{
    uint64_t scale_at, size = clb_block_bytes(&t->spec, t->dtype, &scale_at);
    char where[96];

    snprintf(where, sizeof where, "tensor '%s'", t->name);
    if (!clb_form_takes(t->spec.form, t->dtype)) {
        clb_fail(err, CLB_BAD_INPUT, "%s: 'dtype' is %s, which this tensor cannot have", where,
                 clb_dtype_name(t->dtype));
        return clb_err_place(err, NULL, t->name, CLB_NO_OFFSET);
    }
    return check_place(err, where, t->offset, CLB_ALIGN, data_at) &&
           equals(err, where, "size", t->size, size) &&
           equals(err, where, "scale_offset", t->scale_offset, scale_at ? t->offset + scale_at : 0);
}

/* Parts follow each other inside the block; gaps between them are allowed. Sets *end behind the
 * last one. */
static bool check_parts(const struct clb_arch *a, const struct clb_expert_layer *x, uint64_t *end,
                        struct clb_err *err)
{
    char where[96];

    *end = 0;
    for (int i = 0; i < CLB_PARTS; i++) {
        const struct clb_expert_part *p = &x->part[i];
        uint64_t tiles = clb_tiles_bytes(p->dtype, p->rows, p->cols);
        uint64_t bias = a->expert_bias ? sizeof(float) * (uint64_t)p->rows : 0, bytes, scales;

        snprintf(where, sizeof where, "layer %u: %s", x->layer, clb_part_name[i]);
        if (p->at % CLB_ALIGN)
            return wrong(err, where, "at", p->at, "be a multiple of 64");
        if (p->at < *end)
            return wrong(err, where, "at", p->at, "lie behind the part before it");
        clb_round_up(clb_row_scale_bytes(p->dtype, p->rows), CLB_ALIGN, &scales);
        clb_round_up(bias, CLB_ALIGN, &bytes);
        if (!clb_add(p->at, tiles + scales + bytes, end))
            return wrong(err, where, "at", p->at, "lie inside the block");
        if (!equals(err, where, "scale_at", p->scale_at, scales ? p->at + tiles : 0) ||
            !equals(err, where, "bias_at", p->bias_at, bias ? p->at + tiles + scales : 0))
            return false;
    }
    return true;
}

static bool check_experts(const struct clb_arch *a, const struct clb_expert_layer *x,
                          uint64_t data_at, struct clb_err *err)
{
    uint64_t end;
    char where[96];

    if (!check_parts(a, x, &end, err))
        return false;
    for (uint32_t e = 0; e < x->count; e++) {
        snprintf(where, sizeof where, "layer %u expert %u", x->layer, e);
        if (!check_place(err, where, x->offset[e], CLB_PAGE, data_at) ||
            !equals(err, where, "size", x->size[e], end))
            return false;
    }
    return true;
}

static bool check_sections(const struct clb_reader *r, uint64_t data_at, struct clb_err *err)
{
    char where[96];

    for (uint32_t i = 0; i < r->n_sections; i++) {
        const struct clb_section *s = &r->sections[i];
        snprintf(where, sizeof where, "section '%s'", s->name);
        if (!check_place(err, where, s->offset, CLB_ALIGN, data_at))
            return false;
        if (s->size == 0)
            return wrong(err, where, "size", 0, "be at least 1");
    }
    return true;
}

/* No two blocks share a byte, and the file ends where the last one (padded to 64) ends. */
static bool check_extents(const struct clb_reader *r, struct clb_err *err)
{
    struct clb_extent *e;
    uint64_t end = 0, last;
    char name[96], other[96];
    size_t n, i;
    bool ok = true;

    if (!clb_extents_new(r, &e, &n, err))
        return false;
    for (i = 0; ok && i < n; i++) {
        if (i && e[i].offset < end)
            ok = clb_fail(err, CLB_BAD_INPUT, "%s: 'offset' is %llu, inside %s, which ends at %llu",
                          clb_extent_name(r, &e[i], name), (ull)e[i].offset,
                          clb_extent_name(r, &e[i - 1], other), (ull)end);
        else if (!clb_add(e[i].offset, e[i].size, &end) || end > r->size)
            ok = clb_fail(err, CLB_BAD_INPUT,
                          "%s: %llu bytes at offset %llu do not fit in the file, which ends at "
                          "%llu (cut short?)",
                          clb_extent_name(r, &e[i], name), (ull)e[i].size, (ull)e[i].offset,
                          (ull)r->size);
        if (!ok)
            clb_err_place(err, NULL, name, e[i].offset);
    }
    if (ok && (!clb_round_up(end, CLB_ALIGN, &last) || last != r->size)) {
        ok =
            clb_fail(err, CLB_BAD_INPUT, "the file has %llu bytes, but the last block ends at %llu",
                     (ull)r->size, (ull)last);
        clb_err_place(err, NULL, "size", last);
    }
    clb_free(e);
    return ok;
}

bool clb_header_check(const struct clb_reader *r, uint64_t data_at, struct clb_err *err)
{
    for (uint32_t i = 0; i < r->n_tensors; i++)
        if (!check_tensor(&r->tensors[i], data_at, err))
            return false;
    for (uint32_t l = 0; l < r->n_expert_layers; l++)
        if (!check_experts(&r->arch, &r->experts[l], data_at, err))
            return false;
    return check_sections(r, data_at, err) && check_extents(r, err);
}
