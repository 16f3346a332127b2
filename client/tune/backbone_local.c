/* The backbone in this process: one span. Sequences are computed one after the other, in pieces, so that an interrupt
 * is noticed between them. Activations of the forward pass are saved for the backward pass up to SAVED_BYTES_MAX for
 * each micro-batch; what is not saved is computed again. */
#include "client/tune/backbone.h"

#include "base/mem.h"
#include "blocks/train.h"

#include <stdlib.h>

static const size_t SAVED_BYTES_MAX = (size_t)1 << 30;
enum { TOKENS_STEP = 128 };
static const size_t PIECE = (size_t)512 * SN_TRAIN_ROW_COST; /* rows times blocks between two looks at the interrupt */

typedef struct local_backbone {
    sn_backbone base;
    sn_span *span;
    sn_train *train;
    sn_adapter *adapter;
    sn_saved_activations *saved[SN_SAMPLES_MAX]; /* of each sequence, from forward to backward pass */
    const sn_cancel *cancel;
    int first, end, n_embd; /* blocks [first, end) */
    float *out, *dout;      /* (capacity, n_embd): output of the last block and its gradient, for a micro-batch */
    size_t capacity;        /* rows */
    int tokens_max;         /* of a sequence that `train` has memory for */
} local_backbone;

static sn_status local_set_params(sn_backbone *backbone, const sn_params *params, sn_err *err) {
    local_backbone *l = (local_backbone *)backbone;
    sn_buf image;
    sn_buf_init(&image, (size_t)1 << 30);
    sn_adapter_free(&l->adapter);
    sn_status status = sn_params_image(params, l->first, l->end, &image, err);
    if (!status && image.len) status = sn_adapter_load(l->span, image.data, image.len, &l->adapter, err);
    sn_buf_fini(&image);
    return status;
}

/* Memory for the longest sequence, and for some more tokens, since the next ones may be longer. */
static sn_status local_reserve_train(local_backbone *l, const sn_micro_batch *m, sn_err *err) {
    int longest = 1, n_ctx = sn_span_hparams(l->span)->n_ctx;
    for (int i = 0; i < m->n_sequences; i++) longest = m->lengths[i] > longest ? m->lengths[i] : longest;
    if (longest <= l->tokens_max) return SN_OK;
    int tokens = (longest + TOKENS_STEP - 1) / TOKENS_STEP * TOKENS_STEP;
    if (tokens > n_ctx && longest <= n_ctx) tokens = n_ctx;
    sn_train_free(&l->train);
    l->tokens_max = 0;
    sn_status status = sn_train_new(l->span, tokens, &l->train, err);
    if (!status) l->tokens_max = tokens;
    return status;
}

static sn_status local_reserve(local_backbone *l, const sn_micro_batch *m, sn_err *err) {
    float *out = NULL, *dout = NULL;
    size_t rows = (size_t)m->rows, floats = rows * (size_t)l->n_embd;
    sn_status status = local_reserve_train(l, m, err);
    if (status || rows <= l->capacity) return status;
    status = sn_calloc(&out, floats, sizeof *out, err);
    if (!status) status = sn_calloc(&dout, floats, sizeof *dout, err);
    if (status) {
        free(out);
        return status;
    }
    free(l->out);
    free(l->dout);
    l->out = out;
    l->dout = dout;
    l->capacity = rows;
    return SN_OK;
}

static sn_tensor sequence_rows(const local_backbone *l, const char *name, const float *rows, int at, int n) {
    return (sn_tensor){.name = name,
                       .data = rows + (size_t)at * (size_t)l->n_embd,
                       .dtype = SN_F32,
                       .rank = 2,
                       .shape = {n, l->n_embd}};
}

static void local_free_saved(local_backbone *l) {
    for (int i = 0; i < SN_SAMPLES_MAX; i++) sn_saved_activations_free(&l->saved[i]);
}

