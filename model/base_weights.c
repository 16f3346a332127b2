#include "model/base_weights.h"

#include "base/file.h"
#include "base/mem.h"
#include "model/config.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_SIZE_MAX = 1 << 20 };

sn_status sn_base_weights_of_blocks(sn_base_weights *out, const sn_hparams *hp, int first, int end,
                                    const sn_hash *hashes, sn_err *err) {
    *out = (sn_base_weights){.n_blocks = hp->n_blocks};
    snprintf(out->model, sizeof out->model, "%s", hp->name);
    sn_status status = sn_calloc(&out->blocks, (size_t)hp->n_blocks, sizeof *out->blocks, err);
    if (!status) memcpy(out->blocks + first, hashes, (size_t)(end - first) * sizeof *hashes);
    return status;
}

sn_status sn_base_weights_add_client(sn_base_weights *weights, const sn_model *model, sn_err *err) {
    return sn_model_client_hash(model, &weights->client, err);
}

sn_status sn_base_weights_init(sn_base_weights *out, const sn_model *model, const sn_hash *hashes, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    sn_status status = sn_base_weights_of_blocks(out, hp, 0, hp->n_blocks, hashes, err);
    return status ? status : sn_base_weights_add_client(out, model, err);
}

static bool hash_is_known(const sn_hash *hash) {
    static const sn_hash none;
    return memcmp(hash, &none, sizeof none) != 0;
}

const sn_hash *sn_base_weights_block(const sn_base_weights *weights, int block) {
    bool known = weights && block < weights->n_blocks && hash_is_known(&weights->blocks[block]);
    return known ? &weights->blocks[block] : NULL;
}

void sn_base_weights_fini(sn_base_weights *weights) {
    free(weights->blocks);
    *weights = (sn_base_weights){0};
}

static json_t *hash_json(const sn_hash *hash) {
    char hex[2 * SN_HASH_SIZE + 1];
    return hash_is_known(hash) ? json_string(sn_hex(hash->bytes, SN_HASH_SIZE, hex)) : json_null();
}

sn_status sn_base_weights_save(const sn_base_weights *weights, const char *folder, sn_err *err) {
    char path[SN_PATH_SIZE];
    sn_status status = sn_path_join(path, folder, "swarm.json", err);
    if (status) return status;
    json_t *blocks = json_array();
    for (int b = 0; b < weights->n_blocks; b++) json_array_append_new(blocks, hash_json(&weights->blocks[b]));
    json_t *mark =
        json_pack("{ss so so}", "model", weights->model, "client", hash_json(&weights->client), "blocks", blocks);
    char *text = mark ? json_dumps(mark, JSON_INDENT(2) | JSON_PRESERVE_ORDER) : NULL;
    status = text ? sn_file_replace(path, text, strlen(text), err) : sn_fail(err, SN_STOP, "out of memory");
    free(text);
    json_decref(mark);
    return status;
}

static bool hash_read(const json_t *value, sn_hash *out) {
    const char *hex = json_string_value(value);
    return hex && !sn_unhex(hex, out->bytes, SN_HASH_SIZE, NULL);
}

static sn_status base_weights_read(const json_t *mark, const char *path, sn_base_weights *out, sn_err *err) {
    const json_t *blocks = json_object_get(mark, "blocks");
    const char *model = json_string_value(json_object_get(mark, "model"));
    size_t n = json_array_size(blocks);
    bool valid = n && n <= SN_BLOCKS_MAX && hash_read(json_object_get(mark, "client"), &out->client);
    sn_status status = valid ? sn_calloc(&out->blocks, n, sizeof *out->blocks, err) : SN_OK;
    if (status) return status;
    for (size_t b = 0; b < n && valid; b++) {
        const json_t *hash = json_array_get(blocks, b);
        valid = json_is_null(hash) || hash_read(hash, &out->blocks[b]);
    }
    if (!valid) return sn_fail(err, SN_REFUSED, "%s does not name weights: remove it, or save the adapter again", path);
    if (!model) model = "a model of no name";
    sn_config_copy_name(out->model, model, strlen(model));
    out->n_blocks = (int)n;
    return SN_OK;
}

sn_status sn_base_weights_parse(const char *text, size_t len, const char *path, sn_base_weights *out, sn_err *err) {
    json_error_t error;
    *out = (sn_base_weights){0};
    json_t *mark = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    sn_status status = mark ? base_weights_read(mark, path, out, err)
                            : sn_fail(err, SN_REFUSED, "%s cannot be read: %.100s", path, error.text);
    json_decref(mark);
    return status;
}

sn_status sn_base_weights_load(const char *folder, sn_base_weights *out, sn_err *err) {
    char path[SN_PATH_SIZE];
    sn_buf text = {0};
    *out = (sn_base_weights){0};
    sn_status status = sn_path_join(path, folder, "swarm.json", err);
    if (status || access(path, F_OK)) return status;
    status = sn_read_file(path, FILE_SIZE_MAX, &text, err);
    if (!status) status = sn_base_weights_parse((const char *)text.data, text.len, path, out, err);
    snprintf(out->folder, sizeof out->folder, "%s", folder);
    sn_buf_fini(&text);
    return status;
}

/* ---- what differs ---- */

static sn_status base_weights_differ(const sn_base_weights *weights, const char *what, sn_err *err) {
    return sn_fail(err, SN_REFUSED,
                   "%s was trained for other weights (%.80s): %s: use the model that it was trained for",
                   weights->folder, weights->model, what);
}

sn_status sn_base_weights_block_differs(const sn_base_weights *weights, int block, sn_err *err) {
    char what[64];
    snprintf(what, sizeof what, "block %d of this model differs", block);
    return base_weights_differ(weights, what, err);
}

sn_status sn_base_weights_check_client(const sn_base_weights *weights, const sn_model *model, sn_err *err) {
    sn_hash hash;
    if (!weights->n_blocks) return SN_OK;
    if (weights->n_blocks != sn_model_hparams(model)->n_blocks)
        return base_weights_differ(weights, "this model has another number of blocks", err);
    sn_status status = sn_model_client_hash(model, &hash, err);
    if (status || !memcmp(&hash, &weights->client, sizeof hash)) return status;
    return base_weights_differ(weights, "the embedding, the last norm or the LM head of this model differ", err);
}
