#include "lib/sample/sampler.h"

#include <math.h>

#include "lib/base/fmath.h"
#include "lib/base/fpstate.h"
#include "lib/base/half.h"
#include "lib/base/mem.h"
#include "lib/sample/rng.h"

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };
/* Logits that are looked at together: loops of a fixed length over independent values, of which
 * compilers make vectors. */
enum { GROUP = 64, LANES = 16 };

/* exp of less is 0 (fmath.h). */
static const float SMALLEST = -87.3f;
/* exp of this is less than a unit, 2^-40. */
static const float LOWEST = -28.0f;

/* Candidates stay in ascending order of id through every filter. */
struct clb_sampler {
    uint32_t n_vocab;
    uint32_t n_logit; /* to choose from: of all tokens, or of those that the caller left */
    uint32_t n;       /* candidates left */
    float *value;     /* [n_vocab] logit, later weight exp(logit - max), of candidate i */
    uint32_t *id;     /* [n_vocab] number of its logit */
    float *changed;   /* [n_vocab] logits with penalties, or side by side */
    float *most;      /* [groups_of(n_vocab)] the largest logit of each group */
    uint64_t *part;   /* [groups_of(n_vocab)] the sum of its weights */
    bool *seen;       /* [n_vocab] all false between calls */
    uint64_t *sum;    /* [DIGITS] histogram */
};

static uint32_t groups_of(uint32_t n)
{
    return n / GROUP + (n % GROUP != 0);
}

bool clb_sampler_new(struct clb_sampler **out, uint32_t n_vocab, struct clb_err *err)
{
    struct clb_sampler *s = clb_new(1, sizeof *s, err);
    uint32_t n_group = groups_of(n_vocab);

    *out = s;
    if (!s)
        return false;
    s->n_vocab = n_vocab;
    s->value = clb_new(n_vocab, sizeof *s->value, err);
    s->id = s->value ? clb_new(n_vocab, sizeof *s->id, err) : NULL;
    s->changed = s->id ? clb_new(n_vocab, sizeof *s->changed, err) : NULL;
    s->most = s->changed ? clb_new(n_group, sizeof *s->most, err) : NULL;
    s->part = s->most ? clb_new(n_group, sizeof *s->part, err) : NULL;
    s->seen = s->part ? clb_new(n_vocab, sizeof *s->seen, err) : NULL;
    s->sum = s->seen ? clb_new(DIGITS, sizeof *s->sum, err) : NULL;
    if (s->sum)
        return true;
    clb_sampler_free(s);
    *out = NULL;
    return false;
}

void clb_sampler_free(struct clb_sampler *s)
{
    if (!s)
        return;
    clb_free(s->value);
    clb_free(s->id);
    clb_free(s->changed);
    clb_free(s->most);
    clb_free(s->part);
    clb_free(s->seen);
    clb_free(s->sum);
    clb_free(s);
}

uint64_t clb_sampler_bytes(uint32_t n_vocab)
{
    return sizeof(struct clb_sampler) + DIGITS * sizeof(uint64_t) +
           groups_of(n_vocab) * (uint64_t)(sizeof(float) + sizeof(uint64_t)) +
           n_vocab * (uint64_t)(2 * sizeof(float) + sizeof(uint32_t) + sizeof(bool));
}

/* -- groups ------------------------------------------------------------------------------------ */

/* Group i of v [n], in its place or, with -inf behind the end, in `pad`. */
static __attribute__((noinline)) const float *group_at(const float *v, uint32_t n, uint32_t i,
                                                       float pad[GROUP])
{
    const float *at = v + (size_t)i * GROUP;
    uint32_t m = n - i * GROUP;

    if (m >= GROUP)
        return at;
    for (uint32_t k = 0; k < GROUP; k++)
        pad[k] = k < m ? at[k] : -INFINITY;
    return pad;
}

/* Bits as a number in the order of the floats; a NaN is below all others. */
static inline int32_t order_of(float v)
{
    int32_t b = (int32_t)clb_f32_bits(v), order = b ^ (b >> 31 & INT32_MAX);

    return order > 0x7f800000 ? INT32_MIN : order;
}

static float value_of(int32_t order)
{
    return clb_f32_from_bits((uint32_t)(order ^ (order >> 31 & INT32_MAX)));
}

