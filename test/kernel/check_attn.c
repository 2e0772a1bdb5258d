/* Every level's attention over a KV block gives the bits of the scalar one. */
#include "lib/backend/kv.h"
#include "test/kernel/levels.h"

enum { MAX_QUERY = CLB_ATTN_QUERIES, MAX_DIM = 600 };

struct problem {
    enum clb_kv_dtype kind;
    struct clb_attn_tile a;
    uint8_t first[MAX_QUERY], last[MAX_QUERY];
    float scale_k[CLB_KV_BLOCK], scale_v[CLB_KV_BLOCK];
    float q[MAX_QUERY][MAX_DIM];
    const float *q_row[MAX_QUERY];
    float *o_row[MAX_QUERY];
    void *k, *v;
};

static void *rnd_kv(enum clb_kv_dtype kind, size_t n, enum values v)
{
    size_t each = kind == CLB_KV_F32 ? 4 : kind == CLB_KV_F16 ? 2 : 1;
    uint8_t *p = aligned_alloc(64, (n * each + 63) & ~(size_t)63);

    for (size_t i = 0; i < n; i++) {
        float f = rnd_value(v == SPECIAL && rnd_below(50) ? PLAIN : v);
        uint16_t h = clb_f32_to_f16(f);
        if (kind == CLB_KV_INT8)
            p[i] = (uint8_t)(1 + rnd_below(255) - 128);
        else
            memcpy(p + i * each, kind == CLB_KV_F32 ? (void *)&f : (void *)&h, each);
    }
    return p;
}

/* Ranges as causal prefill has them, as a window cuts them, or anything. */
static void rnd_ranges(struct problem *p)
{
    uint32_t style = rnd_below(3), heads = 1 + rnd_below(4);

    for (uint32_t i = 0; i < p->a.n_query; i++) {
        uint32_t at = (i / heads + style * 7) % CLB_KV_BLOCK;
        uint32_t a = rnd_below(CLB_KV_BLOCK), b = 1 + rnd_below(CLB_KV_BLOCK);
        if (style == 2) {
            p->first[i] = (uint8_t)(a < b ? a : b - 1);
            p->last[i] = (uint8_t)(a < b ? b : a + 1);
        } else {
            p->first[i] = (uint8_t)(style && at > 5 ? at - 5 : 0);
            p->last[i] = (uint8_t)(at + 1);
        }
    }
    if (rnd_below(3) == 0) /* decode: the whole block */
        for (uint32_t i = 0; i < p->a.n_query; i++) {
            p->first[i] = 0;
            p->last[i] = CLB_KV_BLOCK;
        }
}

static void problem_new(struct problem *p, enum clb_kv_dtype kind, uint32_t n_query,
                        uint32_t key_dim, uint32_t value_dim, enum values v)
{
    *p = (struct problem){ .kind = kind };
    p->k = rnd_kv(kind, (size_t)key_dim * CLB_KV_BLOCK, v);
    p->v = rnd_kv(kind, (size_t)value_dim * CLB_KV_BLOCK, v);
    rnd_row(p->scale_k, CLB_KV_BLOCK, PLAIN);
    rnd_row(p->scale_v, CLB_KV_BLOCK, PLAIN);
    for (uint32_t i = 0; i < n_query; i++) {
        rnd_row(p->q[i], key_dim, v);
        p->q_row[i] = p->q[i];
    }
    p->a = (struct clb_attn_tile){ .n_query = n_query,
                                   .key_dim = key_dim,
                                   .value_dim = value_dim,
                                   .q = p->q_row,
                                   .k = p->k,
                                   .v = p->v,
                                   .k_scale = p->scale_k,
                                   .v_scale = p->scale_v,
                                   .first = p->first,
                                   .last = p->last,
                                   .scale = 0.125f,
                                   .softcap = rnd() & 1 ? 0.0f : 20.0f,
                                   .o = p->o_row,
                                   .fold = rnd() & 1,
                                   .next = rnd() & 1 ? p->k : NULL,
                                   .next_bytes = rnd_below(50000) };
    rnd_ranges(p);
}

static void problem_free(struct problem *p)
{
    free(p->k);
    free(p->v);
}

/* Outputs in one row each: o of every query, then m, then l. */
static void run(struct problem *p, const struct clb_kernels *k, float *out)
{
    uint32_t n = p->a.n_query;

    for (uint32_t i = 0; i < n; i++)
        p->o_row[i] = out + i * p->a.value_dim;
    p->a.m = out + n * p->a.value_dim;
    p->a.l = p->a.m + n;
    k->attn_tile[p->kind](&p->a);
}

/* What the blocks before left; nothing for every third query. */
static void rnd_totals(const struct problem *p, float *out)
{
    uint32_t n = p->a.n_query, width = p->a.value_dim;

    for (uint32_t i = 0; i < n; i++) {
        bool none = rnd_below(3) == 0;
        for (uint32_t d = 0; d < width; d++)
            out[i * width + d] = none ? 0 : rnd_value(MIXED);
        out[n * width + i] = none ? -INFINITY : rnd_unit() * 8;
        out[n * (width + 1) + i] = none ? 0 : 1 + rnd_unit();
    }
}

