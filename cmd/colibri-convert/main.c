/* colibri-convert - a checkpoint folder in, one model file out. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd/colibri-convert/explain.h"
#include "lib/base/clock.h"
#include "lib/base/pool.h"
#include "lib/cli/opt.h"
#include "lib/cli/outfile.h"
#include "lib/cli/report.h"
#include "lib/cli/table.h"
#include "lib/import/convert.h"

static const char name[] = "colibri-convert";

struct args {
    const char *source, *out, *map, *dtype, *dense_dtype, *scale, *report, *cpu;
    struct clb_opt_list ignore;
    float clip;
    uint32_t threads;
    bool force, dry_run, explain;
    struct clb_common common;
};

/* The options that decide what is written, as they are recorded in the header: no paths, so that
 * the same model is the same file wherever it is made. */
static void describe(const struct args *a, char *buf, size_t n)
{
    size_t used = (size_t)snprintf(buf, n, "%s %s --dtype %s", name, CLB_VERSION, a->dtype);

    if (strcmp(a->scale, "row"))
        used += (size_t)snprintf(buf + used, n - used, " --scale %s", a->scale);
    if (a->dense_dtype)
        used += (size_t)snprintf(buf + used, n - used, " --dense-dtype %s", a->dense_dtype);
    if (a->clip > 0)
        snprintf(buf + used, n - used, " --clip-gate-softmax %g", (double)a->clip);
}

static void to_options(const struct args *a, const char *command, struct clb_convert_options *o)
{
    *o = (struct clb_convert_options){
        .source_dir = a->source,
        .source_dtype = !strcmp(a->dtype, "source"),
        .dense_dtype_set = a->dense_dtype != NULL,
        .scale = !strcmp(a->scale, "expert")   ? CLB_SCALE_EXPERT
                 : !strcmp(a->scale, "tensor") ? CLB_SCALE_TENSOR
                                               : CLB_SCALE_ROW,
        .map = a->map,
        .ignore_key = a->ignore.value,
        .n_ignore = a->ignore.n,
        .clip_gate_softmax = a->clip,
        .threads = a->threads,
        .cpu_level = a->cpu,
        .command = command,
    };
    if (!o->source_dtype)
        clb_dtype_parse(clb_str(a->dtype), &o->dtype);
    if (a->dense_dtype)
        clb_dtype_parse(clb_str(a->dense_dtype), &o->dense_dtype);
}

/* What the options contradict; operands are args[0..n). */
static bool check_args(struct args *a, char **operand, int n, struct clb_err *err)
{
    if (n == 0)
        return clb_fail(err, CLB_USAGE, "no folder is given");
    if (n > 1)
        return clb_fail(err, CLB_USAGE, "one folder is expected, but '%s' follows", operand[1]);
    a->source = operand[0];
    if (!a->out && !a->dry_run && !a->explain)
        return clb_fail(err, CLB_USAGE, "no output is named; use -o FILE");
    if (strcmp(a->scale, "row") && strcmp(a->dtype, "int8"))
        return clb_fail(err, CLB_USAGE, "--scale %s needs --dtype int8, but it is %s", a->scale,
                        a->dtype);
    return true;
}

/* -- what is printed at the end -------------------------------------------------------------- */

static void decibels(struct clb_table *t, double db)
{
    if (isinf(db))
        clb_table_cell(t, "exact");
    else
        clb_table_cell(t, "%.1f dB", db);
}

static void print_fidelity(const struct clb_conversion *c)
{
    struct clb_fidelity row[16];
    uint32_t n = clb_convert_fidelity(c, row, 16), underflows = 0;
    char buf[CLB_HUMAN];

    for (uint32_t i = 0; i < n; i++)
        underflows += row[i].underflows != 0;
    struct clb_table *t = clb_table_new(
        underflows ? "kind|stored as|>tensors|>values|>fidelity|>worst|where|>underflows"
                   : "kind|stored as|>tensors|>values|>fidelity|>worst|where");
    for (uint32_t i = 0; i < n; i++) {
        clb_table_row(t);
        clb_table_cell(t, "%s", row[i].kind);
        clb_table_cell(t, "%s", clb_dtype_name(row[i].dtype));
        clb_table_cell(t, "%s", clb_human_count(buf, row[i].tensors));
        clb_table_cell(t, "%s", clb_human_count(buf, row[i].values));
        decibels(t, row[i].sqnr_db);
        decibels(t, row[i].worst_sqnr_db);
        clb_table_cell(t, "%s", row[i].worst);
        if (underflows)
            clb_table_cell(t, "%s", clb_human_count(buf, row[i].underflows));
    }
    clb_table_print(t, stderr);
}

