/* against.c - --against: is this file what its checkpoint becomes, and are the checkpoint's files
 * still those that it was made from? */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/colibri-inspect/compare.h"
#include "cmd/colibri-inspect/inspect.h"
#include "lib/base/crc.h"
#include "lib/base/mapfile.h"
#include "lib/base/mem.h"
#include "lib/cli/report.h"
#include "lib/cli/table.h"
#include "lib/import/convert.h"
#include "lib/import/origin.h"

/* -- the checkpoint as a side ----------------------------------------------------------------- */

static bool origin_get(const void *model, const struct compare_item *item, struct compare_rows *out)
{
    struct clb_origin *o = &out->origin;

    *out = (struct compare_rows){ .rows = 0 };
    if (item->expert == UINT32_MAX)
        clb_origin_dense(model, item->index, o);
    else
        clb_origin_expert(model, item->spec.layer, item->expert, item->part, item->bias, o);
    out->dtype = o->dtype;
    out->rows = o->rows;
    out->cols = o->cols;
    return true;
}

static bool origin_row(struct compare_rows *rows, uint32_t row, float *out, struct clb_err *err)
{
    return clb_origin_row(&rows->origin, row, out, err);
}

static void origin_done(struct compare_rows *rows)
{
    clb_origin_done(&rows->origin);
}

/* -- files of the checkpoint ------------------------------------------------------------------ */

