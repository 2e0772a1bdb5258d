/* main.c - colibri-bench: where the time of a model goes, and how well it predicts. */
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/colibri-bench/bench.h"
#include "cmd/colibri-bench/machine.h"
#include "lib/base/mem.h"
#include "lib/cli/engine.h"
#include "lib/cli/opt.h"
#include "lib/cli/outfile.h"
#include "lib/cli/report.h"

struct args {
    struct bench_options o;
    struct clb_opt_uints batch, threads;
    struct clb_common common;
    const char *model, *tokens, *perplexity, *compare, *svg, *kv_dtype, *seed;
    bool json, csv, force, machine;
};

_Static_assert((int)CLB_NUMA_INTERLEAVE == (int)COLIBRI_NUMA_INTERLEAVE &&
                   (int)CLB_NUMA_OFF == (int)COLIBRI_NUMA_OFF,
               "--numa means the same to model and ceilings");

/* What nobody gives: the default takes its place. */
static const struct bench_options nothing_given = { .prefill = UINT32_MAX, .decode = UINT32_MAX };

enum { SPEED = 1, QUALITY = 2, MACHINE = 4 };

static int form_of(const struct args *a)
{
    return a->machine ? MACHINE : a->perplexity ? QUALITY : SPEED;
}

/* Options that not every form takes. */
static bool check_form(const struct args *a, struct clb_err *err)
{
    const struct {
        const char *name;
        bool given;
        int forms; /* that take it */
    } only[] = {
        { "--perplexity", a->perplexity != NULL, QUALITY },
        { "--svg", a->svg != NULL, SPEED },
        { "--csv", a->csv, SPEED | MACHINE },
        { "--tokens", a->tokens != NULL, SPEED },
        { "--seed", a->seed != NULL, SPEED },
        { "--depth", a->o.depth > 0, SPEED },
        { "--prefill", a->o.prefill != nothing_given.prefill, SPEED },
        { "--decode", a->o.decode != nothing_given.decode, SPEED },
        { "-b", a->batch.n > 0, SPEED },
        { "-r", a->o.repeats > 0, SPEED | MACHINE },
        { "--ctx", a->o.context > 0, SPEED },
        { "more than one number of -t", a->threads.n > 1, SPEED | MACHINE },
        { "--kv-dtype", a->kv_dtype != NULL, SPEED | QUALITY },
        { "--experts-per-token", a->o.experts_per_token > 0, SPEED | QUALITY },
        { "--mlock", a->o.mlock, SPEED | QUALITY },
        { "--memory", a->o.memory > 0, SPEED | QUALITY },
        { "--backend", a->o.where.backend != NULL, SPEED | QUALITY },
        { "--device", a->o.where.device != NULL, SPEED | QUALITY },
        { "--gpu-dense", a->o.where.gpu_dense != NULL, SPEED | QUALITY },
        { "--gpu-experts", a->o.where.gpu_experts != NULL, SPEED | QUALITY },
        { "--attention", a->o.where.attention != NULL, SPEED | QUALITY },
        { "--gpu-memory", a->o.where.gpu_memory > 0, SPEED | QUALITY },
        { "-f", a->force, SPEED },
    };
    int form = form_of(a);

    for (size_t i = 0; i < sizeof only / sizeof *only; i++)
        if (only[i].given && !(only[i].forms & form))
            return clb_fail(err, CLB_USAGE, "%s does not go with %s", only[i].name,
                            form == MACHINE ? "--machine" : "--perplexity");
    if (a->compare && form != QUALITY)
        return clb_fail(err, CLB_USAGE, "--compare needs documents: --perplexity FILE");
    if (a->o.ids && form != QUALITY)
        return clb_fail(err, CLB_USAGE, "--ids belongs to --perplexity");
    if (a->o.max_tokens && form != QUALITY)
        return clb_fail(err, CLB_USAGE, "--max-tokens belongs to --perplexity");
    return true;
}

static bool parse_seed(struct args *a, struct clb_err *err)
{
    if (!a->seed || clb_parse_uint(a->seed, 0, UINT64_MAX, &a->o.seed))
        return true;
    return clb_fail(err, CLB_USAGE, "--seed: '%s' is not a whole number from 0 to %llu", a->seed,
                    (unsigned long long)UINT64_MAX);
}

static void set_defaults(struct args *a)
{
    if (a->o.prefill == nothing_given.prefill)
        a->o.prefill = 512;
    if (a->o.decode == nothing_given.decode)
        a->o.decode = 128;
    if (!a->o.repeats)
        a->o.repeats = 3;
    if (!a->batch.n)
        a->batch = (struct clb_opt_uints){ { 1 }, 1 };
    if (!a->threads.n)
        a->threads = (struct clb_opt_uints){ { 0 }, 1 };
}

