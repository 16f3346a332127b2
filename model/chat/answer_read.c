/* Taking an answer apart by the marks of its format. Everything that may still become something else is held back until
 * the answer goes on or has ended, so results only grow. */
#include "model/chat/answer_format_private.h"

#include "base/mem.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const sn_answer_format *f;
    const sn_answer *a;
    const char *text;
    size_t len;
    sn_buf content, thought;
    json_t *calls;
    sn_err *err;
    sn_status status;
} reader;

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
static size_t skip_space(const reader *r, size_t at) {
    while (at < r->len && is_space(r->text[at])) at++;
    return at;
}
static bool is_special(const reader *r, size_t at) { return r->a->special && r->a->special[at]; }

/* Appends the bytes [from, to) that belong to no special token; without white space at the end unless it is final. */
static void take_text(reader *r, sn_buf *out, size_t from, size_t to, bool final) {
    while (!final && to > from && is_space(r->text[to - 1])) to--;
    for (size_t i = from, end; i < to && !r->status; i = end) {
        for (end = i; end < to && !is_special(r, end); end++) {}
        if (end > i) r->status = sn_buf_append(out, r->text + i, end - i, r->err);
        while (end < to && is_special(r, end)) end++;
    }
}

/* -- JSON that may be cut -- */

/* The end of the value at `at`; *whole false: the text ends before it does. Of text that is no JSON any end is right:
 * who uses the value parses it. */
static size_t scan_value(const reader *r, size_t at, bool *whole) {
    int depth = 0;
    bool in_string = false;
    *whole = false;
    for (; at < r->len; at++) {
        char c = r->text[at];
        if (in_string) {
            at += c == '\\';
            in_string = c != '"';
            if (in_string || depth) continue;
            *whole = true;
            return at + 1;
        }
        if (!depth && (c == ',' || c == '}' || c == ']' || is_space(c))) { /* behind a number or a word */
            *whole = true;
            return at;
        }
        in_string = c == '"';
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        if ((c == '}' || c == ']') && depth <= 0) {
            *whole = true;
            return at + 1;
        }
    }
    return r->len;
}

static json_t *load_text(const reader *r, size_t from, size_t to) {
    return json_loadb(r->text + from, to - from, JSON_DECODE_ANY, NULL);
}

/* -- calls -- */

static void add_call(reader *r, const char *name, size_t n_name, const char *arguments, size_t n_arguments) {
    json_t *call = json_pack("{s:s, s:{s:s%, s:s%}}", "type", "function", "function", "name", name, n_name, "arguments",
                             arguments, n_arguments);
    if (!call) /* a cut within a character: the rest of it comes later */
        while (!call && n_arguments--)
            call = json_pack("{s:s, s:{s:s%, s:s%}}", "type", "function", "function", "name", name, n_name, "arguments",
                             arguments, n_arguments);
    if (call) json_array_append_new(r->calls, call);
}

/* An object with a name and arguments, at its brace. *end: behind it; false: it is not whole. */
static bool read_json_call(reader *r, size_t at, size_t *end) {
    size_t arguments = 0, arguments_end = 0;
    json_t *name = NULL;
    bool whole = true, closed = false;
    for (at = skip_space(r, at + 1); at < r->len && whole && !closed;) {
        size_t key_end = scan_value(r, at, &whole), value = skip_space(r, key_end);
        json_t *key = whole && r->text[at] == '"' ? load_text(r, at, key_end) : NULL;
        const char *word = json_string_value(key);
        if (!word || value >= r->len || r->text[value] != ':') {
            json_decref(key);
            whole = word && value >= r->len ? false : whole;
            if (!whole || r->text[at] != '}') break;
            closed = true;
            at++;
            break;
        }
        value = skip_space(r, value + 1);
        size_t value_end = scan_value(r, value, &whole);
        bool named = *r->f->name_key;
        if (value < r->len && named && !strcmp(word, r->f->name_key) && whole && !name)
            name = load_text(r, value, value_end);
        if (value < r->len && (!named || !strcmp(word, r->f->arguments_key)) && !arguments)
            arguments = value, arguments_end = value_end;
        if (!named && !name) name = json_incref(key);
        json_decref(key);
        at = skip_space(r, value_end);
        if (at < r->len && whole && r->text[at] == ',') {
            at = skip_space(r, at + 1);
        } else if (at < r->len && whole) {
            closed = r->text[at++] == '}';
            break;
        }
    }
    if (json_is_string(name)) /* arguments that are a string hold JSON as text */
        add_call(r, json_string_value(name), json_string_length(name), arguments ? r->text + arguments : "",
                 arguments_end - arguments);
    json_decref(name);
    *end = at;
    return closed;
}

