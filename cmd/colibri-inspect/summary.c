/* summary.c - a model on one screen: what it is, where its bytes are, what it came from. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/colibri-inspect/inspect.h"
#include "lib/cli/report.h"
#include "lib/cli/table.h"
#include "lib/token/tokenizer.h"

struct part {
    uint64_t tensors, bytes, per_token; /* bytes read for one token */
    double parameters, active;
    bool used[CLB_DTYPE_COUNT];
};

static void add_dense(struct part part[KINDS], const struct clb_reader *r)
{
    for (uint32_t i = 0; i < r->n_tensors; i++) {
        const struct clb_tensor *t = &r->tensors[i];
        struct part *p = &part[inspect_kind_of(t->spec.role)];
        double n = (double)t->spec.rows * t->spec.cols;
        bool lookup = t->spec.form == CLB_FORM_ROWS;
        bool learned = t->spec.role != CLB_ROPE_INV_FREQ &&
                       t->spec.role != CLB_ROPE_INV_FREQ_LONG;
        /* A tied output is the embedding once more, but every token reads all of it. */
        bool again = t->spec.role == CLB_OUTPUT && r->arch.tied_embeddings;
        p->tensors++;
        p->bytes += t->size;
        p->per_token += lookup ? t->size / t->spec.rows : t->size;
        p->parameters += learned && !again ? n : 0;
        p->active += lookup ? t->spec.cols : learned ? n : 0;
        p->used[t->dtype] = true;
    }
}

static void add_experts(struct part *p, const struct clb_reader *r)
{
    for (uint32_t l = 0; l < r->n_expert_layers; l++) {
        const struct clb_expert_layer *x = &r->experts[l];
        uint32_t active = clb_arch_layer_top_k(&r->arch, x->layer);
        double n = 3.0 * r->arch.expert_size * r->arch.hidden_size;
        if (r->arch.expert_bias)
            n += 2.0 * r->arch.expert_size + r->arch.hidden_size;
        for (uint32_t e = 0; e < x->count; e++)
            p->bytes += x->size[e];
        p->tensors += (uint64_t)x->count * CLB_PARTS;
        p->per_token += x->size[0] * active;
        p->parameters += n * x->count;
        p->active += n * active;
        for (int i = 0; i < CLB_PARTS; i++)
            p->used[x->part[i].dtype] = true;
    }
}

static const char *used_dtypes(char *buf, size_t room, const struct part *p)
{
    buf[0] = 0;
    for (int t = 0; t < CLB_DTYPE_COUNT; t++)
        if (p->used[t])
            snprintf(buf + strlen(buf), room - strlen(buf), "%s%s", *buf ? ", " : "",
                     clb_dtype_name((enum clb_dtype)t));
    return buf;
}

static void byte_row(struct clb_table *t, const char *name, const char *dtype, const struct part *p,
                     uint64_t whole)
{
    char a[CLB_HUMAN], b[CLB_HUMAN], c[32];
    double share = (double)p->bytes / (double)whole;

    clb_table_row(t);
    clb_table_cell(t, "%s", name);
    clb_table_cell(t, "%s", dtype);
    clb_table_cell(t, "%s", p->tensors ? clb_human_count(a, p->tensors) : "");
    clb_table_cell(t, "%s", p->tensors ? inspect_amount(c, p->parameters) : "");
    clb_table_cell(t, "%s", clb_human_bytes(a, p->bytes));
    clb_table_cell(t, "%.1f %%", 100 * share);
    clb_table_cell(t, "%s", p->per_token ? clb_human_bytes(b, p->per_token) : "");
    clb_table_cell(t, "%.*s", (int)(24 * share + 0.5),
                   p->bytes < whole ? "########################" : "");
}

static bool bytes_table(const struct clb_reader *r, const struct part part[KINDS])
{
    struct clb_table *t =
        clb_table_new("where the bytes are|dtype|>tensors|>parameters|>bytes|>share|>per token|");
    struct part all = { 0 }, text = { 0 }, rest = { .bytes = r->size };
    char types[64];

    for (int k = 0; k < KINDS; k++) {
        if (!part[k].tensors)
            continue;
        byte_row(t, inspect_kind_name[k], used_dtypes(types, sizeof types, &part[k]), &part[k],
                 r->size);
        all.tensors += part[k].tensors;
        all.parameters += part[k].parameters;
        all.per_token += part[k].per_token;
        rest.bytes -= part[k].bytes;
    }
    for (uint32_t i = 0; i < r->n_sections; i++)
        text.bytes += r->sections[i].size;
    rest.bytes -= text.bytes;
    all.bytes = r->size;
    if (text.bytes)
        byte_row(t, "tokenizer, template", "", &text, r->size);
    byte_row(t, "header, padding", "", &rest, r->size);
    clb_table_rule(t);
    byte_row(t, "whole file", "", &all, r->size);
    return clb_table_print(t, stdout);
}

