/* The hashes that identify a block's weights and a model. Hyperparameters are hashed as lines of text, "name=value",
 * and a hyperparameter that has its usual value adds no line. So the hashes of existing models stay the same when a new
 * family adds hyperparameters or roles. The texts are part of the hashes: never change one. */
#include "model/identity.h"

#include "base/mem.h"
#include "model/kept_hash.h"
#include "model/source.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static SN_PRINTF(2, 3) void add_line(sn_hasher *hasher, const char *format, ...) {
    char line[256];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    sn_hasher_add(hasher, line, strlen(line));
}

static uint32_t float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Adds the hyperparameters that a block's mathematics uses. Not the family's name (files of one model may have two) and
 * not the context length. */
static void add_hparams(sn_hasher *hasher, const sn_hparams *h, const sn_heads *heads, int window, int rope) {
    const float *freqs = sn_rope_freqs(h, rope);
    add_line(hasher, "n_embd=%d\nn_heads=%d\nn_kv_heads=%d\nhead_dim=%d\nn_ff=%d\n", h->n_embd, heads->n, heads->n_kv,
             heads->key_dim, h->n_ff);
    if (!h->latent && heads->value_dim != heads->key_dim) add_line(hasher, "head_value_dim=%d\n", heads->value_dim);
    if (h->value_scale > 0) add_line(hasher, "value_scale=%08" PRIx32 "\n", float_bits(h->value_scale));
    add_line(hasher, "norm_eps=%08" PRIx32 "\nwindow=%d\nqkv_bias=%d\nqk_norm=%d\n", float_bits(h->norm_eps), window,
             h->qkv_bias, h->qk_norm);
    add_line(hasher, "rope_style=%s\nrope_dim=%d\n", h->rope_style == SN_ROPE_INTERLEAVED ? "pairs" : "halves",
             sn_rope_dim(h, rope));
    for (int i = 0; i < sn_rope_dim(h, rope) / 2; i++)
        add_line(hasher, "rope_freq=%08" PRIx32 "\n", float_bits(freqs[i]));
    if (h->rope_scale[rope] != 1) add_line(hasher, "rope_scale=%08" PRIx32 "\n", float_bits(h->rope_scale[rope]));
    if (h->attn_scale != 1.0f / sqrtf((float)heads->key_dim))
        add_line(hasher, "attn_scale=%08" PRIx32 "\n", float_bits(h->attn_scale));
    if (h->residual_scale != 1) add_line(hasher, "residual_scale=%08" PRIx32 "\n", float_bits(h->residual_scale));
    if (h->q_growth > 0)
        add_line(hasher, "q_growth=%08" PRIx32 " %d %d\n", float_bits(h->q_growth), h->q_growth_step,
                 h->q_growth_offset);
    if (h->qk_norm_plain) add_line(hasher, "qk_norm_plain=1\n");
    if (h->q_growth > 0 && h->q_growth_unrotated) add_line(hasher, "q_growth_unrotated=1\n");
    if (h->score_softcap > 0) add_line(hasher, "score_softcap=%08" PRIx32 "\n", float_bits(h->score_softcap));
    if (h->experts_scale_input) add_line(hasher, "experts_scale_input=1\n");
    if (h->latent)
        add_line(hasher, "latent=%d\nnope_dim=%d\nvalue_dim=%d\nq_rank=%d\nlatent_eps=%08" PRIx32 "\n", h->latent,
                 h->nope_dim, h->value_dim, h->q_rank, float_bits(h->latent_eps));
    if (h->index_topk)
        add_line(hasher, "index=%d %d %d %d\n", h->index_topk, h->index_heads, h->index_dim, h->index_as_rope);
    if (h->layer_norm) add_line(hasher, "layer_norm=1\n");
    if (h->parallel) add_line(hasher, "parallel=1\n");
    if (h->activation) add_line(hasher, "activation=%d\n", (int)h->activation);
    if (h->norm_plus_one) add_line(hasher, "norm_plus_one=1\n");
    if (h->n_experts)
        add_line(hasher, "n_experts=%d\nn_experts_used=%d\nexperts_over_all=%d\n", h->n_experts, h->n_experts_used,
                 h->router_scoring == SN_ROUTER_SOFTMAX_ALL);
    if (h->router_scoring == SN_ROUTER_SIGMOID) add_line(hasher, "sigmoid_normalised=%d\n", h->router_normalised);
    if (h->n_expert_groups)
        add_line(hasher, "expert_groups=%d\nexpert_groups_used=%d\n", h->n_expert_groups, h->n_expert_groups_used);
    if (h->router_scale != 1) add_line(hasher, "router_scale=%08" PRIx32 "\n", float_bits(h->router_scale));
    if (h->attn_gate) add_line(hasher, "attn_gate=1\n");
    if (h->router_offset > 0) add_line(hasher, "router_offset=%08" PRIx32 "\n", float_bits(h->router_offset));
    if (h->norm_values) add_line(hasher, "norm_values=1\n");
    if (h->dense_beside) add_line(hasher, "dense_beside=1\n");
}

