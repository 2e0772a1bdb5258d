/* colibri.h - run Mixture-of-Experts language models from C.
 *
 *     struct colibri_model *m = colibri_load_model("model.bin");
 *     if (!m) { fprintf(stderr, "%s\n", colibri_last_error()); return 1; }
 *     ...
 *     colibri_unload_model(m);
 *
 * The library never prints (profiling, when asked for, goes to stderr), never exits, installs no
 * signal handler, keeps no global state but the calling thread's last error, and reads one
 * environment variable, once, when a model is loaded: COLIBRI_MEMORY_POOL_DISABLE=1 turns the
 * activation slabs off.
 *
 * A call needs less than 128 KB of stack; threads of the library have their own.
 *
 * Objects: a model (weights; immutable, shared), sessions (one sequence each: tokens, KV cache,
 * sampler), batches (rows of several sessions run together) and schedulers (requests that wait,
 * run side by side and answer by callbacks). Functions return 0 or a colibri_status unless they say
 * otherwise; after a failure colibri_last_error() of the same thread has the message, and
 * colibri_last_error_info() the coordinates. Logits of a sequence are the same bits whatever else
 * shares the batch, however many threads there are and however its prompt was cut. */
#ifndef COLIBRI_H
#define COLIBRI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define COLIBRI_API __attribute__((visibility("default")))
#else
#define COLIBRI_API
#endif

#define COLIBRI_VERSION_MAJOR 0
#define COLIBRI_VERSION_MINOR 1
#define COLIBRI_VERSION_PATCH 0

enum colibri_status {
    COLIBRI_OK = 0,
    COLIBRI_FAILED = 1,      /* the operating system said no; error.sys has errno */
    COLIBRI_USAGE = 2,       /* the call asks for something impossible */
    COLIBRI_BAD_INPUT = 3,   /* the model or the input is not what it claims to be */
    COLIBRI_NO_SPACE = 4,    /* not enough memory or disk */
    COLIBRI_UNSUPPORTED = 5, /* valid, but this build or machine cannot do it */
    COLIBRI_DEVICE = 6,      /* the accelerator failed */
    COLIBRI_CANCELLED = 7,   /* reserved: no call of this version returns it */
    COLIBRI_BUSY = 8         /* the queue is full: the same call may succeed later */
};

struct colibri_error {
    int32_t code; /* enum colibri_status */
    int32_t sys;  /* errno, or 0 */
    char file[256], field[128];
    uint64_t offset; /* byte offset in file; UINT64_MAX: none */
    char text[512];  /* the whole message */
};

/* "0.1.0"; static. */
COLIBRI_API const char *colibri_version(void);
/* The calling thread's last failure: text ("" when there was none), or everything. Valid until its
 * next call. */
COLIBRI_API const char *colibri_last_error(void);
COLIBRI_API const struct colibri_error *colibri_last_error_info(void);

/* -- models ------------------------------------------------------------------------------------ */

struct colibri_model;

/* Structs below whose first member is `size` may grow: set it to sizeof of the struct you compiled
 * with and zero the rest; a zero field is the default. Larger structs than the library knows are
 * accepted when the unknown part is zero, else refused. */
/* Machines with several memory nodes. DEFAULT: interleave on them, else nothing. INTERLEAVE: memory
 * is spread over all nodes, and threads of the library over their processors. LOCAL: memory and
 * threads keep to the node with the most cores. OFF: the system decides. */
enum colibri_numa {
    COLIBRI_NUMA_DEFAULT = 0, COLIBRI_NUMA_INTERLEAVE = 1,
    COLIBRI_NUMA_LOCAL = 2, COLIBRI_NUMA_OFF = 3
};

/* Experts that do not fit on the GPUs. COPY: those used last are there, others are copied when they
 * are needed, with the bits as if all were there. CPU: those that do not fit when the first batch
 * opens are multiplied by the CPU, in its own arithmetic. AUTO: what is guessed to take less time
 * on this machine. */
enum colibri_gpu_experts {
    COLIBRI_GPU_EXPERTS_COPY = 0, COLIBRI_GPU_EXPERTS_CPU = 1, COLIBRI_GPU_EXPERTS_AUTO = 2
};

