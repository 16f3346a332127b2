#include "client/saved.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Behind the lock: the length of a JSON text (4 bytes, little-endian), the text, then the past in pieces of `piece` tokens, each as
 * sn_chain_get_past gives it. */
static const char MAGIC[17] = "swarm session 1\n";
enum { TEXT_MAX = 256 << 20, PIECE_BYTES = 4 << 20, EMBED_ROWS = 512 };

struct sn_saved {
    sn_locked *file;
    const sn_model *model;
    json_t *text;
    int32_t *ids;
    size_t n, seen, virtual; /* virtual: tokens of an adapter that stand before them in the past */
    sn_chance chance;
};

static size_t row_floats(const sn_hparams *hp) {
    return (size_t)hp->n_blocks * 2 * (size_t)hp->n_kv_heads * (size_t)hp->head_dim;
}

static int piece_tokens(const sn_hparams *hp) {
    size_t n = PIECE_BYTES / (row_floats(hp) * sizeof(float));
    return n < 1 ? 1 : n < SN_PAST_TOKENS_MAX ? (int)n : SN_PAST_TOKENS_MAX;
}

/* -- writing ------------------------------------------------------------------------------------------------------- */

static json_t *hex(const void *data, size_t len) {
    char text[2 * 64 + 1];
    return json_string(sn_hex(data, len, text));
}

/* What was trained and went with the model, by name; zero: nothing. */
static sn_hash adapter_of(const sn_chain *chain, int n_embd) {
    const sn_chain_tuned *t = sn_chain_tuned_by(chain);
    sn_hash rows[2] = {t->hash, {{0}}};
    if (t->n_prompt) rows[1] = sn_hash_of(t->prompt, (size_t)t->n_prompt * (size_t)n_embd * sizeof *t->prompt);
    return t->n_prompt ? sn_hash_of(rows, sizeof rows) : t->hash;
}

static json_t *describe(const sn_model *model, const sn_chain *chain, const sn_generator *g, const json_t *more) {
    const sn_hparams *hp = sn_model_hparams(model);
    sn_hash id = sn_model_id(model);
    sn_chance chance = sn_generator_chance(g);
    sn_hash adapter = adapter_of(chain, hp->n_embd);
    size_t n;
    const int32_t *ids = sn_generator_ids(g, &n);
    json_t *o = json_object(), *blocks = json_array(), *tokens = json_array();
    for (int b = 0; b < hp->n_blocks; b++) json_array_append_new(blocks, hex(&sn_chain_weights(chain)[b], SN_HASH_SIZE));
    for (size_t i = 0; i < n; i++) json_array_append_new(tokens, json_integer(ids[i]));
    json_object_set_new(o, "model", hex(&id, sizeof id));
    json_object_set_new(o, "adapter", hex(&adapter, sizeof adapter));
    json_object_set_new(o, "blocks", blocks);
    json_object_set_new(o, "ids", tokens);
    json_object_set_new(o, "seen", json_integer(sn_chain_length(chain)));
    json_object_set_new(o, "piece", json_integer(piece_tokens(hp)));
    json_object_set_new(o, "chance", hex(chance.state, sizeof chance.state));
    if (more) json_object_set(o, "more", (json_t *)(uintptr_t)more);
    return o;
}

static sn_status write_text(sn_locked *file, json_t *o, sn_err *err) {
    char *text = json_dumps(o, JSON_COMPACT);
    size_t len = text ? strlen(text) : 0;
    if (!text) return sn_fail(err, SN_STOP, "out of memory for describing the session");
    uint8_t head[4] = {(uint8_t)len, (uint8_t)(len >> 8), (uint8_t)(len >> 16), (uint8_t)(len >> 24)};
    sn_status status = len <= TEXT_MAX ? sn_locked_write(file, head, sizeof head, err)
                                       : sn_fail(err, SN_REFUSED, "a session with so much text cannot be saved");
    if (!status) status = sn_locked_write(file, text, len, err);
    free(text);
    return status;
}

