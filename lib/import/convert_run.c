/* convert_run.c - the pass over the weights. Jobs (a dense tensor, an expert, a tensor that is only
 * checksummed) are taken by threads as they become free; each reads its source piece by piece with
 * explicit reads, packs it and hands its block on to be written. What a thread holds is a few
 * pieces, whatever the model. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/crc.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/import/convert_impl.h"
#include "lib/import/convert_io.h"

struct run {
    struct clb_conversion *c;
    struct clb_convert_io io;
    struct clb_worker *worker; /* [n_thread] */
    uint32_t *crc;             /* [slices of all tensors: bind.slice_at] of the stored bytes */
    float *most;               /* [n_expert_part] largest magnitudes; only when scales are shared */
    const struct clb_ckpt_tensor **rest; /* [n_rest] tensors that nothing uses */
    uint32_t n_rest;
    struct {
        uint32_t layer, expert;
    } * expert; /* [n_expert] jobs in file order */
    uint32_t n_expert;
    atomic_uint next;
    atomic_uint failed; /* the lowest job that failed; UINT32_MAX: none */
};

/* Where the checksum of a slice is kept. */
static uint32_t *crc_of(const struct run *r, const struct clb_ckpt_tensor *t, uint32_t slice)
{
    return &r->crc[r->c->bind.slice_at[t - r->c->ckpt.tensor] + slice];
}

/* After all rows of a view were read. */
static void keep_crc(const struct run *r, const struct clb_source *in)
{
    const struct clb_view *v = in->v;

    if (v->counts)
        *crc_of(r, v->t, v->slice) = in->crc;
    if (v->scale_counts)
        *crc_of(r, v->scale, v->slice) = in->scale_crc;
}

/* -- dense tensors --------------------------------------------------------------------------- */

static bool write_inv_freq(struct run *r, enum clb_role role, struct clb_block *out,
                           struct clb_loss *loss, struct clb_err *err)
{
    const struct clb_family_extra *extra = &r->c->extra;
    const float *values = role == CLB_ROPE_INV_FREQ ? extra->inv_freq : extra->inv_freq_long;
    size_t n = r->c->arch.rope_dim / 2;

    loss->values = n;
    return clb_block_write(out, values, n * sizeof(float), err);
}

static bool pack_dense(struct run *r, struct clb_worker *w, const struct clb_view *from,
                       struct clb_block *out, const struct clb_tensor *t, struct clb_loss *loss,
                       struct clb_err *err)
{
    const struct clb_target to = { .dtype = t->dtype,
                                   .rows = t->spec.rows,
                                   .cols = t->spec.cols,
                                   .scale_at = t->scale_offset,
                                   .book = &r->c->book };
    struct clb_source in;
    bool ok = clb_source_open(&in, w, &r->io, &r->c->ckpt, from, err);

    if (!ok)
        return false;
    ok = t->spec.form == CLB_FORM_ROWS     ? clb_copy_rows(&in, out, loss, err)
         : t->spec.form == CLB_FORM_VECTOR ? clb_copy_vector(&in, out, loss, err)
                                           : clb_pack_matrix(&in, out, &to, loss, err);
    keep_crc(r, &in);
    return ok;
}

static bool convert_dense(struct run *r, struct clb_worker *w, uint32_t i, struct clb_err *err)
{
    struct clb_conversion *c = r->c;
    const struct clb_tensor *t = clb_plan_tensor(c->plan, i);
    struct clb_block out = { .io = &r->io, .at = t->offset };
    struct clb_loss *loss = &c->dense_loss[i];
    bool ok = c->bind.dense[i].t ? pack_dense(r, w, &c->bind.dense[i], &out, t, loss, err)
                                 : write_inv_freq(r, t->spec.role, &out, loss, err);

    ok = ok && clb_block_pad(&out, t->offset + t->size, err);
    clb_block_end(&out);
    if (ok)
        clb_plan_tensor_crc(c->plan, i, out.crc);
    return ok;
}