static void print_summary(const struct args *a, const struct clb_conversion *c, double seconds)
{
    char size[CLB_HUMAN], from[CLB_HUMAN], time[CLB_HUMAN];

    print_fidelity(c);
    fprintf(stderr, "%s: %s from %s in %s\n", a->out, clb_human_bytes(size, clb_convert_size(c)),
            clb_human_bytes(from, clb_convert_work(c)), clb_human_seconds(time, seconds));
}

/* -- steps ----------------------------------------------------------------------------------- */

static bool write_report(const struct clb_conversion *c, struct clb_outfile *o, struct clb_err *err)
{
    struct clb_text text = { 0 };
    bool ok;

    clb_convert_report(c, &text);
    ok = text.failed ? clb_fail_nomem(err, text.n)
                     : clb_outfile_write(o, text.p, text.n, err);
    clb_text_free(&text);
    return ok && clb_outfile_commit(o, err);
}

static bool open_outputs(const struct args *a, const struct clb_conversion *c,
                         struct clb_outfile *out, struct clb_outfile *report, struct clb_err *err)
{
    if (clb_convert_is_source(c, a->out))
        return clb_fail(err, CLB_USAGE, "%s: is a file of the checkpoint", a->out);
    if (!clb_outfile_open(out, a->out, a->force, clb_convert_size(c), err))
        return false;
    if (!a->report)
        return true;
    if (clb_convert_is_source(c, a->report))
        return clb_fail(err, CLB_USAGE, "%s: is a file of the checkpoint", a->report);
    if (clb_same_file(a->report, a->out))
        return clb_fail(err, CLB_USAGE, "%s: is the output", a->report);
    return clb_outfile_open(report, a->report, a->force, 0, err);
}

static void print_threads(const struct args *a)
{
    char why[96] = "as asked for";
    unsigned n = a->threads ? a->threads : clb_pool_default_threads(why, sizeof why);

    fprintf(stderr, "threads %u (%s)\n", n, why);
}

static bool convert(const struct args *a, struct clb_conversion *c, struct clb_err *err)
{
    struct clb_outfile out = { .fd = -1 }, report = { .fd = -1 };
    bool quiet = a->common.quiet, ok = open_outputs(a, c, &out, &report, err);
    size_t told = strlen(clb_convert_notes(c));
    double start = clb_now();

    if (ok) {
        if (a->common.verbose)
            print_threads(a);
        clb_progress_start("converting", clb_convert_work(c), quiet);
        ok = clb_convert_run(c, out.fd, clb_progress_at, err);
        clb_progress_done();
        if (!ok && !err->file[0]) /* not the checkpoint's fault */
            clb_fail_in(err, "%s", a->out);
    }
    ok = ok && (!a->report || write_report(c, &report, err)) && clb_outfile_commit(&out, err);
    clb_outfile_discard(&out);
    clb_outfile_discard(&report);
    if (ok && !quiet)
        clb_put_lines(stderr, "colibri-convert: ", clb_convert_notes(c) + told);
    if (ok && !quiet)
        print_summary(a, c, clb_now() - start);
    return ok;
}

static void dry_run(const struct clb_conversion *c)
{
    char human[CLB_HUMAN];

    printf("%llu bytes (%s)\n", (unsigned long long)clb_convert_size(c),
           clb_human_bytes(human, clb_convert_size(c)));
}