/* The end of a name: letters, digits and _ . - */
static size_t scan_name(const reader *r, size_t at) {
    while (at < r->len && (isalnum((unsigned char)r->text[at]) || strchr("_.-", r->text[at]))) at++;
    return at;
}

static bool read_named_call(reader *r, size_t at, size_t *end) {
    size_t name = skip_space(r, at), name_end = scan_name(r, name), arguments = name_end;
    bool whole = false;
    *end = r->len;
    if (name_end == r->len) return false;
    while (arguments < r->len && r->text[arguments] != '{') arguments++;
    *end = arguments < r->len ? scan_value(r, arguments, &whole) : r->len;
    add_call(r, r->text + name, name_end - name, r->text + arguments, *end - arguments);
    return whole;
}

/* Whether a parameter of a tool is text: 1, 0, or -1 if the tools do not say. */
static int is_text_parameter(const json_t *tools, const char *name, size_t n_name, const char *key, size_t n_key) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        const json_t *own = json_object_get(function, "name");
        if (json_string_length(own) != n_name || memcmp(json_string_value(own), name, n_name)) continue;
        const json_t *all = json_object_get(json_object_get(function, "parameters"), "properties");
        const char *type = json_string_value(json_object_get(json_object_getn(all, key, n_key), "type"));
        return type ? !strcmp(type, "string") : -1;
    }
    return -1;
}

/* Appends "key": value to the arguments: as text, or as the JSON that it is. */
static void append_argument(reader *r, sn_buf *arguments, const json_t *key, size_t from, size_t to, int is_text) {
    json_t *value = is_text == 1 ? NULL : load_text(r, from, to);
    if (!value) value = json_stringn(r->text + from, to - from);
    char *k = json_dumps(key, JSON_ENCODE_ANY), *v = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    if (k && v) r->status = sn_buf_printf(arguments, r->err, "%s%s: %s", arguments->len > 1 ? ", " : "", k, v);
    json_decref(value);
    free(k);
    free(v);
}

/* One argument behind its mark; false: it is not whole. */
static bool read_argument(reader *r, sn_buf *arguments, const char *name, size_t n_name, size_t *at) {
    const sn_answer_format *f = r->f;
    sn_match match;
    size_t key = *at, value, unused, key_end = sn_mark_find(f->key_end, r->text, r->len, key, &match);
    if (match != SN_MATCH_YES) return false;
    const char *before_value = *f->value ? f->value : f->key_end;
    size_t at_value = sn_mark_find(before_value, r->text, r->len, key_end, &match);
    if (match != SN_MATCH_YES) return false;
    (void)sn_mark_match(before_value, r->text, r->len, at_value, &value);
    size_t value_end = sn_mark_find(f->value_end, r->text, r->len, value, &match);
    if (match != SN_MATCH_YES) return false;
    int is_text = is_text_parameter(r->a->tools, name, n_name, r->text + key, key_end - key);
    if (*f->string_value && is_text < 0)
        is_text = sn_mark_match(f->string_value, r->text, r->len, key_end, &unused) == SN_MATCH_YES;
    json_t *word = json_stringn(r->text + key, key_end - key);
    size_t to = value_end;
    if (value < to && r->text[value] == '\n') value++; /* a line of its own */
    if (value < to && r->text[to - 1] == '\n') to--;
    if (word) append_argument(r, arguments, word, value, to, is_text);
    json_decref(word);
    return sn_mark_match(f->value_end, r->text, r->len, value_end, at) == SN_MATCH_YES;
}

