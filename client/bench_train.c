/* Steps of training measured: random examples of one length, one sequence a micro-batch, so that all nodes work. */
#include "client/bench.h"

#include "base/clock.h"
#include "base/mem.h"
#include "client/tune/tuner.h"

#include <stdlib.h>

enum { RANK = 8, LABELS = 2 }; /* as `swarm tune` has them by itself */

typedef struct training {
    sn_device *device;
    sn_head *head;
    sn_link *link;
    sn_trunk *trunk;
    sn_dataset data;
    sn_tuner *tuner;
} training;

static sn_status make_data(training *t, const sn_bench_plan *p, size_t n, bool labelled, sn_err *err) {
    sn_random_state chance = {0x5eed};
    size_t length = (size_t)p->prompt_tokens;
    sn_status status = sn_calloc(&t->data.at, n, sizeof *t->data.at, err);
    for (; t->data.n < n && !status; t->data.n++) {
        sn_example *e = &t->data.at[t->data.n];
        *e = (sn_example){.n = length, .n_learned = length, .label = labelled ? (int)(t->data.n % LABELS) : -1};
        status = sn_calloc(&e->ids, length, sizeof *e->ids, err);
        if (!status) status = sn_calloc(&e->learned, length, 1, err);
        for (size_t i = 0; i < length && !status; i++) {
            e->ids[i] = (int32_t)(sn_random_uniform(&chance) * p->hp->n_vocab);
            e->learned[i] = 1;
        }
    }
    return status;
}

static sn_status open_trunk(training *t, const sn_bench_plan *p, const sn_bench_case *c, sn_bench_nodes *nodes,
                            sn_err *err) {
    if (p->local) {
        int longest = p->prompt_tokens + SN_BENCH_VIRTUAL_TOKENS;
        return sn_trunk_local(p->model, t->device, longest < p->hp->n_ctx ? longest : p->hp->n_ctx, &t->trunk, err);
    }
    sn_status status = sn_bench_link(p, c, nodes, &t->link, err);
    const sn_trunk_swarm_options options = {.link = t->link, .timeout_ms = p->timeout_ms};
    return status ? status : sn_trunk_swarm(p->model, &options, &t->trunk, err);
}

static sn_status open_tuner(training *t, const sn_bench_plan *p, const sn_bench_case *c, sn_err *err) {
    sn_params_shape shape = {.prompt_tokens = SN_BENCH_VIRTUAL_TOKENS, .rank = RANK, .alpha = 2 * RANK, .n_labels = LABELS};
    const sn_tuner_options options = {.batch = 1,
                                      .threads = c->threads,
                                      .accumulate = c->sessions,
                                      .optimizer = {.lr = 1e-3, .clip = 1, .steps = p->repeat + p->warmup + 1}};
    sn_random_state random = {1};
    sn_params *params = NULL;
    sn_status status = sn_method_parse(c->train, &shape.method, err);
    if (!status) status = sn_targets_parse("q,v", shape.target, err);
    if (!status) status = make_data(t, p, (size_t)c->sessions, shape.method == SN_METHOD_HEAD, err);
    if (!status) status = sn_params_new(p->hp, &shape, &params, err);
    if (!status) status = sn_params_begin(params, t->head, p->hp->n_vocab, &random, err);
    if (!status) return sn_tuner_new(&options, p->hp, t->head, t->trunk, &t->data, &params, &t->tuner, err);
    sn_params_free(&params);
    return status;
}

static void close_training(training *t) {
    sn_tuner_free(&t->tuner);
    sn_trunk_free(&t->trunk);
    sn_link_close(&t->link);
    sn_head_free(&t->head);
    sn_device_close(&t->device);
    for (size_t i = 0; i < t->data.n; i++) {
        free(t->data.at[i].ids);
        free(t->data.at[i].learned);
    }
    free(t->data.at);
}

/* Tokens of the texts alone: virtual ones are work, too, but nobody's text. */
static sn_status measure(training *t, const sn_bench_plan *p, const sn_bench_case *c, double *figures,
                         sn_progress_shown *shown, sn_err *err) {
    for (int i = -p->warmup; i < p->repeat; i++) {
        sn_progress_set(shown, (size_t)(i + p->warmup), (size_t)(p->repeat + p->warmup));
        if (sn_interrupted) return sn_fail(err, SN_RETRY, "interrupted");
        int64_t began_us = sn_now_us();
        sn_status status = sn_tuner_step(t->tuner, err);
        if (status) return status;
        double seconds = (double)(sn_now_us() - began_us) / 1e6;
        if (i >= 0) figures[i] = (double)c->sessions * p->prompt_tokens / seconds;
    }
    return SN_OK;
}

sn_status sn_bench_train(const sn_bench_plan *plan, const sn_bench_case *c, sn_bench_nodes *nodes, sn_bench_row *row,
                         sn_progress_shown *shown, sn_err *err) {
    training t = {0};
    double *figures = NULL;
    const sn_device_options options = {.threads = c->threads, .isa = sn_given.isa};
    *row = (sn_bench_row){.of = *c};
    sn_status status = sn_calloc(&figures, (size_t)plan->repeat, sizeof *figures, err);
    if (!status) status = sn_device_open((sn_device_id){0}, &options, &t.device, err);
    if (!status) status = sn_head_load(plan->model, t.device, &t.head, err);
    if (!status) status = open_trunk(&t, plan, c, nodes, err);
    if (!status) status = open_tuner(&t, plan, c, err);
    if (!status) status = measure(&t, plan, c, figures, shown, err);
    if (!status) row->train_tok_s = sn_bench_spread_of(figures, (size_t)plan->repeat);
    close_training(&t);
    free(figures);
    return status;
}
