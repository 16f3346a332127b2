/* swarm tune: trains an adapter for the frozen blocks of a swarm. client/tune/training.h is the run; here are its
 * options, progress, checkpoints (--save-every, and at an interrupt) and the report. */
#include "base/clock.h"
#include "base/terminal.h"
#include "cli/command.h"
#include "cli/io.h"
#include "cli/progress.h"
#include "cli/setup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    const char *out;
    int64_t save_every;
} given = {.out = "swarm-tuned", .save_every = 50};

static const sn_option out_options[] = {
    SN_OPT_STRING("out", "FOLDER", &given.out,
                  "folder for the adapter, the loss curve and checkpoints; with --resume the folder of that option"),
    SN_OPT_INT("save-every", "N", &given.save_every, 0, 1 << 30,
               "steps between checkpoints; 0: only the last step has one"),
    SN_OPT_FLAG("json", &sn_cli_output.json, "print the result as one JSON object"),
};
static const sn_option_group out_group = SN_OPTION_GROUP("Output:", out_options);

typedef struct tune_run {
    sn_setup setup;
    sn_training training;
    const char *folder; /* of the results: --out or --resume */
    double loss_before, loss_after, accuracy_before, accuracy_after;
    int64_t began_us, first_step;
    uint64_t first_tokens; /* step and token count at which this run began */
} tune_run;

/* -- opening -- */

static sn_status read_data(tune_run *w, sn_err *err) {
    const sn_training_model model = {w->setup.model, w->setup.tokenizer, w->setup.lm_head};
    const sn_training *t = &w->training;
    sn_status status = sn_training_read(&w->training, &model, err);
    if (!status && t->data->n_truncated)
        fprintf(stderr, "swarm tune: %zu of %zu examples are longer than --seq %lld and are cut\n",
                t->data->n_truncated, t->data->n, (long long)t->settings->seq);
    return status;
}

static sn_status open_training(tune_run *w, sn_err *err) {
    sn_backbone *backbone = NULL;
    sn_status status =
        sn_setup_backbone(&w->setup, (sn_backbone_blocks){0}, &w->training.checkpoint.base, &backbone, err);
    if (status) return status;
    return sn_training_open(&w->training, &backbone, (int)w->setup.settings->common.threads, err);
}

static sn_status resume(tune_run *w, sn_err *err) {
    sn_status status = sn_training_restore(&w->training, err);
    if (!status && w->training.settings->resume)
        fprintf(stderr, "resuming at step %lld\n", (long long)w->training.tuner->step);
    return status;
}

/* -- training -- */

/* "step 12/100 loss 2.3456 812 tok/s 0:41 left" */
static void print_progress(const tune_run *w, bool terminal, bool last) {
    static int64_t shown_us;
    const sn_tuner *t = w->training.tuner;
    int64_t now_us = sn_now_us(), steps = t->options.optimizer.steps;
    if (!last && now_us - shown_us < (terminal ? 200000 : 10000000)) return;
    shown_us = now_us;
    double seconds = (double)(now_us - w->began_us) / 1e6, done = (double)(t->step - w->first_step);
    int left = done > 0 ? (int)(seconds / done * (double)(steps - t->step)) : 0;
    char bar[21];
    for (int i = 0; i < 20; i++) bar[i] = i < (int)(20 * t->step / steps) ? '#' : '.';
    bar[20] = 0;
    if (terminal) sn_terminal_control(stderr, "\r\033[K");
    fprintf(stderr, "[%s] step %lld/%lld  loss %.4f  %.0f tok/s  %d:%02d left%s", bar, (long long)t->step,
            (long long)steps, t->losses[t->step - 1], seconds > 0 ? (double)(t->tokens - w->first_tokens) / seconds : 0,
            left / 60, left % 60, terminal && !last ? "" : "\n");
    fflush(stderr);
}

/* The exit code says that it was interrupted; how to go on is said here. */
static sn_status interrupted(const tune_run *w, sn_err *err) {
    fprintf(stderr, "interrupted after step %lld of %lld; swarm tune --resume %s continues\n",
            (long long)w->training.tuner->step, (long long)w->training.tuner->options.optimizer.steps, w->folder);
    return sn_fail(err, SN_RETRY, "interrupted");
}

static sn_status train_steps(tune_run *w, sn_err *err) {
    sn_tuner *t = w->training.tuner;
    bool terminal = isatty(STDERR_FILENO);
    sn_status status = SN_OK;
    w->began_us = sn_now_us();
    w->first_step = t->step;
    w->first_tokens = t->tokens;
    while (t->step < t->options.optimizer.steps && !status && !sn_interrupted) {
        status = sn_tuner_step(t, err);
        if (status && sn_interrupted) status = SN_OK; /* the step was not finished, and has changed nothing */
        bool last = status || t->step == t->options.optimizer.steps || sn_interrupted;
        if (!status && t->step) print_progress(w, terminal, last);
        if (!status && given.save_every && t->step % given.save_every == 0 && !last)
            status = sn_training_checkpoint(&w->training, w->folder, err);
    }
    if (!status)
        status =
            sn_training_checkpoint(&w->training, w->folder, err); /* also after an interrupt, so that --resume works */
    return status ? status : sn_interrupted ? interrupted(w, err) : SN_OK;
}

