#include "lib/cli/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/str.h"
#include "lib/cli/report.h"

enum { MOST_COLUMNS = 24 };

struct clb_table {
    char *headings; /* owned; cut into pieces */
    const char *heading[MOST_COLUMNS];
    bool right[MOST_COLUMNS];
    unsigned n_column;
    char **cell; /* owned, n_row * n_column; NULL is empty */
    bool *rule;  /* owned; before row i */
    size_t n_row, room;
    unsigned at; /* next column of the last row */
    bool rule_next, failed;
};

/* What clb_table_new returns when there is no memory: takes nothing, prints nothing. */
static struct clb_table nothing = { .failed = true };

struct clb_table *clb_table_new(const char *columns)
{
    struct clb_table *t = calloc(1, sizeof *t);

    if (!t || !(t->headings = strdup(columns))) {
        free(t);
        return &nothing;
    }
    for (char *rest = t->headings, *s; (s = strsep(&rest, "|")) && t->n_column < MOST_COLUMNS;) {
        t->right[t->n_column] = *s == '>';
        t->heading[t->n_column++] = s + (*s == '>');
    }
    return t;
}

void clb_table_row(struct clb_table *t)
{
    if (t->failed)
        return;
    if (t->n_row == t->room) {
        size_t room = t->room ? 2 * t->room : 32;
        char **cell = realloc(t->cell, room * t->n_column * sizeof *cell);
        if (cell)
            t->cell = cell;
        bool *rule = realloc(t->rule, room * sizeof *rule);
        if (rule)
            t->rule = rule;
        if (!cell || !rule) {
            t->failed = true;
            return;
        }
        t->room = room;
    }
    memset(t->cell + t->n_row * t->n_column, 0, t->n_column * sizeof *t->cell);
    t->rule[t->n_row++] = t->rule_next;
    t->rule_next = false;
    t->at = 0;
}

/* A cell never breaks the line, whatever names a file has. */
static void make_printable(char *s)
{
    for (size_t n = strlen(s), i = 0, len; i < n; i += len ? len : 1) {
        unsigned char c = (unsigned char)s[i];
        len = clb_utf8_len(s + i, n - i);
        if (len == 0 || c < 0x20 || c == 0x7f)
            s[i] = '?';
        else if (c == 0xc2 && (unsigned char)s[i + 1] < 0xa0)
            s[i] = s[i + 1] = '?';
    }
}

void clb_table_cell(struct clb_table *t, const char *fmt, ...)
{
    char *text;
    va_list ap;

    if (t->failed || t->n_row == 0 || t->at == t->n_column)
        return;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0) {
        t->failed = true;
        return;
    }
    make_printable(text);
    t->cell[(t->n_row - 1) * t->n_column + t->at++] = text;
}

void clb_table_rule(struct clb_table *t)
{
    t->rule_next = true;
}

static void print_rule(FILE *f, const struct clb_table *t, const int *width)
{
    for (unsigned c = 0; c < t->n_column; c++) {
        for (int i = 0; i < width[c]; i++)
            fputc('-', f);
        fputs(c + 1 < t->n_column ? "  " : "\n", f);
    }
}

/* One line between two sequences for a terminal; `cell` has n_column texts. No space at the end. */
static void print_line(FILE *f, const struct clb_table *t, const int *width,
                       const char *const *cell, const char *before, const char *after)
{
    int owed = 0;

    fputs(before, f);
    for (unsigned c = 0; c < t->n_column; c++) {
        const char *text = cell[c] ? cell[c] : "";
        int gap = width[c] - clb_text_columns(text);
        if (t->right[c])
            owed += gap;
        if (*text) {
            fprintf(f, "%*s%s", owed, "", text);
            owed = 0;
        }
        owed += (t->right[c] ? 0 : gap) + 2;
    }
    fprintf(f, "%s\n", after);
}

static void free_table(struct clb_table *t)
{
    if (t == &nothing)
        return;
    for (size_t i = 0; i < t->n_row * t->n_column; i++)
        free(t->cell[i]);
    free(t->cell);
    free(t->rule);
    free(t->headings);
    free(t);
}

bool clb_table_print(struct clb_table *t, FILE *f)
{
    int width[MOST_COLUMNS] = { 0 };
    bool ok = !t->failed, bold = ok && clb_term_colour(f);

    for (unsigned c = 0; ok && c < t->n_column; c++) {
        width[c] = clb_text_columns(t->heading[c]);
        for (size_t r = 0; r < t->n_row; r++) {
            const char *text = t->cell[r * t->n_column + c];
            int w = text ? clb_text_columns(text) : 0;
            if (w > width[c])
                width[c] = w;
        }
    }
    if (ok) {
        print_line(f, t, width, t->heading, bold ? "\033[1m" : "", bold ? "\033[0m" : "");
        print_rule(f, t, width);
    }
    for (size_t r = 0; ok && r < t->n_row; r++) {
        if (t->rule[r])
            print_rule(f, t, width);
        print_line(f, t, width, (const char *const *)t->cell + r * t->n_column, "", "");
    }
    free_table(t);
    return ok;
}
