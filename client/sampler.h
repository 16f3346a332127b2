/* Choosing the next token from its logits.
 *
 * With temperature 0 the best token is taken, the lowest id among equals. Otherwise, in this order, which is
 * llama.cpp's: the repeat penalty over the last SN_SAMPLER_LAST tokens (Keskar et al. 2019), the top_k best, of these
 * the fewest that together have probability top_p (Holtzman et al. 2020), of these the ones with at least min_p times
 * the probability of the best (Nguyen et al. 2024), and then one by chance with probabilities sharpened or flattened by
 * the temperature.
 *
 * The same seed and logits give the same tokens on every machine: sums run in a fixed order over sn_row_exp, chance is
 * xoshiro256** seeded through splitmix64 (Blackman and Vigna 2018). One thread. */
#ifndef SN_CLIENT_SAMPLER_H
#define SN_CLIENT_SAMPLER_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum { SN_SAMPLER_LAST = 64 };

typedef struct sn_sampling {
    double temperature;    /* >= 0; 0: the best token, always */
    int top_k;             /* 0: all */
    double top_p;          /* 1: all */
    double min_p;          /* 0: all */
    double repeat_penalty; /* 1: none; a logit is divided by it when positive, multiplied when negative */
    uint64_t seed;
} sn_sampling;

/* What changes nothing: greedy, no filter. */
#define SN_SAMPLING_DEFAULT ((sn_sampling){.top_p = 1, .repeat_penalty = 1})

typedef struct sn_sampler sn_sampler;

/* Where chance stands: to take back picks that were made from wrong logits. */
typedef struct sn_chance {
    uint64_t state[4];
} sn_chance;
sn_chance sn_sampler_chance(const sn_sampler *sampler);
void sn_sampler_return(sn_sampler *sampler, const sn_chance *chance);

sn_status sn_sampler_new(const sn_sampling *sampling, int n_vocab, sn_sampler **out, sn_err *err) SN_MUST_USE;
void sn_sampler_free(sn_sampler **sampler); /* NULL-safe */

/* logits (n_vocab); `before`: the tokens so far, of which the last SN_SAMPLER_LAST count, each inside the vocabulary.
 */
sn_status sn_sampler_pick(sn_sampler *sampler, const float *logits, const int32_t *before, size_t n_before,
                          int32_t *out, sn_err *err) SN_MUST_USE;

#endif
