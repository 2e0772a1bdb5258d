#include "lib/cli/doomed.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

enum { MOST = 8 };

/* Those that end a program by default and can be caught, but for real faults. */
static const int signals[] = { SIGINT,  SIGTERM, SIGHUP,  SIGQUIT, SIGPIPE,
                               SIGALRM, SIGUSR1, SIGUSR2, SIGXCPU, SIGXFSZ };
enum { SIGNALS = sizeof signals / sizeof *signals };
static const char *volatile doomed[MOST]; /* a handler has no other way to reach the paths */
static struct sigaction before[SIGNALS];
static bool installed[SIGNALS];

void clb_doom_now(void)
{
    for (int i = 0; i < MOST; i++)
        if (doomed[i])
            unlink(doomed[i]);
}

static void remove_and_die(int sig)
{
    clb_doom_now();
    signal(sig, SIG_DFL); /* die of the signal itself, so that the shell sees it */
    raise(sig);
}

static int count(void)
{
    int n = 0;

    for (int i = 0; i < MOST; i++)
        n += doomed[i] != NULL;
    return n;
}

void clb_doom(const char *path)
{
    bool first = count() == 0;

    for (int i = 0; i < MOST; i++)
        if (!doomed[i]) {
            doomed[i] = path;
            break;
        }
    for (int i = 0; first && i < SIGNALS; i++) {
        struct sigaction sa = { .sa_handler = remove_and_die };
        sigaction(signals[i], NULL, &before[i]);
        installed[i] = before[i].sa_handler != SIG_IGN;
        if (installed[i])
            sigaction(signals[i], &sa, NULL);
    }
}

void clb_spare(const char *path)
{
    for (int i = 0; i < MOST; i++)
        if (doomed[i] == path)
            doomed[i] = NULL;
    for (int i = 0; count() == 0 && i < SIGNALS; i++) {
        struct sigaction now;
        sigaction(signals[i], NULL, &now);
        if (installed[i] && now.sa_handler == remove_and_die) /* else someone came after us */
            sigaction(signals[i], &before[i], NULL);
        installed[i] = false;
    }
}
