/* Reading a format off a template: conversations with known names and values are rendered, and what the template writes
 * around them are the marks. */
#include "text/chat/answer_format_private.h"

#include "base/mem.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const char name_1[] = "FIRST_FUNCTION", name_2[] = "OTHER_FUNCTION", id_1[] = "call00001", id_2[] = "call00002";
static const char key_1[] = "KEY_ONE", key_2[] = "KEY_TWO", value_1[] = "VALUE_ONE", value_2[] = "123457";
enum { VALUE_2 = 123457 };
static const char thought[] = "THOUGHT_TEXT", content[] = "CONTENT_TEXT";

/* -- marks -- */

static bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

sn_match sn_mark_match(const char *mark, const char *text, size_t len, size_t at, size_t *end) {
    while (*mark) {
        if (is_space(*mark)) {
            while (is_space(*mark)) mark++;
            while (at < len && is_space(text[at])) at++;
            continue;
        }
        if (at == len) return SN_MATCH_BEGINS;
        if (text[at] != *mark) return SN_MATCH_NO;
        at++, mark++;
    }
    *end = at;
    return SN_MATCH_YES;
}

size_t sn_mark_find(const char *mark, const char *text, size_t len, size_t at, sn_match *match) {
    size_t end;
    *match = SN_MATCH_NO;
    for (; *mark && at < len; at++)
        if (text[at] == *mark && (*match = sn_mark_match(mark, text, len, at, &end)) != SN_MATCH_NO) return at;
    return len;
}

/* Copies [from, to) without the white space around it; false when it is too long. */
static bool set_mark(sn_mark mark, const char *from, const char *to) {
    while (from < to && is_space(*from)) from++;
    while (to > from && is_space(to[-1])) to--;
    size_t n = from < to ? (size_t)(to - from) : 0;
    if (n >= SN_MARK_MAX) return false;
    memcpy(mark, from, n);
    mark[n] = 0;
    return true;
}

static size_t common_beginning(const char *a, size_t n_a, const char *b, size_t n_b) {
    size_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n;
}
static size_t common_end(const char *a, size_t n_a, const char *b, size_t n_b) {
    size_t n = 0;
    while (n < n_a && n < n_b && a[n_a - n - 1] == b[n_b - n - 1]) n++;
    return n;
}

/* -- rendering examples -- */

static json_t *example_tools(void) {
    json_t *properties = json_pack("{s:{s:s, s:s}, s:{s:s, s:s}}", key_1, "type", "string", "description", "text",
                                   key_2, "type", "integer", "description", "number");
    json_t *tools = json_array();
    for (int i = 0; i < 2; i++)
        json_array_append_new(tools,
                              json_pack("{s:s, s:{s:s, s:s, s:{s:s, s:O, s:[s,s]}}}", "type", "function", "function",
                                        "name", i ? name_2 : name_1, "description", "does it", "parameters", "type",
                                        "object", "properties", properties, "required", key_1, key_2));
    json_decref(properties);
    return tools;
}

static json_t *example_call(const char *id, const char *name) {
    return json_pack("{s:s, s:s, s:{s:s, s:{s:s, s:i}}}", "id", id, "type", "function", "function", "name", name,
                     "arguments", key_1, value_1, key_2, VALUE_2);
}

/* The conversation of a user's message and the message of an assistant (NULL: the prompt for it; else it is taken). An
 * empty prompt: the template refuses it. */
static sn_chat_prompt render_example(const sn_chat_template *chat, json_t *message, const json_t *tools) {
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "hello");
    const sn_chat_request request = {.messages = messages, .tools = tools, .no_generation_prompt = message};
    sn_chat_prompt out = {0};
    sn_err err;
    if (message) json_array_append_new(messages, message);
    if (sn_chat_template_render(chat, &request, &out, &err)) sn_chat_prompt_fini(&out);
    json_decref(messages);
    return out;
}

/* Where the answer begins: behind what it shares with the prompt, but not within a tag. */
static const char *answer_of(const sn_chat_prompt *whole, const sn_chat_prompt *prompt) {
    size_t n = common_beginning(whole->text, whole->len, prompt->text, prompt->len);
    for (size_t back = 1; back <= 24 && back <= n; back++) {
        char c = whole->text[n - back];
        if (c == '>' || c == ']' || is_space(c)) break;
        if (c == '<' || c == '[') return whole->text + n - back;
    }
    return whole->text + n;
}

