/* The sampler: exact choices where the set is small, counts against probabilities where it is
 * drawn. */
#include <math.h>

#include <stdlib.h>

#include "lib/base/fmath.h"
#include "lib/sample/rng.h"
#include "lib/sample/sampler.h"
#include "test/check.h"
#include "test/unit/odd_fp.h"

enum { N = 8, MANY = 1000, DRAWS = 20000 };

static int32_t choose(const float *logits, uint32_t n, const struct clb_sampling *o,
                      uint64_t position)
{
    struct clb_sampler *s;
    struct clb_err err;
    const struct clb_draw d = { .logits = logits, .position = position };

    CHECK(clb_sampling_check(o, &err));
    CHECK(clb_sampler_new(&s, n, &err));
    int32_t id = clb_sample(s, o, &d);
    clb_sampler_free(s);
    return id;
}

/* How often each id comes at positions 0 .. DRAWS - 1. */
static void count(uint32_t hits[N], const float logits[N], const struct clb_sampling *o)
{
    struct clb_sampler *s;
    struct clb_err err;

    memset(hits, 0, N * sizeof *hits);
    CHECK(clb_sampler_new(&s, N, &err));
    for (uint64_t p = 0; p < DRAWS; p++) {
        const struct clb_draw d = { .logits = logits, .position = p };
        int32_t id = clb_sample(s, o, &d);
        CHECK(id >= 0 && id < N);
        hits[id]++;
    }
    clb_sampler_free(s);
}

/* Pearson's statistic; ids that cannot come must not. */
static double chi_square(const uint32_t hits[N], const double p[N])
{
    double sum = 0, total = 0;

    for (int i = 0; i < N; i++)
        total += p[i];
    for (int i = 0; i < N; i++) {
        double want = DRAWS * p[i] / total;
        if (p[i] == 0)
            CHECK_EQ(hits[i], 0);
        else
            sum += (hits[i] - want) * (hits[i] - want) / want;
    }
    return sum;
}

static const double weight[N] = { 0.05, 0.30, 0.10, 0.02, 0.25, 0.08, 0.15, 0.05 };

static void logits_of(float logits[N], const double p[N])
{
    for (int i = 0; i < N; i++)
        logits[i] = (float)log(p[i]) + 3;
}

