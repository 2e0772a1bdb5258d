/* writer.c - the plan of a colibri.bin: where every block goes, and the header that says so.
 *
 * Offsets depend on the length of the header, and the header's length on the digits of the offsets:
 * the plan is laid out again with a larger header until it fits. Checksums have a fixed width, so
 * the length does not change when they become known. */
#include "lib/format/writer.h"

#include <math.h>
#include <stdio.h>

#include "lib/base/crc.h"
#include "lib/base/mem.h"
#include "lib/format/layout.h"

struct clb_write_plan {
    struct clb_plan_options o; /* pointers inside are borrowed, texts below are owned */
    struct clb_arch arch;
    struct clb_generation generation;
    struct clb_tensor *tensors;
    uint32_t n_tensors;
    struct clb_expert_layer *experts;
    uint32_t n_expert_layers;
    struct clb_section section[8];
    uint32_t n_sections;
    uint32_t *source_crc; /* [n_sources] */
    uint64_t data_at, file_size;
    uint8_t *tensor_known, *source_known; /* whether the checksum was set */
    uint8_t **expert_known;               /* [n_expert_layers][count] */
    uint8_t section_known[8];
};

/* -- places ----------------------------------------------------------------------------------- */

static bool advance(uint64_t *at, uint64_t size, uint64_t align, uint64_t *offset,
                    struct clb_err *err)
{
    if (clb_round_up(*at, align, offset) && clb_add(*offset, size, at) &&
        *at <= INT64_MAX - CLB_PAGE)
        return true;
    return clb_fail(err, CLB_BAD_INPUT, "the model is too large for one file");
}

static bool lay_out(struct clb_write_plan *p, uint64_t data_at, struct clb_err *err)
{
    uint64_t at = data_at;

    p->data_at = data_at;
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        struct clb_tensor *t = &p->tensors[i];
        t->size = clb_block_bytes(&t->spec, t->dtype, &t->scale_offset);
        if (!advance(&at, t->size, CLB_ALIGN, &t->offset, err))
            return false;
        t->scale_offset = t->scale_offset ? t->offset + t->scale_offset : 0;
    }
    for (uint32_t l = 0; l < p->n_expert_layers; l++) {
        struct clb_expert_layer *x = &p->experts[l];
        uint64_t size = clb_expert_layout(&p->arch, p->o.expert_dtype, x->part);
        for (uint32_t e = 0; e < x->count; e++) {
            x->size[e] = size;
            if (!advance(&at, size, CLB_PAGE, &x->offset[e], err))
                return false;
        }
    }
    for (uint32_t s = 0; s < p->n_sections; s++)
        if (!advance(&at, p->section[s].size, CLB_ALIGN, &p->section[s].offset, err))
            return false;
    return advance(&at, 0, CLB_ALIGN, &p->file_size, err);
}

/* -- the header's text ------------------------------------------------------------------------ */

static void put_str(struct clb_text *t, const char *s)
{
    clb_text_json(t, s, strlen(s));
}

static void put_crc(struct clb_text *t, uint32_t crc)
{
    clb_text_printf(t, "%10u", crc);
}

static void put_book(struct clb_text *t, const char *name, const int8_t *book)
{
    clb_text_printf(t, "\"%s\":[", name);
    for (int i = 0; i < 16; i++)
        clb_text_printf(t, i ? ",%d" : "%d", book[i]);
    clb_text_puts(t, "]");
}

static bool uses(const struct clb_write_plan *p, enum clb_dtype d)
{
    return p->o.expert_dtype == d || p->o.dense_dtype == d;
}

static void put_code(const struct clb_write_plan *p, struct clb_text *t)
{
    bool both = uses(p, CLB_INT4) && uses(p, CLB_MXFP4);

    clb_text_puts(t, " \"code\":{");
    if (uses(p, CLB_INT4))
        put_book(t, "int4", clb_book_int4);
    clb_text_puts(t, both ? "," : "");
    if (uses(p, CLB_MXFP4))
        put_book(t, "mxfp4", clb_book_mxfp4);
    clb_text_puts(t, "},\n");
}

