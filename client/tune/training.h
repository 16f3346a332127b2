/* A training run: settings, data, backbone and tuner put together, with checkpoints that continue it bit for bit.
 *
 * Central type: sn_training. Its owner (`swarm tune`, a training of the C API) calls sn_training_begin, which needs no
 * model and refuses what does not fit the checkpoint of `resume`; sn_training_read with the model; opens a backbone
 * over all blocks; and gives it to sn_training_open. Then it takes steps with training.tuner (tuner.h).
 * sn_training_fini frees all of it, at any time. One thread. Errors: SN_REFUSED with a sentence about a setting, the
 * data, the checkpoint or the weights; those of the layers below. */
#ifndef SN_CLIENT_TUNE_TRAINING_H
#define SN_CLIENT_TUNE_TRAINING_H

#include "client/tune/checkpoint.h"
#include "client/tune/tuner.h"
#include "model/base_weights.h"
#include "text/tokenizer/tokenizer.h"

typedef struct sn_training_settings {
    const char *data, *eval_data, *targets;
    const char *resume;   /* a folder with checkpoints; NULL: the training begins */
    int method, schedule; /* sn_method, sn_schedule */
    int64_t virtual_tokens, rank, warmup_steps, batch, accumulate, seq, seed;
    int64_t steps, epochs; /* SN_INT_UNSET: the other one counts; both: one epoch */
    double alpha, lr;      /* NAN: twice the rank; a rate that suits the method */
    double clip, weight_decay;
} sn_training_settings;

#define SN_TRAINING_DEFAULTS                                                                                           \
    {.method = SN_METHOD_LORA,                                                                                         \
     .targets = "q,v",                                                                                                 \
     .schedule = SN_SCHEDULE_COSINE,                                                                                   \
     .virtual_tokens = 16,                                                                                             \
     .rank = 8,                                                                                                        \
     .batch = 4,                                                                                                       \
     .accumulate = 1,                                                                                                  \
     .seq = 256,                                                                                                       \
     .steps = SN_INT_UNSET,                                                                                            \
     .epochs = SN_INT_UNSET,                                                                                           \
     .lr = NAN,                                                                                                        \
     .clip = 1,                                                                                                        \
     .alpha = NAN}

/* The parameters that the settings describe, with the initial values of a training. n_labels: of a classifier's data.
 * Free *out with sn_params_free. */
sn_status sn_training_params(const sn_training_settings *settings, const sn_hparams *hp, int n_labels, sn_lm_head *head,
                             sn_params **out, sn_err *err) SN_MUST_USE;

/* What a client holds of the model; borrowed. */
typedef struct sn_training_model {
    const sn_model *model;
    const sn_tokenizer *tokenizer;
    sn_lm_head *lm_head;
} sn_training_model;

typedef struct sn_training {
    const sn_training_settings *settings;
    sn_training_model model;
    sn_dataset *data, *eval; /* eval: NULL without eval_data */
    sn_backbone *backbone;
    sn_tuner *tuner;
    sn_base_weights base;     /* what the adapter is trained for */
    sn_checkpoint checkpoint; /* of `resume` */
    json_t *options;          /* all settings that decide the result */
} sn_training;

/* settings: borrowed until sn_training_fini, which is due in any case. */
sn_status sn_training_begin(sn_training *training, const sn_training_settings *settings, sn_err *err) SN_MUST_USE;
sn_status sn_training_read(sn_training *training, const sn_training_model *model, sn_err *err) SN_MUST_USE;
/* Takes *backbone and sets it to NULL, also on failure. threads: as of sn_tuner_options. The tuner is new: the next
 * call brings it to where the checkpoint was. */
sn_status sn_training_open(sn_training *training, sn_backbone **backbone, int threads, sn_err *err) SN_MUST_USE;
/* Continues the checkpoint of `resume`; without one nothing happens. */
sn_status sn_training_restore(sn_training *training, sn_err *err) SN_MUST_USE;
void sn_training_fini(sn_training *training); /* accepts a zeroed struct */

static inline bool sn_training_done(const sn_training *training) {
    return training->tuner->step >= training->tuner->options.optimizer.steps;
}

/* Writes a checkpoint and the loss curve into the folder, which is made; or the adapter into an existing folder. */
sn_status sn_training_checkpoint(const sn_training *training, const char *folder, sn_err *err) SN_MUST_USE;
sn_status sn_training_save(const sn_training *training, const char *folder, sn_err *err) SN_MUST_USE;

#endif