sn_status sn_saved_write(const char *path, const sn_lock_key *secret, const sn_model *model, sn_chain *chain,
                         const sn_generator *generator, const json_t *more, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(model);
    sn_locked *file = NULL;
    float *rows = NULL;
    int piece = piece_tokens(hp), seen = sn_chain_length(chain), all = seen ? sn_chain_tuned_by(chain)->n_prompt + seen : 0;
    size_t n;
    (void)sn_generator_ids(generator, &n);
    if (n < (size_t)seen || n > (size_t)seen + 1) return sn_fail(err, SN_REFUSED, "the session broke off: it cannot be saved");
    json_t *o = describe(model, chain, generator, more);
    sn_status status = sn_locked_create(path, MAGIC, secret, &file, err);
    if (!status) status = write_text(file, o, err);
    json_decref(o);
    if (!status) status = sn_calloc(&rows, (size_t)piece * row_floats(hp), sizeof *rows, err);
    for (int at = 0, m; at < all && !status; at += m) {
        m = piece < all - at ? piece : all - at;
        status = sn_chain_get_past(chain, at, m, rows, err);
        if (!status) status = sn_locked_write(file, rows, (size_t)m * row_floats(hp) * sizeof *rows, err);
    }
    if (!status) status = sn_locked_commit(file, err);
    sn_locked_close(&file);
    free(rows);
    return status ? sn_err_context(err, "the session is not saved") : SN_OK;
}

/* -- reading ------------------------------------------------------------------------------------------------------- */

static sn_status read_text(sn_saved *s, const char *path, sn_err *err) {
    uint8_t head[4];
    char *text = NULL;
    sn_status status = sn_locked_read(s->file, head, sizeof head, err);
    if (status) return status;
    size_t len = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
    if (len > TEXT_MAX) return sn_fail(err, SN_REFUSED, "%s is no saved session", path);
    status = sn_calloc(&text, len + 1, 1, err);
    if (!status) status = sn_locked_read(s->file, text, len, err);
    if (!status && !(s->text = json_loadb(text, len, 0, NULL))) status = sn_fail(err, SN_REFUSED, "%s is no saved session", path);
    free(text);
    return status;
}

static bool has_hash(const json_t *text, const sn_hash *hash) {
    char own[2 * SN_HASH_SIZE + 1];
    const char *there = json_string_value(text);
    return there && !strcmp(there, sn_hex(hash, SN_HASH_SIZE, own));
}

static sn_status understand(sn_saved *s, const char *path, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(s->model);
    sn_hash id = sn_model_id(s->model);
    const json_t *ids = json_object_get(s->text, "ids"), *seen = json_object_get(s->text, "seen");
    const char *chance = json_string_value(json_object_get(s->text, "chance"));
    if (!has_hash(json_object_get(s->text, "model"), &id))
        return sn_fail(err, SN_REFUSED, "%s is a session with another model: give the one that it was begun with", path);
    s->n = json_array_size(ids);
    s->seen = (size_t)json_integer_value(seen);
    if (!json_is_integer(seen) || !chance || json_integer_value(seen) < 0 || s->seen > s->n || s->n - s->seen > 1 ||
        json_integer_value(json_object_get(s->text, "piece")) != piece_tokens(hp) ||
        sn_unhex(chance, s->chance.state, sizeof s->chance.state, err))
        return sn_fail(err, SN_REFUSED, "%s is a saved session that this version cannot read", path);
    sn_status status = sn_calloc(&s->ids, s->n, sizeof *s->ids, err);
    for (size_t i = 0; i < s->n && !status; i++) {
        json_int_t value = json_integer_value(json_array_get(ids, i));
        if (value < 0 || value >= hp->n_vocab) status = sn_fail(err, SN_REFUSED, "%s names tokens that are not in this model", path);
        s->ids[i] = (int32_t)value;
    }
    return status;
}

sn_status sn_saved_open(const char *path, const sn_lock_key *secret, const sn_model *model, sn_saved **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    (*out)->model = model;
    status = sn_locked_open(path, MAGIC, secret, &(*out)->file, err);
    if (!status) status = read_text(*out, path, err);
    if (!status) status = understand(*out, path, err);
    if (status) sn_saved_close(out);
    return status;
}

