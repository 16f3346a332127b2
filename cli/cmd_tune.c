/* swarm tune: trains an adapter for the frozen blocks of a swarm.
 *
 * run_tune opens the model, reads the data, opens the backbone (blocks at nodes or in this process) and the tuner, and
 * then takes one training step after another. --save-every writes checkpoints. A checkpoint stores every option that
 * decides the result (resume_options_json); --resume compares them first, before the model is opened, and refuses
 * other values, so that a resumed run gives the same bits as one that was not interrupted. At the end the adapter is
 * written to the folder of --out. */
#include "base/clock.h"
#include "base/terminal.h"
#include "blocks/adapter.h"
#include "cli/command.h"
#include "cli/io.h"
#include "cli/progress.h"
#include "cli/setup.h"
#include "client/tune/adapter_folder.h"
#include "client/tune/checkpoint.h"
#include "client/tune/loss_curve.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    const char *data, *eval_data, *targets, *out, *resume;
    int method, schedule; /* sn_method, sn_schedule */
    int64_t virtual_tokens, rank, warmup_steps, batch, accumulate, seq, steps, epochs, save_every, seed;
    double alpha, lr, clip, weight_decay;
} given = {.method = SN_METHOD_LORA,
           .targets = "q,v",
           .schedule = SN_SCHEDULE_COSINE,
           .virtual_tokens = 16,
           .rank = 8,
           .batch = 4,
           .accumulate = 1,
           .seq = 256,
           .steps = SN_INT_UNSET,
           .epochs = SN_INT_UNSET,
           .save_every = 50,
           .out = "swarm-tuned",
           .lr = NAN,
           .clip = 1,
           .alpha = NAN};

static const sn_option data_options[] = {
    SN_OPT_REQUIRED("data", "FILE", &given.data,
                    "training data: a .txt file, or a .jsonl file with {\"text\"}, {\"prompt\", \"completion\"}, "
                    "{\"messages\"} or {\"text\", \"label\"} on each line"),
    SN_OPT_STRING("eval-data", "FILE", &given.eval_data,
                  "evaluation data in the same format: the loss over it is shown before and after training"),
    SN_OPT_INT("seq", "N", &given.seq, 2, 1 << 20, "limit of tokens in a sequence; longer examples are cut"),
};
static const sn_option method_options[] = {
    SN_OPT_ENUM("method", &given.method, sn_method_words,
                "what is trained: virtual tokens before the text (prompt), also before each block (deep-prompt), "
                "low-rank adapters of the blocks' matrices (lora), or a classifier after the last block (head)"),
    SN_OPT_INT("virtual-tokens", "N", &given.virtual_tokens, 1, SN_PROMPT_TOKENS_MAX,
               "virtual tokens of prompt and deep-prompt"),
    SN_OPT_INT("rank", "N", &given.rank, 1, SN_LORA_RANK_MAX, "rank of LoRA"),
    SN_OPT_FLOAT("alpha", "A", &given.alpha, 1e-6, 1e6,
                 "the result of LoRA is scaled by A / rank (default: twice the rank)"),
    SN_OPT_STRING("targets", "LIST", &given.targets,
                  "matrices that get LoRA adapters: q, k, v, o, gate, up, down, or all"),
};
static const sn_option training_options[] = {
    SN_OPT_INT("steps", "N", &given.steps, 1, 1 << 30, "training steps (default: one epoch)"),
    SN_OPT_INT("epochs", "N", &given.epochs, 1, 1 << 20, "passes over the data, instead of --steps"),
    SN_OPT_INT("batch", "N", &given.batch, 1, 1024, "sequences in a micro-batch"),
    SN_OPT_INT("accumulate", "N", &given.accumulate, 1, 1024, "micro-batches in a step"),
    SN_OPT_FLOAT("lr", "R", &given.lr, 0, 100,
                 "learning rate (default: 0.03 for prompt and deep-prompt, 0.001 for lora, 0.01 for head)"),
    SN_OPT_ENUM("schedule", &given.schedule, sn_schedule_words, "schedule of the learning rate"),
    SN_OPT_INT("warmup-steps", "N", &given.warmup_steps, 0, 1 << 30,
               "steps in which the learning rate grows from 0 to its full value"),
    SN_OPT_FLOAT("clip", "N", &given.clip, 0, 1e9, "limit of the norm of a step's gradients; 0: no limit"),
    SN_OPT_FLOAT("weight-decay", "W", &given.weight_decay, 0, 10, "weight decay of AdamW"),
    SN_OPT_INT("seed", "S", &given.seed, 0, 1LL << 53, "seed of the initial parameters and of the order of the data"),
};
static const sn_option out_options[] = {
    SN_OPT_STRING("out", "FOLDER", &given.out, "folder for the adapter, the loss curve and checkpoints"),
    SN_OPT_INT("save-every", "N", &given.save_every, 0, 1 << 30,
               "steps between checkpoints; 0: only the last step has one"),
    SN_OPT_STRING("resume", "FOLDER", &given.resume, "continue from the newest checkpoint in this folder of --out"),
    SN_OPT_FLAG("json", &sn_cli_output.json, "print the result as one JSON object"),
};
static const sn_option_group data_group = SN_OPTION_GROUP("Data:", data_options);
static const sn_option_group method_group = SN_OPTION_GROUP("Adapter:", method_options);
static const sn_option_group training_group = SN_OPTION_GROUP("Training:", training_options);
static const sn_option_group out_group = SN_OPTION_GROUP("Output:", out_options);

