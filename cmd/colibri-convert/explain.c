#include "cmd/colibri-convert/explain.h"

#include <stdio.h>
#include <string.h>

#include "lib/base/str.h"
#include "lib/cli/table.h"
#include "lib/format/arch.h"
#include "lib/import/origin.h"

static void key_row(void *arg, const char *key, const char *state, const char *value)
{
    clb_table_row(arg);
    clb_table_cell(arg, "%s", key);
    clb_table_cell(arg, "%s", state);
    clb_table_cell(arg, "%s", value);
}

/* -- the descriptor -------------------------------------------------------------------------- */

struct fields {
    struct clb_table *table;
    struct clb_text neutral; /* owned: their names, in lines */
    size_t line;             /* where the last line begins */
};

/* "[0,8,8,8]" as "0, 8 (3 layers)". */
static void show_list(struct clb_text *out, const char *list)
{
    const char *p = list + 1;

    while (*p && *p != ']') {
        size_t n = strcspn(p, ",]"), run = 0;
        const char *item = p;

        while (strcspn(p, ",]") == n && !strncmp(p, item, n)) {
            run++;
            p += n + (p[n] == ',');
            if (*p == ']')
                break;
        }
        clb_text_printf(out, "%s%.*s", out->n ? ", " : "", (int)n, item);
        if (run > 1)
            clb_text_printf(out, " (%zu layers)", run);
    }
}

static void add_neutral(struct fields *x, const char *name)
{
    if (x->neutral.n)
        clb_text_puts(&x->neutral, ",");
    if (x->neutral.n - x->line + strlen(name) > 74) {
        clb_text_puts(&x->neutral, "\n");
        x->line = x->neutral.n;
    }
    clb_text_printf(&x->neutral, " %s", name);
}

static void field_row(void *arg, const char *name, const char *value)
{
    struct fields *x = arg;
    struct clb_text list = { 0 };

    if (!*value) {
        add_neutral(x, name);
        return;
    }
    if (*value == '[')
        show_list(&list, value);
    clb_table_row(x->table);
    clb_table_cell(x->table, "%s", name);
    clb_table_cell(x->table, "%s", list.n ? list.p : value);
    clb_text_free(&list);
}

bool convert_explain(const struct clb_conversion *c)
{
    const char *family = clb_convert_family(c);
    struct fields x = { 0 };
    struct clb_table *keys;

    if (!family)
        return true;
    keys = clb_table_new("config.json|what became of it|value");
    x.table = clb_table_new("descriptor|value");
    clb_convert_keys(c, key_row, keys);
    clb_arch_fields(clb_convert_arch(c), field_row, &x);
    printf("family %s\n\n", family);
    bool ok = clb_table_print(keys, stdout);
    putchar('\n');
    ok = clb_table_print(x.table, stdout) && ok && !x.neutral.failed;
    printf("\nneutral:\n%s\n", x.neutral.n ? x.neutral.p : " none");
    clb_text_free(&x.neutral);
    return ok;
}
