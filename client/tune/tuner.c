#include "client/tune/tuner.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

sn_status sn_tuner_new(const sn_tuner_options *options, const sn_hparams *hp, sn_head *head, sn_trunk *trunk,
                       const sn_dataset *data, sn_params **params, sn_tuner **out, sn_err *err) {
    sn_tuner *t = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&t, 1, sizeof *t, err);
    if (status) {
        sn_params_free(params);
        return status;
    }
    *t = (sn_tuner){.options = *options, .hp = hp, .head = head, .trunk = trunk, .data = data, .params = *params};
    *params = NULL;
    size_t n = t->params->n_floats;
    status = sn_calloc(&t->first, n, sizeof(float), err);
    if (!status) status = sn_calloc(&t->second, n, sizeof(float), err);
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
    free(t->first);
    free(t->second);
    free(t->gradients);
    free(t->order);
    free(t->losses);
    free(t);
    *tuner = NULL;
}

/* -- a batch: examples in micro-batches, from embeddings to loss and back */

typedef struct batch {
    sn_tuner *tuner;
    size_t n, per_micro, n_micros, rows, floats; /* floats: of the blocks, for each sequence */
    const sn_example **examples;
    int *lengths;
    float *x, *dx, *grads;
    sn_micro *micros;
    double *sums; /* for each example */
    bool *right;
} batch;

static void close_batch(batch *b) {
    free(b->examples);
    free(b->lengths);
    free(b->x);
    free(b->dx);
    free(b->grads);
    free(b->micros);
    free(b->sums);
    free(b->right);
}

/* Virtual tokens, then embeddings. */
static sn_status embed(batch *b, sn_err *err) {
    const float *prompt;
    size_t embd = (size_t)b->tuner->hp->n_embd, before = (size_t)sn_params_prompt(b->tuner->params, &prompt);
    float *at = b->x;
    for (size_t i = 0; i < b->n; at += (size_t)b->lengths[i++] * embd) {
        if (before) memcpy(at, prompt, before * embd * sizeof *at);
        sn_status status =
            sn_head_embed(b->tuner->head, b->examples[i]->ids, (int)b->examples[i]->n, at + before * embd, err);
        if (status) return status;
    }
    return SN_OK;
}

static void divide(batch *b) {
    size_t embd = (size_t)b->tuner->hp->n_embd, row = 0;
    for (size_t m = 0; m < b->n_micros; m++) {
        size_t first = m * b->per_micro, n = sn_min_size(b->per_micro, b->n - first);
        sn_micro *micro = &b->micros[m];
        *micro = (sn_micro){.n_sequences = (int)n,
                            .lengths = b->lengths + first,
                            .x = b->x + row * embd,
                            .dx = b->dx + row * embd,
                            .grads = b->floats ? b->grads + first * b->floats : NULL};
        for (size_t i = 0; i < n; i++) micro->rows += b->lengths[first + i];
        row += (size_t)micro->rows;
    }
}

/* What every example counts: so much for each of its learned tokens, or its label. */
static double weight_of(const batch *b) {
    size_t learned = 0;
    const float *prompt;
    bool first_counts = sn_params_prompt(b->tuner->params, &prompt) > 0;
    for (size_t i = 0; i < b->n; i++) {
        const sn_example *e = b->examples[i];
        learned += e->label >= 0 ? 1 : e->n_learned - (!first_counts && e->learned[0]);
    }
    return learned ? 1 / (double)learned : 0;
}

