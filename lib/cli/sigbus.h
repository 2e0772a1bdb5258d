/* sigbus.h - what happens when a mapped file gets shorter or its disk fails: one line that names
 * the file and the place, then the process dies of SIGBUS. For programs; the library installs no
 * handlers. */
#ifndef CLB_CLI_SIGBUS_H
#define CLB_CLI_SIGBUS_H

#include <stdbool.h>
#include <stdint.h>

/* Whether the address lies in a mapped file, and where. Async-signal-safe. */
typedef bool clb_sigbus_fn(const void *arg, const void *address, uint64_t *offset,
                           const char **path);

/* `program`, `arg` and what fn needs must live as long as the handler; fn NULL removes it. */
void clb_sigbus_install(const char *program, clb_sigbus_fn *fn, const void *arg);

#endif