static void put_real(struct clb_text *t, const char **before, const char *name, float v)
{
    if (isnan(v))
        return;
    clb_text_printf(t, "%s\"%s\":", *before, name);
    clb_text_f32(t, v);
    *before = ",";
}

static void put_generation(const struct clb_generation *g, struct clb_text *t)
{
    const char *before = "";

    clb_text_puts(t, " \"generation\":{");
    if (g->bos_token >= 0) {
        clb_text_printf(t, "\"bos_token\":%d", g->bos_token);
        before = ",";
    }
    clb_text_printf(t, "%s\"eos_token\":[", before);
    for (uint32_t i = 0; i < g->n_eos - g->n_text_eos; i++)
        clb_text_printf(t, i ? ",%d" : "%d", g->eos_token[i]);
    clb_text_puts(t, "]");
    for (uint32_t i = g->n_eos - g->n_text_eos; i < g->n_eos; i++)
        clb_text_printf(t, ",\"text_eos_token\":%d", g->eos_token[i]);
    before = ",";
    put_real(t, &before, "temperature", g->temperature);
    put_real(t, &before, "top_p", g->top_p);
    put_real(t, &before, "min_p", g->min_p);
    put_real(t, &before, "repetition_penalty", g->repetition_penalty);
    if (g->top_k >= 0)
        clb_text_printf(t, ",\"top_k\":%d", g->top_k);
    clb_text_puts(t, "},\n");
}

static void put_origin(const struct clb_write_plan *p, struct clb_text *t)
{
    clb_text_puts(t, " \"source\":[");
    for (uint32_t i = 0; i < p->o.n_sources; i++) {
        clb_text_puts(t, i ? ",\n  {\"file\":" : "\n  {\"file\":");
        put_str(t, p->o.sources[i].file);
        clb_text_printf(t, ",\"size\":%llu,\"crc32\":", (unsigned long long)p->o.sources[i].size);
        put_crc(t, p->source_crc[i]);
        clb_text_puts(t, "}");
    }
    clb_text_puts(t, "],\n \"ignored_keys\":[");
    for (uint32_t i = 0; i < p->o.n_ignored; i++) {
        clb_text_puts(t, i ? "," : "");
        put_str(t, p->o.ignored_keys[i]);
    }
    clb_text_puts(t, "],\n");
}

static void put_tensors(const struct clb_write_plan *p, struct clb_text *t)
{
    clb_text_puts(t, " \"tensors\":{");
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        const struct clb_tensor *x = &p->tensors[i];
        clb_text_printf(t, "%s\n  \"%s\":{\"dtype\":\"%s\",\"layout\":\"%s\",\"shape\":[",
                        i ? "," : "", x->name, clb_dtype_name(x->dtype),
                        clb_form_layout(x->spec.form));
        if (x->spec.form != CLB_FORM_VECTOR)
            clb_text_printf(t, "%u,", x->spec.rows);
        clb_text_printf(t, "%u],\"offset\":%llu,\"size\":%llu,\"crc32\":", x->spec.cols,
                        (unsigned long long)x->offset, (unsigned long long)x->size);
        put_crc(t, x->crc32);
        if (x->scale_offset)
            clb_text_printf(t, ",\"scale_offset\":%llu", (unsigned long long)x->scale_offset);
        clb_text_puts(t, "}");
    }
    clb_text_puts(t, "},\n");
}

static void put_parts(const struct clb_expert_part *part, struct clb_text *t)
{
    clb_text_puts(t, "   \"parts\":{");
    for (int i = 0; i < CLB_PARTS; i++) {
        const struct clb_expert_part *x = &part[i];
        clb_text_printf(t,
                        "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%u,%u],\"at\":%llu,\"scale\":\"%s\"",
                        i ? ",\n    " : "\n    ", clb_part_name[i], clb_dtype_name(x->dtype),
                        x->rows, x->cols, (unsigned long long)x->at, clb_scale_word(x->dtype));
        if (x->scale_at)
            clb_text_printf(t, ",\"scale_at\":%llu", (unsigned long long)x->scale_at);
        if (x->bias_at)
            clb_text_printf(t, ",\"bias_at\":%llu", (unsigned long long)x->bias_at);
        clb_text_puts(t, "}");
    }
    clb_text_puts(t, "}}");
}

