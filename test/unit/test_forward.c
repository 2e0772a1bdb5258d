/* test_forward.c - the whole pass against a plain reference in double precision, written from the
 * formulas and sharing nothing with the engine but the stored weights. One variation of the
 * architecture per row of the table. */
#include "test/unit/engine_rig.h"

enum { LENGTH = 150 };

/* -- the reference -- */

struct ref {
    const struct rig *g;
    const struct clb_arch *a;
    uint32_t n;
    double *x;     /* [n][hidden] */
    double *k, *v; /* [n][n_kv_head * dim] of the layer at hand */
};

/* As the engine does before a quantised matrix: groups of 32 to 127 steps each way. */
static void ref_quantise(double *x, uint32_t n)
{
    for (uint32_t g = 0; g < n; g += 32) {
        double amax = 0;
        for (uint32_t i = g; i < n && i < g + 32; i++)
            amax = fmax(amax, fabs(x[i]));
        for (uint32_t i = g; i < n && i < g + 32 && amax > 0; i++)
            x[i] = rint(x[i] * 127 / amax) * amax / 127;
    }
}

/* Matrices as plain rows, kept until ref_forget. */
static struct {
    const uint8_t *tiles;
    float *w;
} ref_known[512];
static uint32_t n_known;

static const float *ref_rows(const struct clb_matrix *m)
{
    for (uint32_t i = 0; i < n_known; i++)
        if (ref_known[i].tiles == m->tiles)
            return ref_known[i].w;
    float *w = malloc((size_t)m->rows * m->cols * sizeof *w);
    for (uint32_t r = 0; r < m->rows; r++)
        clb_matrix_row(m, r, w + (size_t)r * m->cols);
    ref_known[n_known].tiles = m->tiles;
    ref_known[n_known++].w = w;
    return w;
}

static void ref_forget(void)
{
    while (n_known)
        free(ref_known[--n_known].w);
}

static void ref_linear(const struct clb_matrix *m, const double *x, double *y)
{
    const float *w = ref_rows(m);
    double *in = malloc(m->cols * sizeof *in);

    memcpy(in, x, m->cols * sizeof *in);
    if (!clb_dtype_is_float(m->dtype))
        ref_quantise(in, m->cols);
    for (uint32_t r = 0; r < m->rows; r++, w += m->cols) {
        y[r] = m->bias ? (double)m->bias[r] : 0;
        for (uint32_t c = 0; c < m->cols; c++)
            y[r] += (double)w[c] * in[c];
    }
    free(in);
}

static void ref_norm(double *y, const double *x, const float *w, uint32_t n, double eps)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum / n + eps) * (w ? (double)w[i] : 1);
}

