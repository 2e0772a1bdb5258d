#include "lib/sample/sampler.h"

#include <math.h>

#include "lib/base/fmath.h"
#include "lib/base/fpstate.h"
#include "lib/base/half.h"
#include "lib/base/mem.h"
#include "lib/sample/rng.h"

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS };

/* Candidates stay in ascending order of id through every filter. */
struct clb_sampler {
    uint32_t n_vocab;
    uint32_t n;    /* candidates left */
    float *value;  /* [n_vocab] logit, later weight exp(logit - max), of candidate i */
    uint32_t *id;  /* [n_vocab] */
    bool *seen;    /* [n_vocab] all false between calls */
    uint64_t *sum; /* [DIGITS] histogram */
};

static bool in_range(float v, float low, float high, const char *name, struct clb_err *err)
{
    if (v >= low && v <= high) /* false for NaN */
        return true;
    clb_fail(err, CLB_USAGE, "%s %g: must be from %g to %g", name, (double)v, (double)low,
             (double)high);
    return clb_err_place(err, NULL, name, CLB_NO_OFFSET);
}

bool clb_sampling_check(const struct clb_sampling *s, struct clb_err *err)
{
    return in_range(s->temperature, 0, 1000, "temperature", err) &&
           in_range(s->top_p, 0, 1, "top_p", err) && in_range(s->min_p, 0, 1, "min_p", err) &&
           in_range(s->repetition_penalty, 0, 1000, "repetition_penalty", err);
}

bool clb_sampler_new(struct clb_sampler **out, uint32_t n_vocab, struct clb_err *err)
{
    struct clb_sampler *s = clb_new(1, sizeof *s, err);

    *out = s;
    if (!s)
        return false;
    s->n_vocab = n_vocab;
    s->value = clb_new(n_vocab, sizeof *s->value, err);
    s->id = s->value ? clb_new(n_vocab, sizeof *s->id, err) : NULL;
    s->seen = s->id ? clb_new(n_vocab, sizeof *s->seen, err) : NULL;
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
    clb_free(s->seen);
    clb_free(s->sum);
    clb_free(s);
}

uint64_t clb_sampler_bytes(uint32_t n_vocab)
{
    return sizeof(struct clb_sampler) + DIGITS * sizeof(uint64_t) +
           n_vocab * (uint64_t)(sizeof(float) + sizeof(uint32_t) + sizeof(bool));
}

int32_t clb_argmax(const float *logits, uint32_t n)
{
    int32_t best = -1;
    float top = -INFINITY;

    for (uint32_t i = 0; i < n; i++)
        if (logits[i] > top) { /* false for NaN */
            top = logits[i];
            best = (int32_t)i;
        }
    return best;
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
    for (uint32_t i = 0; i < n; i++)
        if (isinf(z.max))
            sum += logits[i] == z.max;
        else if (logits[i] == logits[i])
            sum += (double)clb_expf(logits[i] - z.max);
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

float clb_logprob(const float *logits, uint32_t n, uint32_t id)
{
    struct clb_fp caller = clb_fp_enter();
    struct normal z = normalise(logits, n);
    float p = logprob(&z, logits[id]);

    clb_fp_leave(caller);
    return p;
}

uint32_t clb_top_logprobs(const float *logits, uint32_t n, uint32_t k, struct clb_logprob *top,
                          uint32_t id, float *own)
{
    struct clb_fp caller = clb_fp_enter();
    struct normal z = normalise(logits, n);
    uint32_t n_top = 0;

    for (uint32_t i = 0; i < n && k > 0; i++) {
        if (!(logits[i] > -INFINITY) || (n_top == k && !(logits[i] > top[k - 1].logprob)))
            continue;
        uint32_t at = n_top < k ? n_top++ : k - 1;
        for (; at > 0 && logits[i] > top[at - 1].logprob; at--)
            top[at] = top[at - 1];
        top[at] = (struct clb_logprob){ (int32_t)i, logits[i] };
    }
    for (uint32_t i = 0; i < n_top; i++)
        top[i].logprob = logprob(&z, top[i].logprob);
    *own = logprob(&z, logits[id]);
    clb_fp_leave(caller);
    return n_top;
}

/* -- filters ----------------------------------------------------------------------------------- */

/* All tokens with a finite or +inf logit become candidates. */
static void load(struct clb_sampler *s, const float *logits)
{
    s->n = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++)
        if (logits[i] > -INFINITY) {
            s->value[s->n] = logits[i];
            s->id[s->n++] = i;
        }
}