static bool same_bits(struct problem *p, const struct clb_kernels *k)
{
    struct pair out = pair_new(p->a.n_query * (p->a.value_dim + 2), rnd_below(8));
    char what[128];

    rnd_totals(p, out.want);
    memcpy(out.got, out.want, out.n * sizeof *out.got);
    run(p, &ref, out.want);
    run(p, k, out.got);
    snprintf(what, sizeof what, "kind %d, %u queries, widths %u and %u%s", (int)p->kind,
             p->a.n_query, p->a.key_dim, p->a.value_dim, p->a.fold ? ", folded" : "");
    bool ok = pair_equal(&out, what);
    pair_free(&out);
    return ok;
}

static bool check_kind(enum clb_kv_dtype kind, const struct clb_kernels *k)
{
    static const uint32_t dim[] = { 64, 16, 1, 7, 24, 40, 96, 128, 33, 576 };
    static struct problem p;
    bool ok = true;

    for (size_t i = 0; i < sizeof dim / sizeof *dim && ok; i++)
        for (uint32_t n = 1; n <= MAX_QUERY && ok; n += dim[i] > 100 ? 5 : 1) {
            problem_new(&p, kind, n, dim[i], dim[rnd_below(9)],
                        (enum values)rnd_below(VALUES_COUNT));
            ok = same_bits(&p, k);
            problem_free(&p);
        }
    return ok;
}

/* The scalar kernel against the formula in double. */
static void the_definition_is_attention(void)
{
    static struct problem p;
    float out[24 + 2];

    problem_new(&p, CLB_KV_F32, 1, 16, 24, PLAIN);
    p.a.softcap = 0;
    p.a.fold = false;
    p.first[0] = 3;
    p.last[0] = 50;
    run(&p, &ref, out);
    double s[CLB_KV_BLOCK], m = -1e300, l = 0;
    for (int j = 3; j < 50; j++) {
        s[j] = 0;
        for (int d = 0; d < 16; d++)
            s[j] += (double)p.q[0][d] * ((const float *)p.k)[d * CLB_KV_BLOCK + j];
        s[j] *= 0.125;
        m = s[j] > m ? s[j] : m;
    }
    for (int j = 3; j < 50; j++)
        l += exp(s[j] - m);
    CHECK(fabs(out[24] - m) < 1e-4 && fabs(out[25] - l) < 1e-4 * l);
    for (int d = 0; d < 24; d++) {
        double o = 0;
        for (int j = 3; j < 50; j++)
            o += exp(s[j] - m) * ((const float *)p.v)[j * 24 + d];
        CHECK(fabs(out[d] - o) < 1e-3);
    }
    problem_free(&p);
}

/* To fold a block in is to compute it, then to fold it. */
static void folding_is_both_steps(void)
{
    static struct problem p;
    float apart[40 + 2], block[40 + 2], together[40 + 2];

    for (int i = 0; i < 50; i++) {
        problem_new(&p, (enum clb_kv_dtype)(i % 3), 1, 24, 40, PLAIN);
        rnd_totals(&p, apart);
        memcpy(together, apart, sizeof apart);
        p.a.fold = true;
        run(&p, &ref, together);
        p.a.fold = false;
        run(&p, &ref, block);
        ref.attn_fold(apart + 40, apart + 41, apart, block[40], block[41], block, 40);
        CHECK(!memcmp(apart, together, sizeof apart));
        problem_free(&p);
    }
}

/* -- timing -------------------------------------------------------------------------------- */

struct timed {
    const struct clb_kernels *k;
    struct problem *p;
    float *out;
};

static void call_attn(void *arg)
{
    struct timed *t = arg;
    run(t->p, t->k, t->out);
}

static void bench(const struct level *l)
{
    static const char *const kind[CLB_KV_KINDS] = { "f32", "f16", "int8" };
    static const uint32_t n[] = { 1, 2, 4, 8, 16, 32 };
    static struct problem p;
    static float out[MAX_QUERY * (MAX_DIM + 2)];

    for (int t = 0; t < CLB_KV_KINDS; t++)
        for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
            struct timed timed = { &l->k, &p, out };
            problem_new(&p, (enum clb_kv_dtype)t, n[i], 128, 128, PLAIN);
            memset(p.first, 0, sizeof p.first);
            memset(p.last, CLB_KV_BLOCK, sizeof p.last);
            p.a.softcap = 0;
            p.a.fold = true;
            p.a.next = NULL;
            for (uint32_t q = 0; q < n[i]; q++)
                out[n[i] * 129 + q] = -INFINITY;
            double time = time_calls(call_attn, &timed);
            printf("# attention %-4s %-8s %2u queries: %5.1f GMAC/s\n", kind[t], l->name, n[i],
                   2.0 * n[i] * 128 * CLB_KV_BLOCK / time * 1e-9);
            problem_free(&p);
        }
}

int main(int argc, char **argv)
{
    static const char *const kind[CLB_KV_KINDS] = { "attention f32", "attention f16",
                                                    "attention int8" };

    start(argc, argv);
    TEST(the_definition_is_attention);
    TEST(folding_is_both_steps);
    for (int l = 0; l < n_level; l++) {
        for (int t = 0; t < CLB_KV_KINDS && !want_bench && !levels[l].only_matmul; t++)
            report(check_kind((enum clb_kv_dtype)t, &levels[l].k), kind[t], levels[l].name);
        if (want_bench)
            bench(&levels[l]);
    }
    return test_result();
}
