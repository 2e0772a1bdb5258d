/* backend.c - the one place that knows which backends this build has. */
#include "lib/backend/backend.h"

#include <string.h>

const struct clb_backend_ops *clb_backend_find(const char *name, struct clb_err *err)
{
    if (!name || !strcmp(name, clb_backend_cpu.name))
        return &clb_backend_cpu;
    if (!strcmp(name, "cuda"))
        clb_fail(err, CLB_UNSUPPORTED, "backend 'cuda' is not part of this build; use 'cpu'");
    else
        clb_fail(err, CLB_USAGE, "there is no backend '%s'; backends are 'cpu' and 'cuda'", name);
    return NULL;
}
