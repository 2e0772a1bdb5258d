#include "lib/session/runner.h"

#include "lib/base/mem.h"
#include "lib/model/resident.h"

static void carve_pass(struct clb_runner *r, struct clb_carver *c, const struct clb_acts_shape *s)
{
    r->token = clb_carve(c, s->max_rows, sizeof *r->token);
    r->position = clb_carve(c, s->max_rows, sizeof *r->position);
    r->sequence = clb_carve(c, s->max_rows, sizeof *r->sequence);
    r->logit_row = clb_carve(c, s->max_logits, sizeof *r->logit_row);
    r->n_candidate = clb_carve(c, s->max_logits, sizeof *r->n_candidate);
    r->candidate = clb_carve(c, s->max_candidates, sizeof *r->candidate);
    r->seq = clb_carve(c, s->max_seqs, sizeof *r->seq);
}

static bool host_bytes(const struct clb_runner_options *o, uint64_t *bytes, struct clb_err *err)
{
    struct clb_runner none = { 0 };
    struct clb_carver c = { 0 };

    carve_pass(&none, &c, &o->acts);
    if (c.overflow || !clb_add(c.at, o->host_bytes, bytes) || *bytes > UINT64_MAX - o->aside_bytes)
        return clb_fail_nomem(err, UINT64_MAX);
    return true;
}

bool clb_runner_plan(struct clb_memory_plan *p, struct clb_model *m,
                     const struct clb_runner_options *o, struct clb_err *err)
{
    struct clb_run_shape s = { .acts = o->acts,
                               .kv_default = o->kv_default,
                               .n_block = o->n_block };

    if (!host_bytes(o, &s.host_bytes, err))
        return false;
    s.host_bytes += o->aside_bytes;
    return clb_plan_run(p, m, &s, err);
}

static bool open_profile(struct clb_runner *r, struct clb_err *err)
{
    const struct clb_arch *a = &r->model->reader.arch;

    r->profile = clb_new(1, sizeof *r->profile, err);
    if (!r->profile)
        return false;
    r->profile->expert_rows =
        clb_new((size_t)a->n_layer * a->n_expert, sizeof *r->profile->expert_rows, err);
    return r->profile->expert_rows != NULL;
}

/* NULL: memory of the host as it is. */
static const struct clb_memory *pinned_memory(const struct clb_runner *r)
{
    const struct clb_device_ops *d = r->model->op->device;

    return d ? d->pinned(r->model->be) : NULL;
}

/* Of the host, beside a device. */
static uint64_t acts_bytes(const struct clb_runner *r)
{
    const struct clb_model *m = r->model;
    const struct clb_device_ops *d = m->op->device;

    return d ? d->acts_host_bytes(m->be, &m->reader.arch, &r->shape) : 0;
}

static bool open_host(struct clb_runner *r, const struct clb_runner_options *o, struct clb_err *err)
{
    uint64_t bytes;

    if (!host_bytes(o, &bytes, err))
        return false;
    const struct clb_memory *pinned = pinned_memory(r);
    r->host.base = pinned ? pinned->get(pinned->arg, bytes, err) : clb_new(1, bytes, err);
    if (!r->host.base)
        return false;
    r->block_bytes = bytes;
    r->host_bytes = bytes + o->aside_bytes + acts_bytes(r);
    clb_ledger_add(&r->model->ledger[CLB_POOL_HOST], r->host_bytes, r->host_bytes);
    carve_pass(r, &r->host, &o->acts);
    return true;
}

static bool open_acts(struct clb_runner *r, struct clb_err *err)
{
    struct clb_model *m = r->model;

    clb_model_take_turn(m);
    bool ok = m->op->acts_new(m->be, &r->acts, &m->reader.arch, &r->shape, err);
    clb_model_end_turn(m);
    return ok;
}

static bool open_pool(struct clb_runner *r, uint32_t n_block, struct clb_err *err)
{
    struct clb_model *m = r->model;
    const struct clb_device_ops *d = m->op->device;
    struct clb_kv_where where = {
        .ledger = &m->ledger[CLB_POOL_ACTIVATIONS],
        .residence = &m->residence,
        .memory = d ? d->memory(m->be) : NULL,
    };
    struct clb_kv_shape kv;

    return clb_model_kv_shape(m, m->op, &kv, r->shape.kv_dtype, err) &&
           clb_kv_pool_new(&r->pool, &kv, n_block, &where, err);
}

bool clb_runner_open(struct clb_runner *r, struct clb_model *m, const struct clb_runner_options *o,
                     struct clb_err *err)
{
    struct clb_memory_plan plan;

    *r = (struct clb_runner){ .model = m, .shape = o->acts };
    do
        if (!clb_runner_plan(&plan, m, o, err) || !clb_plan_check(&plan, err))
            return false;
    while (!clb_model_settle(m, plan.op, plan.why_cpu));
    if (!clb_model_commit(m, clb_plan_host_bytes(&plan), plan.device, err)) {
        clb_model_failed(m);
        return false;
    }
    r->shape.kv_dtype = plan.kv_dtype;
    r->committed = clb_plan_host_bytes(&plan);
    r->committed_device = plan.device;
    if (!open_host(r, o, err) || (o->profile && !open_profile(r, err)) || !open_acts(r, err) ||
        !open_pool(r, o->n_block, err)) {
        clb_model_failed(m);
        clb_runner_close(r);
        return false;
    }
    return true;
}

