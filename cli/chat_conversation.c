#include "cli/chat_conversation.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MESSAGES_MAX = 1 << 16, FILE_MAX = 1 << 30 };

static const char *role_of(const json_t *messages, size_t i) {
    const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
    return role ? role : "";
}

static bool has_system(const json_t *messages) { return !strcmp(role_of(messages, 0), "system"); }

static sn_status make_message(const char *role, const char *text, size_t n, json_t **out, sn_err *err) {
    json_t *content = json_stringn(text, n);
    *out = NULL;
    if (!content) return sn_fail(err, SN_REFUSED, "the message is not valid UTF-8");
    *out = json_pack("{s:s, s:o}", "role", role, "content", content);
    return *out ? SN_OK : sn_fail(err, SN_STOP, "out of memory for a message");
}

sn_status sn_conversation_add(json_t *messages, const char *role, const char *text, size_t n, sn_err *err) {
    json_t *message;
    if (json_array_size(messages) >= MESSAGES_MAX)
        return sn_fail(err, SN_REFUSED, "the conversation has %d messages, which is the limit: /reset begins a new one",
                       (int)MESSAGES_MAX);
    sn_status status = make_message(role, text, n, &message, err);
    if (!status && json_array_append_new(messages, message)) status = sn_fail(err, SN_STOP, "out of memory");
    return status;
}

sn_status sn_conversation_set_system(json_t *messages, const char *text, sn_err *err) {
    json_t *message = NULL;
    sn_status status = text ? make_message("system", text, strlen(text), &message, err) : SN_OK;
    if (status) return status;
    if (has_system(messages)) json_array_remove(messages, 0);
    if (message && json_array_insert_new(messages, 0, message)) status = sn_fail(err, SN_STOP, "out of memory");
    return status;
}

const char *sn_conversation_system(const json_t *messages) {
    return has_system(messages) ? json_string_value(json_object_get(json_array_get(messages, 0), "content")) : NULL;
}

void sn_conversation_cut(json_t *messages, size_t n) {
    while (json_array_size(messages) > n) json_array_remove(messages, json_array_size(messages) - 1);
}

void sn_conversation_reset(json_t *messages) { sn_conversation_cut(messages, has_system(messages)); }

size_t sn_conversation_last_turn(const json_t *messages) {
    size_t n = json_array_size(messages);
    for (size_t i = n; i > 0; i--)
        if (!strcmp(role_of(messages, i - 1), "user")) return i - 1;
    return n;
}

size_t sn_conversation_turns(const json_t *messages) {
    size_t turns = 0;
    for (size_t i = 0; i < json_array_size(messages); i++) turns += !strcmp(role_of(messages, i), "user");
    return turns;
}

/* -- in a file -- */

sn_status sn_conversation_check(const json_t *messages, sn_err *err) {
    if (!json_is_array(messages) || json_array_size(messages) > MESSAGES_MAX)
        return sn_fail(err, SN_REFUSED, "it holds no array of messages");
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!*role_of(messages, i) || !json_is_string(json_object_get(json_array_get(messages, i), "content")))
            return sn_fail(err, SN_REFUSED, "message %zu has no role or no content", i);
    return SN_OK;
}

sn_status sn_conversation_save(const json_t *messages, const char *path, bool overwrite, sn_err *err) {
    if (!overwrite && !access(path, F_OK))
        return sn_fail(err, SN_REFUSED, "%s exists: choose another name, or remove it first", path);
    json_t *whole = json_pack("{s:O}", "messages", messages);
    char *text = whole ? json_dumps(whole, JSON_INDENT(1)) : NULL;
    json_decref(whole);
    if (!text) return sn_fail(err, SN_STOP, "out of memory for the conversation");
    mode_t before = umask(077);
    sn_status status = sn_file_replace(path, text, strlen(text), err);
    umask(before);
    free(text);
    return status;
}

sn_status sn_conversation_load(const char *path, json_t **out, sn_err *err) {
    sn_buf file;
    *out = NULL;
    sn_status status = sn_read_file(path, FILE_MAX, &file, err);
    if (status) return status;
    json_error_t where;
    json_t *whole = json_loadb((const char *)file.data, file.len, JSON_ALLOW_NUL, &where);
    sn_buf_fini(&file);
    if (!whole) return sn_fail(err, SN_REFUSED, "%s:%d holds no JSON: %.200s", path, where.line, where.text);
    json_t *messages = json_is_array(whole) ? whole : json_object_get(whole, "messages");
    status = sn_conversation_check(messages, err);
    if (status)
        sn_err_context(err, "%s is no conversation", path);
    else
        *out = json_incref(messages);
    json_decref(whole);
    return status;
}
