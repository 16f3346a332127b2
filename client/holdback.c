#include "client/holdback.h"

#include <string.h>

sn_status sn_holdback_init(sn_holdback *h, const char *const *stops, size_t n_stops, sn_err *err) {
    *h = (sn_holdback){.stops = stops, .n_stops = n_stops};
    if (n_stops > SN_STOPS_MAX) return sn_fail(err, SN_REFUSED, "at most %d stop texts are taken", (int)SN_STOPS_MAX);
    for (size_t i = 0; i < n_stops; i++)
        if (!*stops[i] || strlen(stops[i]) > SN_STOP_LEN_MAX)
            return sn_fail(err, SN_REFUSED, "a stop text must have 1 to %d bytes", (int)SN_STOP_LEN_MAX);
    sn_buf_init(&h->held, (size_t)1 << 24);
    return SN_OK;
}

void sn_holdback_fini(sn_holdback *h) {
    sn_buf_fini(&h->held);
    *h = (sn_holdback){0};
}

/* The character at `s`, of n > 0 bytes. Returns how many bytes it has, or, with *valid false, how many bytes one U+FFFD
 * stands for; 0 when the bytes are a beginning that more bytes may complete. Unicode 15, table 3-7. */
static size_t character(const uint8_t *s, size_t n, bool *valid) {
    uint8_t low = 0x80, high = 0xbf;
    size_t len = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    *valid = false;
    if (!len) return 1;
    if (s[0] == 0xe0) low = 0xa0;
    if (s[0] == 0xed) high = 0x9f;
    if (s[0] == 0xf0) low = 0x90;
    if (s[0] == 0xf4) high = 0x8f;
    for (size_t i = 1; i < len; i++) {
        if (i == n) return 0;
        if (s[i] < low || s[i] > high) return i;
        low = 0x80;
        high = 0xbf;
    }
    *valid = true;
    return len;
}

/* Moves held[0, len) out as valid UTF-8; an incomplete character at its end stays held unless `all`. */
static sn_status release(sn_holdback *h, size_t len, bool all, sn_buf *out, sn_err *err) {
    size_t at = 0;
    sn_status status = SN_OK;
    while (at < len && !status) {
        bool valid;
        size_t n = character(h->held.data + at, len - at, &valid);
        if (!n && !all) break;
        if (!n) n = len - at;
        status = valid ? sn_buf_append(out, h->held.data + at, n, err) : sn_buf_append(out, "\xef\xbf\xbd", 3, err);
        if (!status) at += n;
    }
    if (at) memmove(h->held.data, h->held.data + at, h->held.len - at);
    h->held.len -= at;
    return status;
}

/* Where the earliest stop string begins in the held bytes, or held.len. */
static size_t find_stop(const sn_holdback *h) {
    size_t first = h->held.len;
    for (size_t i = 0; i < h->n_stops && h->held.len; i++) {
        const uint8_t *at = memmem(h->held.data, h->held.len, h->stops[i], strlen(h->stops[i]));
        if (at && (size_t)(at - h->held.data) < first) first = (size_t)(at - h->held.data);
    }
    return first;
}

/* How many bytes at the end of the held ones may be the beginning of a stop string. */
static size_t may_become_stop(const sn_holdback *h) {
    size_t most = 0;
    for (size_t i = 0; i < h->n_stops; i++) {
        size_t n = sn_min_size(strlen(h->stops[i]) - 1, h->held.len);
        while (n > most && memcmp(h->held.data + h->held.len - n, h->stops[i], n)) n--;
        if (n > most) most = n;
    }
    return most;
}

sn_status sn_holdback_push(sn_holdback *h, const void *bytes, size_t len, sn_buf *out, sn_err *err) {
    if (h->stopped) return SN_OK;
    sn_status status = sn_buf_append(&h->held, bytes, len, err);
    if (status) return status;
    size_t stop = find_stop(h);
    if (stop < h->held.len) {
        status = release(h, stop, true, out, err);
        h->held.len = 0;
        h->stopped = true;
        return status;
    }
    return release(h, h->held.len - may_become_stop(h), false, out, err);
}

sn_status sn_holdback_end(sn_holdback *h, sn_buf *out, sn_err *err) {
    sn_status status = release(h, h->held.len, true, out, err);
    h->held.len = 0;
    h->stopped = false;
    return status;
}