static bool crc_of_file(const char *path, uint64_t size, uint32_t *crc, struct clb_err *err)
{
    struct clb_mapfile f;
    static const size_t piece = 1 << 20;
    uint8_t *buffer = NULL;
    bool ok = clb_mapfile_open(&f, path, err);

    *crc = 0;
    if (ok)
        ok = (buffer = clb_new(piece, 1, err)) != NULL;
    for (uint64_t at = 0; ok && at < size;) {
        size_t n = size - at < piece ? (size_t)(size - at) : piece;
        ok = clb_mapfile_read(&f, buffer, at, n, err);
        if (ok)
            *crc = clb_crc32(*crc, buffer, n);
        at += n;
    }
    clb_free(buffer);
    clb_mapfile_close(&f);
    return ok;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* "" when the file is what it was. The map may lie anywhere. */
static const char *state_of(const struct clb_source_file *s, const struct inspect_options *o,
                            char *path, size_t room)
{
    bool is_map = o->map && !strcmp(last_part(o->map), s->file);
    struct clb_mapfile f;
    struct clb_err err;
    uint32_t crc;
    uint64_t size;

    if (strchr(s->file, '/') || (size_t)snprintf(path, room, is_map ? "%s" : "%s/%s",
                                                 is_map ? o->map : o->source_dir, s->file) >= room)
        return "not a name of a file in the folder";
    if (!clb_mapfile_open(&f, path, &err))
        return "not there";
    size = f.size;
    clb_mapfile_close(&f);
    if (size != s->size)
        return "other size";
    if (!crc_of_file(path, size, &crc, &err))
        return "cannot be read";
    return crc == s->crc32 ? "" : "other bytes";
}

static bool check_files(const struct clb_reader *r, const struct inspect_options *o,
                        struct clb_text *json, bool *differs, struct clb_err *err)
{
    struct clb_table *t = NULL;
    char path[4096], name[256];
    uint32_t changed = 0;

    for (uint32_t i = 0; i < r->n_sources; i++) {
        const char *state = state_of(&r->sources[i], o, path, sizeof path);

        if (json) {
            clb_text_printf(json, "%s{\"file\":", i ? "," : "");
            clb_text_json(json, r->sources[i].file, strlen(r->sources[i].file));
            clb_text_printf(json, ",\"state\":\"%s\"}", *state ? state : "same");
        } else if (*state) {
            t = t ? t : clb_table_new("file|state");
            clb_table_row(t);
            clb_table_cell(t, "%s", inspect_safe(name, sizeof name, r->sources[i].file));
            clb_table_cell(t, "%s", state);
        }
        changed += *state != 0;
    }
    if (t && !clb_table_print(t, stdout) && !ferror(stdout))
        return clb_fail_nomem(err, 0);
    if (!json && !o->quiet)
        printf("%u of %u source files are unchanged\n", r->n_sources - changed, r->n_sources);
    *differs |= changed > 0;
    return true;
}

/* -- values ----------------------------------------------------------------------------------- */

/* All tensors of a kind. */
struct kind_sum {
    struct compare_result all;
    struct clb_text where; /* the largest difference is */
    uint32_t count;
    uint32_t poor; /* 4-bit lines that have little to do with their source */
};

/* Below this a 4-bit matrix is not a rounding of its source (good ones are near 20 dB). */
static const double poor_db = 6;

static void add_line(struct kind_sum *k, const struct compare_line *l)
{
    struct compare_result *all = &k->all;
    double signal = all->signal + l->all.signal, noise = all->noise + l->all.noise;
    uint64_t beyond = all->beyond + l->all.beyond;
    bool four_bit = !strcmp(l->all.dtype[1], "int4") || !strcmp(l->all.dtype[1], "mxfp4");

    if (!k->count || l->all.most > all->most) {
        *all = l->all;
        clb_text_clear(&k->where);
        clb_text_puts(&k->where, l->name);
        if (l->expert != UINT32_MAX)
            clb_text_printf(&k->where, ", expert %u", l->expert);
        clb_text_printf(&k->where, ", row %u, column %u", l->all.row, l->all.col);
    }
    if (all->most == 0 && !strcmp(all->dtype[0], "computed"))
        all->dtype[0] = l->all.dtype[0]; /* the others of its kind say more */
    all->signal = signal;
    all->noise = noise;
    all->beyond = beyond;
    k->count += l->count;
    k->poor += four_bit && compare_sqnr(&l->all) < poor_db;
}

static void kind_json(struct clb_text *t, const struct kind_sum *k, const char *kind, bool first)
{
    double sqnr = compare_sqnr(&k->all);

    clb_text_printf(t, "%s{\"kind\":\"%s\",\"source\":\"%s\",\"stored\":\"%s\",\"tensors\":%u,",
                    first ? "" : ",", kind, k->all.dtype[0], k->all.dtype[1], k->count);
    clb_text_printf(t, "\"max\":%.9g,", k->all.most);
    if (isfinite(sqnr))
        clb_text_printf(t, "\"sqnr_db\":%.3f,", sqnr);
    else
        clb_text_puts(t, "\"sqnr_db\":null,");
    clb_text_printf(t, "\"beyond_rounding\":%llu}", (unsigned long long)k->all.beyond);
}

static void kind_row(struct clb_table *t, const struct kind_sum *k, const char *kind)
{
    clb_table_row(t);
    clb_table_cell(t, "%s", kind);
    clb_table_cell(t, "%s", k->all.dtype[0]);
    clb_table_cell(t, "%s", k->all.dtype[1]);
    clb_table_cell(t, "%u", k->count);
    if (!(k->all.most > 0)) {
        clb_table_cell(t, "exact");
        return;
    }
    clb_table_cell(t, "%.1f", compare_sqnr(&k->all));
    clb_table_cell(t, "%.3g", k->all.most);
    clb_table_cell(t, "%s%s%s", k->all.beyond || k->poor ? "not a rounding: " : "",
                   k->where.p ? k->where.p : "", k->where.failed ? "?" : "");
}

static bool show_kinds(const struct kind_sum kind[KINDS], struct clb_text *json, bool *differs,
                       struct clb_err *err)
{
    struct clb_table *t =
        json ? NULL
             : clb_table_new("values|source|stored|>tensors|>SQNR dB|>largest difference|where");
    bool first = true;

    for (int k = 0; k < KINDS; k++) {
        if (!kind[k].count)
            continue;
        if (json)
            kind_json(json, &kind[k], inspect_kind_name[k], first);
        else
            kind_row(t, &kind[k], inspect_kind_name[k]);
        first = false;
        *differs |= kind[k].all.beyond || kind[k].poor;
    }
    if (json)
        return true;
    putchar('\n');
    return clb_table_print(t, stdout) || ferror(stdout) || clb_fail_nomem(err, 0);
}

/* Which kind a line belongs to: the item that it starts with says so. */
static void sum_kinds(struct kind_sum kind[KINDS], const struct compare_item *item,
                      const struct compare_line *line, uint32_t n_line)
{
    for (uint32_t i = 0; i < n_line; i++) {
        bool expert = item->expert != UINT32_MAX;
        add_line(&kind[expert ? KIND_EXPERTS : inspect_kind_of(item->spec.role)], &line[i]);
        item += line[i].count;
    }
}

static bool check_values(const struct clb_conversion *c, const struct clb_reader *r,
                         const struct inspect_options *o, struct clb_text *json, bool *differs,
                         struct clb_err *err)
{
    struct compare_side a = {
        .model = c, .get = origin_get, .row = origin_row, .done = origin_done
    };
    struct compare_side b = compare_file(r);
    struct kind_sum kind[KINDS] = { 0 };
    struct compare_item *item = NULL;
    struct compare_result *result = NULL;
    struct compare_line *line = NULL;
    uint32_t n, n_line;
    bool ok = compare_items(r, &item, &n, err) && (result = clb_new(n, sizeof *result, err)) &&
              compare_all(&a, &b, item, n, result, o->quiet, err) &&
              compare_lines(item, result, n, &line, &n_line, err);

    if (ok) {
        sum_kinds(kind, item, line, n_line);
        ok = show_kinds(kind, json, differs, err);
    }
    for (int k = 0; k < KINDS; k++)
        clb_text_free(&kind[k].where);
    clb_free(item);
    clb_free(result);
    clb_free(line);
    return ok;
}

/* -- the whole -------------------------------------------------------------------------------- */

/* The checkpoint, read with the options that the file remembers. */
static bool plan(struct clb_conversion **c, const struct clb_reader *r,
                 const struct inspect_options *o, const char ***ignore, struct clb_err *err)
{
    struct clb_convert_options co = { .source_dir = o->source_dir,
                                      .map = o->map,
                                      .command = PROGRAM,
                                      .source_dtype = true,
                                      .n_ignore = r->n_ignored,
                                      .ignore_surplus = true,
                                      .clip_gate_softmax = r->arch.router_clip };

    *ignore = clb_new(r->n_ignored, sizeof **ignore, err);
    if (!*ignore)
        return false;
    for (uint32_t i = 0; i < r->n_ignored; i++)
        (*ignore)[i] = r->ignored_keys[i].p;
    co.ignore_key = *ignore;
    if (clb_convert_plan(c, &co, err))
        return true;
    if (*c) {
        clb_put_lines(stderr, "  ", clb_convert_problems(*c));
        clb_fail_in(err, "the checkpoint cannot be converted");
    }
    return false;
}

bool inspect_against(const struct clb_reader *r, const struct inspect_options *o,
                     struct clb_err *err)
{
    struct clb_text text = { 0 }, *json = o->json ? &text : NULL;
    struct clb_conversion *c = NULL;
    const char **ignore = NULL;
    bool fields = false, differs = false, ok = false;

    if (!plan(&c, r, o, &ignore, err))
        goto done;
    clb_text_puts(&text, "{\"files\":[");
    if (!check_files(r, o, json, &differs, err))
        goto done;
    clb_text_puts(&text, "],\"architecture\":[");
    if (!inspect_diff_fields(&r->arch, clb_convert_arch(c), "architecture|file|checkpoint", json,
                             &fields, err))
        goto done;
    clb_text_puts(&text, "],\"values\":[");
    /* With another architecture the tensors of the two have nothing in common. */
    if (!fields && !check_values(c, r, o, json, &differs, err))
        goto done;
    differs |= fields;
    clb_text_printf(&text, "],\"equal\":%s}\n", differs ? "false" : "true");
    *o->differs |= differs;
    ok = !json || inspect_print(json, err);
done:
    clb_text_free(&text);
    clb_convert_free(c);
    clb_free(ignore);
    return ok;
}