/* Of `total` bytes of experts, `done` have been copied to the GPU. */
typedef void colibri_upload_fn(void *arg, uint64_t done, uint64_t total);

struct colibri_load_options {
    size_t size;
    uint32_t threads;      /* 0: one per physical core allowed by affinity and cgroup quota */
    /* NULL: the best; "scalar", "avx2", "avxvnni", "avx512", "neon", "i8mm": this one */
    const char *cpu_level;
    /* "cpu", "cuda"; NULL or "auto": a GPU where this build and machine have one that can run the
     * model, with the first batch that is opened; else the CPU */
    const char *backend;
    /* Most bytes for everything that the model and its sessions need; 0: no limit. With one, expert
     * weights are cached instead of mapped, and activation slabs are off. */
    uint64_t memory;
    bool verify;           /* check every block's checksum when it is first used */
    bool no_routing_cache; /* rebuild the routing index map each pass (tests) */
    /* Activation slab sizes, ascending multiples of 4096; 0: 128 KB, 512 KB, 2 MB. */
    size_t slab_classes[3];
    /* Lock weights, KV caches and activations in memory, so that the system never takes them away.
     * The file is then read whole while it is loaded. COLIBRI_NO_SPACE, with the numbers, when the
     * limit of locked memory (RLIMIT_MEMLOCK) or the memory is too small. */
    bool mlock;
    int32_t numa; /* enum colibri_numa */
    /* Of GPUs, from here on. With backend "cpu" all but on_upload and its argument must be 0
     * (COLIBRI_USAGE); where "auto" takes the CPU they have no effect. */
    uint32_t device; /* which GPU, where n_devices is 0 */
    /* Several GPUs: the first one runs all but the experts, which are spread over all of them. The
     * results have the bits of one. */
    uint32_t n_devices, devices[16];
    /* Most bytes of the memory of each; 0: what is free. What does not fit stays in the memory of
     * the host: see gpu_experts. */
    uint64_t gpu_memory;
    bool gpu_dense_library; /* bf16 and fp16 matrices that are not of experts by cuBLASLt */
    colibri_upload_fn *on_upload; /* may be NULL; called by the first call that needs the weights */
    void *on_upload_arg;
    int32_t gpu_experts; /* enum colibri_gpu_experts */
    /* int8 and int4 ones by cuBLASLt as well: widened to f16, so they take 2 to 4 times the memory
     * there. Includes gpu_dense_library. */
    bool gpu_dense_widened;
    /* Attention of prompts by cuDNN, in layers that it can do, if the KV cache is f16. Logits then
     * depend on how prompts are cut into passes and on what runs beside them. */
    bool gpu_attention_library;
};

/* NULL: colibri_last_error() says why. */
COLIBRI_API struct colibri_model *colibri_load_model(const char *path);
/* options and error may be NULL; error is filled on failure. */
COLIBRI_API struct colibri_model *colibri_load_model_ex(const char *path,
                                                        const struct colibri_load_options *options,
                                                        struct colibri_error *error);
/* For plans alone, of GPUs that are elsewhere: with options->gpu_memory neither a GPU nor a build
 * with CUDA is needed, and nothing of the model can run (COLIBRI_USAGE). cuBLASLt and cuDNN cannot
 * be planned so (COLIBRI_UNSUPPORTED). Without gpu_memory it is colibri_load_model_ex. */
COLIBRI_API struct colibri_model *
colibri_load_for_plans(const char *path, const struct colibri_load_options *options,
                       struct colibri_error *error);
/* The bytes (64-byte aligned) stay the caller's and must outlive the model. */
COLIBRI_API struct colibri_model *
colibri_load_model_from_memory(const void *bytes, size_t n,
                               const struct colibri_load_options *options,
                               struct colibri_error *error);
/* NULL is fine. All sessions and batches of the model must be closed before. */
COLIBRI_API void colibri_unload_model(struct colibri_model *model);

