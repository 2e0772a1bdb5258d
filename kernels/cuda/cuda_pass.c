/* cuda_pass.c - the start and the end of a pass: what the host knows goes to the device in one
 * copy, embedding; final norm, output, and the wait for logits or candidates. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cuda_call.h"

#include <string.h>

#include "kernels/cuda/chunks.h"

/* -- begin ------------------------------------------------------------------------------------- */

static bool check(struct clb_backend *be, struct clb_acts *x, const struct clb_weights *w,
                  const struct clb_pass *p, struct clb_err *err)
{
    if (!clb_pass_check(p, &x->shape, x->top_k, err))
        return false;
    if (w != be->host || !be->there)
        return clb_fail(err, CLB_USAGE, "the weights of this pass are not on the device");
    for (uint32_t s = 0; s < p->n_seq; s++)
        if (p->seq[s]->pool != p->seq[0]->pool || p->seq[s]->n_block > x->ld_table)
            return clb_fail(err, CLB_USAGE,
                            "sequence %u of the pass has another KV pool, or is longer than the "
                            "%u positions that activations are for",
                            s, x->shape.max_context);
    return true;
}

static void tell_sequences(struct clb_backend *be, struct clb_acts *x)
{
    const struct clb_pass *p = x->p;

    for (uint32_t s = 0; s < p->n_seq; s++) {
        const struct clb_kv_seq *q = p->seq[s];

        x->here.inv_freq[s] = clb_cuda_there(be, q->inv_freq);
        x->here.rope_scale[s] = q->rope_scale;
        memcpy(x->here.table + s * (size_t)x->ld_table, q->block, q->n_block * sizeof *q->block);
    }
}

/* 16 queries at a time, of n rows of one sequence and heads that share a KV head. */
static void tell_tiles_of(struct clb_acts *x, uint32_t row, uint32_t n)
{
    for (uint32_t q = 0; q < n * x->group; q += CLB_CUDA_QUERIES) {
        uint32_t left = n * x->group - q;

        x->here.tile[x->n_tile++] = (struct clb_cuda_queries){
            .sequence = x->p->sequence[row],
            .first_row = row,
            .first = q,
            .n = left < CLB_CUDA_QUERIES ? left : CLB_CUDA_QUERIES,
        };
    }
}

/* Those of rows that cuDNN wants come last: layers that it cannot do take all. */
static void tell_tiles(struct clb_acts *x)
{
    const struct clb_pass *p = x->p;

    x->n_tile = x->dnn.n_run = 0;
    for (uint32_t r = 0, n; r < p->n_row; r += n) {
        for (n = 1; r + n < p->n_row && p->sequence[r + n] == p->sequence[r];)
            n++;
        if (!clb_cuda_dnn_wants(x, r, n))
            tell_tiles_of(x, r, n);
    }
    x->n_own_tile = x->n_tile;
    for (uint32_t i = 0; i < x->dnn.n_run; i++)
        tell_tiles_of(x, x->dnn.run[i].first_row, x->dnn.run[i].n_row);
}

/* MLA: every head multiplies all rows, which lie side by side. */
static void tell_chunks(struct clb_backend *be, struct clb_acts *x)
{
    uint32_t n_row = x->p->n_row;

    for (int k = 0; k < CLB_CUDA_CLASSES; k++) {
        x->here.n_chunk[k] = 0;
        for (uint32_t h = 0; h < be->host->arch->n_head; h++)
            for (uint32_t i = 0; i < chunks_of(n_row, k); i++) {
                struct clb_cuda_chunk c = chunk_of(n_row, k, i);

                c.expert = h;
                c.first += h * n_row;
                x->here.chunk[k][x->here.n_chunk[k]++] = c;
            }
    }
}

/* Candidates of all rows are side by side. */
static void tell_wants(struct clb_acts *x)
{
    const struct clb_pass *p = x->p;
    uint32_t at = 0;

    x->n_candidate = clb_pass_candidates(p);
    for (uint32_t i = 0; i < p->n_logit && x->n_candidate; i++) {
        x->here.want[i] = (struct clb_cuda_want){ p->n_candidate[i], at };
        at += p->n_candidate[i];
    }
}