static void put_numbers(struct clb_text *t, const char *name, const uint64_t *v, uint32_t n)
{
    clb_text_printf(t, "   \"%s\":[", name);
    for (uint32_t i = 0; i < n; i++)
        clb_text_printf(t, i ? ",%llu" : "%llu", (unsigned long long)v[i]);
    clb_text_puts(t, "],\n");
}

static void put_experts(const struct clb_write_plan *p, struct clb_text *t)
{
    clb_text_puts(t, " \"experts\":[");
    for (uint32_t l = 0; l < p->n_expert_layers; l++) {
        const struct clb_expert_layer *x = &p->experts[l];
        clb_text_printf(t, "%s\n  {\"layer\":%u,\"count\":%u,\n", l ? "," : "", x->layer, x->count);
        put_numbers(t, "offset", x->offset, x->count);
        put_numbers(t, "size", x->size, x->count);
        clb_text_puts(t, "   \"crc32\":[");
        for (uint32_t e = 0; e < x->count; e++) {
            clb_text_puts(t, e ? "," : "");
            put_crc(t, x->crc32[e]);
        }
        clb_text_puts(t, "],\n");
        put_parts(x->part, t);
    }
    clb_text_puts(t, "],\n");
}

static void put_sections(const struct clb_write_plan *p, struct clb_text *t)
{
    clb_text_puts(t, " \"sections\":{");
    for (uint32_t i = 0; i < p->n_sections; i++) {
        const struct clb_section *s = &p->section[i];
        clb_text_puts(t, i ? ",\n  " : "\n  ");
        put_str(t, s->name);
        clb_text_printf(t,
                        ":{\"offset\":%llu,\"size\":%llu,\"crc32\":", (unsigned long long)s->offset,
                        (unsigned long long)s->size);
        put_crc(t, s->crc32);
        clb_text_puts(t, "}");
    }
    clb_text_puts(t, "}\n}");
}

static void put_json(const struct clb_write_plan *p, struct clb_text *t)
{
    const struct clb_arch *a = &p->arch;

    clb_text_printf(t,
                    "{\n \"format\":%d,\n \"requires\":[],\n \"converter\":", CLB_FORMAT_VERSION);
    put_str(t, p->o.converter);
    clb_text_printf(
        t,
        ",\n \"num_experts\":%u,\n \"top_k\":%u,\n \"hidden_size\":%u,\n \"vocab_size\":%u,\n"
        " \"max_positions\":%u,\n \"activation_group\":%d,\n \"scale\":",
        a->n_expert, a->top_k, a->hidden_size, a->vocab_size, a->max_positions, CLB_GROUP);
    put_str(t, p->o.scale ? p->o.scale : "row");
    clb_text_puts(t, ",\n");
    put_code(p, t);
    clb_text_puts(t, " \"architecture\":");
    clb_arch_write(a, t);
    clb_text_puts(t, ",\n");
    put_generation(&p->generation, t);
    put_origin(p, t);
    put_tensors(p, t);
    put_experts(p, t);
    put_sections(p, t);
}

/* -- the plan --------------------------------------------------------------------------------- */

static bool choose_dtypes(struct clb_write_plan *p, struct clb_err *err)
{
    if (!clb_form_takes(CLB_FORM_ROWS, p->o.embed_dtype))
        return clb_fail(err, CLB_USAGE, "the embedding cannot be stored as %s",
                        clb_dtype_name(p->o.embed_dtype));
    for (uint32_t i = 0; i < p->n_tensors; i++) {
        struct clb_tensor *t = &p->tensors[i];
        clb_arch_tensor(&p->arch, i, &t->spec);
        clb_spec_name(&t->spec, t->name);
        t->dtype = t->spec.form == CLB_FORM_MATRIX ? p->o.dense_dtype
                   : t->spec.form == CLB_FORM_ROWS ? p->o.embed_dtype
                                                   : CLB_F32;
    }
    return true;
}