struct colibri_model_info {
    size_t size;
    uint32_t n_layer, n_moe_layer, hidden_size, vocab_size, max_positions;
    uint32_t n_expert, experts_per_token, expert_size;
    uint32_t n_head, n_kv_head, head_dim;
    uint64_t file_bytes;
    uint64_t parameters, active_parameters; /* of the whole model; read per token */
    uint64_t bytes_per_token;               /* weight bytes read to decode one token */
    const char *expert_dtype, *dense_dtype; /* static names */
    const char *backend, *cpu_level;        /* borrowed from the model, like the rest */
    const char *device;                     /* one line for people: level, threads and why */
    uint32_t threads;
    int32_t bos_token, eos_token[16]; /* -1: none */
    uint32_t n_eos;
    bool has_tokenizer;
    /* The publisher's defaults for sampling; NAN (top_k: -1): not given. */
    float temperature, top_p, min_p, repetition_penalty;
    int32_t top_k;
    uint32_t n_text_eos; /* the last of eos_token that only the tokenizer names: text ends there */
    bool has_chat_template;
    /* Why backend "auto" did not take a GPU; "": this build has none. Auto decides when the first
     * batch opens, or colibri_infer is called for the first time: ask again then. */
    const char *no_device;
    const char *offload; /* of experts that do not fit on the GPU, in words; "": all do, or not
                            decided yet. Batches that open may change it: read it while none does */
    /* The GPU has failed for good; known when the call that met it returns or calls back. */
    bool device_lost;
    bool device_unused; /* no_device is about a GPU that is there: the driver shows it */
};
COLIBRI_API int colibri_model_info(const struct colibri_model *model,
                                   struct colibri_model_info *info);
/* In one line, for people: GPUs, their driver and libraries, or why there are none; "" when this
 * build cannot use any. Cut to `size` bytes with its NUL. */
COLIBRI_API void colibri_describe_devices(char *text, size_t size);

/* -- whole sequences at once ------------------------------------------------------------------- */

/* Frozen. NULL or zeroed: the model's defaults. */
struct colibri_config {
    int32_t top_k;     /* experts per token; 0: the model's */
    float temperature; /* generation only, like seed and max_new_tokens */
    int32_t seed;
    int32_t max_new_tokens;
    int32_t stream_id;     /* device stream; 0 */
    bool enable_profiling; /* one line on stderr per call */
};

/* Logits of every position of batch_size sequences of seq_len tokens, each from an empty context.
 * input_ids [batch][seq], output_logits [batch][seq][vocab]. Allocates its KV cache per call; calls
 * on one model from several threads are correct and take turns. */
COLIBRI_API int colibri_infer(const struct colibri_model *model, const int32_t *input_ids,
                              float *output_logits, size_t batch_size, size_t seq_len,
                              const struct colibri_config *config);

/* -- batches and sessions ---------------------------------------------------------------------- */

struct colibri_batch;
struct colibri_session;

enum colibri_kv_dtype {
    COLIBRI_KV_DEFAULT = 0, COLIBRI_KV_F32 = 1,
    COLIBRI_KV_F16 = 2, COLIBRI_KV_INT8 = 3
};

struct colibri_batch_options {
    size_t size;
    uint32_t max_sessions;      /* 0: 1; at most 65536 */
    uint32_t context;           /* longest sequence in tokens; 0: min(max_positions, 4096) */
    uint32_t prefill_chunk;     /* prompt rows per pass; 0: 512 */
    uint64_t kv_tokens;         /* KV positions shared by the sessions; 0: max_sessions * context */
    int32_t kv_dtype;           /* default: f32 for f32/bf16/fp16 files, f16 for quantised ones;
                                   on a GPU f32 for f32 files, else f16 */
    uint32_t experts_per_token; /* 0: the model's */
    bool enable_profiling;
    /* Most rows per pass that colibri_session_on_rows can get beside each session's last one; its
     * prompts are cut accordingly. 0: as many as 16 MB hold; for perplexity give prefill_chunk. */
    uint32_t logit_rows;
};
/* What a batch reserves, computed before anything is allocated. */
struct colibri_memory_plan {
    size_t size;
    uint64_t weights; /* mapped file, or the expert cache plus dense weights under a memory limit */
    uint64_t kv_cache, activations, host_buffers;
    uint64_t total;
    uint64_t available; /* what the system or the limit still allows; 0: unknown */
    uint32_t context;   /* the options with their defaults resolved */
    int32_t kv_dtype;
    uint64_t locked; /* bytes of the total that are locked in memory */
    uint64_t device; /* bytes of the total that are of a GPU: KV cache and activations */
    uint64_t device_available; /* what it has for them beside dense weights */
    /* Beside them on GPUs: bytes of dense weights, of experts, of activations on all but the first;
     * how many experts of all layers have room there, and how many there are. */
    uint64_t device_dense, device_experts, device_others, n_expert_there, n_expert_all;
};
COLIBRI_API int colibri_plan_batch(const struct colibri_model *model,
                                   const struct colibri_batch_options *options,
                                   struct colibri_memory_plan *plan);
