#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static sn_status fail(sn_err *err, sn_status status, sn_reason reason, const char *format, va_list args) {
    if (!err) return status;
    err->status = status;
    err->reason = reason;
    err->retry_after_ms = 0;
    vsnprintf(err->text, sizeof err->text, format, args);
    return status;
}

sn_status sn_fail(sn_err *err, sn_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fail(err, status, SN_REASON_NONE, format, args);
    va_end(args);
    return status;
}

sn_status sn_fail_because(sn_err *err, sn_status status, sn_reason reason, const char *format, ...) {
    va_list args;
    va_start(args, format);
    fail(err, status, reason, format, args);
    va_end(args);
    return status;
}

sn_status sn_err_context(sn_err *err, const char *format, ...) {
    if (!err) return SN_STOP;
    char context[sizeof err->text], whole[2 * sizeof err->text + 4];
    va_list args;
    va_start(args, format);
    vsnprintf(context, sizeof context, format, args);
    va_end(args);
    snprintf(whole, sizeof whole, "%s: %s", context, err->text);
    whole[sizeof err->text - 1] = 0;
    memcpy(err->text, whole, sizeof err->text);
    return err->status;
}

const char *sn_status_name(sn_status status) {
    static const char *const names[] = {"ok", "retry", "rebuild", "refused", "stop"};
    return (unsigned)status < sizeof names / sizeof *names ? names[status] : "unknown";
}
