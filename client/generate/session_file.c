/* Saving and restoring a session.
 *
 * Content of the encrypted file: the length of a JSON text (4 bytes, little-endian), the text, then the KV cache in
 * chunks of chunk_tokens tokens, each as sn_chain_get_kv gives it. The JSON text names everything on which the KV cache
 * depends (model, adapter, each block's weights), so that it is only continued with the same; and it holds the token
 * ids, the position of the chain (`seen`), the RNG state and the caller's `extra`.
 *
 * A session with recurrent states has no chunks: the states are nowhere to be read, and restoring it computes the
 * tokens again.
 *
 * Restoring puts the chunks into a new chain, whose nodes need a timeline hash for every position. The rows that the
 * old nodes hashed are not in the file, so make_token_timelines makes hashes of model and tokens instead, from which
 * the nodes continue (net/timeline.h, graft). */
#include "client/generate/session_file.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static const char MAGIC[17] = "swarm session 1\n";
enum { TEXT_MAX = 256 << 20, CHUNK_BYTES = 4 << 20, EMBED_ROWS = 512 };

struct sn_session_file {
    sn_encrypted_file *file;
    const sn_model *model;
    json_t *header;
    int32_t *ids;
    size_t n, seen, virtual; /* ids; those that the chain has computed; the adapter's virtual tokens before them */
    sn_rng_state rng_state;
};

/* 0: the file has no KV cache. */
static size_t kv_row_floats(const sn_hparams *hp) { return hp->conv_taps ? 0 : sn_kv_width(hp, 0, hp->n_blocks); }

