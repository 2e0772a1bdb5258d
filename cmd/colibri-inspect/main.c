/* main.c - colibri-inspect: what a model file holds. */
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "cmd/colibri-inspect/chat.h"
#include "cmd/colibri-inspect/inspect.h"
#include "cmd/colibri-inspect/tokens.h"
#include "lib/cli/engine.h"
#include "lib/cli/opt.h"
#include "lib/cli/report.h"
#include "lib/cli/sigbus.h"

struct args {
    struct inspect_options o;
    struct clb_common common;
    bool summary, experts, tensors, verify, plan, diff, differs;
    bool encode, decode, render_chat, parse_special, skip_special;
};

typedef bool question_fn(const struct clb_reader *r, const struct inspect_options *o,
                         struct clb_err *err);

/* The files that are mapped now, for the handler of SIGBUS. */
struct mapped {
    const struct clb_reader *r[2];
};

static bool in_mapped(const void *arg, const void *address, uint64_t *offset, const char **path)
{
    const struct mapped *m = arg;
    const uint8_t *p = address;

    for (int i = 0; i < 2; i++)
        if (m->r[i] && p >= m->r[i]->data && p < m->r[i]->data + m->r[i]->size) {
            *offset = (uint64_t)(p - m->r[i]->data);
            *path = m->r[i]->path;
            return true;
        }
    return false;
}

/* What the option table cannot say. */
static bool check_args(const struct args *a, int n_file, struct clb_err *err)
{
    int questions = a->summary + a->experts + a->tensors + a->verify + a->plan + a->diff +
                    (a->o.source_dir != NULL) + a->encode + a->decode + a->render_chat;

    if (questions > 1)
        return clb_fail(err, CLB_USAGE,
                        "only one of --summary, --experts, --tensors, --verify, --plan, --diff, "
                        "--against, --encode, --decode and --render-chat at a time");
    if (a->diff && n_file != 2)
        return clb_fail(err, CLB_USAGE, "--diff compares two files, not %d", n_file);
    if (n_file == 0)
        return clb_fail(err, CLB_USAGE, "no file given");
    if ((a->encode || a->decode || a->render_chat) && n_file > 1)
        return clb_fail(err, CLB_USAGE, "--%s takes one file, not %d",
                        a->encode   ? "encode"
                        : a->decode ? "decode"
                                    : "render-chat",
                        n_file);
    if (a->parse_special && !a->encode)
        return clb_fail(err, CLB_USAGE, "--parse-special belongs to --encode");
    if (a->skip_special && !a->decode)
        return clb_fail(err, CLB_USAGE, "--skip-special belongs to --decode");
    if (a->o.json && a->summary)
        return clb_fail(err, CLB_USAGE,
                        "--summary is for people; without it the header is printed as JSON");
    if (a->o.map && !a->o.source_dir)
        return clb_fail(err, CLB_USAGE, "--map belongs to --against");
    if (!a->plan && (a->o.memory || a->o.context || a->o.batch || a->o.kv_dtype ||
                     a->o.experts_per_token || a->o.threads || clb_engine_names_where(&a->o.where)))
        return clb_fail(err, CLB_USAGE,
                        "--memory, --ctx, --batch, --kv-dtype, --experts-per-token, --threads and "
                        "options of GPUs belong to --plan");
    return true;
}

static question_fn *question(const struct args *a)
{
    return a->summary        ? inspect_summary
           : a->experts      ? inspect_experts
           : a->tensors      ? inspect_tensors
           : a->verify       ? inspect_verify
           : a->o.source_dir ? inspect_against
           : a->plan         ? inspect_plan
                             : inspect_header;
}

/* -v: what is read of a file before its answer. */
static void tell(const struct args *a, const struct clb_reader *r)
{
    char bytes[CLB_HUMAN], header[CLB_HUMAN];

    if (a->common.verbose)
        clb_warn(PROGRAM,
                 "%s: %s mapped, header of %s read: %u dense tensors, %u layers of "
                 "experts",
                 r->path, clb_human_bytes(bytes, r->size), clb_human_bytes(header, r->json.n),
                 r->n_tensors, r->n_expert_layers);
}

