/* A text with wide integers is loaded twice: with a 0 for each of them, and blanks for its other digits, jansson says
 * what is wrong, and where; then with the objects in their places. */
#include "base/wide_json.h"

#include "base/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NAME  "{\"int\":\"\\u0000"
#define ENDED "\"}"
enum { NARROW_DIGITS = 18 }; /* of which any number fits */

/* The next integer from `at` on that does not fit into 64 bits; len: there is none. Whatever the text is, the integers
 * that are found are the same each time. */
static size_t next_wide(const char *text, size_t len, size_t at, size_t *end) {
    bool in_string = false;
    while (at < len) {
        const char c = text[at];
        if (c == '"') in_string = !in_string;
        if (in_string && c == '\\') at++;
        if (in_string || !(c == '-' || (c >= '0' && c <= '9'))) {
            at++;
            continue;
        }
        bool whole = true;
        for (*end = at + 1; *end < len && text[*end] && strchr("0123456789+-.eE", text[*end]); ++*end)
            whole = whole && text[*end] >= '0' && text[*end] <= '9';
        const size_t n = *end - at;
        if (whole && n > NARROW_DIGITS && n <= SN_WIDE_DIGITS_MAX) {
            char digits[SN_WIDE_DIGITS_MAX + 1];
            memcpy(digits, text + at, n);
            digits[n] = 0;
            errno = 0;
            (void)strtoll(digits, NULL, 10);
            if (errno == ERANGE && digits[c == '-'] != '0') return at;
        }
        at = *end;
    }
    return len;
}

static json_t *load_checked(const char *text, size_t len, size_t flags, json_error_t *problem) {
    char *plain = malloc(len);
    if (!plain) return NULL;
    memcpy(plain, text, len);
    size_t n = 0;
    for (size_t at = 0, end = 0; n < SN_WIDE_MAX && (at = next_wide(text, len, at, &end)) < len; at = end, n++) {
        memset(plain + at, ' ', end - at);
        plain[at] = '0';
    }
    json_t *value = json_loadb(plain, len, flags, problem);
    free(plain);
    return value;
}

json_t *sn_wide_json_load(const char *text, size_t len, size_t flags, json_error_t *problem) {
    size_t end = 0, copied = 0, at = next_wide(text, len, 0, &end);
    sn_buf out;
    if (at == len) return json_loadb(text, len, flags, problem); /* as nearly all texts are */
    json_t *value = load_checked(text, len, flags, problem);
    if (!value) return NULL;
    json_decref(value);
    sn_buf_init(&out, SIZE_MAX);
    bool failed = false;
    for (; at < len && !failed; copied = end, at = next_wide(text, len, end, &end))
        failed = sn_buf_append(&out, text + copied, at - copied, NULL) ||
                 sn_buf_append(&out, NAME, strlen(NAME), NULL) || sn_buf_append(&out, text + at, end - at, NULL) ||
                 sn_buf_append(&out, ENDED, strlen(ENDED), NULL);
    failed = failed || sn_buf_append(&out, text + copied, len - copied, NULL);
    value = failed ? NULL : json_loadb((const char *)out.data, out.len, flags | JSON_ALLOW_NUL, problem);
    sn_buf_fini(&out);
    return value;
}

size_t sn_wide_json_restore(char *text, size_t len) {
    char *from = text, *to = text, *const all = text + len;
    for (char *at; (at = memmem(from, (size_t)(all - from), NAME, strlen(NAME)));) {
        char *digits = at + strlen(NAME), *end = memchr(digits, '"', (size_t)(all - digits));
        if (!end || (size_t)(all - end) < strlen(ENDED)) break;
        memmove(to, from, (size_t)(at - from));
        to += at - from;
        memmove(to, digits, (size_t)(end - digits));
        to += end - digits;
        from = end + strlen(ENDED);
    }
    memmove(to, from, (size_t)(all - from));
    return (size_t)(to + (all - from) - text);
}

char *sn_wide_json_dump(const json_t *value) {
    char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text) text[sn_wide_json_restore(text, strlen(text))] = 0;
    return text;
}

const char *sn_wide_digits(const json_t *value) {
    const json_t *held = json_object_size(value) == 1 ? json_object_get(value, "int") : NULL;
    const char *text = json_string_value(held);
    const size_t len = json_string_length(held);
    if (!text || len < 2 || *text || strlen(text + 1) != len - 1) return NULL;
    const char *digits = text + 1 + (text[1] == '-');
    return *digits && !digits[strspn(digits, "0123456789")] ? text + 1 : NULL;
}

long long sn_wide_low_bits(const char *digits) {
    unsigned long long bits = 0;
    for (const char *at = digits + (*digits == '-'); *at; at++) bits = bits * 10 + (unsigned long long)(*at - '0');
    return (long long)(*digits == '-' ? -bits : bits);
}
