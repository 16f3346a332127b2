/* swarm tune: trains something small to go with the frozen blocks of a swarm. */
#include "client/cmd.h"

#include "base/clock.h"
#include "blocks/block.h"
#include "blocks/weights_id.h"
#include "client/tune/adapter.h"
#include "client/tune/checkpoint.h"
#include "client/tune/curve.h"
#include "model/peft.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct {
    const char *data, *eval_data, *method, *targets, *schedule, *out, *resume;
    int64_t prompt_tokens, rank, warmup, batch, accumulate, seq, steps, epochs, save_every, seed;
    double alpha, lr, clip, weight_decay;
} given = {.method = "lora",
           .targets = "q,v",
           .schedule = "cosine",
           .prompt_tokens = 16,
           .rank = 8,
           .batch = 4,
           .accumulate = 1,
           .seq = 256,
           .save_every = 50,
           .lr = -1,
           .clip = 1,
           .alpha = -1};

static const sn_option data_options[] = {
    SN_OPT_REQUIRED("data", "FILE", &given.data,
                    "what is learned: a .txt, or a .jsonl with {\"text\"}, {\"prompt\", \"completion\"}, "
                    "{\"messages\"} or {\"text\", \"label\"} on each line"),
    SN_OPT_STRING("eval-data", "FILE", &given.eval_data, "the loss over this is shown before and after"),
    SN_OPT_INT("seq", "N", &given.seq, 2, 1 << 20, "tokens of a sequence at most (256)"),
};
static const sn_option method_options[] = {
    SN_OPT_STRING("method", "NAME", &given.method, "prompt, deep-prompt, lora (the default) or head, a classifier"),
    SN_OPT_INT("prompt-tokens", "N", &given.prompt_tokens, 1, SN_PROMPT_TOKENS_MAX, "virtual tokens of a prompt (16)"),
    SN_OPT_INT("rank", "N", &given.rank, 1, SN_LORA_RANK_MAX, "of LoRA (8)"),
    SN_OPT_FLOAT("alpha", "A", &given.alpha, 1e-6, 1e6, "LoRA's results are scaled by A / rank (A: twice the rank)"),
    SN_OPT_STRING("targets", "LIST", &given.targets,
                  "matrices that get LoRA: q, k, v, o, gate, up, down, or all (q,v)"),
};
static const sn_option training_options[] = {
    SN_OPT_INT("steps", "N", &given.steps, 1, 1 << 30, "steps in all"),
    SN_OPT_INT("epochs", "N", &given.epochs, 1, 1 << 20, "instead: times through the data (1)"),
    SN_OPT_INT("batch", "N", &given.batch, 1, 1024, "sequences of a micro-batch (4)"),
    SN_OPT_INT("accumulate", "N", &given.accumulate, 1, 1024, "micro-batches of a step (1)"),
    SN_OPT_FLOAT("lr", "R", &given.lr, 0, 100, "learning rate (prompts 0.03, LoRA 0.001, head 0.01)"),
    SN_OPT_STRING("schedule", "NAME", &given.schedule,
                  "of the learning rate: cosine (the default), linear or constant"),
    SN_OPT_INT("warmup", "N", &given.warmup, 0, 1 << 30, "steps in which the rate grows to its full size (0)"),
    SN_OPT_FLOAT("clip", "N", &given.clip, 0, 1e9, "largest norm of a step's gradients; 0: any (1)"),
    SN_OPT_FLOAT("weight-decay", "W", &given.weight_decay, 0, 10, "of AdamW (0)"),
    SN_OPT_INT("seed", "S", &given.seed, 0, 1LL << 53, "decides beginnings and the order of the data (0)"),
};
static const sn_option out_options[] = {
    SN_OPT_STRING("out", "FOLDER", &given.out, "where the adapter, the loss curve and checkpoints go (swarm-tuned)"),
    SN_OPT_INT("save-every", "N", &given.save_every, 0, 1 << 30,
               "steps between checkpoints; 0: none but the last (50)"),
    SN_OPT_STRING("resume", "FOLDER", &given.resume, "go on from the newest checkpoint of this --out"),
    SN_OPT_FLAG("json", &sn_given.json, "print the outcome as one JSON object"),
};

typedef struct work {
    sn_setup setup;
    sn_dataset *data, *eval;
    sn_trunk *trunk;
    sn_tuner *tuner;
    sn_hash weights; /* what was trained goes with these */
    sn_hash model;   /* and these shapes */
    json_t *options; /* all that decides what comes out */
    double before, after, right_before, right_after;
    int64_t began_us, first_step;
    uint64_t first_tokens; /* these two: where this run began */
} work;

/* -- what was asked for */

static double alpha_given(void) { return given.alpha < 0 ? 2 * (double)given.rank : given.alpha; }