static sn_status evaluate_loss(tune_run *w, double *loss, double *accuracy, sn_err *err) {
    if (!w->training.eval) return SN_OK;
    sn_progress_bar *bar = sn_progress_bar_begin("evaluating");
    sn_status status = sn_tuner_evaluate(w->training.tuner, w->training.eval, loss, accuracy, err);
    sn_progress_bar_end(&bar);
    return status;
}

static sn_status print_report(const tune_run *w, sn_err *err) {
    const sn_tuner *t = w->training.tuner;
    double seconds = (double)(sn_now_us() - w->began_us) / 1e6, loss = t->step ? t->losses[t->step - 1] : 0;
    bool classifier = t->params->shape.method == SN_METHOD_HEAD;
    if (sn_cli_output.json) {
        json_t *object =
            json_pack("{ss sI sf sf sf sI}", "out", w->folder, "steps", (json_int_t)t->step, "loss", loss, "seconds",
                      seconds, "tok_s", seconds > 0 ? (double)(t->tokens - w->first_tokens) / seconds : 0, "parameters",
                      (json_int_t)t->params->n_floats);
        if (w->training.eval)
            json_object_update_new(
                object, json_pack("{sf sf}", "eval_loss_before", w->loss_before, "eval_loss", w->loss_after));
        if (w->training.eval && classifier)
            json_object_update_new(object, json_pack("{sf sf}", "eval_accuracy_before", w->accuracy_before,
                                                     "eval_accuracy", w->accuracy_after));
        return sn_print_json(object, err);
    }
    printf("%lld steps, %zu parameters, %.1f s: loss %.4f\n", (long long)t->step, t->params->n_floats, seconds, loss);
    if (w->training.eval) printf("evaluation: loss %.4f before, %.4f after\n", w->loss_before, w->loss_after);
    if (w->training.eval && classifier)
        printf("evaluation: accuracy %.1f %% before, %.1f %% after\n", 100 * w->accuracy_before,
               100 * w->accuracy_after);
    printf("the adapter is in %s\n", w->folder);
    return SN_OK;
}

/* With --resume, options that are not given are those of the checkpoint. The checkpoint stays open as long as the
 * options, which point into its texts. */
static sn_status take_options(const sn_options *options, sn_checkpoint *checkpoint, sn_err *err) {
    const char *folder = sn_program_settings.training.resume, *key;
    json_t *value;
    sn_status status = folder ? sn_checkpoint_open(folder, checkpoint, err) : SN_OK;
    if (status || !folder) return status;
    json_object_foreach(checkpoint->options, key, value) {
        const char *name = strcmp(key, "data-file") ? key : "data", *text = json_string_value(value);
        char number[64];
        bool steps = !strcmp(key, "steps") && sn_options_has(options, "epochs");
        if (!strcmp(key, "data") || steps || sn_options_has(options, name)) continue;
        snprintf(number, sizeof number, "%.17g", json_number_value(value));
        status = sn_options_assign(&sn_cmd_tune.command, name, text ? text : number, err);
        if (status) return sn_err_context(err, "the checkpoint in %s", folder);
    }
    return SN_OK;
}

static sn_status run_tune(tune_run *w, sn_err *err) {
    const sn_training_settings *settings = &w->setup.settings->training;
    sn_status status = sn_training_begin(&w->training, settings, err);
    if (!status) status = sn_setup_open(&w->setup, true, err);
    if (!status) status = read_data(w, err);
    if (!status) status = open_training(w, err);
    if (!status) status = evaluate_loss(w, &w->loss_before, &w->accuracy_before, err);
    if (!status) status = resume(w, err);
    if (!status) status = train_steps(w, err);
    if (!status) status = sn_training_save(&w->training, w->folder, err);
    if (!status) status = evaluate_loss(w, &w->loss_after, &w->accuracy_after, err);
    return status ? status : print_report(w, err);
}

static sn_status tune_main(const sn_options *options, int *code, sn_err *err) {
    (void)code;
    tune_run w = {.setup = sn_cli_setup()};
    const char *resumed = w.setup.settings->training.resume;
    w.folder = resumed ? resumed : given.out;
    sn_catch_interrupts();
    sn_status status = resumed ? SN_OK
                               : sn_check_output_folder("--out", given.out,
                                                        "--resume continues a training, --out names another "
                                                        "folder, and --force replaces the results",
                                                        err);
    sn_checkpoint checkpoint = {0};
    if (!status) status = take_options(options, &checkpoint, err);
    if (!status) status = run_tune(&w, err);
    sn_training_fini(&w.training);
    sn_setup_close(&w.setup);
    sn_checkpoint_close(&checkpoint);
    return status;
}

static const sn_option_group *const groups[] = {
    &sn_group_model, &sn_group_data,       &sn_group_method, &sn_group_training, &out_group,
    &sn_group_force, &sn_group_connection, &sn_group_chain,  &sn_group_device,   &sn_group_log};

const sn_cli_command sn_cmd_tune = {
    .command = {.program = "swarm tune",
                .summary = "train an adapter for the model",
                .synopsis = "--model PATH (--join HOST:PORT... | --local all) --data FILE [options]",
                .about = "Trains a prompt, deep prompts, low-rank adapters or a classifier for the model, whose own "
                         "weights stay unchanged at the nodes that hold them. The same options give the same result, "
                         "bit for bit, over any division of the blocks among nodes, also when training is interrupted "
                         "and resumed.",
                .groups = groups,
                .n_groups = sizeof groups / sizeof *groups,
                .exit_codes = sn_exit_codes},
    .run = tune_main,
};
