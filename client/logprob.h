/* Softmax arithmetic over a row of logits: double precision, a fixed order of sums, the same bits on every machine. */
#ifndef SN_CLIENT_LOGPROB_H
#define SN_CLIENT_LOGPROB_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

/* The greatest logit and the lowest id that has it. SN_RETRY when one is NaN or +infinity, or all are -infinity: then
 * what computed them is faulty, and no token follows from it. */
sn_status sn_row_best(const float *logits, size_t n, int32_t *id, sn_err *err) SN_MUST_USE;

/* out[i] = exp((logits[i] - top) / temperature); logits[i] <= top, -infinity allowed. Relative error below 1e-14. */
void sn_row_exp(const float *logits, size_t n, double top, double temperature, double *out);

/* Sum over i of exp(logits[i] - top), as 16 partial sums and one tree. */
double sn_row_sum_exp(const float *logits, size_t n, double top);

/* Both at once: out[i] = exp(logits[i] - top), and the same sum. */
double sn_row_exp_all(const float *logits, size_t n, double top, double *out);

/* log(softmax(logits)[id]), given the greatest logit. */
double sn_row_logprob(const float *logits, size_t n, double top, int32_t id);

#endif
