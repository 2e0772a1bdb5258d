/* diff.c - --diff: do two files hold the same model? */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/colibri-inspect/compare.h"
#include "cmd/colibri-inspect/inspect.h"
#include "lib/base/mem.h"
#include "lib/cli/report.h"
#include "lib/cli/table.h"

enum { MAX_FIELDS = 256 };

struct fields {
    const char *name[MAX_FIELDS];
    char *value[MAX_FIELDS];
    int n;
    struct clb_err *err;
    bool failed;
};

static void keep_field(void *arg, const char *name, const char *value)
{
    struct fields *f = arg;

    if (f->n == MAX_FIELDS)
        return;
    f->name[f->n] = name;
    f->value[f->n] = clb_strdup(value, f->err);
    f->failed |= !f->value[f->n++];
}

static void free_fields(struct fields *f)
{
    for (int i = 0; i < f->n; i++)
        clb_free(f->value[i]);
}

/* A field of the descriptor that is not given has its neutral value. */
static const char *shown(const char *value)
{
    return *value ? value : "-";
}

static void json_text(struct clb_text *t, const char *before, const char *s)
{
    clb_text_puts(t, before);
    clb_text_json(t, s, strlen(s));
}

bool inspect_diff_fields(const struct clb_arch *a, const struct clb_arch *b, const char *columns,
                         struct clb_text *json, bool *differs, struct clb_err *err)
{
    struct fields x = { .err = err }, y = { .err = err };
    struct clb_table *t = NULL;
    bool ok = true;

    clb_arch_fields(a, keep_field, &x);
    clb_arch_fields(b, keep_field, &y);
    for (int i = 0; i < x.n && !x.failed && !y.failed; i++) {
        if (!strcmp(x.value[i], y.value[i]))
            continue;
        if (json) {
            clb_text_printf(json, "%s{\"name\":\"%s\"", *differs ? "," : "", x.name[i]);
            json_text(json, ",\"a\":", x.value[i]);
            json_text(json, ",\"b\":", y.value[i]);
            clb_text_puts(json, "}");
        } else {
            t = t ? t : clb_table_new(columns);
            clb_table_row(t);
            clb_table_cell(t, "%s", x.name[i]);
            clb_table_cell(t, "%.40s", shown(x.value[i]));
            clb_table_cell(t, "%.40s", shown(y.value[i]));
        }
        *differs = true;
    }
    ok = !x.failed && !y.failed;
    if (t && !clb_table_print(t, stdout) && !ferror(stdout))
        ok = clb_fail_nomem(err, 0);
    if (t)
        putchar('\n');
    free_fields(&x);
    free_fields(&y);
    return ok;
}

static void json_line(struct clb_text *t, const struct compare_line *l, bool first)
{
    double sqnr = compare_sqnr(&l->all);

    clb_text_printf(t, "%s{\"name\":\"%s\",\"a\":\"%s\",\"b\":\"%s\"", first ? "" : ",", l->name,
                    l->all.dtype[0], l->all.dtype[1]);
    if (l->all.missing)
        clb_text_puts(t, ",\"missing\":true}");
    else if (l->all.shape)
        clb_text_puts(t, ",\"shape\":true}");
    else if (isinf(l->all.most))
        clb_text_puts(t, ",\"max\":null,\"sqnr_db\":null}");
    else
        clb_text_printf(t, ",\"max\":%.9g,\"sqnr_db\":%.3f}", l->all.most, sqnr);
}

static void table_line(struct clb_table *t, const struct compare_line *l)
{
    const struct compare_result *x = &l->all;

    clb_table_row(t);
    clb_table_cell(t, "%s", l->name);
    clb_table_cell(t, "%s", x->dtype[0]);
    clb_table_cell(t, "%s", x->dtype[1]);
    if (x->missing || x->shape) {
        clb_table_cell(t, "%s", x->missing ? "not there" : "other shape");
        return;
    }
    clb_table_cell(t, "%.3g", x->most);
    clb_table_cell(t, "%.1f", compare_sqnr(x));
    if (l->expert == UINT32_MAX)
        clb_table_cell(t, "row %u, column %u", x->row, x->col);
    else
        clb_table_cell(t, "expert %u, row %u, column %u", l->expert, x->row, x->col);
}