/* The largest of a group; -inf when there is no number. */
static __attribute__((noinline)) float largest_of(const float v[GROUP])
{
    int32_t lane[LANES], most = order_of(-INFINITY);

    for (int k = 0; k < LANES; k++)
        lane[k] = most;
    for (int i = 0; i < GROUP; i += LANES)
        for (int k = 0; k < LANES; k++) {
            int32_t order = order_of(v[i + k]);
            lane[k] = order > lane[k] ? order : lane[k];
        }
    for (int k = 0; k < LANES; k++)
        most = lane[k] > most ? lane[k] : most;
    return value_of(most);
}

/* w = exp((v - max) / temperature) of a group; 0 or nearly so where that is less than a unit. */
static __attribute__((noinline)) void weights_of(const float v[GROUP], float max, float temperature,
                                                 float w[GROUP])
{
    for (int k = 0; k < GROUP; k++) {
        float d = v[k] == max ? 0 : (v[k] - max) / temperature;
        w[k] = d >= LOWEST ? d : LOWEST;
    }
    clb_expf_inside(w, GROUP);
}

int32_t clb_argmax(const float *logits, uint32_t n)
{
    float pad[GROUP], top = -INFINITY;
    uint32_t best = 0;

    for (uint32_t i = 0; i < groups_of(n); i++) {
        float most = largest_of(group_at(logits, n, i, pad));
        best = most > top ? i * GROUP : best;
        top = most > top ? most : top;
    }
    if (top == -INFINITY)
        return -1;
    while (logits[best] != top)
        best++;
    return (int32_t)best;
}

/* What turns logits into logarithms of probabilities. */
struct normal {
    int32_t best; /* -1: no logit is a number above -inf */
    float max;
    double log_sum; /* of exp(logit - max); infinite ones share the probability */
};

static __attribute__((noinline)) struct normal normalise(const float *logits, uint32_t n)
{
    struct normal z = { .best = clb_argmax(logits, n) };
    double sum = 0;

    if (z.best < 0)
        return z;
    z.max = logits[z.best];
    for (uint32_t i = 0; i < n && isinf(z.max); i++)
        sum += logits[i] == z.max;
    for (uint32_t i = 0; i < groups_of(n) && !isinf(z.max); i++) {
        float pad[GROUP], d[GROUP], e[GROUP];
        const float *v = group_at(logits, n, i, pad);

        for (int k = 0; k < GROUP; k++) {
            d[k] = v[k] - z.max;
            e[k] = d[k] >= SMALLEST ? d[k] : SMALLEST;
        }
        clb_expf_inside(e, GROUP);
        for (int k = 0; k < GROUP; k++)
            e[k] = d[k] >= SMALLEST ? e[k] : 0; /* NaN is none */
        for (int k = 0; k < GROUP; k++)
            sum += (double)e[k];
    }
    z.log_sum = clb_log(sum);
    return z;
}

static float logprob(const struct normal *z, float logit)
{
    if (z->best < 0)
        return NAN;
    if (isinf(z->max))
        return logit == z->max ? (float)-z->log_sum : -INFINITY;
    if (logit != logit)
        return -INFINITY;
    return (float)((double)logit - (double)z->max - z->log_sum);
}

/* Into top [*n], which has room for k. */
static void insert(struct clb_logprob *top, uint32_t *n, uint32_t k, uint32_t id, float logit)
{
    if (!(logit > -INFINITY) || (*n == k && !(logit > top[k - 1].logprob)))
        return;
    uint32_t at = *n < k ? (*n)++ : k - 1;
    for (; at > 0 && logit > top[at - 1].logprob; at--)
        top[at] = top[at - 1];
    top[at] = (struct clb_logprob){ (int32_t)id, logit };
}