static int fail(const struct args *a, const struct clb_err *err)
{
    clb_report(PROGRAM, err, a->common.verbose);
    return clb_exit_status(err->code);
}

/* Every file gets its answer; the status is that of the worst. */
static int each_file(const struct args *a, char **path, int n)
{
    struct mapped mapped = { { NULL, NULL } };
    int status = 0;

    for (int i = 0; i < n; i++) {
        struct clb_reader r;
        struct clb_err err;
        int s = 0;
        if (!clb_reader_open(&r, path[i], &err)) {
            s = fail(a, &err);
        } else {
            tell(a, &r);
            mapped.r[0] = &r;
            clb_sigbus_install(PROGRAM, in_mapped, &mapped);
            if (!question(a)(&r, &a->o, &err))
                s = fail(a, &err);
            clb_sigbus_install(PROGRAM, NULL, NULL);
            clb_reader_close(&r);
        }
        s = s > 0 ? s : a->differs;
        status = s > status ? s : status;
    }
    return status;
}

static int two_files(const struct args *a, char **path)
{
    struct clb_reader x, y = { .map = { .fd = -1 } };
    struct mapped mapped = { { &x, &y } };
    struct clb_err err;
    bool ok;

    if (!clb_reader_open(&x, path[0], &err))
        return fail(a, &err);
    ok = clb_reader_open(&y, path[1], &err);
    if (ok) {
        tell(a, &x);
        tell(a, &y);
        clb_sigbus_install(PROGRAM, in_mapped, &mapped);
        ok = inspect_diff(&x, &y, &a->o, &err);
        clb_sigbus_install(PROGRAM, NULL, NULL);
    }
    clb_reader_close(&y);
    clb_reader_close(&x);
    return ok ? a->differs : fail(a, &err);
}

/* Lines of standard input, each answered by one. */
static int lines(const struct args *a, const char *path)
{
    struct clb_err err;
    bool ok = a->render_chat ? inspect_render_chat(path, stdin, &err)
              : a->encode    ? inspect_encode(path, a->parse_special, stdin, &err)
                             : inspect_decode(path, a->skip_special, stdin, &err);

    return ok ? 0 : fail(a, &err);
}