static bool send(struct clb_acts *x, struct clb_err *err)
{
    const struct clb_pass *p = x->p;
    size_t n = (size_t)((uint8_t *)(x->here.table + (size_t)p->n_seq * x->ld_table) - x->pin);

    return clb_cuda_ok(cudaMemcpyAsync(x->block, x->pin, n, cudaMemcpyHostToDevice, x->stream), err,
                       "starting a pass");
}

/* A pass that failed may have left work on its streams, which reads and writes what this one is
 * about to write. */
static bool drain(const struct clb_backend *be, struct clb_acts *x, struct clb_err *err)
{
    bool ok = clb_cuda_ok(cudaStreamSynchronize(x->stream), err, "the pass before");

    for (unsigned i = 0; ok && i < be->n_peer; i++)
        ok = clb_cuda_ok(cudaStreamSynchronize(x->peer[i].stream), err, "the pass before");
    if (ok && x->host.stream)
        ok = clb_cuda_ok(cudaStreamSynchronize(x->host.stream), err, "the pass before");
    x->under_way = !ok;
    return ok;
}

bool clb_cuda_begin(struct clb_backend *be, struct clb_acts *x, const struct clb_weights *w,
                    const struct clb_pass *p, struct clb_err *err)
{
    if (!check(be, x, w, p, err) ||
        !clb_cuda_ok(cudaSetDevice(be->device), err, "choosing the device") ||
        (x->under_way && !drain(be, x, err)))
        return false;
    x->under_way = true;
    x->p = p;
    x->pool = p->seq[0]->pool;
    x->last_position = 0;
    memcpy(x->here.token, p->token, p->n_row * sizeof *p->token);
    memcpy(x->here.position, p->position, p->n_row * sizeof *p->position);
    memcpy(x->here.sequence, p->sequence, p->n_row * sizeof *p->sequence);
    memcpy(x->here.logit_row, p->logit_row, p->n_logit * sizeof *p->logit_row);
    for (uint32_t r = 0; r < p->n_row; r++)
        x->last_position = p->position[r] > x->last_position ? p->position[r] : x->last_position;
    tell_sequences(be, x);
    tell_tiles(x);
    tell_wants(x);
    if (be->host->arch->attention == CLB_ATTN_MLA)
        tell_chunks(be, x);
    clb_cuda_graph_begin(be, x);
    return send(x, err);
}

/* -- embedding --------------------------------------------------------------------------------- */

bool clb_cuda_embed(struct clb_backend *be, struct clb_acts *x, struct clb_err *err)
{
    const struct clb_arch *a = be->host->arch;
    const struct clb_cuda_embed e = {
        .n_row = x->p->n_row,
        .n = a->hidden_size,
        .dtype = be->w.embed_dtype,
        .embed = be->w.embed,
        .token = x->there.token,
        .scale = a->embedding_scale,
        .x = x->x,
        .ld = x->ld_hidden,
        .rope_dim = a->rope == CLB_ROPE_NONE ? 0 : a->rope_dim,
        .position = x->there.position,
        .sequence = x->there.sequence,
        .inv_freq = x->there.inv_freq,
        .rope_scale = x->there.rope_scale,
        .cosine = x->cosine,
        .sine = x->sine,
    };

    clb_cuda_run_embed(&e, x->stream);
    const struct clb_cuda_branch next = clb_cuda_next(be, x, &be->layer[0].w, false);
    clb_cuda_run_branch(&next, x->x, x->ld_hidden, a->hidden_size, x->p->n_row, x->stream);
    return clb_cuda_launched(be, x, err, "Embed");
}

/* -- logits ------------------------------------------------------------------------------------ */

