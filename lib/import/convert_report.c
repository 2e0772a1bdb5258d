/* convert_report.c - what a conversion understood, and what it lost. */
#include <math.h>
#include <stdio.h>

#include "lib/import/convert_impl.h"

static const char *kind_of(const struct clb_tensor *t)
{
    enum clb_role r = t->spec.role;

    if (r == CLB_EMBED)
        return "embedding";
    if (t->spec.form == CLB_FORM_VECTOR)
        return "norms, biases";
    if (r == CLB_OUTPUT)
        return "output";
    if (t->spec.form == CLB_FORM_ROUTER)
        return "router";
    if (r >= CLB_DENSE_GATE && r <= CLB_DENSE_DOWN)
        return "dense MLP";
    if (r >= CLB_SHARED_GATE && r <= CLB_SHARED_DOWN)
        return "shared expert";
    return "attention";
}

struct table {
    struct clb_fidelity *row;
    struct clb_loss sum[16];
    uint32_t n, room;
};

static void add(struct table *t, const char *kind, enum clb_dtype dtype, const struct clb_loss *l,
                const char *name)
{
    uint32_t i = 0;
    double sqnr = clb_loss_sqnr(l);

    while (i < t->n && (strcmp(t->row[i].kind, kind) || t->row[i].dtype != dtype))
        i++;
    if (i == t->n) {
        if (i == t->room || i == sizeof t->sum / sizeof *t->sum)
            return;
        t->row[t->n++] = (struct clb_fidelity){ .dtype = dtype, .worst_sqnr_db = INFINITY };
        snprintf(t->row[i].kind, sizeof t->row[i].kind, "%s", kind);
    }
    t->row[i].tensors++;
    clb_loss_add(&t->sum[i], l);
    if (sqnr < t->row[i].worst_sqnr_db) {
        t->row[i].worst_sqnr_db = sqnr;
        snprintf(t->row[i].worst, sizeof t->row[i].worst, "%s", name);
    }
}

/* Calls `each` for every tensor and part of an expert, in file order. */
typedef void each_fn(void *arg, const struct clb_conversion *c, const struct clb_tensor *dense,
                     uint32_t layer, uint32_t expert, int part, const struct clb_loss *l);

static void walk(const struct clb_conversion *c, each_fn *each, void *arg)
{
    if (!c->dense_loss || !c->expert_loss)
        return;
    for (uint32_t i = 0; i < c->bind.n_dense; i++) {
        const struct clb_tensor *t = clb_plan_tensor(c->plan, i);

        each(arg, c, t, t->spec.layer, 0, 0, &c->dense_loss[i]);
    }
    for (uint32_t l = 0; l < c->arch.n_layer; l++)
        for (uint32_t e = 0; e < c->arch.layer_experts[l]; e++)
            for (int p = 0; p < CLB_PARTS; p++)
                each(arg, c, NULL, l, e, p,
                     &c->expert_loss[c->bind.first[l] + e * CLB_PARTS + (uint32_t)p]);
}

static void add_each(void *arg, const struct clb_conversion *c, const struct clb_tensor *dense,
                     uint32_t layer, uint32_t expert, int part, const struct clb_loss *l)
{
    char name[96];

    if (dense) {
        add(arg, kind_of(dense), dense->dtype, l, dense->name);
        return;
    }
    snprintf(name, sizeof name, "layer %u expert %u %s", layer, expert, clb_part_name[part]);
    add(arg, "experts", c->expert_dtype, l, name);
}

uint32_t clb_convert_fidelity(const struct clb_conversion *c, struct clb_fidelity *rows,
                              uint32_t room)
{
    struct table t = { .row = rows, .room = room };

    walk(c, add_each, &t);
    for (uint32_t i = 0; i < t.n; i++) {
        rows[i].values = t.sum[i].values;
        rows[i].underflows = t.sum[i].underflows;
        rows[i].sqnr_db = clb_loss_sqnr(&t.sum[i]);
    }
    return t.n;
}

static void write_each(void *arg, const struct clb_conversion *c, const struct clb_tensor *dense,
                       uint32_t layer, uint32_t expert, int part, const struct clb_loss *l)
{
    struct clb_text *out = arg;

    if (dense)
        clb_text_printf(out, "{\"tensor\":\"%s\",\"dtype\":\"%s\"", dense->name,
                        clb_dtype_name(dense->dtype));
    else
        clb_text_printf(out, "{\"layer\":%u,\"expert\":%u,\"part\":\"%s\",\"dtype\":\"%s\"", layer,
                        expert, clb_part_name[part], clb_dtype_name(c->expert_dtype));
    clb_text_printf(out, ",\"values\":%llu,\"sqnr_db\":", (unsigned long long)l->values);
    if (isinf(clb_loss_sqnr(l)))
        clb_text_puts(out, "null");
    else
        clb_text_printf(out, "%.2f", clb_loss_sqnr(l));
    clb_text_printf(out, ",\"underflows\":%llu}\n", (unsigned long long)l->underflows);
}

void clb_convert_report(const struct clb_conversion *c, struct clb_text *out)
{
    walk(c, write_each, out);
}

/* A value in one line: white space outside of strings is dropped, long ones are cut. */
static void show_value(const struct clb_setting *e, char *out, size_t room)
{
    bool string = false;
    size_t n = 0;

    for (size_t i = 0; i < e->raw.n && n + 5 < room; i++) {
        char c = e->raw.p[i];

        if (c == '\\' && string && i + 1 < e->raw.n)
            out[n++] = e->raw.p[i++], c = e->raw.p[i];
        else if (c == '"')
            string = !string;
        if (string || !strchr(" \t\r\n", c))
            out[n++] = c;
        if (c == ',' && !string)
            out[n++] = ' ';
        if (n + 5 >= room && i + 1 < e->raw.n)
            n += (size_t)snprintf(out + n, room - n, "...");
    }
    out[n] = 0;
}

void clb_convert_keys(const struct clb_conversion *c, clb_convert_key_fn *fn, void *arg)
{
    char value[64];

    for (uint32_t i = 0; i < c->config.n; i++) {
        const struct clb_setting *e = &c->config.setting[i];

        show_value(e, value, sizeof value);
        fn(arg, e->key, clb_key_state_name[e->state], value);
    }
}

const char *clb_convert_family(const struct clb_conversion *c)
{
    return c->config.accounted ? c->family->model_type : NULL;
}