/* A norm of the model's own kind over hidden_size values. */
static void ref_hidden_norm(const struct clb_arch *a, double *y, const double *x, const float *w,
                            const float *b)
{
    uint32_t n = a->hidden_size;
    double mean = 0, sum = 0;

    if (a->norm == CLB_NORM_RMS) {
        ref_norm(y, x, w, n, (double)a->norm_eps);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        mean += x[i] / n;
    for (uint32_t i = 0; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    for (uint32_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) / sqrt(sum / n + (double)a->norm_eps) * (double)w[i] + (double)b[i];
}

/* What a branch reads of x, and what it adds to it. */
static void ref_enter(const struct clb_arch *a, double *y, const double *x, const float *w,
                      const float *b)
{
    if (a->norm_place == CLB_NORM_AFTER)
        memcpy(y, x, a->hidden_size * sizeof *y);
    else
        ref_hidden_norm(a, y, x, w, b);
}

static void ref_leave(const struct clb_arch *a, double *x, double *y, const float *w,
                      const float *b)
{
    if (a->norm_place == CLB_NORM_AFTER)
        ref_hidden_norm(a, y, y, w, b);
    for (uint32_t i = 0; i < a->hidden_size; i++)
        x[i] += (a->residual_scale > 0 ? (double)a->residual_scale : 1) * y[i];
}

static double ref_act(uint32_t act, double x)
{
    switch (act) {
    case CLB_ACT_GELU:
        return x / 2 * (1 + erf(x / sqrt(2)));
    case CLB_ACT_GELU_TANH:
        return x / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case CLB_ACT_RELU:
        return x > 0 ? x : 0;
    default:
        return x / (1 + exp(-x));
    }
}

static void ref_mlp(const struct ref *f, const struct clb_matrix part[CLB_PARTS], const double *x,
                    double *y)
{
    uint32_t n = part[CLB_GATE].rows;
    double *gate = malloc(2 * n * sizeof *gate), *up = gate + n;

    ref_linear(&part[CLB_GATE], x, gate);
    ref_linear(&part[CLB_UP], x, up);
    for (uint32_t i = 0; i < n; i++) {
        double limit = (double)f->a->act_limit, g = fmin(gate[i], limit);

        if (f->a->act == CLB_ACT_CLAMPED_SWIGLU)
            gate[i] = g / (1 + exp(-(double)f->a->act_alpha * g)) *
                      (fmax(-limit, fmin(limit, up[i])) + 1);
        else
            gate[i] = ref_act(f->a->act, gate[i]) * up[i];
    }
    ref_linear(&part[CLB_DOWN], gate, y);
    free(gate);
}

static void ref_rotate(const struct ref *f, const struct clb_layer *l, double *head, uint32_t pos)
{
    const struct clb_arch *a = f->a;
    uint32_t half = a->no_rope[l->index] ? 0 : a->rope_dim / 2;
    double scale = a->rope_scale > 0 ? (double)a->rope_scale : 1;
    bool inter = a->rope == CLB_ROPE_INTERLEAVED;

    for (uint32_t i = 0; i < half; i++) {
        double *p = head + (inter ? 2 * i : i), *q = p + (inter ? 1 : half), p0 = *p, q0 = *q;
        double angle = (double)pos * (double)f->g->w.rope_inv_freq[i];

        *p = (p0 * cos(angle) - q0 * sin(angle)) * scale;
        *q = (q0 * cos(angle) + p0 * sin(angle)) * scale;
    }
}

static void ref_heads(const struct ref *f, const struct clb_layer *l, double *y, uint32_t n_head,
                      const float *w, uint32_t pos)
{
    const struct clb_arch *a = f->a;
    double eps = (double)(a->qk_norm_eps > 0 ? a->qk_norm_eps : a->norm_eps);
    uint32_t dim = a->head_dim;

    if (a->qk_norm == CLB_QK_NORM_FULL)
        ref_norm(y, y, w, n_head * dim, eps);
    for (uint32_t h = 0; h < n_head && a->qk_norm == CLB_QK_NORM_HEAD; h++)
        ref_norm(y + h * dim, y + h * dim, w, dim, eps);
    for (uint32_t i = 0; i < n_head * dim && a->clip_qkv > 0; i++)
        y[i] = fmax(-(double)a->clip_qkv, fmin((double)a->clip_qkv, y[i]));
    for (uint32_t h = 0; h < n_head; h++)
        ref_rotate(f, l, y + h * dim, pos);
    for (uint32_t h = 0; h < n_head; h++)
        if (a->qk_norm == CLB_QK_NORM_HEAD_AFTER_ROPE)
            ref_norm(y + h * dim, y + h * dim, w, dim, eps);
        else if (a->qk_norm == CLB_QK_NORM_L2 && !a->no_rope[l->index])
            ref_norm(y + h * dim, y + h * dim, NULL, dim, eps);
}

static void ref_attend(const struct ref *f, const struct clb_layer *l, uint32_t pos, uint32_t head,
                       const double *q, double *out)
{
    const struct clb_arch *a = f->a;
    uint32_t n_kv = a->attention == CLB_ATTN_MLA ? a->n_head : a->n_kv_head;
    uint32_t kv = head / (a->n_head / n_kv), win = a->window[l->index];
    uint32_t low = win && pos + 1 > win ? pos + 1 - win : 0, chunk = a->chunk[l->index];
    double s[LENGTH], sum = l->sinks ? exp((double)l->sinks[head]) : 0;
    double cap = (double)a->attn_softcap;

    for (uint32_t t = low; t <= pos; t++) {
        s[t] = 0;
        if (chunk && t / chunk != pos / chunk)
            continue;
        for (uint32_t d = 0; d < a->head_dim; d++)
            s[t] += q[d] * f->k[(t * n_kv + kv) * a->head_dim + d];
        s[t] *= a->attn_scale > 0 ? (double)a->attn_scale : 1 / sqrt(a->head_dim);
        s[t] = exp(cap > 0 ? cap * tanh(s[t] / cap) : s[t]);
        sum += s[t];
    }
    for (uint32_t d = 0; d < a->value_dim; d++) {
        out[d] = 0;
        for (uint32_t t = low; t <= pos; t++)
            out[d] += s[t] / sum * f->v[(t * n_kv + kv) * a->value_dim + d];
    }
}

/* Multi-head latent attention as it is defined, not absorbed: keys and values of every head are
 * made from the latent. Returns q, k, v of all positions; k and v have n_head heads. */
static void ref_mla(const struct ref *f, const struct clb_layer *l, const double *in, uint32_t pos,
                    double *q)
{
    const struct clb_arch *a = f->a;
    uint32_t lora = a->kv_lora_rank, nope = a->qk_nope_dim, rope = a->qk_rope_dim;
    double eps = (double)(a->lora_norm_eps > 0 ? a->lora_norm_eps : a->norm_eps);
    const float *k_up = ref_rows(&l->k_up), *v_up = ref_rows(&l->v_up);
    double latent[512], q_a[512];

    ref_linear(&l->kv_a, in, latent);
    ref_norm(latent, latent, l->kv_a_norm, lora, eps);
    ref_rotate(f, l, latent + lora, pos);
    if (l->q_a.tiles) {
        ref_linear(&l->q_a, in, q_a);
        ref_norm(q_a, q_a, l->q_a_norm, a->q_lora_rank, eps);
    }
    ref_linear(&l->q, l->q_a.tiles ? q_a : in, q);
    for (uint32_t h = 0; h < a->n_head; h++) {
        double *k = f->k + ((size_t)pos * a->n_head + h) * a->head_dim;
        double *v = f->v + ((size_t)pos * a->n_head + h) * a->value_dim;

        for (uint32_t d = 0; d < nope; d++) {
            k[d] = 0;
            for (uint32_t i = 0; i < lora; i++)
                k[d] += (double)k_up[(h * lora + i) * nope + d] * latent[i];
        }
        memcpy(k + nope, latent + lora, rope * sizeof *k);
        for (uint32_t d = 0; d < a->value_dim; d++) {
            v[d] = 0;
            for (uint32_t i = 0; i < lora; i++)
                v[d] += (double)v_up[(h * a->value_dim + d) * lora + i] * latent[i];
        }
        ref_rotate(f, l, q + h * a->head_dim + nope, pos);
    }
}

static double multiplier(float m)
{
    return m > 0 ? (double)m : 1;
}

static void ref_attention(const struct ref *f, const struct clb_layer *l)
{
    const struct clb_arch *a = f->a;
    uint32_t h = a->hidden_size;
    double in[512], q[4096], mix[4096], y[512];

    for (uint32_t t = 0; t < f->n && a->attention == CLB_ATTN_GQA; t++) {
        double *k = f->k + (size_t)t * a->n_kv_head * a->head_dim,
               *v = f->v + (size_t)t * a->n_kv_head * a->value_dim;
        ref_enter(a, in, f->x + t * h, l->attn_norm, l->attn_norm_bias);
        ref_linear(&l->k, in, k);
        ref_linear(&l->v, in, v);
        ref_heads(f, l, k, a->n_kv_head, l->k_norm, t);
        for (uint32_t i = 0; i < a->n_kv_head * a->value_dim && a->clip_qkv > 0; i++)
            v[i] = fmax(-(double)a->clip_qkv, fmin((double)a->clip_qkv, v[i]));
    }
    for (uint32_t t = 0; t < f->n; t++) {
        ref_enter(a, in, f->x + t * h, l->attn_norm, l->attn_norm_bias);
        if (a->attention == CLB_ATTN_MLA) {
            ref_mla(f, l, in, t, q);
        } else {
            ref_linear(&l->q, in, q);
            ref_heads(f, l, q, a->n_head, l->q_norm, t);
        }
        for (uint32_t i = 0; i < a->n_head * a->head_dim && a->no_rope[l->index]; i++)
            q[i] *= 1 + (a->attn_temperature_scale > 0
                             ? (double)a->attn_temperature_scale *
                                   log1p(floor((t + 1) / (double)a->attn_temperature_floor))
                             : 0);
        for (uint32_t i = 0; i < a->n_head; i++)
            ref_attend(f, l, t, i, q + i * a->head_dim, mix + i * a->value_dim);
        ref_linear(&l->o, mix, y);
        ref_leave(a, f->x + t * h, y, l->attn_norm, l->attn_norm_bias);
    }
}

static void ref_softmax(double *x, uint32_t n)
{
    double max = x[0], sum = 0;

    for (uint32_t i = 0; i < n; i++)
        max = fmax(max, x[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] = exp(x[i] - max);
    for (uint32_t i = 0; i < n; i++)
        x[i] /= sum;
}

static uint32_t ref_largest(const double *s, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t e = 1; e < n; e++)
        if (s[e] > s[best])
            best = e;
    return best;
}

/* Groups that are not among the best: their experts are not chosen. */
static void ref_keep_groups(const struct clb_arch *a, double *s, uint32_t n)
{
    uint32_t size = n / a->n_group, kept = 0;
    double worth[64], copy[64];

    memcpy(copy, s, n * sizeof *s);
    for (uint32_t g = 0; g < a->n_group; g++) {
        uint32_t best = ref_largest(copy + g * size, size);

        worth[g] = copy[g * size + best];
        copy[g * size + best] = -INFINITY;
        if (a->group_score == CLB_GROUP_TOP2_SUM)
            worth[g] += copy[g * size + ref_largest(copy + g * size, size)];
    }
    for (uint32_t i = 0; i < a->top_groups; i++) {
        uint32_t g = ref_largest(worth, a->n_group);

        worth[g] = -INFINITY;
        kept |= 1u << g;
    }
    for (uint32_t e = 0; e < n; e++)
        if (!(kept >> e / size & 1))
            s[e] = -INFINITY;
}

/* PhiMoE: the best, weighed against those that are nearly as good; then again without it. */
static void ref_sparsemixer(const struct clb_arch *a, double *s, uint32_t n, uint32_t k,
                            uint32_t *id, double *w)
{
    for (uint32_t i = 0; i < k; i++) {
        double sum = 0;

        id[i] = ref_largest(s, n);
        double best = s[id[i]];
        for (uint32_t e = 0; e < n; e++)
            if ((best - s[e]) / fmax(fabs(s[e]), best) <= 2 * (double)a->router_jitter)
                sum += exp(s[e] - best);
        w[i] = 1 / sum;
        s[id[i]] = -INFINITY;
    }
}

/* Chooses by repeated search for the largest. */
static void ref_route(const struct clb_arch *a, const float *correction, double *s, uint32_t n,
                      uint32_t k, uint32_t *id, double *w)
{
    double sum = 0, choice[64];

    if (a->router == CLB_ROUTER_SPARSEMIXER) {
        ref_sparsemixer(a, s, n, k, id, w);
        return;
    }

    for (uint32_t i = 0; i < n && a->router_clip > 0; i++)
        s[i] = fmax(-(double)a->router_clip, fmin((double)a->router_clip, s[i]));
    if (a->router == CLB_ROUTER_SOFTMAX_TOPK)
        ref_softmax(s, n);
    for (uint32_t e = 0; e < n; e++) {
        if (a->router == CLB_ROUTER_SIGMOID)
            s[e] = 1 / (1 + exp(-s[e]));
        choice[e] = s[e] + (correction ? (double)correction[e] : 0);
    }
    if (a->n_group)
        ref_keep_groups(a, choice, n);
    for (uint32_t i = 0; i < k; i++) {
        id[i] = ref_largest(choice, n);
        w[i] = s[id[i]];
        choice[id[i]] = -INFINITY;
        sum += w[i];
    }
    sum = fmax(sum, (double)a->topk_normalise_min);
    if (a->router == CLB_ROUTER_TOPK_SOFTMAX)
        ref_softmax(w, k);
    for (uint32_t i = 0; i < k; i++)
        w[i] *= multiplier(a->routed_scale) /
                (a->router != CLB_ROUTER_TOPK_SOFTMAX && a->topk_normalise ? sum : 1);
}

static void ref_experts(const struct ref *f, const struct clb_layer *l, const double *in,
                        double *sum)
{
    const struct clb_arch *a = f->a;
    double score[64], first[64], w[64], y[512], scaled[512];
    uint32_t id[64];

    if (l->router_in.tiles) {
        ref_linear(&l->router_in, in, first);
        for (uint32_t e = 0; e < l->n_expert; e++)
            first[e] = tanh(first[e]);
    }
    ref_linear(&l->router, l->router_in.tiles ? first : in, score);
    ref_route(a, l->router_correction, score, l->n_expert, l->top_k, id, w);
    memset(sum, 0, a->hidden_size * sizeof *sum);
    for (uint32_t i = 0; i < l->top_k; i++) {
        struct clb_matrix part[CLB_PARTS];
        for (int p = 0; p < CLB_PARTS; p++)
            part[p] = clb_expert_matrix(&f->g->reader, l->experts, (enum clb_part)p,
                                        f->g->reader.data + l->experts->offset[id[i]]);
        for (uint32_t d = 0; d < a->hidden_size; d++)
            scaled[d] = in[d] * (a->scale_expert_input ? w[i] : 1);
        ref_mlp(f, part, scaled, y);
        for (uint32_t d = 0; d < a->hidden_size; d++)
            sum[d] += (a->scale_expert_input ? 1 : w[i]) * y[d];
    }
    if (!l->shared[CLB_GATE].tiles)
        return;
    double open = 0;
    ref_mlp(f, l->shared, in, y);
    if (l->shared_gate.tiles)
        ref_linear(&l->shared_gate, in, &open);
    for (uint32_t d = 0; d < a->hidden_size; d++)
        sum[d] += (l->shared_gate.tiles ? 1 / (1 + exp(-open)) : 1) * y[d];
}

static void ref_layer(const struct ref *f, const struct clb_layer *l)
{
    uint32_t h = f->a->hidden_size;
    double in[512], y[512];

    ref_attention(f, l);
    for (uint32_t t = 0; t < f->n; t++) {
        ref_enter(f->a, in, f->x + t * h, l->mlp_norm, l->mlp_norm_bias);
        if (l->n_expert)
            ref_experts(f, l, in, y);
        else
            ref_mlp(f, l->dense, in, y);
        ref_leave(f->a, f->x + t * h, y, l->mlp_norm, l->mlp_norm_bias);
    }
}

static float ref_embedding(const struct clb_weights *w, size_t i)
{
    switch (w->embed_dtype) {
    case CLB_F16:
        return clb_f16_to_f32(((const uint16_t *)w->embed)[i]);
    case CLB_BF16:
        return clb_bf16_to_f32(((const uint16_t *)w->embed)[i]);
    default:
        return ((const float *)w->embed)[i];
    }
}

static void ref_forward(const struct rig *g, const int32_t *ids, uint32_t n, double *logits)
{
    const struct clb_arch *a = &g->reader.arch;
    uint32_t h = a->hidden_size;
    struct ref f = { .g = g, .a = a, .n = n };
    double in[512];

    f.x = calloc((size_t)n * h, sizeof *f.x);
    f.k = calloc((size_t)n * a->n_head * a->head_dim, sizeof *f.k);
    f.v = calloc((size_t)n * a->n_head * a->value_dim, sizeof *f.v);
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < h; i++)
            f.x[t * h + i] = multiplier(a->embedding_scale) *
                             (double)ref_embedding(&g->w, (size_t)ids[t] * h + i);
    for (uint32_t l = 0; l < a->n_layer; l++)
        ref_layer(&f, &g->w.layer[l]);
    for (uint32_t t = 0; t < n; t++) {
        double *y = logits + (size_t)t * a->vocab_size, cap = (double)a->logit_softcap;
        ref_hidden_norm(a, in, f.x + t * h, g->w.final_norm, g->w.final_norm_bias);
        ref_linear(&g->w.output, in, y);
        for (uint32_t i = 0; i < a->vocab_size; i++) {
            y[i] *= multiplier(a->logit_scale);
            y[i] = cap > 0 ? cap * tanh(y[i] / cap) : y[i];
        }
    }
    ref_forget();
    free(f.x);
    free(f.k);
    free(f.v);
}

/* -- comparison -- */

/* The largest difference, in units of the logits' spread. */
static double distance(const float *got, const double *want, size_t n)
{
    double worst = 0, square = 0;

    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]);
        worst = d <= worst ? worst : d; /* NaN counts */
        square += want[i] * want[i];
    }
    return worst / sqrt(square / (double)n);
}

