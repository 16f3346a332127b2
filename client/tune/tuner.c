/* How it works. A step collects its examples into a batch: virtual tokens and embeddings of all examples in one array
 * x, divided into micro-batches that are views of x. The backbone runs them forward, calls batch_loss at the last block
 * and runs them backward into dx (gradients of x) and grads (gradients of the blocks' parameters, for each sequence).
 * Then the gradients are summed, clipped and applied by AdamW.
 *
 * The bits must not depend on the grouping into micro-batches or on the order in which nodes reply. Therefore gradients
 * and losses are kept for each sequence, and all sums are computed afterwards, in the order of the examples. A
 * classifier needs no backward pass through the blocks, but its gradients are such sums too: batch_loss only stores the
 * hidden states (in dx, which is otherwise unused), and batch_finish_classifier computes the losses in order.
 *
 * A failed step restores the data position, so the next step uses the same examples. */
#include "client/tune/tuner.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

sn_status sn_tuner_new(const sn_tuner_options *options, const sn_hparams *hp, sn_lm_head *head, sn_backbone *backbone,
                       const sn_dataset *data, sn_params **params, sn_tuner **out, sn_err *err) {
    sn_tuner *t = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&t, 1, sizeof *t, err);
    if (status) {
        sn_params_free(params);
        return status;
    }
    *t = (sn_tuner){.options = *options, .hp = hp, .head = head, .backbone = backbone, .data = data, .params = *params};
    *params = NULL;
    size_t n = t->params->n_floats;
    status = sn_calloc(&t->exp_avg, n, sizeof(float), err);
    if (!status) status = sn_calloc(&t->exp_avg_sq, n, sizeof(float), err);
    if (!status) status = sn_calloc(&t->gradients, n, sizeof(float), err);
    if (!status) status = sn_calloc(&t->order, data->n, sizeof *t->order, err);
    if (!status) status = sn_loss_open(&t->loss, head, hp, t->params, options->threads, err);
    if (!status) sn_dataset_order(data, options->seed, 0, t->order);
    if (status) sn_tuner_free(&t);
    *out = t;
    return status;
}

void sn_tuner_free(sn_tuner **tuner) {
    sn_tuner *t = *tuner;
    if (!t) return;
    sn_loss_close(&t->loss);
    sn_params_free(&t->params);
    free(t->exp_avg);
    free(t->exp_avg_sq);
    free(t->gradients);
    free(t->order);
    free(t->losses);
    free(t);
    *tuner = NULL;
}

/* -- a batch: the examples of a step, divided into micro-batches */

typedef struct batch {
    sn_tuner *tuner;
    size_t n, per_micro_batch, n_micro_batches, rows, floats; /* floats: parameters of the blocks */
    const sn_example **examples;
    int *lengths;
    float *x, *dx, *grads;
    sn_micro_batch *micro_batches;
    double *sums; /* (n): sum of each example's losses */
    bool *correct;
} batch;

static void batch_close(batch *b) {
    free(b->examples);
    free(b->lengths);
    free(b->x);
    free(b->dx);
    free(b->grads);
    free(b->micro_batches);
    free(b->sums);
    free(b->correct);
}

/* Fills x: for each example, the virtual tokens and then the embeddings of its tokens. */
static sn_status batch_embed(batch *b, sn_err *err) {
    const float *prompt;
    size_t embd = (size_t)b->tuner->hp->n_embd, before = (size_t)sn_params_prompt(b->tuner->params, &prompt);
    float *at = b->x;
    for (size_t i = 0; i < b->n; at += (size_t)b->lengths[i++] * embd) {
        if (before) memcpy(at, prompt, before * embd * sizeof *at);
        sn_status status =
            sn_lm_head_embed(b->tuner->head, b->examples[i]->ids, (int)b->examples[i]->n, at + before * embd, err);
        if (status) return status;
    }
    return SN_OK;
}

static void batch_divide(batch *b) {
    size_t embd = (size_t)b->tuner->hp->n_embd, row = 0;
    for (size_t m = 0; m < b->n_micro_batches; m++) {
        size_t first = m * b->per_micro_batch, n = sn_min_size(b->per_micro_batch, b->n - first);
        sn_micro_batch *micro_batch = &b->micro_batches[m];
        *micro_batch = (sn_micro_batch){.n_sequences = (int)n,
                                        .lengths = b->lengths + first,
                                        .x = b->x + row * embd,
                                        .dx = b->dx + row * embd,
                                        .grads = b->floats ? b->grads + first * b->floats : NULL};
        for (size_t i = 0; i < n; i++) micro_batch->rows += b->lengths[first + i];
        row += (size_t)micro_batch->rows;
    }
}