uint32_t clb_top_logprobs(const float *logits, uint32_t n, uint32_t k, struct clb_logprob *top,
                          uint32_t id, float *own)
{
    struct clb_fp caller = clb_fp_enter();
    struct normal z = normalise(logits, n);
    uint32_t n_top = 0;
    float pad[GROUP];

    for (uint32_t i = 0; i < groups_of(n) && k > 0; i++)
        if (n_top < k || largest_of(group_at(logits, n, i, pad)) > top[k - 1].logprob)
            for (uint32_t at = i * GROUP, m = 0; at < n && m < GROUP; at++, m++)
                insert(top, &n_top, k, at, logits[at]);
    for (uint32_t i = 0; i < n_top; i++)
        top[i].logprob = logprob(&z, top[i].logprob);
    *own = logprob(&z, logits[id]);
    clb_fp_leave(caller);
    return n_top;
}

float clb_logprob(const float *logits, uint32_t n, uint32_t id)
{
    float own;

    clb_top_logprobs(logits, n, 0, NULL, id, &own);
    return own;
}

/* -- filters ----------------------------------------------------------------------------------- */

static bool repeats(const struct clb_sampling *o, const struct clb_draw *d)
{
    return o->repetition_penalty > 0 && o->repetition_penalty != 1 && d->n_recent > 0;
}

static bool counts(const struct clb_sampling *o, const struct clb_draw *d)
{
    return (o->presence_penalty != 0 || o->frequency_penalty != 0) && d->n_recent > o->n_prompt;
}

/* Changes the logit of every distinct recent token once. */
static void penalise_repetition(struct clb_sampler *s, const struct clb_sampling *o,
                                const struct clb_draw *d)
{
    size_t window = o->repetition_window ? o->repetition_window : CLB_REPETITION_WINDOW;
    size_t n = d->n_recent < window ? d->n_recent : window;
    const int32_t *recent = d->recent + (d->n_recent - n);
    float p = o->repetition_penalty;

    for (size_t i = 0; i < n; i++) {
        float *v = &s->changed[recent[i]];
        if (!s->seen[recent[i]])
            *v = *v > 0 ? *v / p : *v * p;
        s->seen[recent[i]] = true;
    }
    for (size_t i = 0; i < n; i++)
        s->seen[recent[i]] = false;
}

/* Of every token behind the prompt: once, and for each time. */
static void penalise_answer(struct clb_sampler *s, const struct clb_sampling *o,
                            const struct clb_draw *d)
{
    for (size_t i = o->n_prompt; i < d->n_recent; i++) {
        int32_t id = d->recent[i];
        s->changed[id] -= (s->seen[id] ? 0 : o->presence_penalty) + o->frequency_penalty;
        s->seen[id] = true;
    }
    for (size_t i = o->n_prompt; i < d->n_recent; i++)
        s->seen[d->recent[i]] = false;
}

/* The logits with what penalties make of them. */
static const float *penalised(struct clb_sampler *s, const struct clb_sampling *o,
                              const struct clb_draw *d)
{
    if (!repeats(o, d) && !counts(o, d))
        return d->logits;
    memcpy(s->changed, d->logits, s->n_vocab * sizeof *s->changed);
    if (repeats(o, d))
        penalise_repetition(s, o, d);
    if (counts(o, d))
        penalise_answer(s, o, d);
    return s->changed;
}

/* The same order from 0 up; -0 and 0 are equal. */
static uint32_t sort_key(float v)
{
    return (uint32_t)order_of(v + 0.0f) ^ 0x80000000u;
}

/* Exact weight, at most 1, in units of 2^-40. */
static uint64_t units(float weight)
{
    return (uint64_t)(int64_t)(weight * 0x1p40f);
}

/* The largest of v [n] whose sizes (1 each, or their weights) reach *need: the key of the last of
 * them. Found digit by digit, from the top. *need: of those with that key. */
static uint32_t last_key(struct clb_sampler *s, const float *v, uint32_t n, uint64_t *need,
                         bool weighted)
{
    static const unsigned shift[] = { 21, 10, 0 }, width[] = { 11, 11, 10 };
    uint32_t prefix = 0, mask = 0;

    for (int pass = 0; pass < 3; pass++) {
        uint32_t digits = 1u << width[pass], digit = digits - 1;

        for (uint32_t i = 0; i < digits; i++)
            s->sum[i] = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t key = sort_key(v[i]);
            if ((key & mask) == prefix)
                s->sum[key >> shift[pass] & (digits - 1)] += weighted ? units(v[i]) : 1;
        }
        while (digit > 0 && s->sum[digit] < *need)
            *need -= s->sum[digit--];
        prefix |= digit << shift[pass];
        mask |= (digits - 1) << shift[pass];
    }
    return prefix;
}