static bool add_expert_layer(struct clb_write_plan *p, uint32_t layer, struct clb_err *err)
{
    uint32_t i = p->n_expert_layers++, n = p->arch.layer_experts[layer];
    struct clb_expert_layer *x = &p->experts[i];

    x->layer = layer;
    x->count = n;
    return (x->offset = clb_new(n, sizeof *x->offset, err)) &&
           (x->size = clb_new(n, sizeof *x->size, err)) &&
           (x->crc32 = clb_new(n, sizeof *x->crc32, err)) &&
           (p->expert_known[i] = clb_new(n, 1, err));
}

static bool add_sections(struct clb_write_plan *p, struct clb_err *err)
{
    for (size_t i = 0; i < sizeof p->o.section / sizeof *p->o.section && p->o.section[i].name;
         i++) {
        struct clb_section *s = &p->section[p->n_sections++];
        if (!p->o.section[i].size || strlen(p->o.section[i].name) >= sizeof s->name)
            return clb_fail(err, CLB_USAGE, "section '%s' is empty or its name is too long",
                            p->o.section[i].name);
        snprintf(s->name, sizeof s->name, "%s", p->o.section[i].name);
        s->size = p->o.section[i].size;
    }
    return true;
}

static bool fill_plan(struct clb_write_plan *p, struct clb_err *err)
{
    p->n_tensors = clb_arch_tensor_count(&p->arch);
    p->tensors = clb_new(p->n_tensors, sizeof *p->tensors, err);
    p->experts = clb_new(p->arch.n_layer, sizeof *p->experts, err);
    p->expert_known = clb_new(p->arch.n_layer, sizeof *p->expert_known, err);
    p->tensor_known = clb_new(p->n_tensors, 1, err);
    p->source_crc = clb_new(p->o.n_sources, sizeof *p->source_crc, err);
    p->source_known = clb_new(p->o.n_sources, 1, err);
    if (!p->tensors || !p->experts || !p->expert_known || !p->tensor_known || !p->source_crc ||
        !p->source_known)
        return false;
    for (uint32_t l = 0; l < p->arch.n_layer; l++)
        if (clb_arch_is_moe(&p->arch, l) && !add_expert_layer(p, l, err))
            return false;
    return choose_dtypes(p, err) && add_sections(p, err);
}

/* Lays out with a header of one page, then with as many as the text turned out to need. */
static bool settle(struct clb_write_plan *p, struct clb_err *err)
{
    struct clb_text json = { 0 };
    uint64_t need = CLB_PAGE, have;
    bool ok;

    do {
        have = need;
        ok = lay_out(p, have, err);
        clb_text_clear(&json);
        if (ok)
            put_json(p, &json);
        if (ok && json.failed)
            ok = clb_fail_nomem(err, json.n);
        ok = ok && clb_round_up(CLB_PREFIX_BYTES + json.n, CLB_PAGE, &need);
    } while (ok && need > have);
    clb_text_free(&json);
    return ok;
}

bool clb_plan_new(struct clb_write_plan **out, const struct clb_plan_options *o,
                  struct clb_err *err)
{
    struct clb_write_plan *p;

    *out = NULL;
    if (!clb_arch_check(o->arch, err) || !(p = clb_new(1, sizeof *p, err)))
        return false;
    p->o = *o;
    p->arch = *o->arch;
    p->generation = *o->generation;
    if (!fill_plan(p, err) || !settle(p, err)) {
        clb_plan_free(p);
        return false;
    }
    *out = p;
    return true;
}

void clb_plan_free(struct clb_write_plan *p)
{
    if (!p)
        return;
    for (uint32_t l = 0; l < p->n_expert_layers; l++) {
        clb_free(p->experts[l].offset);
        clb_free(p->experts[l].size);
        clb_free(p->experts[l].crc32);
        clb_free(p->expert_known[l]);
    }
    clb_free(p->experts);
    clb_free(p->expert_known);
    clb_free(p->tensors);
    clb_free(p->tensor_known);
    clb_free(p->source_crc);
    clb_free(p->source_known);
    clb_free(p);
}