/* Reserves everything that its sessions will need; afterwards no token allocates. A batch and its
 * sessions are used by one thread at a time; other batches of the model by other threads. */
COLIBRI_API int colibri_batch_open(struct colibri_batch **out, const struct colibri_model *model,
                                   const struct colibri_batch_options *options);
/* Closes its sessions too; NULL is fine. */
COLIBRI_API void colibri_batch_close(struct colibri_batch *batch);

/* How tokens are chosen. Greedy when temperature is 0. Order: penalties, temperature,
 * top-k, top-p, min-p, then one uniform random number from a counter-based generator of (seed,
 * position): the same seed gives the same text in any batch. */
struct colibri_sampling {
    size_t size;
    float temperature;          /* 0: greedy (ties: lowest id) */
    uint32_t top_k;             /* 0: off */
    float top_p;                /* 0 or 1: off */
    float min_p;                /* 0: off */
    float repetition_penalty;   /* 0 or 1: off */
    uint32_t repetition_window; /* tokens looked back; 0: 64 */
    uint64_t seed;
    /* Taken off the logit of a token that is in the answer: once; for every time. 0: off. The
     * answer begins behind the first n_prompt tokens; a scheduler knows how many those are. */
    float presence_penalty, frequency_penalty;
    uint32_t n_prompt;
};

COLIBRI_API int colibri_session_open(struct colibri_session **out, struct colibri_batch *batch,
                                     const struct colibri_sampling *sampling /* NULL: greedy */);
COLIBRI_API void colibri_session_close(struct colibri_session *session);
/* Says, before anything is fed, how many positions the session will have at most; without it that
 * is the context of its batch. Models whose rotations depend on length (longrope) choose by it
 * once, and feeding more is refused. COLIBRI_USAGE when it exceeds the context, or comes late. */
COLIBRI_API int colibri_session_expect(struct colibri_session *session, size_t length);
/* Appends tokens to what the session will compute next. Refused (COLIBRI_USAGE) when they do not
 * fit in the context or are not ids of the vocabulary, and (COLIBRI_NO_SPACE) when the batch has
 * too few KV positions left; then none was appended. */
COLIBRI_API int colibri_session_feed(struct colibri_session *session, const int32_t *ids, size_t n);
/* Forgets everything behind the first `length` tokens. */
COLIBRI_API int colibri_session_rewind(struct colibri_session *session, size_t length);
/* Tokens computed. */
COLIBRI_API size_t colibri_session_length(const struct colibri_session *session);
/* After a step in which this session finished its fed tokens: its logits [vocab], borrowed until
 * the next step; else NULL. A GPU keeps logits of which sampling needs only the largest (greedy,
 * top_k, no penalties): then this fetches them, NULL if that fails, and later steps bring them
 * along. Who only samples should not ask. */
COLIBRI_API const float *colibri_session_logits(const struct colibri_session *session);
/* Chooses the next token from the logits (does not feed it). -1 when there are no logits. */
COLIBRI_API int32_t colibri_session_sample(struct colibri_session *session);
/* Natural logarithm of the softmax probability of `id` in the current logits. */
COLIBRI_API float colibri_session_logprob(const struct colibri_session *session, int32_t id);
/* All rows wanted (for --logits and perplexity): called for every computed row at the end of a
 * step, in order of position. The callback does not touch the batch or its sessions. NULL: off. */
typedef void colibri_rows_fn(void *arg, size_t position, const float *logits /* [vocab] */);
COLIBRI_API void colibri_session_on_rows(struct colibri_session *session, colibri_rows_fn *fn,
                                         void *arg);

/* One pass: rows of all sessions that have tokens to compute, decoding sessions first, prompts in
 * chunks. *n_ready (may be NULL) is the number of sessions that have logits afterwards. A pass
 * without work is COLIBRI_OK with 0. Thread safe against calls on other batches of the model. */
