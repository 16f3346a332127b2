#include "gateway/openai/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Cuts what the end of a buffer left of a character, and replaces other bytes that are no UTF-8 by question marks. */
static void make_valid(char *text) {
    for (size_t at = 0, len = strlen(text); at < len;) {
        unsigned char c = (unsigned char)text[at];
        size_t n = c < 0x80 ? 1 : c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC2 ? 2 : 0;
        json_t *whole = n && at + n <= len ? json_stringn(text + at, n) : NULL;
        if (!whole) text[at] = '?';
        json_decref(whole);
        at += whole ? n : 1;
    }
}

bool sn_openai_fail(sn_openai_error *error, int status, const char *code, const char *param, const char *format, ...) {
    va_list args;
    char place[sizeof error->param], sentence[sizeof error->message];
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    snprintf(place, sizeof place, "%s", param ? param : "");
    *error = (sn_openai_error){.status = status, .code = code};
    memcpy(error->message, sentence, sizeof sentence);
    memcpy(error->param, place, sizeof place);
    make_valid(error->message);
    make_valid(error->param);
    return false;
}

bool sn_openai_fail_swarm(sn_openai_error *error, swarm_error *cause) {
    static const struct {
        int status;
        const char *code;
    } of[] = {[SWARM_OK] = {500, NULL},      [SWARM_RETRY] = {503, "no_node"}, [SWARM_REBUILD] = {503, "audit_failed"},
              [SWARM_REFUSED] = {400, NULL}, [SWARM_STOP] = {500, NULL},       [SWARM_CANCELLED] = {503, "cancelled"}};
    swarm_code code = swarm_error_code(cause);
    sn_openai_fail(error, of[code].status, of[code].code, NULL, "%s", swarm_error_text(cause));
    error->retry_after_ms = swarm_error_retry_after_ms(cause);
    swarm_error_free(cause);
    return false;
}

bool sn_openai_fail_err(sn_openai_error *error, const sn_err *cause) {
    int status = cause->status == SN_REFUSED ? 400 : cause->status == SN_STOP ? 500 : 503;
    sn_openai_fail(error, status, NULL, NULL, "%s", cause->text);
    error->retry_after_ms = cause->retry_after_ms;
    return false;
}

static const char *type_of(int status) {
    return status == 401   ? "authentication_error"
           : status == 403 ? "permission_error"
           : status == 404 ? "not_found_error"
           : status == 429 ? "rate_limit_error"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

json_t *sn_openai_error_json(const sn_openai_error *e) {
    return json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", e->message, "type", type_of(e->status), "param",
                     *e->param ? e->param : NULL, "code", e->code);
}

char *sn_openai_error_text(const sn_openai_error *error) {
    json_t *json = sn_openai_error_json(error);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return text;
}
