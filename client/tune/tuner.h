/* A tuner: trains parameters step by step. A step uses `batch` * `accumulate` examples. Its loss is the mean over all
 * tokens that count in these examples (over the examples, for a classifier), independent of their grouping into
 * micro-batches. The struct holds the complete state of the training, so that a checkpoint can save and restore it.
 *
 * sn_tuner owns its parameters, moments and losses and borrows the LM head, the backbone and the data. `swarm tune` and
 * the benchmarks call it on one thread. Errors of the backbone and of the LM head are passed on. */
#ifndef SN_CLIENT_TUNE_TUNER_H
#define SN_CLIENT_TUNE_TUNER_H

#include "client/tune/dataset.h"
#include "client/tune/loss.h"
#include "client/tune/optimizer.h"
#include "client/tune/backbone.h"

typedef struct sn_tuner_options {
    int batch, accumulate; /* examples per micro-batch, and micro-batches per step */
    sn_optimizer_options optimizer;
    uint64_t seed;
    int threads; /* threads that compute the loss; 0: one per core */
} sn_tuner_options;

typedef struct sn_tuner {
    sn_tuner_options options;
    /* borrowed: */
    const sn_hparams *hp;
    sn_lm_head *head;
    sn_backbone *backbone;
    const sn_dataset *data;
    /* owned: */
    sn_params *params;
    float *exp_avg, *exp_avg_sq, *gradients; /* (params->n_floats): moments and gradients of params->values */
    int64_t step;                            /* steps done */
    uint64_t epoch;                          /* epoch of the next example */
    size_t position;                         /* index of the next example in `order` */
    size_t *order;                           /* (data->n): examples in the order of this epoch */
    sn_loss loss;
    double *losses; /* (step): loss of each step done */
    size_t losses_capacity;
    uint64_t tokens; /* rows of all steps done, with virtual tokens */
    double norm;     /* L2 norm of the last step's gradients, before clipping */
} sn_tuner;

/* Takes ownership of *params and sets it to NULL, also on failure. */
sn_status sn_tuner_new(const sn_tuner_options *options, const sn_hparams *hp, sn_lm_head *head, sn_backbone *backbone,
                       const sn_dataset *data, sn_params **params, sn_tuner **out, sn_err *err) SN_MUST_USE;
void sn_tuner_free(sn_tuner **tuner); /* accepts NULL */

/* Does one step. After a failure, parameters, moments and data position are unchanged, so the step may be repeated. */
sn_status sn_tuner_step(sn_tuner *tuner, sn_err *err) SN_MUST_USE;

/* Computes the mean loss over `data` with the present parameters, which do not change. *correct (NULL allowed): the
 * share of examples for which a classifier's best label is the right one, from 0 to 1. */
sn_status sn_tuner_evaluate(sn_tuner *tuner, const sn_dataset *data, double *loss, double *correct,
                            sn_err *err) SN_MUST_USE;

#endif
