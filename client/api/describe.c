#include "client/api/describe.h"

#include "blocks/train.h"
#include "model/source.h"

#include <stdio.h>
#include <string.h>

/* Bytes of the tensors with roles [first_role, end_role) of a block, or of the client's part (embedding, LM head). */
static sn_status model_part_bytes(const sn_model *model, int first_role, int end_role, int block, size_t *bytes,
                                  sn_err *err) {
    const void *seen = NULL; /* a tied LM head is the embedding again, and is counted once */
    *bytes = 0;
    for (int role = first_role; role < end_role; role++) {
        for (int i = 0; i < sn_role_n_matrices(sn_model_hparams(model), (sn_role)role); i++) {
            sn_model_tensor t;
            sn_status status = sn_model_find_expert(model, (sn_role)role, block, i, &t, err);
            if (status) return status;
            if (t.data && t.data != seen) *bytes += t.bytes;
            if (role == SN_ROLE_TOKEN_EMBEDDING) seen = t.data;
        }
    }
    return SN_OK;
}

/* One block: its size (0 when it is not in the file) and, its hash if it is asked for in hexadecimal. */
static sn_status inspect_block(const sn_model *model, int block, bool hashes, size_t *bytes,
                               char hex[2 * SN_HASH_SIZE + 1], sn_err *err) {
    sn_hash hash;
    *bytes = 0;
    *hex = 0;
    if (!sn_model_holds_block(model, block)) return SN_OK;
    sn_status status = model_part_bytes(model, SN_ROLE_FIRST_OF_BLOCK, SN_ROLE_COUNT, block, bytes, err);
    if (!status && hashes) status = sn_model_block_hash(model, block, &hash, err);
    if (!status && hashes) sn_hex(hash.bytes, SN_HASH_SIZE, hex);
    return status;
}

