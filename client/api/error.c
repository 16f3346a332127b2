#include "client/api/api_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct swarm_error {
    swarm_code code;
    sn_reason reason;
    int64_t retry_after_ms;
    char text[sizeof((sn_err *)0)->text];
};

/* When there is no memory for an error. */
static const swarm_error no_memory = {SWARM_STOP, SN_REASON_NONE, 0, "out of memory"};

const char *swarm_version(void) { return SN_VERSION; }

void swarm_free(void *memory) { free(memory); }

swarm_code swarm_error_code(const swarm_error *error) { return error ? error->code : SWARM_OK; }
const char *swarm_error_text(const swarm_error *error) { return error ? error->text : ""; }
int64_t swarm_error_retry_after_ms(const swarm_error *error) { return error ? error->retry_after_ms : 0; }

const char *swarm_error_reason(const swarm_error *error) {
    static const char *const names[SN_REASONS] = {"", "no_room", "too_long"};
    return error ? names[error->reason] : "";
}

void swarm_error_free(swarm_error *error) {
    if (error != &no_memory) free(error);
}

static swarm_error *error_new(swarm_code code, const char *text, sn_reason reason, int64_t retry_after_ms) {
    swarm_error *error = calloc(1, sizeof *error);
    if (!error) return (swarm_error *)(uintptr_t)&no_memory;
    error->code = code;
    error->reason = reason;
    error->retry_after_ms = retry_after_ms;
    snprintf(error->text, sizeof error->text, "%s", text);
    return error;
}

swarm_code sn_api_end(sn_status status, const sn_err *err, const sn_cancel *cancel, swarm_error **error) {
    if (!status) return SWARM_OK;
    bool cancelled = sn_is_cancelled(cancel);
    swarm_code code = cancelled ? SWARM_CANCELLED : (swarm_code)status;
    if (error)
        *error = cancelled ? error_new(code, "the call was cancelled", SN_REASON_NONE, 0)
                           : error_new(code, err->text, err->reason, err->retry_after_ms);
    return code;
}

swarm_code sn_api_fail(swarm_code code, swarm_error **error, const char *format, ...) {
    char text[sizeof((sn_err *)0)->text];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (error) *error = error_new(code, text, SN_REASON_NONE, 0);
    return code;
}

sn_status sn_api_text(const void *data, size_t len, char **text, size_t *length, sn_err *err) {
    sn_status status = sn_calloc(text, len + 1, 1, err);
    if (status) return status;
    if (len) memcpy(*text, data, len);
    if (length) *length = len;
    return SN_OK;
}

json_t *sn_api_ids_json(const sn_token_ids *ids) {
    json_t *list = json_array();
    for (size_t i = 0; i < ids->n; i++) json_array_append_new(list, json_integer(ids->ids[i]));
    return list;
}

sn_status sn_api_json(json_t *value, char **text, size_t *length, sn_err *err) {
    char *dumped = value ? json_dumps(value, JSON_REAL_PRECISION(12)) : NULL;
    json_decref(value);
    if (!dumped) return sn_fail(err, SN_STOP, "out of memory for a JSON text");
    *text = dumped;
    if (length) *length = strlen(dumped);
    return SN_OK;
}

/* -- cancelling -- */

swarm_cancel *swarm_cancel_new(void) { return calloc(1, sizeof(swarm_cancel)); }
void swarm_cancel_set(swarm_cancel *cancel) { atomic_store(&cancel->flag.set, 1); }
void swarm_cancel_clear(swarm_cancel *cancel) { atomic_store(&cancel->flag.set, 0); }
void swarm_cancel_free(swarm_cancel *cancel) { free(cancel); }
