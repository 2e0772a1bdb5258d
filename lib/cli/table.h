/* table.h - tables for people: columns aligned, numbers to the right, a rule under the heading. */
#ifndef CLB_CLI_TABLE_H
#define CLB_CLI_TABLE_H

#include <stdbool.h>
#include <stdio.h>

struct clb_table;

/* `columns`: headings separated by '|'; a heading that starts with '>' is aligned right
 * ("name|>bytes|>share"). Never NULL (exits are the caller's: when out of memory every later call
 * is a no-op and clb_table_print returns false). */
struct clb_table *clb_table_new(const char *columns);
void clb_table_row(struct clb_table *t); /* starts a row */
void clb_table_cell(struct clb_table *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void clb_table_rule(struct clb_table *t); /* a rule before the next row */
/* Prints with two spaces between columns, then frees. Bold heading when f is a terminal with
 * colour. */
bool clb_table_print(struct clb_table *t, FILE *f);

#endif
