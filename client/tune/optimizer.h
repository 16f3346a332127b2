/* AdamW (Loshchilov & Hutter 2019) with bias correction, learning-rate schedules, clipping of gradients. float32, in
 * the order of the elements: the same bits on every machine. */
#ifndef SN_CLIENT_TUNE_OPTIMIZER_H
#define SN_CLIENT_TUNE_OPTIMIZER_H

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

typedef enum sn_schedule {
    SN_SCHEDULE_CONSTANT,
    SN_SCHEDULE_COSINE,
    SN_SCHEDULE_LINEAR,
    SN_SCHEDULE_COUNT
} sn_schedule;
const char *sn_schedule_name(sn_schedule schedule);
sn_status sn_schedule_parse(const char *name, sn_schedule *out, sn_err *err) SN_MUST_USE;

typedef struct sn_optimizer_options {
    double lr, weight_decay, clip; /* clip: largest norm of all gradients together; 0: none */
    sn_schedule schedule;
    int64_t warmup, steps; /* the rate grows to lr over `warmup` steps, and falls to 0 at `steps` */
} sn_optimizer_options;

/* Rate of step 0, 1, ... */
double sn_learning_rate(const sn_optimizer_options *options, int64_t step);

/* Scales gradients down to the norm `clip`; returns the norm that they had. */
double sn_clip(float *gradients, size_t n, double clip);

/* Step 0, 1, ...: values, first and second moments (zero before step 0) move on by the gradients. */
void sn_adamw(const sn_optimizer_options *options, int64_t step, size_t n, float *values, const float *gradients,
              float *first, float *second);

#endif
