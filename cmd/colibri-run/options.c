/* options.c - what colibri-run accepts. */
#include "cmd/colibri-run/run.h"
#include "lib/cli/engine.h"
#include "lib/cli/report.h"

#define GROUP(title) { CLB_OPT_GROUP, 0, title, NULL, NULL, NULL, 0, 0, false }
#define FLAG(name, dst, help) { CLB_OPT_FLAG, 0, name, NULL, help, dst, 0, 0, false }
#define TEXT(letter, name, arg, dst, help)                                                         \
    { CLB_OPT_STRING, letter, name, arg, help, dst, 0, 0, false }
#define COUNT(letter, name, arg, lo, hi, dst, help)                                                \
    { CLB_OPT_UINT, letter, name, arg, help, dst, lo, hi, false }
#define NUMBER(name, arg, lo, hi, dst, help)                                                       \
    { CLB_OPT_FLOAT, 0, name, arg, help, dst, lo, hi, false }

/* What the option table cannot say. */
static bool check(struct run_options *o, int argc, char **argv, int first, struct clb_err *err)
{
    if (argc - first != 1)
        return clb_fail(err, CLB_USAGE, first == argc ? "no model given" : "one model at a time");
    o->model = argv[first];
    if (o->lines + o->null + o->jsonl > 1)
        return clb_fail(err, CLB_USAGE, "--lines, --null and --jsonl exclude each other");
    if (o->ids && o->jsonl)
        return clb_fail(err, CLB_USAGE, "--ids does not go with --jsonl");
    if (o->ids && (o->stop.n || o->parse_special))
        return clb_fail(err, CLB_USAGE, "--ids has no text: no --stop and no --parse-special");
    if (o->chat && (o->ids || o->parse_special))
        return clb_fail(err, CLB_USAGE, "--chat goes neither with --ids nor with --parse-special");
    if (o->system && (!o->chat || o->jsonl))
        return clb_fail(err, CLB_USAGE, "--system belongs to --chat without --jsonl");
    for (uint32_t i = 0; i < o->stop.n; i++)
        if (!*o->stop.value[i])
            return clb_fail(err, CLB_USAGE, "--stop: the text is empty");
    if (o->logits && clb_same_file(o->logits, o->model))
        return clb_fail(err, CLB_USAGE, "--logits: '%s' is the model", o->logits);
    if (o->logits && !o->prompt && clb_same_file(o->logits, "/dev/stdin"))
        return clb_fail(err, CLB_USAGE, "--logits: '%s' is the input", o->logits);
    o->mode = o->lines ? RUN_LINES : o->null ? RUN_NULL : o->jsonl ? RUN_JSONL : RUN_ONE;
    if (o->batch && o->mode == RUN_ONE)
        return clb_fail(err, CLB_USAGE, "--batch needs many prompts: --lines, --null or --jsonl");
    return true;
}

int run_parse_options(struct run_options *o, int argc, char **argv)
{
    const struct clb_opt opts[] = {
        GROUP("Prompt"),
        TEXT('p', "prompt", "TEXT", &o->prompt, "the prompt (default: all of stdin)"),
        FLAG("lines", &o->lines, "every line is a prompt; one line out for each"),
        FLAG("null", &o->null, "prompts and answers end in a NUL byte"),
        FLAG("jsonl", &o->jsonl, "JSON lines in and out"),
        FLAG("chat", &o->chat, "a conversation, in the model's own form"),
        TEXT(0, "system", "TEXT", &o->system, "what the system says first in it"),
        FLAG("ids", &o->ids, "token ids instead of text, in and out"),
        FLAG("parse-special", &o->parse_special, "read special tokens in prompts as such"),
        GROUP("Answer"),
        COUNT('n', "max-tokens", "N", 0, INT32_MAX, &o->max_new,
              "at most N new tokens (default: 256)"),
        { CLB_OPT_LIST, 0, "stop", "TEXT", "end before TEXT; may be repeated", &o->stop, 0, 0,
          false },
        NUMBER("temp", "T", 0, 100, &o->temperature, "temperature (default: 0, greedy)"),
        COUNT(0, "top-k", "K", 0, INT32_MAX, &o->top_k, "choose among the K most likely"),
        NUMBER("top-p", "P", 0, 1, &o->top_p, "choose among those that sum up to P"),
        NUMBER("min-p", "P", 0, 1, &o->min_p, "drop those below P times the likeliest"),
        NUMBER("repeat-penalty", "R", 0.01, 100, &o->repeat_penalty,
               "divide logits of recent tokens by R"),
        { CLB_OPT_U64, 0, "seed", "S", "of the random choice (default: 0)", &o->seed, 0, 0, false },
        { CLB_OPT_FILE, 0, "logits", "FILE", "write all computed rows as raw f32", &o->logits, 0, 0,
          false },
        GROUP("Engine"),
        COUNT(0, "ctx", "N", 1, UINT32_MAX, &o->context,
              "longest sequence (default: at most 4096)"),
        COUNT(0, "experts-per-token", "K", 1, UINT32_MAX, &o->experts_per_token,
              "instead of the model's number"),
        { CLB_OPT_CHOICE, 0, "kv-dtype", CLB_KV_WORDS, "of the KV cache (default: by the model)",
          &o->kv_dtype, 0, 0, false },
        COUNT(0, "batch", "N", 1, 4096, &o->batch, "prompts side by side (default: 8)"),
        COUNT('t', "threads", "N", 1, 1024, &o->threads, "default: one per core"),
        { CLB_OPT_SIZE, 0, "memory", "SIZE", "use at most SIZE, e.g. 8G; caches experts",
          &o->memory, 0, 0, false },
        FLAG("mlock", &o->mlock, "lock weights and KV cache in memory"),
        { CLB_OPT_CHOICE, 0, "numa", CLB_NUMA_WORDS, "several memory nodes: how to use them",
          &o->numa, 0, 0, false },
        TEXT(0, "cpu", "LEVEL", &o->cpu, "scalar, avx2, avxvnni, avx512, neon, i8mm"),
        CLB_OPT_WHERE(&o->where),
        FLAG("verify", &o->verify, "check every weight when it is first used"),
        GROUP("Messages"),
        FLAG("stats", &o->stats, "speed and memory at the end, on stderr"),
        FLAG("json", &o->json, "--stats as one line of JSON"),
        FLAG("profile", &o->profile, "time of every stage, on stderr"),
        { CLB_OPT_UINT, 0, "prefill-chunk", "N", "rows per pass (tests)", &o->prefill_chunk, 1,
          65536, true },
        { CLB_OPT_FLAG, 0, "no-routing-cache", NULL, "(tests)", &o->no_routing_cache, 0, 0, true },
        CLB_OPT_COMMON(&o->common),
        { .kind = CLB_OPT_END },
    };
    const struct clb_program self = {
        .name = RUN_NAME,
        .synopsis = "[options] MODEL",
        .summary = "Continues a prompt with a Mixture-of-Experts model (colibri.bin).",
        .opts = opts,
        .example = "Example: echo 'The capital of France is' | colibri-run model.bin",
    };
    struct clb_err err;
    int first;

    o->max_new = 256;
    int status = clb_opt_start(&self, &o->common, argc, argv, &first);
    if (status >= 0 || check(o, argc, argv, first, &err))
        return status;
    return clb_refuse(RUN_NAME, &err, o->common.verbose);
}
