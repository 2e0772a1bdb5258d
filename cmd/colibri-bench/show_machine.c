/* show_machine.c - what --machine found, as tables, JSON and CSV. */
#include "cmd/colibri-bench/machine.h"

#include <string.h>

#include "cmd/colibri-bench/bench.h"
#include "lib/cli/report.h"
#include "lib/cli/table.h"

/* -- for people ------------------------------------------------------------------------------- */

static const char *binary_bytes(char out[static CLB_HUMAN], uint64_t bytes)
{
    bool mega = bytes >= 1 << 20;

    snprintf(out, CLB_HUMAN, "%.4g %s", (double)bytes / (mega ? 1 << 20 : 1 << 10),
             mega ? "MiB" : "KiB");
    return out;
}

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

static void show_caches(const struct bench_facts *f, FILE *out)
{
    char size[CLB_HUMAN];

    fprintf(out, "Caches   ");
    for (uint32_t i = 0; i < f->n_cache; i++) {
        const struct bench_cache *c = &f->cache[i];
        char kind = c->type[0] == 'D' ? 'd' : c->type[0] == 'I' ? 'i' : '\0';

        fprintf(out, "%sL%u%.*s ", i ? ", " : "", c->level, kind != '\0', &kind);
        if (c->n > 1)
            fprintf(out, "%u x ", c->n);
        fprintf(out, "%s", binary_bytes(size, c->bytes));
    }
    fprintf(out, "%s\n", f->n_cache ? "" : "unknown");
}

static void show_facts(const struct bench_machine *m, FILE *out)
{
    const struct bench_facts *f = &m->facts;
    char a[CLB_HUMAN], b[CLB_HUMAN];

    fprintf(out, "Machine  ");
    clb_put_safe(out, f->cpu);
    fprintf(out, "%s; %s\n", f->virtual_machine ? " (virtual machine)" : "", f->kernel);
    fprintf(out, "Cores    ");
    if (f->cores)
        fprintf(out, "%u core%s with ", f->cores, plural(f->cores));
    fprintf(out, "%u thread%s", f->processors, plural(f->processors));
    if (f->nodes)
        fprintf(out, ", %u NUMA node%s", f->nodes, plural(f->nodes));
    fprintf(out, "; %u thread%s by default (%s)\n", f->threads, plural(f->threads), f->why);
    show_caches(f, out);
    fprintf(out, "Memory   %s, %s available", clb_human_bytes(a, f->memory),
            clb_human_bytes(b, f->available));
    if (*f->huge_pages)
        fprintf(out, "; transparent huge pages: %s", f->huge_pages);
    fprintf(out, "\nLevel    %s\n", clb_isa_name(m->isa));
    if (m->load_known)
        fprintf(out, "Load     %.2f %.2f %.2f before, %.2f %.2f %.2f after (/proc/loadavg)\n",
                m->before[0], m->before[1], m->before[2], m->after[0], m->after[1], m->after[2]);
}

static void cell_rate(struct clb_table *t, double per_second)
{
    double g = per_second / 1e9;

    if (per_second > 0)
        clb_table_cell(t, "%.*f", g < 9.995 ? 2 : g < 999.5 ? 1 : 0, g);
    else
        clb_table_cell(t, "-");
}

static void cell_spread(struct clb_table *t, const struct bench_rate *r)
{
    if (r->median > 0)
        clb_table_cell(t, "± %.0f %%", (r->most - r->least) / 2 / r->median * 100);
    else
        clb_table_cell(t, "-");
}

static bool show_counts(const struct bench_machine *m, FILE *out)
{
    struct clb_table *t = clb_table_new(">threads|>read GB/s|>spread|>int8 GMAC/s|>spread|"
                                        ">f32 GMAC/s|>spread|>clock GHz");

    for (uint32_t i = 0; i < m->n; i++) {
        const struct bench_ceilings *c = &m->at[i];

        clb_table_row(t);
        clb_table_cell(t, "%u", c->threads);
        for (int l = 0; l < BENCH_LIMITS; l++) {
            cell_rate(t, c->rate[l].median);
            cell_spread(t, &c->rate[l]);
        }
        cell_rate(t, c->clock.median);
    }
    return clb_table_print(t, out);
}

static void level_row(struct clb_table *t, const struct bench_ceilings *c)
{
    for (int l = BENCH_INT8; l <= BENCH_F32; l++) {
        cell_rate(t, c->rate[l].median);
        if (c->clock.median > 0)
            clb_table_cell(t, "%.1f", c->rate[l].median / c->clock.median);
        else
            clb_table_cell(t, "-");
        clb_table_cell(t, "%s", l == BENCH_INT8 ? c->int8_by : c->f32_by);
    }
}