/* -- experts --------------------------------------------------------------------------------- */

/* The scale that the expert shares, 0: every row has its own. */
static float shared_scale(const struct run *r, uint32_t layer, uint32_t expert, enum clb_part part)
{
    const struct clb_conversion *c = r->c;
    uint32_t first = c->bind.first[layer] + (uint32_t)part;
    float most = 0;

    if (!r->most)
        return 0;
    if (c->o.scale == CLB_SCALE_EXPERT)
        return clb_int8_scale(r->most[first + expert * CLB_PARTS]);
    for (uint32_t e = 0; e < c->arch.layer_experts[layer]; e++) {
        float m = r->most[first + e * CLB_PARTS];

        most = most > m ? most : m;
    }
    return clb_int8_scale(most);
}

static bool convert_part(struct run *r, struct clb_worker *w, struct clb_block *out, uint64_t at,
                         uint32_t layer, uint32_t expert, enum clb_part p, struct clb_err *err)
{
    struct clb_conversion *c = r->c;
    const struct clb_expert_part *part = &clb_plan_experts(c->plan, layer)->part[p];
    uint32_t i = clb_bound_index(&c->bind, layer, expert, p);
    struct clb_loss bias_loss = { 0 };
    struct clb_target to = { .dtype = part->dtype,
                             .rows = part->rows,
                             .cols = part->cols,
                             .scale_at = part->scale_at ? at + part->scale_at : 0,
                             .book = &c->book,
                             .shared = r->most != NULL,
                             .scale = shared_scale(r, layer, expert, p) };
    struct clb_source in;

    if (!clb_block_pad(out, at + part->at, err) ||
        !clb_source_open(&in, w, &r->io, &c->ckpt, &c->bind.expert[i], err) ||
        !clb_pack_matrix(&in, out, &to, &c->expert_loss[i], err))
        return false;
    keep_crc(r, &in);
    if (!part->bias_at)
        return true;
    if (!clb_block_pad(out, at + part->bias_at, err) ||
        !clb_source_open(&in, w, &r->io, &c->ckpt, &c->bind.bias[i], err) ||
        !clb_copy_vector(&in, out, &bias_loss, err))
        return false;
    keep_crc(r, &in);
    return true;
}

static bool convert_expert(struct run *r, struct clb_worker *w, uint32_t layer, uint32_t expert,
                           struct clb_err *err)
{
    const struct clb_expert_layer *x = clb_plan_experts(r->c->plan, layer);
    uint64_t at = x->offset[expert];
    struct clb_block out = { .io = &r->io, .at = at };
    bool ok = true;

    for (int p = 0; ok && p < CLB_PARTS; p++)
        ok = convert_part(r, w, &out, at, layer, expert, (enum clb_part)p, err);
    ok = ok && clb_block_pad(&out, at + x->size[expert], err);
    clb_block_end(&out);
    if (ok)
        clb_plan_expert_crc(r->c->plan, layer, expert, out.crc);
    return ok;
}

static bool measure_expert(struct run *r, struct clb_worker *w, uint32_t layer, uint32_t expert,
                           struct clb_err *err)
{
    for (int p = 0; p < CLB_PARTS; p++) {
        uint32_t at = clb_bound_index(&r->c->bind, layer, expert, (enum clb_part)p);
        struct clb_source in;

        if (!clb_source_open(&in, w, &r->io, &r->c->ckpt, &r->c->bind.expert[at], err) ||
            !clb_measure(&in, &r->most[at], err))
            return false;
    }
    return true;
}

/* -- jobs ------------------------------------------------------------------------------------ */

static uint32_t n_jobs(const struct run *r)
{
    return r->io.measuring ? r->n_expert : r->c->bind.n_dense + r->n_expert + r->n_rest;
}

