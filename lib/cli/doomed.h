/* doomed.h - files that must not survive a signal: temporaries of outfile.c. */
#ifndef CLB_CLI_DOOMED_H
#define CLB_CLI_DOOMED_H

/* A signal that ends a program by default (SIGINT, SIGPIPE, SIGXCPU, ...) removes the path before
 * the process dies of it, unless it was ignored when the first path came. The text must stay valid
 * until it is spared. More than 8 at once are not remembered. */
void clb_doom(const char *path);
/* Removes them all; async-signal-safe. For those who die of another signal. */
void clb_doom_now(void);
void clb_spare(const char *path); /* with the last one the previous actions are back */

#endif
