/* A tuner: takes training forward step by step. A step is `batch` * `accumulate` examples; its loss is the mean over
 * all tokens that are learned in it (or over the examples of a classifier), however they are put into micro-batches.
 * All its state is here, for checkpoints. One thread. */
#ifndef SN_CLIENT_TUNE_TUNER_H
#define SN_CLIENT_TUNE_TUNER_H

#include "client/tune/dataset.h"
#include "client/tune/loss.h"
#include "client/tune/optimizer.h"
#include "client/tune/trunk.h"

typedef struct sn_tuner_options {
    int batch, accumulate; /* examples of a micro-batch, and micro-batches of a step */
    sn_optimizer_options optimizer;
    uint64_t seed;
    int threads; /* that share out the loss's rows; 0: as many as there are cores */
} sn_tuner_options;

typedef struct sn_tuner {
    sn_tuner_options options;
    const sn_hparams *hp; /* borrowed, as are these: */
    sn_head *head;
    sn_trunk *trunk;
    const sn_dataset *data;
    sn_params *params;                 /* owned */
    float *first, *second, *gradients; /* like params->values */
    int64_t step;                      /* steps done */
    uint64_t epoch;                    /* of the next example, and */
    size_t position;                   /* its place in the epoch's order */
    size_t *order;                     /* of this epoch */
    sn_loss loss;
    double *losses;                    /* of each step done */
    size_t losses_room;
    uint64_t tokens; /* that went through, in all */
    double norm;     /* of the last step's gradients */
} sn_tuner;

/* `params` is taken, also on failure. */
sn_status sn_tuner_new(const sn_tuner_options *options, const sn_hparams *hp, sn_head *head, sn_trunk *trunk,
                       const sn_dataset *data, sn_params **params, sn_tuner **out, sn_err *err) SN_MUST_USE;
void sn_tuner_free(sn_tuner **tuner); /* NULL-safe */

sn_status sn_tuner_step(sn_tuner *tuner, sn_err *err) SN_MUST_USE; /* on failure nothing has changed */

/* Mean loss over another data set, with the values as they are. *right (NULL allowed): share of examples that a
 * classifier gets right. */
sn_status sn_tuner_evaluate(sn_tuner *tuner, const sn_dataset *data, double *loss, double *right,
                            sn_err *err) SN_MUST_USE;

#endif