static bool do_job(struct run *r, struct clb_worker *w, uint32_t job, struct clb_err *err)
{
    uint32_t n_dense = r->io.measuring ? 0 : r->c->bind.n_dense;

    if (job < n_dense)
        return convert_dense(r, w, job, err);
    job -= n_dense;
    if (job < r->n_expert)
        return (r->io.measuring ? measure_expert : convert_expert)(r, w, r->expert[job].layer,
                                                                   r->expert[job].expert, err);
    job -= r->n_expert;
    return clb_read_slice(w, &r->io, &r->c->ckpt, r->rest[job], 1, 0, crc_of(r, r->rest[job], 0),
                          err);
}

/* What a job will read is announced when an earlier one begins, so that nobody waits for it. */
static void announce(const struct run *r, uint32_t job)
{
    const struct clb_conversion *c = r->c;
    uint32_t n_dense = r->io.measuring ? 0 : c->bind.n_dense;

    if (job < n_dense) {
        clb_source_announce(&c->ckpt, &c->bind.dense[job]);
    } else if (job - n_dense < r->n_expert) {
        uint32_t first = clb_bound_index(&c->bind, r->expert[job - n_dense].layer,
                                         r->expert[job - n_dense].expert, CLB_GATE);

        for (uint32_t p = 0; p < CLB_PARTS; p++)
            clb_source_announce(&c->ckpt, &c->bind.expert[first + p]);
    }
}

/* Jobs are taken in order, so every job below a failed one was taken too and is finished: the
 * failure that is reported is the first one in file order, whatever the threads did. */
static void work(void *arg, unsigned thread, unsigned n_thread)
{
    struct run *r = arg;
    struct clb_worker *w = &r->worker[thread];
    uint32_t job, n = n_jobs(r);

    announce(r, thread);
    while (clb_take(&r->next, n, &job) && job < atomic_load(&r->failed)) {
        struct clb_err err = { 0 };
        unsigned lowest = atomic_load(&r->failed);

        announce(r, job + n_thread);
        if (do_job(r, w, job, &err))
            continue;
        w->failed_job = job;
        w->err = err;
        while (job < lowest && !atomic_compare_exchange_weak(&r->failed, &lowest, job))
            ;
        return; /* later jobs are of no interest any more */
    }
}

static bool run_jobs(struct run *r, struct clb_pool *pool, struct clb_err *err)
{
    atomic_store(&r->next, 0);
    atomic_store(&r->failed, UINT32_MAX);
    clb_pool_run(pool, work, r);

    uint32_t job = atomic_load(&r->failed);
    for (unsigned t = 0; t < clb_pool_threads(pool) && job != UINT32_MAX; t++)
        if (r->worker[t].failed_job == job) {
            *err = r->worker[t].err;
            return false;
        }
    return true;
}

/* -- before and after ------------------------------------------------------------------------ */

static void mark(uint8_t *used, const struct clb_checkpoint *k, const struct clb_view *v)
{
    if (v->t)
        used[v->t - k->tensor] = 1;
    if (v->t && v->scale)
        used[v->scale - k->tensor] = 1;
}

static bool list_jobs(struct run *r, struct clb_err *err)
{
    const struct clb_conversion *c = r->c;
    const struct clb_checkpoint *k = &c->ckpt;
    uint32_t n = c->bind.n_expert_part / CLB_PARTS;
    uint8_t *used = clb_new(k->n_tensor, 1, err);

    r->expert = clb_new(n, sizeof *r->expert, err);
    r->rest = clb_new(k->n_tensor, sizeof *r->rest, err);
    if (!used || !r->expert || !r->rest) {
        clb_free(used);
        return false;
    }
    for (uint32_t l = 0; l < c->arch.n_layer; l++)
        for (uint32_t e = 0; e < c->arch.layer_experts[l]; e++, r->n_expert++) {
            r->expert[r->n_expert].layer = l;
            r->expert[r->n_expert].expert = e;
        }
    for (uint32_t i = 0; i < c->bind.n_dense; i++)
        mark(used, k, &c->bind.dense[i]);
    for (uint32_t i = 0; i < c->bind.n_expert_part; i++) {
        mark(used, k, &c->bind.expert[i]);
        if (c->bind.bias)
            mark(used, k, &c->bind.bias[i]);
    }
    for (uint32_t i = 0; i < k->n_tensor; i++)
        if (!used[i])
            r->rest[r->n_rest++] = &k->tensor[i];
    clb_free(used);
    return true;
}