uint64_t clb_plan_file_size(const struct clb_write_plan *p)
{
    return p->file_size;
}

const struct clb_tensor *clb_plan_tensor(const struct clb_write_plan *p, uint32_t i)
{
    return i < p->n_tensors ? &p->tensors[i] : NULL;
}

/* Index into experts[], or n_expert_layers. */
static uint32_t expert_index(const struct clb_write_plan *p, uint32_t layer)
{
    uint32_t i = 0;

    while (i < p->n_expert_layers && p->experts[i].layer != layer)
        i++;
    return i;
}

const struct clb_expert_layer *clb_plan_experts(const struct clb_write_plan *p, uint32_t layer)
{
    uint32_t i = expert_index(p, layer);

    return i < p->n_expert_layers ? &p->experts[i] : NULL;
}

static uint32_t section_index(const struct clb_write_plan *p, const char *name)
{
    uint32_t i = 0;

    while (i < p->n_sections && strcmp(p->section[i].name, name))
        i++;
    return i;
}

const struct clb_section *clb_plan_section(const struct clb_write_plan *p, const char *name)
{
    uint32_t i = section_index(p, name);

    return i < p->n_sections ? &p->section[i] : NULL;
}

/* -- checksums -------------------------------------------------------------------------------- */

void clb_plan_tensor_crc(struct clb_write_plan *p, uint32_t i, uint32_t crc32)
{
    p->tensors[i].crc32 = crc32;
    p->tensor_known[i] = 1;
}

void clb_plan_expert_crc(struct clb_write_plan *p, uint32_t layer, uint32_t expert, uint32_t crc32)
{
    uint32_t i = expert_index(p, layer);

    p->experts[i].crc32[expert] = crc32;
    p->expert_known[i][expert] = 1;
}

void clb_plan_section_crc(struct clb_write_plan *p, const char *name, uint32_t crc32)
{
    uint32_t i = section_index(p, name);

    p->section[i].crc32 = crc32;
    p->section_known[i] = 1;
}

void clb_plan_source_crc(struct clb_write_plan *p, uint32_t i, uint32_t crc32)
{
    p->source_crc[i] = crc32;
    p->source_known[i] = 1;
}

static bool all_known(const uint8_t *known, uint32_t n)
{
    return n == 0 || !memchr(known, 0, n);
}

static bool complete(const struct clb_write_plan *p)
{
    for (uint32_t l = 0; l < p->n_expert_layers; l++)
        if (!all_known(p->expert_known[l], p->experts[l].count))
            return false;
    return all_known(p->tensor_known, p->n_tensors) && all_known(p->source_known, p->o.n_sources) &&
           all_known(p->section_known, p->n_sections);
}

static void store_le(char *p, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        p[i] = (char)(v >> 8 * i);
}

bool clb_plan_header(const struct clb_write_plan *p, struct clb_text *out, struct clb_err *err)
{
    char prefix[CLB_PREFIX_BYTES] = CLB_MAGIC;

    if (!complete(p))
        return clb_fail(err, CLB_FAILED,
                        "a block was planned but its checksum never given (a bug)");
    clb_text_clear(out);
    clb_text_add(out, prefix, sizeof prefix);
    put_json(p, out);
    while (out->n % CLB_PAGE && !out->failed)
        clb_text_add(out, " ", 1);
    if (out->failed)
        return clb_fail_nomem(err, p->data_at);
    /* The text may have become shorter than the space that was settled on. */
    while (out->n < p->data_at && !out->failed)
        clb_text_add(out, " ", 1);
    if (out->failed || out->n != p->data_at)
        return clb_fail(err, CLB_FAILED, "the header does not fit in its place (a bug)");
    store_le(out->p + 8, CLB_FORMAT_VERSION, 4);
    store_le(out->p + 12, clb_crc32(0, out->p + CLB_PREFIX_BYTES, out->n - CLB_PREFIX_BYTES), 4);
    store_le(out->p + 16, out->n - CLB_PREFIX_BYTES, 8);
    return true;
}
