#include "lib/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void fill(struct clb_err *err, enum clb_code code, const char *site, const char *fmt,
                 va_list ap)
{
    /* Formatted aside first: the arguments may point into err->text itself. */
    char text[sizeof err->text];

    vsnprintf(text, sizeof text, fmt, ap);
    *err = (struct clb_err){ .code = code, .site = site };
    memcpy(err->text, text, sizeof text);
}

bool clb_fail_at(struct clb_err *err, enum clb_code code, const char *site, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fill(err, code, site, fmt, ap);
    va_end(ap);
    return false;
}

bool clb_fail_sys_at(struct clb_err *err, enum clb_code code, const char *site, const char *fmt,
                     ...)
{
    int sys = errno; /* before anything below can change it */
    va_list ap;

    if (sys == ENOSPC || sys == EDQUOT || sys == ENOMEM)
        code = CLB_NO_SPACE;
    va_start(ap, fmt);
    fill(err, code, site, fmt, ap);
    va_end(ap);
    err->sys = sys;
    size_t used = strlen(err->text);
    snprintf(err->text + used, sizeof err->text - used, ": %s", strerror(sys));
    return false;
}

bool clb_fail_in(struct clb_err *err, const char *fmt, ...)
{
    char where[sizeof err->text];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(where, sizeof where, fmt, ap);
    va_end(ap);

    size_t w = strlen(where), t = strlen(err->text);
    if (w + 2 + t < sizeof err->text) { /* else: the cause matters more than the place */
        memmove(err->text + w + 2, err->text, t + 1);
        memcpy(err->text, where, w);
        memcpy(err->text + w, ": ", 2);
    }
    return false;
}

bool clb_err_place(struct clb_err *err, const char *file, const char *field, uint64_t offset)
{
    if (file)
        snprintf(err->file, sizeof err->file, "%s", file);
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
