#include "client/tune/trunk.h"

#include "base/mem.h"
#include "blocks/train.h"

#include <stdlib.h>

static const size_t KEPT_BYTES_MAX = (size_t)1 << 30; /* what does not fit is computed again */

typedef struct local {
    sn_trunk base;
    sn_span *span;
    sn_train *train;
    sn_tuning *tuning;
    sn_kept *kept[SN_SAMPLES_MAX]; /* of a micro-batch's sequences, between there and back */
    int n_blocks, n_embd;
    float *out, *dout; /* of a micro-batch */
    size_t room;       /* rows of these */
} local;

static sn_status set(sn_trunk *trunk, const sn_params *params, sn_err *err) {
    local *l = (local *)trunk;
    sn_buf image;
    sn_buf_init(&image, (size_t)1 << 30);
    sn_tuning_free(&l->tuning);
    sn_status status = sn_params_image(params, 0, l->n_blocks, &image, err);
    if (!status && image.len) status = sn_tuning_load(l->span, image.data, image.len, &l->tuning, err);
    sn_buf_fini(&image);
    return status;
}

static sn_status grow(local *l, int rows, sn_err *err) {
    float *out = NULL, *dout = NULL;
    if ((size_t)rows <= l->room) return SN_OK;
    sn_status status = sn_calloc(&out, (size_t)rows * (size_t)l->n_embd, sizeof *out, err);
    if (!status) status = sn_calloc(&dout, (size_t)rows * (size_t)l->n_embd, sizeof *dout, err);
    if (status) {
        free(out);
        return status;
    }
    free(l->out);
    free(l->dout);
    l->out = out;
    l->dout = dout;
    l->room = (size_t)rows;
    return SN_OK;
}

static sn_tensor sequence(const local *l, const char *name, const float *rows, int at, int n) {
    return (sn_tensor){.name = name,
                       .data = rows + (size_t)at * (size_t)l->n_embd,
                       .dtype = SN_F32,
                       .rank = 2,
                       .shape = {n, l->n_embd}};
}

static void forget(local *l) {
    for (int i = 0; i < SN_SAMPLES_MAX; i++) sn_kept_free(&l->kept[i]);
}

static sn_status run_one(local *l, size_t i, const sn_micro *m, bool back, sn_turn turn, void *ctx, sn_err *err) {
    size_t width = (size_t)l->n_embd, floats = l->tuning ? sn_tuning_floats(l->tuning, 0, l->n_blocks) : 0;
    size_t room = KEPT_BYTES_MAX;
    sn_status status = grow(l, m->rows, err);
    for (int s = 0, at = 0; s < m->n_sequences && !status; at += m->lengths[s++]) {
        sn_tensor x = sequence(l, "hidden states", m->x, at, m->lengths[s]);
        bool keep = back && s < SN_SAMPLES_MAX;
        status = sn_train_forward(l->train, 0, l->n_blocks, l->tuning, &x, l->out + (size_t)at * width,
                                  room, keep ? &l->kept[s] : NULL, err);
        if (keep && l->kept[s]) room -= sn_kept_taken(l->kept[s]);
    }
    if (!status) status = turn(ctx, i, l->out, back ? l->dout : NULL, err);
    for (int s = 0, at = 0; s < m->n_sequences && back && !status; at += m->lengths[s++]) {
        sn_tensor x = sequence(l, "hidden states", m->x, at, m->lengths[s]);
        sn_tensor dout = sequence(l, "gradients", l->dout, at, m->lengths[s]);
        float *grads = m->grads ? m->grads + (size_t)s * floats : NULL;
        status = sn_train_backward(l->train, 0, l->n_blocks, l->tuning, &x, s < SN_SAMPLES_MAX ? l->kept[s] : NULL, &dout,
                                   m->dx + (size_t)at * width, grads, err);
        if (s < SN_SAMPLES_MAX) sn_kept_free(&l->kept[s]);
    }
    forget(l);
    return status;
}

static sn_status run(sn_trunk *trunk, size_t n, const sn_micro *micros, bool back, sn_turn turn, void *ctx,
                     sn_err *err) {
    sn_status status = SN_OK;
    for (size_t i = 0; i < n && !status; i++) status = run_one((local *)trunk, i, &micros[i], back, turn, ctx, err);
    return status;
}

static void free_local(sn_trunk *trunk) {
    local *l = (local *)trunk;
    sn_tuning_free(&l->tuning);
    sn_train_free(&l->train);
    sn_span_free(&l->span);
    free(l->out);
    free(l->dout);
    free(l);
}

sn_status sn_trunk_local(const sn_model *model, sn_device *device, int tokens_max, sn_trunk **out, sn_err *err) {
    static const sn_trunk_ops ops = {set, run, free_local};
    local *l = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&l, 1, sizeof *l, err);
    if (status) return status;
    l->base.ops = &ops;
    l->n_blocks = sn_model_hparams(model)->n_blocks;
    l->n_embd = sn_model_hparams(model)->n_embd;
    status = sn_span_load(model, device, 0, l->n_blocks, NULL, NULL, &l->span, err);
    if (!status) status = sn_train_new(l->span, tokens_max, &l->train, err);
    if (status)
        free_local(&l->base);
    else
        *out = &l->base;
    return status;
}