static void philox_known_answers(void)
{
    static const uint32_t zero[4], ones[4] = { ~0u, ~0u, ~0u, ~0u };
    static const uint32_t pi[4] = { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 };
    static const uint32_t pi_key[2] = { 0xa4093822, 0x299f31d0 };
    static const uint32_t want[3][4] = {
        { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
        { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd },
        { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 },
    };
    uint32_t out[4];

    clb_philox4x32(zero, zero, out);
    CHECK(!memcmp(out, want[0], sizeof out));
    clb_philox4x32(ones, ones, out);
    CHECK(!memcmp(out, want[1], sizeof out));
    clb_philox4x32(pi, pi_key, out);
    CHECK(!memcmp(out, want[2], sizeof out));
    CHECK(clb_rng_at(1, 2) != clb_rng_at(2, 1));
}

static void greedy_takes_largest_and_lowest_id(void)
{
    const struct clb_sampling greedy = { 0 };
    float a[N] = { 1, 3, 2, 3, -1, 0, 3, 2 }, negative[N] = { -5, -4, -3, -2, -2, -9, -9, -9 };

    CHECK_EQ(choose(a, N, &greedy, 0), 1);
    CHECK_EQ(choose(negative, N, &greedy, 7), 3);
}

static void not_a_number_is_never_chosen(void)
{
    const struct clb_sampling greedy = { 0 }, warm = {
        .temperature = 1, .top_k = 3, .top_p = 0.99f, .min_p = 1e-6f
    };
    float some[N] = { NAN, -INFINITY, NAN, 2, NAN, -INFINITY, 1, NAN }, none[N];
    uint32_t hits[N];

    for (int i = 0; i < N; i++)
        none[i] = i % 2 ? NAN : -INFINITY;
    CHECK_EQ(choose(some, N, &greedy, 0), 3);
    CHECK_EQ(choose(none, N, &greedy, 0), -1);
    CHECK_EQ(choose(none, N, &warm, 0), -1);
    count(hits, some, &warm);
    CHECK_EQ(hits[3] + hits[6], DRAWS);
    CHECK(hits[6] > 0);
}

static void infinite_logits_share(void)
{
    const struct clb_sampling warm = { .temperature = 0.5f };
    float a[N] = { 1, INFINITY, 2, 3, INFINITY, NAN, 80, -INFINITY };
    uint32_t hits[N];

    count(hits, a, &warm);
    CHECK_EQ(hits[1] + hits[4], DRAWS);
    CHECK(hits[1] > DRAWS * 0.48 && hits[4] > DRAWS * 0.48);
}

static void draws_follow_the_distribution(void)
{
    float logits[N];
    uint32_t hits[N];

    logits_of(logits, weight);
    count(hits, logits, &(struct clb_sampling){ .temperature = 1, .seed = 42 });
    CHECK(chi_square(hits, weight) < 24.3); /* 7 degrees of freedom, p = 0.001 */
}

static void temperature_sharpens(void)
{
    float logits[N];
    uint32_t hits[N];
    double p[N];

    logits_of(logits, weight);
    for (int i = 0; i < N; i++)
        p[i] = pow(weight[i], 1 / 0.7f);
    count(hits, logits, &(struct clb_sampling){ .temperature = 0.7f, .seed = 1 });
    CHECK(chi_square(hits, p) < 24.3);
    CHECK_EQ(choose(logits, N, &(struct clb_sampling){ .temperature = 1e-30f }, 5), 1);
}

static void top_k_keeps_k_with_lowest_ids_among_ties(void)
{
    static const double kept[N] = { 0, 0.30, 0, 0, 0.25, 0, 0.15, 0 };
    float logits[N], ties[N] = { 1, 5, 5, 5, 5, 5, 0, 9 };
    uint32_t hits[N];

    logits_of(logits, weight);
    count(hits, logits, &(struct clb_sampling){ .temperature = 1, .top_k = 3, .seed = 3 });
    CHECK(chi_square(hits, kept) < 13.9); /* 2 degrees */
    count(hits, ties, &(struct clb_sampling){ .temperature = 100, .top_k = 3 });
    CHECK(hits[7] > 0 && hits[1] > 0 && hits[2] > 0);
    CHECK_EQ(hits[7] + hits[1] + hits[2], DRAWS);
    CHECK_EQ(choose(logits, N, &(struct clb_sampling){ .temperature = 50, .top_k = 1 }, 9), 1);
}

static void top_p_keeps_the_smallest_set(void)
{
    /* descending: .30 .25 .15 .10 .08 .05(0) .05(7) .02 */
    static const double half[N] = { 0, 0.30, 0, 0, 0.25, 0, 0, 0 },
                        most[N] = { 0.05, 0.30, 0.10, 0, 0.25, 0.08, 0.15, 0 };
    float logits[N];
    uint32_t hits[N];

    logits_of(logits, weight);
    count(hits, logits, &(struct clb_sampling){ .temperature = 1, .top_p = 0.5f, .seed = 4 });
    CHECK(chi_square(hits, half) < 10.9); /* 1 degree */
    count(hits, logits, &(struct clb_sampling){ .temperature = 1, .top_p = 0.91f, .seed = 5 });
    CHECK(chi_square(hits, most) < 20.6); /* 5 degrees; of the two equal ones id 0 stays */
    CHECK_EQ(choose(logits, N, &(struct clb_sampling){ .temperature = 1, .top_p = 1e-6f }, 11), 1);
}

static void min_p_is_relative_to_the_likeliest(void)
{
    static const double kept[N] = { 0, 0.30, 0.10, 0, 0.25, 0, 0.15, 0 };
    float logits[N];
    uint32_t hits[N];

    logits_of(logits, weight);
    count(hits, logits, &(struct clb_sampling){ .temperature = 1, .min_p = 0.3f, .seed = 6 });
    CHECK(chi_square(hits, kept) < 16.3); /* 3 degrees; 0.3 * 0.30 = 0.09 */
}

static void filters_apply_in_order(void)
{
    /* top-k 4 keeps .30 .25 .15 .10 (sum .80); top-p 0.7 of that is .56: .30 .25 .15 */
    static const double kept[N] = { 0, 0.30, 0, 0, 0.25, 0, 0.15, 0 };
    float logits[N];
    uint32_t hits[N];

    logits_of(logits, weight);
    count(hits, logits,
          &(struct clb_sampling){ .temperature = 1, .top_k = 4, .top_p = 0.7f, .seed = 7 });
    CHECK(chi_square(hits, kept) < 13.9);
}

static void repetition_penalty_looks_back_a_window(void)
{
    struct clb_sampling o = { .repetition_penalty = 2, .repetition_window = 3 };
    float a[N] = { 4, 3.9f, 3, -1, -1.5f, -2, -2, -2 };
    const int32_t recent[] = { 1, 0, 0, 5 };
    struct clb_draw d = { .logits = a, .recent = recent, .n_recent = 4 };
    struct clb_sampler *s;
    struct clb_err err;

    CHECK(clb_sampler_new(&s, N, &err));
    CHECK_EQ(clb_sample(s, &o, &d),
             1); /* 0 is halved once, though seen twice; 1 is outside the window */
    o.repetition_window = 0;
    CHECK_EQ(clb_sample(s, &o, &d), 2);
    a[0] = a[1] = a[2] = -9; /* negative logits become more so: 3 wins until it is recent */
    CHECK_EQ(clb_sample(s, &o, &d), 3);
    d.recent = (const int32_t[]){ 3 };
    d.n_recent = 1;
    CHECK_EQ(clb_sample(s, &o, &d), 4);
    CHECK_EQ(clb_sample(s, &(struct clb_sampling){ .repetition_penalty = 1 }, &d), 3);
    clb_sampler_free(s);
}

static void answers_are_penalised_once_and_for_each_time(void)
{
    float a[N] = { 4, 3.5f, 3.2f, 2, 1, 0, -1, -INFINITY };
    const int32_t recent[] = { 1, 1, 1, 0, 2, 0, 7 };
    struct clb_sampling o = { .n_prompt = 3 }, warm;
    struct clb_draw d = { .logits = a, .recent = recent, .n_recent = 3 };
    struct clb_sampler *s;
    struct clb_err err;

    CHECK(clb_sampler_new(&s, N, &err));
    o.presence_penalty = 1;
    CHECK_EQ(clb_sample(s, &o, &d), 0); /* there is no answer yet */
    d.n_recent = 7;
    CHECK_EQ(clb_sample(s, &o, &d), 1); /* 3, 3.5 as in the prompt, 2.2 */
    o.presence_penalty = 0.3f;
    CHECK_EQ(clb_sample(s, &o, &d), 0); /* 3.7: once, though it stands there twice */
    o.frequency_penalty = 0.2f;
    CHECK_EQ(clb_sample(s, &o, &d), 1); /* 3.3: twice */
    o.presence_penalty = 0;
    CHECK_EQ(clb_sample(s, &o, &d), 0);
    o.frequency_penalty = -2; /* 8, 3.5, 5.2 */
    CHECK_EQ(clb_sample(s, &o, &d), 0);
    d.n_recent = 5;
    CHECK_EQ(clb_sample(s, &o, &d), 0);
    o.n_prompt = 4;
    CHECK_EQ(clb_sample(s, &o, &d), 2);
    o.n_prompt = 9; /* more than there are */
    CHECK_EQ(clb_sample(s, &o, &d), 0);
    /* After the penalty for repetition: 4/2 - 1, 3.5/2, 3.2/2 - 1, 2. */
    warm = (struct clb_sampling){ .repetition_penalty = 2, .presence_penalty = 1, .n_prompt = 3 };
    CHECK_EQ(clb_sample(s, &warm, &d), 3);
    warm.temperature = 1e-3f;
    CHECK_EQ(clb_sample(s, &warm, &d), 3);
    clb_sampler_free(s);
}

static void same_seed_and_position_same_token(void)
{
    float logits[MANY];
    struct clb_sampling o = { .temperature = 1, .top_p = 0.9f, .seed = 99 };
    int differ = 0;

    for (int i = 0; i < MANY; i++)
        logits[i] = (float)(i * 7919 % 1000) / 500;
    for (uint64_t p = 0; p < 50; p++) {
        int32_t id = choose(logits, MANY, &o, p);
        CHECK_EQ(choose(logits, MANY, &o, p), id);
        differ +=
            choose(logits, MANY,
                   &(struct clb_sampling){ .temperature = 1, .top_p = 0.9f, .seed = 98 }, p) != id;
    }
    CHECK(differ > 40);
}

/* Selection by digits against counting how many are larger. */
static void selection_equals_sorting(void)
{
    float logits[MANY];
    struct clb_sampler *s;
    struct clb_err err;

    CHECK(clb_sampler_new(&s, MANY, &err));
    for (uint32_t round = 0; round < 20; round++) {
        uint32_t k = 1 + round * 37, chosen = 0;
        for (uint32_t i = 0; i < MANY; i++)
            logits[i] = (float)(int32_t)(clb_rng_at(round, i) % 401) / 100 - 2; /* many ties */
        for (uint64_t p = 0; p < 300; p++) {
            const struct clb_draw d = { .logits = logits, .position = p };
            int32_t id = clb_sample(s, &(struct clb_sampling){ .temperature = 50, .top_k = k }, &d);
            uint32_t before = 0;
            for (int32_t i = 0; i < MANY; i++)
                before += logits[i] > logits[id] || (logits[i] == logits[id] && i < id);
            CHECK(before < k);
            chosen += before + 1 == k;
        }
        if (k < 30)
            CHECK(chosen > 0);
    }
    clb_sampler_free(s);
}

/* -- the definition, by sorting ---------------------------------------------------------------- */

struct rank {
    float value; /* logit, then weight */
    int32_t id;
    uint64_t units;
};

static int likelier(const void *pa, const void *pb)
{
    const struct rank *a = pa, *b = pb;

    return a->value != b->value ? (a->value < b->value) - (a->value > b->value) : a->id - b->id;
}

static int lower_id(const void *a, const void *b)
{
    return ((const struct rank *)a)->id - ((const struct rank *)b)->id;
}

static uint64_t sum_of(const struct rank *r, uint32_t n)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < n; i++)
        sum += r[i].units;
    return sum;
}