/* examples[0, n) must be set. */
static sn_status open_batch(batch *b, sn_tuner *t, size_t n, size_t per_micro, sn_err *err) {
    const float *prompt;
    size_t embd = (size_t)t->hp->n_embd, before = (size_t)sn_params_prompt(t->params, &prompt), at;
    sn_params_of_blocks(t->params, 0, t->params->n_blocks, &at, &b->floats);
    b->tuner = t;
    b->n = n;
    b->per_micro = per_micro;
    b->n_micros = (n + per_micro - 1) / per_micro;
    sn_status status = sn_calloc(&b->lengths, n, sizeof *b->lengths, err);
    for (size_t i = 0; i < n && !status; i++) {
        b->lengths[i] = (int)(before + b->examples[i]->n);
        b->rows += (size_t)b->lengths[i];
    }
    if (!status) status = sn_calloc(&b->x, b->rows * embd, sizeof(float), err);
    if (!status) status = sn_calloc(&b->dx, b->rows * embd, sizeof(float), err);
    if (!status) status = sn_calloc(&b->grads, n * b->floats, sizeof(float), err);
    if (!status) status = sn_calloc(&b->micros, b->n_micros, sizeof *b->micros, err);
    if (!status) status = sn_calloc(&b->sums, n, sizeof *b->sums, err);
    if (!status) status = sn_calloc(&b->right, n, sizeof *b->right, err);
    if (!status) status = embed(b, err);
    if (!status) divide(b);
    t->loss.weight = weight_of(b);
    return status;
}

/* A classifier's gradients are sums over examples: they wait until all are there, for their order (finish). */
static sn_status turn(void *ctx, size_t micro, const float *out, float *dout, sn_err *err) {
    batch *b = ctx;
    size_t first = micro * b->per_micro, embd = (size_t)b->tuner->hp->n_embd, row = 0;
    if (b->tuner->params->shape.method == SN_METHOD_HEAD) {
        memcpy(b->micros[micro].dx, out, (size_t)b->micros[micro].rows * embd * sizeof *out);
        return SN_OK;
    }
    for (int s = 0; s < b->micros[micro].n_sequences; s++) {
        size_t i = first + (size_t)s;
        sn_status status = sn_loss_of(&b->tuner->loss, b->examples[i], out + row * embd, dout ? dout + row * embd : NULL,
                                      &b->sums[i], &b->right[i], err);
        if (status) return status;
        row += (size_t)b->lengths[i];
    }
    return SN_OK;
}

static sn_status finish(batch *b, sn_err *err) {
    size_t embd = (size_t)b->tuner->hp->n_embd, row = 0;
    sn_status status = SN_OK;
    if (b->tuner->params->shape.method != SN_METHOD_HEAD) return SN_OK;
    for (size_t i = 0; i < b->n && !status; row += (size_t)b->lengths[i++])
        status = sn_loss_of(&b->tuner->loss, b->examples[i], b->dx + row * embd, NULL, &b->sums[i], &b->right[i], err);
    return status;
}

/* The mean loss, its sums added in the order of the examples. */
static double mean_loss(const batch *b) {
    double sum = 0;
    for (size_t i = 0; i < b->n; i++) sum += b->sums[i];
    return sum * b->tuner->loss.weight;
}

/* -- a step */

/* The next example; the next epoch begins where one ends. */
static const sn_example *draw(sn_tuner *t) {
    if (t->position == t->data->n) {
        t->position = 0;
        sn_dataset_order(t->data, t->options.seed, ++t->epoch, t->order);
    }
    return &t->data->at[t->order[t->position++]];
}

/* Sums over the sequences, in their order; what a node was sent scaled counts scaled. */
static void add_up(batch *b) {
    sn_tuner *t = b->tuner;
    const float *prompt;
    size_t embd = (size_t)t->hp->n_embd, before = (size_t)sn_params_prompt(t->params, &prompt), row = 0, at, n;
    sn_params_of_blocks(t->params, 0, t->params->n_blocks, &at, &n);
    for (size_t i = 0; i < b->n; row += (size_t)b->lengths[i++]) {
        for (size_t k = 0; k < before * embd; k++) t->gradients[k] += b->dx[row * embd + k];
        for (size_t k = 0; k < n; k++) t->gradients[at + k] += b->grads[i * b->floats + k];
    }
    for (size_t i = 0; i < t->params->n; i++) {
        const sn_param *p = &t->params->list[i];
        for (size_t k = 0; p->b && k < p->rows * p->cols; k++) t->gradients[p->at + k] *= sn_param_scale(t->params, p);
    }
}