/* What the option table cannot say. */
static bool check_args(struct args *a, int argc, char **argv, int first, struct clb_err *err)
{
    bool is_stdin = a->tokens && !strcmp(a->tokens, "-");

    a->model = argv[first]; /* NULL: none */
    if (argc - first != 1 && !(a->machine && argc == first))
        return clb_fail(err, CLB_USAGE, first == argc ? "no model given" : "one model at a time");
    if (a->json && a->csv)
        return clb_fail(err, CLB_USAGE, "--json and --csv exclude each other");
    if (!check_form(a, err) || !parse_seed(a, err))
        return false;
    set_defaults(a);
    uint64_t need = bench_positions(&a->o);
    if (form_of(a) != SPEED)
        return true;
    if (a->svg && clb_same_file(a->svg, a->model))
        return clb_fail(err, CLB_USAGE, "--svg: '%s' is the model", a->svg);
    if (a->svg && a->tokens && clb_same_file(a->svg, is_stdin ? "/dev/stdin" : a->tokens))
        return clb_fail(err, CLB_USAGE, "--svg: '%s' is the file of tokens", a->svg);
    if (!a->o.prefill && !a->o.decode)
        return clb_fail(err, CLB_USAGE, "nothing to measure: --prefill and --decode are 0");
    if (a->o.context && a->o.context < need)
        return clb_fail(err, CLB_USAGE,
                        "--ctx %u is too short for %llu tokens (--depth + --prefill + --decode)",
                        a->o.context, (unsigned long long)need);
    return true;
}

static uint32_t most_sequences(const struct args *a)
{
    uint32_t most = 1;

    for (uint32_t i = 0; i < a->batch.n; i++)
        most = a->batch.value[i] > most ? a->batch.value[i] : most;
    return most;
}

static bool get_tokens(struct bench_tokens *out, const struct args *a, uint32_t n_vocab,
                       struct clb_err *err)
{
    struct clb_text text = { 0 };
    bool ok;

    if (!a->tokens)
        return bench_random_ids(out, most_sequences(a) * (size_t)bench_positions(&a->o), a->o.seed,
                                n_vocab, err);
    ok = bench_read_file(&text, a->tokens, err);
    if (ok) {
        ok = clb_engine_parse_ids(&out->id, &out->n, (struct clb_str){ text.p, text.n }, n_vocab,
                                  err);
        if (ok && !out->n)
            ok = clb_fail(err, CLB_BAD_INPUT, "no token ids");
        if (!ok)
            clb_fail_in(err, "%s", strcmp(a->tokens, "-") ? a->tokens : "<stdin>");
    }
    clb_text_free(&text);
    return ok;
}

static bool open_model(struct bench_models *m, struct colibri_model_info *info,
                       const struct args *a, uint32_t threads, struct clb_err *err)
{
    uint64_t need = bench_positions(&a->o);

    if (!bench_load(&m->model, info, a->model, threads, &a->o, err))
        return false;
    bench_watch(m);
    if (need > info->max_positions)
        return clb_fail(err, CLB_USAGE,
                        "%llu tokens (--depth + --prefill + --decode): the model has at most %u "
                        "positions",
                        (unsigned long long)need, info->max_positions);
    if (!bench_settle(m->model, most_sequences(a), &a->o, err))
        return false;
    if (colibri_model_info(m->model, info) != COLIBRI_OK)
        return clb_engine_fail(err);
    bench_say_where(a->model, info, &a->o);
    return true;
}

/* A model per thread count, a run per batch size. */
static bool measure_all(struct bench_run *run, struct bench_models *m, struct bench_source *source,
                        struct colibri_model_info *info, const struct args *a, struct clb_err *err)
{
    struct bench_tokens tokens = { 0 };
    struct bench_facts facts;
    bool ok = true;

    for (uint32_t t = 0; ok && t < a->threads.n; t++) {
        bench_unload(m);
        ok = open_model(m, info, a, a->threads.value[t], err);
        if (ok && !source->at) {
            bench_facts_read(&facts);
            ok = bench_source_open(source, a->model, &facts,
                                   (enum clb_numa_mode)clb_engine_numa(a->o.numa), err);
        }
        if (ok && !tokens.id)
            ok = get_tokens(&tokens, a, info->vocab_size, err);
        for (uint32_t b = 0; ok && b < a->batch.n; b++)
            ok = bench_measure(run++, m->model, a->batch.value[b], &tokens, &a->o, source, err);
        if (ok && colibri_model_info(m->model, info) != COLIBRI_OK) /* how much was on a GPU */
            ok = clb_engine_fail(err);
    }
    clb_free(tokens.id);
    return ok;
}

