/* Ctrl-C: the answer so far stays whole, and the shell sees that we died of it. */
#include <poll.h>
#include <signal.h>
#include <stddef.h>

#include "cmd/colibri-run/run.h"

static volatile sig_atomic_t seen;
static struct sigaction before;

static void note(int sig)
{
    seen = 1;
    sigaction(sig, &before, NULL);
}

void run_catch_interrupt(void)
{
    struct sigaction sa = { .sa_handler = note }; /* no SA_RESTART: a read returns */

    sigaction(SIGINT, NULL, &before);
    if (before.sa_handler != SIG_IGN)
        sigaction(SIGINT, &sa, NULL);
}

bool run_interrupted(void)
{
    return seen;
}

/* Blocked between the question and the wait: a signal in between would be forgotten by the wait.
 * The other threads block all signals. */
bool run_wait_readable(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLIN };
    sigset_t interrupt, usual;

    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, &usual);
    bool ready = !seen && ppoll(&p, 1, NULL, &usual) > 0;
    sigprocmask(SIG_SETMASK, &usual, NULL);
    return ready;
}

void run_die_of_interrupt(void)
{
    signal(SIGINT, SIG_DFL);
    raise(SIGINT);
}
