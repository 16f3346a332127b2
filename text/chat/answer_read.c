/* Taking an answer apart by the marks of its format, while it grows. Everything that may still become something else is
 * held back until the answer goes on or has ended, so results only grow. What has been decided is not looked at again:
 * the work is proportional to the text, but for the arguments of calls that are written one by one. */
#include "text/chat/answer_format_private.h"

#include "base/mem.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* A call so far. The arguments are a part of the text, or where they were put together (`own`) a text of their own. */
typedef struct read_call {
    char *name; /* heap */
    size_t n_name, from, to;
    sn_buf own;
} read_call;

typedef enum stage { STAGE_BEGIN, STAGE_THOUGHT, STAGE_CONTENT, STAGE_CALLS } stage;

struct sn_answer_reader {
    const sn_answer_format *f;
    json_t *tools;
    bool thinks, ended;
    sn_buf text_buf, special; /* as sn_answer_reader_add gets them */
    const char *text;         /* (len) of text_buf */
    size_t len;
    sn_buf content, thought;
    sn_buf calls; /* read_call: of which n_done are whole */
    size_t n_done;
    stage stage;
    size_t at;       /* where the stage begins; of STAGE_CALLS, where the next call is looked for */
    bool skips;      /* white space at `at` does not count */
    bool no_call;    /* the content is not an object that is a call */
    size_t taken;    /* the text before it is in `content` or `thought`, or is none of them */
    size_t searched; /* no mark begins before it */
    struct {
        size_t from, at;
        int depth;
        bool in_string;
    } scan; /* of the value that was not whole last time */
    struct {
        size_t at, header, text; /* what is looked at next; where the present message's header and text begin */
        bool in_text;
    } channel;
    sn_err *err;
    sn_status status;
};

typedef struct sn_answer_reader reader;

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
static size_t skip_space(const reader *r, size_t at) {
    while (at < r->len && is_space(r->text[at])) at++;
    return at;
}
static bool is_special(const reader *r, size_t at) { return r->special.data[at]; }

/* Appends what was not taken yet up to `to`, but for special tokens; without white space at the end unless it is
 * final. */
static void take_text(reader *r, sn_buf *out, size_t to, bool final) {
    while (!final && to > r->taken && is_space(r->text[to - 1])) to--;
    for (size_t end; r->taken < to && !r->status; r->taken = end) {
        for (end = r->taken; end < to && !is_special(r, end); end++) {}
        if (end > r->taken) r->status = sn_buf_append(out, r->text + r->taken, end - r->taken, r->err);
        while (end < to && is_special(r, end)) end++;
    }
}

/* -- JSON that may be cut -- */

/* The end of the value at `at`; *whole false: the text ends before it does. Of text that is no JSON any end is right:
 * who uses the value parses it. */
static size_t scan_value(reader *r, size_t at, bool *whole) {
    const size_t from = at;
    int depth = 0;
    bool in_string = false;
    *whole = true;
    if (r->scan.from == from) at = r->scan.at, depth = r->scan.depth, in_string = r->scan.in_string;
    for (; at < r->len; at++) {
        char c = r->text[at];
        if (in_string) {
            at += c == '\\';
            in_string = c != '"';
            if (in_string || depth) continue;
            return at + 1;
        }
        if (!depth && (c == ',' || c == '}' || c == ']' || is_space(c))) return at; /* behind a number or a word */
        in_string = c == '"';
        depth += c == '{' || c == '[';
        depth -= c == '}' || c == ']';
        if ((c == '}' || c == ']') && depth <= 0) return at + 1;
    }
    *whole = false;
    r->scan.from = from, r->scan.at = at, r->scan.depth = depth, r->scan.in_string = in_string;
    return r->len;
}

static json_t *load_text(const reader *r, size_t from, size_t to) {
    return json_loadb(r->text + from, to - from, JSON_DECODE_ANY, NULL);
}

static bool in_name(char c) { return isalnum((unsigned char)c) || c == '_' || c == '.' || c == '-'; }

/* -- calls -- */

static size_t n_calls(const reader *r) { return r->calls.len / sizeof(read_call); }
static read_call *call_at(const reader *r, size_t i) { return (read_call *)(void *)r->calls.data + i; }

/* Forgets all calls but the first n. */
static void drop_calls(reader *r, size_t n) {
    for (; n_calls(r) > n; r->calls.len -= sizeof(read_call)) {
        free(call_at(r, n_calls(r) - 1)->name);
        sn_buf_fini(&call_at(r, n_calls(r) - 1)->own);
    }
}

