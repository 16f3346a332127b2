/* How it works: a checkpoint stores every setting that decides the result (settings_json). A run that resumes compares
 * them twice: when it begins, before anything else is opened, and again when the data have been read, because their
 * hash and the number of steps in an epoch are known only then. So a run that was resumed has the bits of one that was
 * not interrupted. The weights are compared twice, too: before the blocks are opened, which takes long, and afterwards,
 * when their hashes are known, wherever they are. */
#include "client/tune/training.h"

#include "base/options.h"
#include "client/tune/adapter_folder.h"
#include "client/tune/loss_curve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DATA_FILE "data-file"

static double effective_alpha(const sn_training_settings *s) {
    return isnan(s->alpha) ? 2 * (double)s->rank : s->alpha;
}

sn_status sn_training_params(const sn_training_settings *s, const sn_hparams *hp, int n_labels, sn_lm_head *head,
                             sn_params **out, sn_err *err) {
    sn_params_shape shape = {.method = (sn_method)s->method,
                             .prompt_tokens = (int)s->virtual_tokens,
                             .rank = (int)s->rank,
                             .n_labels = n_labels,
                             .alpha = effective_alpha(s)};
    uint64_t rng = (uint64_t)s->seed;
    *out = NULL;
    sn_status status = sn_targets_parse(s->targets, shape.target, err);
    if (!status) status = sn_params_new(hp, &shape, out, err);
    if (!status) status = sn_params_init_values(*out, head, hp->n_vocab, &rng, err);
    if (status) sn_params_free(out);
    return status;
}

static sn_status make_optimizer_options(const sn_training *t, sn_optimizer_options *o, sn_err *err) {
    static const double rates[] = {0.03, 0.03, 0.001, 0.01}; /* of sn_method */
    const sn_training_settings *s = t->settings;
    size_t step = (size_t)(s->batch * s->accumulate), per_epoch = t->data ? (t->data->n + step - 1) / step : 0;
    bool steps = s->steps != SN_INT_UNSET, epochs = s->epochs != SN_INT_UNSET;
    if (steps && epochs) return sn_fail(err, SN_REFUSED, "give either --steps or --epochs");
    *o = (sn_optimizer_options){.lr = isnan(s->lr) ? rates[s->method] : s->lr,
                                .weight_decay = s->weight_decay,
                                .clip = s->clip,
                                .schedule = (sn_schedule)s->schedule,
                                .warmup = s->warmup_steps,
                                .steps = steps ? s->steps : (int64_t)per_epoch * (epochs ? s->epochs : 1)};
    return SN_OK;
}

/* -- the settings that decide the result -- */

/* Before the data are read, the number of steps may be missing. */
static json_t *settings_json(const sn_training *t, const sn_optimizer_options *o) {
    const sn_training_settings *s = t->settings;
    char hex[65];
    json_t *all = json_pack(
        "{ss sI sI sf ss sI sI sI sf ss sI sf sf sI}", "method", sn_method_name((sn_method)s->method), "virtual-tokens",
        (json_int_t)s->virtual_tokens, "rank", (json_int_t)s->rank, "alpha", effective_alpha(s), "targets", s->targets,
        "batch", (json_int_t)s->batch, "accumulate", (json_int_t)s->accumulate, "seq", (json_int_t)s->seq, "lr", o->lr,
        "schedule", sn_word_name(sn_schedule_words, s->schedule), "warmup-steps", (json_int_t)s->warmup_steps, "clip",
        s->clip, "weight-decay", s->weight_decay, "seed", (json_int_t)s->seed);
    if (t->data || s->steps != SN_INT_UNSET) json_object_set_new(all, "steps", json_integer(o->steps));
    if (t->data) json_object_set_new(all, "data", json_string(sn_hex(t->data->hash.bytes, SN_HASH_SIZE, hex)));
    char *path = realpath(s->data, NULL);
    if (path) json_object_set_new(all, DATA_FILE, json_string(path)); /* for a run that resumes without --data */
    free(path);
    return all;
}

/* Whether the run that resumes may have another value: the place of the data, and more steps than the earlier one. With
 * a constant learning rate, the bits are then those of one run of all steps. */
static bool may_differ(const char *key, const json_t *value, const json_t *was) {
    if (!strcmp(key, DATA_FILE)) return true;
    return !strcmp(key, "steps") && json_integer_value(value) > json_integer_value(was);
}

static sn_status compare_settings(const json_t *now, const json_t *then, sn_err *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)now, key, value) {
        json_t *was = json_object_get(then, key);
        if ((was && json_equal(value, was)) || may_differ(key, value, was)) continue;
        if (!strcmp(key, "data")) return sn_fail(err, SN_REFUSED, "--data differs from the data of the checkpoint");
        char *old = was ? json_dumps(was, JSON_ENCODE_ANY) : NULL;
        sn_status status =
            sn_fail(err, SN_REFUSED,
                    "--%s conflicts with the checkpoint, which has %.80s: give this value, or start without --resume",
                    key, old ? old : "none");
        free(old);
        return status;
    }
    return SN_OK;
}

