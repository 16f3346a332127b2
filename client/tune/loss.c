#include "client/tune/loss.h"

#include "base/mem.h"
#include "base/math.h"
#include "client/generate/logprob.h"

#include <stdlib.h>
#include <string.h>

enum { LOSS_ROWS = 64 }; /* rows whose logits are computed at once */

sn_status sn_loss_open(sn_loss *loss, sn_lm_head *head, const sn_hparams *hp, const sn_params *params, int threads,
                       sn_err *err) {
    size_t embd = (size_t)hp->n_embd, vocab = (size_t)hp->n_vocab;
    *loss = (sn_loss){.head = head, .hp = hp, .params = params};
    sn_status status = sn_calloc(&loss->rows, 2 * LOSS_ROWS * embd, sizeof(float), err);
    if (!status && params->shape.method != SN_METHOD_HEAD)
        status = sn_calloc(&loss->logits, LOSS_ROWS * vocab, sizeof(float), err);
    if (!status && params->shape.method != SN_METHOD_HEAD)
        status = sn_calloc(&loss->grads, LOSS_ROWS * vocab, sizeof(float), err);
    if (!status) status = sn_pool_new(params->shape.method == SN_METHOD_HEAD ? 1 : threads, &loss->pool, err);
    if (!status) status = sn_calloc(&loss->p, (size_t)sn_pool_threads(loss->pool) * vocab, sizeof *loss->p, err);
    if (status) sn_loss_close(loss);
    return status;
}

void sn_loss_close(sn_loss *loss) {
    free(loss->rows);
    free(loss->logits);
    free(loss->grads);
    free(loss->p);
    sn_pool_free(&loss->pool);
    *loss = (sn_loss){0};
}

/* *out = log softmax(row)[target]. grads (n), NULL if not wanted: the gradient of -weight * *out with respect to row.
 * p (n): scratch. */
static sn_status log_softmax(const float *row, size_t n, int32_t target, double weight, double *out, float *grads,
                             double *p, sn_err *err) {
    int32_t best;
    sn_status status = sn_logits_argmax(row, n, &best, err);
    if (status) return status;
    double top = (double)row[best];
    double sum = grads ? sn_logits_exp_and_sum(row, n, top, p) : sn_logits_sum_exp(row, n, top), share = weight / sum;
    *out = ((double)row[target] - top) - sn_ln(sum);
    for (size_t i = 0; grads && i < n; i++) grads[i] = (float)(p[i] * share);
    if (grads) grads[target] = (float)(weight * (p[target] / sum - 1));
    return SN_OK;
}

typedef struct rows_job {
    const sn_loss *loss;
    const int32_t *target;
    bool back;
    double out[LOSS_ROWS];
    sn_status status[LOSS_ROWS];
    sn_err err[LOSS_ROWS];
} rows_job;

static void loss_row_worker(void *ctx, size_t i, int worker) {
    rows_job *job = ctx;
    const sn_loss *l = job->loss;
    size_t vocab = (size_t)l->hp->n_vocab;
    job->status[i] = log_softmax(l->logits + i * vocab, vocab, job->target[i], l->weight, &job->out[i],
                                 job->back ? l->grads + i * vocab : NULL, l->p + (size_t)worker * vocab, &job->err[i]);
}

/* Adds the losses of the rows row[0, n) of hidden to *sum. target[i]: the token that row[i] must predict. */
static sn_status loss_rows(sn_loss *l, const float *hidden, const size_t *row, const int32_t *target, size_t n,
                           float *dhidden, double *sum, sn_err *err) {
    size_t embd = (size_t)l->hp->n_embd;
    float *back = l->rows + LOSS_ROWS * embd;
    for (size_t i = 0; i < n; i++) memcpy(l->rows + i * embd, hidden + row[i] * embd, embd * sizeof(float));
    sn_status status = sn_lm_head_logits(l->head, l->rows, (int)n, l->logits, err);
    rows_job job = {.loss = l, .target = target, .back = dhidden};
    if (!status) sn_pool_run(l->pool, n, loss_row_worker, &job);
    for (size_t i = 0; i < n && !status; i++) { /* in the order of the rows */
        status = job.status[i] ? sn_fail(err, job.status[i], "%s", job.err[i].text) : SN_OK;
        *sum -= job.out[i];
    }
    if (!status && dhidden) status = sn_lm_head_logits_grad(l->head, l->rows, (int)n, l->grads, back, err);
    for (size_t i = 0; i < n && !status && dhidden; i++)
        memcpy(dhidden + row[i] * embd, back + i * embd, embd * sizeof(float));
    return status;
}

static sn_status predict_tokens(sn_loss *l, const sn_example *e, const float *hidden, float *dhidden, double *sum,
                                sn_err *err) {
    const float *prompt;
    size_t before = (size_t)sn_params_prompt(l->params, &prompt), n = 0, row[LOSS_ROWS];
    int32_t target[LOSS_ROWS];
    sn_status status = SN_OK;
    for (size_t t = before ? 0 : 1; t < e->n && !status; t++) { /* token t is predicted by the row before it */
        if (!e->loss_mask[t]) continue;
        row[n] = before + t - 1;
        target[n++] = e->ids[t];
        if (n == LOSS_ROWS) status = loss_rows(l, hidden, row, target, n, dhidden, sum, err), n = 0;
    }
    return status || !n ? status : loss_rows(l, hidden, row, target, n, dhidden, sum, err);
}

/* Predicts the label from the last row: logits = score . norm(x). */
static sn_status predict_label(sn_loss *l, const sn_example *e, const float *hidden, double *sum, bool *correct,
                               sn_err *err) {
    size_t embd = (size_t)l->hp->n_embd, n = (size_t)l->params->shape.n_labels;
    float logits[SN_LABELS_MAX], grads[SN_LABELS_MAX];
    double p[SN_LABELS_MAX];
    const float *score = l->params->values;
    sn_status status = sn_lm_head_norm(l->head, hidden + (e->n - 1) * embd, 1, l->rows, err);
    for (size_t k = 0; k < n && !status; k++) {
        double dot = 0;
        for (size_t i = 0; i < embd; i++) dot += (double)score[k * embd + i] * (double)l->rows[i];
        logits[k] = (float)dot;
    }
    int32_t best = 0;
    if (!status) status = sn_logits_argmax(logits, n, &best, err);
    *correct = best == e->label;
    double log_p = 0;
    if (!status) status = log_softmax(logits, n, e->label, l->weight, &log_p, grads, p, err);
    *sum -= log_p;
    for (size_t k = 0; k < n && l->score_grads && !status; k++)
        for (size_t i = 0; i < embd; i++) l->score_grads[k * embd + i] += grads[k] * l->rows[i];
    return status;
}

sn_status sn_loss_compute(sn_loss *l, const sn_example *e, const float *hidden, float *dhidden, double *sum,
                          bool *correct, sn_err *err) {
    const float *prompt;
    size_t rows = e->n + (size_t)sn_params_prompt(l->params, &prompt);
    *sum = 0;
    *correct = false;
    if (dhidden) memset(dhidden, 0, rows * (size_t)l->hp->n_embd * sizeof *dhidden);
    return l->params->shape.method == SN_METHOD_HEAD ? predict_label(l, e, hidden, sum, correct, err)
                                                     : predict_tokens(l, e, hidden, dhidden, sum, err);
}
