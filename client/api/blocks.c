/* Frozen blocks as a function of hidden states, over a backbone (client/tune/backbone.h). A call divides its sequences
 * into micro-batches, so that several nodes have work at once; the results do not depend on the division. The
 * backbone's loss callback is where the two passes meet: it takes the output away, and gives the gradient that the
 * caller gave. */
#include "client/api/api_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MICRO_BATCH_ROWS = 512 }; /* and one sequence at least */

struct swarm_blocks {
    const swarm_model *model;
    swarm_cancel *cancel;
    sn_api_options options;
    sn_setup setup;
    sn_backbone_blocks range;
    sn_backbone *backbone;
    sn_params *params;   /* of the whole model; NULL: none */
    size_t at, n_params; /* the part of params->values that belongs to these blocks */
};

static bool has_key(const swarm_options *options, const char *key) {
    for (size_t i = 0; i < options->n; i++)
        if (!strcmp(options->given[i].key, key)) return true;
    return false;
}

static sn_status blocks_make_params(swarm_blocks *b, sn_err *err) {
    const sn_training_settings *s = &b->options.settings.training;
    if (!has_key(&b->options.copy, "method")) return SN_OK;
    if (s->method == SN_METHOD_HEAD)
        return sn_fail(err, SN_REFUSED,
                       "a classifier has no values in or before the blocks: lora, prompt and "
                       "deep-prompt have");
    sn_status status = sn_training_params(s, b->setup.hp, 0, b->setup.lm_head, &b->params, err);
    if (status) return status;
    b->params->first = b->range.first;
    b->params->end = b->range.end;
    sn_params_block_range(b->params, b->range.first, b->range.end, &b->at, &b->n_params);
    return b->backbone->ops->set(b->backbone, b->params, err);
}

static sn_status blocks_open(swarm_blocks *b, const swarm_model *model, swarm_connection *connection,
                             const swarm_options *options, sn_err *err) {
    sn_status status = sn_api_options_init(&b->options, options, "blocks", &model->options.settings, err);
    if (!status) status = sn_api_setup(&b->setup, model, connection, sn_api_flag(b->cancel), &b->options.settings, err);
    if (status) return status;
    const sn_block_range *given = &b->options.settings.api.blocks;
    int all = b->setup.hp->n_blocks;
    b->range = given->end ? (sn_backbone_blocks){given->first, given->end} : (sn_backbone_blocks){0, all};
    if (b->range.end > all)
        return sn_fail(err, SN_REFUSED, "blocks %d:%d: this model has blocks 0:%d", b->range.first, b->range.end, all);
    status = sn_setup_backbone(&b->setup, b->range, NULL, &b->backbone, err);
    return status ? status : blocks_make_params(b, err);
}

swarm_code swarm_blocks_open(const swarm_model *model, swarm_connection *connection, const swarm_options *options,
                             swarm_cancel *cancel, swarm_blocks **blocks, swarm_error **error) {
    sn_err err;
    swarm_blocks *b = NULL;
    sn_status status = sn_calloc(&b, 1, sizeof *b, &err);
    if (!status) {
        b->cancel = cancel;
        b->model = model;
        status = blocks_open(b, model, connection, options, &err);
    }
    if (!status)
        *blocks = b;
    else
        swarm_blocks_close(b);
    return sn_api_end(status, &err, sn_api_flag(cancel), error);
}

void swarm_blocks_close(swarm_blocks *b) {
    if (!b) return;
    sn_backbone_free(&b->backbone);
    sn_params_free(&b->params);
    sn_setup_close(&b->setup);
    sn_api_options_fini(&b->options);
    free(b);
}

/* -- parameters -- */

size_t swarm_blocks_parameters(const swarm_blocks *b) { return b->n_params; }

static sn_status needs_params(const swarm_blocks *b, sn_err *err) {
    if (b->n_params) return SN_OK;
    return sn_fail(err, SN_REFUSED,
                   "these blocks have no values to train: open them with a method, lora or deep-prompt");
}