static bool show_lines(const struct compare_line *line, uint32_t n, struct clb_text *json,
                       bool *differs, struct clb_err *err)
{
    struct clb_table *t = NULL;
    bool any = false;

    for (uint32_t i = 0; i < n; i++) {
        if (!line[i].differ)
            continue;
        if (json) {
            json_line(json, &line[i], !any);
        } else {
            t = t ? t : clb_table_new("tensor|first|second|>largest difference|>SQNR dB|where");
            table_line(t, &line[i]);
        }
        any = true;
    }
    if (t && !clb_table_print(t, stdout) && !ferror(stdout))
        return clb_fail_nomem(err, 0);
    if (t)
        putchar('\n');
    *differs |= any;
    return true;
}

static bool diff_values(const struct clb_reader *a, const struct clb_reader *b,
                        const struct inspect_options *o, struct clb_text *json, bool *differs,
                        struct clb_err *err)
{
    struct compare_side x = compare_file(a), y = compare_file(b);
    struct compare_item *item = NULL;
    struct compare_result *result = NULL;
    struct compare_line *line = NULL;
    uint32_t n, n_line;
    bool ok;

    ok = compare_items(a, &item, &n, err) && (result = clb_new(n, sizeof *result, err)) &&
         compare_all(&x, &y, item, n, result, o->quiet, err) &&
         compare_lines(item, result, n, &line, &n_line, err) &&
         show_lines(line, n_line, json, differs, err);
    clb_free(item);
    clb_free(result);
    clb_free(line);
    return ok;
}

/* Sections, and what the publisher recommends. */
static void diff_sections(const struct clb_reader *a, const struct clb_reader *b,
                          struct clb_text *json, bool *differs)
{
    bool any = false;

    for (uint32_t i = 0; i < a->n_sections + b->n_sections; i++) {
        bool second = i >= a->n_sections;
        const struct clb_section *x = second ? &b->sections[i - a->n_sections] : &a->sections[i];
        const struct clb_section *y = clb_reader_section(second ? a : b, x->name);
        char name[80];
        if (second ? y != NULL : y && y->size == x->size && y->crc32 == x->crc32)
            continue;
        if (json)
            json_text(json, any ? "," : "", x->name);
        else
            printf("section '%s': %s\n", inspect_safe(name, sizeof name, x->name),
                   y        ? "other bytes"
                   : second ? "only in the second"
                            : "only in the first");
        any = true;
    }
    *differs |= any;
}

/* NAN (not given) is equal to NAN. */
static bool same_float(float a, float b)
{
    return isnan(a) ? isnan(b) : a == b;
}

static bool same_generation(const struct clb_generation *a, const struct clb_generation *b)
{
    return a->bos_token == b->bos_token && a->n_eos == b->n_eos &&
           a->n_text_eos == b->n_text_eos &&
           !memcmp(a->eos_token, b->eos_token, sizeof a->eos_token) &&
           same_float(a->temperature, b->temperature) && same_float(a->top_p, b->top_p) &&
           same_float(a->min_p, b->min_p) &&
           same_float(a->repetition_penalty, b->repetition_penalty) && a->top_k == b->top_k;
}

bool inspect_diff(const struct clb_reader *a, const struct clb_reader *b,
                  const struct inspect_options *o, struct clb_err *err)
{
    bool fields = false, values = false, sections = false, ok = false;
    char x[INSPECT_PATH], y[INSPECT_PATH];
    bool generation = !same_generation(&a->generation, &b->generation);
    struct clb_text text = { 0 }, *json = o->json ? &text : NULL;

    clb_text_puts(&text, "{\"architecture\":[");
    if (!inspect_diff_fields(&a->arch, &b->arch, "architecture|first|second", json, &fields, err))
        goto done;
    clb_text_puts(&text, "],\"tensors\":[");
    if (!diff_values(a, b, o, json, &values, err))
        goto done;
    clb_text_puts(&text, "],\"sections\":[");
    diff_sections(a, b, json, &sections);
    bool differs = fields || values || sections || generation;

    clb_text_printf(&text, "],\"generation\":%s,\"equal\":%s}\n", generation ? "true" : "false",
                    differs ? "false" : "true");
    if (!json && generation)
        printf("other recommendations for generation, or other special tokens\n");
    if (!json && !differs && !o->quiet)
        printf("%s and %s hold the same model\n", inspect_name(x, a), inspect_name(y, b));
    *o->differs |= differs;
    ok = !json || inspect_print(json, err);
done:
    clb_text_free(&text);
    return ok;
}
