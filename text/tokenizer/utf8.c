#include "text/tokenizer/utf8.h"

#include <string.h>

size_t sn_utf8_decode(const char *text, size_t len, uint32_t *code) {
    const uint8_t *s = (const uint8_t *)text;
    if (len == 0) return 0;
    if (s[0] < 0x80) {
        *code = s[0];
        return 1;
    }
    size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || n > len) return 0;
    uint32_t c = s[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3fu);
    }
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (c < least[n] || (c >= 0xd800 && c < 0xe000) || c > 0x10ffff) return 0;
    *code = c;
    return n;
}

bool sn_utf8_valid(const char *text, size_t len) {
    uint32_t code;
    for (size_t at = 0; at < len;) {
        uint64_t eight;
        if (len - at >= sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if (!(eight & 0x8080808080808080u)) {
                at += sizeof eight;
                continue;
            }
        }
        size_t n = sn_utf8_decode(text + at, len - at, &code);
        if (!n) return false;
        at += n;
    }
    return true;
}

/* Whether the len < 4 bytes can be the beginning of a longer valid character. The second byte decides about shortest
 * forms, surrogates and the upper limit. */
static bool can_grow(const uint8_t *s, size_t len) {
    if (s[0] < 0xc2 || s[0] > 0xf4 || len >= (s[0] >= 0xf0 ? 4u : s[0] >= 0xe0 ? 3u : 2u)) return false;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return false;
    if (len < 2) return true;
    return !((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
             (s[0] == 0xf4 && s[1] > 0x8f));
}

size_t sn_utf8_complete_prefix(const void *bytes, size_t len) {
    const uint8_t *s = bytes;
    for (size_t tail = 1; tail <= 3 && tail <= len; tail++)
        if (can_grow(s + len - tail, tail)) return len - tail;
    return len;
}

bool sn_utf8_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t sn_utf8_leading_space(const char *text, size_t len) {
    uint32_t code;
    size_t at = 0;
    for (size_t n; (n = sn_utf8_decode(text + at, len - at, &code)) && sn_utf8_is_space(code);) at += n;
    return at;
}

size_t sn_utf8_trailing_space(const char *text, size_t len) {
    size_t end = len;
    while (end > 0) {
        size_t at = end - 1;
        while (at > 0 && ((uint8_t)text[at] & 0xc0) == 0x80) at--;
        uint32_t code;
        if (!sn_utf8_decode(text + at, end - at, &code) || !sn_utf8_is_space(code)) break;
        end = at;
    }
    return len - end;
}