/* Leaves the likeliest with a unit, as weights. */
static uint32_t weights(struct rank *r, uint32_t n, float temperature)
{
    float max = n ? r[0].value : 0;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n; i++) {
        float d = r[i].value == max ? 0 : (r[i].value - max) / temperature;
        r[i].value = d < -80 ? 0 : clb_expf(d);
        r[i].units = (uint64_t)(r[i].value * 0x1p40f);
        kept += r[i].units > 0;
    }
    return kept;
}

__extension__ typedef unsigned __int128 wide;

static int32_t by_sorting(const float *logits, uint32_t n_vocab, const struct clb_sampling *o,
                          uint64_t position)
{
    static struct rank r[MANY];
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_vocab; i++)
        if (logits[i] > -INFINITY)
            r[n++] = (struct rank){ .value = logits[i], .id = (int32_t)i };
    qsort(r, n, sizeof *r, likelier);
    if (n == 0 || o->temperature == 0)
        return n ? r[0].id : -1;
    n = weights(r, o->top_k && o->top_k < n ? o->top_k : n, o->temperature);
    if (o->top_p > 0 && o->top_p < 1) {
        uint64_t need = (uint64_t)((double)sum_of(r, n) * (double)o->top_p);
        uint32_t kept = 1;
        while (sum_of(r, kept) < need)
            kept++;
        n = kept;
    }
    while (n > 1 && r[n - 1].value < o->min_p)
        n--;
    uint64_t all = sum_of(r, n), random = clb_rng_at(o->seed, position);
    uint64_t u = (uint64_t)((wide)random * all >> 64);
    qsort(r, n, sizeof *r, lower_id);
    for (uint32_t i = 0; i < n; u -= r[i++].units)
        if (u < r[i].units)
            return r[i].id;
    return -2;
}