static bool read_tagged_call(reader *r, size_t at, size_t *end) {
    size_t name = skip_space(r, at), name_end = scan_name(r, name);
    sn_buf arguments;
    sn_buf_init(&arguments, SN_TEXT_MAX);
    if (name_end == r->len && !r->a->ended) return false;
    r->status = sn_buf_append(&arguments, "{", 1, r->err);
    size_t gap = name_end; /* what may stand between the name and the first argument */
    bool whole = false;
    for (at = name_end; !r->status;) {
        sn_match is_key, is_call;
        size_t key = sn_mark_find(r->f->key, r->text, r->len, at, &is_key);
        size_t call = sn_mark_find(r->f->call, r->text, r->len, at, &is_call);
        if (is_key != SN_MATCH_YES || key - at > SN_MARK_MAX || (is_call == SN_MATCH_YES && call < key)) {
            whole = r->a->ended || r->len - at > 2 * SN_MARK_MAX || is_call == SN_MATCH_YES; /* no argument follows */
            break;
        }
        if (sn_mark_match(r->f->key, r->text, r->len, key, &at) != SN_MATCH_YES) break;
        if (!read_argument(r, &arguments, r->text + name, name_end - name, &at)) break;
        gap = at;
    }
    if (whole && !r->status) r->status = sn_buf_append(&arguments, "}", 1, r->err);
    add_call(r, r->text + name, name_end - name, (const char *)arguments.data, arguments.len);
    sn_buf_fini(&arguments);
    *end = gap;
    return whole;
}

/* The calls from `at` on: nothing behind the first one is content. */
static void read_calls(reader *r, size_t at) {
    bool whole = true;
    for (sn_match match = SN_MATCH_YES; whole && !r->status && at < r->len;) {
        size_t begin = at;
        if (*r->f->call) begin = sn_mark_find(r->f->call, r->text, r->len, at, &match);
        if (match != SN_MATCH_YES ||
            (*r->f->call && sn_mark_match(r->f->call, r->text, r->len, begin, &begin) != SN_MATCH_YES))
            return;
        if (r->f->kind == SN_CALLS_JSON) {
            while (begin < r->len && r->text[begin] != '{') begin++;
            whole = begin < r->len && read_json_call(r, begin, &at);
        } else {
            whole = r->f->kind == SN_CALLS_NAMED ? read_named_call(r, begin, &at) : read_tagged_call(r, begin, &at);
        }
    }
}

/* -- the whole -- */

/* Calls without a mark before them: an object that is the whole answer, with a name among the tools. */
static bool read_bare_call(reader *r, size_t at) {
    size_t begin = skip_space(r, at), end;
    if (begin == r->len || r->text[begin] != '{') return false;
    read_json_call(r, begin, &end);
    const json_t *name = json_object_get(json_object_get(json_array_get(r->calls, 0), "function"), "name");
    for (size_t i = 0; i < json_array_size(r->a->tools) && name; i++)
        if (json_equal(name, json_object_get(json_object_get(json_array_get(r->a->tools, i), "function"), "name")))
            return true;
    json_array_clear(r->calls);
    return !name && !r->a->ended; /* it may still become one */
}

static void read_content(reader *r, size_t at) {
    const sn_answer_format *f = r->f;
    bool wanted = json_array_size(r->a->tools) && f->kind != SN_CALLS_NONE;
    const char *mark = *f->section ? f->section : f->call;
    sn_match match = SN_MATCH_NO;
    size_t to = r->len;
    if (wanted && !*mark && read_bare_call(r, at)) return;
    if (wanted && *mark) {
        to = sn_mark_find(mark, r->text, r->len, at, &match);
        sn_match other = SN_MATCH_NO;
        size_t call = *f->call ? sn_mark_find(f->call, r->text, r->len, at, &other) : r->len;
        if (call < to) to = call, match = other; /* a call without what should stand before all */
    }
    if (match == SN_MATCH_YES) read_calls(r, to);
    if (match == SN_MATCH_BEGINS && r->a->ended) to = r->len;
    take_text(r, &r->content, at, to, match == SN_MATCH_NO && r->a->ended);
}

static void read_plain_answer(reader *r) {
    const sn_answer_format *f = r->f;
    size_t at = skip_space(r, 0), begin = at;
    sn_match match = SN_MATCH_NO;
    if (!r->a->thinks) match = sn_mark_match(f->thought, r->text, r->len, at, &begin);
    if (match == SN_MATCH_BEGINS && !r->a->ended) return;
    if (!r->a->thinks && match != SN_MATCH_YES) {
        size_t end_mark; /* of a thought that the model leaves out */
        match = sn_mark_match(f->thought_end, r->text, r->len, at, &end_mark);
        if (match == SN_MATCH_BEGINS && at < r->len && !r->a->ended) return;
        read_content(r, match == SN_MATCH_YES ? skip_space(r, end_mark) : 0);
        return;
    }
    begin = skip_space(r, begin);
    size_t end = sn_mark_find(f->thought_end, r->text, r->len, begin, &match);
    if (match == SN_MATCH_BEGINS && r->a->ended) end = r->len;
    take_text(r, &r->thought, begin, end, false);
    if (match == SN_MATCH_YES && sn_mark_match(f->thought_end, r->text, r->len, end, &end) == SN_MATCH_YES)
        read_content(r, skip_space(r, end));
}

