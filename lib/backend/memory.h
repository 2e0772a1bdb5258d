/* memory.h - memory that a backend has beside the host's: of its device, or pinned for copies. */
#ifndef CLB_BACKEND_MEMORY_H
#define CLB_BACKEND_MEMORY_H

#include <stdint.h>

#include "lib/base/err.h"

struct clb_memory {
    /* Zeroed. NULL: CLB_NO_SPACE, or the device failed. */
    void *(*get)(void *arg, uint64_t bytes, struct clb_err *err);
    void (*put)(void *arg, void *block, uint64_t bytes); /* bytes as asked for; NULL is fine */
    /* From one place in it to another; done when it returns. */
    bool (*copy)(void *arg, void *to, const void *from, uint64_t bytes, struct clb_err *err);
    void *arg;
};

#endif
