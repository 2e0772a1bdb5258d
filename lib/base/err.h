/* err.h - how a failure travels through Colibri.
 *
 * A function that can fail returns bool and takes `struct clb_err *err` last (never NULL inside
 * the library). The function that detects the problem calls clb_fail() once and says why, with
 * the values found and expected. Each caller on the way up may add where with clb_fail_in().
 * Nobody prints and nobody exits until main() gets the error back.
 * House style: lower case, no full stop, subject in single quotes, both numbers, what to do. */
#ifndef CLB_BASE_ERR_H
#define CLB_BASE_ERR_H

#include <stdbool.h>
#include <stdint.h>

/* The public COLIBRI_* status values are the same numbers (lib/colibri.h). */
enum clb_code {
    CLB_OK = 0,
    CLB_FAILED = 1,      /* the operating system said no (err->sys has errno), or a limit of ours */
    CLB_USAGE = 2,       /* the caller asked for something impossible */
    CLB_BAD_INPUT = 3,   /* bytes from outside are not what they claim to be, or are missing */
    CLB_NO_SPACE = 4,    /* not enough memory or disk */
    CLB_UNSUPPORTED = 5, /* valid, but this build or machine cannot do it */
    CLB_DEVICE = 6,      /* the accelerator failed */
    CLB_CANCELLED = 7,   /* the caller asked us to stop */
    CLB_BUSY = 8,        /* not now: a queue is full */
};

#define CLB_NO_OFFSET UINT64_MAX

struct clb_err {
    enum clb_code code;
    int sys;           /* errno at the moment of failure, else 0 */
    const char *site;  /* "file.c:123" of the clb_fail() call; shown at -vv */
    char file[256];    /* the file at fault, "" when there is none; a long path loses
                          its middle */
    char field[128];   /* the tensor, key or field at fault, "" when there is none */
    uint64_t offset;   /* byte offset in `file`; valid only when has_offset */
    bool has_offset;
    char text[512];    /* "where: where: why", outermost first; the whole message for a person */
};

/* All return false, so a caller can write `return clb_fail(err, ...)`.
 * clb_fail resets *err (coordinates included). With code CLB_FAILED or CLB_BAD_INPUT the function
 * clb_fail_sys appends strerror(errno) and keeps errno; ENOSPC, EDQUOT, EFBIG and ENOMEM turn
 * the code into CLB_NO_SPACE, EMFILE and ENFILE into CLB_FAILED. A text that is too
 * long loses its middle, not its cause. */
bool clb_fail_at(struct clb_err *err, enum clb_code code, const char *site, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
bool clb_fail_sys_at(struct clb_err *err, enum clb_code code, const char *site, const char *fmt,
                     ...) __attribute__((format(printf, 4, 5)));
/* Prepends "where: " to the text. */
bool clb_fail_in(struct clb_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Sets coordinates for programs that embed the library (the text is not changed). NULL and
 * CLB_NO_OFFSET leave a coordinate as it is. */
bool clb_err_place(struct clb_err *err, const char *file, const char *field, uint64_t offset);
bool clb_fail_nomem_at(struct clb_err *err, const char *site, uint64_t bytes);

#define CLB_STR_(x) #x
#define CLB_STR(x) CLB_STR_(x)
#define CLB_SITE __FILE__ ":" CLB_STR(__LINE__)
#define clb_fail(err, code, ...) clb_fail_at((err), (code), CLB_SITE, __VA_ARGS__)
#define clb_fail_sys(err, code, ...) clb_fail_sys_at((err), (code), CLB_SITE, __VA_ARGS__)
#define clb_fail_nomem(err, bytes) clb_fail_nomem_at((err), CLB_SITE, (bytes))

#endif
