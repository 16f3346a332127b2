/* Passes over the messages, one for each thing that a template may lack. Each makes a new list, in which messages that
 * it does not change are those of the request. Their time grows with the messages' bytes. */
#include "text/chat/chat_fit.h"

#include "base/mem.h"
#include "base/wide_json.h"

#include <stdlib.h>
#include <string.h>

#define SEPARATOR "\n\n"
enum { MARK_SHARED_MAX = 24 }; /* bytes of a mark, which begin another one, too */

/* -- what a template lacks -- */

typedef struct probe {
    const sn_chat_template *chat;
    sn_chat_renderer render;
} probe;

/* Whether a conversation, as JSON, is taken, and its prompt has these words (up to the NULL). */
static bool shows(const probe *p, const char *messages, const json_t *tools, const char *const *words) {
    json_t *list = json_loads(messages, 0, NULL);
    const sn_chat_request request = {.messages = list, .tools = tools};
    sn_chat_prompt prompt = {0};
    sn_err err;
    bool all = list && !p->render(p->chat, &request, &prompt, &err);
    for (; all && *words; words++) all = prompt.text && strstr(prompt.text, *words);
    sn_chat_prompt_fini(&prompt);
    json_decref(list);
    return all;
}

/* Texts that no template has of its own. */
#define RULES  "sn_rules"
#define MORE   "sn_more_rules"
#define FIRST  "sn_first"
#define ANSWER "sn_answer"
#define SECOND "sn_second"
#define TOOL   "sn_tool"
#define VALUE  "sn_value"
#define RESULT "sn_result"

/* How the prompts of LFM2 begin their list of tools; most of its templates show no calls. */
#define LISTS_BRACKETED "List of tools: "

#define SAYS(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define WORDS(...)       ((const char *const[]){__VA_ARGS__, NULL})