/* Real ones are smooth; ties, the odd values and a length that is no multiple of anything are not.
 */
static void fill_logits(float *logits, uint32_t n, uint32_t round)
{
    float scale = 0.01f * (float)(1 << round % 13);

    for (uint32_t i = 0; i < n; i++) {
        uint64_t bits = clb_rng_at(round, i);
        float x = (float)(int32_t)(bits >> 32) * 0x1p-31f * (float)(bits % 7);
        logits[i] = round % 3 == 0 ? rintf(x * scale) : x * scale;
        if (round % 5 == 0 && bits % 11 == 0)
            logits[i] = bits & 1 << 20 ? NAN : bits & 1 << 21 ? -NAN : -INFINITY;
        if (round % 17 == 0 && bits % 97 == 0)
            logits[i] = INFINITY;
    }
}

/* From the k largest logits, as a device gives them: -0 comes as 0. */
static int32_t choose_of_largest(const float *logits, uint32_t n, uint32_t k,
                                 const struct clb_sampling *o, uint64_t position)
{
    static struct clb_candidate c[MANY];
    static struct rank r[MANY];
    const struct clb_draw d = { .candidate = c, .n_candidate = k, .position = position };
    struct clb_sampler *s;
    struct clb_err err;

    for (uint32_t i = 0; i < n; i++)
        r[i] = (struct rank){ logits[i] > -INFINITY ? logits[i] : -INFINITY, (int32_t)i, 0 };
    qsort(r, n, sizeof *r, likelier);
    qsort(r, k, sizeof *r, lower_id);
    for (uint32_t i = 0; i < k; i++)
        c[i] = (struct clb_candidate){ (uint32_t)r[i].id, logits[r[i].id] + 0.0f };
    CHECK(clb_sampler_new(&s, n, &err));
    int32_t id = clb_sample(s, o, &d);
    clb_sampler_free(s);
    return id;
}

