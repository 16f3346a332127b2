#include "node/rate_options.h"

#include "base/parse.h"

#include <stdbool.h>
#include <string.h>

enum {
    SHARE_DEFAULT = 16 << 20,
    SHARE_MAX = 1 << 30, /* which the own network gets without a rate */
    RELAY_MIN = 64 << 10,
    RELAY_DEFAULT = 4 << 20,
};

sn_status sn_share_rate_parse(const char *text, size_t *rate, size_t *near, sn_err *err) {
    bool on = !strcmp(text, "on"), off = !strcmp(text, "off");
    *rate = on ? SHARE_DEFAULT : 0;
    *near = on ? SHARE_MAX : 0;
    if (on || off) return SN_OK;
    if (sn_parse_size(text, rate, err) || !*rate || *rate > SHARE_MAX)
        return sn_fail(err, SN_REFUSED, "--share-weights is on, off, or a rate in bytes a second, as in 2MiB");
    return SN_OK;
}

sn_status sn_relay_rate_parse(const char *text, int64_t *rate, sn_err *err) {
    size_t bytes = 0;
    *rate = !strcmp(text, "on") ? RELAY_DEFAULT : 0;
    if (*rate || !strcmp(text, "off")) return SN_OK;
    sn_status status = sn_parse_size(text, &bytes, err);
    if (!status && (bytes < RELAY_MIN || bytes > SIZE_MAX / 1024))
        status = sn_fail(err, SN_REFUSED, "give at least 64KiB a second, or off");
    *rate = (int64_t)bytes;
    return status ? sn_err_context(err, "--relay") : SN_OK;
}