static void output_rows(struct clb_backend *be, struct clb_acts *x)
{
    const struct clb_arch *a = be->host->arch;
    enum clb_cuda_kind kind = clb_cuda_kind(be->w.output.dtype);
    struct clb_cuda_branch norm = {
        .norm = { true, a->norm, be->w.final_norm, be->w.final_norm_bias, a->norm_eps },
        .ld_wide = x->last.ld,
        .ld_half = x->last.ld,
        .bf16 = kind == CLB_CUDA_BRAIN,
        .row = x->there.logit_row,
    };
    const struct clb_cuda_linear out = {
        .w = &be->w.output,
        .in = clb_cuda_as(&x->last, kind),
        .ld_in = x->last.ld,
        .n_row = x->p->n_logit,
        .y = x->logits,
        .ldy = a->vocab_size,
    };

    if (kind == CLB_CUDA_WIDE)
        norm.wide = x->last.wide;
    else
        norm.half = x->last.half[kind];
    clb_cuda_run_branch(&norm, x->x, x->ld_hidden, a->hidden_size, x->p->n_logit, x->stream);
    clb_cuda_linear(be, x, &out);
    if (a->logit_softcap > 0 || (a->logit_scale > 0 && a->logit_scale != 1))
        clb_cuda_run_cap(x->logits, x->p->n_logit, a->vocab_size, a->logit_scale, a->logit_softcap,
                         x->stream);
}

static void choose(struct clb_backend *be, struct clb_acts *x)
{
    const struct clb_cuda_choose c = {
        .n_row = x->p->n_logit,
        .n = be->host->arch->vocab_size,
        .logits = x->logits,
        .want = x->there.want,
        .kept = x->kept,
        .out = x->candidate,
    };

    clb_cuda_run_choose(&c, x->stream);
}

bool clb_cuda_output(struct clb_backend *be, struct clb_acts *x, struct clb_err *err)
{
    if (x->p->n_logit)
        output_rows(be, x);
    if (x->n_candidate)
        choose(be, x);
    return clb_cuda_launched(be, x, err, "Logits");
}

static bool bring(struct clb_acts *x, void *to, const void *from, size_t bytes, struct clb_err *err)
{
    return clb_cuda_ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, x->stream), err,
                       "Logits");
}

/* Rows from the i-th on that are wanted whole. */
static uint32_t whole_from(const struct clb_pass *p, uint32_t i)
{
    uint32_t n = 0;

    while (i + n < p->n_logit && !(p->n_candidate && p->n_candidate[i + n]))
        n++;
    return n;
}

static bool bring_all(struct clb_backend *be, struct clb_acts *x, float *out, struct clb_err *err)
{
    const struct clb_pass *p = x->p;
    size_t n_vocab = be->host->arch->vocab_size;

    if (x->n_candidate &&
        !bring(x, p->candidate, x->candidate, x->n_candidate * sizeof *p->candidate, err))
        return false;
    for (uint32_t i = 0, n; i < p->n_logit; i += n ? n : 1) {
        n = whole_from(p, i);
        if (n &&
            !bring(x, out + i * n_vocab, x->logits + i * n_vocab, n * n_vocab * sizeof *out, err))
            return false;
    }
    return true;
}

bool clb_cuda_logits(struct clb_backend *be, struct clb_acts *x, float *out, struct clb_err *err)
{
    bool ok = (x->deferred ? clb_cuda_graph_run(be, x, err) : clb_cuda_output(be, x, err)) &&
              bring_all(be, x, out, err) &&
              clb_cuda_ok(cudaStreamSynchronize(x->stream), err, "a pass");

    x->under_way = !ok;
    return ok;
}

bool clb_cuda_fetch(struct clb_backend *be, struct clb_acts *x, uint32_t i, float *out,
                    struct clb_err *err)
{
    size_t n_vocab = be->host->arch->vocab_size;

    return clb_cuda_ok(cudaSetDevice(be->device), err, "choosing the device") &&
           bring(x, out, x->logits + i * n_vocab, n_vocab * sizeof *out, err) &&
           clb_cuda_ok(cudaStreamSynchronize(x->stream), err, "a row of logits");
}