static void add_limits(sn_hasher *hasher, const sn_hparams *h, int block) {
    if (h->ff_limit[block] > 0) add_line(hasher, "ff_limit=%08" PRIx32 "\n", float_bits(h->ff_limit[block]));
    if (h->dense_limit[block] > 0) add_line(hasher, "dense_limit=%08" PRIx32 "\n", float_bits(h->dense_limit[block]));
}

/* Of the rope of long timelines. */
static void add_long(sn_hasher *hasher, const sn_hparams *h) {
    if (!h->long_after) return;
    add_line(hasher, "long_after=%d\n", h->long_after);
    for (int i = 0; i < h->rope_dim / 2; i++)
        add_line(hasher, "long_freq=%08" PRIx32 "\n", float_bits(h->rope_freq_full[i]));
}

/* Of a recurrent block. */
static void add_delta(sn_hasher *hasher, const sn_hparams *h) {
    add_line(hasher, "conv_taps=%d\ndelta_key=%d %d\ndelta_value=%d %d\nheads_alternate=%d\nlog_rates=%d\n",
             h->conv_taps, h->delta_key_heads, h->delta_key_dim, h->delta_value_heads, h->delta_value_dim,
             h->delta_heads_alternate, h->delta_log_rates);
    if (h->recurrence) add_line(hasher, "recurrence=%d\n", (int)h->recurrence);
    if (h->delta_floor < 0) add_line(hasher, "delta_floor=%08" PRIx32 "\n", float_bits(h->delta_floor));
    if (h->delta_rates_negated) add_line(hasher, "rates_negated=1\n");
}

static void add_tensor(sn_hasher *hasher, sn_role role, const sn_model_tensor *tensor) {
    add_line(hasher, "%s=%s %zu %zu\n", sn_role_name(role), sn_dtype_name(tensor->dtype), tensor->rows, tensor->cols);
}

/* Adds the bytes of matrices, and looks now and then whether to stop. */
typedef struct byte_adder {
    const sn_model *model;
    const sn_halt *stop;
} byte_adder;

static sn_status add_bytes(const byte_adder *a, sn_hasher *hasher, const void *data, size_t bytes, sn_err *err) {
    for (size_t at = 0; at < bytes; at += SN_HALT_BYTES) {
        if (a->stop && a->stop->now(a->stop->ctx)) return sn_fail(err, SN_RETRY, "the hash was not finished");
        sn_hasher_add(hasher, (const char *)data + at, sn_min_size(bytes - at, SN_HALT_BYTES));
    }
    return SN_OK;
}

/* A tensor that is not stored row by row, as if it were. */
static sn_status add_contiguous(const byte_adder *a, sn_hasher *hasher, const sn_model_tensor *tensor, sn_err *err) {
    const void *rows;
    void *copy;
    sn_status status = sn_model_contiguous(tensor, &rows, &copy, err);
    if (!status) status = add_bytes(a, hasher, rows, tensor->bytes, err);
    free(copy);
    return status;
}