typedef struct tune_run {
    sn_setup setup;
    sn_dataset *data, *eval;
    sn_backbone *backbone;
    sn_tuner *tuner;
    sn_base_weights base;     /* what the adapter is trained for */
    sn_checkpoint checkpoint; /* of --resume */
    json_t *options;          /* all options that decide the result */
    double loss_before, loss_after, accuracy_before, accuracy_after;
    int64_t began_us, first_step;
    uint64_t first_tokens; /* step and token count at which this run began */
} tune_run;

/* -- options -- */

static double effective_alpha(void) { return isnan(given.alpha) ? 2 * (double)given.rank : given.alpha; }

static sn_status make_shape(const tune_run *w, sn_params_shape *shape, sn_err *err) {
    *shape = (sn_params_shape){.method = (sn_method)given.method,
                               .prompt_tokens = (int)given.virtual_tokens,
                               .rank = (int)given.rank,
                               .n_labels = (int)w->data->n_labels,
                               .alpha = effective_alpha()};
    return sn_targets_parse(given.targets, shape->target, err);
}

static sn_status make_optimizer_options(const tune_run *w, sn_optimizer_options *o, sn_err *err) {
    static const double rates[] = {0.03, 0.03, 0.001, 0.01}; /* of sn_method */
    size_t step = (size_t)(given.batch * given.accumulate), per_epoch = w->data ? (w->data->n + step - 1) / step : 0;
    bool steps = given.steps != SN_INT_UNSET, epochs = given.epochs != SN_INT_UNSET;
    if (steps && epochs) return sn_fail(err, SN_REFUSED, "give either --steps or --epochs");
    *o = (sn_optimizer_options){.lr = isnan(given.lr) ? rates[given.method] : given.lr,
                                .weight_decay = given.weight_decay,
                                .clip = given.clip,
                                .schedule = (sn_schedule)given.schedule,
                                .warmup = given.warmup_steps,
                                .steps = steps ? given.steps : (int64_t)per_epoch * (epochs ? given.epochs : 1)};
    return SN_OK;
}