/* Keeps the largest candidates until their sizes reach `need`; among equal ones the lowest ids. */
static __attribute__((noinline)) void keep_largest(struct clb_sampler *s, uint64_t need,
                                                   bool weighted)
{
    uint32_t last = last_key(s, s->value, s->n, &need, weighted), n = 0;

    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t key = sort_key(s->value[i]);
        if (key < last || (key == last && need == 0))
            continue;
        if (key == last) {
            uint64_t size = weighted ? units(s->value[i]) : 1;
            need -= size < need ? size : need;
        }
        s->value[n] = s->value[i];
        s->id[n++] = s->id[i];
    }
    s->n = n;
}

/* What the k largest are not less than: as many groups have one that large. */
static float bound_of_largest(struct clb_sampler *s, uint64_t k)
{
    uint32_t n = groups_of(s->n_logit);

    return k > n ? -INFINITY
                 : value_of((int32_t)(last_key(s, s->most, n, &k, false) ^ 0x80000000u));
}

/* Tokens with at least `low` become candidates; without -inf and NaN. */
static __attribute__((noinline)) void gather(struct clb_sampler *s, const float *logits, float low)
{
    s->n = 0;
    for (uint32_t i = 0; i < s->n_logit; i++) {
        if (i % GROUP == 0 && s->most[i / GROUP] < low) {
            i += GROUP - 1;
            continue;
        }
        s->value[s->n] = logits[i];
        s->id[s->n] = i;
        s->n += logits[i] >= low && logits[i] > -INFINITY;
    }
}

/* Logits to weights; tokens below one unit are dropped. Returns the sum of units. */
static uint64_t weigh(struct clb_sampler *s, float max, float temperature)
{
    uint64_t sum = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < groups_of(s->n); i++) {
        float pad[GROUP], w[GROUP];

        weights_of(group_at(s->value, s->n, i, pad), max, temperature, w);
        for (uint32_t k = 0; k < GROUP && i * GROUP + k < s->n; k++) {
            uint64_t u = units(w[k]);
            s->value[n] = w[k];
            s->id[n] = s->id[i * GROUP + k];
            n += u > 0;
            sum += u;
        }
    }
    s->n = n;
    return sum;
}

static uint64_t total(const struct clb_sampler *s)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < s->n; i++)
        sum += units(s->value[i]);
    return sum;
}

static void keep_likely(struct clb_sampler *s, float min_p)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n; i++)
        if (s->value[i] >= min_p) {
            s->value[n] = s->value[i];
            s->id[n++] = s->id[i];
        }
    s->n = n;
}

/* The upper 64 bits of a * b. */
static uint64_t multiply_high(uint64_t a, uint64_t b)
{
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t middle = a1 * b0 + (a0 * b0 >> 32), low = (uint32_t)middle + a0 * b1;

    return a1 * b1 + (middle >> 32) + (low >> 32);
}

/* -- all tokens -------------------------------------------------------------------------------- */

/* Fills s->most; returns the largest of all. */
static float look(struct clb_sampler *s, const float *logits)
{
    float pad[GROUP], max = -INFINITY;

    for (uint32_t i = 0; i < groups_of(s->n_logit); i++) {
        s->most[i] = largest_of(group_at(logits, s->n_logit, i, pad));
        max = s->most[i] > max ? s->most[i] : max;
    }
    return max;
}

/* Fills s->part; returns the sum of all. */
static uint64_t weigh_all(struct clb_sampler *s, const float *logits, float max, float temperature)
{
    float pad[GROUP], w[GROUP], low = max + LOWEST * temperature;
    uint64_t sum = 0;

    for (uint32_t i = 0; i < groups_of(s->n_logit); i++) {
        s->part[i] = 0;
        if (s->most[i] < low)
            continue;
        weights_of(group_at(logits, s->n_logit, i, pad), max, temperature, w);
        for (int k = 0; k < GROUP; k++)
            s->part[i] += units(w[k]);
        sum += s->part[i];
    }
    return sum;
}

