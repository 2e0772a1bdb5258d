/* Plans for GPUs that are elsewhere: out of programs that never ask. */
#include "lib/api/api.h"

#include <stddef.h>

/* What callers of an older library have not set is 0. */
static bool names_gpu_memory(const struct colibri_load_options *o)
{
    const size_t end = offsetof(struct colibri_load_options, gpu_memory) + sizeof o->gpu_memory;

    return o && o->size >= end && o->gpu_memory > 0;
}

struct colibri_model *colibri_load_for_plans(const char *path,
                                             const struct colibri_load_options *options,
                                             struct colibri_error *error)
{
    const struct clb_model_source from = { .path = path };

    if (!path || !names_gpu_memory(options))
        return colibri_load_model_ex(path, options, error);
    return clb_api_load(&from, options, &clb_backend_paper, error);
}