static bool write_svg(struct clb_outfile *out, const struct bench_result *r, struct clb_err *err)
{
    struct clb_text t = { 0 };
    bool ok;

    bench_svg(&t, r);
    ok = t.failed ? clb_fail_nomem(err, t.n) : clb_outfile_write(out, t.p, t.n, err);
    clb_text_free(&t);
    return ok && clb_outfile_commit(out, err);
}

static bool speed(const struct args *a, struct clb_err *err)
{
    struct bench_source source = { 0 };
    struct bench_result r = { .path = a->model, .options = &a->o, .source = &source };
    struct bench_models m = { .source = &source };
    struct clb_outfile svg = { .fd = -1 };
    struct bench_run *run = NULL;
    struct clb_text t = { 0 };
    bool ok = false;

    /* before minutes of measuring */
    if (a->svg && !clb_outfile_open(&svg, a->svg, a->force, 0, err))
        goto done;
    r.n_run = (size_t)a->threads.n * a->batch.n;
    r.run = run = clb_new(r.n_run, sizeof *run, err);
    r.load_known = bench_load_average(r.before);
    if (!run || !measure_all(run, &m, &source, &r.info, a, err))
        goto done;
    bench_load_average(r.after);
    if (a->svg && !write_svg(&svg, &r, err))
        goto done;
    if (a->json)
        bench_json(&t, &r);
    else if (a->csv)
        bench_csv(&t, &r);
    else if (!bench_show(&r, stdout))
        clb_fail_nomem(err, 0);
    ok = err->code == CLB_OK && (!(a->json || a->csv) || bench_print(&t, err));
done:
    clb_outfile_discard(&svg);
    clb_free(run);
    bench_unload(&m);
    bench_source_close(&source);
    return ok;
}

static bool quality(const struct args *a, struct clb_err *err)
{
    struct bench_models m = {
        .path = a->model,
        .other_path = a->compare,
        .threads = a->threads.value[0],
    };
    struct clb_text text = { 0 }, json = { 0 };
    struct bench_quality q;
    bool ok = false;

    if (!bench_read_file(&text, a->perplexity, err))
        goto done;
    bench_watch(&m);
    ok = bench_quality(&q, &m, (struct clb_str){ text.p, text.n }, a->perplexity, &a->o, err);
    if (!ok)
        goto done;
    if (a->json) {
        bench_json_quality(&json, &q, a->model, a->compare);
        ok = bench_print(&json, err);
    } else {
        bench_show_quality(&q, a->model, a->compare, stdout);
    }
done:
    clb_text_free(&text);
    bench_unload(&m);
    return ok;
}

static bool machine(const struct args *a, struct clb_err *err)
{
    const struct bench_machine_options o = {
        .model = a->model,
        .cpu_level = a->o.cpu_level,
        .numa = (enum clb_numa_mode)clb_engine_numa(a->o.numa),
        .threads = a->threads.value,
        .n_threads = a->threads.value[0] ? a->threads.n : 0,
        .repeats = a->o.repeats,
        .json = a->json,
        .csv = a->csv,
        .quiet = a->o.quiet,
    };

    return bench_machine(&o, err);
}