static int chunk_tokens(const sn_hparams *hp) {
    size_t bytes = kv_row_floats(hp) * sizeof(float), n = bytes ? CHUNK_BYTES / bytes : 1;
    return n < 1 ? 1 : n < SN_KV_TRANSFER_TOKENS_MAX ? (int)n : SN_KV_TRANSFER_TOKENS_MAX;
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

static json_t *json_hex(const void *data, size_t len) {
    char text[2 * 64 + 1];
    return json_string(sn_hex(data, len, text));
}

/* Names the chain's adapter, blocks' part and virtual tokens together; zero: none. */
static sn_hash chain_adapter_hash(const sn_chain *chain, int n_embd) {
    const sn_chain_adapter *t = sn_chain_get_adapter(chain);
    sn_hash rows[2] = {t->hash, {{0}}};
    if (t->n_prompt) rows[1] = sn_hash_of(t->prompt, (size_t)t->n_prompt * (size_t)n_embd * sizeof *t->prompt);
    return t->n_prompt ? sn_hash_of(rows, sizeof rows) : t->hash;
}

static json_t *session_describe(const sn_model *model, const sn_chain *chain, const sn_generator *g,
                                const json_t *extra) {
    const sn_hparams *hp = sn_model_hparams(model);
    sn_hash id = sn_model_id(model);
    sn_rng_state rng_state = sn_generator_rng_state(g);
    sn_hash adapter = chain_adapter_hash(chain, hp->n_embd);
    size_t n;
    const int32_t *ids = sn_generator_ids(g, &n);
    json_t *o = json_object(), *blocks = json_array(), *tokens = json_array();
    for (int b = 0; b < hp->n_blocks; b++)
        json_array_append_new(blocks, json_hex(&sn_chain_weights(chain)[b], SN_HASH_SIZE));
    for (size_t i = 0; i < n; i++) json_array_append_new(tokens, json_integer(ids[i]));
    json_object_set_new(o, "model", json_hex(&id, sizeof id));
    json_object_set_new(o, "adapter", json_hex(&adapter, sizeof adapter));
    json_object_set_new(o, "blocks", blocks);
    json_object_set_new(o, "ids", tokens);
    json_object_set_new(o, "seen", json_integer(sn_chain_length(chain)));
    json_object_set_new(o, "chunk_tokens", json_integer(chunk_tokens(hp)));
    json_object_set_new(o, "rng_state", json_hex(rng_state.state, sizeof rng_state.state));
    if (extra) json_object_set(o, "extra", (json_t *)(uintptr_t)extra);
    return o;
}

static sn_status header_write(sn_encrypted_file *file, json_t *o, sn_err *err) {
    char *text = json_dumps(o, JSON_COMPACT);
    size_t len = text ? strlen(text) : 0;
    if (!text) return sn_fail(err, SN_STOP, "out of memory to describe the session");
    uint8_t head[4] = {(uint8_t)len, (uint8_t)(len >> 8), (uint8_t)(len >> 16), (uint8_t)(len >> 24)};
    sn_status status = len <= TEXT_MAX ? sn_encrypted_file_write(file, head, sizeof head, err)
                                       : sn_fail(err, SN_REFUSED, "the session has too much text to be saved");
    if (!status) status = sn_encrypted_file_write(file, text, len, err);
    free(text);
    return status;
}

sn_status sn_session_file_write(const char *path, const sn_file_key *secret, const sn_model *model, sn_chain *chain,
                                const sn_generator *generator, const json_t *extra, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    sn_encrypted_file *file = NULL;
    float *rows = NULL;
    int chunk = chunk_tokens(hp), seen = sn_chain_length(chain),
        all = seen ? sn_chain_get_adapter(chain)->n_prompt + seen : 0;
    size_t n;
    (void)sn_generator_ids(generator, &n);
    if (n < (size_t)seen || n > (size_t)seen + 1)
        return sn_fail(err, SN_REFUSED, "the session ended within a step: it cannot be saved");
    json_t *o = session_describe(model, chain, generator, extra);
    sn_status status = sn_encrypted_file_create(path, MAGIC, secret, &file, err);
    if (!status) status = header_write(file, o, err);
    json_decref(o);
    if (!status) status = sn_calloc(&rows, (size_t)chunk * kv_row_floats(hp) + 1, sizeof *rows, err);
    for (int at = 0, m; at < all && kv_row_floats(hp) && !status; at += m) {
        m = chunk < all - at ? chunk : all - at;
        status = sn_chain_get_kv(chain, at, m, rows, err);
        if (!status) status = sn_encrypted_file_write(file, rows, (size_t)m * kv_row_floats(hp) * sizeof *rows, err);
    }
    if (!status) status = sn_encrypted_file_commit(file, err);
    sn_encrypted_file_close(&file);
    free(rows);
    return status ? sn_err_context(err, "the session was not saved") : SN_OK;
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

static sn_status header_read(sn_session_file *s, const char *path, sn_err *err) {
    uint8_t head[4];
    char *text = NULL;
    sn_status status = sn_encrypted_file_read(s->file, head, sizeof head, err);
    if (status) return status;
    size_t len = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
    if (len > TEXT_MAX) return sn_fail(err, SN_REFUSED, "%s is not a saved session", path);
    status = sn_calloc(&text, len + 1, 1, err);
    if (!status) status = sn_encrypted_file_read(s->file, text, len, err);
    if (!status && !(s->header = json_loadb(text, len, JSON_ALLOW_NUL, NULL)))
        status = sn_fail(err, SN_REFUSED, "%s is not a saved session", path);
    free(text);
    return status;
}

static bool json_is_hash(const json_t *text, const sn_hash *hash) {
    char own[2 * SN_HASH_SIZE + 1];
    const char *there = json_string_value(text);
    return there && !strcmp(there, sn_hex(hash, SN_HASH_SIZE, own));
}

static sn_status header_parse(sn_session_file *s, const char *path, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(s->model);
    sn_hash id = sn_model_id(s->model);
    const json_t *ids = json_object_get(s->header, "ids"), *seen = json_object_get(s->header, "seen");
    const char *rng_state = json_string_value(json_object_get(s->header, "rng_state"));
    if (!json_is_hash(json_object_get(s->header, "model"), &id))
        return sn_fail(err, SN_REFUSED, "%s is a session with another model: give the model that it began with", path);
    s->n = json_array_size(ids);
    s->seen = (size_t)json_integer_value(seen);
    if (!json_is_integer(seen) || !rng_state || json_integer_value(seen) < 0 || s->seen > s->n || s->n - s->seen > 1 ||
        json_integer_value(json_object_get(s->header, "chunk_tokens")) != chunk_tokens(hp) ||
        sn_unhex(rng_state, s->rng_state.state, sizeof s->rng_state.state, err))
        return sn_fail(err, SN_REFUSED, "%s is a saved session that this version cannot read", path);
    sn_status status = sn_calloc(&s->ids, s->n, sizeof *s->ids, err);
    for (size_t i = 0; i < s->n && !status; i++) {
        json_int_t value = json_integer_value(json_array_get(ids, i));
        if (value < 0 || value >= hp->n_vocab)
            status = sn_fail(err, SN_REFUSED, "%s has tokens that are not in this model", path);
        s->ids[i] = (int32_t)value;
    }
    return status;
}

sn_status sn_session_file_open(const char *path, const sn_file_key *secret, const sn_model *model,
                               sn_session_file **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    (*out)->model = model;
    status = sn_encrypted_file_open(path, MAGIC, secret, &(*out)->file, err);
    if (!status) status = header_read(*out, path, err);
    if (!status) status = header_parse(*out, path, err);
    if (status) sn_session_file_close(out);
    return status;
}

const int32_t *sn_session_file_ids(const sn_session_file *file, size_t *n) {
    *n = file->n;
    return file->ids;
}

const json_t *sn_session_file_extra(const sn_session_file *file) { return json_object_get(file->header, "extra"); }

void sn_session_file_close(sn_session_file **file) {
    sn_session_file *s = *file;
    if (!s) return;
    sn_encrypted_file_close(&s->file);
    json_decref(s->header);
    free(s->ids);
    free(s);
    *file = NULL;
}

/* -- restoring ------------------------------------------------------------------------------------------------------
 */

static int kv_tokens(const sn_session_file *s) { return s->seen ? (int)(s->virtual + s->seen) : 0; }

/* The hashes from which the nodes' timelines continue: of the model and the tokens up to each position, virtual ones
 * first (n + 1 hashes). */
static sn_status make_token_timelines(const sn_session_file *s, sn_hash **out, sn_err *err) {
    static const char text[] = "swarm saved session 1";
    sn_hash id = sn_model_id(s->model);
    sn_hasher *hasher = sn_hasher_new();
    size_t n = (size_t)kv_tokens(s);
    sn_status status = sn_calloc(out, n + 1, sizeof **out, err);
    if (!status && !hasher) status = sn_fail(err, SN_STOP, "out of memory");
    for (size_t i = 0; i <= n && !status; i++) {
        uint32_t token = i > s->virtual ? (uint32_t)s->ids[i - s->virtual - 1] : UINT32_MAX;
        uint8_t bytes[4] = {(uint8_t)token, (uint8_t)(token >> 8), (uint8_t)(token >> 16), (uint8_t)(token >> 24)};
        sn_hasher_add(hasher, i ? (const void *)(*out)[i - 1].bytes : text, i ? SN_HASH_SIZE : sizeof text - 1);
        sn_hasher_add(hasher, i ? bytes : id.bytes, i ? sizeof bytes : SN_HASH_SIZE);
        (*out)[i] = sn_hasher_end(hasher);
    }
    sn_hasher_free(hasher);
    return status;
}

static sn_status session_check_weights(const sn_session_file *s, const sn_chain *chain, sn_err *err) {
    const sn_hash adapter = chain_adapter_hash(chain, sn_model_hparams(s->model)->n_embd);
    if (!json_is_hash(json_object_get(s->header, "adapter"), &adapter))
        return sn_fail(err, SN_REFUSED, "the session was saved with another --adapter, or with none: give the same");
    const json_t *blocks = json_object_get(s->header, "blocks");
    for (int b = 0; b < sn_model_hparams(s->model)->n_blocks; b++)
        if (!json_is_hash(json_array_get(blocks, (size_t)b), &sn_chain_weights(chain)[b]))
            return sn_fail(err, SN_REFUSED, "block %d has other weights in this swarm than where the session was saved",
                           b);
    return SN_OK;
}

/* Of a session without a KV cache in the file: runs its tokens through the chain. */
static sn_status session_compute(const sn_session_file *s, sn_chain *chain, sn_lm_head *head, sn_err *err) {
    size_t width = (size_t)sn_model_hparams(s->model)->n_embd;
    float *rows = NULL;
    sn_status status = sn_calloc(&rows, 2 * EMBED_ROWS * width, sizeof *rows, err);
    for (size_t at = 0, n; at < s->seen && !status; at += n) {
        n = sn_min_size(EMBED_ROWS, s->seen - at);
        status = sn_lm_head_embed(head, s->ids + at, (int)n, rows, err);
        if (!status) status = sn_chain_step(chain, (int)at, (int)n, rows, rows + EMBED_ROWS * width, err);
    }
    free(rows);
    return status ? status : sn_encrypted_file_expect_end(s->file, err);
}

static sn_status session_put_kv(sn_session_file *s, sn_chain *chain, const sn_hash *token_timelines, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(s->model);
    int chunk = chunk_tokens(hp), all = kv_tokens(s);
    float *rows = NULL;
    sn_status status = sn_calloc(&rows, (size_t)chunk * kv_row_floats(hp), sizeof *rows, err);
    for (int at = 0, m; at < all && !status; at += m) {
        m = chunk < all - at ? chunk : all - at;
        status = sn_encrypted_file_read(s->file, rows, (size_t)m * kv_row_floats(hp) * sizeof *rows, err);
        if (!status) status = sn_chain_put_kv(chain, at, m, rows, token_timelines, err);
    }
    free(rows);
    return status ? status : sn_encrypted_file_expect_end(s->file, err);
}

sn_status sn_session_file_restore(sn_session_file *s, sn_lm_head *head, sn_chain *chain, sn_generator *generator,
                                  sn_err *err) {
    const sn_chain_adapter *adapter = sn_chain_get_adapter(chain);
    s->virtual = (size_t)adapter->n_prompt;
    sn_hash *token_timelines = NULL;
    sn_status status = sn_generator_resume(generator, s->ids, s->n, s->seen, &s->rng_state, err);
    if (!status) status = session_check_weights(s, chain, err);
    if (!status && !kv_row_floats(sn_model_hparams(s->model))) {
        status = session_compute(s, chain, head, err);
        return status ? sn_err_context(err, "the session cannot be continued") : SN_OK;
    }
    if (!status) status = make_token_timelines(s, &token_timelines, err);
    if (!status) status = session_put_kv(s, chain, token_timelines, err);
    if (!status) status = sn_chain_resume(chain, kv_tokens(s), token_timelines, NULL, err);
    free(token_timelines);
    return status ? sn_err_context(err, "the session cannot be continued") : SN_OK;
}
