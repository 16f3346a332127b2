/* The text is copied with the numbers rewritten that jansson does not take, and given to jansson then, which decides
 * what is JSON: a word in a wrong place is as wrong once it is a string. */
#include "model/json.h"

#include "base/mem.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A text without exponent that is shorter cannot be too large a whole number (a real). What is longer than NUMBER_MAX,
 * which Python does not read as a whole number either, is left to jansson. */
enum { INTEGER_BYTES = 19, REAL_BYTES = 300, NUMBER_MAX = 4300 };

typedef struct rewriter {
    const char *text;
    size_t len, copied; /* copied: bytes of the text that are in `out` */
    sn_buf out;
    bool failed;
} rewriter;

/* Puts `words` for the bytes [from, to) of the text. */
static void replace(rewriter *r, size_t from, size_t to, const char *words) {
    r->failed = r->failed || sn_buf_append(&r->out, r->text + r->copied, from - r->copied, NULL) ||
                sn_buf_append(&r->out, words, strlen(words), NULL);
    r->copied = to;
}

/* Returns the end of the string that begins at `at`. */
static size_t skip_string(const rewriter *r, size_t at) {
    for (at++; at < r->len && r->text[at] != '"'; at++)
        if (r->text[at] == '\\') at++;
    return at + 1;
}

/* The same of a word of letters, with the sign before it. */
static size_t take_word(rewriter *r, size_t at) {
    static const struct {
        const char *word, *string;
    } words[] = {{"NaN", "\"NaN\""}, {"Infinity", "\"Infinity\""}, {"-Infinity", "\"-Infinity\""}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i].word);
        if (n > r->len - at || memcmp(r->text + at, words[i].word, n)) continue;
        replace(r, at, at + n, words[i].string);
        return at + n;
    }
    return at + 1;
}

static size_t take_number(rewriter *r, size_t at) {
    size_t end = at;
    bool whole = true, power = false;
    for (; end < r->len && r->text[end] && strchr("+-.eE0123456789", r->text[end]); end++) {
        power = power || r->text[end] == 'e' || r->text[end] == 'E';
        whole = whole && !power && r->text[end] != '.';
    }
    size_t n = end - at;
    if ((!power && n < (whole ? INTEGER_BYTES : REAL_BYTES)) || n >= NUMBER_MAX) return end;
    char number[NUMBER_MAX];
    memcpy(number, r->text + at, n);
    number[n] = 0;
    char *stop;
    bool infinite = isinf(strtod(number, &stop));
    errno = 0;
    if (*stop) return end;
    if (infinite)
        replace(r, at, end, *number == '-' ? "\"-Infinity\"" : "\"Infinity\"");
    else if (whole && (strtoll(number, NULL, 10), errno == ERANGE))
        replace(r, end, end, ".0");
    return end;
}

json_t *sn_json_read(const char *text, size_t len, json_error_t *wrong) {
    rewriter r = {.text = text, .len = len};
    sn_buf_init(&r.out, SIZE_MAX);
    for (size_t at = 0; at < len && !r.failed;) {
        char c = text[at];
        bool word = c == 'N' || c == 'I' || (c == '-' && at + 1 < len && text[at + 1] == 'I');
        if (c == '"')
            at = skip_string(&r, at);
        else if (word)
            at = take_word(&r, at);
        else if (c == '-' || (c >= '0' && c <= '9'))
            at = take_number(&r, at);
        else
            at++;
    }
    if (!r.copied) return json_loadb(text, len, 0, wrong); /* as nearly all files are */
    replace(&r, len, len, "");
    json_t *value = r.failed ? NULL : json_loadb((const char *)r.out.data, r.out.len, 0, wrong);
    if (r.failed && wrong) {
        *wrong = (json_error_t){0};
        snprintf(wrong->text, sizeof wrong->text, "out of memory");
    }
    sn_buf_fini(&r.out);
    return value;
}