static double against_reference(const struct rig_options *o)
{
    struct rig g;
    int32_t ids[LENGTH];

    if (!rig_open(&g, o))
        return INFINITY;
    size_t n = (size_t)LENGTH * g.reader.arch.vocab_size;
    float *got = malloc(n * sizeof *got);
    double *want = malloc(n * sizeof *want);
    rig_tokens(ids, LENGTH, g.reader.arch.vocab_size, 5);
    struct rig_batch b = {
        .n_seq = 1, .chunk = 100, .ids = { ids }, .length = { LENGTH }, .out = { got }
    };
    double d = INFINITY;
    if (rig_run(&g, &b)) {
        ref_forward(&g, ids, LENGTH, want);
        d = distance(got, want, n);
    }
    free(got);
    free(want);
    rig_close(&g);
    return d;
}

/* -- variations of the architecture -- */

/* clang-format off */
static void plain(struct clb_arch *a) { (void)a; }
static void not_normalised(struct clb_arch *a) { a->topk_normalise = false; a->routed_scale = 2; }
static void topk_softmax(struct clb_arch *a) { a->router = CLB_ROUTER_TOPK_SOFTMAX; a->top_k = 3; }
static void router_clip(struct clb_arch *a) { a->router_clip = 0.4f; a->topk_normalise = false; }
static void all_experts(struct clb_arch *a) { a->top_k = 8; }
static void one_expert(struct clb_arch *a) { a->top_k = 1; a->topk_normalise = false; }
static void per_layer(struct clb_arch *a)
{
    a->layer_experts[1] = 5;
    a->layer_top_k[0] = 3;
    a->top_k = 4;
}
static void shared(struct clb_arch *a) { a->shared_size = 80; }
static void shared_gate(struct clb_arch *a) { a->shared_size = 36; a->shared_gate = true; }
static void dense_layer(struct clb_arch *a) { a->layer_experts[0] = 0; a->dense_size = 100; }
static void head_norm(struct clb_arch *a) { a->qk_norm = CLB_QK_NORM_HEAD; a->qk_norm_eps = 0.3f; }
static void full_norm(struct clb_arch *a) { a->qk_norm = CLB_QK_NORM_FULL; a->clip_qkv = 0.9f; }
static void biases(struct clb_arch *a) { a->q_bias = a->k_bias = a->v_bias = a->o_bias = true; }
static void softcap(struct clb_arch *a)
{
    a->attn_softcap = 0.7f;
    a->attn_scale = 0.6f;
    a->logit_softcap = 1.5f;
}
static void window(struct clb_arch *a) { a->window[0] = 33; a->window[1] = 70; }
static void multipliers(struct clb_arch *a)
{
    a->embedding_scale = 3;
    a->residual_scale = 0.4f;
    a->logit_scale = 0.3f;
}
static void partial_rope(struct clb_arch *a) { a->rope_dim = 6; a->rope_scale = 1.2f; }
static void interleaved(struct clb_arch *a) { a->rope = CLB_ROPE_INTERLEAVED; }
static void value_width(struct clb_arch *a) { a->value_dim = 23; a->head_dim = 20; }
static void one_kv_head(struct clb_arch *a) { a->n_head = 40; a->n_kv_head = 1; }
static void gelu(struct clb_arch *a) { a->act = CLB_ACT_GELU; }
static void gelu_tanh(struct clb_arch *a) { a->act = CLB_ACT_GELU_TANH; }
static void relu(struct clb_arch *a) { a->act = CLB_ACT_RELU; }
static void odd_sizes(struct clb_arch *a)
{
    a->hidden_size = 71;
    a->expert_size = 33;
    a->vocab_size = 101;
}

