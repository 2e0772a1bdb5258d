/* --help and the list for shells, from the option table. */
#include <string.h>

#include "lib/cli/opt.h"

enum { LINES = 40, COLUMNS = 80, MOST_LEFT = 34 };

/* "  -t, --threads N" */
static int left_text(char *buf, size_t n, const struct clb_opt *o)
{
    char letter[8] = "    ";

    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    return snprintf(buf, n, "  %s--%s%s%s", letter, o->name, o->arg ? " " : "",
                    o->arg ? o->arg : "");
}

/* Where the explanations start: behind the longest option. */
static int left_width(const struct clb_program *p)
{
    char text[96];
    int most = 0;

    for (const struct clb_opt *o = p->opts; o->kind != CLB_OPT_END; o++) {
        int n = o->kind == CLB_OPT_GROUP || o->hidden ? 0 : left_text(text, sizeof text, o);
        if (n > most && n <= MOST_LEFT)
            most = n;
    }
    return most + 2;
}

/* Prints words behind what already fills `column` columns, broken before column 80; further lines
 * start at `indent`. Returns the number of lines. With out == NULL it only counts. */
static unsigned wrap(FILE *out, const char *text, int column, int indent)
{
    unsigned lines = 1;
    bool start = column == 0 || column == indent;

    while (*text) {
        int n = (int)strcspn(text, " ");
        if (!start && column + 1 + n > COLUMNS) {
            if (out)
                fprintf(out, "\n%*s", indent, "");
            column = indent;
            start = true;
            lines++;
        }
        if (out)
            fprintf(out, "%s%.*s", start ? "" : " ", n, text);
        column += n + !start;
        start = false;
        text += n;
        text += strspn(text, " ");
    }
    if (out)
        fputc('\n', out);
    return lines;
}

static unsigned option_line(FILE *out, const struct clb_opt *o, int width)
{
    char left[96];
    int n = left_text(left, sizeof left, o);

    if (n >= width) { /* too long to stand beside */
        if (out)
            fprintf(out, "%s\n%*s", left, width, "");
        return 1 + wrap(out, o->help, width, width);
    }
    if (out)
        fprintf(out, "%-*s", width, left);
    return wrap(out, o->help, n > width ? n : width, width);
}

/* The whole help. `airy`: an empty line before each group. */
static unsigned write_help(const struct clb_program *p, FILE *out, bool airy)
{
    char usage[32];
    int n = snprintf(usage, sizeof usage, "usage: %s", p->name);
    unsigned lines = 0;
    int width = left_width(p);

    if (out)
        fputs(usage, out);
    lines += wrap(out, p->synopsis, n, n + 1);
    lines += wrap(out, p->summary, 0, 0);
    for (const struct clb_opt *o = p->opts; o->kind != CLB_OPT_END; o++) {
        if (o->hidden)
            continue;
        if (o->kind != CLB_OPT_GROUP) {
            lines += option_line(out, o, width);
            continue;
        }
        lines += 1 + airy;
        if (out)
            fprintf(out, "%s%s:\n", airy ? "\n" : "", o->name);
    }
    if (p->example) {
        lines += 1u + airy;
        for (const char *s = p->example; (s = strchr(s, '\n')); s++)
            lines++;
        if (out)
            fprintf(out, "%s%s\n", airy ? "\n" : "", p->example);
    }
    return lines;
}

void clb_opt_help(const struct clb_program *p, FILE *out)
{
    write_help(p, out, write_help(p, NULL, true) <= LINES);
}

void clb_opt_completions(const struct clb_program *p, FILE *out)
{
    for (const struct clb_opt *o = p->opts; o->kind != CLB_OPT_END; o++)
        if (o->kind != CLB_OPT_GROUP && !o->hidden)
            fprintf(out, "--%s%s%s\n", o->name, o->arg ? "=" : "",
                    o->kind == CLB_OPT_CHOICE ? o->arg : "");
}
