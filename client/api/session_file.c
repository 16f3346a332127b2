/* A session in a file: what a caller adds to it is kept as one JSON string. */
#include "client/api/api_private.h"

#include <stdlib.h>
#include <string.h>

static sn_status session_save(swarm_session *s, const char *path, const char *key_path, json_t *extra, sn_err *err) {
    sn_file_key secret = {0};
    sn_status status = sn_session_needs_tokens(s, err);
    if (!status) status = sn_file_key_load(key_path, &secret, err);
    if (!status)
        status = sn_session_file_write(path, &secret, s->model->model, s->setup.chain, s->generator, extra, err);
    sn_file_key_fini(&secret);
    return status;
}

swarm_code swarm_session_save(swarm_session *s, const char *path, const char *key_path, const char *extra,
                              size_t length, swarm_error **error) {
    sn_err err;
    json_t *value = extra ? json_stringn(extra, length) : NULL;
    sn_status status = extra && !value ? sn_fail(&err, SN_REFUSED, "what is saved with a session must be UTF-8")
                                       : session_save(s, path, key_path, value, &err);
    json_decref(value);
    return sn_api_end(status, &err, s->cancel, error);
}

/* Keeps what was saved with a session: the text of a JSON string, or other JSON as text. */
static sn_status keep_extra(swarm_session *s, const json_t *extra, sn_err *err) {
    char *dumped = NULL;
    s->extra.len = 0;
    s->has_extra = extra != NULL;
    if (!extra) return SN_OK;
    if (!json_is_string(extra) && !(dumped = json_dumps(extra, JSON_COMPACT | JSON_ENCODE_ANY)))
        return sn_fail(err, SN_STOP, "out of memory for what was saved with the session");
    const char *text = dumped ? dumped : json_string_value(extra);
    size_t n = dumped ? strlen(dumped) : json_string_length(extra);
    sn_status status = sn_buf_append(&s->extra, text, n, err);
    if (!status) status = sn_buf_append(&s->extra, "", 1, err);
    if (!status) s->extra.len--;
    free(dumped);
    return status;
}

swarm_code swarm_session_load(swarm_session *s, const char *path, const char *key_path, swarm_error **error) {
    sn_err err;
    sn_file_key secret = {0};
    sn_session_file *file = NULL;
    size_t n = 0;
    sn_status status = sn_session_needs_tokens(s, &err);
    if (!status) (void)sn_generator_ids(s->generator, &n);
    if (!status && n) status = sn_fail(&err, SN_REFUSED, "a file is loaded into a session that has just been opened");
    if (!status && s->setup.audit)
        status = sn_fail(&err, SN_REFUSED, "an audit cannot check a KV cache that comes from a file");
    if (!status) status = sn_file_key_load(key_path, &secret, &err);
    if (!status) status = sn_session_file_open(path, &secret, s->model->model, &file, &err);
    sn_file_key_fini(&secret);
    if (!status) status = sn_session_file_restore(file, s->setup.lm_head, s->setup.chain, s->generator, &err);
    if (!status) status = keep_extra(s, sn_session_file_extra(file), &err);
    if (!status) s->seeded = true; /* its random numbers go on */
    sn_session_file_close(&file);
    return sn_api_end(status, &err, s->cancel, error);
}

const char *swarm_session_extra(const swarm_session *s, size_t *length) {
    *length = s->extra.len;
    return s->has_extra ? (const char *)s->extra.data : NULL;
}
