/* Messages of a chat, as templates expect them: each content one text, "developer" as "system", and the arguments of
 * calls as the objects that they are. */
#include "gateway/openai/request_private.h"

#include "base/mem.h"
#include "base/wide_json.h"

#include <string.h>

/* -- content -- */

static const char *part_text(sn_parse *p, const json_t *part, const char *path, const char *types) {
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *text = json_object_get(part, type && !strcmp(type, "refusal") ? "refusal" : "text");
    if (!type || !sn_is_word(types, type)) {
        sn_openai_fail(p->error, 400, "unsupported_content", path,
                       "'%s' is a part of type '%.40s': the model reads text", path, type ? type : "");
        return NULL;
    }
    if (!json_is_string(text)) {
        sn_openai_fail(p->error, 400, NULL, path, "'%s' must have a text, which is a string", path);
        return NULL;
    }
    return json_string_value(text);
}

json_t *sn_parse_content(sn_parse *p, const json_t *content, const char *path, const char *types) {
    char here[SN_PATH_MAX];
    sn_buf joined;
    sn_err err;
    json_t *out = NULL;
    bool ok = true;
    if (json_is_string(content)) return json_incref((json_t *)(uintptr_t)content);
    if (!json_is_array(content)) {
        sn_openai_fail(p->error, 400, NULL, path, "'%s' must be a string or a list of parts", path);
        return NULL;
    }
    sn_buf_init(&joined, SIZE_MAX);
    for (size_t i = 0; i < json_array_size(content) && ok; i++) {
        const char *text = part_text(p, json_array_get(content, i), sn_path(here, path, NULL, i), types);
        ok = text &&
             ((!sn_buf_append(&joined, "\n", i > 0, &err) && !sn_buf_append(&joined, text, strlen(text), &err)) ||
              sn_openai_fail_err(p->error, &err));
    }
    if (ok) out = json_stringn(joined.len ? (const char *)joined.data : "", joined.len);
    if (ok && !out) sn_out_of_memory(p->error);
    sn_buf_fini(&joined);
    return out;
}

/* -- calls of tools in messages of the assistant -- */

json_t *sn_call_json(const char *id, const char *name, const char *arguments) {
    /* an answer that ended early leaves text that is no object */
    json_t *object = sn_wide_json_load(arguments, strlen(arguments), 0, NULL);
    if (!json_is_object(object) || sn_wide_digits(object)) {
        json_decref(object);
        object = json_string(arguments);
    }
    return json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function", "name", name, "arguments",
                     object);
}

/* What else a call has, as the arguments once more, parsed, changes nothing. */
static bool add_call(sn_parse *p, const json_t *call, const char *path, json_t *calls) {
    const json_t *function = json_object_get(call, "function");
    const char *id = json_string_value(json_object_get(call, "id")),
               *type = json_string_value(json_object_get(call, "type"));
    const char *name = json_string_value(json_object_get(function, "name")),
               *arguments = json_string_value(json_object_get(function, "arguments"));
    if (!id || !name || !arguments || (json_object_get(call, "type") && (!type || strcmp(type, "function") != 0)))
        return sn_openai_fail(p->error, 400, NULL, path,
                              "'%s' must be {\"id\", \"type\": \"function\", \"function\": {\"name\", \"arguments\"}} "
                              "with strings",
                              path);
    if (!sn_parse_arguments_fit(p, arguments, path)) return false;
    return !json_array_append_new(calls, sn_call_json(id, name, arguments)) || sn_out_of_memory(p->error);
}

static bool add_calls(sn_parse *p, const json_t *calls, const char *path, json_t *message) {
    char here[SN_PATH_MAX];
    json_t *list = json_array();
    if (json_array_size(calls) > SN_REQUEST_TOOLS_MAX) {
        json_decref(list);
        return sn_openai_fail(p->error, 400, NULL, path, "'%s' has more than %d calls", path,
                              (int)SN_REQUEST_TOOLS_MAX);
    }
    bool ok = !json_object_set_new(message, "tool_calls", list) || sn_out_of_memory(p->error);
    for (size_t i = 0; i < json_array_size(calls) && ok; i++)
        ok = add_call(p, json_array_get(calls, i), sn_path(here, path, NULL, i), list);
    return ok;
}

/* -- a message -- */

typedef struct message {
    const char *role, *name, *call_id, *reasoning, *refusal;
    const json_t *content, *calls;
} message;

