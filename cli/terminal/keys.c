#include "cli/terminal/keys.h"

#include <string.h>

enum { PASTE_MARK = sizeof SN_KEYS_PASTE_BEGINS - 1, NO_CHARACTER = 0xfffd, ESC = 27 };

/* -- UTF-8 -- */

size_t sn_utf8_next(const uint8_t *text, size_t n, uint32_t *character) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint8_t first = text[0];
    size_t bytes = first < 0x80 ? 1 : first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : 4;
    *character = NO_CHARACTER;
    if ((first >= 0x80 && first < 0xc2) || first > 0xf4) return 1;
    uint32_t c = bytes == 1 ? first : first & (0x7fu >> bytes);
    for (size_t i = 1; i < bytes; i++) {
        if (i == n) return 0;
        if ((text[i] & 0xc0) != 0x80) return 1;
        c = c << 6 | (text[i] & 0x3f);
    }
    if (c < least[bytes] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 1;
    *character = c;
    return bytes;
}

size_t sn_utf8_put(uint32_t c, char out[4]) {
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t bytes = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = bytes - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((0xf00u >> bytes & 0xf0) | c);
    return bytes;
}

/* -- keys -- */

void sn_keys_init(sn_keys *keys, size_t limit) {
    *keys = (sn_keys){0};
    sn_buf_init(&keys->bytes, limit);
}

void sn_keys_fini(sn_keys *keys) { sn_buf_fini(&keys->bytes); }

void sn_keys_drop(sn_keys *keys) {
    keys->bytes.len = keys->used = keys->seen = 0;
    keys->in_paste = false;
}

static void forget_used(sn_keys *keys) {
    if (!keys->used) return;
    keys->bytes.len -= keys->used;
    memmove(keys->bytes.data, keys->bytes.data + keys->used, keys->bytes.len);
    keys->used = 0;
}

sn_status sn_keys_push(sn_keys *keys, const void *bytes, size_t n, sn_err *err) {
    forget_used(keys);
    sn_status status = sn_buf_append(&keys->bytes, bytes, n, err);
    if (!status) return SN_OK;
    sn_keys_drop(keys);
    return sn_err_context(err, "the paste is too long");
}

/* Pasted bytes as text: terminals send "\r" for the end of a line. */
static sn_status put_paste(const uint8_t *text, size_t n, sn_buf *out, sn_err *err) {
    sn_status status = SN_OK;
    size_t begin = 0, at = 0; /* text[begin, at) is copied as it is */
    while (at < n && !status) {
        uint32_t c;
        size_t bytes = sn_utf8_next(text + at, n - at, &c);
        if (!bytes) { /* the text ends within a character */
            bytes = 1;
            c = NO_CHARACTER;
        }
        bool broken = c == NO_CHARACTER && bytes == 1;
        if (c && c != '\r' && !broken) {
            at += bytes;
            continue;
        }
        status = sn_buf_append(out, text + begin, at - begin, err);
        if (c == '\r' && at + 1 < n && text[at + 1] == '\n') bytes = 2;
        if (!status && c == '\r') status = sn_buf_append(out, "\n", 1, err);
        if (!status && broken) status = sn_buf_append(out, "\xef\xbf\xbd", 3, err);
        at += bytes;
        begin = at;
    }
    return status ? status : sn_buf_append(out, text + begin, at - begin, err);
}

static sn_key next_in_paste(sn_keys *keys, sn_buf *paste, sn_status *status, sn_err *err) {
    const uint8_t *text = keys->bytes.data + keys->used;
    size_t n = keys->bytes.len - keys->used;
    size_t from = keys->seen > PASTE_MARK ? keys->seen - PASTE_MARK : 0;
    const uint8_t *end = n > from ? memmem(text + from, n - from, SN_KEYS_PASTE_ENDS, PASTE_MARK) : NULL;
    keys->seen = n;
    if (!end) return SN_KEY_NONE;
    *status = put_paste(text, (size_t)(end - text), paste, err);
    keys->used += (size_t)(end - text) + PASTE_MARK;
    keys->seen = 0;
    keys->in_paste = false;
    return SN_KEY_PASTE;
}

sn_key sn_keys_next(sn_keys *keys, uint32_t *character, sn_buf *paste, sn_status *status, sn_err *err) {
    *status = SN_OK;
    if (keys->in_paste) return next_in_paste(keys, paste, status, err);
    size_t n = keys->bytes.len - keys->used;
    if (!n) return SN_KEY_NONE;
    const uint8_t *text = keys->bytes.data + keys->used;
    if (*text == ESC && !memcmp(text, SN_KEYS_PASTE_BEGINS, sn_min_size(n, PASTE_MARK))) {
        if (n < PASTE_MARK) return SN_KEY_NONE;
        keys->used += PASTE_MARK;
        keys->in_paste = true;
        return next_in_paste(keys, paste, status, err);
    }
    size_t bytes = sn_utf8_next(text, n, character);
    keys->used += bytes;
    return bytes ? SN_KEY_CHARACTER : SN_KEY_NONE;
}

/* -- typed ahead -- */

/* Skips the rest of an escape sequence: "[" parameters and a final byte, "O" and a byte, or one character. */
static void skip_sequence(sn_keys *keys) {
    const uint8_t *text = keys->bytes.data + keys->used;
    size_t n = keys->bytes.len - keys->used, at = 0;
    if (!n) return;
    bool introduced = text[0] == '[' || text[0] == 'O';
    at = 1;
    if (introduced) {
        while (at < n && text[0] == '[' && text[at] >= 0x20 && text[at] < 0x40) at++;
        if (at < n) at++;
    }
    keys->used += at;
}

static void remove_last_character(sn_buf *out, size_t begin) {
    while (out->len > begin) {
        out->len--;
        if ((out->data[out->len] & 0xc0) != 0x80) return;
    }
}

sn_status sn_keys_typed_ahead(sn_keys *keys, sn_buf *out, sn_err *err) {
    enum { BACKSPACE = 8, DELETE = 127 };
    size_t begin = out->len;
    sn_status status = SN_OK;
    sn_key key;
    uint32_t c;
    while (!status && (key = sn_keys_next(keys, &c, out, &status, err)) != SN_KEY_NONE) {
        if (key == SN_KEY_PASTE || status) continue;
        char text[4];
        if (c == ESC)
            skip_sequence(keys);
        else if (c == BACKSPACE || c == DELETE)
            remove_last_character(out, begin);
        else if (c == '\r' || c == '\n')
            status = sn_buf_append(out, "\n", 1, err);
        else if (c >= ' ' && !(c >= 0x80 && c < 0xa0))
            status = sn_buf_append(out, text, sn_utf8_put(c, text), err);
    }
    while (out->len > begin && out->data[out->len - 1] == '\n') out->len--;
    size_t lead = begin;
    while (lead < out->len && out->data[lead] == '\n') lead++;
    if (lead > begin) memmove(out->data + begin, out->data + lead, out->len - lead);
    out->len -= lead - begin;
    return status;
}