static int run(const struct args *a)
{
    struct clb_convert_options o;
    struct clb_conversion *c = NULL;
    struct clb_err err = { 0 };
    char command[128];

    describe(a, command, sizeof command);
    to_options(a, command, &o);
    bool ok = clb_convert_plan(&c, &o, &err);
    const char *problems = ok || !c ? "" : clb_convert_problems(c);
    if (ok && !a->common.quiet)
        clb_put_lines(stderr, "colibri-convert: note: ", clb_convert_notes(c));
    if (c && a->explain && !convert_explain(c) && ok)
        ok = clb_fail_nomem(&err, 0);
    if (ok && a->dry_run)
        dry_run(c);
    if (ok && !a->explain && !a->dry_run)
        ok = convert(a, c, &err);
    if (!ok) {
        clb_report(name, &err, a->common.verbose);
        clb_put_lines(stderr, "  ", problems);
    }
    clb_convert_free(c);
    return clb_finish(name, clb_exit_status(ok ? CLB_OK : (int)err.code));
}

int main(int argc, char **argv)
{
    struct args a = { .dtype = "int8", .scale = "row" };
    const struct clb_opt opts[] = {
        { CLB_OPT_GROUP, 0, "What is written", NULL, NULL, NULL, 0, 0, false },
        { CLB_OPT_FILE, 'o', "output", "FILE", "the model file", &a.out, 0, 0, false },
        { CLB_OPT_FLAG, 'f', "force", NULL, "replace FILE if it exists", &a.force, 0, 0, false },
        { CLB_OPT_CHOICE, 0, "dtype", "int8|int4|fp16|bf16|f32|source",
          "how experts are stored (default: int8)", &a.dtype, 0, 0, false },
        { CLB_OPT_CHOICE, 0, "dense-dtype", "int8|int4|fp16|bf16|f32",
          "the other matrices (default: the same; int8 with int4)", &a.dense_dtype, 0, 0, false },
        { CLB_OPT_CHOICE, 0, "scale", "row|expert|tensor",
          "int8: what shares a scale (default: row)", &a.scale, 0, 0, false },
        { CLB_OPT_FLOAT, 0, "clip-gate-softmax", "[50]",
          "clamp router logits to +-50, or to a number", &a.clip, 0.01, 1e6, false },
        { CLB_OPT_GROUP, 0, "How", NULL, NULL, NULL, 0, 0, false },
        { CLB_OPT_FILE, 0, "map", "FILE", "JSON that describes an architecture of one's own",
          &a.map, 0, 0, false },
        { CLB_OPT_LIST, 0, "ignore-key", "NAME", "accept this key of config.json unread", &a.ignore,
          0, 0, false },
        { CLB_OPT_FILE, 0, "report", "FILE", "what each tensor and expert lost, as JSON lines",
          &a.report, 0, 0, false },
        { CLB_OPT_FLAG, 0, "dry-run", NULL, "check, print the output's size, write nothing",
          &a.dry_run, 0, 0, false },
        { CLB_OPT_FLAG, 0, "explain", NULL, "print what each key became, write nothing", &a.explain,
          0, 0, false },
        { CLB_OPT_UINT, 't', "threads", "N", "default: one per core", &a.threads, 1, 1024, false },
        { CLB_OPT_STRING, 0, "cpu", "LEVEL", "scalar, avx2, avxvnni, avx512, neon, i8mm",
          &a.cpu, 0, 0, false },
        { CLB_OPT_GROUP, 0, "General", NULL, NULL, NULL, 0, 0, false },
        CLB_OPT_COMMON(&a.common),
        { .kind = CLB_OPT_END },
    };
    const struct clb_program self = {
        name,
        "[options] SRC_DIR -o FILE",
        "Turns the folder of a Mixture-of-Experts checkpoint (safetensors) into one model file.",
        opts,
        "Example: colibri-convert --dtype int4 Mixtral-8x7B-v0.1 -o mixtral.bin",
    };
    struct clb_err err = { 0 };
    int operand, status = clb_opt_start(&self, &a.common, argc, argv, &operand);

    if (status >= 0)
        return status;
    if (check_args(&a, argv + operand, argc - operand, &err))
        return run(&a);
    return clb_refuse(name, &err, a.common.verbose);
}