static int start(struct args *a, int argc, char **argv, int *first)
{
    const struct clb_opt opts[] = {
        { CLB_OPT_GROUP, 0, "Without an option the JSON header is printed, ready for jq", NULL,
          NULL, NULL, 0, 0, false },
        { CLB_OPT_FLAG, 's', "summary", NULL, "the model for people", &a->summary, 0, 0, false },
        { CLB_OPT_FLAG, 'e', "experts", NULL, "where each expert lies", &a->experts, 0, 0, false },
        { CLB_OPT_FLAG, 'T', "tensors", NULL, "where each dense tensor lies", &a->tensors, 0, 0,
          false },
        { CLB_OPT_FLAG, 'c', "verify", NULL, "read everything and compare checksums", &a->verify, 0,
          0, false },
        { CLB_OPT_FLAG, 'd', "diff", NULL, "compare two files: description and weights", &a->diff,
          0, 0, false },
        { CLB_OPT_FILE, 'a', "against", "DIR", "compare with the checkpoint it came from",
          &a->o.source_dir, 0, 0, false },
        { CLB_OPT_FILE, 0, "map", "FILE", "the map it was converted with", &a->o.map, 0, 0, false },
        { CLB_OPT_FLAG, 0, "json", NULL, "answers for programs", &a->o.json, 0, 0, false },
        { CLB_OPT_GROUP, 0, "Memory", NULL, NULL, NULL, 0, 0, false },
        { CLB_OPT_FLAG, 'p', "plan", NULL, "what running the model needs", &a->plan, 0, 0, false },
        { CLB_OPT_SIZE, 0, "memory", "SIZE", "within this much memory (8G)", &a->o.memory, 0, 0,
          false },
        { CLB_OPT_UINT, 0, "ctx", "N", "for sequences of N tokens (4096)", &a->o.context, 1,
          1 << 30, false },
        { CLB_OPT_UINT, 'b', "batch", "N", "for N sequences at a time (1)", &a->o.batch, 1, 65536,
          false },
        { CLB_OPT_CHOICE, 0, "kv-dtype", CLB_KV_WORDS, "type of the KV cache (by the model)",
          &a->o.kv_dtype, 0, 0, false },
        { CLB_OPT_UINT, 0, "experts-per-token", "K", "instead of the model's number",
          &a->o.experts_per_token, 1, UINT32_MAX, false },
        { CLB_OPT_UINT, 't', "threads", "N", "with N threads (one per core)", &a->o.threads, 1,
          1024, false },
        { CLB_OPT_SIZE, 0, "gpu-memory", "SIZE", "on a GPU with SIZE, here or elsewhere (24G)",
          &a->o.where.gpu_memory, 0, 0, false },
        { CLB_OPT_STRING, 0, "device", "N", "which GPU, or several alike: 0,1 (0)",
          &a->o.where.device, 0, 0, false },
        { CLB_OPT_CHOICE, 0, "gpu-experts", "copy|cpu|auto", "that do not fit there (copy)",
          &a->o.where.gpu_experts, 0, 0, false },
        { CLB_OPT_CHOICE, 0, "backend", "auto|cpu|cuda", "without --gpu-memory: what is here",
          &a->o.where.backend, 0, 0, false },
        { CLB_OPT_GROUP, 0, "Text: lines of JSON from standard input, a line each", NULL, NULL,
          NULL, 0, 0, false },
        { CLB_OPT_FLAG, 0, "encode", NULL, "text to token ids", &a->encode, 0, 0, false },
        { CLB_OPT_FLAG, 0, "parse-special", NULL, "special tokens in the text become ids",
          &a->parse_special, 0, 0, false },
        { CLB_OPT_FLAG, 0, "decode", NULL, "token ids to text", &a->decode, 0, 0, false },
        { CLB_OPT_FLAG, 0, "skip-special", NULL, "without the special ones", &a->skip_special, 0, 0,
          false },
        { CLB_OPT_FLAG, 0, "render-chat", NULL, "a conversation to the text of its prompt",
          &a->render_chat, 0, 0, false },
        { CLB_OPT_GROUP, 0, "Other", NULL, NULL, NULL, 0, 0, false },
        CLB_OPT_COMMON(&a->common),
        { CLB_OPT_END, 0, NULL, NULL, NULL, NULL, 0, 0, false },
    };
    const struct clb_program program = {
        .name = PROGRAM,
        .synopsis = "[OPTION]... FILE...",
        .summary = "Shows what a colibri.bin holds, checks it, compares two, plans memory.",
        .opts = opts,
        .example = "  " PROGRAM " model.bin | jq .architecture\n"
                   "  " PROGRAM " --plan --memory 8G --ctx 8192 model.bin\n",
    };

    return clb_opt_start(&program, &a->common, argc, argv, first);
}

int main(int argc, char **argv)
{
    struct args a = { 0 };
    struct clb_err err;
    int first, status;

    setlocale(LC_CTYPE, "");
    status = start(&a, argc, argv, &first);
    if (status >= 0)
        return status;
    a.o.differs = &a.differs;
    a.o.quiet = a.common.quiet;
    a.o.verbose = a.common.verbose > 0;
    a.o.many = argc - first > 1;
    if (!check_args(&a, argc - first, &err))
        return clb_refuse(PROGRAM, &err, a.common.verbose);
    status = a.encode || a.decode || a.render_chat ? lines(&a, argv[first])
             : a.diff                              ? two_files(&a, argv + first)
                                                   : each_file(&a, argv + first, argc - first);
    return clb_finish(PROGRAM, status);
}