/* -- thoughts -- */

/* Where a mark ends that is one tag, or of two neighbouring tags the first: the other one opens what follows. */
static const char *end_of_tag(const char *from, const char *to) {
    const char *close = strpbrk(from, ">]"), *next = close ? close + 1 : to;
    if (!close || next >= to || (*next != '<' && *next != '[')) return to;
    const char *other = strpbrk(next, ">]");
    return other && other + 1 == to ? next : to;
}

/* message: is taken, and has the thought. */
static bool read_thought_of(const sn_chat_template *chat, json_t *message, const json_t *tools, sn_answer_format *f) {
    sn_chat_prompt prompt = render_example(chat, NULL, tools), whole = render_example(chat, message, tools);
    const char *answer = prompt.len && whole.len ? answer_of(&whole, &prompt) : "";
    const char *at = strstr(answer, thought), *text = at ? strstr(at, tools ? name_1 : content) : NULL;
    const char *begin = at ? at + strlen(thought) : NULL, *close = begin ? strpbrk(begin, ">]") : NULL;
    while (text && !tools && is_space(text[-1])) text--;
    if (text && tools) text = close && close < text ? close + 1 : NULL; /* one tag; behind it the call begins */
    bool known = text && set_mark(f->thought_end, begin, end_of_tag(begin, text));
    if (known) { /* a prompt may open the thought itself: its tag is the last thing in the prompt then */
        const char *open = at;
        while (open > whole.text && is_space(open[-1])) open--;
        const char *end = open;
        while (open > whole.text && open > end - 40 && open[-1] != '<' && open[-1] != '[') open--;
        known = open > whole.text && (open[-1] == '<' || open[-1] == '[') && set_mark(f->thought, open - 1, end);
    }
    sn_chat_prompt_fini(&prompt);
    sn_chat_prompt_fini(&whole);
    return known && *f->thought && *f->thought_end;
}

/* Of an answer, or of one with a call: some templates show thoughts only there. */
static void read_thought_marks(const sn_chat_template *chat, sn_answer_format *f) {
    json_t *tools = example_tools();
    bool known = read_thought_of(
        chat, json_pack("{s:s, s:s, s:s}", "role", "assistant", "content", content, "reasoning_content", thought), NULL,
        f);
    if (!known)
        known = read_thought_of(chat,
                                json_pack("{s:s, s:s, s:s, s:[o]}", "role", "assistant", "content", "",
                                          "reasoning_content", thought, "tool_calls", example_call(id_1, name_1)),
                                tools, f);
    if (!known) { /* templates often drop thoughts, and most of them are these */
        memcpy(f->thought, "<think>", sizeof "<think>");
        memcpy(f->thought_end, "</think>", sizeof "</think>");
    }
    json_decref(tools);
}

/* -- calls -- */

enum { LOADS_MAX = 64 }; /* where an answer may begin a call: a template may write any number of brackets */

/* The JSON value that begins at the text; NULL: none. *end: behind it. *loads: how often that was tried. */
static json_t *load_value(const char *text, const char **end, int *loads) {
    json_error_t where;
    if ((*text != '{' && *text != '[') || *loads == LOADS_MAX) return NULL;
    ++*loads;
    json_t *value = json_loads(text, JSON_DISABLE_EOF_CHECK, &where);
    if (value) *end = text + where.position;
    return value;
}

/* The keys of an object that holds a call; false: it holds none. */
static bool read_keys(const json_t *object, sn_answer_format *f) {
    const char *key;
    json_t *value;
    *f->name_key = *f->arguments_key = 0;
    json_object_foreach((json_t *)object, key, value) {
        const char *text = json_string_value(value);
        size_t n = strlen(key);
        if (json_object_get(value, key_1) && !strcmp(key, name_1)) return true;
        if (text && !strcmp(text, name_1) && !set_mark(f->name_key, key, key + n)) return false;
        if (json_object_get(value, key_1) && !set_mark(f->arguments_key, key, key + n)) return false;
    }
    return *f->name_key && *f->arguments_key;
}

/* Marks before the first call and before each: `first` (n_first bytes) stands before the first one, `second` before the
 * second one; NULL: only one call was rendered. What calls have in common stands before each. */
