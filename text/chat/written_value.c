/* Values as models write them in calls: a little of JSON, a little of Python. Nothing is copied but texts with escapes;
 * lists and objects within each other are at most DEPTH_MAX. */
#include "text/chat/answer_format_private.h"

#include "base/mem.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 32 };

typedef struct written {
    const char *text;
    size_t len, at;
} written;

static void skip_space(written *w) {
    while (w->at < w->len && isspace((unsigned char)w->text[w->at])) w->at++;
}

static bool begins_with(const written *w, const char *word) {
    size_t n = strlen(word);
    return w->len - w->at >= n && !memcmp(w->text + w->at, word, n);
}

/* The end of the text between quotes that begins at `from`; len: there is none. */
static size_t quote_end(const written *w, size_t from, char quote) {
    while (from < w->len && w->text[from] != quote) from += w->text[from] == '\\' ? 2 : 1;
    return from < w->len ? from : w->len;
}

/* A text in Python's quotes as JSON writes it: "\'" needs no escape there, and '"' does. */
static json_t *unescaped(const char *text, size_t n) {
    sn_buf out;
    sn_buf_init(&out, SIZE_MAX);
    bool good = !sn_buf_append(&out, "\"", 1, NULL);
    for (size_t i = 0; i < n && good; i++) {
        bool escaped = text[i] == '\\' && i + 1 < n;
        const char *part = text + i;
        if (escaped && text[i + 1] == '\'')
            part = text + ++i, escaped = false;
        else if (!escaped && text[i] == '"')
            part = "\\\"", escaped = true, i--;
        else if (!escaped && (unsigned char)text[i] < ' ')
            part = text[i] == '\n'   ? "\\n"
                   : text[i] == '\t' ? "\\t"
                   : text[i] == '\r' ? "\\r"
                                     : "\\f",
            escaped = true, i--;
        good = !sn_buf_append(&out, part, escaped ? 2 : 1, NULL);
        i += escaped;
    }
    if (good) good = !sn_buf_append(&out, "\"", 1, NULL);
    json_t *value = good ? json_loadb((const char *)out.data, out.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
    sn_buf_fini(&out);
    return value ? value : json_stringn(text, n);
}

static json_t *read_text(written *w) {
    const size_t long_quote = strlen(SN_TEXT_QUOTE);
    if (begins_with(w, SN_TEXT_QUOTE)) {
        const char *from = w->text + w->at + long_quote,
                   *end = memmem(from, w->len - w->at - long_quote, SN_TEXT_QUOTE, long_quote);
        if (end) w->at = (size_t)(end - w->text) + long_quote;
        return end ? json_stringn(from, (size_t)(end - from)) : NULL;
    }
    size_t from = w->at + 1, end = quote_end(w, from, w->text[w->at]);
    w->at = end + 1;
    return end < w->len ? unescaped(w->text + from, end - from) : NULL;
}

/* A number, or a word that stands for a value. */
static json_t *read_word(written *w) {
    static const char *const names[] = {"true", "True", "false", "False", "null", "None"};
    size_t from = w->at;
    while (w->at < w->len && (isalnum((unsigned char)w->text[w->at]) || strchr("+-._", w->text[w->at]))) w->at++;
    size_t n = w->at - from;
    if (w->at == w->len) return NULL; /* it may go on */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strlen(names[i]) == n && !memcmp(w->text + from, names[i], n))
            return i < 4 ? json_boolean(i < 2) : json_null();
    return json_loadb(w->text + from, n, JSON_DECODE_ANY, NULL);
}

static json_t *read_value(written *w, int depth);

/* With quotes or without. */
static json_t *read_key(written *w) {
    if (w->text[w->at] == '"' || w->text[w->at] == '\'' || begins_with(w, SN_TEXT_QUOTE)) return read_text(w);
    size_t from = w->at;
    while (w->at < w->len && w->text[w->at] != ':' && !isspace((unsigned char)w->text[w->at])) w->at++;
    return w->at < w->len ? json_stringn(w->text + from, w->at - from) : NULL;
}

/* Adds one member or element to `all`; false: there is none. */
static bool read_element(written *w, json_t *all, int depth) {
    if (json_is_array(all)) return !json_array_append_new(all, read_value(w, depth));
    json_t *key = read_key(w);
    skip_space(w);
    bool good = key && w->at < w->len && w->text[w->at] == ':';
    w->at += good;
    good = good && !json_object_setn_new(all, json_string_value(key), json_string_length(key), read_value(w, depth));
    json_decref(key);
    return good;
}

static json_t *read_list(written *w, int depth) {
    const char open = w->text[w->at++], close = open == '{' ? '}' : open == '[' ? ']' : ')';
    json_t *all = open == '{' ? json_object() : json_array();
    for (;;) {
        skip_space(w);
        if (w->at < w->len && w->text[w->at] == close) break;
        if (w->at >= w->len || !read_element(w, all, depth)) goto none;
        skip_space(w);
        if (w->at < w->len && w->text[w->at] == ',')
            w->at++;
        else if (w->at >= w->len || w->text[w->at] != close)
            goto none;
    }
    w->at++;
    return all;
none:
    json_decref(all);
    return NULL;
}

static json_t *read_value(written *w, int depth) {
    skip_space(w);
    if (w->at >= w->len || depth == DEPTH_MAX) return NULL;
    const char c = w->text[w->at];
    if (c == '"' || c == '\'' || begins_with(w, SN_TEXT_QUOTE)) return read_text(w);
    return c == '{' || c == '[' || c == '(' ? read_list(w, depth + 1) : read_word(w);
}

json_t *sn_written_value(const char *text, size_t len, size_t at, size_t *end) {
    written w = {text, len, at};
    json_t *value = read_value(&w, 0);
    *end = w.at;
    return value;
}