/* The token in whose part of the sum `u` falls, when all are candidates. */
static int32_t draw_of_all(struct clb_sampler *s, const float *logits, float max, float temperature,
                           uint64_t u)
{
    float pad[GROUP], w[GROUP];
    uint32_t i = 0, k = 0;

    while (u >= s->part[i])
        u -= s->part[i++];
    weights_of(group_at(logits, s->n_logit, i, pad), max, temperature, w);
    while (u >= units(w[k]))
        u -= units(w[k++]);
    return (int32_t)(i * GROUP + k);
}

/* -- a choice ---------------------------------------------------------------------------------- */

/* Candidates among which are all that top-p leaves when it wants `need` units: the likeliest, going
 * down in steps until they have that. */
static void gather_units(struct clb_sampler *s, const float *logits, float max, float temperature,
                         uint64_t need)
{
    static const float reach[] = { -4, -9, -16, LOWEST };
    uint64_t sum = 0;

    for (int i = 0; i < 4 && sum < need; i++) {
        gather(s, logits, max + reach[i] * temperature);
        sum = weigh(s, max, temperature);
    }
}

/* Top-k, weights, top-p, min-p. */
static void filter(struct clb_sampler *s, const struct clb_sampling *o, const float *logits,
                   float max)
{
    bool by_k = o->top_k > 0 && o->top_k < s->n_logit;
    bool by_p = o->top_p > 0 && o->top_p < 1;
    float reach = LOWEST;
    uint64_t sum;

    if (o->min_p > 0 && !by_p) { /* less than it needs; keep_likely() is exact */
        reach = clb_logf(o->min_p) * 1.001f - 0.001f;
        reach = reach > LOWEST ? reach : LOWEST;
    }
    if (by_k || !by_p) {
        float low = max + reach * o->temperature;
        float bound = by_k ? bound_of_largest(s, o->top_k) : low;
        gather(s, logits, bound > low ? bound : low);
        if (by_k && o->top_k < s->n)
            keep_largest(s, o->top_k, false);
        sum = weigh(s, max, o->temperature);
    } else {
        sum = weigh_all(s, logits, max, o->temperature);
    }
    if (by_p) {
        uint64_t need = (uint64_t)((double)sum * (double)o->top_p);
        if (!by_k)
            gather_units(s, logits, max, o->temperature, need ? need : 1);
        keep_largest(s, need ? need : 1, true);
    }
    if (o->min_p > 0)
        keep_likely(s, o->min_p);
}

static bool filters(const struct clb_sampling *o)
{
    return o->top_k > 0 || (o->top_p > 0 && o->top_p < 1) || o->min_p > 0;
}

/* What there is to choose from, as the logits of a vocabulary of its own. */
static const float *options(struct clb_sampler *s, const struct clb_sampling *o,
                            const struct clb_draw *d)
{
    s->n_logit = d->logits ? s->n_vocab : d->n_candidate;
    if (d->logits)
        return penalised(s, o, d);
    for (uint32_t i = 0; i < d->n_candidate; i++)
        s->changed[i] = d->candidate[i].logit;
    return s->changed;
}

/* The number of a logit; -1: none. */
static __attribute__((noinline)) int32_t choose(struct clb_sampler *s, const struct clb_sampling *o,
                                                const struct clb_draw *d)
{
    const float *logits = options(s, o, d);
    uint64_t random = clb_rng_at(o->seed, d->position);

    if (o->temperature == 0)
        return clb_argmax(logits, s->n_logit);
    float max = look(s, logits);
    if (max == -INFINITY)
        return -1;
    if (!filters(o)) {
        uint64_t sum = weigh_all(s, logits, max, o->temperature);
        return draw_of_all(s, logits, max, o->temperature, multiply_high(random, sum));
    }
    filter(s, o, logits, max);
    uint64_t u = multiply_high(random, total(s));
    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t w = units(s->value[i]);
        if (u < w)
            return (int32_t)s->id[i];
        u -= w;
    }
    return -1; /* not reached: u < total */
}

int32_t clb_sample(struct clb_sampler *s, const struct clb_sampling *o, const struct clb_draw *d)
{
    struct clb_fp caller = clb_fp_enter();
    int32_t i = choose(s, o, d);

    clb_fp_leave(caller);
    return i < 0 || d->logits ? i : (int32_t)d->candidate[i].id;
}