/* Arguments [from, to) of the text, or `own`, which is taken; NULL: none. */
static void add_call(reader *r, const char *name, size_t n_name, size_t from, size_t to, sn_buf *own) {
    read_call c = {strndup(name, n_name), n_name, from, to, {0}};
    if (own) c.own = *own;
    if (!r->status && !c.name) r->status = sn_fail(r->err, SN_STOP, "out of memory for an answer");
    if (!r->status) r->status = sn_buf_append(&r->calls, &c, sizeof c, r->err);
    if (!r->status) return;
    free(c.name);
    sn_buf_fini(&c.own);
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
        add_call(r, json_string_value(name), json_string_length(name), arguments, arguments_end, NULL);
    json_decref(name);
    *end = at;
    return closed;
}

/* The end of a name. */
static size_t scan_name(const reader *r, size_t at) {
    while (at < r->len && in_name(r->text[at])) at++;
    return at;
}

static bool read_named_call(reader *r, size_t at, size_t *end) {
    size_t name = skip_space(r, at), name_end = scan_name(r, name), arguments = name_end;
    bool whole = false;
    *end = r->len;
    if (name_end == r->len) return false;
    while (arguments < r->len && r->text[arguments] != '{') arguments++;
    *end = arguments < r->len ? scan_value(r, arguments, &whole) : r->len;
    add_call(r, r->text + name, name_end - name, arguments, *end, NULL);
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

/* Whether the mark behind a value is the beginning of a tag that closes by the argument's name. */
static bool closes_by_name(const sn_answer_format *f) {
    size_t n = strlen(f->value_end);
    return n && f->value_end[n - 1] == '/';
}

/* The first place where a value ends; of a tag that closes by a name, that of this one. */
static size_t find_value_end(const reader *r, size_t from, size_t key, size_t n_key, sn_match *match) {
    const sn_answer_format *f = r->f;
    for (size_t at = from, end; (at = sn_mark_find(f->value_end, r->text, r->len, at, match)) < r->len; at++) {
        if (*match != SN_MATCH_YES || !closes_by_name(f)) return at;
        (void)sn_mark_match(f->value_end, r->text, r->len, at, &end);
        if (r->len - end <= n_key) *match = SN_MATCH_BEGINS;
        if (r->len - end <= n_key || (!memcmp(r->text + end, r->text + key, n_key) && !in_name(r->text[end + n_key])))
            return at;
    }
    *match = SN_MATCH_NO;
    return r->len;
}

/* A value that is written as elements within each other, [from, to): a list of those that are called "item", or an
 * object. NULL: it is not. */
static json_t *load_elements(const reader *r, size_t from, size_t to, int depth) {
    enum { DEPTH_MAX = 16 };
    const sn_answer_format *f = r->f;
    const size_t n_close = strlen(f->key_end); /* the mark before a name may begin with what ends the one before */
    const char *open = strncmp(f->key, f->key_end, n_close) ? f->key : f->key + n_close;
    json_t *all = NULL;
    size_t key, key_end, value, end;
    sn_match match;
    for (from = skip_space(r, from); from < to; from = skip_space(r, from)) {
        if (depth == DEPTH_MAX || sn_mark_match(open, r->text, to, from, &key) != SN_MATCH_YES) goto none;
        key_end = sn_mark_find(f->key_end, r->text, to, key, &match);
        if (match != SN_MATCH_YES || sn_mark_match(f->key_end, r->text, to, key_end, &value) != SN_MATCH_YES) goto none;
        end = find_value_end(r, value, key, key_end - key, &match);
        if (match != SN_MATCH_YES || end > to) goto none;
        bool item = key_end - key == 4 && !memcmp(r->text + key, "item", 4);
        json_t *one = load_elements(r, value, end, depth + 1);
        if (!one) one = load_text(r, value, end);
        if (!one) one = json_stringn(r->text + value, end - value);
        if (!all) all = item ? json_array() : json_object();
        if (json_is_array(all) ? json_array_append_new(all, one)
                               : json_object_setn_new(all, r->text + key, key_end - key, one))
            goto none;
        (void)sn_mark_match(f->value_end, r->text, to, end, &from);
        from = sn_mark_find(f->key_end, r->text, to, from, &match);
        if (match != SN_MATCH_YES || sn_mark_match(f->key_end, r->text, to, from, &from) != SN_MATCH_YES) goto none;
    }
    return all;
none:
    json_decref(all);
    return NULL;
}

/* A value as in Python, which is all of the text. */
static json_t *load_written(const reader *r, size_t from, size_t to) {
    size_t end = from;
    const char *close = r->text[from] == '[' ? "]" : r->text[from] == '{' ? "}" : NULL;
    json_t *value = close && r->text[to - 1] == *close ? sn_written_value(r->text, to, from, &end) : NULL;
    if (!value || end == to) return value;
    json_decref(value);
    return NULL;
}

static void append_value(reader *r, sn_buf *arguments, const json_t *key, const json_t *value) {
    char *k = json_dumps(key, JSON_ENCODE_ANY), *v = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    const char *parts[] = {arguments->len > 1 ? ", " : "", k, ": ", v};
    for (size_t i = 0; k && v && i < sizeof parts / sizeof *parts && !r->status; i++)
        r->status = sn_buf_append(arguments, parts[i], strlen(parts[i]), r->err);
    free(k);
    free(v);
}

/* Appends "key": value to the arguments: as text, or as the JSON that it is. */
static void append_argument(reader *r, sn_buf *arguments, const json_t *key, size_t from, size_t to, int is_text) {
    json_t *value = is_text == 1 ? NULL : load_text(r, from, to);
    if (!value && is_text != 1 && closes_by_name(r->f)) value = load_elements(r, from, to, 0);
    if (!value && !is_text) value = load_written(r, from, to);
    if (!value) value = json_stringn(r->text + from, to - from);
    append_value(r, arguments, key, value);
    json_decref(value);
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
    size_t value_end = find_value_end(r, value, key, key_end - key, &match);
    if (match != SN_MATCH_YES) return false;
    int is_text = is_text_parameter(r->tools, name, n_name, r->text + key, key_end - key);
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
    if (name_end == r->len && !r->ended) return false;
    r->status = sn_buf_append(&arguments, "{", 1, r->err);
    size_t gap = name_end; /* what may stand between the name and the first argument */
    bool whole = false;
    for (at = name_end; !r->status;) {
        sn_match is_key, is_call;
        size_t key = sn_mark_find(r->f->key, r->text, r->len, at, &is_key);
        size_t call = sn_mark_find(r->f->call, r->text, r->len, at, &is_call);
        if (is_key != SN_MATCH_YES || key - at > SN_MARK_MAX || (is_call == SN_MATCH_YES && call < key)) {
            whole = r->ended || r->len - at > 2 * SN_MARK_MAX || is_call == SN_MATCH_YES; /* no argument follows */
            break;
        }
        if (sn_mark_match(r->f->key, r->text, r->len, key, &at) != SN_MATCH_YES || at == r->len) break;
        if (r->text[at] == '/') { /* the tag that closes the call */
            whole = true;
            break;
        }
        if (!read_argument(r, &arguments, r->text + name, name_end - name, &at)) break;
        gap = at;
    }
    if (whole && !r->status) r->status = sn_buf_append(&arguments, "}", 1, r->err);
    add_call(r, r->text + name, name_end - name, 0, 0, &arguments);
    *end = gap;
    return whole;
}

/* NAME(KEY=VALUE, ...), or NAME{KEY:VALUE, ...}. */
static bool read_written_call(reader *r, size_t at, size_t *end) {
    size_t name = at, name_end, key, key_end, value_end;
    sn_buf arguments;
    while (name < r->len && (is_space(r->text[name]) || r->text[name] == ',')) name++;
    name_end = scan_name(r, name);
    if (name_end >= r->len || name == name_end || (r->text[name_end] != '(' && r->text[name_end] != '{')) return false;
    const char close = r->text[name_end] == '(' ? ')' : '}';
    sn_buf_init(&arguments, SN_TEXT_MAX);
    r->status = sn_buf_append(&arguments, "{", 1, r->err);
    bool whole = false;
    for (at = skip_space(r, name_end + 1); !r->status && at < r->len; at = skip_space(r, at + 1)) {
        if ((whole = r->text[at] == close)) break;
        key = at, key_end = scan_name(r, key);
        at = skip_space(r, key_end);
        if (at >= r->len || (r->text[at] != '=' && r->text[at] != ':')) break;
        json_t *word = json_stringn(r->text + key, key_end - key),
               *value = sn_written_value(r->text, r->len, at + 1, &value_end);
        if (word && value) append_value(r, &arguments, word, value);
        json_decref(word);
        json_decref(value);
        if (!value) break;
        at = skip_space(r, value_end);
        if ((whole = at < r->len && r->text[at] == close)) break;
        if (at >= r->len || r->text[at] != ',') break;
    }
    if (whole && !r->status) r->status = sn_buf_append(&arguments, "}", 1, r->err);
    add_call(r, r->text + name, name_end - name, 0, 0, &arguments);
    *end = at + 1;
    return whole;
}

/* Behind the mark before all calls, at the first of them. */
static size_t skip_section(const reader *r, size_t at) {
    size_t end;
    return *r->f->section && sn_mark_match(r->f->section, r->text, r->len, at, &end) == SN_MATCH_YES ? end : at;
}

/* The calls from `at` on: nothing behind the first one is content. */
static void read_calls(reader *r) {
    bool whole = true;
    drop_calls(r, r->n_done);
    for (sn_match match = SN_MATCH_YES; whole && !r->status && r->at < r->len;) {
        size_t begin = r->at, end;
        if (*r->f->call) begin = r->at = sn_mark_find(r->f->call, r->text, r->len, r->at, &match);
        if (match != SN_MATCH_YES) return;
        if (*r->f->call && sn_mark_match(r->f->call, r->text, r->len, begin, &begin) != SN_MATCH_YES) return;
        if (r->f->kind == SN_CALLS_WRITTEN) {
            whole = read_written_call(r, *r->f->call ? begin : skip_section(r, begin), &end);
        } else if (r->f->kind == SN_CALLS_JSON) {
            while (begin < r->len && r->text[begin] != '{') begin++;
            whole = begin < r->len && read_json_call(r, begin, &end);
        } else {
            whole = r->f->kind == SN_CALLS_NAMED ? read_named_call(r, begin, &end) : read_tagged_call(r, begin, &end);
        }
        if (whole) r->at = end, r->n_done = n_calls(r);
    }
}

/* -- the whole, stage by stage: each function returns whether the next stage has begun -- */

static bool start(reader *r, stage next, size_t at, bool skips) {
    r->stage = next;
    r->at = r->taken = r->searched = at;
    r->skips = skips;
    return true;
}

/* Skips white space where it does not count; false: there is nothing else yet. */
static bool skip_to_text(reader *r) {
    if (r->skips) r->at = r->taken = r->searched = skip_space(r, r->at);
    r->skips &= r->at == r->len;
    return !r->skips;
}

static bool read_beginning(reader *r) {
    const sn_answer_format *f = r->f;
    size_t at = skip_space(r, 0), end;
    if (r->thinks) return start(r, STAGE_THOUGHT, 0, true);
    sn_match match = sn_mark_match(f->thought, r->text, r->len, at, &end);
    if (match == SN_MATCH_YES) return start(r, STAGE_THOUGHT, end, true);
    if (match == SN_MATCH_BEGINS && !r->ended) return false;
    match = sn_mark_match(f->thought_end, r->text, r->len, at, &end); /* of a thought that the model leaves out */
    if (match == SN_MATCH_YES) return start(r, STAGE_CONTENT, end, true);
    if (match == SN_MATCH_BEGINS && at < r->len && !r->ended) return false;
    return start(r, STAGE_CONTENT, 0, false);
}

static bool read_thought(reader *r) {
    sn_match match;
    size_t end;
    if (!skip_to_text(r)) return false;
    r->searched = sn_mark_find(r->f->thought_end, r->text, r->len, r->searched, &match);
    take_text(r, &r->thought, match == SN_MATCH_BEGINS && r->ended ? r->len : r->searched, false);
    if (match != SN_MATCH_YES || sn_mark_match(r->f->thought_end, r->text, r->len, r->searched, &end) != SN_MATCH_YES)
        return false;
    return start(r, STAGE_CONTENT, end, true);
}

/* Calls without a mark before them: an object that is the whole answer, with a name among the tools. True while the
 * answer is one, or may become one. */
static bool read_bare_call(reader *r) {
    size_t begin = skip_space(r, r->at), end;
    if (begin == r->len) return !r->ended;
    r->no_call = r->text[begin] != '{';
    if (r->no_call) return false;
    drop_calls(r, 0);
    read_json_call(r, begin, &end);
    const read_call *call = n_calls(r) ? call_at(r, 0) : NULL;
    for (size_t i = 0; i < json_array_size(r->tools) && call; i++) {
        const json_t *function = json_object_get(json_array_get(r->tools, i), "function");
        const json_t *known = json_object_get(function, "name");
        if (json_string_length(known) == call->n_name && !memcmp(json_string_value(known), call->name, call->n_name))
            return true;
    }
    r->no_call = call || r->ended;
    drop_calls(r, 0);
    return !r->no_call;
}

static bool read_content(reader *r) {
    const sn_answer_format *f = r->f;
    bool wanted = json_array_size(r->tools) && f->kind != SN_CALLS_NONE;
    const char *mark = *f->section ? f->section : f->call;
    sn_match match = SN_MATCH_NO;
    if (!skip_to_text(r)) return false;
    if (wanted && !*mark && !r->no_call && read_bare_call(r)) return false;
    size_t to = r->len;
    if (wanted && *mark) {
        sn_match other = SN_MATCH_NO;
        to = sn_mark_find(mark, r->text, r->len, r->searched, &match);
        size_t call = *f->call ? sn_mark_find(f->call, r->text, r->len, r->searched, &other) : r->len;
        if (call < to) to = call, match = other; /* a call without what should stand before all */
    }
    r->searched = to;
    if (match == SN_MATCH_BEGINS && r->ended) to = r->len;
    take_text(r, &r->content, to, match == SN_MATCH_NO && r->ended);
    return match == SN_MATCH_YES && start(r, STAGE_CALLS, to, false);
}

static void read_plain_answer(reader *r) {
    bool next = true;
    while (next && !r->status) {
        switch (r->stage) {
        case STAGE_BEGIN:
            next = read_beginning(r);
            break;
        case STAGE_THOUGHT:
            next = read_thought(r);
            break;
        case STAGE_CONTENT:
            next = read_content(r);
            break;
        case STAGE_CALLS:
            read_calls(r);
            return;
        }
    }
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

/* The present message: its header (which names the channel, and the function that it is for) and its text up to `to`.
 */
static void take_message(reader *r, size_t to, bool closed) {
    const char *header = r->text + r->channel.header;
    size_t n_header = r->channel.text - r->channel.header, from = r->channel.text;
    const char *function = memmem(header, n_header, "to=functions.", 13);
    const char *channel = memmem(header, n_header, "<|channel|>", 11);
    bool analysis = channel && !strncmp(channel + 11, "analysis", 8);
    if (function) {
        const char *name = function + 13;
        size_t n = 0;
        while (name + n < header + n_header && in_name(name[n])) n++;
        while (from < to && is_space(r->text[from])) from++;
        drop_calls(r, r->n_done);
        add_call(r, name, n, from, to, NULL);
        if (closed) r->n_done = n_calls(r);
    } else {
        if (r->taken < from) r->taken = from;
        take_text(r, analysis ? &r->thought : &r->content, to, closed);
    }
}

static void read_channels(reader *r) {
    size_t *at = &r->channel.at;
    for (; *at < r->len && !r->status; ++*at) {
        size_t n = special_at(r, *at);
        if (!n) continue;
        if (r->channel.in_text) take_message(r, *at, true);
        bool message = special_is(r, *at, n, "<|message|>");
        if (r->channel.in_text) r->channel.header = *at;
        r->channel.in_text = message;
        r->channel.text = *at + n;
        *at += n - 1;
    }
    if (r->channel.in_text) take_message(r, r->len, r->ended);
    bool no_header = r->len && !special_at(r, 0) && !r->content.len && !r->thought.len && !n_calls(r);
    if (no_header && r->ended) take_text(r, &r->content, r->len, true); /* a model that forgot its channels */
}

/* -- the reader -- */

sn_status sn_answer_reader_open(const sn_answer_format *format, bool thinks, const json_t *tools,
                                sn_answer_reader **out, sn_err *err) {
    reader *r = NULL;
    sn_status status = sn_calloc(&r, 1, sizeof *r, err);
    *out = r;
    if (status) return status;
    sn_buf *bufs[] = {&r->text_buf, &r->special, &r->content, &r->thought, &r->calls};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) sn_buf_init(bufs[i], SN_TEXT_MAX);
    r->f = format;
    r->thinks = thinks;
    r->tools = json_incref((json_t *)(uintptr_t)tools);
    r->scan.from = SIZE_MAX;
    return SN_OK;
}

void sn_answer_reader_close(sn_answer_reader **reader_) {
    reader *r = *reader_;
    if (!r) return;
    drop_calls(r, 0);
    sn_buf *bufs[] = {&r->text_buf, &r->special, &r->content, &r->thought, &r->calls};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++) sn_buf_fini(bufs[i]);
    json_decref(r->tools);
    free(r);
    *reader_ = NULL;
}