static sn_status shape_given(const work *w, sn_params_shape *shape, sn_err *err) {
    *shape = (sn_params_shape){
        .prompt_tokens = (int)given.prompt_tokens, .rank = (int)given.rank, .n_labels = (int)w->data->n_labels};
    shape->alpha = alpha_given();
    sn_status status = sn_method_parse(given.method, &shape->method, err);
    return status ? status : sn_targets_parse(given.targets, shape->target, err);
}

static sn_status optimizer_given(const work *w, sn_optimizer_options *o, sn_err *err) {
    static const double rates[] = {0.03, 0.03, 0.001, 0.01};
    sn_method method;
    size_t step = (size_t)(given.batch * given.accumulate), per_epoch = w->data ? (w->data->n + step - 1) / step : 0;
    *o = (sn_optimizer_options){.weight_decay = given.weight_decay, .clip = given.clip, .warmup = given.warmup};
    if (given.steps && given.epochs) return sn_fail(err, SN_REFUSED, "give either --steps or --epochs");
    o->steps = given.steps ? given.steps : (int64_t)per_epoch * (given.epochs ? given.epochs : 1);
    sn_status status = sn_method_parse(given.method, &method, err);
    if (!status) o->lr = given.lr < 0 ? rates[method] : given.lr;
    return status ? status : sn_schedule_parse(given.schedule, &o->schedule, err);
}

/* All that decides what comes out, as far as it is known before the data are read, or after. */
static json_t *options_given(const work *w, const sn_optimizer_options *o) {
    char hex[65];
    json_t *all =
        json_pack("{ss sI sI sf ss sI sI sI sf ss sI sf sf sI}", "method", given.method, "prompt-tokens",
                  (json_int_t)given.prompt_tokens, "rank", (json_int_t)given.rank, "alpha", alpha_given(), "targets",
                  given.targets, "batch", (json_int_t)given.batch, "accumulate", (json_int_t)given.accumulate, "seq",
                  (json_int_t)given.seq, "lr", o->lr, "schedule", given.schedule, "warmup", (json_int_t)given.warmup, "clip",
                  given.clip, "weight-decay", given.weight_decay, "seed", (json_int_t)given.seed);
    if (w->data || given.steps) json_object_set_new(all, "steps", json_integer(o->steps));
    if (w->data) json_object_set_new(all, "data", json_string(sn_hex(w->data->hash.bytes, SN_HASH_SIZE, hex)));
    return all;
}

/* A checkpoint is gone on from with the options that it began with. */
static sn_status check_options(const json_t *now, const json_t *then, sn_err *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)now, key, value) {
        json_t *was = json_object_get(then, key);
        if (was && json_equal(value, was)) continue;
        if (!strcmp(key, "data"))
            return sn_fail(err, SN_REFUSED, "--data holds other bytes than the checkpoint was trained with");
        char *old = was ? json_dumps(was, JSON_ENCODE_ANY) : NULL;
        sn_status status =
            sn_fail(err, SN_REFUSED, "--%s conflicts with the checkpoint, which has %.80s: give that, or begin anew",
                    key, old ? old : "none");
        free(old);
        return status;
    }
    return SN_OK;
}

/* -- opening */

static sn_status read_data(work *w, sn_err *err) {
    sn_method method;
    sn_status status = sn_method_parse(given.method, &method, err);
    if (status) return status;
    int most = w->setup.hp->n_ctx -
               (method == SN_METHOD_PROMPT || method == SN_METHOD_DEEP_PROMPT ? (int)given.prompt_tokens : 0);
    if (given.seq > most)
        return sn_fail(err, SN_REFUSED, "--seq %lld is more than the %d tokens that this model takes%s",
                       (long long)given.seq, most, most < w->setup.hp->n_ctx ? " beside the prompt" : "");
    sn_dataset_wish wish = {.longest = (int)given.seq, .labelled = method == SN_METHOD_HEAD};
    status = sn_dataset_read(given.data, w->setup.tokenizer, &wish, &w->data, err);
    wish.as = w->data;
    if (!status && given.eval_data) status = sn_dataset_read(given.eval_data, w->setup.tokenizer, &wish, &w->eval, err);
    if (!status && w->data->cut)
        fprintf(stderr, "swarm tune: %zu of %zu examples are longer than --seq %lld, their ends are left out\n",
                w->data->cut, w->data->n, (long long)given.seq);
    return status;
}