static void sigmoid(struct clb_arch *a) { a->router = CLB_ROUTER_SIGMOID; a->routed_scale = 2.5f; }
static void correction(struct clb_arch *a)
{
    sigmoid(a);
    a->router_correction = true;
    a->top_k = 3;
}
static void ernie(struct clb_arch *a)
{
    a->router_correction = true;
    a->topk_normalise_min = 0.6f;
}
static void groups_by_max(struct clb_arch *a)
{
    a->n_group = 4;
    a->top_groups = 2;
    a->group_score = CLB_GROUP_MAX;
    a->top_k = 3;
}
static void groups_by_two(struct clb_arch *a)
{
    correction(a);
    groups_by_max(a);
    a->group_score = CLB_GROUP_TOP2_SUM;
}
static void sparsemixer(struct clb_arch *a)
{
    a->router = CLB_ROUTER_SPARSEMIXER;
    a->router_jitter = 0.3f;
    a->topk_normalise = false;
}
static void router_bias(struct clb_arch *a) { topk_softmax(a); a->router_bias = true; }
static void two_layers(struct clb_arch *a) { topk_softmax(a); a->router_two_layers = true; }
static void scaled_input(struct clb_arch *a) { sigmoid(a); a->scale_expert_input = true; }
static void expert_bias(struct clb_arch *a) { a->expert_bias = true; }
static void clamped(struct clb_arch *a)
{
    a->act = CLB_ACT_CLAMPED_SWIGLU;
    a->act_limit = 0.2f;
    a->act_alpha = 1.702f;
}
static void sinks(struct clb_arch *a) { a->sinks = true; window(a); }
static void chunks(struct clb_arch *a) { a->chunk[0] = 48; a->chunk[1] = 130; }
static void no_rope(struct clb_arch *a)
{
    a->no_rope[1] = true;
    a->attn_temperature_scale = 0.9f;
    a->attn_temperature_floor = 16;
}
static void nowhere_rope(struct clb_arch *a) { a->rope = CLB_ROPE_NONE; a->rope_dim = 0; }
static void norm_after_rope(struct clb_arch *a) { a->qk_norm = CLB_QK_NORM_HEAD_AFTER_ROPE; }
static void norm_l2(struct clb_arch *a) { no_rope(a); a->qk_norm = CLB_QK_NORM_L2; }
static void layer_norm(struct clb_arch *a) { a->norm = CLB_NORM_LAYER; a->norm_eps = 0.01f; }
static void post_norm(struct clb_arch *a) { a->norm_place = CLB_NORM_AFTER; dense_layer(a); }
static void mla(struct clb_arch *a)
{
    a->attention = CLB_ATTN_MLA;
    a->n_head = a->n_kv_head = 3;
    a->kv_lora_rank = 40; /* heads of k_up and v_up begin inside a tile */
    a->qk_nope_dim = 13;
    a->qk_rope_dim = a->rope_dim = 6;
    a->head_dim = 19;
    a->value_dim = 23;
    a->rope = CLB_ROPE_INTERLEAVED;
    a->attn_scale = 0.4f;
}
static void mla_two_latents(struct clb_arch *a)
{
    mla(a);
    a->q_lora_rank = 36;
    a->lora_norm_eps = 0.01f;
    a->window[0] = 70;
}
static void output_bias(struct clb_arch *a) { a->output_bias = true; }