COLIBRI_API int colibri_batch_step(struct colibri_batch *batch, size_t *n_ready);

/* Generation of one sequence: feeds ids, then samples until an end token (unless ignore_eos),
 * max_new_tokens, the context or the callback says so. Each new token is fed to the session and
 * given to the callback (which may be NULL); nonzero stops (the token is kept). The end token is
 * neither fed nor given. Other sessions of the batch are computed along. */
typedef int colibri_token_fn(void *arg, int32_t id);
struct colibri_generate_options {
    size_t size;
    uint32_t max_new_tokens; /* 0: as many as the context allows */
    bool ignore_eos;
};
enum colibri_finish {
    COLIBRI_FINISH_LENGTH = 0, COLIBRI_FINISH_EOS = 1,
    COLIBRI_FINISH_CALLBACK = 2, COLIBRI_FINISH_CONTEXT = 3,
    /* of a scheduler's requests only */
    COLIBRI_FINISH_STOP = 4, /* a stop text was found */
    COLIBRI_FINISH_CANCELLED = 5,
    COLIBRI_FINISH_FAILED = 6
};
COLIBRI_API int colibri_generate(struct colibri_session *session, const int32_t *ids, size_t n,
                                 const struct colibri_generate_options *options,
                                 colibri_token_fn *fn, void *arg,
                                 int32_t *finish /* enum colibri_finish; may be NULL */);

/* -- text -------------------------------------------------------------------------------------- */

enum {
    COLIBRI_ENCODE_PARSE_SPECIAL = 1, /* special tokens in the text are tokens; else text */
    COLIBRI_ENCODE_NO_BOS = 2,        /* without what the tokenizer adds around (BOS, EOS) */
    COLIBRI_ENCODE_UP_TO_ROOM = 4     /* stop where room is used up: the answer is room + 1 then */
};
/* Writes at most `room` ids and returns how many the text has (which may be more), or -1. `text`
 * need not be valid UTF-8. */
COLIBRI_API int64_t colibri_encode(const struct colibri_model *model, const char *text, size_t n,
                                   uint32_t flags, int32_t *ids, size_t room);
/* A conversation becomes a prompt by the model's own chat template. `json` is an object:
 *
 *     {"messages": [{"role": "user", "content": "Hi"}], "tools": [...], "documents": [...],
 *      "add_generation_prompt": true, "chat_template_kwargs": {"enable_thinking": false}}
 *
 * Of these only messages must be there, at least one, each with a role. chat_template_kwargs are
 * further variables of the template. The ids are those that transformers gives (BOS only where the
 * template has it), but text of the conversation never becomes a special token: those come from
 * the template's own text alone. COLIBRI_BAD_INPUT: not such an object, or the template refuses the
 * conversation (the message is its own); COLIBRI_USAGE: the model has no template;
 * COLIBRI_UNSUPPORTED: it needs what this version does not know. Thread safe. Writes at most `room`
 * ids or bytes (not terminated) and returns how many there are, or -1. */
COLIBRI_API int64_t colibri_chat_encode(const struct colibri_model *model, const char *json,
                                        size_t n, int32_t *ids, size_t room);
COLIBRI_API int64_t colibri_chat_render(const struct colibri_model *model, const char *json,
                                        size_t n, char *text, size_t room);
/* The bytes of one token as the vocabulary has them ("" for unknown ids); borrowed from the model;
 * NULL without tokenizer. */
COLIBRI_API const char *colibri_token_bytes(const struct colibri_model *model, int32_t id,
                                            size_t *n);
COLIBRI_API bool colibri_token_is_special(const struct colibri_model *model, int32_t id);
/* Streaming: text comes out as soon as it is certain; a UTF-8 character is never split. */
struct colibri_decoder;
COLIBRI_API int colibri_decoder_open(struct colibri_decoder **out,
                                     const struct colibri_model *model, bool skip_special);
/* Gives the id and receives the text that became certain (borrowed until the next call; *n may be
 * 0). */
COLIBRI_API int colibri_decoder_feed(struct colibri_decoder *decoder, int32_t id, const char **text,
                                     size_t *n);