static const char tool_described[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"" TOOL "\", \"description\": \"d\", \"parameters\": "
    "{\"type\": \"object\", \"properties\": {\"p\": {\"type\": \"string\", \"description\": \"d\"}}, "
    "\"required\": [\"p\"]}}}]";
#define CALL(name, parameter, value)                                                                                   \
    SAYS("user", FIRST)                                                                                                \
    ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"call00000\", \"type\": \"function\", " \
    "\"function\": {\"name\": \"" name "\", \"arguments\": {\"" parameter "\": \"" value "\"}}}]}"
#define RETURNED                                                                                                       \
    CALL(TOOL, "p", VALUE)                                                                                             \
    ", {\"role\": \"tool\", \"tool_call_id\": \"call00000\", \"name\": \"" TOOL "\", \"content\": \"" RESULT "\"}"

/* Of what two prompts begin with alike, without a part of a mark or of a character. */
static size_t shared_beginning(const sn_chat_prompt *a, const sn_chat_prompt *b) {
    size_t n = 0, mark;
    while (n < a->len && n < b->len && a->text[n] == b->text[n]) n++;
    for (mark = n; mark && n - mark < MARK_SHARED_MAX && !strchr("<[>] \n", b->text[mark - 1]);) mark--;
    if (mark && strchr("<[", b->text[mark - 1])) return mark - 1;
    while (n && ((unsigned char)b->text[n] & 0xc0) == 0x80) n--;
    return n;
}

/* How a template writes a call, behind what opens an answer; "": it is too long. */
static void find_form(const probe *p, char out[SN_CHAT_FORM_MAX]) {
    json_t *asked = json_loads("[" SAYS("user", FIRST) "]", 0, NULL),
           *called = json_loads("[" CALL("NAME", "PARAMETER", "VALUE") "]", 0, NULL);
    const sn_chat_request before = {.messages = asked}, whole = {.messages = called, .no_generation_prompt = true};
    sn_chat_prompt a = {0}, b = {0};
    sn_err err;
    if (asked && called && !p->render(p->chat, &before, &a, &err) && !p->render(p->chat, &whole, &b, &err)) {
        const size_t n = shared_beginning(&a, &b);
        if (b.len - n < SN_CHAT_FORM_MAX) memcpy(out, b.text + n, b.len - n + 1);
    }
    sn_chat_prompt_fini(&a);
    sn_chat_prompt_fini(&b);
    json_decref(asked);
    json_decref(called);
}

static void find_tools(const probe *p, sn_chat_lacks *lacks) {
    json_t *tools = json_loads(tool_described, 0, NULL);
    lacks->tools = !shows(p, "[" SAYS("user", FIRST) "]", tools, WORDS(FIRST, TOOL));
    lacks->calls = !shows(p, "[" CALL(TOOL, "p", VALUE) "]", tools, WORDS(FIRST, TOOL, VALUE)) &&
                   !shows(p, "[" RETURNED "]", tools, WORDS(FIRST, TOOL, VALUE));
    lacks->bracketed = lacks->calls && shows(p, "[" SAYS("user", FIRST) "]", tools, WORDS(LISTS_BRACKETED));
    lacks->results = !shows(p, "[" RETURNED "]", tools, WORDS(FIRST, RESULT));
    if (lacks->tools && !lacks->calls) find_form(p, lacks->form);
    json_decref(tools);
}

static void find_system(const probe *p, sn_chat_lacks *lacks) {
    lacks->system = !shows(p, "[" SAYS("system", RULES) ", " SAYS("user", FIRST) "]", NULL, WORDS(RULES, FIRST));
    if (lacks->system) return;
    lacks->second_system = !shows(p, "[" SAYS("system", RULES) ", " SAYS("system", MORE) ", " SAYS("user", FIRST) "]",
                                  NULL, WORDS(RULES, MORE, FIRST));
    /* a template may take it, and forget the one at the beginning for it */
    lacks->late_system = !shows(p,
                                "[" SAYS("system", RULES) ", " SAYS("user", FIRST) ", " SAYS(
                                    "assistant", ANSWER) ", " SAYS("system", MORE) ", " SAYS("user", SECOND) "]",
                                NULL, WORDS(RULES, FIRST, ANSWER, MORE, SECOND));
}

sn_chat_lacks sn_chat_find_lacks(const sn_chat_template *chat, sn_chat_renderer render) {
    const probe p = {chat, render};
    sn_chat_lacks lacks = {0};
    if (!shows(&p, "[" SAYS("user", FIRST) "]", NULL, WORDS(FIRST))) return lacks; /* nothing can be told of it */
    find_system(&p, &lacks);
    lacks.repeated_roles =
        !shows(&p, "[" SAYS("user", FIRST) ", " SAYS("user", SECOND) "]", NULL, WORDS(FIRST, SECOND));
    find_tools(&p, &lacks);
    return lacks;
}

/* -- texts -- */

static const char *role_of(const json_t *message) { return json_string_value(json_object_get(message, "role")); }
static bool has_role(const json_t *message, const char *role) {
    const char *own = role_of(message);
    return own && !strcmp(own, role);
}
static const json_t *content_of(const json_t *message) { return json_object_get(message, "content"); }
static const json_t *calls_of(const json_t *message) {
    const json_t *calls = json_object_get(message, "tool_calls");
    return json_array_size(calls) ? calls : NULL;
}

/* Two texts with what stands between them, which an empty one does not need; NULL: none. A new reference. */
static json_t *joined(const json_t *a, const char *between, const json_t *b) {
    const size_t n_a = json_string_length(a), n_b = json_string_length(b);
    sn_buf all;
    sn_buf_init(&all, SIZE_MAX);
    bool whole = !n_a || !sn_buf_append(&all, json_string_value(a), n_a, NULL);
    if (whole && n_a && n_b) whole = !sn_buf_append(&all, between, strlen(between), NULL);
    if (whole && n_b) whole = !sn_buf_append(&all, json_string_value(b), n_b, NULL);
    json_t *out = whole ? json_stringn(all.len ? (const char *)all.data : "", all.len) : NULL;
    sn_buf_fini(&all);
    return out;
}

/* The message with another content, which is taken. */
static json_t *with_content(const json_t *message, json_t *content) {
    json_t *out = json_copy((json_t *)(uintptr_t)message);
    if (out && !json_object_set_new(out, "content", content)) return out;
    json_decref(out);
    return NULL;
}

/* -- tools -- */

#define EXPLAINED                                                                                                      \
    "\n</tools>\nTo call a function, answer with its name and its arguments as JSON, between these marks, once for "   \
    "each "                                                                                                            \
    "call:\n<tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"PARAMETER\": VALUE}}\n</tool_call>"
#define EXPLAINED_OWN "\n</tools>\nTo call a function, answer with its name and its arguments in this form:\n"

static json_t *tools_text(const sn_chat_lacks *lacks, const json_t *tools) {
    json_t *text = json_string("You can call these functions, which are described as JSON, when they help:\n<tools>");
    for (size_t i = 0; i < json_array_size(tools) && text; i++) {
        char *dumped = sn_wide_json_dump(json_array_get(tools, i));
        json_t *one = dumped ? json_string(dumped) : NULL, *longer = one ? joined(text, "\n", one) : NULL;
        json_decref(text);
        json_decref(one);
        free(dumped);
        text = longer;
    }
    json_t *end = *lacks->form ? json_sprintf("%s%s", EXPLAINED_OWN, lacks->form) : json_string(EXPLAINED),
           *all = text && end ? joined(text, "", end) : NULL;
    json_decref(text);
    json_decref(end);
    return all;
}

static json_t *call_as_json(const json_t *function) {
    char *name = sn_wide_json_dump(json_object_get(function, "name")),
         *arguments = sn_wide_json_dump(json_object_get(function, "arguments"));
    json_t *out = json_sprintf("<tool_call>\n{\"name\": %s, \"arguments\": %s}\n</tool_call>", name ? name : "null",
                               arguments ? arguments : "{}");
    free(name);
    free(arguments);
    return out;
}

/* The text with another one behind it; both are taken. NULL: one of them is, or no memory. */
static json_t *longer(json_t *text, const char *between, json_t *more) {
    json_t *out = text && more ? joined(text, between, more) : NULL;
    json_decref(text);
    json_decref(more);
    return out;
}

/* NAME(KEY=VALUE, ...). Values are JSON, but for Python's words. */
static json_t *call_as_program(const json_t *function) {
    const char *key;
    json_t *value, *out = json_sprintf("%s(", json_string_value(json_object_get(function, "name")));
    bool first = true;
    json_object_foreach(json_object_get(function, "arguments"), key, value) {
        char *dumped = sn_wide_json_dump(value);
        const char *text = json_is_true(value)    ? "True"
                           : json_is_false(value) ? "False"
                           : json_is_null(value)  ? "None"
                                                  : dumped;
        out = longer(out, first ? "" : ", ", text ? json_sprintf("%s=%s", key, text) : NULL);
        first = false;
        free(dumped);
    }
    return longer(out, "", json_string(")"));
}

/* An answer with its calls written out. */
static json_t *written_calls(const sn_chat_lacks *lacks, const json_t *message, const json_t *calls) {
    json_t *content = json_incref((json_t *)(uintptr_t)content_of(message)), *out = NULL;
    const size_t n = json_array_size(calls);
    if (!content) content = json_string("");
    if (lacks->bracketed) content = longer(content, "", json_string("<|tool_call_start|>["));
    for (size_t i = 0; i < n; i++) {
        const json_t *function = json_object_get(json_array_get(calls, i), "function");
        content = lacks->bracketed ? longer(content, i ? ", " : "", call_as_program(function))
                                   : longer(content, "\n", call_as_json(function));
    }
    if (lacks->bracketed) content = longer(content, "", json_string("]<|tool_call_end|>"));
    if (content) out = with_content(message, content);
    if (out) json_object_del(out, "tool_calls");
    return out;
}

static json_t *written_result(const json_t *message) {
    const char *text = json_string_value(content_of(message));
    return text ? json_pack("{s:s, s:o}", "role", "user", "content",
                            json_sprintf("<tool_response>\n%s\n</tool_response>", text))
                : json_incref((json_t *)(uintptr_t)message);
}

static json_t *write_tools(const sn_chat_lacks *lacks, const json_t *messages, const json_t *tools) {
    const bool listed = lacks->tools && json_array_size(tools);
    json_t *out = json_array(), *list = listed ? tools_text(lacks, tools) : NULL;
    const json_t *first = json_array_get(messages, 0);
    const bool system = list && has_role(first, "system") && json_is_string(content_of(first));
    bool good = out && (list || !listed);
    if (good && list)
        good = !json_array_append_new(out, system ? with_content(first, joined(content_of(first), SEPARATOR, list))
                                                  : json_pack("{s:s, s:O}", "role", "system", "content", list));
    for (size_t i = system; i < json_array_size(messages) && good; i++) {
        const json_t *m = json_array_get(messages, i), *calls = calls_of(m);
        good =
            !json_array_append_new(out, calls && lacks->calls                   ? written_calls(lacks, m, calls)
                                        : lacks->results && has_role(m, "tool") ? written_result(m)
                                                                                : json_incref((json_t *)(uintptr_t)m));
    }
    json_decref(list);
    if (good) return out;
    json_decref(out);
    return NULL;
}

/* -- messages that are one -- */

/* Adds a text behind those that are there. */
static bool add_text(sn_buf *all, const json_t *text) {
    const size_t n = json_string_length(text);
    sn_err err;
    return !n || ((!all->len || !sn_buf_append(all, SEPARATOR, strlen(SEPARATOR), &err)) &&
                  !sn_buf_append(all, json_string_value(text), n, &err));
}

/* All that was added; NULL: no memory. */
static json_t *text_of(const sn_buf *all) { return json_stringn(all->len ? (const char *)all->data : "", all->len); }

static bool may_join(const sn_chat_lacks *lacks, const json_t *a, const json_t *b) {
    const char *role = role_of(a);
    if (!role || !has_role(b, role) || !json_is_string(content_of(a)) || !json_is_string(content_of(b))) return false;
    if (!strcmp(role, "system")) return lacks->second_system;
    return lacks->repeated_roles && (!strcmp(role, "user") || !strcmp(role, "assistant")) && !calls_of(a) &&
           !calls_of(b);
}

/* The message at *at with those that follow and may be joined with it; *at: behind them. */
static json_t *take_joined(const sn_chat_lacks *lacks, const json_t *messages, size_t *at) {
    const json_t *first = json_array_get(messages, (*at)++), *next;
    sn_buf all;
    if (!may_join(lacks, first, json_array_get(messages, *at))) return json_incref((json_t *)(uintptr_t)first);
    sn_buf_init(&all, SIZE_MAX);
    bool good = add_text(&all, content_of(first));
    for (; may_join(lacks, first, next = json_array_get(messages, *at)) && good; ++*at)
        good = add_text(&all, content_of(next));
    json_t *out = good ? with_content(first, text_of(&all)) : NULL;
    sn_buf_fini(&all);
    return out;
}

static json_t *join_messages(const sn_chat_lacks *lacks, const json_t *messages) {
    json_t *out = json_array();
    bool good = out;
    for (size_t at = 0; at < json_array_size(messages) && good;)
        good = !json_array_append_new(out, take_joined(lacks, messages, &at));
    if (good) return out;
    json_decref(out);
    return NULL;
}

/* -- system messages -- */

typedef struct system_pass {
    const sn_chat_lacks *lacks;
    json_t *out;
    sn_buf held; /* what the user's next message begins with */
    bool holds;
} system_pass;

/* The held text, and this one behind it; nothing is held then. NULL: no memory. */
static json_t *take_held(system_pass *p, const json_t *text) {
    json_t *out = add_text(&p->held, text) ? text_of(&p->held) : NULL;
    p->holds = false;
    p->held.len = 0;
    return out;
}

static bool take_message(system_pass *p, const json_t *message, bool leading) {
    const json_t *content = content_of(message);
    const bool text = json_is_string(content);
    if (text && has_role(message, "system") && (p->lacks->system || (!leading && p->lacks->late_system))) {
        p->holds = true;
        return add_text(&p->held, content);
    }
    if (text && p->holds && has_role(message, "user"))
        return !json_array_append_new(p->out, with_content(message, take_held(p, content)));
    return !json_array_append(p->out, (json_t *)(uintptr_t)message);
}

static json_t *move_system(const sn_chat_lacks *lacks, const json_t *messages) {
    system_pass p = {.lacks = lacks, .out = json_array()};
    bool leading = true, good = p.out;
    sn_buf_init(&p.held, SIZE_MAX);
    for (size_t i = 0; i < json_array_size(messages) && good; i++) {
        const json_t *message = json_array_get(messages, i);
        leading = leading && has_role(message, "system");
        good = take_message(&p, message, leading);
    }
    if (p.holds && good)
        good = !json_array_append_new(p.out, json_pack("{s:s, s:o}", "role", "user", "content", take_held(&p, NULL)));
    sn_buf_fini(&p.held);
    if (good) return p.out;
    json_decref(p.out);
    return NULL;
}

/* Takes `messages`; `next`: what becomes of them. */
static json_t *instead(json_t *messages, json_t *next) {
    json_decref(messages);
    return next;
}

json_t *sn_chat_fit_messages(const sn_chat_lacks *lacks, const sn_chat_request *request) {
    json_t *messages = json_incref((json_t *)(uintptr_t)request->messages);
    if (lacks->tools || lacks->calls || lacks->results)
        messages = instead(messages, write_tools(lacks, messages, request->tools));
    if (messages && lacks->second_system) messages = instead(messages, join_messages(lacks, messages));
    if (messages && (lacks->system || lacks->late_system)) messages = instead(messages, move_system(lacks, messages));
    if (messages && lacks->repeated_roles) messages = instead(messages, join_messages(lacks, messages));
    return messages;
}