static json_t *hparams_json(const sn_hparams *hp) {
    json_t *o = json_object();
    const sn_heads heads = sn_usual_heads(hp), *full = &hp->full_heads;
    const struct {
        const char *name;
        int value;
    } numbers[] = {{"n_blocks", hp->n_blocks},   {"n_embd", hp->n_embd},
                   {"n_heads", hp->n_heads},     {"n_kv_heads", hp->n_kv_heads},
                   {"head_dim", hp->head_dim},   {"value_dim", heads.value_dim},
                   {"n_ff", hp->n_ff},           {"n_vocab", hp->n_vocab},
                   {"n_ctx", hp->n_ctx},         {"window", hp->window},
                   {"rope_dim", hp->rope_dim},   {"n_ropes", hp->n_ropes},
                   {"n_experts", hp->n_experts}, {"n_experts_used", hp->n_experts_used}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        json_object_set_new(o, numbers[i].name, json_integer(numbers[i].value));
    if (full->n) /* of blocks with full attention, where the numbers above are of those with a window */
        json_object_set_new(o, "full_heads",
                            json_pack("{si si si si}", "n_heads", full->n, "n_kv_heads", full->n_kv, "head_dim",
                                      full->key_dim, "value_dim", full->value_dim));
    json_object_set_new(o, "norm_eps", json_real((double)hp->norm_eps));
    json_object_set_new(o, "rope_style", json_string(hp->rope_style == SN_ROPE_INTERLEAVED ? "pairs" : "halves"));
    json_object_set_new(o, "qkv_bias", json_boolean(hp->qkv_bias));
    json_object_set_new(o, "qk_norm", json_boolean(hp->qk_norm));
    json_object_set_new(o, "qk_norm_wide", json_boolean(hp->qk_norm_wide));
    json_object_set_new(o, "post_norm", json_boolean(hp->post_norm));
    json_object_set_new(o, "tied_output", json_boolean(hp->tied_output));
    json_t *windows = json_array(); /* of each block; 0: no window */
    for (int b = 0; b < hp->n_blocks; b++) json_array_append_new(windows, json_integer(sn_window_of(hp, b)));
    json_object_set_new(o, "windows", windows);
    return o;
}

static json_t *tensors_json(const sn_model *model) {
    json_t *list = json_array();
    for (size_t i = 0, n = sn_model_n_tensors(model); i < n; i++) {
        const char *name, *type;
        sn_model_tensor t;
        sn_model_tensor_at(model, i, &name, &type, &t);
        json_array_append_new(list, json_pack("{ss ss s[II] sI}", "name", name, "dtype", type, "shape",
                                              (json_int_t)t.rows, (json_int_t)t.cols, "bytes", (json_int_t)t.bytes));
    }
    return list;
}

/* How many parameters the files hold, and in how many bytes of each type. Of split MXFP4, "..._blocks" are bytes with
 * two parameters each, where they are no role's. Scales are no parameters. */
static void add_weights_json(const sn_model *model, json_t *o) {
    json_t *types = json_object();
    json_int_t parameters = 0;
    for (size_t i = 0, n = sn_model_n_tensors(model); i < n; i++) {
        const char *name, *type;
        sn_model_tensor t;
        sn_model_tensor_at(model, i, &name, &type, &t);
        size_t len = strlen(name), suffix = strlen("_blocks");
        if (t.dtype != SN_DTYPE_COUNT && !sn_model_tensor_is_scale(name))
            parameters += (json_int_t)(t.rows * t.cols);
        else if (len > suffix && !strcmp(name + len - suffix, "_blocks"))
            parameters += 2 * (json_int_t)t.bytes;
        json_int_t bytes = json_integer_value(json_object_get(types, type)) + (json_int_t)t.bytes;
        json_object_set_new(types, type, json_integer(bytes));
    }
    json_object_set_new(o, "parameters", json_integer(parameters));
    json_object_set_new(o, "type_bytes", types);
}

static sn_status blocks_json(const sn_model *model, bool hashes, json_t *list, sn_err *err) {
    char hex[2 * SN_HASH_SIZE + 1];
    size_t bytes;
    for (int b = 0; b < sn_model_hparams(model)->n_blocks; b++) {
        sn_status status = inspect_block(model, b, hashes, &bytes, hex, err);
        if (status) return status;
        const sn_hparams *hp = sn_model_hparams(model);
        json_t *o = json_pack("{si sI sI}", "block", b, "bytes", (json_int_t)bytes, "kv_floats",
                              (json_int_t)sn_kv_width(hp, b, b + 1));
        if (*hex) json_object_set_new(o, "hash", json_string(hex));
        json_array_append_new(list, o);
    }
    return SN_OK;
}

sn_status sn_model_json(const sn_model *model, bool hashes, bool tensors, json_t **out, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    char hex[2 * SN_HASH_SIZE + 1];
    sn_hash id = sn_model_id(model);
    size_t bytes;
    json_t *blocks = json_array();
    sn_status status = model_part_bytes(model, 0, SN_ROLE_FIRST_OF_BLOCK, 0, &bytes, err);
    if (!status) status = blocks_json(model, hashes, blocks, err);
    if (status) {
        json_decref(blocks);
        return status;
    }
    json_t *o = json_pack("{ss ss ss ss so sI so}", "name", hp->name, "container", sn_model_container(model), "family",
                          hp->family, "id", sn_hex(id.bytes, SN_HASH_SIZE, hex), "hparams", hparams_json(hp),
                          "client_bytes", (json_int_t)bytes, "blocks", blocks);
    sn_err why;
    bool trains = !sn_train_check_model(hp, 0, hp->n_blocks, &why); /* what `swarm tune` takes */
    json_object_set_new(o, "trains", json_boolean(trains));
    if (!trains) json_object_set_new(o, "no_training", json_string(why.text));
    json_object_set_new(o, "n_tensors", json_integer((json_int_t)sn_model_n_tensors(model)));
    add_weights_json(model, o);
    if (tensors) json_object_set_new(o, "tensors", tensors_json(model));
    *out = o;
    return o ? SN_OK : sn_fail(err, SN_STOP, "out of memory for a JSON text");
}