/* Random weights amplify what rounding does, and small differences flip choices: not here. */
static void calm(struct clb_arch *a) { a->residual_scale = 0.2f; a->top_k = 8; }

static const struct {
    const char *name;
    void (*change)(struct clb_arch *a);
} variations[] = {
#define V(f) { #f, f }
    V(plain), V(not_normalised), V(topk_softmax), V(router_clip), V(all_experts), V(one_expert),
    V(per_layer), V(shared), V(shared_gate), V(dense_layer), V(head_norm), V(full_norm), V(biases),
    V(softcap), V(window), V(multipliers), V(partial_rope), V(interleaved), V(value_width),
    V(one_kv_head), V(gelu), V(gelu_tanh), V(relu), V(odd_sizes), V(sigmoid), V(correction),
    V(ernie), V(groups_by_max), V(groups_by_two), V(sparsemixer), V(router_bias), V(two_layers),
    V(scaled_input), V(expert_bias), V(clamped), V(sinks), V(chunks), V(no_rope), V(nowhere_rope),
    V(norm_after_rope), V(norm_l2), V(layer_norm), V(post_norm), V(output_bias), V(mla),
    V(mla_two_latents),
};
/* clang-format on */

static void every_variation(void)
{
    for (size_t i = 0; i < sizeof variations / sizeof *variations; i++) {
        struct clb_arch a;
        tiny_arch(&a);
        variations[i].change(&a);
        double d = against_reference(
            &(struct rig_options){ .model = { .arch = &a, .seed = 3 }, .n_thread = 2 });
        if (!(d < 1e-4))
            printf("# %s: distance %g\n", variations[i].name, d);
        CHECK(d < 1e-4);
    }
}

