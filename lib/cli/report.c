#include "lib/cli/report.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/str.h"
#include "lib/cli/doomed.h"
#include "lib/cli/progress_impl.h"

static void put_safe(FILE *f, const char *s, size_t n)
{
    for (size_t i = 0, len; i < n; i += len ? len : 1) {
        unsigned char c = (unsigned char)s[i];
        len = clb_utf8_len(s + i, n - i);
        bool control = c < 0x20 || c == 0x7f || (c == 0xc2 && (unsigned char)s[i + 1] < 0xa0);
        if (len == 0 || control)
            fputc('?', f);
        else
            fwrite(s + i, 1, len, f);
    }
}

void clb_put_safe(FILE *f, const char *s)
{
    put_safe(f, s, strlen(s));
}

void clb_put_lines(FILE *f, const char *before, const char *lines)
{
    for (const char *end; *lines; lines = end + (*end == '\n')) {
        end = lines + strcspn(lines, "\n");
        fputs(before, f);
        put_safe(f, lines, (size_t)(end - lines));
        fputc('\n', f);
    }
}

static void say(const char *program, const char *text, const char *site)
{
    clb_progress_erase();
    flockfile(stderr); /* one line stays one line */
    fprintf(stderr, "%s: ", program);
    clb_put_safe(stderr, text);
    if (site)
        fprintf(stderr, " [%s]", site);
    fputc('\n', stderr);
    funlockfile(stderr);
}

void clb_report(const char *program, const struct clb_err *err, int verbose)
{
    say(program, err->text, verbose >= 2 && err->site ? err->site : NULL);
}

void clb_warn(const char *program, const char *fmt, ...)
{
    char text[800];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    say(program, text, NULL);
}

int clb_refuse(const char *program, const struct clb_err *err, int verbose)
{
    clb_report(program, err, verbose);
    if (err->code == CLB_USAGE)
        fprintf(stderr, "%s: try '%s --help'\n", program, program);
    return clb_exit_status((int)err->code);
}

int clb_exit_status(int code)
{
    switch (code) {
    case CLB_OK:
        return 0;
    case CLB_USAGE:
        return 2;
    case CLB_BAD_INPUT:
    case CLB_UNSUPPORTED:
        return 3;
    case CLB_NO_SPACE:
        return 4;
    default:
        return 1;
    }
}

static void die_of_sigpipe(void)
{
    sigset_t set;

    clb_doom_now();
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    signal(SIGPIPE, SIG_DFL); /* it may have been ignored when we were started */
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    raise(SIGPIPE);
}

bool clb_stdout_write(const void *bytes, size_t n, bool flush, struct clb_err *err)
{
    clb_progress_erase();
    if ((n == 0 || fwrite(bytes, 1, n, stdout) == n) && (!flush || fflush(stdout) == 0))
        return true;
    if (errno == EPIPE)
        die_of_sigpipe();
    return clb_fail_sys(err, CLB_FAILED, "cannot write to standard output");
}

int clb_finish(const char *program, int status)
{
    struct clb_err err;

    errno = 0;
    bool ok = fflush(stdout) == 0 && !ferror(stdout);
    int sys = errno ? errno : EIO; /* an earlier failure is only remembered, not its cause */
    if (fclose(stdout) != 0 && ok) {
        sys = errno;
        ok = false;
    }
    if (ok)
        return status;
    if (sys == EPIPE)
        die_of_sigpipe();
    errno = sys;
    clb_fail_sys(&err, CLB_FAILED, "cannot write to standard output");
    clb_report(program, &err, 0);
    return clb_exit_status(err.code);
}

/* -- forms for people ------------------------------------------------------------------------ */

const char *clb_human_count(char buf[static CLB_HUMAN], uint64_t n)
{
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n);
    char *to = buf;

    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0)
            *to++ = ',';
        *to++ = digits[i];
    }
    *to = '\0';
    return buf;
}

const char *clb_human_seconds(char buf[static CLB_HUMAN], double s)
{
    if (s < 0.9995e-3)
        snprintf(buf, CLB_HUMAN, "%.*f us", s < 99.95e-6, s * 1e6);
    else if (s < 0.9995)
        snprintf(buf, CLB_HUMAN, "%.*f ms", s < 99.95e-3, s * 1e3);
    else if (s < 59.95)
        snprintf(buf, CLB_HUMAN, "%.*f s", s < 9.995 ? 2 : 1, s);
    else if (s < 3599.5)
        snprintf(buf, CLB_HUMAN, "%dm %02ds", (int)(s + 0.5) / 60, (int)(s + 0.5) % 60);
    else if (s < 1e9)
        snprintf(buf, CLB_HUMAN, "%dh %02dm", (int)(s / 3600), (int)(s / 60) % 60);
    else
        snprintf(buf, CLB_HUMAN, "very long");
    return buf;
}