/* Where candidate `id` is, or s->n. */
static uint32_t find(const struct clb_sampler *s, uint32_t id)
{
    uint32_t low = 0, high = s->n;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (s->id[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < s->n && s->id[low] == id ? low : s->n;
}

/* Every distinct recent token once. */
static void penalise(struct clb_sampler *s, const struct clb_sampling *o, const struct clb_draw *d)
{
    size_t window = o->repetition_window ? o->repetition_window : CLB_REPETITION_WINDOW;
    size_t n = d->n_recent < window ? d->n_recent : window;
    const int32_t *recent = d->recent + (d->n_recent - n);
    float p = o->repetition_penalty;

    for (size_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)recent[i], at = s->seen[id] ? s->n : find(s, id);
        s->seen[id] = true;
        if (at < s->n)
            s->value[at] = s->value[at] > 0 ? s->value[at] / p : s->value[at] * p;
    }
    for (size_t i = 0; i < n; i++)
        s->seen[recent[i]] = false;
}

/* Bits in the order of the floats. */
static uint32_t sort_key(float v)
{
    uint32_t b = clb_f32_bits(v + 0.0f); /* -0 and 0 are equal */

    return b & 0x80000000u ? ~b : b | 0x80000000u;
}

/* Exact weight in units of 2^-40. */
static uint64_t units(float weight)
{
    return (uint64_t)(weight * 0x1p40f);
}

/* Keeps the largest candidates until their sizes (1 each, or their weights) reach `need`: the radix
 * search finds the key of the last one digit by digit, from the top; among equal keys the lowest
 * ids are kept. */
static void keep_largest(struct clb_sampler *s, uint64_t need, bool weighted)
{
    static const unsigned shift[] = { 21, 10, 0 }, width[] = { 11, 11, 10 };
    uint32_t prefix = 0, mask = 0;

    for (int pass = 0; pass < 3; pass++) {
        uint32_t digits = 1u << width[pass], digit = digits - 1;

        for (uint32_t i = 0; i < digits; i++)
            s->sum[i] = 0;
        for (uint32_t i = 0; i < s->n; i++) {
            uint32_t key = sort_key(s->value[i]);
            if ((key & mask) == prefix)
                s->sum[key >> shift[pass] & (digits - 1)] += weighted ? units(s->value[i]) : 1;
        }
        while (digit > 0 && s->sum[digit] < need)
            need -= s->sum[digit--];
        prefix |= digit << shift[pass];
        mask |= (digits - 1) << shift[pass];
    }

    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t key = sort_key(s->value[i]);
        if (key < prefix || (key == prefix && need == 0))
            continue;
        if (key == prefix) {
            uint64_t size = weighted ? units(s->value[i]) : 1;
            need -= size < need ? size : need;
        }
        s->value[n] = s->value[i];
        s->id[n++] = s->id[i];
    }
    s->n = n;
}

/* Logits to weights exp((logit - max) / temperature); tokens below one unit are dropped. */
static void weigh(struct clb_sampler *s, float temperature)
{
    float max = -INFINITY;
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n; i++)
        max = s->value[i] > max ? s->value[i] : max;
    for (uint32_t i = 0; i < s->n; i++) {
        float d = s->value[i] == max ? 0 : (s->value[i] - max) / temperature;
        if (d < -27.8f) /* exp(-27.8) < 2^-40 */
            continue;
        float w = clb_expf(d);
        if (units(w) == 0)
            continue;
        s->value[n] = w;
        s->id[n++] = s->id[i];
    }
    s->n = n;
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

static __attribute__((noinline)) int32_t choose(struct clb_sampler *s, const struct clb_sampling *o,
                                                const struct clb_draw *d)
{
    bool penalty = o->repetition_penalty > 0 && o->repetition_penalty != 1 && d->n_recent > 0;

    if (o->temperature == 0 && !penalty)
        return clb_argmax(d->logits, s->n_vocab);
    load(s, d->logits);
    if (s->n == 0)
        return -1;
    if (penalty)
        penalise(s, o, d);
    if (o->temperature == 0) {
        int32_t best = clb_argmax(s->value, s->n);
        return best < 0 ? -1 : (int32_t)s->id[best];
    }
    if (o->top_k > 0 && o->top_k < s->n)
        keep_largest(s, o->top_k, false);
    weigh(s, o->temperature);
    if (o->top_p > 0 && o->top_p < 1) {
        uint64_t need = (uint64_t)((double)total(s) * (double)o->top_p);
        keep_largest(s, need ? need : 1, true);
    }
    if (o->min_p > 0)
        keep_likely(s, o->min_p);

    uint64_t u = multiply_high(clb_rng_at(o->seed, d->position), total(s));
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
    int32_t id = choose(s, o, d);

    clb_fp_leave(caller);
    return id;
}
