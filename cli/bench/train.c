/* The measurement of training steps: random examples of one length, one sequence in a micro-batch, so that all nodes
 * work concurrently. */
#include "cli/bench/bench.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "client/tune/tuner.h"

#include <stdlib.h>

enum { RANK = 8, LABELS = 2 };

typedef struct training {
    sn_device *device;
    sn_lm_head *lm_head;
    sn_link *link;
    sn_backbone *backbone;
    sn_dataset data;
    sn_tuner *tuner;
} training;

static sn_status make_examples(training *t, const sn_bench_plan *p, size_t n, bool labelled, sn_err *err) {
    uint64_t rng = 0x5eed;
    size_t length = (size_t)p->prompt_tokens;
    sn_status status = sn_calloc(&t->data.at, n, sizeof *t->data.at, err);
    for (; t->data.n < n && !status; t->data.n++) {
        sn_example *e = &t->data.at[t->data.n];
        *e = (sn_example){.n = length, .n_loss_tokens = length, .label = labelled ? (int)(t->data.n % LABELS) : -1};
        status = sn_calloc(&e->ids, length, sizeof *e->ids, err);
        if (!status) status = sn_calloc(&e->loss_mask, length, 1, err);
        for (size_t i = 0; i < length && !status; i++) {
            e->ids[i] = (int32_t)(sn_rng_uniform(&rng) * p->hp->n_vocab);
            e->loss_mask[i] = 1;
        }
    }
    return status;
}

static sn_status open_backbone(training *t, const sn_bench_plan *p, const sn_bench_case *c, sn_bench_nodes *nodes,
                               sn_err *err) {
    if (p->local) {
        const sn_backbone_local_options local = {.device = t->device};
        return sn_backbone_local(p->model, &local, &t->backbone, err);
    }
    sn_status status = sn_bench_link(p, c, nodes, &t->link, err);
    const sn_backbone_swarm_options options = {.link = t->link, .timeout_ms = p->timeout_ms};
    return status ? status : sn_backbone_swarm(p->model, &options, &t->backbone, err);
}

static sn_status open_tuner(training *t, const sn_bench_plan *p, const sn_bench_case *c, sn_err *err) {
    sn_params_shape shape = {
        .prompt_tokens = SN_BENCH_VIRTUAL_TOKENS, .rank = RANK, .alpha = 2 * RANK, .n_labels = LABELS};
    const sn_tuner_options options = {.batch = 1,
                                      .threads = c->threads,
                                      .accumulate = c->sessions,
                                      .optimizer = {.lr = 1e-3, .clip = 1, .steps = p->repeat + p->warmup + 1}};
    uint64_t rng = 1;
    sn_params *params = NULL;
    int method = SN_METHOD_LORA;
    (void)sn_word_value(sn_method_words, c->train, &method); /* --train has only these words */
    shape.method = (sn_method)method;
    sn_status status = sn_targets_parse("q,v", shape.target, err);
    if (!status) status = make_examples(t, p, (size_t)c->sessions, shape.method == SN_METHOD_HEAD, err);
    if (!status) status = sn_params_new(p->hp, &shape, &params, err);
    if (!status) status = sn_params_init_values(params, t->lm_head, p->hp->n_vocab, &rng, err);
    if (!status) return sn_tuner_new(&options, p->hp, t->lm_head, t->backbone, &t->data, &params, &t->tuner, err);
    sn_params_free(&params);
    return status;
}

static void close_training(training *t) {
    sn_tuner_free(&t->tuner);
    sn_backbone_free(&t->backbone);
    sn_link_close(&t->link);
    sn_lm_head_free(&t->lm_head);
    sn_device_close(&t->device);
    for (size_t i = 0; i < t->data.n; i++) {
        free(t->data.at[i].ids);
        free(t->data.at[i].loss_mask);
    }
    free(t->data.at);
}

/* Tokens per second count the tokens of the examples, without virtual tokens. */
static sn_status measure_steps(training *t, const sn_bench_plan *p, const sn_bench_case *c, double *results,
                               sn_progress_bar *bar, sn_err *err) {
    for (int i = -p->warmup; i < p->repeat; i++) {
        sn_progress_bar_set(bar, (size_t)(i + p->warmup), (size_t)(p->repeat + p->warmup));
        if (sn_interrupted) return sn_fail(err, SN_RETRY, "interrupted");
        int64_t began_us = sn_now_us();
        sn_status status = sn_tuner_step(t->tuner, err);
        if (status) return status;
        double seconds = (double)(sn_now_us() - began_us) / 1e6;
        if (i >= 0) results[i] = (double)c->sessions * p->prompt_tokens / seconds;
    }
    return SN_OK;
}

sn_status sn_bench_train(const sn_bench_plan *plan, const sn_bench_case *c, sn_bench_nodes *nodes, sn_bench_row *row,
                         sn_progress_bar *bar, sn_err *err) {
    training t = {0};
    double *results = NULL;
    *row = (sn_bench_row){.config = *c};
    sn_status status = sn_calloc(&results, (size_t)plan->repeat, sizeof *results, err);
    if (!status) status = sn_bench_device(plan, c, &t.device, err);
    if (!status) status = sn_lm_head_load(plan->model, t.device, &t.lm_head, err);
    if (!status) status = open_backbone(&t, plan, c, nodes, err);
    if (!status) status = open_tuner(&t, plan, c, err);
    if (!status) status = measure_steps(&t, plan, c, results, bar, err);
    if (!status) row->train_tok_s = sn_bench_spread_of(results, (size_t)plan->repeat);
    close_training(&t);
    free(results);
    return status;
}
