/* sampler.h - from the logits of one position to the next token.
 *
 * Steps, in this order: penalties, temperature, top-k, top-p, min-p, one draw.
 * Probabilities are held as integers (weights in units of 2^-40 of the likeliest token's), so their
 * sums are exact and the choice does not depend on the order of summation; together with
 * lib/base/fmath.h that makes the result a pure function of its arguments, the same on every
 * machine. NaN logits are never chosen. */
#ifndef CLB_SAMPLE_SAMPLER_H
#define CLB_SAMPLE_SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/candidate.h"
#include "lib/base/err.h"

struct clb_sampling {
    float temperature; /* 0: greedy */
    uint32_t top_k;    /* 0: off; ties: lowest ids are kept */
    float top_p;       /* 0 or 1: off; the smallest set of likeliest tokens whose sum reaches it */
    float min_p;       /* 0: off; keeps tokens at least this likely relative to the likeliest */
    float repetition_penalty;   /* 0 or 1: off; divides positive and multiplies negative logits of
                                   recent tokens */
    uint32_t repetition_window; /* tokens looked back; 0: 64 */
    float presence_penalty;     /* 0: off; taken off the logit of a token behind n_prompt */
    float frequency_penalty;    /* 0: off; the same for every time it stands there */
    uint32_t n_prompt;          /* tokens at the beginning that those two do not count */
    uint64_t seed;
};
enum { CLB_REPETITION_WINDOW = 64 };

/* CLB_USAGE naming the field that is out of range (or not a number). */
bool clb_sampling_check(const struct clb_sampling *s, struct clb_err *err);

/* How many of the largest logits decide every choice (of equal ones those of the lowest ids); 0:
 * any logit may. */
uint32_t clb_sampling_candidates(const struct clb_sampling *s);

/* Scratch for one thread, sized for a vocabulary; sampling allocates nothing. */
struct clb_sampler;
bool clb_sampler_new(struct clb_sampler **out, uint32_t n_vocab, struct clb_err *err);
void clb_sampler_free(struct clb_sampler *s); /* NULL is fine */
uint64_t clb_sampler_bytes(uint32_t n_vocab);

struct clb_draw {
    const float *logits; /* [vocab]; NULL: of candidates only */
    /* [n_candidate] at least those that clb_sampling_candidates() asks for, or the vocabulary;
     * ascending ids. They give the same token as all logits */
    const struct clb_candidate *candidate;
    uint32_t n_candidate;
    const int32_t *recent; /* [n_recent] the sequence so far, each < vocab */
    size_t n_recent;
    uint64_t position; /* of the token that is chosen: counts the generator */
};
/* The chosen id; -1 when no logit is a number above -inf. `o` has passed clb_sampling_check. */
int32_t clb_sample(struct clb_sampler *s, const struct clb_sampling *o, const struct clb_draw *d);

/* The id of the largest logit, ties lowest; -1 as above. */
int32_t clb_argmax(const float *logits, uint32_t n);
/* Natural logarithm of the softmax probability of `id` < n; NaN when no logit is a number above
 * -inf. */
float clb_logprob(const float *logits, uint32_t n, uint32_t id);

struct clb_logprob {
    int32_t id;
    float logprob;
};
/* The k likeliest, best first, ties lowest id first; fewer when fewer logits are numbers above
 * -inf. Returns how many. *own: that of `id`, as clb_logprob has it. */
uint32_t clb_top_logprobs(const float *logits, uint32_t n, uint32_t k, struct clb_logprob *top,
                          uint32_t id, float *own);

#endif