/* The options that decide the result. Before the data are read, the number of steps may be missing. */
static json_t *resume_options_json(const tune_run *w, const sn_optimizer_options *o) {
    char hex[65];
    json_t *all =
        json_pack("{ss sI sI sf ss sI sI sI sf ss sI sf sf sI}", "method", sn_method_name((sn_method)given.method),
                  "virtual-tokens", (json_int_t)given.virtual_tokens, "rank", (json_int_t)given.rank, "alpha",
                  effective_alpha(), "targets", given.targets, "batch", (json_int_t)given.batch, "accumulate",
                  (json_int_t)given.accumulate, "seq", (json_int_t)given.seq, "lr", o->lr, "schedule",
                  sn_word_name(sn_schedule_words, given.schedule), "warmup-steps", (json_int_t)given.warmup_steps,
                  "clip", given.clip, "weight-decay", given.weight_decay, "seed", (json_int_t)given.seed);
    if (w->data || given.steps != SN_INT_UNSET) json_object_set_new(all, "steps", json_integer(o->steps));
    if (w->data) json_object_set_new(all, "data", json_string(sn_hex(w->data->hash.bytes, SN_HASH_SIZE, hex)));
    return all;
}

/* Training resumes only with the options of the checkpoint. */
static sn_status check_resume_options(const json_t *now, const json_t *then, sn_err *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)now, key, value) {
        json_t *was = json_object_get(then, key);
        if (was && json_equal(value, was)) continue;
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

/* -- opening -- */

static sn_status read_data(tune_run *w, sn_err *err) {
    bool prompt = given.method == SN_METHOD_PROMPT || given.method == SN_METHOD_DEEP_PROMPT;
    int most = w->setup.hp->n_ctx - (prompt ? (int)given.virtual_tokens : 0);
    if (given.seq > most)
        return sn_fail(err, SN_REFUSED, "--seq %lld is more than the %d tokens that this model takes%s",
                       (long long)given.seq, most, prompt ? ", less the virtual tokens" : "");
    sn_dataset_options dataset_options = {.max_tokens = (int)given.seq, .labelled = given.method == SN_METHOD_HEAD};
    sn_status status = sn_dataset_read(given.data, w->setup.tokenizer, &dataset_options, &w->data, err);
    dataset_options.labels_of = w->data;
    if (!status && given.eval_data)
        status = sn_dataset_read(given.eval_data, w->setup.tokenizer, &dataset_options, &w->eval, err);
    if (!status && w->data->n_truncated)
        fprintf(stderr, "swarm tune: %zu of %zu examples are longer than --seq %lld and are cut\n",
                w->data->n_truncated, w->data->n, (long long)given.seq);
    return status;
}

static sn_status open_backbone(tune_run *w, sn_err *err) {
    sn_setup *s = &w->setup;
    if (sn_program_settings.common.local.given && !sn_program_settings.common.local.all &&
        (sn_program_settings.common.local.first || sn_program_settings.common.local.end != s->hp->n_blocks))
        return sn_fail(err, SN_REFUSED,
                       "training needs nodes (--join) or the whole model in this process (--local all)");
    if (sn_program_settings.common.local.given) {
        int longest = (int)given.seq + (int)given.virtual_tokens;
        const sn_backbone_local_options local = {.device = s->device,
                                                 .tokens_max = longest < s->hp->n_ctx ? longest : s->hp->n_ctx};
        return sn_backbone_local(s->model, &local, &w->backbone, err);
    }
    if (sn_program_settings.common.wire_dtype != SN_F32)
        return sn_fail(err, SN_REFUSED, "training sends hidden states as float32 only: leave out --wire-dtype");
    sn_status status = sn_setup_link(s, err);
    const sn_backbone_swarm_options options = {
        .link = s->link,
        .node_filter = {sn_program_settings.common.only.items, sn_program_settings.common.only.n,
                        sn_program_settings.common.deny.items, sn_program_settings.common.deny.n},
        .timeout_ms = (int)sn_program_settings.common.timeout_ms,
        .max_retries = (int)sn_program_settings.common.max_retries};
    return status ? status : sn_backbone_swarm(s->model, &options, &w->backbone, err);
}

static sn_status open_tuner(tune_run *w, sn_err *err) {
    sn_params_shape shape;
    sn_params *params = NULL;
    sn_tuner_options options = {.batch = (int)given.batch,
                                .accumulate = (int)given.accumulate,
                                .threads = (int)sn_program_settings.common.threads,
                                .seed = (uint64_t)given.seed};
    uint64_t rng = (uint64_t)given.seed;
    sn_status status = make_shape(w, &shape, err);
    if (!status) status = make_optimizer_options(w, &options.optimizer, err);
    if (!status) status = sn_params_new(w->setup.hp, &shape, &params, err);
    if (!status) status = sn_params_init_values(params, w->setup.lm_head, w->setup.hp->n_vocab, &rng, err);
    if (status) {
        sn_params_free(&params);
        return status;
    }
    return sn_tuner_new(&options, w->setup.hp, w->setup.lm_head, w->backbone, w->data, &params, &w->tuner, err);
}

/* Stores the options that decide the result and, with --resume, compares them with those of the checkpoint. Called
 * before the model is opened, and again before its blocks are loaded, with all that is known then. */
static sn_status check_resume(tune_run *w, sn_err *err) {
    sn_optimizer_options o;
    sn_status status = make_optimizer_options(w, &o, err);
    if (status) return status;
    json_decref(w->options);
    w->options = resume_options_json(w, &o);
    if (!w->options) return sn_fail(err, SN_STOP, "out of memory");
    return given.resume ? check_resume_options(w->options, w->checkpoint.options, err) : SN_OK;
}

/* The weights that compute must be those of the checkpoint. Called before the blocks are opened, which takes long, and
 * afterwards, when their hashes are known, wherever they are. */
static sn_status check_weights(const tune_run *w, sn_err *err) {
    const sn_hash *blocks = w->backbone ? w->backbone->weights : NULL;
    return given.resume ? sn_checkpoint_check_weights(&w->checkpoint, w->setup.model, blocks, err) : SN_OK;
}

static sn_status load_checkpoint(tune_run *w, sn_err *err) {
    if (!given.resume) return SN_OK;
    sn_status status = sn_checkpoint_restore(&w->checkpoint, w->tuner, err);
    if (!status) fprintf(stderr, "resuming at step %lld\n", (long long)w->tuner->step);
    return status;
}

/* -- training -- */

/* "step 12/100 loss 2.3456 812 tok/s 0:41 left" */
static void print_progress(const tune_run *w, bool terminal, bool last) {
    static int64_t shown_us;
    const sn_tuner *t = w->tuner;
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

static sn_status save_checkpoint(tune_run *w, sn_err *err) {
    const char *folder = given.resume ? given.resume : given.out;
    sn_hash model = sn_model_id(w->setup.model);
    sn_status status = sn_checkpoint_save(folder, w->tuner, &model, &w->base, w->data->labels, w->options, err);
    return status ? status : sn_loss_curve_write(folder, w->tuner->losses, (size_t)w->tuner->step, err);
}

static sn_status train_steps(tune_run *w, sn_err *err) {
    sn_tuner *t = w->tuner;
    bool terminal = isatty(STDERR_FILENO);
    sn_status status = SN_OK;
    w->began_us = sn_now_us();
    w->first_step = t->step;
    w->first_tokens = t->tokens;
    while (t->step < t->options.optimizer.steps && !status && !sn_interrupted) {
        status = sn_tuner_step(t, err);
        bool last = status || t->step == t->options.optimizer.steps || sn_interrupted;
        if (!status) print_progress(w, terminal, last);
        if (!status && given.save_every && t->step % given.save_every == 0 && !last) status = save_checkpoint(w, err);
    }
    if (!status) status = save_checkpoint(w, err); /* also after an interrupt, so that --resume works */
    return status ? status : sn_interrupted ? sn_fail(err, SN_RETRY, "interrupted: continue with --resume") : SN_OK;
}

static sn_status evaluate_loss(tune_run *w, double *loss, double *accuracy, sn_err *err) {
    if (!w->eval) return SN_OK;
    sn_progress_bar *bar = sn_progress_bar_begin("evaluating");
    sn_status status = sn_tuner_evaluate(w->tuner, w->eval, loss, accuracy, err);
    sn_progress_bar_end(&bar);
    return status;
}

static sn_status print_report(const tune_run *w, sn_err *err) {
    const sn_tuner *t = w->tuner;
    const char *folder = given.resume ? given.resume : given.out;
    double seconds = (double)(sn_now_us() - w->began_us) / 1e6, loss = t->step ? t->losses[t->step - 1] : 0;
    bool classifier = t->params->shape.method == SN_METHOD_HEAD;
    if (sn_cli_output.json) {
        json_t *object =
            json_pack("{ss sI sf sf sf sI}", "out", folder, "steps", (json_int_t)t->step, "loss", loss, "seconds",
                      seconds, "tok_s", seconds > 0 ? (double)(t->tokens - w->first_tokens) / seconds : 0, "parameters",
                      (json_int_t)t->params->n_floats);
        if (w->eval)
            json_object_update_new(
                object, json_pack("{sf sf}", "eval_loss_before", w->loss_before, "eval_loss", w->loss_after));
        if (w->eval && classifier)
            json_object_update_new(object, json_pack("{sf sf}", "eval_accuracy_before", w->accuracy_before,
                                                     "eval_accuracy", w->accuracy_after));
        return sn_print_json(object, err);
    }
    printf("%lld steps, %zu parameters, %.1f s: loss %.4f\n", (long long)t->step, t->params->n_floats, seconds, loss);
    if (w->eval) printf("evaluation: loss %.4f before, %.4f after\n", w->loss_before, w->loss_after);
    if (w->eval && classifier)
        printf("evaluation: accuracy %.1f %% before, %.1f %% after\n", 100 * w->accuracy_before,
               100 * w->accuracy_after);
    printf("the adapter is in %s\n", folder);
    return SN_OK;
}

static sn_status run_tune(tune_run *w, sn_err *err) {
    const char *folder = given.resume ? given.resume : given.out;
    sn_progress_bar *bar;
    sn_status status = given.resume ? sn_checkpoint_open(folder, &w->checkpoint, err) : SN_OK;
    if (!status) status = check_resume(w, err);
    if (!status) status = sn_setup_open(&w->setup, true, err);
    if (!status) status = read_data(w, err);
    if (!status) status = check_resume(w, err);
    if (!status) status = check_weights(w, err);
    bar = sn_progress_bar_begin("comparing and opening the blocks");
    if (!status) status = open_backbone(w, err);
    sn_progress_bar_end(&bar);
    if (!status) status = check_weights(w, err);
    if (!status) status = sn_base_weights_init(&w->base, w->setup.model, w->backbone->weights, err);
    if (!status) status = open_tuner(w, err);
    if (!status) status = evaluate_loss(w, &w->loss_before, &w->accuracy_before, err);
    if (!status) status = load_checkpoint(w, err);
    if (!status) status = train_steps(w, err);
    if (!status) status = sn_adapter_folder_save(folder, w->tuner->params, w->setup.hp, &w->base, w->data->labels, err);
    if (!status) status = evaluate_loss(w, &w->loss_after, &w->accuracy_after, err);
    return status ? status : print_report(w, err);
}

static sn_status tune_main(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    tune_run w = {.setup = sn_cli_setup()};
    if (!given.resume && mkdir(given.out, 0777) && errno != EEXIST)
        return sn_fail(err, SN_REFUSED, "--out %s cannot be made: %s", given.out, strerror(errno));
    sn_catch_interrupts();
    sn_status status = run_tune(&w, err);
    sn_tuner_free(&w.tuner);
    sn_backbone_free(&w.backbone);
    sn_dataset_free(&w.data);
    sn_dataset_free(&w.eval);
    json_decref(w.options);
    sn_checkpoint_close(&w.checkpoint);
    sn_base_weights_fini(&w.base);
    sn_setup_close(&w.setup);
    return status;
}

static const sn_option_group *const groups[] = {&sn_group_model, &data_group,      &method_group,
                                                &training_group, &out_group,       &sn_group_connection,
                                                &sn_group_chain, &sn_group_device, &sn_group_log};

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