/* Runs the pass that was started to its end, or until an interrupt. */
static sn_status local_finish_pass(local_backbone *l, sn_err *err) {
    for (bool done = false; !done;) {
        if (sn_is_cancelled(l->cancel)) {
            sn_train_cancel(l->train);
            return sn_fail(err, SN_RETRY, "interrupted");
        }
        sn_status status = sn_train_run(l->train, PIECE, NULL, &done, err);
        if (status) return status;
    }
    return SN_OK;
}

static sn_status local_run_one(local_backbone *l, size_t i, const sn_micro_batch *m, bool back,
                               sn_loss_callback loss_callback, void *ctx, sn_err *err) {
    size_t width = (size_t)l->n_embd, floats = l->adapter ? sn_adapter_n_params(l->adapter, l->first, l->end) : 0;
    size_t bytes_left = SAVED_BYTES_MAX;
    sn_status status = local_reserve(l, m, err);
    for (int s = 0, at = 0; s < m->n_sequences && !status; at += m->lengths[s++]) {
        sn_tensor x = sequence_rows(l, "hidden states", m->x, at, m->lengths[s]);
        bool keep = back && s < SN_SAMPLES_MAX;
        const sn_train_sequence sequence = {l->first, l->end, l->adapter, &x};
        status = sn_train_start_forward(l->train, &sequence, l->out + (size_t)at * width, bytes_left,
                                        keep ? &l->saved[s] : NULL, err);
        if (!status) status = local_finish_pass(l, err);
        if (keep && l->saved[s]) bytes_left -= sn_saved_activations_bytes(l->saved[s]);
    }
    if (!status) status = loss_callback(ctx, i, l->out, back ? l->dout : NULL, err);
    for (int s = 0, at = 0; s < m->n_sequences && back && !status; at += m->lengths[s++]) {
        sn_tensor x = sequence_rows(l, "hidden states", m->x, at, m->lengths[s]);
        sn_tensor dout = sequence_rows(l, "gradients", l->dout, at, m->lengths[s]);
        float *grads = m->grads ? m->grads + (size_t)s * floats : NULL;
        const sn_train_sequence sequence = {l->first, l->end, l->adapter, &x};
        status = sn_train_start_backward(l->train, &sequence, s < SN_SAMPLES_MAX ? l->saved[s] : NULL, &dout,
                                         m->dx + (size_t)at * width, grads, err);
        if (!status) status = local_finish_pass(l, err);
        if (s < SN_SAMPLES_MAX) sn_saved_activations_free(&l->saved[s]);
    }
    local_free_saved(l);
    return status;
}

static sn_status local_run(sn_backbone *backbone, size_t n, const sn_micro_batch *micro_batches, bool back,
                           sn_loss_callback loss_callback, void *ctx, sn_err *err) {
    sn_status status = SN_OK;
    for (size_t i = 0; i < n && !status; i++)
        status = local_run_one((local_backbone *)backbone, i, &micro_batches[i], back, loss_callback, ctx, err);
    return status;
}

static void local_free(sn_backbone *backbone) {
    local_backbone *l = (local_backbone *)backbone;
    sn_adapter_free(&l->adapter);
    sn_train_free(&l->train);
    sn_span_free(&l->span);
    free(l->out);
    free(l->dout);
    free(l);
}

sn_status sn_backbone_local(const sn_model *model, const sn_backbone_local_options *o, sn_backbone **out, sn_err *err) {
    static const sn_backbone_ops ops = {local_set_params, local_run, local_free};
    local_backbone *l = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&l, 1, sizeof *l, err);
    if (status) return status;
    l->base.ops = &ops;
    l->cancel = o->cancel;
    l->first = o->blocks.first;
    l->end = o->blocks.end ? o->blocks.end : sn_model_hparams(model)->n_blocks;
    l->n_embd = sn_model_hparams(model)->n_embd;
    status = sn_span_load(model, o->device, l->first, l->end, NULL, NULL, &l->span, err);
    if (!status) l->base.weights = sn_span_describe(l->span).block_hash;
    if (status)
        local_free(&l->base);
    else
        *out = &l->base;
    return status;
}