static void what_is_skipped_would_not_be_chosen(void)
{
    static const float temperature[] = { 0, 0.05f, 0.7f, 1, 30 },
                       top_p[] = { 0, 1e-6f, 0.5f, 0.99f }, min_p[] = { 0, 1e-5f, 0.1f, 1 };
    static const uint32_t top_k[] = { 0, 1, 5, 40, 900 };
    static float logits[MANY];

    for (uint32_t round = 0; round < 400; round++) {
        uint32_t n = round % 4 ? 1 + round * 37 % MANY : 64 + round % 3;
        const struct clb_sampling o = {
            .temperature = temperature[round % 5],
            .top_k = top_k[clb_rng_at(round, 1) % 5],
            .top_p = top_p[clb_rng_at(round, 2) % 4],
            .min_p = min_p[clb_rng_at(round, 3) % 4],
            .seed = round,
        };
        uint32_t few = clb_sampling_candidates(&o), k = few + round % 3 * 7;

        fill_logits(logits, n, round);
        for (uint64_t p = 0; p < 5; p++) {
            CHECK_EQ(choose(logits, n, &o, p), by_sorting(logits, n, &o, p));
            if (few)
                CHECK_EQ(choose_of_largest(logits, n, k < n ? k : n, &o, p),
                         by_sorting(logits, n, &o, p));
        }
        CHECK_EQ(clb_argmax(logits, n), by_sorting(logits, n, &(struct clb_sampling){ 0 }, 0));
    }
}

/* Penalties may make any logit the largest. */
static void some_choices_need_all_logits(void)
{
    CHECK_EQ(clb_sampling_candidates(&(struct clb_sampling){ .top_k = 5 }), 1);
    CHECK_EQ(clb_sampling_candidates(&(struct clb_sampling){ .temperature = 1, .top_k = 5 }), 5);
    CHECK_EQ(clb_sampling_candidates(&(struct clb_sampling){ .temperature = 1, .top_p = 0.5f }), 0);
    CHECK_EQ(clb_sampling_candidates(&(struct clb_sampling){ .repetition_penalty = 1.1f }), 0);
    CHECK_EQ(clb_sampling_candidates(&(struct clb_sampling){ .repetition_penalty = 1 }), 1);
    CHECK_EQ(clb_sampling_candidates(&(struct clb_sampling){ .presence_penalty = -1 }), 0);
    CHECK_EQ(clb_sampling_candidates(&(struct clb_sampling){ .frequency_penalty = 1 }), 0);
}

static void logprob_is_log_softmax(void)
{
    float logits[N], odd[N] = { NAN, 1, -INFINITY, 1, 1, 1, -INFINITY, NAN },
                     none[2] = { NAN, NAN };
    float top[3] = { INFINITY, 0, INFINITY };

    logits_of(logits, weight);
    for (uint32_t i = 0; i < N; i++)
        CHECK(fabs(clb_logprob(logits, N, i) - log(weight[i])) < 1e-6);
    CHECK(fabs(clb_logprob(odd, N, 3) - log(0.25)) < 1e-6);
    CHECK(clb_logprob(odd, N, 0) == -INFINITY && clb_logprob(odd, N, 2) == -INFINITY);
    CHECK(isnan(clb_logprob(none, 2, 0)));
    CHECK(fabs(clb_logprob(top, 3, 2) - log(0.5)) < 1e-6);
    CHECK(clb_logprob(top, 3, 1) == -INFINITY);
}