swarm_code swarm_blocks_set(swarm_blocks *b, const float *values, swarm_error **error) {
    sn_err err;
    sn_status status = needs_params(b, &err);
    if (!status) memcpy(b->params->values + b->at, values, b->n_params * sizeof *values);
    if (!status) status = b->backbone->ops->set(b->backbone, b->params, &err);
    return sn_api_end(status, &err, NULL, error);
}

swarm_code swarm_blocks_get(const swarm_blocks *b, float *values, swarm_error **error) {
    sn_err err;
    sn_status status = needs_params(b, &err);
    if (!status) memcpy(values, b->params->values + b->at, b->n_params * sizeof *values);
    return sn_api_end(status, &err, NULL, error);
}

/* -- adapters -- */

/* Notes the virtual tokens that the caller trains (NULL: none) among the values. *base: the weights of the blocks. */
static sn_status prepare_adapter(swarm_blocks *b, const float *prompt, sn_base_weights *base, sn_err *err) {
    const float *rows;
    *base = (sn_base_weights){0};
    if (!b->params)
        return sn_fail(err, SN_REFUSED,
                       "these blocks have no adapter: open them with a method, lora, prompt or "
                       "deep-prompt");
    size_t n = (size_t)sn_params_prompt(b->params, &rows) * (size_t)b->setup.hp->n_embd;
    if (prompt && !n) return sn_fail(err, SN_REFUSED, "LoRA has no virtual tokens: give no prompt");
    if (!prompt && n == b->params->n_floats)
        return sn_fail(err, SN_REFUSED, "prompt tuning is its virtual tokens: give them as the prompt");
    if (prompt) memcpy(b->params->values, prompt, n * sizeof *prompt);
    sn_status status =
        sn_base_weights_of_blocks(base, b->setup.hp, b->range.first, b->range.end, b->backbone->weights, err);
    snprintf(base->folder, sizeof base->folder, "the adapter of blocks %d:%d", b->range.first, b->range.end);
    return status;
}

static sn_status blocks_adapter(swarm_blocks *b, const float *prompt, swarm_adapter *a, sn_err *err) {
    sn_base_weights base;
    sn_status status = prepare_adapter(b, prompt, &base, err);
    a->model = b->model;
    if (!status) status = sn_loaded_adapter_of(b->params, b->setup.hp, prompt != NULL, &base, &a->loaded, err);
    sn_base_weights_fini(&base);
    return status;
}

swarm_code swarm_blocks_adapter(swarm_blocks *b, const float *prompt, swarm_adapter **adapter, swarm_error **error) {
    sn_err err;
    swarm_adapter *a = NULL;
    sn_status status = sn_calloc(&a, 1, sizeof *a, &err);
    if (!status) status = blocks_adapter(b, prompt, a, &err);
    if (!status)
        *adapter = a;
    else
        swarm_adapter_close(a);
    return sn_api_end(status, &err, NULL, error);
}

swarm_code swarm_blocks_save(swarm_blocks *b, const float *prompt, const char *folder, swarm_error **error) {
    sn_err err;
    sn_base_weights base;
    sn_status status = prepare_adapter(b, prompt, &base, &err);
    if (!status && !prompt && b->params->shape.method == SN_METHOD_DEEP_PROMPT)
        status = sn_fail(&err, SN_REFUSED,
                         "deep prompts are kept with the virtual tokens at whose places they are "
                         "added: give these as the prompt");
    if (!status) status = sn_base_weights_add_client(&base, b->model->model, &err);
    if (!status) status = sn_api_folder(folder, &err);
    if (!status) status = sn_adapter_folder_save(folder, b->params, b->setup.hp, &base, NULL, &err);
    sn_base_weights_fini(&base);
    return sn_api_end(status, &err, NULL, error);
}

/* -- a call: its sequences as micro-batches -- */

