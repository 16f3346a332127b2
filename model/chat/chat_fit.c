/* Three passes over the messages, one for each thing that a template may lack. Each makes a new list, in which messages
 * that it does not change are those of the request. */
#include "model/chat/chat_fit.h"

#include "base/wide_json.h"

#include <stdlib.h>
#include <string.h>

#define SEPARATOR "\n\n"

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

#define SAYS(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define WORDS(...)       ((const char *const[]){__VA_ARGS__, NULL})

static bool shows_tools(const probe *p) {
    static const char tool[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"sn_tool\", \"description\": \"d\", "
        "\"parameters\": {\"type\": \"object\", \"properties\": {}}}}]";
    static const char called[] = "[" SAYS(
        "user", "first") ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"call00000\", "
                         "\"type\": \"function\", \"function\": {\"name\": \"sn_tool\", \"arguments\": {}}}]}]";
    json_t *tools = json_loads(tool, 0, NULL);
    const bool shown =
        shows(p, "[" SAYS("user", "first") "]", tools, WORDS("sn_tool")) || shows(p, called, tools, WORDS("sn_tool"));
    json_decref(tools);
    return shown;
}

sn_chat_lacks sn_chat_find_lacks(const sn_chat_template *chat, sn_chat_renderer render) {
    const probe p = {chat, render};
    sn_chat_lacks lacks = {0};
    if (!shows(&p, "[" SAYS("user", "first") "]", NULL, WORDS("first"))) return lacks; /* nothing can be told of it */
    lacks.system =
        !shows(&p, "[" SAYS("system", "rules") ", " SAYS("user", "first") "]", NULL, WORDS("rules", "first"));
    if (!lacks.system) {
        lacks.second_system =
            !shows(&p, "[" SAYS("system", "rules") ", " SAYS("system", "more") ", " SAYS("user", "first") "]", NULL,
                   WORDS("rules", "more", "first"));
        lacks.late_system = !shows(&p,
                                   "[" SAYS("user", "first") ", " SAYS("assistant", "answer") ", " SAYS(
                                       "system", "rules") ", " SAYS("user", "second") "]",
                                   NULL, WORDS("first", "rules", "second"));
    }
    lacks.repeated_roles =
        !shows(&p, "[" SAYS("user", "first") ", " SAYS("user", "second") "]", NULL, WORDS("first", "second"));
    lacks.tools = !shows_tools(&p);
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
    const char *gap = json_string_length(a) && json_string_length(b) ? between : "";
    const size_t n_a = json_string_length(a), n_b = json_string_length(b), n = n_a + strlen(gap) + n_b;
    char *text = malloc(n + 1);
    if (!text) return NULL;
    if (n_a) memcpy(text, json_string_value(a), n_a);
    memcpy(text + n_a, gap, strlen(gap));
    if (n_b) memcpy(text + n_a + strlen(gap), json_string_value(b), n_b);
    json_t *out = json_stringn(text, n);
    free(text);
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

static const char calls_explained[] =
    "\n</tools>\nTo call a function, answer with its name and its arguments as JSON, between these marks, once for "
    "each "
    "call:\n<tool_call>\n{\"name\": \"NAME\", \"arguments\": {\"PARAMETER\": VALUE}}\n</tool_call>";

static json_t *tools_text(const json_t *tools) {
    json_t *text = json_string("You can call these functions, which are described as JSON, when they help:\n<tools>");
    for (size_t i = 0; i < json_array_size(tools) && text; i++) {
        char *dumped = sn_wide_json_dump(json_array_get(tools, i));
        json_t *one = dumped ? json_string(dumped) : NULL, *longer = one ? joined(text, "\n", one) : NULL;
        json_decref(text);
        json_decref(one);
        free(dumped);
        text = longer;
    }
    json_t *end = json_string(calls_explained), *all = text && end ? joined(text, "", end) : NULL;
    json_decref(text);
    json_decref(end);
    return all;
}

/* An answer with its calls written out. */
static json_t *written_calls(const json_t *message, const json_t *calls) {
    json_t *content = json_incref((json_t *)(uintptr_t)content_of(message)), *out = NULL;
    if (!content) content = json_string("");
    for (size_t i = 0; i < json_array_size(calls) && content; i++) {
        const json_t *function = json_object_get(json_array_get(calls, i), "function");
        char *name = sn_wide_json_dump(json_object_get(function, "name")),
             *arguments = sn_wide_json_dump(json_object_get(function, "arguments"));
        json_t *one = json_sprintf("<tool_call>\n{\"name\": %s, \"arguments\": %s}\n</tool_call>", name ? name : "null",
                                   arguments ? arguments : "{}");
        json_t *longer = one ? joined(content, "\n", one) : NULL;
        json_decref(content);
        json_decref(one);
        free(name);
        free(arguments);
        content = longer;
    }
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

static json_t *write_tools(const json_t *messages, const json_t *tools) {
    json_t *out = json_array(), *list = json_array_size(tools) ? tools_text(tools) : NULL;
    const json_t *first = json_array_get(messages, 0);
    const bool system = list && has_role(first, "system") && json_is_string(content_of(first));
    bool good = out && (list || !json_array_size(tools));
    if (good && list)
        good = !json_array_append_new(out, system ? with_content(first, joined(content_of(first), SEPARATOR, list))
                                                  : json_pack("{s:s, s:O}", "role", "system", "content", list));
    for (size_t i = system; i < json_array_size(messages) && good; i++) {
        const json_t *m = json_array_get(messages, i), *calls = calls_of(m);
        good = !json_array_append_new(out, calls                 ? written_calls(m, calls)
                                           : has_role(m, "tool") ? written_result(m)
                                                                 : json_incref((json_t *)(uintptr_t)m));
    }
    json_decref(list);
    if (good) return out;
    json_decref(out);
    return NULL;
}

/* -- system messages -- */

typedef struct system_pass {
    const sn_chat_lacks *lacks;
    json_t *out, *held; /* held: what the user's next message begins with; NULL: nothing */
    bool failed;
} system_pass;

static void append(system_pass *p, json_t *message) { p->failed = p->failed || json_array_append_new(p->out, message); }

static void hold(system_pass *p, const json_t *content) {
    json_t *all = p->held ? joined(p->held, SEPARATOR, content) : json_incref((json_t *)(uintptr_t)content);
    json_decref(p->held);
    p->held = all;
    p->failed = p->failed || !all;
}

/* Of a list in which only system messages stand before it. */
static void take_leading(system_pass *p, const json_t *message) {
    const size_t n = json_array_size(p->out);
    if (!n || !p->lacks->second_system) {
        append(p, json_incref((json_t *)(uintptr_t)message));
        return;
    }
    const json_t *first = json_array_get(p->out, n - 1);
    json_t *both = with_content(first, joined(content_of(first), SEPARATOR, content_of(message)));
    p->failed = p->failed || json_array_set_new(p->out, n - 1, both);
}

static void take_message(system_pass *p, const json_t *message, bool leading) {
    const json_t *content = content_of(message);
    const bool system = has_role(message, "system") && json_is_string(content);
    if (system && (p->lacks->system || (!leading && p->lacks->late_system))) {
        hold(p, content);
    } else if (system && leading) {
        take_leading(p, message);
    } else if (p->held && has_role(message, "user") && json_is_string(content)) {
        append(p, with_content(message, joined(p->held, SEPARATOR, content)));
        json_decref(p->held);
        p->held = NULL;
    } else {
        append(p, json_incref((json_t *)(uintptr_t)message));
    }
}

static json_t *move_system(const sn_chat_lacks *lacks, const json_t *messages) {
    system_pass p = {.lacks = lacks, .out = json_array()};
    bool leading = true;
    p.failed = !p.out;
    for (size_t i = 0; i < json_array_size(messages) && !p.failed; i++) {
        const json_t *message = json_array_get(messages, i);
        leading = leading && has_role(message, "system");
        take_message(&p, message, leading);
    }
    if (p.held && !p.failed) append(&p, json_pack("{s:s, s:O}", "role", "user", "content", p.held));
    json_decref(p.held);
    if (!p.failed) return p.out;
    json_decref(p.out);
    return NULL;
}

/* -- roles that alternate -- */

static bool may_join(const json_t *a, const json_t *b) {
    const bool same =
        (has_role(a, "user") && has_role(b, "user")) || (has_role(a, "assistant") && has_role(b, "assistant"));
    return same && json_is_string(content_of(a)) && json_is_string(content_of(b)) && !calls_of(a) && !calls_of(b);
}

static json_t *join_repeated(const json_t *messages) {
    json_t *out = json_array();
    bool good = out;
    for (size_t i = 0; i < json_array_size(messages) && good; i++) {
        const json_t *message = json_array_get(messages, i);
        const size_t n = json_array_size(out);
        const json_t *last = json_array_get(out, n - 1);
        if (last && may_join(last, message))
            good = !json_array_set_new(out, n - 1,
                                       with_content(last, joined(content_of(last), SEPARATOR, content_of(message))));
        else
            good = !json_array_append(out, (json_t *)(uintptr_t)message);
    }
    if (good) return out;
    json_decref(out);
    return NULL;
}

json_t *sn_chat_fit_messages(const sn_chat_lacks *lacks, const sn_chat_request *request) {
    json_t *messages = json_incref((json_t *)(uintptr_t)request->messages), *next;
    if (lacks->tools) {
        next = write_tools(messages, request->tools);
        json_decref(messages);
        messages = next;
    }
    if (messages && (lacks->system || lacks->second_system || lacks->late_system)) {
        next = move_system(lacks, messages);
        json_decref(messages);
        messages = next;
    }
    if (messages && lacks->repeated_roles) {
        next = join_repeated(messages);
        json_decref(messages);
        messages = next;
    }
    return messages;
}
