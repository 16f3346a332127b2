#include "client/generate/stop_strings.h"

#include <string.h>

sn_status sn_stop_strings_init(sn_stop_strings *h, const char *const *stops, size_t n_stops, sn_err *err) {
    *h = (sn_stop_strings){.stops = stops, .n_stops = n_stops};
    if (n_stops > SN_STOP_STRINGS_MAX)
        return sn_fail(err, SN_REFUSED, "at most %d stop strings can be given", (int)SN_STOP_STRINGS_MAX);
    for (size_t i = 0; i < n_stops; i++)
        if (!*stops[i] || strlen(stops[i]) > SN_STOP_STRING_LEN_MAX)
            return sn_fail(err, SN_REFUSED, "a stop string must have 1 to %d bytes", (int)SN_STOP_STRING_LEN_MAX);
    sn_buf_init(&h->held, (size_t)1 << 24);
    return SN_OK;
}

void sn_stop_strings_fini(sn_stop_strings *h) {
    sn_buf_fini(&h->held);
    *h = (sn_stop_strings){0};
}

/* The length of the character at `s`, of n > 0 bytes; with *valid false, the number of bytes that one U+FFFD replaces;
 * 0: more bytes may complete the character. Unicode 15, table 3-7. */
static size_t utf8_character(const uint8_t *s, size_t n, bool *valid) {
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

/* Moves held[0, len) to `out` as valid UTF-8; an incomplete character at its end stays held unless `all`. */
static sn_status stop_strings_release(sn_stop_strings *h, size_t len, bool all, sn_buf *out, sn_err *err) {
    size_t at = 0;
    sn_status status = SN_OK;
    while (at < len && !status) {
        bool valid;
        size_t n = utf8_character(h->held.data + at, len - at, &valid);
        if (!n && !all) break;
        if (!n) n = len - at;
        status = valid ? sn_buf_append(out, h->held.data + at, n, err) : sn_buf_append(out, "\xef\xbf\xbd", 3, err);
        if (!status) at += n;
    }
    if (at) memmove(h->held.data, h->held.data + at, h->held.len - at);
    h->held.len -= at;
    return status;
}

/* Where the earliest stop string begins in the held bytes; held.len: there is none. */
static size_t stop_strings_find(const sn_stop_strings *h) {
    size_t first = h->held.len;
    for (size_t i = 0; i < h->n_stops && h->held.len; i++) {
        const uint8_t *at = memmem(h->held.data, h->held.len, h->stops[i], strlen(h->stops[i]));
        if (at && (size_t)(at - h->held.data) < first) first = (size_t)(at - h->held.data);
    }
    return first;
}

/* How many bytes at the end of the held bytes may be the beginning of a stop string. */
static size_t stop_prefix_len(const sn_stop_strings *h) {
    size_t most = 0;
    for (size_t i = 0; i < h->n_stops; i++) {
        size_t n = sn_min_size(strlen(h->stops[i]) - 1, h->held.len);
        while (n > most && memcmp(h->held.data + h->held.len - n, h->stops[i], n)) n--;
        if (n > most) most = n;
    }
    return most;
}

sn_status sn_stop_strings_push(sn_stop_strings *h, const void *bytes, size_t len, sn_buf *out, sn_err *err) {
    if (h->stopped) return SN_OK;
    sn_status status = sn_buf_append(&h->held, bytes, len, err);
    if (status) return status;
    size_t stop = stop_strings_find(h);
    if (stop < h->held.len) {
        status = stop_strings_release(h, stop, true, out, err);
        h->held.len = 0;
        h->stopped = true;
        return status;
    }
    return stop_strings_release(h, h->held.len - stop_prefix_len(h), false, out, err);
}

sn_status sn_stop_strings_flush(sn_stop_strings *h, sn_buf *out, sn_err *err) {
    sn_status status = stop_strings_release(h, h->held.len, true, out, err);
    h->held.len = 0;
    h->stopped = false;
    return status;
}