/* The rest, and starts anew. */
COLIBRI_API int colibri_decoder_flush(struct colibri_decoder *decoder, const char **text,
                                      size_t *n);
COLIBRI_API void colibri_decoder_close(struct colibri_decoder *decoder);

/* -- memory, profile --------------------------------------------------------------------------- */

struct colibri_pool_stats {
    uint64_t used, peak; /* bytes handed out now, and the most ever */
    uint64_t reserved;   /* bytes held; the rest is fragmentation */
    uint64_t reserved_peak;
};
struct colibri_memory_stats {
    size_t size;
    struct colibri_pool_stats weights, activations, host;
    uint64_t locked; /* bytes locked in memory now */
    struct colibri_pool_stats device; /* of a GPU: weights, KV cache and activations */
};
COLIBRI_API int colibri_memory_stats(const struct colibri_model *model,
                                     struct colibri_memory_stats *stats);

enum { COLIBRI_STAGES = 10 };
struct colibri_profile {
    size_t size;
    /* Static: Embed, AttnProject, Attention, AttnOutput, Gate, Scatter, ExpertCompute, Gather,
     * DenseMLP, Logits. */
    const char *name[COLIBRI_STAGES];
    double seconds[COLIBRI_STAGES];
    uint64_t bytes[COLIBRI_STAGES]; /* weights and KV cache the stage had to read */
    uint64_t macs[COLIBRI_STAGES];
    uint64_t passes, rows, experts_touched, expert_slots, routes_reused;
    uint64_t f32_macs[COLIBRI_STAGES]; /* of macs: in f32; the others multiply int8 */
    double alone[COLIBRI_STAGES];      /* of seconds: one thread computed the stage */
    double waited[COLIBRI_STAGES]; /* of seconds: threads waited for each other, their mean */
};
/* Sums since the batch was opened or reset; only counted when the batch was opened with
 * enable_profiling. expert_rows: [n_layer][n_expert] slots, may be NULL. */
COLIBRI_API int colibri_batch_profile(const struct colibri_batch *batch,
                                      struct colibri_profile *profile, uint64_t *expert_rows);
COLIBRI_API void colibri_batch_profile_reset(struct colibri_batch *batch);

/* -- many requests at once --------------------------------------------------------------------- */

/* A scheduler runs requests of any number of threads on one model, side by side: each pass computes
 * a row of every answer that is being made and a chunk of the prompts that are being read.
 *
 *     any thread:  colibri_scheduler_submit(s, &request, &ticket);
 *     the owner:   while (!done) {
 *                      colibri_scheduler_wait(s, -1);
 *                      colibri_scheduler_step(s, NULL);
 *                  }
 *
 * Requests start in the order in which they were submitted, as soon as there is a free place and KV
 * memory for the prompt; nobody is overtaken. Should the answers need more KV memory than there is,
 * the request that started last gives its place back and is continued later from its tokens; the
 * caller sees a pause. The oldest request always goes on. Blocks of 64 tokens at the beginning of a
 * prompt that another request has (or had, while memory allows) are computed once and shared.
 * Nothing of this changes a token: every answer is the same as if the request had been alone.
 *
 * submit, cancel, wake, stats and profile may be called from any thread, also in callbacks; step
 * and wait by one thread at a time, the owner, which is also where the callbacks are called. */
struct colibri_scheduler;

struct colibri_scheduler_options {
    size_t size;
    uint32_t max_sequences; /* answers side by side; 0: 8; at most 65536 */
    uint32_t max_queue;     /* requests that wait for a place; 0: 1024 */
    uint32_t context;       /* longest sequence in tokens; 0: min(max_positions, 4096) */
    /* KV positions shared by all. 0: max_sequences * context, or what fits in the memory that is
     * available, but at least one context. */
    uint64_t kv_tokens;
    uint32_t prefill_chunk; /* prompt rows per pass; 0: 512 */
    uint32_t shared_chunk;  /* the same while others make their answers; 0: 128 */
    int32_t kv_dtype;       /* as in colibri_batch_options */
    uint32_t experts_per_token; /* 0: the model's */
    uint32_t logit_rows;        /* as in colibri_batch_options, for requests with on_row */
    uint32_t profile_every; /* every so many requests one gets its stage times; 0: those that ask */
    bool enable_profiling;  /* colibri_scheduler_profile counts every pass */
    bool no_prefix_cache;   /* every prompt is computed */
};
COLIBRI_API int colibri_plan_scheduler(const struct colibri_model *model,
                                       const struct colibri_scheduler_options *options,
                                       struct colibri_memory_plan *plan);