/* -- the model -------------------------------------------------------------------------------- */

static void line(const char *label, const char *text)
{
    if (*text)
        printf("  %-14s %s\n", label, text);
}

static void model_lines(const struct clb_reader *r, const struct part part[KINDS])
{
    double parameters = 0, active = 0;
    char x[32], y[32];
    struct clb_err err;

    for (int k = 0; k < KINDS; k++) {
        parameters += part[k].parameters;
        active += part[k].active;
    }
    printf("  %-14s %s, %s active per token\n", "parameters", inspect_amount(x, parameters),
           inspect_amount(y, active));
    inspect_describe(&r->arch);
    if (!clb_arch_runnable(&r->arch, &err))
        printf("  %-14s no: %s\n", "runs here", err.text);
}

/* -- text and origin -------------------------------------------------------------------------- */

/* Whether the compiled tokenizer is one that this version understands. */
static void tokenizer_line(const struct clb_reader *r)
{
    const struct clb_section *tables = clb_reader_section(r, "tokenizer.tables");
    const struct clb_section *chat = clb_reader_section(r, "chat_template");
    struct clb_tokenizer *tokenizer = NULL;
    char count[CLB_HUMAN], size[CLB_HUMAN], text[128];
    struct clb_err err;

    if (!tables) {
        line("tokenizer", "none: token ids only");
    } else if (!clb_tokenizer_open(&tokenizer, r->data + tables->offset, tables->size, &err)) {
        line("tokenizer", err.text);
    } else {
        snprintf(text, sizeof text, "%s tokens, %s of tables%s",
                 clb_human_count(count, clb_tokenizer_size(tokenizer)),
                 clb_human_bytes(size, tables->size), chat ? ", chat template" : "");
        line("tokenizer", text);
    }
    clb_tokenizer_close(tokenizer);
}

static void generation_lines(const struct clb_generation *g)
{
    struct clb_text t = { 0 };

    if (g->bos_token >= 0)
        clb_text_printf(&t, "begin %d, ", g->bos_token);
    clb_text_puts(&t, g->n_eos ? "end" : "no end token");
    for (uint32_t i = 0; i < g->n_eos; i++)
        clb_text_printf(&t, i ? ", %d" : " %d", g->eos_token[i]);
    line("token ids", t.p ? t.p : "");
    clb_text_clear(&t);
    if (!isnan(g->temperature))
        clb_text_printf(&t, ", temperature %g", (double)g->temperature);
    if (g->top_k >= 0)
        clb_text_printf(&t, ", top-k %d", g->top_k);
    if (!isnan(g->top_p))
        clb_text_printf(&t, ", top-p %g", (double)g->top_p);
    if (!isnan(g->min_p))
        clb_text_printf(&t, ", min-p %g", (double)g->min_p);
    if (!isnan(g->repetition_penalty))
        clb_text_printf(&t, ", repetition penalty %g", (double)g->repetition_penalty);
    line("recommended", t.n ? t.p + 2 : "");
    clb_text_free(&t);
}

static void origin_lines(const struct clb_reader *r)
{
    char text[256], size[CLB_HUMAN];

    line("made by", inspect_safe(text, sizeof text, r->converter));
    for (uint32_t i = 0; i < r->n_ignored; i++)
        line(i ? "" : "ignored keys", inspect_safe(text, sizeof text, r->ignored_keys[i].p));
    for (uint32_t i = 0; i < r->n_sources; i++)
        printf("  %-14s %s, %s, crc32 %08x\n", i ? "" : "from",
               inspect_safe(text, sizeof text, r->sources[i].file),
               clb_human_bytes(size, r->sources[i].size), r->sources[i].crc32);
}

bool inspect_summary(const struct clb_reader *r, const struct inspect_options *o,
                     struct clb_err *err)
{
    struct part part[KINDS] = { 0 };
    bool bold = clb_term_colour(stdout);
    char name[INSPECT_PATH];
    char size[CLB_HUMAN];

    add_dense(part, r);
    add_experts(&part[KIND_EXPERTS], r);
    printf("%s%s%s: %s, experts %s, dense %s\n", bold ? "\033[1m" : "", inspect_name(name, r),
           bold ? "\033[0m" : "", clb_human_bytes(size, r->size), inspect_expert_dtype(r),
           inspect_dense_dtype(r));
    model_lines(r, part);
    tokenizer_line(r);
    generation_lines(&r->generation);
    origin_lines(r);
    putchar('\n');
    if (!bytes_table(r, part) && !ferror(stdout))
        return clb_fail_nomem(err, 0);
    if (o->many)
        putchar('\n');
    return true;
}