sn_status sn_answer_reader_add(sn_answer_reader *r, const char *text, const uint8_t *special, size_t len, bool ended,
                               sn_err *err) {
    static const uint8_t none = 0;
    r->status = sn_buf_append(&r->text_buf, text, len, err);
    if (!r->status && special) r->status = sn_buf_append(&r->special, special, len, err);
    while (!r->status && r->special.len < r->text_buf.len) r->status = sn_buf_append(&r->special, &none, 1, err);
    if (r->status) return r->status;
    r->text = r->text_buf.len ? (const char *)r->text_buf.data : "";
    r->len = r->text_buf.len;
    r->ended = ended;
    r->err = err;
    if (r->f->kind == SN_CALLS_CHANNELS)
        read_channels(r);
    else
        read_plain_answer(r);
    if (ended) { /* nothing more is read, and each choice of a request has tools of its own */
        json_decref(r->tools);
        r->tools = NULL;
    }
    return r->status;
}

static const char *text_of(const sn_buf *buf, size_t *len) {
    *len = buf->len;
    return buf->len ? (const char *)buf->data : "";
}

const char *sn_answer_reader_content(const sn_answer_reader *r, size_t *len) { return text_of(&r->content, len); }
const char *sn_answer_reader_thought(const sn_answer_reader *r, size_t *len) { return text_of(&r->thought, len); }
size_t sn_answer_reader_calls(const sn_answer_reader *r) { return n_calls(r); }