static sn_status note_loss(sn_tuner *t, double loss, sn_err *err) {
    if ((size_t)t->step >= t->losses_room) {
        size_t room = t->losses_room ? 2 * t->losses_room : 256;
        double *grown = realloc(t->losses, room * sizeof *grown);
        if (!grown) return sn_fail(err, SN_STOP, "out of memory");
        t->losses = grown;
        t->losses_room = room;
    }
    t->losses[t->step] = loss;
    return SN_OK;
}

static sn_status compute_step(sn_tuner *t, batch *b, double *loss, sn_err *err) {
    bool classifier = t->params->shape.method == SN_METHOD_HEAD;
    memset(t->gradients, 0, t->params->n_floats * sizeof *t->gradients);
    t->loss.score_grads = classifier ? t->gradients : NULL;
    sn_status status = t->trunk->ops->set(t->trunk, t->params, err);
    if (!status) status = t->trunk->ops->run(t->trunk, b->n_micros, b->micros, !classifier, turn, b, err);
    if (!status) status = finish(b, err);
    if (status) return status;
    if (!classifier) add_up(b);
    *loss = mean_loss(b);
    return SN_OK;
}

sn_status sn_tuner_step(sn_tuner *t, sn_err *err) {
    batch b = {0};
    size_t n = (size_t)t->options.batch * (size_t)t->options.accumulate, position = t->position;
    uint64_t epoch = t->epoch;
    double loss = 0;
    sn_status status = sn_calloc(&b.examples, n, sizeof *b.examples, err);
    for (size_t i = 0; i < n && !status; i++) b.examples[i] = draw(t);
    if (!status) status = open_batch(&b, t, n, (size_t)t->options.batch, err);
    if (!status) status = compute_step(t, &b, &loss, err);
    if (!status) status = note_loss(t, loss, err);
    if (status) { /* the same examples again */
        t->position = position;
        if (t->epoch != epoch) sn_dataset_order(t->data, t->options.seed, t->epoch = epoch, t->order);
    } else {
        t->norm = sn_clip(t->gradients, t->params->n_floats, t->options.optimizer.clip);
        sn_adamw(&t->options.optimizer, t->step, t->params->n_floats, t->params->values, t->gradients, t->first,
                 t->second);
        t->step++;
        t->tokens += b.rows;
    }
    close_batch(&b);
    return status;
}

sn_status sn_tuner_evaluate(sn_tuner *t, const sn_dataset *data, double *loss, double *right, sn_err *err) {
    double sum = 0, weight = 0, hits = 0;
    sn_status status = t->trunk->ops->set(t->trunk, t->params, err);
    size_t at_once = (size_t)t->options.batch * 4;
    for (size_t at = 0; at < data->n && !status; at += at_once) {
        batch b = {0};
        size_t n = sn_min_size(at_once, data->n - at);
        status = sn_calloc(&b.examples, n, sizeof *b.examples, err);
        for (size_t i = 0; i < n && !status; i++) b.examples[i] = &data->at[at + i];
        if (!status) status = open_batch(&b, t, n, (size_t)t->options.batch, err);
        if (!status) status = t->trunk->ops->run(t->trunk, b.n_micros, b.micros, false, turn, &b, err);
        if (!status) status = finish(&b, err);
        for (size_t i = 0; i < n && !status; i++) sum += b.sums[i], hits += b.right[i];
        if (!status && t->loss.weight > 0) weight += 1 / t->loss.weight;
        close_batch(&b);
    }
    *loss = weight > 0 ? sum / weight : 0;
    if (right) *right = hits / (double)data->n;
    return status;
}