/* Which column is where. */
static sn_status add_order(sn_hasher *hasher, const sn_model_tensor *tensor, sn_err *err) {
    int32_t *order = NULL;
    if (!sn_model_is_ordered(tensor)) return SN_OK;
    sn_status status = sn_calloc(&order, tensor->cols, sizeof *order, err);
    if (!status) status = sn_model_order(tensor, order, err);
    if (!status) sn_hasher_add(hasher, order, tensor->cols * sizeof *order);
    free(order);
    return status;
}

static sn_status add_weights(void *ctx, sn_hasher *hasher, const sn_model_tensor *tensor, sn_err *err) {
    const byte_adder *a = ctx;
    sn_status status = SN_OK;
    if (sn_model_is_rearranged(tensor)) {
        status = add_contiguous(a, hasher, tensor, err);
        if (!status) status = add_order(hasher, tensor, err);
    } else {
        for (size_t i = 0, bytes; !status && i < sn_model_n_runs(tensor); i++) {
            const void *run = sn_model_run(tensor, i, &bytes);
            status = add_bytes(a, hasher, run, bytes, err);
        }
    }
    sn_model_release_pages(a->model, tensor);
    return status;
}

/* One matrix or vector. */
static sn_status add_matrix(sn_hasher *hasher, const sn_model *model, sn_role role, int block, int expert,
                            sn_add_matrix add, void *ctx, sn_err *err) {
    sn_model_tensor tensor;
    sn_status status = sn_model_find_expert(model, role, block, expert, &tensor, err);
    if (status || !tensor.data) return status;
    add_tensor(hasher, role, &tensor);
    return add(ctx, hasher, &tensor, err);
}

sn_status sn_model_add_block(const sn_model *model, int block, sn_hasher *hasher, sn_add_matrix add, void *ctx,
                             sn_err *err) {
    const sn_hparams *h = sn_model_hparams(model);
    bool known = block >= 0 && block < h->n_blocks + h->n_next; /* else no tensor is found */
    sn_status status = SN_OK;
    const sn_heads heads = known ? sn_heads_of(h, block) : (sn_heads){0};
    if (known) add_hparams(hasher, h, &heads, sn_window_of(h, block), sn_rope_of(h, block));
    if (known && h->no_rope[block]) add_line(hasher, "no_rope=1\n");
    if (known) add_limits(hasher, h, block);
    if (known && h->recurrent[block] && !h->no_mixer[block]) add_delta(hasher, h);
    if (known) add_long(hasher, h);
    for (int role = SN_ROLE_FIRST_OF_BLOCK; !status && role < SN_ROLE_COUNT; role++)
        for (int i = 0; !status && i < sn_role_n_matrices(h, (sn_role)role); i++)
            status = add_matrix(hasher, model, (sn_role)role, block, i, add, ctx, err);
    return status;
}

static sn_status compute_block_hash(const sn_model *model, int block, const sn_halt *stop, sn_hash *out, sn_err *err) {
    byte_adder adder = {model, stop};
    sn_hasher *hasher = sn_hasher_new();
    if (!hasher) return sn_fail(err, SN_STOP, "out of memory for a hash");
    sn_status status = sn_model_add_block(model, block, hasher, add_weights, &adder, err);
    if (!status) *out = sn_hasher_end(hasher);
    sn_hasher_free(hasher);
    return status;
}

sn_status sn_model_hash_block(const sn_model *model, int block, const sn_halt *stop, sn_hash *out, sn_err *err) {
    sn_kept_hash kept;
    sn_status status = sn_model_need_block(model, block, err);
    if (status || sn_kept_hash_find(model, block, &kept, out)) return status;
    status = compute_block_hash(model, block, stop, out, err);
    if (!status) sn_kept_hash_keep(model, block, &kept, out);
    return status;
}

