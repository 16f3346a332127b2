/* A session in a file. The caller's bytes are saved as a JSON text if they are UTF-8, else in hexadecimal. */
#include "client/api/api_private.h"

#include <stdlib.h>
#include <string.h>

enum { EXTRA_MAX = 64 << 20 };

static sn_status make_extra(const char *extra, size_t length, json_t **out, sn_err *err) {
    char *hex = NULL;
    *out = NULL;
    if (!extra) return SN_OK;
    if (length > EXTRA_MAX)
        return sn_fail(err, SN_REFUSED, "%zu bytes of extra are too many: a file holds %d", length, (int)EXTRA_MAX);
    if ((*out = json_stringn(extra, length))) return SN_OK;
    sn_status status = sn_calloc(&hex, 2 * length + 1, 1, err);
    if (!status) *out = json_pack("{ss}", "hex", sn_hex(extra, length, hex));
    free(hex);
    return status || *out ? status : sn_fail(err, SN_STOP, "out of memory for a JSON text");
}

static sn_status load_key(const swarm_session *s, const char *path, sn_file_key *out, sn_err *err) {
    if (!path) path = s->options.settings.session.key;
    if (!path && s->connection) path = s->connection->options.settings.common.identity;
    if (path) return sn_file_key_load(path, out, err);
    return sn_fail(err, SN_REFUSED,
                   "a saved session is encrypted: give --session-key FILE (made by: head -c 32 /dev/urandom > FILE; "
                   "chmod 600 FILE), or --identity");
}

swarm_code swarm_session_save(swarm_session *s, const char *path, const char *key_path, const char *extra,
                              size_t length, swarm_error **error) {
    sn_err err;
    json_t *value = NULL;
    sn_file_key secret = {0};
    sn_session_begin(s);
    sn_status status = sn_session_needs_tokens(s, &err);
    if (!status) status = load_key(s, key_path, &secret, &err);
    if (!status) status = make_extra(extra, length, &value, &err);
    if (!status)
        status = sn_session_file_write(path, &secret, s->setup.model, s->setup.chain, s->generator, value, &err);
    json_decref(value);
    sn_file_key_fini(&secret);
    return sn_session_end(s, status, &err, error);
}

static sn_status take_extra(swarm_session *s, const json_t *extra, sn_err *err) {
    const json_t *hex = json_object_get(extra, "hex");
    const char *text = json_string_value(hex ? hex : extra);
    size_t length = json_string_length(hex ? hex : extra);
    char *bytes = NULL, *dumped = NULL;
    sn_status status = SN_OK;
    s->extra.len = 0;
    s->has_extra = extra != NULL;
    if (hex && text) {
        status = sn_calloc(&bytes, length / 2 + 1, 1, err);
        if (!status) status = sn_unhex(text, (uint8_t *)bytes, length / 2, err);
        text = bytes;
        length /= 2;
    } else if (extra && !text) { /* of the program's own files: a JSON value */
        text = dumped = json_dumps(extra, JSON_ENCODE_ANY);
        length = text ? strlen(text) : 0;
    }
    if (!status && text) status = sn_buf_append(&s->extra, text, length, err);
    if (!status) status = sn_buf_append(&s->extra, "", 1, err);
    free(bytes);
    free(dumped);
    return status;
}

sn_status sn_session_open_saved(const swarm_session *s, const char *path, const char *key_path, sn_session_file **out,
                                sn_err *err) {
    sn_file_key secret = {0};
    if (s->options.settings.audit.share > 0)
        return sn_fail(err, SN_REFUSED,
                       "--audit cannot check a KV cache that comes from a file: leave out --load or --audit");
    sn_status status = load_key(s, key_path, &secret, err);
    if (!status) status = sn_session_file_open(path, &secret, s->setup.model, out, err);
    sn_file_key_fini(&secret);
    return status;
}

sn_status sn_session_restore(swarm_session *s, sn_session_file *saved, sn_err *err) {
    sn_status status = sn_session_file_restore(saved, s->setup.lm_head, s->setup.chain, s->generator, err);
    if (!status) status = take_extra(s, sn_session_file_extra(saved), err);
    s->seeded = !status;
    return status;
}

static sn_status session_load(swarm_session *s, const char *path, const char *key_path, sn_err *err) {
    size_t n;
    sn_session_file *file = NULL;
    (void)sn_generator_ids(s->generator, &n);
    if (n || s->seeded) return sn_fail(err, SN_REFUSED, "a file is read into a session that has just been opened");
    sn_status status = sn_session_open_saved(s, path, key_path, &file, err);
    if (!status) status = sn_session_restore(s, file, err);
    sn_session_file_close(&file);
    return status;
}

swarm_code swarm_session_load(swarm_session *s, const char *path, const char *key_path, swarm_error **error) {
    sn_err err;
    sn_session_begin(s);
    sn_status status = sn_session_needs_tokens(s, &err);
    if (!status) status = session_load(s, path, key_path, &err);
    return sn_session_end(s, status, &err, error);
}

const char *swarm_session_extra(const swarm_session *s, size_t *length) {
    if (!s->has_extra) return NULL;
    if (length) *length = s->extra.len - 1;
    return (const char *)s->extra.data;
}