static int start(struct args *a, int argc, char **argv, int *first)
{
    /* clang-format off: a row an option */
    const struct clb_opt opts[] = {
        { CLB_OPT_GROUP, 0, "Speed", NULL, NULL, NULL, 0, 0, false },
        { CLB_OPT_UINT, 0, "prefill", "N", "prompt tokens of each sequence (512; 0: none)",
          &a->o.prefill, 0, 1e6, false },
        { CLB_OPT_UINT, 0, "decode", "N", "tokens decoded one by one (128; 0: none)",
          &a->o.decode, 0, 1e6, false },
        { CLB_OPT_UINT, 0, "depth", "N", "positions filled before, without being timed (0)",
          &a->o.depth, 0, 1e8, false },
        { CLB_OPT_UINTS, 'b', "batch", "LIST", "sequences at a time, like 1,4 (1)",
          &a->batch, 1, 1024, false },
        { CLB_OPT_UINTS, 't', "threads", "LIST", "threads, like 1,2 (one per core)",
          &a->threads, 1, 1024, false },
        { CLB_OPT_UINT, 'r', "repeats", "N", "runs after a warm-up; the median counts (3)",
          &a->o.repeats, 1, 1000, false },
        { CLB_OPT_FILE, 0, "tokens", "FILE", "token ids to feed (default: random)",
          &a->tokens, 0, 0, false },
        { CLB_OPT_STRING, 0, "seed", "N", "of the random token ids (0)", &a->seed, 0, 0, false },
        { CLB_OPT_FLAG, 0, "machine", NULL, "what the machine can do at best; needs no MODEL",
          &a->machine, 0, 0, false },
        { CLB_OPT_GROUP, 0, "Quality", NULL, NULL, NULL, 0, 0, false },
        { CLB_OPT_FILE, 0, "perplexity", "FILE", "of its lines, each a document",
          &a->perplexity, 0, 0, false },
        { CLB_OPT_FILE, 0, "compare", "OTHER.bin", "KL divergence from that model, too",
          &a->compare, 0, 0, false },
        { CLB_OPT_UINT, 0, "max-tokens", "N", "cut documents to N tokens (512)",
          &a->o.max_tokens, 2, 1e6, false },
        { CLB_OPT_FLAG, 0, "ids", NULL, "documents are token ids", &a->o.ids, 0, 0, false },
        { CLB_OPT_GROUP, 0, "Model", NULL, NULL, NULL, 0, 0, false },
        { CLB_OPT_UINT, 0, "ctx", "N", "context in tokens (default: what is needed)",
          &a->o.context, 1, 1e8, false },
        { CLB_OPT_CHOICE, 0, "kv-dtype", CLB_KV_WORDS, "type of the KV cache",
          &a->kv_dtype, 0, 0, false },
        { CLB_OPT_UINT, 0, "experts-per-token", "K", "instead of the model's own number",
          &a->o.experts_per_token, 1, UINT32_MAX, false },
        { CLB_OPT_SIZE, 0, "memory", "SIZE", "use at most SIZE, e.g. 8G; caches experts",
          &a->o.memory, 0, 0, false },
        { CLB_OPT_FLAG, 0, "mlock", NULL, "lock weights and KV cache in memory",
          &a->o.mlock, 0, 0, false },
        { CLB_OPT_CHOICE, 0, "numa", CLB_NUMA_WORDS, "several memory nodes: how to use them",
          &a->o.numa, 0, 0, false },
        { CLB_OPT_STRING, 0, "cpu", "LEVEL", "scalar, avx2, avxvnni, avx512, neon, i8mm",
          &a->o.cpu_level, 0, 0, false },
        CLB_OPT_WHERE(&a->o.where),
        { CLB_OPT_GROUP, 0, "Output", NULL, NULL, NULL, 0, 0, false },
        { CLB_OPT_FLAG, 0, "json", NULL, "print JSON", &a->json, 0, 0, false },
        { CLB_OPT_FLAG, 0, "csv", NULL, "print comma-separated values", &a->csv, 0, 0, false },
        { CLB_OPT_FILE, 0, "svg", "FILE", "draw the stages", &a->svg, 0, 0, false },
        { CLB_OPT_FLAG, 'f', "force", NULL, "replace the SVG file", &a->force, 0, 0, false },
        { CLB_OPT_GROUP, 0, "General", NULL, NULL, NULL, 0, 0, false },
        CLB_OPT_COMMON(&a->common),
        { .kind = CLB_OPT_END },
    };
    /* clang-format on */
    const struct clb_program self = {
        .name = BENCH_NAME,
        .synopsis = "[options] [MODEL]",
        .summary = "Measures where the time of a model goes, and how well it predicts text.",
        .opts = opts,
        .example = "Example: " BENCH_NAME " --batch 1,4 --threads 1,2 model.bin",
    };
    struct clb_err err = { 0 };
    int status = clb_opt_start(&self, &a->common, argc, argv, first);

    if (status >= 0)
        return status;
    if (check_args(a, argc, argv, *first, &err))
        return -1;
    return clb_refuse(BENCH_NAME, &err, a->common.verbose);
}

int main(int argc, char **argv)
{
    struct args a = {
        .o = nothing_given,
    };
    struct clb_err err = { 0 };
    int first, status;

    setlocale(LC_CTYPE, ""); /* whether bars may be drawn in UTF-8 */
    status = start(&a, argc, argv, &first);
    if (status >= 0)
        return status;
    a.o.kv_dtype = clb_engine_kv_dtype(a.kv_dtype);
    a.o.quiet = a.common.quiet;
    a.o.verbose = a.common.verbose > 0;
    bool ok = a.machine ? machine(&a, &err) : a.perplexity ? quality(&a, &err) : speed(&a, &err);
    if (!ok)
        clb_report(BENCH_NAME, &err, a.common.verbose);
    return clb_finish(BENCH_NAME, ok ? 0 : clb_exit_status((int)err.code));
}