static sn_status note_settings(sn_training *t, sn_err *err) {
    sn_optimizer_options o;
    sn_status status = make_optimizer_options(t, &o, err);
    if (status) return status;
    json_decref(t->options);
    t->options = settings_json(t, &o);
    if (!t->options) return sn_fail(err, SN_STOP, "out of memory");
    return t->settings->resume ? compare_settings(t->options, t->checkpoint.options, err) : SN_OK;
}

static sn_status compare_weights(const sn_training *t, sn_err *err) {
    const sn_hash *blocks = t->backbone ? t->backbone->weights : NULL;
    return t->settings->resume ? sn_checkpoint_check_weights(&t->checkpoint, t->model.model, blocks, err) : SN_OK;
}

/* -- opening -- */

sn_status sn_training_begin(sn_training *t, const sn_training_settings *settings, sn_err *err) {
    *t = (sn_training){.settings = settings};
    if (!settings->data) return sn_fail(err, SN_REFUSED, "--data FILE is missing: the texts to train with");
    sn_status status = settings->resume ? sn_checkpoint_open(settings->resume, &t->checkpoint, err) : SN_OK;
    return status ? status : note_settings(t, err);
}

static int virtual_tokens(const sn_training_settings *s) {
    return s->method == SN_METHOD_PROMPT || s->method == SN_METHOD_DEEP_PROMPT ? (int)s->virtual_tokens : 0;
}

sn_status sn_training_read(sn_training *t, const sn_training_model *model, sn_err *err) {
    const sn_training_settings *s = t->settings;
    int before = virtual_tokens(s), most = sn_model_hparams(model->model)->n_ctx - before;
    t->model = *model;
    if (s->seq > most)
        return sn_fail(err, SN_REFUSED, "--seq %lld is more than the %d tokens that this model takes%s",
                       (long long)s->seq, most, before ? ", less the virtual tokens" : "");
    sn_dataset_options options = {.max_tokens = (int)s->seq, .labelled = s->method == SN_METHOD_HEAD};
    sn_status status = sn_dataset_read(s->data, model->tokenizer, &options, &t->data, err);
    options.labels_of = t->data;
    if (!status && s->eval_data) status = sn_dataset_read(s->eval_data, model->tokenizer, &options, &t->eval, err);
    if (!status) status = note_settings(t, err);
    return status ? status : compare_weights(t, err);
}

sn_status sn_training_open(sn_training *t, sn_backbone **backbone, int threads, sn_err *err) {
    const sn_training_settings *s = t->settings;
    const sn_hparams *hp = sn_model_hparams(t->model.model);
    sn_tuner_options options = {
        .batch = (int)s->batch, .accumulate = (int)s->accumulate, .threads = threads, .seed = (uint64_t)s->seed};
    sn_params *params = NULL;
    t->backbone = *backbone;
    *backbone = NULL;
    sn_status status = compare_weights(t, err);
    if (!status) status = sn_base_weights_init(&t->base, t->model.model, t->backbone->weights, err);
    if (!status) status = make_optimizer_options(t, &options.optimizer, err);
    if (!status) status = sn_training_params(s, hp, (int)t->data->n_labels, t->model.lm_head, &params, err);
    if (status) return status;
    return sn_tuner_new(&options, hp, t->model.lm_head, t->backbone, t->data, &params, &t->tuner, err);
}

sn_status sn_training_restore(sn_training *t, sn_err *err) {
    return t->settings->resume ? sn_checkpoint_restore(&t->checkpoint, t->tuner, err) : SN_OK;
}

void sn_training_fini(sn_training *t) {
    sn_tuner_free(&t->tuner);
    sn_backbone_free(&t->backbone);
    sn_dataset_free(&t->data);
    sn_dataset_free(&t->eval);
    json_decref(t->options);
    sn_checkpoint_close(&t->checkpoint);
    sn_base_weights_fini(&t->base);
    *t = (sn_training){0};
}

/* -- results -- */

sn_status sn_training_checkpoint(const sn_training *t, const char *folder, sn_err *err) {
    sn_hash model = sn_model_id(t->model.model);
    sn_status status = sn_checkpoint_save(folder, t->tuner, &model, &t->base, t->data->labels, t->options, err);
    if (status || !t->tuner->step) return status;
    return sn_loss_curve_write(folder, t->tuner->losses, (size_t)t->tuner->step, err);
}

sn_status sn_training_save(const sn_training *t, const char *folder, sn_err *err) {
    return sn_adapter_folder_save(folder, t->tuner->params, sn_model_hparams(t->model.model), &t->base, t->data->labels,
                                  err);
}