/* -- channels -- */

/* The special token at `at`, up to its last byte; 0: there is none. */
static size_t special_at(const reader *r, size_t at) {
    if (at + 1 >= r->len || !is_special(r, at) || r->text[at] != '<') return 0;
    const char *end = memchr(r->text + at, '>', r->len - at);
    return end ? (size_t)(end - r->text) + 1 - at : 0;
}
static bool special_is(const reader *r, size_t at, size_t n, const char *name) {
    return n == strlen(name) && !memcmp(r->text + at, name, n);
}

/* A message: its header (which names the channel, and the function that it is for) and its text. */
static void take_message(reader *r, const char *header, size_t n_header, size_t from, size_t to, bool closed) {
    const char *function = memmem(header, n_header, "to=functions.", 13);
    const char *channel = memmem(header, n_header, "<|channel|>", 11);
    bool analysis = channel && !strncmp(channel + 11, "analysis", 8);
    if (function) {
        const char *name = function + 13;
        size_t n = 0;
        while (name + n < header + n_header && (isalnum((unsigned char)name[n]) || strchr("_.-", name[n]))) n++;
        while (from < to && is_space(r->text[from])) from++;
        add_call(r, name, n, r->text + from, to - from);
    } else {
        take_text(r, analysis ? &r->thought : &r->content, from, to, closed);
    }
}

static void read_channels(reader *r) {
    size_t header = 0, text = 0;
    bool in_text = false;
    for (size_t at = 0; at < r->len && !r->status; at++) {
        size_t n = special_at(r, at);
        if (!n) continue;
        if (in_text) take_message(r, r->text + header, text - header, text, at, true);
        bool message = special_is(r, at, n, "<|message|>");
        if (in_text) header = at;
        in_text = message;
        text = at + n;
        at += n - 1;
    }
    if (in_text) take_message(r, r->text + header, text - header, text, r->len, r->a->ended);
    bool no_header = r->len && !special_at(r, 0) && !r->content.len && !r->thought.len && !json_array_size(r->calls);
    if (no_header && r->a->ended) take_text(r, &r->content, 0, r->len, true); /* a model that forgot its channels */
}

static json_t *text_json(const sn_buf *text) {
    size_t n = text->len; /* an incomplete character at the end is held back */
    json_t *out = json_stringn(n ? (const char *)text->data : "", n);
    for (int i = 0; i < 3 && !out && n; i++) out = json_stringn((const char *)text->data, --n);
    return out;
}

sn_status sn_answer_read(const sn_answer_format *format, const sn_answer *answer, json_t **out, sn_err *err) {
    reader r = {.f = format, .a = answer, .text = answer->text, .len = answer->len, .calls = json_array(), .err = err};
    sn_buf_init(&r.content, SN_TEXT_MAX);
    sn_buf_init(&r.thought, SN_TEXT_MAX);
    if (format->kind == SN_CALLS_CHANNELS)
        read_channels(&r);
    else
        read_plain_answer(&r);
    json_t *content = text_json(&r.content), *thought = text_json(&r.thought);
    *out = NULL;
    if (!r.status && (!content || !thought || !r.calls))
        r.status = sn_fail(err, SN_REFUSED, "the answer is not valid UTF-8");
    if (!r.status) *out = json_pack("{s:s, s:O}", "role", "assistant", "content", content);
    if (!r.status && !*out) r.status = sn_fail(err, SN_STOP, "out of memory for an answer");
    if (*out && r.thought.len) json_object_set(*out, "reasoning_content", thought);
    if (*out && json_array_size(r.calls)) json_object_set(*out, "tool_calls", r.calls);
    json_decref(content);
    json_decref(thought);
    json_decref(r.calls);
    sn_buf_fini(&r.content);
    sn_buf_fini(&r.thought);
    return r.status;
}
