#include "lib/cli/table.h"

#include <stdlib.h>

#include "test/check.h"

static void test_layout(void)
{
    char *text;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    struct clb_table *t = clb_table_new("name|>bytes|note");

    clb_table_row(t);
    clb_table_cell(t, "%s", "a");
    clb_table_cell(t, "%d", 12345);
    clb_table_cell(t, "x");
    clb_table_row(t);
    clb_table_cell(t, "\xc3\xa9t\xc3\xa9 \xe6\xbc\xa2");
    clb_table_cell(t, "%d", 7);
    clb_table_rule(t);
    clb_table_row(t);
    clb_table_cell(t, "two\nlines\x1b");
    clb_table_cell(t, "%s", "");
    clb_table_cell(t, "end");
    clb_table_cell(t, "too many");
    CHECK(clb_table_print(t, f));
    fclose(f);
    CHECK_STR(text, "name        bytes  note\n"
                    "----------  -----  ----\n"
                    "a           12345  x\n"
                    "\xc3\xa9t\xc3\xa9 \xe6\xbc\xa2          7\n"
                    "----------  -----  ----\n"
                    "two?lines?         end\n");
    free(text);
}

static void test_empty_and_long(void)
{
    char *text;
    size_t n;
    FILE *f = open_memstream(&text, &n);
    struct clb_table *t = clb_table_new(">n");

    clb_table_cell(t, "no row yet");
    for (int i = 0; i < 1000; i++) {
        clb_table_row(t);
        clb_table_cell(t, "%d", i);
    }
    CHECK(clb_table_print(t, f));
    CHECK(clb_table_print(clb_table_new("a||b"), f));
    fclose(f);
    CHECK_HAS(text, "  n\n---\n  0\n");
    CHECK_HAS(text, "\n999\na    b\n-    -\n");
    free(text);
}

int main(void)
{
    TEST(test_layout);
    TEST(test_empty_and_long);
    return test_result();
}
