/* header.c - the JSON header as it is, and the places of experts and tensors as tables. */
#include <stdio.h>

#include "cmd/colibri-inspect/inspect.h"
#include "lib/cli/report.h"
#include "lib/cli/table.h"
#include "lib/format/layout.h"

typedef unsigned long long ull;

bool inspect_header(const struct clb_reader *r, const struct inspect_options *o,
                    struct clb_err *err)
{
    (void)o;
    (void)err;
    fwrite(r->json.p, 1, r->json.n, stdout);
    putchar('\n');
    return true; /* clb_finish looks at the state of stdout */
}

static bool print(struct clb_table *t, const struct clb_reader *r, const struct inspect_options *o,
                  struct clb_err *err)
{
    char name[INSPECT_PATH];

    if (o->many)
        printf("%s\n", inspect_name(name, r));
    if (!clb_table_print(t, stdout) && !ferror(stdout))
        return clb_fail_nomem(err, 0);
    if (o->many)
        putchar('\n');
    return true;
}

bool inspect_experts(const struct clb_reader *r, const struct inspect_options *o,
                     struct clb_err *err)
{
    struct clb_table *t =
        o->json ? NULL : clb_table_new(">layer|>expert|dtype|>offset|>bytes|crc32");

    for (uint32_t l = 0; l < r->n_expert_layers; l++) {
        const struct clb_expert_layer *x = &r->experts[l];
        if (t && l)
            clb_table_rule(t);
        for (uint32_t e = 0; e < x->count; e++) {
            if (o->json) {
                printf("{\"layer\":%u,\"expert\":%u,\"dtype\":\"%s\",\"offset\":%llu,\"size\":%llu,"
                       "\"crc32\":%u}\n",
                       x->layer, e, clb_dtype_name(x->part[0].dtype), (ull)x->offset[e],
                       (ull)x->size[e], x->crc32[e]);
                continue;
            }
            clb_table_row(t);
            clb_table_cell(t, "%u", x->layer);
            clb_table_cell(t, "%u", e);
            clb_table_cell(t, "%s", clb_dtype_name(x->part[0].dtype));
            clb_table_cell(t, "%llu", (ull)x->offset[e]);
            clb_table_cell(t, "%llu", (ull)x->size[e]);
            clb_table_cell(t, "%08x", x->crc32[e]);
        }
    }
    return o->json || print(t, r, o, err);
}

static void tensor_json(const struct clb_tensor *x)
{
    printf("{\"name\":\"%s\",\"dtype\":\"%s\",\"layout\":\"%s\",\"rows\":%u,\"columns\":%u,"
           "\"offset\":%llu,"
           "\"size\":%llu,\"crc32\":%u}\n",
           x->name, clb_dtype_name(x->dtype), clb_form_layout(x->spec.form), x->spec.rows,
           x->spec.cols, (ull)x->offset, (ull)x->size, x->crc32);
}

bool inspect_tensors(const struct clb_reader *r, const struct inspect_options *o,
                     struct clb_err *err)
{
    struct clb_table *t =
        o->json ? NULL : clb_table_new("tensor|dtype|layout|>rows|>columns|>offset|>bytes|crc32");

    for (uint32_t i = 0; i < r->n_tensors; i++) {
        const struct clb_tensor *x = &r->tensors[i];
        if (o->json) {
            tensor_json(x);
            continue;
        }
        clb_table_row(t);
        clb_table_cell(t, "%s", x->name);
        clb_table_cell(t, "%s", clb_dtype_name(x->dtype));
        clb_table_cell(t, "%s", clb_form_layout(x->spec.form));
        clb_table_cell(t, "%u", x->spec.rows);
        clb_table_cell(t, "%u", x->spec.cols);
        clb_table_cell(t, "%llu", (ull)x->offset);
        clb_table_cell(t, "%llu", (ull)x->size);
        clb_table_cell(t, "%08x", x->crc32);
    }
    return o->json || print(t, r, o, err);
}