static sn_status open_trunk(work *w, sn_err *err) {
    sn_setup *s = &w->setup;
    if (sn_given.local.given && !sn_given.local.all && (sn_given.local.first || sn_given.local.end != s->hp->n_blocks))
        return sn_fail(err, SN_REFUSED, "training goes through nodes (--join), or through the whole model here (--local all)");
    if (sn_given.local.given) {
        int longest = (int)given.seq + (int)given.prompt_tokens;
        return sn_trunk_local(s->model, s->device, longest < s->hp->n_ctx ? longest : s->hp->n_ctx, &w->trunk, err);
    }
    if (sn_given.wire) return sn_fail(err, SN_REFUSED, "batches to train always travel as float32: leave out --wire");
    sn_status status = sn_setup_link(s, err);
    const sn_trunk_swarm_options options = {
        .link = s->link,
        .pick = {sn_given.only.items, sn_given.only.n, sn_given.deny.items, sn_given.deny.n},
        .timeout_ms = (int)sn_given.timeout_s * 1000,
        .max_retries = (int)sn_given.max_retries};
    return status ? status : sn_trunk_swarm(s->model, &options, &w->trunk, err);
}

static sn_status open_tuner(work *w, sn_err *err) {
    sn_params_shape shape;
    sn_params *params = NULL;
    sn_tuner_options options = {
        .batch = (int)given.batch, .accumulate = (int)given.accumulate, .threads = (int)sn_given.threads,
        .seed = (uint64_t)given.seed};
    sn_random_state random = {(uint64_t)given.seed};
    sn_status status = shape_given(w, &shape, err);
    if (!status) status = optimizer_given(w, &options.optimizer, err);
    if (!status) status = sn_params_new(w->setup.hp, &shape, &params, err);
    if (!status) status = sn_params_begin(params, w->setup.head, w->setup.hp->n_vocab, &random, err);
    if (status) {
        sn_params_free(&params);
        return status;
    }
    return sn_tuner_new(&options, w->setup.hp, w->setup.head, w->trunk, w->data, &params, &w->tuner, err);
}

/* Notes what decides the outcome and, with --resume, refuses another one than the checkpoint's, or a damaged one. Done before
 * the model is opened (`model` NULL) and, with all that is known then, before its blocks are loaded. */
static sn_status check_resume(work *w, const sn_hash *model, sn_err *err) {
    char path[4096];
    json_t *then = NULL;
    sn_optimizer_options o;
    sn_status status = optimizer_given(w, &o, err);
    if (status) return status;
    json_decref(w->options);
    w->options = options_given(w, &o);
    if (!w->options) return sn_fail(err, SN_STOP, "out of memory");
    if (!given.resume) return SN_OK;
    status = sn_checkpoint_find(given.resume, model, path, &then, err);
    if (!status) status = check_options(w->options, then, err);
    json_decref(then);
    return status;
}

static sn_status resume(work *w, sn_err *err) {
    char path[4096];
    json_t *then = NULL;
    if (!given.resume) return SN_OK;
    sn_status status = sn_checkpoint_find(given.resume, &w->model, path, &then, err);
    if (!status) status = sn_checkpoint_load(path, w->tuner, err);
    json_decref(then);
    if (!status) fprintf(stderr, "going on from step %lld\n", (long long)w->tuner->step);
    return status;
}

/* -- training */

/* "step 12/100 loss 2.3456 812 tok/s 0:41 left" */
static void show(const work *w, bool terminal, bool last) {
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
    fprintf(stderr, "%s[%s] step %lld/%lld  loss %.4f  %.0f tok/s  %d:%02d left%s", terminal ? "\r\033[K" : "", bar,
            (long long)t->step, (long long)steps, t->losses[t->step - 1], seconds > 0 ? (double)(t->tokens - w->first_tokens) / seconds : 0,
            left / 60, left % 60, terminal && !last ? "" : "\n");
    fflush(stderr);
}

static sn_status save(work *w, sn_err *err) {
    const char *folder = given.resume ? given.resume : given.out;
    sn_status status = sn_checkpoint_save(folder, w->tuner, &w->model, &w->weights, w->data->labels, w->options, err);
    return status ? status : sn_curve_write(folder, w->tuner->losses, (size_t)w->tuner->step, err);
}

static sn_status train(work *w, sn_err *err) {
    sn_tuner *t = w->tuner;
    bool terminal = isatty(STDERR_FILENO);
    sn_status status = SN_OK;
    w->began_us = sn_now_us();
    w->first_step = t->step;
    w->first_tokens = t->tokens;
    while (t->step < t->options.optimizer.steps && !status && !sn_interrupted) {
        status = sn_tuner_step(t, err);
        bool last = status || t->step == t->options.optimizer.steps || sn_interrupted;
        if (!status) show(w, terminal, last);
        if (!status && given.save_every && t->step % given.save_every == 0 && !last) status = save(w, err);
    }
    if (!status) status = save(w, err); /* interrupted, too: it can be resumed */
    return status ? status : sn_interrupted ? sn_fail(err, SN_RETRY, "interrupted: go on with --resume") : SN_OK;
}

