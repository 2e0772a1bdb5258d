#include "lib/api/api.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

_Static_assert((int)CLB_OK == (int)COLIBRI_OK && (int)CLB_FAILED == (int)COLIBRI_FAILED &&
                   (int)CLB_USAGE == (int)COLIBRI_USAGE &&
                   (int)CLB_BAD_INPUT == (int)COLIBRI_BAD_INPUT &&
                   (int)CLB_NO_SPACE == (int)COLIBRI_NO_SPACE &&
                   (int)CLB_UNSUPPORTED == (int)COLIBRI_UNSUPPORTED &&
                   (int)CLB_DEVICE == (int)COLIBRI_DEVICE &&
                   (int)CLB_CANCELLED == (int)COLIBRI_CANCELLED &&
                   (int)CLB_BUSY == (int)COLIBRI_BUSY,
               "status values are the same numbers inside and outside");

/* The library's only state that is not in an object. */
static _Thread_local struct colibri_error last = { .offset = UINT64_MAX };

const char *colibri_version(void)
{
    return CLB_VERSION;
}

const char *colibri_last_error(void)
{
    return last.text;
}

const struct colibri_error *colibri_last_error_info(void)
{
    return &last;
}

void clb_api_error(struct colibri_error *to, const struct clb_err *err)
{
    *to = (struct colibri_error){
        .code = (int32_t)err->code,
        .sys = err->sys,
        .offset = err->has_offset ? err->offset : UINT64_MAX,
    };
    snprintf(to->file, sizeof to->file, "%s", err->file);
    snprintf(to->field, sizeof to->field, "%s", err->field);
    snprintf(to->text, sizeof to->text, "%s", err->text);
}

int clb_api_fail(const struct clb_err *err)
{
    clb_api_error(&last, err);
    return last.code;
}

int clb_api_null(const char *name)
{
    struct clb_err err;

    clb_fail(&err, CLB_USAGE, "'%s' is NULL", name);
    clb_err_place(&err, NULL, name, CLB_NO_OFFSET);
    return clb_api_fail(&err);
}

static bool check_size(size_t size, const char *name, struct clb_err *err)
{
    if (size >= sizeof size)
        return true;
    clb_fail(err, CLB_USAGE, "%s: size is %zu: set it to sizeof(struct colibri_%s)", name, size,
             name);
    return clb_err_place(err, NULL, "size", CLB_NO_OFFSET);
}

bool clb_api_take(void *to, size_t known, const void *from, const char *name, struct clb_err *err)
{
    const unsigned char *bytes = from;
    size_t size;

    memset(to, 0, known);
    if (!from)
        return true;
    memcpy(&size, from, sizeof size);
    if (!check_size(size, name, err))
        return false;
    for (size_t i = known; i < size; i++)
        if (bytes[i] != 0)
            return clb_fail(err, CLB_UNSUPPORTED,
                            "%s: byte %zu is set, but version " CLB_VERSION
                            " of the library knows only %zu",
                            name, i, known);
    memcpy(to, from, size < known ? size : known);
    return true;
}

bool clb_api_give(void *to, const void *from, size_t known, const char *name, struct clb_err *err)
{
    size_t size;

    memcpy(&size, to, sizeof size);
    if (!check_size(size, name, err))
        return false;
    memset(to, 0, size);
    memcpy(to, from, size < known ? size : known);
    memcpy(to, &size, sizeof size);
    return true;
}
