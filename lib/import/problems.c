#include "lib/import/problems.h"

#include <stdarg.h>
#include <stdio.h>

static void add_line(struct clb_text *t, const char *fmt, va_list ap)
{
    char line[480];

    vsnprintf(line, sizeof line, fmt, ap);
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    clb_text_puts(t, line);
    clb_text_puts(t, "\n");
}

void clb_problem(struct clb_problems *p, const char *fmt, ...)
{
    va_list ap;

    if (p->n++ >= CLB_PROBLEMS_SHOWN)
        return;
    va_start(ap, fmt);
    add_line(&p->text, fmt, ap);
    va_end(ap);
}

bool clb_problems_none(struct clb_problems *p, const char *where, struct clb_err *err)
{
    if (p->n == 0)
        return true;
    if (p->text.failed)
        return clb_fail_nomem(err, p->text.room);
    if (p->n == 1) {
        clb_fail(err, CLB_BAD_INPUT, "%s: %.*s", where, (int)p->text.n - 1, p->text.p);
        clb_text_clear(&p->text);
    } else {
        if (p->n > CLB_PROBLEMS_SHOWN)
            clb_text_printf(&p->text, "and %u more\n", p->n - CLB_PROBLEMS_SHOWN);
        clb_fail(err, CLB_BAD_INPUT, "%s: %u problems", where, p->n);
    }
    return clb_err_place(err, where, NULL, CLB_NO_OFFSET);
}

void clb_problems_free(struct clb_problems *p)
{
    clb_text_free(&p->text);
    p->n = 0;
}

void clb_note(struct clb_text *t, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    add_line(t, fmt, ap);
    va_end(ap);
}
