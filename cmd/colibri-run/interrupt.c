/* Ctrl-C: the answer so far stays whole, and the shell sees that we died of it. */
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

void run_die_of_interrupt(void)
{
    signal(SIGINT, SIG_DFL);
    raise(SIGINT);
}
