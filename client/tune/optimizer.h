/* AdamW (Loshchilov & Hutter 2019) with bias correction, learning-rate schedules, and gradient clipping. All values are
 * float32 and are computed in the order of the elements, so the bits are the same on every machine. The functions have
 * no state; the tuner owns parameters, gradients and moments. */
#ifndef SN_CLIENT_TUNE_OPTIMIZER_H
#define SN_CLIENT_TUNE_OPTIMIZER_H

#include "base/parse.h"

#include <stddef.h>
#include <stdint.h>

typedef enum sn_schedule {
    SN_SCHEDULE_CONSTANT,
    SN_SCHEDULE_COSINE,
    SN_SCHEDULE_LINEAR,
    SN_SCHEDULE_COUNT
} sn_schedule;
extern const sn_word sn_schedule_words[]; /* "constant", "cosine", "linear" */

typedef struct sn_optimizer_options {
    double lr, weight_decay, clip; /* clip: limit for the L2 norm of all gradients together; 0: no limit */
    sn_schedule schedule;
    int64_t warmup, steps; /* the rate rises to lr over `warmup` steps; cosine and linear fall to 0 at `steps` */
} sn_optimizer_options;

/* The learning rate of step 0, 1, ... */
double sn_learning_rate(const sn_optimizer_options *options, int64_t step);

/* Scales the gradients so that their norm is at most `clip` (0: no limit). Returns the norm before scaling. */
double sn_clip_grad_norm(float *gradients, size_t n, double clip);

/* Updates values, first moments (exp_avg) and second moments (exp_avg_sq) by the gradients of step 0, 1, ... The
 * moments must be zero before step 0. */
void sn_adamw_step(const sn_optimizer_options *options, int64_t step, size_t n, float *values, const float *gradients,
                   float *exp_avg, float *exp_avg_sq);

#endif