static void options_out_of_range_are_named(void)
{
    static const struct {
        struct clb_sampling o;
        const char *name;
    } bad[] = {
        { { .temperature = -1 }, "temperature" },
        { { .temperature = NAN }, "temperature" },
        { { .top_p = 1.5f }, "top_p" },
        { { .min_p = -0.1f }, "min_p" },
        { { .repetition_penalty = INFINITY }, "repetition_penalty" },
        { { .presence_penalty = NAN }, "presence_penalty" },
        { { .frequency_penalty = -101 }, "frequency_penalty" },
    };
    struct clb_err err;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(!clb_sampling_check(&bad[i].o, &err));
        CHECK_EQ(err.code, CLB_USAGE);
        CHECK_STR(err.field, bad[i].name);
        CHECK_HAS(err.text, bad[i].name);
    }
}

/* Whatever the thread of the caller rounds like. */
static void top_logprobs_are_the_likeliest(void)
{
    enum { TIES = 500, K = 7 };
    static float logits[TIES];
    struct clb_logprob top[K];
    float odd[6] = { NAN, 1, -INFINITY, 3, 1, 1 }, none[2] = { NAN, -INFINITY }, own;

    for (uint32_t i = 0; i < TIES; i++) /* many ties */
        logits[i] = (float)(i * 7919 % 61) * 0.25f;
    CHECK_EQ(clb_top_logprobs(logits, TIES, K, top, 77, &own), K);
    CHECK(own == clb_logprob(logits, TIES, 77));
    for (uint32_t i = 0; i < K; i++) {
        uint32_t before = 0; /* those that come first */
        for (int32_t v = 0; v < TIES; v++)
            before +=
                logits[v] > logits[top[i].id] || (logits[v] == logits[top[i].id] && v < top[i].id);
        CHECK_EQ(before, i);
        CHECK(top[i].logprob == clb_logprob(logits, TIES, (uint32_t)top[i].id));
    }
    CHECK_EQ(clb_top_logprobs(odd, 6, K, top, 2, &own), 4);
    CHECK(top[0].id == 3 && top[1].id == 1 && top[2].id == 4 && top[3].id == 5);
    CHECK(own == -INFINITY);
    CHECK_EQ(clb_top_logprobs(odd, 6, 0, NULL, 3, &own), 0);
    CHECK(own == clb_logprob(odd, 6, 3));
    CHECK_EQ(clb_top_logprobs(none, 2, K, top, 0, &own), 0);
    CHECK(isnan(own));
}

static void floating_point_state_of_the_caller(void)
{
    const struct clb_sampling o = { .temperature = 0.7f, .top_p = 0.9f, .seed = 5 };
    float logits[MANY], p[MANY];
    int32_t id[MANY];

    for (int i = 0; i < MANY; i++)
        logits[i] = (float)(clb_rng_at(3, (uint64_t)i) % 1000) * 0.0137f;
    for (uint32_t i = 0; i < MANY; i++) {
        id[i] = choose(logits, MANY, &o, i);
        p[i] = clb_logprob(logits, MANY, i);
    }
    bool kept = true, same = true;
    for (uint32_t i = 0; i < MANY; i++) {
        odd_fp_set();
        int32_t again = choose(logits, MANY, &o, i);
        float q = clb_logprob(logits, MANY, i);
        kept = odd_fp_reset() && kept;
        same = same && again == id[i] && !memcmp(&q, &p[i], sizeof q);
    }
    CHECK(kept && same);
}

int main(void)
{
    TEST(philox_known_answers);
    TEST(greedy_takes_largest_and_lowest_id);
    TEST(not_a_number_is_never_chosen);
    TEST(infinite_logits_share);
    TEST(draws_follow_the_distribution);
    TEST(temperature_sharpens);
    TEST(top_k_keeps_k_with_lowest_ids_among_ties);
    TEST(top_p_keeps_the_smallest_set);
    TEST(min_p_is_relative_to_the_likeliest);
    TEST(filters_apply_in_order);
    TEST(repetition_penalty_looks_back_a_window);
    TEST(answers_are_penalised_once_and_for_each_time);
    TEST(same_seed_and_position_same_token);
    TEST(selection_equals_sorting);
    TEST(what_is_skipped_would_not_be_chosen);
    TEST(some_choices_need_all_logits);
    TEST(logprob_is_log_softmax);
    TEST(top_logprobs_are_the_likeliest);
    TEST(floating_point_state_of_the_caller);
    TEST(options_out_of_range_are_named);
    return test_result();
}