static bool set_call_marks(sn_answer_format *f, const char *first, size_t n_first, const char *second,
                           size_t n_second) {
    size_t common = second ? common_end(first, n_first, second, n_second) : n_first;
    const char *call = first + n_first - common, *end = first + n_first;
    const char *id = memmem(first, n_first - common, id_1, strlen(id_1)); /* an id is no mark */
    if (!set_mark(f->section, first, id ? id : call)) return false;
    for (size_t i = 0; i < common; i++) { /* behind the call's id */
        const char *at = end - i - strlen(id_1);
        if (at >= call && !memcmp(at, id_1, strlen(id_1) - 1)) {
            call = at + strlen(id_1);
            break;
        }
    }
    return set_mark(f->call, call, end);
}

static bool read_json_calls(sn_answer_format *f, const char *answer, const char *at) {
    const char *end, *next_end;
    int loads = 0;
    for (const char *begin = answer; begin < at; begin++) {
        json_t *value = load_value(begin, &end, &loads);
        bool list = json_is_array(value);
        bool known = value && end > at && read_keys(list ? json_array_get(value, 0) : value, f);
        json_decref(value);
        if (!known) continue;
        const char *second = end;
        while (!list && *second && *second != '{') second++;
        value = list ? NULL : load_value(second, &next_end, &loads);
        bool two = value;
        json_decref(value);
        f->kind = SN_CALLS_JSON;
        if (list) return set_mark(f->section, answer, begin);
        return set_call_marks(f, answer, (size_t)(begin - answer), two ? end : NULL, (size_t)(second - end));
    }
    return false;
}

static bool read_named_calls(sn_answer_format *f, const char *answer, const char *at) {
    const char *end = NULL, *begin = at + strlen(name_1), *key = strstr(at, key_1), *second = strstr(at, name_2);
    json_t *value = NULL;
    int loads = 0;
    while (*begin && (!key || begin < key) && !(value = load_value(begin, &end, &loads))) begin++;
    bool known = json_object_get(value, key_1);
    json_decref(value);
    if (second && second < end) second = NULL; /* it is part of the first call's arguments */
    f->kind = SN_CALLS_NAMED;
    return known &&
           set_call_marks(f, answer, (size_t)(at - answer), second ? end : NULL, second ? (size_t)(second - end) : 0);
}

static bool read_tagged_calls(sn_answer_format *f, const char *answer, const char *at) {
    const char *after_name = at + strlen(name_1), *k1 = strstr(after_name, key_1),
               *v1 = k1 ? strstr(k1, value_1) : NULL;
    const char *k2 = v1 ? strstr(v1, key_2) : NULL, *v2 = k2 ? strstr(k2, value_2) : NULL;
    if (!v2) return false;
    const char *second = strstr(v2, name_2), *after_v2 = v2 + strlen(value_2);
    const char *after_k1 = k1 + strlen(key_1), *after_k2 = k2 + strlen(key_2), *after_v1 = v1 + strlen(value_1);
    size_t before_key = common_end(after_name, (size_t)(k1 - after_name), after_v1, (size_t)(k2 - after_v1));
    const char *value_end = k2 - before_key;
    const char *closing = strstr(after_v1, key_1); /* a tag that closes by the key's name */
    if (closing && closing < value_end) value_end = closing;
    size_t head = common_beginning(after_k1, (size_t)(v1 - after_k1), after_k2, (size_t)(v2 - after_k2));
    size_t tail = common_end(after_k1, (size_t)(v1 - after_k1), after_k2, (size_t)(v2 - after_k2));
    if (head == (size_t)(v1 - after_k1) && head == (size_t)(v2 - after_k2))
        tail = 0; /* all of it stands behind the key */
    else if (!set_mark(f->string_value, after_k1, v1))
        return false;
    f->kind = SN_CALLS_TAGGED;
    return before_key && head && set_mark(f->key, k2 - before_key, k2) &&
           set_mark(f->key_end, after_k1, after_k1 + head) && set_mark(f->value, v1 - tail, v1) &&
           set_mark(f->value_end, after_v1, value_end) && *f->key && *f->value_end &&
           set_call_marks(f, answer, (size_t)(at - answer), second ? after_v2 : NULL,
                          second ? (size_t)(second - after_v2) : 0);
}