sn_status sn_model_block_hash(const sn_model *model, int block, sn_hash *out, sn_err *err) {
    return sn_model_hash_block(model, block, NULL, out, err);
}

sn_status sn_model_client_hash(const sn_model *model, sn_hash *out, sn_err *err) {
    return sn_model_hash_client(model, NULL, out, err);
}

sn_status sn_model_hash_client(const sn_model *model, const sn_halt *stop, sn_hash *out, sn_err *err) {
    const sn_hparams *h = sn_model_hparams(model);
    sn_hasher *hasher = sn_hasher_new();
    if (!hasher) return sn_fail(err, SN_STOP, "out of memory for a hash");
    byte_adder adder = {model, stop};
    sn_status status = sn_model_need_ends(model, err);
    add_line(hasher, "n_embd=%d\nn_vocab=%d\nnorm_eps=%08" PRIx32 "\nlayer_norm=%d\nembed_scale=%08" PRIx32 "\n",
             h->n_embd, h->n_vocab, float_bits(h->norm_eps), h->layer_norm, float_bits(h->embed_scale));
    if (h->logit_scale != 1) add_line(hasher, "logit_scale=%08" PRIx32 "\n", float_bits(h->logit_scale));
    if (h->logit_softcap > 0) add_line(hasher, "logit_softcap=%08" PRIx32 "\n", float_bits(h->logit_softcap));
    for (int role = 0; !status && role < SN_ROLE_FIRST_OF_BLOCK; role++)
        if (role != SN_ROLE_OUTPUT || !h->tied_output) /* else it is the embedding, which is hashed already */
            status = add_matrix(hasher, model, (sn_role)role, 0, 0, add_weights, &adder, err);
    if (!status) *out = sn_hasher_end(hasher);
    sn_hasher_free(hasher);
    return status;
}

sn_status sn_model_compute_id(const sn_model *model, sn_hash *out, sn_err *err) {
    const sn_hparams *h = sn_model_hparams(model);
    sn_model_tensor tensor;
    sn_hasher *hasher = sn_hasher_new();
    if (!hasher) return sn_fail(err, SN_STOP, "out of memory for a hash");
    const sn_heads heads = sn_usual_heads(h);
    add_hparams(hasher, h, &heads, h->window, 0);
    if (h->conv_taps) add_delta(hasher, h);
    add_line(hasher, "n_blocks=%d\nn_vocab=%d\n", h->n_blocks, h->n_vocab);
    if (h->embed_scale != 1) add_line(hasher, "embed_scale=%08" PRIx32 "\n", float_bits(h->embed_scale));
    if (h->logit_scale != 1) add_line(hasher, "logit_scale=%08" PRIx32 "\n", float_bits(h->logit_scale));
    if (h->logit_softcap > 0) add_line(hasher, "logit_softcap=%08" PRIx32 "\n", float_bits(h->logit_softcap));
    if (h->n_ropes > 1) add_hparams(hasher, h, h->full_heads.n ? &h->full_heads : &heads, 0, 1);
    add_long(hasher, h);
    for (int block = 0; block < h->n_blocks; block++) {
        if (sn_window_of(h, block) != h->window || sn_rope_of(h, block)) add_line(hasher, "%d looks_back\n", block);
        if (h->no_rope[block]) add_line(hasher, "%d no_rope\n", block);
        add_limits(hasher, h, block);
        for (int role = SN_ROLE_FIRST_OF_BLOCK; role < SN_ROLE_COUNT; role++) {
            for (int i = 0; i < sn_role_n_matrices(h, (sn_role)role); i++) {
                if (sn_model_find_expert(model, (sn_role)role, block, i, &tensor, NULL))
                    add_line(hasher, "%d %s absent\n", block, sn_role_name((sn_role)role));
                if (!tensor.data) continue;
                add_line(hasher, "%d ", block);
                add_tensor(hasher, (sn_role)role, &tensor);
            }
        }
    }
    *out = sn_hasher_end(hasher);
    sn_hasher_free(hasher);
    return SN_OK;
}