#define AT(member) offsetof(message, member), 0, 0, NULL
static const sn_request_field message_fields[] = {
    {"role", SN_FIELD_TEXT, AT(role)},
    {"content", SN_FIELD_ANY, AT(content)},
    {"name", SN_FIELD_TEXT, AT(name)},
    {"tool_calls", SN_FIELD_LIST, AT(calls)},
    {"tool_call_id", SN_FIELD_TEXT, AT(call_id)},
    {"reasoning_content", SN_FIELD_TEXT, AT(reasoning)},
    {"reasoning", SN_FIELD_TEXT, AT(reasoning)},
    {"refusal", SN_FIELD_TEXT, AT(refusal)},
    {"audio", SN_FIELD_REFUSED, 0, 0, 0, "the model reads text"},
    {"images", SN_FIELD_REFUSED, 0, 0, 0, "the model reads text"},
    {"function_call", SN_FIELD_REFUSED, 0, 0, 0, "use 'tool_calls'"},
    {"prefix", SN_FIELD_REFUSED, 0, 0, 0, "the answer is a new message"},
    {"partial", SN_FIELD_REFUSED, 0, 0, 0, "the answer is a new message"},
    {NULL, SN_FIELD_IGNORED, 0, 0, 0, NULL}, /* ids, times, annotations: what clients keep with their messages */
};

const char *sn_parse_role(const char *role) {
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    if (role && !strcmp(role, "developer")) return "system";
    for (int i = 0; i < 4; i++)
        if (role && !strcmp(role, roles[i])) return roles[i];
    return NULL;
}

static bool check_message(sn_parse *p, const message *m, const char *path) {
    const char *role = sn_parse_role(m->role);
    if (!role)
        return sn_openai_fail(p->error, 400, NULL, path,
                              "the role of '%s' must be system, developer, user, assistant or tool", path);
    bool assistant = !strcmp(role, "assistant"), tool = !strcmp(role, "tool");
    if (!assistant && (json_array_size(m->calls) || m->reasoning || m->refusal))
        return sn_openai_fail(p->error, 400, NULL, path,
                              "'%s' has tool_calls, a refusal or reasoning_content, which only the assistant has",
                              path);
    if (tool != (m->call_id != NULL))
        return sn_openai_fail(p->error, 400, NULL, path, "'%s' %s a tool_call_id", path,
                              tool ? "is the result of a tool and needs" : "is no result of a tool and cannot have");
    if (!m->content && !(assistant && (json_array_size(m->calls) || m->refusal || m->reasoning)))
        return sn_openai_fail(p->error, 400, NULL, path, "'%s' has no content", path);
    return true;
}

static bool set_text(json_t *object, const char *key, const char *text) {
    return !text || !json_object_set_new(object, key, json_string(text));
}

static bool add_message(sn_parse *p, const json_t *given, const char *path, json_t *messages) {
    message m = {0};
    char here[SN_PATH_MAX];
    if (!sn_read_fields(p, given, path, message_fields, &m) || !check_message(p, &m, path)) return false;
    sn_path(here, path, "content", 0);
    json_t *content =
        m.content ? sn_parse_content(p, m.content, here,
                                     strcmp(m.role, "assistant") ? "text|input_text" : "text|output_text|refusal")
                  : json_string(m.refusal ? m.refusal : "");
    if (!content) return false;
    json_t *out = json_pack("{s:s, s:o}", "role", sn_parse_role(m.role), "content", content);
    if (!out || !set_text(out, "name", m.name) || !set_text(out, "tool_call_id", m.call_id) ||
        !set_text(out, "reasoning_content", m.reasoning) || json_array_append_new(messages, out))
        return sn_out_of_memory(p->error);
    return !json_array_size(m.calls) || add_calls(p, m.calls, sn_path(here, path, "tool_calls", 0), out);
}

bool sn_parse_messages(sn_parse *p) {
    const json_t *given = p->body.messages;
    char path[SN_PATH_MAX];
    size_t n = json_array_size(given);
    if (!given) return sn_openai_fail(p->error, 400, "missing_required_parameter", "messages", "'messages' is missing");
    if (!n || n > SN_REQUEST_MESSAGES_MAX)
        return sn_openai_fail(p->error, 400, NULL, "messages", "'messages' has %zu messages: it must have 1 to %d", n,
                              (int)SN_REQUEST_MESSAGES_MAX);
    json_t *messages = json_array();
    bool ok = !json_object_set_new(p->chat, "messages", messages) || sn_out_of_memory(p->error);
    for (size_t i = 0; i < n && ok; i++)
        ok = add_message(p, json_array_get(given, i), sn_path(path, "messages", NULL, i), messages);
    return ok;
}