static bool make_room(struct run *r, unsigned n_thread, struct clb_err *err)
{
    struct clb_conversion *c = r->c;
    struct clb_room room = { 0 };

    c->dense_loss = clb_new(c->bind.n_dense, sizeof *c->dense_loss, err);
    c->expert_loss = clb_new(c->bind.n_expert_part, sizeof *c->expert_loss, err);
    r->crc = clb_new(c->bind.slice_at[c->ckpt.n_tensor], sizeof *r->crc, err);
    r->worker = clb_new(n_thread, sizeof *r->worker, err);
    if (!c->dense_loss || !c->expert_loss || !r->crc || !r->worker)
        return false;
    if (c->o.scale != CLB_SCALE_ROW && c->expert_dtype == CLB_INT8 &&
        !(r->most = clb_new(c->bind.n_expert_part, sizeof *r->most, err)))
        return false;
    for (uint32_t i = 0; i < c->bind.n_dense; i++)
        clb_room_add(&room, &c->bind.dense[i]);
    for (uint32_t i = 0; i < c->bind.n_expert_part; i++) {
        clb_room_add(&room, &c->bind.expert[i]);
        if (c->bind.bias)
            clb_room_add(&room, &c->bind.bias[i]);
    }
    for (unsigned t = 0; t < n_thread; t++)
        if (!clb_worker_init(&r->worker[t], &room, err))
            return false;
    return list_jobs(r, err);
}

/* The checksum of a shard: its header, read once more, then its tensors, which follow each other
 * without a gap. */
static bool shard_crc(const struct run *r, uint32_t shard, uint32_t *out, struct clb_err *err)
{
    const struct clb_safetensors *s = &r->c->ckpt.shard[shard];
    struct clb_worker *w = &r->worker[0];
    uint32_t crc = 0;

    for (uint64_t at = 0; at < s->data_at;) {
        size_t n = s->data_at - at < w->in_bytes ? (size_t)(s->data_at - at) : w->in_bytes;

        if (!clb_mapfile_read(&s->map, w->in, at, n, err))
            return false;
        crc = clb_crc32(crc, w->in, n);
        at += n;
    }
    for (uint32_t i = 0; i < s->n_tensor; i++) {
        const struct clb_ckpt_tensor *t = clb_checkpoint_find(&r->c->ckpt, s->order[i]->name);
        uint32_t at = r->c->bind.slice_at[t - r->c->ckpt.tensor];
        uint32_t n = r->c->bind.slice_at[t - r->c->ckpt.tensor + 1] - at;
        for (uint32_t k = 0; k < n; k++)
            crc = clb_crc32_combine(crc, r->crc[at + k], (t->t->end - t->t->begin) / n);
    }
    *out = crc;
    return true;
}

static bool write_section(struct run *r, const char *name, const void *bytes, struct clb_err *err)
{
    const struct clb_section *s = clb_plan_section(r->c->plan, name);
    struct clb_block out = { .io = &r->io };

    if (!s)
        return true;
    out.at = s->offset;
    bool ok = clb_block_write(&out, bytes, s->size, err);
    clb_block_end(&out);
    if (ok)
        clb_plan_section_crc(r->c->plan, name, out.crc);
    return ok;
}