/* The weight of one token's loss (of one label's, for a classifier): 1 / their number in the batch. The first token
 * counts only if virtual tokens precede it, because without a row before it nothing predicts it. */
static double batch_token_weight(const batch *b) {
    size_t n_loss_tokens = 0;
    const float *prompt;
    bool first_counts = sn_params_prompt(b->tuner->params, &prompt) > 0;
    for (size_t i = 0; i < b->n; i++) {
        const sn_example *e = b->examples[i];
        n_loss_tokens += e->label >= 0 ? 1 : e->n_loss_tokens - (!first_counts && e->loss_mask[0]);
    }
    return n_loss_tokens ? 1 / (double)n_loss_tokens : 0;
}

/* Allocates and fills a batch. examples[0, n) must be set. */
static sn_status batch_open(batch *b, sn_tuner *t, size_t n, size_t per_micro_batch, sn_err *err) {
    const float *prompt;
    size_t embd = (size_t)t->hp->n_embd, before = (size_t)sn_params_prompt(t->params, &prompt), at;
    sn_params_block_range(t->params, 0, t->params->n_blocks, &at, &b->floats);
    b->tuner = t;
    b->n = n;
    b->per_micro_batch = per_micro_batch;
    b->n_micro_batches = (n + per_micro_batch - 1) / per_micro_batch;
    sn_status status = sn_calloc(&b->lengths, n, sizeof *b->lengths, err);
    for (size_t i = 0; i < n && !status; i++) {
        b->lengths[i] = (int)(before + b->examples[i]->n);
        b->rows += (size_t)b->lengths[i];
    }
    if (!status) status = sn_calloc(&b->x, b->rows * embd, sizeof(float), err);
    if (!status) status = sn_calloc(&b->dx, b->rows * embd, sizeof(float), err);
    if (!status) status = sn_calloc(&b->grads, n * b->floats, sizeof(float), err);
    if (!status) status = sn_calloc(&b->micro_batches, b->n_micro_batches, sizeof *b->micro_batches, err);
    if (!status) status = sn_calloc(&b->sums, n, sizeof *b->sums, err);
    if (!status) status = sn_calloc(&b->correct, n, sizeof *b->correct, err);
    if (!status) status = batch_embed(b, err);
    if (!status) batch_divide(b);
    t->loss.weight = batch_token_weight(b);
    return status;
}

/* Loss callback. For a classifier it only stores the hidden states; batch_finish_classifier computes the losses. */
static sn_status batch_loss(void *ctx, size_t micro_batch, const float *out, float *dout, sn_err *err) {
    batch *b = ctx;
    size_t first = micro_batch * b->per_micro_batch, embd = (size_t)b->tuner->hp->n_embd, row = 0;
    if (b->tuner->params->shape.method == SN_METHOD_HEAD) {
        memcpy(b->micro_batches[micro_batch].dx, out, (size_t)b->micro_batches[micro_batch].rows * embd * sizeof *out);
        return SN_OK;
    }
    for (int s = 0; s < b->micro_batches[micro_batch].n_sequences; s++) {
        size_t i = first + (size_t)s;
        sn_status status = sn_loss_compute(&b->tuner->loss, b->examples[i], out + row * embd,
                                           dout ? dout + row * embd : NULL, &b->sums[i], &b->correct[i], err);
        if (status) return status;
        row += (size_t)b->lengths[i];
    }
    return SN_OK;
}

static sn_status batch_finish_classifier(batch *b, sn_err *err) {
    size_t embd = (size_t)b->tuner->hp->n_embd, row = 0;
    sn_status status = SN_OK;
    if (b->tuner->params->shape.method != SN_METHOD_HEAD) return SN_OK;
    for (size_t i = 0; i < b->n && !status; row += (size_t)b->lengths[i++])
        status = sn_loss_compute(&b->tuner->loss, b->examples[i], b->dx + row * embd, NULL, &b->sums[i], &b->correct[i],
                                 err);
    return status;
}

/* The mean loss; the sums are added in the order of the examples. */
static double batch_mean_loss(const batch *b) {
    double sum = 0;
    for (size_t i = 0; i < b->n; i++) sum += b->sums[i];
    return sum * b->tuner->loss.weight;
}

/* -- a step */

/* Returns the next example. After the last example of an epoch, the next epoch begins. */
static const sn_example *tuner_next_example(sn_tuner *t) {
    if (t->position == t->data->n) {
        t->position = 0;
        sn_dataset_order(t->data, t->options.seed, ++t->epoch, t->order);
    }
    return &t->data->at[t->order[t->position++]];
}

