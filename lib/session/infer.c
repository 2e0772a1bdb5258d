/* infer.c - the rows of all sequences, one after the other, are cut into chunks; a chunk is a pass.
 * Its logits are rows side by side of the caller's array, so they are computed right there. A
 * sequence holds KV blocks only from the pass that has its first row to the one that has its last.
 */
#include "lib/session/infer.h"

#include <inttypes.h>

#include "lib/base/mem.h"

enum { CHUNK = 512 };

struct inference {
    const struct clb_infer_job *job;
    struct clb_runner run;
    struct clb_kv_seq *seq; /* [n_seq] sequence i uses seq[i % n_seq] */
    uint32_t n_seq;
};

static bool check(const struct clb_model *m, const struct clb_infer_job *job, struct clb_err *err)
{
    const struct clb_arch *a = &m->reader.arch;
    uint64_t n, bytes;

    if (job->batch == 0 || job->length == 0)
        return clb_fail(err, CLB_USAGE, "%zu sequences of %zu tokens: there is nothing to compute",
                        job->batch, job->length);
    if (job->length > a->max_positions)
        return clb_fail(err, CLB_USAGE,
                        "sequences of %zu tokens: the model has at most %u positions", job->length,
                        a->max_positions);
    if (!clb_mul(job->batch, job->length, &n) ||
        !clb_mul(n, (uint64_t)a->vocab_size * sizeof(float), &bytes) || bytes > PTRDIFF_MAX)
        return clb_fail(err, CLB_USAGE,
                        "the logits of %zu sequences of %zu tokens are larger than memory can be",
                        job->batch, job->length);
    for (size_t i = 0; i < n; i++)
        if (job->ids[i] < 0 || (uint32_t)job->ids[i] >= a->vocab_size)
            return clb_fail(err, CLB_USAGE,
                            "input_ids[%zu] (sequence %zu, position %zu): id %" PRId32
                            " is not below the vocabulary size %u",
                            i, i / job->length, i % job->length, job->ids[i], a->vocab_size);
    return clb_check_top_k(m, job->top_k, err);
}

static uint32_t blocks_per_sequence(const struct clb_infer_job *job)
{
    return (uint32_t)((job->length + CLB_KV_BLOCK - 1) / CLB_KV_BLOCK);
}

static void carve(struct inference *f, struct clb_carver *c)
{
    uint32_t n = blocks_per_sequence(f->job);

    f->seq = clb_carve(c, f->n_seq, sizeof *f->seq);
    for (uint32_t i = 0; i < f->n_seq; i++) {
        uint32_t *block = clb_carve(c, n, sizeof *block);

        if (!c->base)
            continue;
        f->seq[i] = (struct clb_kv_seq){ .pool = f->run.pool, .block = block, .n_block_max = n };
        clb_kv_seq_rope(&f->seq[i], &f->run.model->weights, (uint32_t)f->job->length);
    }
}

static bool open_run(struct inference *f, struct clb_model *m, struct clb_err *err)
{
    const struct clb_infer_job *job = f->job;
    size_t n_row = job->batch * job->length;
    uint32_t chunk = (uint32_t)(n_row < CHUNK ? n_row : CHUNK);
    struct clb_carver count = { 0 };

    f->n_seq = (uint32_t)(chunk / job->length) + 2; /* the most that one pass can touch */
    if (f->n_seq > job->batch)
        f->n_seq = (uint32_t)job->batch;
    carve(f, &count);
    const struct clb_runner_options o = {
        .acts = {
            .max_rows = chunk,
            .max_logits = chunk,
            .max_seqs = f->n_seq,
            .max_context = (uint32_t)job->length,
            .top_k = job->top_k,
        },
        .kv_default = true,
        .n_block = f->n_seq * blocks_per_sequence(job),
        .host_bytes = count.at,
    };
    if (!clb_runner_open(&f->run, m, &o, err))
        return false;
    carve(f, &f->run.host);
    return true;
}

/* Puts rows [row, end) into the pass. */
static bool add_rows(struct inference *f, size_t row, size_t end, struct clb_err *err)
{
    const struct clb_infer_job *job = f->job;

    while (row < end) {
        size_t left = job->length - row % job->length, n = end - row < left ? end - row : left;
        struct clb_kv_seq *s = &f->seq[row / job->length % f->n_seq];

        if (row % job->length == 0)
            clb_kv_seq_truncate(s, 0); /* of the sequence that had this place before */
        if (!clb_kv_seq_reserve(s, s->length + (uint32_t)n, err))
            return false;
        clb_runner_add(&f->run, s, job->ids + row, (uint32_t)n, CLB_LOGITS_ALL, 0);
        row += n;
    }
    return true;
}

/* One pass from `row` on; *row moves behind it. */
static bool pass(struct inference *f, size_t *row, struct clb_err *err)
{
    struct clb_model *m = f->run.model;
    size_t n_row = f->job->batch * f->job->length;

    bool shared = clb_model_take_pass(m, f->run.profile != NULL);
    clb_runner_begin(&f->run);
    size_t end = n_row - *row < f->run.shape.max_rows ? n_row : *row + f->run.shape.max_rows;
    bool ok = add_rows(f, *row, end, err) &&
              clb_runner_pass(&f->run, f->job->logits + *row * m->reader.arch.vocab_size, err);
    clb_model_end_pass(m, shared);
    *row = end;
    return ok;
}

bool clb_infer(struct clb_model *m, const struct clb_infer_job *job, struct clb_profile *profile,
               struct clb_err *err)
{
    struct inference f = { .job = job };
    bool ok = true;

    if (!check(m, job, err) || !open_run(&f, m, err))
        return false;
    f.run.profile = profile;
    for (size_t row = 0; ok && row < job->batch * job->length;)
        ok = pass(&f, &row, err);
    f.run.profile = NULL; /* the caller's */
    clb_runner_close(&f.run);
    return ok;
}
