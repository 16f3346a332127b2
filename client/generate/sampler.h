/* Sampling: choosing the next token from its logits.
 *
 * Temperature 0 takes the token with the greatest logit, the lowest id among equals. Otherwise these steps follow, in
 * llama.cpp's order: the repeat penalty over the last SN_PENALTY_LAST_N tokens (Keskar et al. 2019); the top_k best
 * tokens; of these the fewest that together have probability top_p (Holtzman et al. 2020); of these the ones with at
 * least min_p times the probability of the best (Nguyen et al. 2024); and one token drawn at random from probabilities
 * that the temperature sharpens or flattens.
 *
 * The same seed and logits give the same tokens on every machine: sums run in a fixed order over sn_logits_exp, and
 * random numbers come from xoshiro256** (Blackman and Vigna 2018), seeded with SplitMix64. Central type: sn_sampler,
 * used by the generator and by a draft model, by one thread. */
#ifndef SN_CLIENT_GENERATE_SAMPLER_H
#define SN_CLIENT_GENERATE_SAMPLER_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { SN_PENALTY_LAST_N = 64 };

typedef struct sn_sampling {
    double temperature;    /* >= 0; 0: always the best token */
    int top_k;             /* 0: all */
    double top_p;          /* 1: all */
    double min_p;          /* 0: all */
    double repeat_penalty; /* 1: none; positive logits are divided by it, negative ones multiplied */
    uint64_t seed;
} sn_sampling;

/* Greedy, without any filter or penalty. */
#define SN_SAMPLING_DEFAULT ((sn_sampling){.top_p = 1, .repeat_penalty = 1})

typedef struct sn_sampler sn_sampler;

/* State of the random number generator: saved to repeat choices that were made from wrong logits, and with a session.
 */
typedef struct sn_rng_state {
    uint64_t state[4];
} sn_rng_state;
sn_rng_state sn_sampler_rng_state(const sn_sampler *sampler);
/* The state after n further tokens have been sampled. */
sn_rng_state sn_sampler_rng_state_after(const sn_sampler *sampler, size_t n);
void sn_sampler_set_rng_state(sn_sampler *sampler, const sn_rng_state *rng_state);

sn_status sn_sampler_new(const sn_sampling *sampling, int n_vocab, sn_sampler **out, sn_err *err) SN_MUST_USE;
void sn_sampler_free(sn_sampler **sampler); /* accepts NULL */

/* logits (n_vocab); before (n_before): the tokens so far, each inside the vocabulary; the last SN_PENALTY_LAST_N count
 * for the repeat penalty. SN_RETRY: the logits are not finite. */
sn_status sn_sampler_sample(sn_sampler *sampler, const float *logits, const int32_t *before, size_t n_before,
                            int32_t *out, sn_err *err) SN_MUST_USE;

#endif