/* Reserves everything that passes will need. */
COLIBRI_API int colibri_scheduler_open(struct colibri_scheduler **out,
                                       const struct colibri_model *model,
                                       const struct colibri_scheduler_options *options);
/* Requests that have not finished do so now, as cancelled: their on_finish is called, and cannot
 * submit any more. NULL is fine. No other call may be under way. */
COLIBRI_API void colibri_scheduler_close(struct colibri_scheduler *scheduler);

enum { COLIBRI_MOST_LOGPROBS = 32, COLIBRI_MOST_STOPS = 64, COLIBRI_MOST_CHOICES = 1024 };

struct colibri_logprob {
    int32_t id;
    float logprob; /* natural logarithm of the softmax probability, before any sampling option */
};
/* Of a row of logits, as on_row functions get it: the k <= COLIBRI_MOST_LOGPROBS likeliest tokens
 * into `top`, in the order and with the numbers of a token event, and that of `id` into *logprob.
 * Returns how many; 0 and NAN for what cannot be. Any thread. */
COLIBRI_API uint32_t colibri_top_logprobs(const float *logits, uint32_t n_vocab, uint32_t k,
                                          struct colibri_logprob *top, int32_t id, float *logprob);

/* A new token. Everything it points to is borrowed until the callback returns. */
struct colibri_token_event {
    size_t size;
    uint64_t ticket;
    void *arg;       /* of the request */
    uint32_t choice; /* 0 to n_choices - 1 */
    uint32_t index;  /* of the token in the answer, from 0 */
    int32_t id;
    /* Text that became certain with it, whole UTF-8 characters; "" while a character or a stop text
     * is not decided, and with ids_only. */
    const char *text;
    size_t n_text;
    float logprob; /* NAN unless the request has logprobs */
    const struct colibri_logprob *top; /* [n_top] likeliest first; ties: lowest id first */
    uint32_t n_top;
};
/* The end of a choice. */
struct colibri_finish_event {
    size_t size;
    uint64_t ticket;
    void *arg;
    uint32_t choice;
    bool last;        /* the other choices of the request have finished: nothing more will come */
    int32_t finish;   /* enum colibri_finish */
    const char *text; /* the rest that was held back; "" when there is none */
    size_t n_text;
    uint32_t prompt_tokens, new_tokens;
    uint32_t cached_tokens; /* of the prompt: their keys and values were there already */
    uint32_t n_preempted;   /* how often it gave its place back */
    /* Seconds from submit to its place, from there to the first token, from that to the end. */
    double queue_seconds, prefill_seconds, decode_seconds;
    /* Of the passes it took part in, its share by rows of their times, bytes and MACs (rows: its
     * own); NULL unless the request asked or its turn came (profile_every). */
    const struct colibri_profile *profile;
    const struct colibri_error *error; /* COLIBRI_FINISH_FAILED: why; else NULL */
};
/* Nonzero ends this choice (COLIBRI_FINISH_CALLBACK); the token counts. */
typedef int colibri_token_event_fn(const struct colibri_token_event *event);
typedef void colibri_finish_event_fn(const struct colibri_finish_event *event);