/* Rounded storage and quantised activations, which the reference rounds too; codes at a tie may
 * differ. */
static void every_stored_type(void)
{
    static const double limit[CLB_DTYPE_COUNT] = { 1e-4, 1e-4, 1e-4, 0.06, 0.06, 0.06 };
    struct clb_arch a;

    tiny_arch(&a);
    shared_gate(&a);
    dense_layer(&a);
    calm(&a);
    for (int t = 0; t < CLB_DTYPE_COUNT; t++) {
        enum clb_dtype type = (enum clb_dtype)t;
        struct rig_options o = {
            .model = { .arch = &a,
                       .seed = 4,
                       .expert = type,
                       .dense = type,
                       .embed = t == CLB_F32   ? CLB_F32
                                : t == CLB_F16 ? CLB_F16
                                               : CLB_BF16 },
            .n_thread = 1,
        };
        double d = against_reference(&o);
        if (!(d < limit[t]))
            printf("# %s: distance %g\n", clb_dtype_name(type), d);
        CHECK(d < limit[t]);
    }
}

static void every_kv_type(void)
{
    static const double limit[] = { [CLB_KV_F32] = 1e-4, [CLB_KV_F16] = 5e-3, [CLB_KV_INT8] = 0.1 };
    struct clb_arch a;

    tiny_arch(&a);
    window(&a);
    calm(&a);
    for (int t = CLB_KV_F32; t <= CLB_KV_INT8; t++) {
        double d = against_reference(&(struct rig_options){
            .model = { .arch = &a, .seed = 6 }, .kv = (enum clb_kv_dtype)t, .n_thread = 1 });
        if (!(d < limit[t]))
            printf("# kv type %d: distance %g\n", t, d);
        CHECK(d < limit[t]);
    }
}