static bool write_rest(struct run *r, struct clb_err *err)
{
    struct clb_conversion *c = r->c;
    const struct clb_ckpt_file *tokenizer = clb_tokenizer_file(c);
    struct clb_block out = { .io = &r->io };
    struct clb_text header = { 0 };
    uint32_t n = 0;

    for (int i = 0; i < CLB_CKPT_TEXTS; i++)
        if (c->ckpt.text[i].path)
            clb_plan_source_crc(c->plan, n++,
                                clb_crc32(0, c->ckpt.text[i].data, c->ckpt.text[i].size));
    for (uint32_t i = 0; i < c->ckpt.n_shard; i++) {
        uint32_t crc;

        if (!shard_crc(r, i, &crc, err))
            return false;
        clb_plan_source_crc(c->plan, n++, crc);
    }
    bool ok = write_section(r, "tokenizer.source", tokenizer->data, err) &&
              write_section(r, "tokenizer.tables", c->tables.p, err) &&
              write_section(r, "chat_template", c->chat_template.p, err) &&
              write_section(r, "chat_template.tool_use", c->chat_tool_use.p, err) &&
              write_section(r, "chat_variables", c->chat_variables.p, err) &&
              clb_plan_header(c->plan, &header, err) &&
              clb_block_write(&out, header.p, header.n, err);
    clb_block_end(&out);
    clb_text_free(&header);
    return ok;
}

/* Takes the whole size from the disk at once: a full disk is seen before an hour of work, and
 * writers need not wait for each other. Gaps read as zeros. */
static bool set_size(const struct run *r, int fd, struct clb_err *err)
{
    off_t size = (off_t)clb_plan_file_size(r->c->plan);
    struct stat st;

    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return true;
    if (fallocate(fd, 0, 0, size) == 0)
        return true;
    if ((errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) && ftruncate(fd, size) == 0)
        return true;
    return clb_fail_sys(err, CLB_FAILED, "the output cannot be enlarged to %llu bytes",
                        (unsigned long long)size);
}

/* Published checkpoints keep the matrix that they tie to the embedding, and it is the same; another
 * one means that somebody trained it, or untied it without saying so. */
static void compare_tied(const struct run *r)
{
    const struct clb_ckpt_tensor *output = r->c->bind.tied_output;
    const struct clb_ckpt_tensor *embed = r->c->bind.dense[0].t;

    if (output && (output->t->dtype != embed->t->dtype ||
                   output->t->end - output->t->begin != embed->t->end - embed->t->begin ||
                   *crc_of(r, output, 0) != *crc_of(r, embed, 0)))
        clb_note(&r->c->notes,
                 "warning: tensor '%s' differs from '%s', which takes its place because "
                 "'tie_word_embeddings' is true",
                 output->t->name, embed->t->name);
}

static bool convert(struct run *r, struct clb_pool *pool, struct clb_err *err)
{
    r->io.measuring = r->most != NULL;
    if (r->io.measuring && !run_jobs(r, pool, err))
        return false;
    r->io.measuring = false;
    return run_jobs(r, pool, err) && write_rest(r, err) && clb_writers_wait(r->io.writers, err);
}

bool clb_convert_run(struct clb_conversion *c, int fd, void (*progress)(uint64_t done),
                     struct clb_err *err)
{
    struct run r = { .c = c, .io = { .kernels = &c->kernels, .progress = progress } };
    unsigned n_thread = c->o.threads ? c->o.threads : clb_pool_default_threads(NULL, 0);
    struct clb_pool *pool = NULL;
    bool ok = make_room(&r, n_thread, err) && clb_pool_new(&pool, n_thread, err) &&
              set_size(&r, fd, err) &&
              clb_writers_new(&r.io.writers, fd, n_thread, clb_worker_least(&c->arch), err) &&
              convert(&r, pool, err);

    if (ok)
        compare_tied(&r);
    clb_pool_free(pool);
    clb_writers_free(r.io.writers);
    for (unsigned t = 0; t < n_thread && r.worker; t++)
        clb_worker_done(&r.worker[t]);
    clb_free(r.worker);
    clb_free(r.crc);
    clb_free(r.most);
    clb_free(r.rest);
    clb_free(r.expert);
    return ok;
}