static bool read_written_calls(sn_answer_format *f, const char *answer, const char *at) {
    const char *open = at + strlen(name_1), *end = NULL, *second = strstr(at, name_2);
    size_t behind = 0;
    if (*open != '(' && *open != '{') return false;
    const char *key = open + 1, *separator = key + strlen(key_1);
    if (strncmp(key, key_1, strlen(key_1)) || (*separator != '=' && *separator != ':')) return false;
    json_t *value = sn_written_value(separator + 1, strlen(separator + 1), 0, &behind);
    bool known = json_string_value(value) && !strcmp(json_string_value(value), value_1);
    json_decref(value);
    end = known ? strchr(separator + 1 + behind, *open == '(' ? ')' : '}') : NULL;
    if (!end) return false;
    if (second && second < end) second = NULL;
    f->kind = SN_CALLS_WRITTEN;
    return set_call_marks(f, answer, (size_t)(at - answer), second ? end + 1 : NULL,
                          second ? (size_t)(second - end - 1) : 0) &&
           (*f->section || *f->call);
}

/* The marks of an answer with calls; false: it shows none that is known. */
static bool read_calls(sn_answer_format *f, const char *answer) {
    const sn_answer_format none = *f;
    for (const char *end; (end = strstr(answer, f->thought_end)) && end < strstr(answer, name_1);)
        answer = end + strlen(f->thought_end); /* an empty thought before the calls */
    const char *at = strstr(answer, name_1);
    if (!at) return false;
    if (read_json_calls(f, answer, at)) return true;
    *f = none;
    if (read_named_calls(f, answer, at) && *f->call) return true;
    *f = none;
    if (read_written_calls(f, answer, at)) return true;
    *f = none;
    if (read_tagged_calls(f, answer, at) && *f->call) return true;
    *f = none;
    return false;
}

static void read_call_marks(const sn_chat_template *chat, sn_answer_format *f) {
    json_t *tools = example_tools();
    sn_chat_prompt prompt = render_example(chat, NULL, tools);
    for (int n = 2; n > 0 && prompt.len && f->kind == SN_CALLS_NONE; n--) { /* some templates refuse two calls */
        json_t *calls = json_array();
        json_array_append_new(calls, example_call(id_1, name_1));
        if (n == 2) json_array_append_new(calls, example_call(id_2, name_2));
        sn_chat_prompt whole = render_example(
            chat, json_pack("{s:s, s:s, s:o}", "role", "assistant", "content", "", "tool_calls", calls), tools);
        const char *answer = whole.len ? answer_of(&whole, &prompt) : "";
        if (strstr(answer, "<|channel|>"))
            f->kind = SN_CALLS_CHANNELS;
        else
            read_calls(f, answer);
        sn_chat_prompt_fini(&whole);
    }
    sn_chat_prompt_fini(&prompt);
    json_decref(tools);
}

sn_status sn_answer_format_open(const sn_chat_template *chat, sn_answer_format **out, sn_err *err) {
    sn_status status = sn_calloc(out, 1, sizeof **out, err);
    if (status) return status;
    read_thought_marks(chat, *out);
    read_call_marks(chat, *out);
    return SN_OK;
}

void sn_answer_format_close(sn_answer_format **format) {
    free(*format);
    *format = NULL;
}

bool sn_answer_format_prompt_thinks(const sn_answer_format *f, const char *prompt, size_t len) {
    size_t n = strlen(f->thought);
    while (len && is_space(prompt[len - 1])) len--;
    return f->kind != SN_CALLS_CHANNELS && len >= n && !memcmp(prompt + len - n, f->thought, n);
}

json_t *sn_answer_format_marks(const sn_answer_format *f) {
    if (f->kind == SN_CALLS_CHANNELS) return json_pack("{s:n, s:n}", "thought", "calls");
    json_t *calls = f->kind == SN_CALLS_NONE ? json_null() : json_array();
    const char *const marks[] = {f->section, strcmp(f->section, f->call) ? f->call : ""};
    for (size_t i = 0; i < 2; i++)
        if (*marks[i]) json_array_append_new(calls, json_string(marks[i]));
    return json_pack("{s:[s, s], s:o}", "thought", f->thought, f->thought_end, "calls", calls);
}