static void profile_counts(void)
{
    struct clb_arch a;
    struct rig g;
    int32_t ids[70];
    float *out = malloc(70 * 99 * sizeof *out);
    uint64_t expert_rows[16] = { 0 }, slots = 0;
    struct clb_profile f = { .expert_rows = expert_rows };

    tiny_arch(&a);
    CHECK(rig_open(&g, &(struct rig_options){ .model = { .arch = &a }, .n_thread = 1 }));
    rig_tokens(ids, 70, 99, 1);
    CHECK(rig_run(&g, &(struct rig_batch){ .n_seq = 1,
                                           .chunk = 40,
                                           .ids = { ids },
                                           .length = { 70 },
                                           .out = { out },
                                           .profile = &f }));
    for (int i = 0; i < 16; i++)
        slots += expert_rows[i];
    CHECK_EQ(f.passes, 2);
    CHECK_EQ(f.rows, 70);
    CHECK_EQ(f.expert_slots, 70 * 2 * 2);
    CHECK_EQ(slots, f.expert_slots);
    CHECK_EQ(f.macs[CLB_STAGE_EXPERTS], 70ull * 2 * 2 * 3 * 48 * 64);
    CHECK_EQ(f.macs[CLB_STAGE_PROJECT], 70ull * 2 * 64 * (64 + 32 + 32));
    CHECK_EQ(f.macs[CLB_STAGE_MIX], 2ull * (70 * 71 / 2) * 4 * 32);
    CHECK_EQ(f.macs[CLB_STAGE_LOGITS], 70ull * 99 * 64);
    CHECK_EQ(f.bytes[CLB_STAGE_LOGITS], 2 * clb_tiles_bytes(CLB_F32, 99, 64));
    CHECK_EQ(f.bytes[CLB_STAGE_MIX], (40 + 70) * 2 * 2 * 32 * 4);
    CHECK_EQ(f.macs[CLB_STAGE_MLP], 0);
    for (int i = 0; i < CLB_STAGES; i++) { /* a model in f32, one thread */
        CHECK_EQ(f.f32_macs[i], f.macs[i]);
        CHECK(f.waited[i] == 0);
        CHECK(f.alone[i] >= 0 && f.alone[i] <= f.seconds[i]);
    }
    CHECK(f.seconds[CLB_STAGE_EXPERTS] > 0);
    CHECK_STR(clb_stage_name[CLB_STAGE_EXPERTS], "ExpertCompute");
    rig_close(&g);
    free(out);
}

