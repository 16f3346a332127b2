/* A training run (client/tune/training.h) behind a handle. */
#include "client/api/api_private.h"

#include "client/tune/training.h"

#include <stdlib.h>

struct swarm_training {
    swarm_cancel *cancel;
    sn_api_options options;
    sn_setup setup;
    sn_training run;
};

static sn_status training_open(swarm_training *t, const swarm_model *model, swarm_connection *connection,
                               const swarm_options *options, sn_err *err) {
    const sn_settings *s = &t->options.settings;
    sn_backbone *backbone = NULL;
    sn_status status = sn_api_options_init(&t->options, options, "training", &model->options.settings, err);
    if (!status && !s->training.data) status = sn_fail(err, SN_REFUSED, "give data, the file to train with");
    if (!status) status = sn_training_begin(&t->run, &s->training, err);
    if (!status) status = sn_model_needs_tokenizer(model, err);
    if (!status) status = sn_api_setup(&t->setup, model, connection, sn_api_flag(t->cancel), &t->options.settings, err);
    if (status) return status;
    const sn_training_model parts = {model->model, model->tokenizer, t->setup.lm_head};
    status = sn_training_read(&t->run, &parts, err);
    if (!status)
        status = sn_setup_backbone(&t->setup, (sn_backbone_blocks){0}, &t->run.checkpoint.base, &backbone, err);
    if (!status) status = sn_training_open(&t->run, &backbone, (int)s->common.threads, err);
    return status ? status : sn_training_restore(&t->run, err);
}

swarm_code swarm_training_open(const swarm_model *model, swarm_connection *connection, const swarm_options *options,
                               swarm_cancel *cancel, swarm_training **training, swarm_error **error) {
    sn_err err;
    swarm_training *t = NULL;
    sn_status status = sn_calloc(&t, 1, sizeof *t, &err);
    if (!status) {
        t->cancel = cancel;
        status = training_open(t, model, connection, options, &err);
    }
    if (!status)
        *training = t;
    else
        swarm_training_close(t);
    return sn_api_end(status, &err, sn_api_flag(cancel), error);
}

void swarm_training_close(swarm_training *t) {
    if (!t) return;
    sn_training_fini(&t->run);
    sn_setup_close(&t->setup);
    sn_api_options_fini(&t->options);
    free(t);
}

swarm_code swarm_training_step(swarm_training *t, double *loss, int *done, swarm_error **error) {
    sn_err err;
    sn_tuner *tuner = t->run.tuner;
    sn_status status = sn_training_done(&t->run) ? sn_fail(&err, SN_REFUSED, "this training has taken its %lld steps",
                                                           (long long)tuner->options.optimizer.steps)
                                                 : sn_tuner_step(tuner, &err);
    if (!status && loss) *loss = tuner->losses[tuner->step - 1];
    if (!status && done) *done = sn_training_done(&t->run);
    return sn_api_end(status, &err, sn_api_flag(t->cancel), error);
}

swarm_code swarm_training_evaluate(swarm_training *t, double *loss, swarm_error **error) {
    sn_err err;
    sn_status status = t->run.eval ? sn_tuner_evaluate(t->run.tuner, t->run.eval, loss, NULL, &err)
                                   : sn_fail(&err, SN_REFUSED, "give eval-data, the file to evaluate with");
    return sn_api_end(status, &err, sn_api_flag(t->cancel), error);
}

swarm_code swarm_training_checkpoint(swarm_training *t, const char *folder, swarm_error **error) {
    sn_err err;
    return sn_api_end(sn_training_checkpoint(&t->run, folder, &err), &err, NULL, error);
}

swarm_code swarm_training_save(swarm_training *t, const char *folder, swarm_error **error) {
    sn_err err;
    sn_status status = sn_api_folder(folder, &err);
    if (!status) status = sn_training_save(&t->run, folder, &err);
    return sn_api_end(status, &err, NULL, error);
}
