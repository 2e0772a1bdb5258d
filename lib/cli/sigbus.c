#include "lib/cli/sigbus.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "lib/cli/doomed.h"

/* The handler's own stack: the fault may have come when little of the other was left. */
static char stack[64 * 1024];
static const char *volatile name;
static clb_sigbus_fn *volatile find;
static const void *volatile find_arg;

/* A line is built without stdio, which may be locked, and written at once. */
struct line {
    char text[1024];
    size_t n;
};

static void put(struct line *l, const char *s)
{
    while (*s && l->n < sizeof l->text)
        l->text[l->n++] = *s++;
}

static void put_number(struct line *l, uint64_t v)
{
    char digits[24], *s = digits + sizeof digits - 1;

    *s = '\0';
    do
        *--s = (char)('0' + v % 10);
    while (v /= 10);
    put(l, s);
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    static atomic_flag seen = ATOMIC_FLAG_INIT;
    struct line l;
    uint64_t offset;
    const char *path;

    (void)context;
    while (atomic_flag_test_and_set(&seen)) /* another thread says it, and ends us all */
        pause();
    clb_doom_now();
    l.n = 0;
    if (find && find(find_arg, info->si_addr, &offset, &path)) {
        if (isatty(2)) /* a word of the answer may stand there */
            put(&l, "\n");
        put(&l, name);
        put(&l, ": ");
        put(&l, path);
        put(&l, ": byte ");
        put_number(&l, offset);
        put(&l, ": cannot be read any more: the file was cut or its disk failed\n");
    }
    if (l.n && write(2, l.text, l.n) < 0)
        l.n = 0; /* nobody left to tell */
    signal(sig, SIG_DFL);
    raise(sig); /* delivered when this returns: the process dies of it */
}

void clb_sigbus_install(const char *program, clb_sigbus_fn *fn, const void *arg)
{
    stack_t alternate = { .ss_sp = stack, .ss_size = sizeof stack };
    struct sigaction sa = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_ONSTACK };

    name = program;
    find_arg = arg;
    find = fn;
    if (!fn) {
        signal(SIGBUS, SIG_DFL);
        return;
    }
    sigaltstack(&alternate, NULL);
    sigaction(SIGBUS, &sa, NULL);
}
