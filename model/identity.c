/* What names a model's weights. Hashed as lines of text, "name=value", so that the hash of today's models stays when a
 * later family brings hyperparameters or roles of its own. */
#include "model/identity.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const char *const role_names[] = {
#define X(name) #name,
    SN_ROLES(X)
#undef X
};

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

/* What a block's mathematics uses; not the family's name (files of one model may go by two), not the context length. */
static void add_hparams(sn_hasher *hasher, const sn_hparams *h) {
    add_line(hasher, "n_embd=%d\nn_heads=%d\nn_kv_heads=%d\nhead_dim=%d\nn_ff=%d\n", h->n_embd, h->n_heads,
             h->n_kv_heads, h->head_dim, h->n_ff);
    add_line(hasher, "norm_eps=%08" PRIx32 "\nwindow=%d\nqkv_bias=%d\nqk_norm=%d\n", float_bits(h->norm_eps), h->window,
             h->qkv_bias, h->qk_norm);
    add_line(hasher, "rope_style=%s\nrope_dim=%d\n", h->rope_style == SN_ROPE_PAIRS ? "pairs" : "halves", h->rope_dim);
    for (int i = 0; i < h->rope_dim / 2; i++)
        add_line(hasher, "rope_freq=%08" PRIx32 "\n", float_bits(h->rope_freq[i]));
}

static void add_tensor(sn_hasher *hasher, sn_role role, const sn_model_tensor *tensor) {
    add_line(hasher, "%s=%s %zu %zu\n", role_names[role], sn_dtype_name(tensor->dtype), tensor->rows, tensor->cols);
}

sn_status sn_model_block_hash(const sn_model *model, int block, sn_hash *out, sn_err *err) {
    sn_model_tensor tensor;
    sn_hasher *hasher = sn_hasher_new();
    if (!hasher) return sn_fail(err, SN_STOP, "out of memory for a hash");
    sn_status status = SN_OK;
    add_hparams(hasher, sn_model_hparams(model));
    for (int role = SN_ROLE_FIRST_OF_BLOCK; !status && role < SN_ROLE_COUNT; role++) {
        status = sn_model_find(model, (sn_role)role, block, &tensor, err);
        if (status || !tensor.data) continue;
        add_tensor(hasher, (sn_role)role, &tensor);
        sn_hasher_add(hasher, tensor.data, tensor.bytes);
        sn_model_forget(model, &tensor);
    }
    if (!status) *out = sn_hasher_end(hasher);
    sn_hasher_free(hasher);
    return status;
}

sn_status sn_model_make_id(const sn_model *model, sn_hash *out, sn_err *err) {
    const sn_hparams *h = sn_model_hparams(model);
    sn_model_tensor tensor;
    sn_hasher *hasher = sn_hasher_new();
    if (!hasher) return sn_fail(err, SN_STOP, "out of memory for a hash");
    add_hparams(hasher, h);
    add_line(hasher, "n_blocks=%d\nn_vocab=%d\n", h->n_blocks, h->n_vocab);
    for (int block = 0; block < h->n_blocks; block++)
        for (int role = SN_ROLE_FIRST_OF_BLOCK; role < SN_ROLE_COUNT; role++) {
            if (sn_model_find(model, (sn_role)role, block, &tensor, NULL))
                add_line(hasher, "%d %s absent\n", block, role_names[role]);
            if (!tensor.data) continue;
            add_line(hasher, "%d ", block);
            add_tensor(hasher, (sn_role)role, &tensor);
        }
    *out = sn_hasher_end(hasher);
    sn_hasher_free(hasher);
    return SN_OK;
}