struct colibri_request {
    size_t size;
    const int32_t *ids; /* [n_ids] the prompt, at least one token; copied, as everything here is */
    size_t n_ids;
    const struct colibri_sampling *sampling; /* NULL: greedy; choice i draws with seed + i */
    uint32_t n_choices;      /* answers to the one prompt; 0: 1; at most COLIBRI_MOST_CHOICES */
    uint32_t max_new_tokens; /* 0: as many as the context allows */
    /* Most positions that the sequence will have, by which rotations that depend on length
     * (longrope) are chosen; 0: n_ids + max_new_tokens, at most the context. */
    uint32_t positions;
    const char *const *stop; /* [n_stop] texts that end the answer and are not part of it */
    const size_t *stop_size; /* [n_stop] their bytes; NULL: they end in NUL */
    size_t n_stop;           /* at most COLIBRI_MOST_STOPS */
    uint32_t n_logprobs;     /* so many of the likeliest tokens with each token */
    bool logprobs;           /* logprob of each token */
    bool ignore_eos;
    /* No text: for models without tokenizer. Only end tokens that the model itself names end it. */
    bool ids_only;
    bool new_text;    /* the answer is a text of its own (a conversation), not one that goes on */
    bool prompt_only; /* no new tokens at all: for on_row */
    bool no_prefix_cache; /* neither takes part of its prompt from there nor leaves it there */
    bool profile;         /* stage times in its finish event */
    colibri_token_event_fn *on_token;   /* may be NULL */
    colibri_finish_event_fn *on_finish; /* may be NULL; once for every choice */
    /* All rows wanted, as by colibri_session_on_rows, of choice 0: implies that the prompt is
     * computed. NULL: off. */
    colibri_rows_fn *on_row;
    void *arg; /* for the callbacks */
};
/* Answers at once. COLIBRI_BUSY: the queue is full. COLIBRI_USAGE: a field is wrong, or the prompt
 * does not fit in the context; COLIBRI_NO_SPACE: prompt and answer can never fit in the KV memory,
 * even alone. The error's field is the member's name, the text has the numbers. `ticket` may be
 * NULL. The owner may call back before this returns. */
COLIBRI_API int colibri_scheduler_submit(struct colibri_scheduler *scheduler,
                                         const struct colibri_request *request, uint64_t *ticket);
/* Its choices finish (as cancelled) at the next step. Nothing happens when it has finished. */
COLIBRI_API int colibri_scheduler_cancel(struct colibri_scheduler *scheduler, uint64_t ticket);
/* Starts requests, computes one pass, chooses tokens, calls back. *n_left (may be NULL): requests
 * that have not finished. When a pass fails, the requests that took part in it finish
 * (COLIBRI_FINISH_FAILED) and the error is returned; the scheduler can go on with the others. */
COLIBRI_API int colibri_scheduler_step(struct colibri_scheduler *scheduler, size_t *n_left);
/* Returns when step has something to do, after wake, or after so many milliseconds (-1: no
 * limit). */
COLIBRI_API int colibri_scheduler_wait(struct colibri_scheduler *scheduler, int32_t milliseconds);
/* Makes the wait that is under way, or else the next one, return. */
COLIBRI_API void colibri_scheduler_wake(struct colibri_scheduler *scheduler);

struct colibri_scheduler_stats {
    size_t size;
    uint32_t max_sequences, max_queue, context; /* the options with their defaults */
    int32_t kv_dtype;
    uint32_t waiting, running; /* choices now: for a place; in one */
    uint64_t submitted, refused, finished, cancelled, failed; /* requests; of finished: the last two
                                                                 are part */
    uint64_t preempted;     /* times that a choice gave its place back */
    uint64_t prompt_tokens; /* of all choices that have started */
    uint64_t cached_tokens; /* of these, not computed: their keys and values were there */
    uint64_t new_tokens;
    uint64_t passes, prompt_rows, new_rows; /* computed */
    double prompt_seconds, new_seconds;     /* of each pass in proportion to its rows */
    uint64_t kv_block_tokens, kv_block_bytes;
    uint64_t kv_blocks; /* all; the next three are of them */
    uint64_t kv_used;   /* by running sequences; shared ones count once */
    uint64_t kv_shared; /* of these, by more than one */
    uint64_t kv_cached; /* by nobody, kept because their prompt may come again */
};
COLIBRI_API int colibri_scheduler_stats(struct colibri_scheduler *scheduler,
                                        struct colibri_scheduler_stats *stats);
/* As colibri_batch_profile, of the passes that were profiled. */
COLIBRI_API int colibri_scheduler_profile(struct colibri_scheduler *scheduler,
                                          struct colibri_profile *profile);

/* For a SIGBUS handler (async-signal-safe, no locks): whether the address lies in the mapping of a
 * loaded model; *offset is where in the file, path its name (borrowed). */
COLIBRI_API bool colibri_address_in_model(const struct colibri_model *model, const void *address,
                                          uint64_t *offset, const char **path);

#ifdef __cplusplus
}
#endif

#endif