static bool show_levels(const struct bench_machine *m, FILE *out)
{
    struct clb_table *t = clb_table_new("level|>int8 GMAC/s|>a cycle|by|>f32 GMAC/s|>a cycle|by");
    const char *why;

    for (int isa = 0; isa < CLB_ISA_COUNT; isa++) {
        clb_table_row(t);
        clb_table_cell(t, "%s", clb_isa_name((enum clb_isa)isa));
        if (clb_isa_available((enum clb_isa)isa, &why)) {
            level_row(t, &m->level[isa]);
        } else {
            clb_table_cell(t, "-");
            clb_table_cell(t, "-");
            clb_table_cell(t, "%s", why);
        }
    }
    return clb_table_print(t, out);
}

static void show_source(const struct bench_machine *m, FILE *out)
{
    char size[CLB_HUMAN];

    fprintf(out, "Read     %s of ", clb_human_bytes(size, m->source.bytes));
    if (m->source.file.data)
        clb_put_safe(out, m->o->model);
    else
        fputs("anonymous memory", out);
    fprintf(out, "%s, a contiguous piece per thread%s\n", m->source.file.data ? ", mapped" : "",
            m->source.cached ? "; so little that caches hold it: this is not memory" : "");
}

static void show_disk(const struct bench_disk *d, FILE *out)
{
    char size[CLB_HUMAN];

    fprintf(out, "Disk     ");
    if (*d->why_not) {
        fputs("not measured: ", out);
        clb_put_safe(out, d->why_not);
        fputc('\n', out);
        return;
    }
    fprintf(out, "%.2f GB/s read, ", d->read / 1e9);
    if (d->write > 0)
        fprintf(out, "%.2f GB/s written; a temporary file of %s in ", d->write / 1e9,
                clb_human_bytes(size, d->bytes));
    else
        fprintf(out, "%s of ", clb_human_bytes(size, d->bytes));
    clb_put_safe(out, d->path);
    fprintf(out, ", %s\n",
            d->direct ? "O_DIRECT: without the page cache" :
                        "without O_DIRECT: pages were dropped before, some may have stayed");
}

bool bench_machine_show(const struct bench_machine *m, FILE *out)
{
    show_facts(m, out);
    fputc('\n', out);
    if (!show_counts(m, out))
        return false;
    fputc('\n', out);
    show_source(m, out);
    show_disk(&m->disk, out);
    fputs("\nOne thread, by level:\n\n", out);
    return show_levels(m, out);
}

/* -- for programs ----------------------------------------------------------------------------- */

static void json_rate(struct clb_text *t, const char *name, const struct bench_rate *r)
{
    clb_text_printf(t, ", \"%s\": {\"median\": %.6g, \"min\": %.6g, \"max\": %.6g}", name,
                    r->median / 1e9, r->least / 1e9, r->most / 1e9);
}

void bench_json_ceilings(struct clb_text *t, const struct bench_ceilings *c)
{
    clb_text_printf(t, "{\"threads\": %u, \"samples\": %u", c->threads, c->samples);
    json_rate(t, "read_gb_per_s", &c->rate[BENCH_READ]);
    json_rate(t, "int8_gmac_per_s", &c->rate[BENCH_INT8]);
    json_rate(t, "f32_gmac_per_s", &c->rate[BENCH_F32]);
    json_rate(t, "clock_ghz", &c->clock);
    clb_text_puts(t, ", ");
    bench_json_string(t, "int8_by", c->int8_by);
    clb_text_puts(t, ", ");
    bench_json_string(t, "f32_by", c->f32_by);
    clb_text_puts(t, "}");
}

/* "load": of 1, 5 and 15 minutes, before and after */
void bench_json_load(struct clb_text *t, const double before[3], const double after[3])
{
    clb_text_printf(t, "  \"load\": {\"before\": [%.2f, %.2f, %.2f], ", before[0], before[1],
                    before[2]);
    clb_text_printf(t, "\"after\": [%.2f, %.2f, %.2f]},\n", after[0], after[1], after[2]);
}

