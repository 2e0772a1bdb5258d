/* options.c - what colibri-serve accepts. */
#include "cmd/colibri-serve/serve.h"
#include "lib/cli/engine.h"
#include "lib/cli/report.h"

#define GROUP(title)                                                                               \
    {                                                                                              \
        CLB_OPT_GROUP, 0, title, NULL, NULL, NULL, 0, 0, false                                     \
    }
#define FLAG(name, dst, help)                                                                      \
    {                                                                                              \
        CLB_OPT_FLAG, 0, name, NULL, help, dst, 0, 0, false                                        \
    }
#define TEXT(name, arg, dst, help)                                                                 \
    {                                                                                              \
        CLB_OPT_FILE, 0, name, arg, help, dst, 0, 0, false                                         \
    }
#define COUNT(letter, name, arg, lo, hi, dst, help)                                                \
    {                                                                                              \
        CLB_OPT_UINT, letter, name, arg, help, dst, lo, hi, false                                  \
    }
#define SECONDS(name, lo, dst, help) COUNT(0, name, "S", lo, 86400, dst, help)
#define SIZE(name, dst, help)                                                                      \
    {                                                                                              \
        CLB_OPT_SIZE, 0, name, "SIZE", help, dst, 0, 0, false                                      \
    }
#define CHOICE(name, words, dst, help)                                                             \
    {                                                                                              \
        CLB_OPT_CHOICE, 0, name, words, help, dst, 0, 0, false                                     \
    }

enum { MIN_HEADER = 1 << 10, MAX_HEADER = 1 << 20, MAX_BODY = 1 << 30 };

/* What the option table cannot say. */
static bool check(struct serve_options *o, int argc, char **argv, int first, struct clb_err *err)
{
    if (argc - first != 1)
        return clb_fail(err, CLB_USAGE, first == argc ? "no model given" : "one model at a time");
    o->model = argv[first];
    if (o->header_limit < MIN_HEADER || o->header_limit > MAX_HEADER)
        return clb_fail(err, CLB_USAGE, "--header-limit: %llu is not from %d to %d",
                        (unsigned long long)o->header_limit, MIN_HEADER, MAX_HEADER);
    if (o->body_limit > MAX_BODY)
        return clb_fail(err, CLB_USAGE, "--body-limit: %llu is more than %d",
                        (unsigned long long)o->body_limit, MAX_BODY);
    return true;
}

static void set_defaults(struct serve_options *o)
{
    o->host = "127.0.0.1";
    o->port = 8080;
    o->max_concurrent = 16;
    o->max_queue = 256;
    o->body_limit = 4 << 20;
    o->header_limit = 16 << 10;
    o->idle_timeout = 60;
    o->read_timeout = o->write_timeout = 30;
    o->ping = 15;
}

int serve_parse_options(struct serve_options *o, int argc, char **argv)
{
    const struct clb_opt opts[] = {
        GROUP("Address"),
        TEXT("host", "HOST", &o->host, "where to listen (default: 127.0.0.1)"),
        COUNT('p', "port", "PORT", 0, 65535, &o->port, "0: any, printed (default: 8080)"),
        TEXT("api-key-file", "FILE", &o->key_file, "who may ask: a key a line"),
        TEXT("model-name", "NAME", &o->name, "for clients (default: that of the file)"),
        { CLB_OPT_LIST, 0, "allow-origin", "URL", "web page that may ask; may be repeated",
          &o->origins, 0, 0, false },
        GROUP("Limits"),
        COUNT(0, "max-concurrent", "N", 1, 4096, &o->max_concurrent,
              "answers side by side (default: 16)"),
        COUNT(0, "max-queue", "N", 0, 1000000, &o->max_queue,
              "requests that wait (default: 256), then 429"),
        COUNT(0, "max-connections", "N", 1, 1000000, &o->max_connections,
              "default: by the limit of files"),
        SIZE("body-limit", &o->body_limit, "of a request (default: 4M)"),
        SIZE("header-limit", &o->header_limit, "default: 16K"),
        SECONDS("idle-timeout", 1, &o->idle_timeout, "without a request (default: 60)"),
        SECONDS("read-timeout", 1, &o->read_timeout, "for a whole body (default: 30)"),
        SECONDS("write-timeout", 1, &o->write_timeout, "nothing taken (default: 30)"),
        SECONDS("request-timeout", 0, &o->request_timeout, "for an answer (default: 0, none)"),
        SECONDS("ping", 0, &o->ping, "sign of life in a stream (default: 15; 0: none)"),
        SECONDS("drain-timeout", 0, &o->drain_timeout, "after SIGTERM (default: 0, no end)"),
        GROUP("Engine"),
        COUNT(0, "ctx", "N", 1, UINT32_MAX, &o->context,
              "longest sequence (default: at most 4096)"),
        { CLB_OPT_U64, 0, "kv-tokens", "N", "that all answers share in the KV cache", &o->kv_tokens,
          0, 0, false },
        CHOICE("kv-dtype", CLB_KV_WORDS, &o->kv_dtype, "of the KV cache"),
        COUNT(0, "experts-per-token", "K", 1, UINT32_MAX, &o->experts_per_token,
              "instead of the model's number"),
        COUNT('t', "threads", "N", 1, 1024, &o->threads, "default: one per core"),
        SIZE("memory", &o->memory, "use at most SIZE, e.g. 8G; caches experts"),
        FLAG("mlock", &o->mlock, "lock weights and KV cache in memory"),
        CHOICE("numa", CLB_NUMA_WORDS, &o->numa, "several memory nodes"),
        TEXT("cpu", "LEVEL", &o->cpu, "scalar, avx2, avxvnni, avx512, neon, i8mm"),
        CLB_OPT_WHERE(&o->where),
        FLAG("verify", &o->verify, "check every weight when it is first used"),
        GROUP("Messages"),
        FLAG("json", &o->json, "log as lines of JSON"),
        COUNT(0, "profile-every", "N", 0, UINT32_MAX, &o->profile_every,
              "log stage times of every Nth request"),
        { CLB_OPT_UINT, 0, "prefill-chunk", "N", "rows per pass (tests)", &o->prefill_chunk, 1,
          65536, true },
        CLB_OPT_COMMON(&o->common),
        { .kind = CLB_OPT_END },
    };
    const struct clb_program self = {
        .name = SERVE_NAME,
        .synopsis = "[options] MODEL",
        .summary = "Answers over HTTP, as OpenAI's API does, with a model (colibri.bin).",
        .opts = opts,
        .example = "Example: colibri-serve --port 8080 model.bin",
    };
    struct clb_err err;
    int first;

    set_defaults(o);
    int status = clb_opt_start(&self, &o->common, argc, argv, &first);
    if (status >= 0 || check(o, argc, argv, first, &err))
        return status;
    return clb_refuse(SERVE_NAME, &err, o->common.verbose);
}