const int32_t *sn_saved_ids(const sn_saved *saved, size_t *n) {
    *n = saved->n;
    return saved->ids;
}

const json_t *sn_saved_more(const sn_saved *saved) { return json_object_get(saved->text, "more"); }

void sn_saved_close(sn_saved **saved) {
    sn_saved *s = *saved;
    if (!s) return;
    sn_locked_close(&s->file);
    json_decref(s->text);
    free(s->ids);
    free(s);
    *saved = NULL;
}

/* -- going on ------------------------------------------------------------------------------------------------------ */

static int past_tokens(const sn_saved *s) { return s->seen ? (int)(s->virtual + s->seen) : 0; }

/* What the timelines at the nodes go on from: the model, and the tokens up to each position, virtual ones first. */
static sn_status make_marks(const sn_saved *s, sn_hash **out, sn_err *err) {
    static const char text[] = "swarm saved session 1";
    sn_hash id = sn_model_id(s->model);
    sn_hasher *hasher = sn_hasher_new();
    size_t n = (size_t)past_tokens(s);
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

static sn_status check_weights(const sn_saved *s, const sn_chain *chain, sn_err *err) {
    const sn_hash adapter = adapter_of(chain, sn_model_hparams(s->model)->n_embd);
    if (!has_hash(json_object_get(s->text, "adapter"), &adapter))
        return sn_fail(err, SN_REFUSED, "the session was saved with another --adapter, or with none: give the same");
    const json_t *blocks = json_object_get(s->text, "blocks");
    for (int b = 0; b < sn_model_hparams(s->model)->n_blocks; b++)
        if (!has_hash(json_array_get(blocks, (size_t)b), &sn_chain_weights(chain)[b]))
            return sn_fail(err, SN_REFUSED, "block %d has other weights in this swarm than where the session was saved", b);
    return SN_OK;
}

static sn_status put_all(sn_saved *s, sn_chain *chain, const sn_hash *marks, sn_err *err) {
    const sn_hparams *hp = sn_model_hparams(s->model);
    int piece = piece_tokens(hp), all = past_tokens(s);
    float *rows = NULL;
    sn_status status = sn_calloc(&rows, (size_t)piece * row_floats(hp), sizeof *rows, err);
    for (int at = 0, m; at < all && !status; at += m) {
        m = piece < all - at ? piece : all - at;
        status = sn_locked_read(s->file, rows, (size_t)m * row_floats(hp) * sizeof *rows, err);
        if (!status) status = sn_chain_put_past(chain, at, m, rows, marks, err);
    }
    free(rows);
    return status ? status : sn_locked_ended(s->file, err);
}

sn_status sn_saved_restore(sn_saved *s, sn_head *head, sn_chain *chain, sn_generator *generator, sn_err *err) {
    const sn_chain_tuned *tuned = sn_chain_tuned_by(chain);
    size_t width = (size_t)sn_model_hparams(s->model)->n_embd, before = (size_t)tuned->n_prompt;
    s->virtual = before;
    sn_hash *marks = NULL;
    float *inputs = NULL; /* kept by the chain, in case that a node dies */
    sn_status status = sn_generator_go_on(generator, s->ids, s->n, s->seen, &s->chance, err);
    if (!status) status = check_weights(s, chain, err);
    if (!status) status = make_marks(s, &marks, err);
    if (!status) status = put_all(s, chain, marks, err);
    if (!status) status = sn_calloc(&inputs, (before + s->seen) * width, sizeof *inputs, err);
    if (!status && before) memcpy(inputs, tuned->prompt, before * width * sizeof *inputs);
    for (size_t at = 0; at < s->seen && !status; at += EMBED_ROWS)
        status = sn_head_embed(head, s->ids + at, (int)sn_min_size(EMBED_ROWS, s->seen - at), inputs + (before + at) * width, err);
    if (!status) status = sn_chain_go_on(chain, past_tokens(s), marks, inputs, err);
    free(marks);
    free(inputs);
    return status ? sn_err_context(err, "the session does not go on") : SN_OK;
}
