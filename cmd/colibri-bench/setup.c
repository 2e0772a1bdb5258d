/* setup.c - opening models, and the token ids that are fed to them. */
#include "cmd/colibri-bench/bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/cli/engine.h"
#include "lib/cli/report.h"
#include "lib/cli/sigbus.h"

enum { MOST_FILE = 1 << 30 }; /* bytes */

static bool in_models(const void *arg, const void *address, uint64_t *offset, const char **path)
{
    const struct bench_models *m = arg;

    return colibri_address_in_model(m->model, address, offset, path) ||
           colibri_address_in_model(m->other, address, offset, path) ||
           (m->source && bench_source_has(m->source, address, offset, path));
}

void bench_watch(const struct bench_models *m)
{
    clb_sigbus_install(BENCH_NAME, in_models, m);
}

void bench_unload(struct bench_models *m)
{
    clb_sigbus_install(BENCH_NAME, NULL, NULL);
    colibri_unload_model(m->model);
    colibri_unload_model(m->other);
    m->model = m->other = NULL;
}

bool bench_load(struct colibri_model **out, struct colibri_model_info *info, const char *path,
                uint32_t threads, const struct bench_options *o, struct clb_err *err)
{
    struct colibri_load_options lo = {
        .size = sizeof lo,
        .threads = threads,
        .cpu_level = o->cpu_level,
        .memory = o->memory,
        .mlock = o->mlock,
        .numa = clb_engine_numa(o->numa),
    };

    *out = NULL;
    if (!clb_engine_where(&lo, &o->where, err))
        return false;
    *out = colibri_load_model_ex(path, &lo, NULL);
    *info = (struct colibri_model_info){ .size = sizeof *info };
    if (!*out)
        return clb_engine_fail(err);
    return colibri_model_info(*out, info) == COLIBRI_OK || clb_engine_fail(err);
}

void bench_say_where(const char *path, const struct colibri_model_info *info,
                     const struct bench_options *o)
{
    char note[CLB_CPU_NOTE];

    if (!o->verbose) {
        clb_engine_warn_cpu(BENCH_NAME, &o->where, info);
        return;
    }
    clb_warn(BENCH_NAME, "%s: device %s: %s", path, info->backend, info->device);
    if (*clb_engine_cpu_note(note, &o->where, info))
        clb_warn(BENCH_NAME, "%s: %s", path, note);
    if (*info->offload)
        clb_warn(BENCH_NAME, "%s: %s", path, info->offload);
}

bool bench_read_file(struct clb_text *out, const char *path, struct clb_err *err)
{
    bool is_stdin = !strcmp(path, "-");
    FILE *f = is_stdin ? stdin : fopen(path, "rb");
    const char *name = is_stdin ? "<stdin>" : path;
    char chunk[1 << 14];
    size_t n;

    if (!f)
        return clb_fail_sys(err, CLB_BAD_INPUT, "%s: cannot be opened", path);
    errno = 0;
    while (!out->failed && out->n <= MOST_FILE && (n = fread(chunk, 1, sizeof chunk, f)) > 0)
        clb_text_add(out, chunk, n);
    bool bad = ferror(f);
    int why = errno;
    if (!is_stdin)
        fclose(f);
    errno = why;
    if (bad)
        return clb_fail_sys(err, CLB_BAD_INPUT, "%s: cannot be read", name);
    if (out->n > MOST_FILE) /* /dev/zero, say */
        return clb_fail(err, CLB_BAD_INPUT, "%s: is longer than 1 GiB", name);
    return out->failed ? clb_fail_nomem(err, out->n) : true;
}

uint64_t bench_positions(const struct bench_options *o)
{
    return (uint64_t)o->depth + o->prefill + o->decode;
}

/* splitmix64: every seed gives a good sequence. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

bool bench_random_ids(struct bench_tokens *out, size_t n, uint64_t seed, uint32_t n_vocab,
                      struct clb_err *err)
{
    uint64_t state = seed;

    *out = (struct bench_tokens){ .id = clb_new(n, sizeof *out->id, err), .n = n };
    if (!out->id)
        return false;
    for (size_t i = 0; i < n; i++)
        out->id[i] = (int32_t)(next_random(&state) % n_vocab);
    return true;
}
