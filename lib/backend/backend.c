/* backend.c - the one place that knows which backends this build has. */
#include "lib/backend/backend.h"

#include <string.h>

const struct clb_backend_ops *clb_backend_find(const char *name, struct clb_err *err)
{
    if (!strcmp(name, clb_backend_cpu.name))
        return &clb_backend_cpu;
#ifdef CLB_CUDA
    if (!strcmp(name, clb_backend_cuda.name))
        return &clb_backend_cuda;
#endif
    if (!strcmp(name, "cuda"))
        clb_fail(err, CLB_UNSUPPORTED,
                 "this build has no CUDA backend; build with 'make CUDA=1', or use 'cpu'");
    else
        clb_fail(err, CLB_USAGE, "there is no backend '%s'; backends are 'auto', 'cpu' and 'cuda'",
                 name);
    return NULL;
}

const struct clb_backend_ops *clb_backend_device(void)
{
#ifdef CLB_CUDA
    return &clb_backend_cuda;
#else
    return NULL;
#endif
}