void clb_runner_close(struct clb_runner *r)
{
    struct clb_model *m = r->model;

    if (!m)
        return;
    if (r->acts) {
        clb_model_take_turn(m);
        m->op->acts_free(m->be, r->acts);
        clb_model_end_turn(m);
    }
    clb_kv_pool_free(r->pool);
    if (r->host.base)
        clb_ledger_sub(&m->ledger[CLB_POOL_HOST], r->host_bytes, r->host_bytes);
    if (pinned_memory(r))
        pinned_memory(r)->put(pinned_memory(r)->arg, r->host.base, r->block_bytes);
    else
        clb_free(r->host.base);
    if (r->profile)
        clb_free(r->profile->expert_rows);
    clb_free(r->profile);
    clb_model_release(m, r->committed, r->committed_device);
    *r = (struct clb_runner){ 0 };
}

bool clb_check_top_k(const struct clb_model *m, uint32_t top_k, struct clb_err *err)
{
    const struct clb_arch *a = &m->reader.arch;

    for (uint32_t l = 0; l < a->n_layer && top_k > 0; l++) {
        uint32_t most = m->weights.layer[l].n_expert;

        if (most == 0)
            continue;
        if (a->router == CLB_ROUTER_SPARSEMIXER)
            most = clb_arch_layer_top_k(a, l);
        else if (a->n_group > 0)
            most = clb_arch_choosable(a, most);
        most = most < CLB_MAX_TOP_K ? most : CLB_MAX_TOP_K;
        if (top_k > most) {
            clb_fail(err, CLB_USAGE,
                     "%u experts per token: layer %u has %u experts and can use at most %u", top_k,
                     l, m->weights.layer[l].n_expert, most);
            return clb_err_place(err, NULL, "experts_per_token", CLB_NO_OFFSET);
        }
    }
    return true;
}

void clb_kv_seq_rope(struct clb_kv_seq *s, const struct clb_weights *w, uint32_t context)
{
    const struct clb_arch *a = w->arch;
    bool is_long = a->rope_long_from > 0 && context > a->rope_long_from;
    float scale = is_long && a->rope_scale_long != 0 ? a->rope_scale_long : a->rope_scale;

    s->inv_freq = is_long ? w->rope_inv_freq_long : w->rope_inv_freq;
    s->rope_scale = scale != 0 ? scale : 1;
}

void clb_runner_begin(struct clb_runner *r)
{
    r->pass = (struct clb_pass){
        .token = r->token,
        .position = r->position,
        .sequence = r->sequence,
        .seq = r->seq,
        .logit_row = r->logit_row,
        .n_candidate = r->n_candidate,
        .candidate = r->candidate,
        .top_k = r->shape.top_k,
        .want_routes = r->profile != NULL,
    };
}

void clb_runner_add(struct clb_runner *r, struct clb_kv_seq *kv, const int32_t *token, uint32_t n,
                    enum clb_logits want, uint32_t n_candidate)
{
    struct clb_pass *p = &r->pass;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = p->n_row++;

        r->token[row] = token[i];
        r->position[row] = kv->length + i;
        r->sequence[row] = p->n_seq;
        if (want == CLB_LOGITS_ALL || (want == CLB_LOGITS_LAST && i + 1 == n)) {
            r->logit_row[p->n_logit] = row;
            r->n_candidate[p->n_logit++] = n_candidate;
        }
    }
    r->seq[p->n_seq++] = kv;
}

bool clb_runner_pass(struct clb_runner *r, float *logits, struct clb_err *err)
{
    struct clb_model *m = r->model;
    const struct clb_engine engine = {
        .op = m->op,
        .be = m->be,
        .w = &m->weights,
        .experts = m->experts,
        .block = m->block,
    };

    struct clb_numa_policy policy;

    clb_numa_enter(&m->residence.numa, &policy);
    clb_resident_rows(m, r->token, r->pass.n_row);
    bool ok = clb_forward(&engine, r->acts, &r->pass, logits, r->profile, err);
    clb_numa_leave(&policy);
    if (!ok) {
        clb_model_failed(m);
        return false;
    }
    for (uint32_t i = 0; i < r->pass.n_row; i++)
        r->seq[r->sequence[i]]->length++;
    return true;
}

uint32_t clb_most_candidates(struct clb_model *m)
{
    const struct clb_device_ops *d = clb_model_place(m).op->device;

    return d ? d->candidates(m->reader.arch.vocab_size) : 0;
}

bool clb_runner_fetch(struct clb_runner *r, uint32_t i, float *out, struct clb_err *err)
{
    struct clb_model *m = r->model;
    bool shared = clb_model_take_pass(m, false);
    bool ok = m->op->device->fetch(m->be, r->acts, i, out, err);

    if (!ok)
        clb_model_failed(m);
    clb_model_end_pass(m, shared);
    return ok;
}
