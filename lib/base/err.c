#include "lib/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Longer than err->text, since paths and names can be. */
enum { LONG_TEXT = 6000 };

/* A text that is too long loses its middle: what it is about stands first, the cause last. */
static void keep_ends(char *to, size_t room, const char *from)
{
    static const char gap[] = "...";
    size_t n = strlen(from), head = room / 3, tail = room - head - sizeof gap;

    if (n < room) {
        memcpy(to, from, n + 1);
        return;
    }
    memcpy(to, from, head);
    memcpy(to + head, gap, sizeof gap - 1);
    memcpy(to + head + sizeof gap - 1, from + n - tail, tail + 1);
}

/* Formatted aside first: the arguments may point into err->text itself. `sys` 0: no errno. */
static void fill(struct clb_err *err, enum clb_code code, int sys, const char *site,
                 const char *fmt, va_list ap)
{
    char text[LONG_TEXT];

    vsnprintf(text, sizeof text, fmt, ap);
    *err = (struct clb_err){ .code = code, .sys = sys, .site = site };
    if (sys) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, ": %s", strerror(sys));
    }
    keep_ends(err->text, sizeof err->text, text);
}

bool clb_fail_at(struct clb_err *err, enum clb_code code, const char *site, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fill(err, code, 0, site, fmt, ap);
    va_end(ap);
    return false;
}

bool clb_fail_sys_at(struct clb_err *err, enum clb_code code, const char *site, const char *fmt,
                     ...)
{
    int sys = errno; /* before anything below can change it */
    va_list ap;

    if (sys == ENOSPC || sys == EDQUOT || sys == EFBIG || sys == ENOMEM)
        code = CLB_NO_SPACE;
    if (sys == EMFILE || sys == ENFILE) /* no fault of the file */
        code = CLB_FAILED;
    va_start(ap, fmt);
    fill(err, code, sys, site, fmt, ap);
    va_end(ap);
    return false;
}

bool clb_fail_in(struct clb_err *err, const char *fmt, ...)
{
    char text[LONG_TEXT + sizeof err->text];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, LONG_TEXT, fmt, ap);
    va_end(ap);

    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, ": %s", err->text);
    keep_ends(err->text, sizeof err->text, text);
    return false;
}

bool clb_err_place(struct clb_err *err, const char *file, const char *field, uint64_t offset)
{
    if (file)
        keep_ends(err->file, sizeof err->file, file);
    if (field)
        snprintf(err->field, sizeof err->field, "%s", field);
    if (offset != CLB_NO_OFFSET) {
        err->offset = offset;
        err->has_offset = true;
    }
    return false;
}

bool clb_fail_nomem_at(struct clb_err *err, const char *site, uint64_t bytes)
{
    return clb_fail_at(err, CLB_NO_SPACE, site, "out of memory: %llu bytes were asked for",
                       (unsigned long long)bytes);
}
