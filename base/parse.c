/* Sizes, durations, addresses and words. Each parser takes what a person types, and refuses the rest with
 * a sentence that says what to write. */
#include "base/parse.h"

#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

sn_status sn_parse_size(const char *text, size_t *bytes, sn_err *err) {
    static const struct {
        const char *word;
        double factor;
    } units[] = {{"", 1},         {"B", 1},      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
                 {"TiB", 0x1p40}, {"KB", 1e3},   {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
                 {"K", 0x1p10},   {"M", 0x1p20}, {"G", 0x1p30}};
    char *unit;
    double number = strtod(text, &unit);
    if (unit != text && number >= 0)
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            if (!strcmp(unit, units[i].word) && number * units[i].factor < 0x1p62) {
                *bytes = (size_t)(number * units[i].factor);
                return SN_OK;
            }
    return sn_fail(err, SN_REFUSED,
                   "'%s' is no size: write a number with the unit B, KiB, MiB, GiB, KB, MB or GB, as in 512MiB", text);
}

sn_status sn_parse_int(const char *text, int64_t low, int64_t high, int64_t *out, sn_err *err) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < low || value > high)
        return sn_fail(err, SN_REFUSED, "'%s' must be a whole number from %lld to %lld", text, (long long)low,
                       (long long)high);
    *out = value;
    return SN_OK;
}

sn_status sn_parse_float(const char *text, double low, double high, double *out, sn_err *err) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value < low || value > high)
        return sn_fail(err, SN_REFUSED, "'%s' must be a number from %g to %g", text, low, high);
    *out = value;
    return SN_OK;
}

static const struct {
    const char *name;
    int64_t ms;
} duration_units[] = {{"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};
enum { N_DURATION_UNITS = sizeof duration_units / sizeof *duration_units };

sn_status sn_parse_duration(const char *text, int64_t *ms, sn_err *err) {
    char *unit;
    double number = strtod(text, &unit);
    if (unit != text && number >= 0)
        for (size_t i = 0; i < N_DURATION_UNITS; i++) {
            double value = number * (double)duration_units[i].ms;
            if (strcmp(*unit ? unit : "s", duration_units[i].name) || value > 0x1p52) continue;
            *ms = (int64_t)(value + 0.5);
            return SN_OK;
        }
    return sn_fail(err, SN_REFUSED,
                   "'%.60s' is no duration: write a number with the unit ms, s, m or h, as in 500ms or 5m; a number "
                   "without a unit is in seconds",
                   text);
}

sn_status sn_parse_blocks(const char *text, int *first, int *end, sn_err *err) {
    char *at, *rest = NULL;
    long a = strtol(text, &at, 10), b = 0;
    if (at != text && *at == ':') b = strtol(at + 1, &rest, 10);
    if (!rest || rest == at + 1 || *rest || a < 0 || b <= a || b > INT_MAX)
        return sn_fail(err, SN_REFUSED, "'%s' is no range of blocks: write A:B, first and end, as in 10:20", text);
    *first = (int)a;
    *end = (int)b;
    return SN_OK;
}

static bool host_is_valid(const char *host, size_t len, bool to_listen) {
    /* No ';' and no '/': they have a meaning of their own in endpoints of ZeroMQ. */
    static const char name[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.";
    if (to_listen && len == 1 && *host == '*') return true;
    if (len > 2 && host[0] == '[' && host[len - 1] == ']')
        return strspn(host + 1, "0123456789abcdefABCDEF:.") == len - 2;
    return len && strspn(host, name) >= len;
}

/* The port in the `len` characters at `text`, or -1. */
static int parse_port(const char *text, size_t len, bool to_listen) {
    int value = 0;
    if (!len || len > 5 || strspn(text, "0123456789") < len) return -1;
    for (size_t i = 0; i < len; i++) value = value * 10 + (text[i] - '0');
    return value <= 65535 && (value || to_listen) ? value : -1;
}

sn_status sn_parse_host_port(const char *text, sn_host_port_form form, sn_host_port *out, sn_err *err) {
    static const char tcp[] = "tcp://";
    bool to_listen = form == SN_HOST_PORT_LISTEN;
    if (form == SN_HOST_PORT_PINNED && !strcmp(text, "lan")) {
        *out = (sn_host_port){.host = "lan", .len = strlen("lan")};
        return SN_OK;
    }
    const char *key = form == SN_HOST_PORT_PINNED ? strchr(text, '#') : NULL;
    size_t len = key ? (size_t)(key - text) : strnlen(text, SN_HOST_PORT_MAX + 1);
    if (len > SN_HOST_PORT_MAX)
        return sn_fail(err, SN_REFUSED, "an address has at most %d bytes: give a shorter one", SN_HOST_PORT_MAX);
    if (!strncmp(text, tcp, strlen(tcp)))
        return sn_fail(err, SN_REFUSED, "'%.*s' begins with %s, which an address does not have: write %s", (int)len,
                       text, tcp, len > strlen(tcp) ? text + strlen(tcp) : "HOST:PORT");
    size_t suffix = strlen(SN_RELAYED);
    bool relayed = !to_listen && len > suffix && !memcmp(text + len - suffix, SN_RELAYED, suffix);
    size_t plain_len = len - (relayed ? suffix : 0);
    const char *colon = memrchr(text, ':', plain_len);
    size_t host_len = colon ? (size_t)(colon - text) : 0;
    int port = colon ? parse_port(colon + 1, plain_len - host_len - 1, to_listen) : -1;
    if (port < 0 || !host_is_valid(text, host_len, to_listen))
        return sn_fail(err, SN_REFUSED, "'%.*s' is no address: write HOST:PORT, as in 127.0.0.1:31330 or [::1]:31330%s",
                       (int)len, text, form == SN_HOST_PORT_PINNED ? "; #KEY may follow it" : "");
    *out = (sn_host_port){.port = port, .len = len, .relayed = relayed, .pinned = key};
    bool bracketed = text[0] == '[';
    memcpy(out->host, text + bracketed, host_len - 2 * bracketed);
    return key ? sn_unhex(key + 1, out->key, sizeof out->key, err) : SN_OK;
}

char *sn_format_size(size_t bytes, char out[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double n = (double)bytes;
    int unit = 0;
    for (; n >= 1024 && unit < 4; unit++) n /= 1024;
    snprintf(out, 32, unit ? "%.1f %s" : "%.0f %s", n, units[unit]);
    return out;
}

char *sn_format_duration(int64_t ms, char out[32]) {
    size_t i = 0;
    while (i + 1 < N_DURATION_UNITS && (!ms || ms % duration_units[i].ms)) i++;
    snprintf(out, 32, "%lld%s", (long long)(ms / duration_units[i].ms), ms ? duration_units[i].name : "");
    return out;
}

const char *sn_word_name(const sn_word *words, int value) {
    while (words->name && words->value != value) words++;
    return words->name;
}

bool sn_word_value(const sn_word *words, const char *name, int *value) {
    while (words->name && strcmp(words->name, name)) words++;
    if (words->name) *value = words->value;
    return words->name != NULL;
}

void sn_sanitize_text(char *text) {
    for (; *text; text++)
        if (*text < ' ' || *text > '~') *text = '?';
}
