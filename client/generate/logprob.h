/* Softmax arithmetic over a row of logits: double precision, a fixed order of sums, the same bits on every machine.
 * Pure functions, on any thread; used by the sampler, and by the program's evaluation and losses. */
#ifndef SN_CLIENT_GENERATE_LOGPROB_H
#define SN_CLIENT_GENERATE_LOGPROB_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* The lowest id with the greatest logit. SN_RETRY: a logit is NaN or +infinity, or all are -infinity: then a node or
 * the model file is faulty, and no token can be chosen. */
sn_status sn_logits_argmax(const float *logits, size_t n, int32_t *id, sn_err *err) SN_MUST_USE;

/* out[i] = exp((logits[i] - top) / temperature); logits[i] <= top, -infinity allowed. Relative error below 1e-14. */
void sn_logits_exp(const float *logits, size_t n, double top, double temperature, double *out);

/* Sum over i of exp(logits[i] - top), as 16 partial sums and one tree. */
double sn_logits_sum_exp(const float *logits, size_t n, double top);

/* Both at once: out[i] = exp(logits[i] - top), and the same sum. */
double sn_logits_exp_and_sum(const float *logits, size_t n, double top, double *out);

/* log(softmax(logits)[id]), given the greatest logit. */
double sn_logits_logprob(const float *logits, size_t n, double top, int32_t id);

/* The n_top most likely tokens (n_top <= n), best first, the lower id first among equals, with their log-probabilities.
 */
void sn_logits_top(const float *logits, size_t n, double top, size_t n_top, int32_t *ids, double *logprobs);

#endif