typedef struct call {
    swarm_blocks *blocks;
    sn_micro_batch *micro_batches;
    size_t n, n_sequences, rows;
    const float *in, *dout; /* dout NULL: no backward pass */
    float *out, *grads;     /* out: NULL with a backward pass; grads: (n_sequences, n_params) */
} call;

static sn_status check_lengths(const swarm_blocks *b, size_t sequences, const int32_t *lengths, sn_err *err) {
    for (size_t i = 0; i < sequences; i++)
        if (lengths[i] < 1 || lengths[i] > b->setup.hp->n_ctx)
            return sn_fail(err, SN_REFUSED, "sequence %zu has %d rows: a sequence has 1 to %d", i, lengths[i],
                           b->setup.hp->n_ctx);
    return SN_OK;
}

/* Divides the sequences. din: (rows, width), or NULL without a backward pass. */
static void call_divide(call *c, const int32_t *lengths, float *din) {
    size_t width = (size_t)c->blocks->setup.hp->n_embd;
    for (size_t i = 0; i < c->n_sequences; c->n++) {
        sn_micro_batch *m = &c->micro_batches[c->n];
        *m = (sn_micro_batch){.lengths = lengths + i,
                              .x = c->in + c->rows * width,
                              .dx = din ? din + c->rows * width : NULL,
                              .grads = c->grads ? c->grads + i * c->blocks->n_params : NULL};
        do m->rows += lengths[i++];
        while (++m->n_sequences < SN_SAMPLES_MAX && i < c->n_sequences && m->rows + lengths[i] <= MICRO_BATCH_ROWS);
        c->rows += (size_t)m->rows;
    }
}

/* The loss callback: hands the output out, and the gradient in. */
static sn_status call_turn(void *ctx, size_t micro_batch, const float *out, float *dout, sn_err *err) {
    const call *c = ctx;
    const sn_micro_batch *m = &c->micro_batches[micro_batch];
    size_t at = (size_t)(m->x - c->in), bytes = (size_t)m->rows * (size_t)c->blocks->setup.hp->n_embd * sizeof *out;
    (void)err;
    if (c->out) memcpy(c->out + at, out, bytes);
    if (dout) memcpy(dout, c->dout + at, bytes);
    return SN_OK;
}

static sn_status call_run(call *c, const int32_t *lengths, float *din, float *gradient, sn_err *err) {
    swarm_blocks *b = c->blocks;
    bool back = c->dout != NULL;
    sn_status status = check_lengths(b, c->n_sequences, lengths, err);
    if (!status) status = sn_calloc(&c->micro_batches, c->n_sequences, sizeof *c->micro_batches, err);
    if (!status && back && b->n_params) status = sn_calloc(&c->grads, c->n_sequences * b->n_params, sizeof(float), err);
    if (!status) call_divide(c, lengths, din);
    if (!status) status = b->backbone->ops->run(b->backbone, c->n, c->micro_batches, back, call_turn, c, err);
    if (!status && back && gradient && b->n_params)
        sn_params_sum_gradients(b->params, b->range.first, b->range.end, c->n_sequences, c->grads, gradient);
    free(c->micro_batches);
    free(c->grads);
    return status;
}

swarm_code swarm_blocks_forward(swarm_blocks *b, size_t sequences, const int32_t *lengths, const float *in, float *out,
                                swarm_error **error) {
    sn_err err;
    call c = {.blocks = b, .n_sequences = sequences, .in = in, .out = out};
    return sn_api_end(call_run(&c, lengths, NULL, NULL, &err), &err, sn_api_flag(b->cancel), error);
}

swarm_code swarm_blocks_backward(swarm_blocks *b, size_t sequences, const int32_t *lengths, const float *in,
                                 const float *out_gradient, float *in_gradient, float *gradient, swarm_error **error) {
    sn_err err;
    call c = {.blocks = b, .n_sequences = sequences, .in = in, .dout = out_gradient};
    return sn_api_end(call_run(&c, lengths, in_gradient, gradient, &err), &err, sn_api_flag(b->cancel), error);
}