static sn_status evaluate(work *w, double *loss, double *right, sn_err *err) {
    if (!w->eval) return SN_OK;
    sn_progress_shown *shown = sn_progress_begin("evaluating");
    sn_status status = sn_tuner_evaluate(w->tuner, w->eval, loss, right, err);
    sn_progress_end(&shown);
    return status;
}

static sn_status report(const work *w, sn_err *err) {
    const sn_tuner *t = w->tuner;
    const char *folder = given.resume ? given.resume : given.out;
    double seconds = (double)(sn_now_us() - w->began_us) / 1e6, loss = t->step ? t->losses[t->step - 1] : 0;
    bool classifier = t->params->shape.method == SN_METHOD_HEAD;
    if (sn_given.json) {
        json_t *object = json_pack("{ss sI sf sf sf sI}", "out", folder, "steps", (json_int_t)t->step, "loss", loss,
                                   "seconds", seconds, "tok_s", seconds > 0 ? (double)(t->tokens - w->first_tokens) / seconds : 0,
                                   "parameters", (json_int_t)t->params->n_floats);
        if (w->eval)
            json_object_update_new(object, json_pack("{sf sf}", "eval_loss_before", w->before, "eval_loss", w->after));
        if (w->eval && classifier)
            json_object_update_new(
                object, json_pack("{sf sf}", "eval_right_before", w->right_before, "eval_right", w->right_after));
        return sn_print_json(object, err);
    }
    printf("%lld steps, %zu parameters, %.1f s: loss %.4f\n", (long long)t->step, t->params->n_floats, seconds, loss);
    if (w->eval) printf("evaluation: loss %.4f before, %.4f after\n", w->before, w->after);
    if (w->eval && classifier)
        printf("evaluation: %.1f %% right before, %.1f %% after\n", 100 * w->right_before, 100 * w->right_after);
    printf("what was trained is in %s\n", folder);
    return SN_OK;
}

static sn_status tune(work *w, sn_err *err) {
    sn_hash of[2];
    sn_status status = check_resume(w, NULL, err);
    if (!status) status = sn_setup_open(&w->setup, true, err);
    if (!status) status = sn_weights_id(w->setup.model, &w->weights, err);
    if (status) return status;
    of[0] = sn_model_id(w->setup.model), of[1] = w->weights;
    w->model = sn_hash_of(of, sizeof of);
    status = read_data(w, err);
    if (!status) status = check_resume(w, &w->model, err);
    if (!status) status = open_trunk(w, err);
    if (!status) status = open_tuner(w, err);
    if (!status) status = evaluate(w, &w->before, &w->right_before, err);
    if (!status) status = resume(w, err);
    if (!status) status = train(w, err);
    if (!status)
        status = sn_adapter_save(given.resume ? given.resume : given.out, w->tuner->params, w->setup.hp,
                                 w->data->labels, err);
    if (!status) status = sn_peft_mark(given.resume ? given.resume : given.out, &w->weights, w->setup.hp->name, err);
    if (!status) status = evaluate(w, &w->after, &w->right_after, err);
    return status ? status : report(w, err);
}

static sn_status body(const sn_options *options, int *code, sn_err *err) {
    (void)options, (void)code;
    work w = {0};
    if (!given.out) given.out = "swarm-tuned";
    if (!given.resume && mkdir(given.out, 0777) && errno != EEXIST)
        return sn_fail(err, SN_REFUSED, "--out %s cannot be made: %s", given.out, strerror(errno));
    sn_catch_interrupts();
    sn_status status = tune(&w, err);
    sn_tuner_free(&w.tuner);
    sn_trunk_free(&w.trunk);
    sn_dataset_free(&w.data);
    sn_dataset_free(&w.eval);
    json_decref(w.options);
    sn_setup_close(&w.setup);
    return status;
}

#define COUNT(table) (sizeof(table) / sizeof *(table))
int sn_cmd_tune(int argc, char **argv) {
    const sn_option_group groups[] = {sn_group_model,
                                      {"Data:", data_options, COUNT(data_options)},
                                      {"What is trained:", method_options, COUNT(method_options)},
                                      {"Training:", training_options, COUNT(training_options)},
                                      {"Output:", out_options, COUNT(out_options)},
                                      sn_group_chain,
                                      sn_group_device,
                                      sn_group_log};
    const sn_command command = {
        .program = "swarm tune",
        .synopsis =
            "--model PATH (--join ADDRESS... | --local all) --data FILE [--method lora] [--steps N] [--out FOLDER]",
        .about = "Trains a prompt, deep prompts, low-rank adapters or a classifier to go with the model, whose own "
                 "weights stay as they "
                 "are, on the nodes that hold them. The same options give the same result, bit for bit, over any cut "
                 "of the swarm, "
                 "also when it is interrupted and resumed.",
        .groups = groups,
        .n_groups = COUNT(groups),
        .epilogue = SN_EXIT_CODES};
    return sn_cmd_run(&command, argc, argv, body);
}