static void json_facts(struct clb_text *t, const struct bench_machine *m)
{
    const struct bench_facts *f = &m->facts;

    clb_text_puts(t, "  \"machine\": {");
    bench_json_string(t, "cpu", f->cpu);
    clb_text_puts(t, ", ");
    bench_json_string(t, "kernel", f->kernel);
    clb_text_printf(t, ", \"virtual\": %s,\n    \"sockets\": %u, \"cores\": %u",
                    f->virtual_machine ? "true" : "false", f->sockets, f->cores);
    clb_text_printf(t, ", \"processors\": %u, \"numa_nodes\": %u, \"threads\": %u, ",
                    f->processors, f->nodes, f->threads);
    bench_json_string(t, "why", f->why);
    clb_text_puts(t, ",\n    \"caches\": [");
    for (uint32_t i = 0; i < f->n_cache; i++) {
        const struct bench_cache *c = &f->cache[i];

        clb_text_printf(t, "%s{\"level\": %u, ", i ? ", " : "", c->level);
        bench_json_string(t, "type", c->type);
        clb_text_printf(t, ", \"bytes\": %llu, \"count\": %u, \"shared_by\": %u}",
                        (unsigned long long)c->bytes, c->n, c->shared);
    }
    clb_text_printf(t, "],\n    \"memory\": %llu, \"available\": %llu, ",
                    (unsigned long long)f->memory, (unsigned long long)f->available);
    bench_json_string(t, "huge_pages", f->huge_pages);
    clb_text_puts(t, "},\n");
    if (m->load_known)
        bench_json_load(t, m->before, m->after);
}

static void json_levels(struct clb_text *t, const struct bench_machine *m)
{
    const char *why;

    clb_text_puts(t, "  ");
    bench_json_string(t, "level", clb_isa_name(m->isa));
    clb_text_puts(t, ",\n  \"levels\": [");
    for (int isa = 0; isa < CLB_ISA_COUNT; isa++) {
        bool has = clb_isa_available((enum clb_isa)isa, &why);

        clb_text_printf(t, "%s\n    {", isa ? "," : "");
        bench_json_string(t, "name", clb_isa_name((enum clb_isa)isa));
        clb_text_printf(t, ", \"available\": %s, ", has ? "true" : "false");
        if (has) {
            clb_text_puts(t, "\"ceilings\": ");
            bench_json_ceilings(t, &m->level[isa]);
        } else {
            bench_json_string(t, "why_not", why);
        }
        clb_text_puts(t, "}");
    }
    clb_text_puts(t, "\n  ],\n");
}

static void json_disk(struct clb_text *t, const struct bench_disk *d)
{
    clb_text_puts(t, "  \"disk\": {");
    bench_json_string(t, "path", d->path);
    if (*d->why_not) {
        clb_text_puts(t, ", ");
        bench_json_string(t, "why_not", d->why_not);
    } else {
        clb_text_printf(t, ", \"read_gb_per_s\": %.6g, \"bytes\": %llu, \"direct\": %s",
                        d->read / 1e9, (unsigned long long)d->bytes, d->direct ? "true" : "false");
        if (d->write > 0)
            clb_text_printf(t, ", \"write_gb_per_s\": %.6g", d->write / 1e9);
    }
    clb_text_puts(t, "}\n");
}

void bench_machine_json(struct clb_text *t, const struct bench_machine *m)
{
    clb_text_puts(t, "{\n  ");
    bench_json_string(t, "version", colibri_version());
    clb_text_puts(t, ",\n");
    json_facts(t, m);
    json_levels(t, m);
    clb_text_puts(t, "  \"read\": {");
    bench_json_string(t, "of", m->source.file.data ? m->o->model : "anonymous memory");
    clb_text_printf(t, ", \"bytes\": %llu, \"cached\": %s},\n  \"ceilings\": [",
                    (unsigned long long)m->source.bytes, m->source.cached ? "true" : "false");
    for (uint32_t i = 0; i < m->n; i++) {
        clb_text_puts(t, i ? ",\n    " : "\n    ");
        bench_json_ceilings(t, &m->at[i]);
    }
    clb_text_puts(t, "\n  ],\n");
    json_disk(t, &m->disk);
    clb_text_puts(t, "}\n");
}

void bench_machine_csv(struct clb_text *t, const struct bench_machine *m)
{
    clb_text_puts(t, "threads,samples,read_gb_per_s,read_min,read_max,int8_gmac_per_s,int8_min,"
                     "int8_max,f32_gmac_per_s,f32_min,f32_max,clock_ghz\n");
    for (uint32_t i = 0; i < m->n; i++) {
        const struct bench_ceilings *c = &m->at[i];

        clb_text_printf(t, "%u,%u", c->threads, c->samples);
        for (int l = 0; l < BENCH_LIMITS; l++)
            clb_text_printf(t, ",%.6g,%.6g,%.6g", c->rate[l].median / 1e9, c->rate[l].least / 1e9,
                            c->rate[l].most / 1e9);
        clb_text_printf(t, ",%.6g\n", c->clock.median / 1e9);
    }
}