/* A router of zeros: all scores are equal, so every row goes to the lowest ids. */
static void ties_go_to_the_lowest_id(void)
{
    struct clb_arch a;
    struct rig g;
    int32_t ids[20];
    float *out = malloc(20 * 99 * sizeof *out);
    uint64_t expert_rows[16] = { 0 };
    struct clb_profile f = { .expert_rows = expert_rows };
    struct rig_batch b = {
        .n_seq = 1,
        .chunk = 20,
        .ids = { ids },
        .length = { 20 },
        .out = { out },
        .profile = &f,
        .top_k = 3,
    };

    tiny_arch(&a);
    a.top_k = 4;
    CHECK(rig_open(&g, &(struct rig_options){ .model = { .arch = &a }, .n_thread = 1 }));
    for (uint32_t l = 0; l < 2; l++) {
        const struct clb_tensor *t = clb_reader_find(&g.reader, CLB_ROUTER, l);
        memset(g.file.bytes + t->offset, 0, t->size);
    }
    rig_tokens(ids, 20, 99, 1);
    CHECK(rig_run(&g, &b));
    for (uint32_t i = 0; i < 16; i++)
        CHECK_EQ(expert_rows[i], i % 8 < 3 ? 20 : 0);
    rig_close(&g);
    free(out);
}

static void refusals(void)
{
    struct clb_arch a;
    struct rig g;
    struct clb_err err;
    struct clb_acts *x;
    struct clb_backend *be;

    tiny_arch(&a);
    CHECK(rig_open(&g,
                   &(struct rig_options){ .model = { .arch = &a }, .n_thread = 1, .max_rows = 4 }));
    CHECK(!clb_backend_cpu.acts_new(g.be, &x, &a,
                                    &(struct clb_acts_shape){ .max_rows = 1, .top_k = 65 }, &err));
    CHECK_HAS(err.text, "65 experts per token; the most is 64");
    CHECK(!clb_backend_cpu.acts_new(
        g.be, &x, &a, &(struct clb_acts_shape){ .max_rows = UINT32_MAX, .top_k = 64 }, &err));
    CHECK_EQ(err.code, CLB_NO_SPACE);
    a.linear_attention[1] = true;
    CHECK(!clb_backend_cpu.acts_new(g.be, &x, &a, &(struct clb_acts_shape){ .max_rows = 1 }, &err));
    CHECK_EQ(err.code, CLB_UNSUPPORTED);
    CHECK(!clb_backend_cpu.begin(g.be, g.x, &g.w, &(struct clb_pass){ .n_row = 5 }, &err));
    CHECK_HAS(err.text, "a pass of 5 rows");
    CHECK(!clb_backend_cpu.begin(g.be, g.x, &g.w, &(struct clb_pass){ .top_k = 3 }, &err));
    CHECK_HAS(err.text, "3 experts per token; activations hold 2");
    rig_close(&g);
    CHECK(!clb_backend_cpu.open(&be, &(struct clb_backend_options){ .cpu_level = "sse" }, &err));
    CHECK_HAS(err.text, "there is no CPU level 'sse'");
    CHECK(clb_backend_find("cuda", &err) == clb_backend_device());
    CHECK(clb_backend_device() || err.code == CLB_UNSUPPORTED);
    CHECK(!clb_backend_find("tpu", &err));
    CHECK_EQ(err.code, CLB_USAGE);
    CHECK(clb_backend_find("cpu", &err) == &clb_backend_cpu);
}

int main(void)
{
    TEST(every_variation);
    TEST(every_stored_type);
    TEST(every_kv_type);
    TEST(profile_counts);
    TEST(ties_go_to_the_lowest_id);
    TEST(refusals);
    return test_result();
}