/* Sums the gradients over the sequences, in their order. */
static void tuner_sum_gradients(batch *b) {
    sn_tuner *t = b->tuner;
    const float *prompt;
    size_t embd = (size_t)t->hp->n_embd, before = (size_t)sn_params_prompt(t->params, &prompt), row = 0, at, n;
    for (size_t i = 0; i < b->n; row += (size_t)b->lengths[i++])
        for (size_t k = 0; k < before * embd; k++) t->gradients[k] += b->dx[row * embd + k];
    sn_params_block_range(t->params, 0, t->params->n_blocks, &at, &n);
    sn_params_sum_gradients(t->params, 0, t->params->n_blocks, b->n, b->grads, t->gradients + at);
}

static sn_status tuner_note_loss(sn_tuner *t, double loss, sn_err *err) {
    SN_TRY(sn_grow(&t->losses, &t->losses_capacity, (size_t)t->step + 1, sizeof *t->losses, err));
    t->losses[t->step] = loss;
    return SN_OK;
}

static sn_status tuner_compute_step(sn_tuner *t, batch *b, double *loss, sn_err *err) {
    bool classifier = t->params->shape.method == SN_METHOD_HEAD;
    memset(t->gradients, 0, t->params->n_floats * sizeof *t->gradients);
    t->loss.score_grads = classifier ? t->gradients : NULL;
    sn_status status = t->backbone->ops->set(t->backbone, t->params, err);
    if (!status)
        status =
            t->backbone->ops->run(t->backbone, b->n_micro_batches, b->micro_batches, !classifier, batch_loss, b, err);
    if (!status) status = batch_finish_classifier(b, err);
    if (status) return status;
    if (!classifier) tuner_sum_gradients(b);
    *loss = batch_mean_loss(b);
    return SN_OK;
}

sn_status sn_tuner_step(sn_tuner *t, sn_err *err) {
    batch b = {0};
    size_t n = (size_t)t->options.batch * (size_t)t->options.accumulate, position = t->position;
    uint64_t epoch = t->epoch;
    double loss = 0;
    sn_status status = sn_calloc(&b.examples, n, sizeof *b.examples, err);
    for (size_t i = 0; i < n && !status; i++) b.examples[i] = tuner_next_example(t);
    if (!status) status = batch_open(&b, t, n, (size_t)t->options.batch, err);
    if (!status) status = tuner_compute_step(t, &b, &loss, err);
    if (!status) status = tuner_note_loss(t, loss, err);
    if (status) { /* the next step uses the same examples */
        t->position = position;
        if (t->epoch != epoch) sn_dataset_order(t->data, t->options.seed, t->epoch = epoch, t->order);
    } else {
        t->norm = sn_clip_grad_norm(t->gradients, t->params->n_floats, t->options.optimizer.clip);
        sn_adamw_step(&t->options.optimizer, t->step, t->params->n_floats, t->params->values, t->gradients, t->exp_avg,
                      t->exp_avg_sq);
        t->step++;
        t->tokens += b.rows;
    }
    batch_close(&b);
    return status;
}

sn_status sn_tuner_evaluate(sn_tuner *t, const sn_dataset *data, double *loss, double *correct, sn_err *err) {
    double sum = 0, weight = 0, n_correct = 0;
    sn_status status = t->backbone->ops->set(t->backbone, t->params, err);
    size_t chunk = (size_t)t->options.batch * 4;
    for (size_t at = 0; at < data->n && !status; at += chunk) {
        batch b = {0};
        size_t n = sn_min_size(chunk, data->n - at);
        status = sn_calloc(&b.examples, n, sizeof *b.examples, err);
        for (size_t i = 0; i < n && !status; i++) b.examples[i] = &data->at[at + i];
        if (!status) status = batch_open(&b, t, n, (size_t)t->options.batch, err);
        if (!status)
            status = t->backbone->ops->run(t->backbone, b.n_micro_batches, b.micro_batches, false, batch_loss, &b, err);
        if (!status) status = batch_finish_classifier(&b, err);
        for (size_t i = 0; i < n && !status; i++) sum += b.sums[i], n_correct += b.correct[i];
        if (!status && t->loss.weight > 0) weight += 1 / t->loss.weight;
        batch_close(&b);
    }
    *loss = weight > 0 ? sum / weight : 0;
    if (correct) *correct = n_correct / (double)data->n;
    return status;
}