const char *sn_answer_reader_name(const sn_answer_reader *r, size_t i, size_t *len) {
    *len = call_at(r, i)->n_name;
    return call_at(r, i)->name;
}

const char *sn_answer_reader_arguments(const sn_answer_reader *r, size_t i, size_t *len) {
    const read_call *c = call_at(r, i);
    if (c->own.len) return text_of(&c->own, len);
    *len = c->to - c->from;
    return r->text + c->from;
}

/* An incomplete character at the end is held back. */
static json_t *text_json(const char *text, size_t n) {
    json_t *out = json_stringn(text, n);
    for (int i = 0; i < 3 && !out && n; i++) out = json_stringn(text, --n);
    return out;
}

json_t *sn_answer_reader_json(const sn_answer_reader *r) {
    size_t n, n_arguments;
    const char *text = sn_answer_reader_content(r, &n);
    json_t *calls = json_array(), *out = json_pack("{s:s, s:o}", "role", "assistant", "content", text_json(text, n));
    bool valid = out && calls;
    text = sn_answer_reader_thought(r, &n);
    if (valid && n) valid = !json_object_set_new(out, "reasoning_content", text_json(text, n));
    for (size_t i = 0; valid && i < n_calls(r); i++) {
        const char *name = sn_answer_reader_name(r, i, &n);
        const char *arguments = sn_answer_reader_arguments(r, i, &n_arguments);
        json_t *one = json_pack("{s:s, s:{s:o, s:o}}", "type", "function", "function", "name", text_json(name, n),
                                "arguments", text_json(arguments, n_arguments));
        valid = !json_array_append_new(calls, one);
    }
    if (valid && json_array_size(calls)) valid = !json_object_set(out, "tool_calls", calls);
    json_decref(calls);
    if (valid) return out;
    json_decref(out);
    return NULL;
}

sn_status sn_answer_read(const sn_answer_format *format, const sn_answer *answer, json_t **out, sn_err *err) {
    reader *r = NULL;
    *out = NULL;
    sn_status status = sn_answer_reader_open(format, answer->thinks, answer->tools, &r, err);
    if (!status) status = sn_answer_reader_add(r, answer->text, answer->special, answer->len, answer->ended, err);
    if (!status && !(*out = sn_answer_reader_json(r)))
        status = sn_fail(err, SN_REFUSED, "the answer is not valid UTF-8");
    sn_answer_reader_close(&r);
    return status;
}
