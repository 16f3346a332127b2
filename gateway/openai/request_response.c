/* A request for a response (/v1/responses): its items become the messages of a chat. A thought and the calls that
 * follow it are one message of the assistant. */
#include "gateway/openai/request_private.h"

#include <stdlib.h>
#include <string.h>

typedef struct item {
    const char *type, *role, *call_id, *name, *arguments, *id, *status, *encrypted;
    const json_t *content, *output, *summary;
} item;

#define AT(member) offsetof(item, member), 0, 0, NULL
#define END        {NULL, SN_FIELD_IGNORED, 0, 0, 0, NULL} /* what clients keep with their items */
#define COMMON                                                                                                         \
    {"type", SN_FIELD_TEXT, AT(type)}, {"id", SN_FIELD_TEXT, AT(id)}, { "status", SN_FIELD_TEXT, AT(status) }
static const sn_request_field message_fields[] = {
    COMMON,
    {"role", SN_FIELD_TEXT, AT(role)},
    {"content", SN_FIELD_ANY, AT(content)},
    END,
};
static const sn_request_field call_fields[] = {
    COMMON,
    {"call_id", SN_FIELD_TEXT, AT(call_id)},
    {"name", SN_FIELD_TEXT, AT(name)},
    {"arguments", SN_FIELD_TEXT, AT(arguments)},
    END,
};
static const sn_request_field custom_fields[] = {
    COMMON,
    {"call_id", SN_FIELD_TEXT, AT(call_id)},
    {"name", SN_FIELD_TEXT, AT(name)},
    {"input", SN_FIELD_TEXT, AT(arguments)},
    END,
};
static const sn_request_field output_fields[] = {
    COMMON,
    {"call_id", SN_FIELD_TEXT, AT(call_id)},
    {"output", SN_FIELD_ANY, AT(output)},
    END,
};
static const sn_request_field reasoning_fields[] = {
    COMMON,
    {"summary", SN_FIELD_LIST, AT(summary)},
    {"content", SN_FIELD_ANY, AT(content)},
    {"encrypted_content", SN_FIELD_REFUSED, 0, 0, 0, "this server encrypts no reasoning"},
    END,
};

static json_t *messages_of(sn_parse *p) { return json_object_get(p->chat, "messages"); }

static bool append(sn_parse *p, json_t *message) {
    return (message && !json_array_append_new(messages_of(p), message)) || sn_out_of_memory(p->error);
}

/* The assistant's message that calls and thoughts are added to: the last one, if it is open; else a new one. */
static json_t *open_message(sn_parse *p) {
    json_t *messages = messages_of(p), *last = json_array_get(messages, json_array_size(messages) - 1);
    if (last && p->assistant_is_open) return last;
    if (!append(p, json_pack("{s:s, s:s}", "role", "assistant", "content", ""))) return NULL;
    p->assistant_is_open = true;
    return json_array_get(messages, json_array_size(messages) - 1);
}

static bool add_message(sn_parse *p, const item *m, const char *path) {
    char here[SN_PATH_MAX];
    const char *role = sn_parse_role(m->role);
    bool assistant = role && !strcmp(role, "assistant");
    if (!role || !strcmp(role, "tool"))
        return sn_openai_fail(p->error, 400, NULL, path,
                              "the role of '%s' must be system, developer, user or assistant", path);
    sn_path(here, path, "content", 0);
    json_t *content =
        sn_parse_content(p, m->content, here, assistant ? "output_text|refusal|input_text|text" : "input_text|text");
    if (!content) return false;
    if (!assistant) {
        p->assistant_is_open = false;
        return append(p, json_pack("{s:s, s:o}", "role", role, "content", content));
    }
    json_t *message = open_message(p);
    if (message && *json_string_value(json_object_get(message, "content"))) { /* it has said something already */
        p->assistant_is_open = false;
        message = open_message(p);
    }
    if (message && !json_object_set(message, "content", content)) {
        json_decref(content);
        return true;
    }
    json_decref(content);
    return sn_out_of_memory(p->error);
}

static bool add_call(sn_parse *p, const item *m, const char *path) {
    if (!m->call_id || !m->name || !m->arguments)
        return sn_openai_fail(p->error, 400, NULL, path, "'%s' must have a call_id, a name and arguments", path);
    if (!sn_parse_arguments_fit(p, m->arguments, path)) return false;
    json_t *message = open_message(p), *calls = json_object_get(message, "tool_calls");
    if (message && !calls && !json_object_set_new(message, "tool_calls", json_array()))
        calls = json_object_get(message, "tool_calls");
    return (calls && !json_array_append_new(calls, sn_call_json(m->call_id, m->name, m->arguments))) ||
           sn_out_of_memory(p->error);
}

/* A call of a tool that takes text, of an earlier answer of another model: {"input": TEXT} are its arguments. */
static bool add_custom_call(sn_parse *p, const item *m, const char *path) {
    json_t *arguments = m->arguments ? json_pack("{s:s}", "input", m->arguments) : NULL;
    char *text = arguments ? json_dumps(arguments, JSON_COMPACT) : NULL;
    item call = *m;
    call.arguments = text;
    const bool good = (!m->arguments || text || sn_out_of_memory(p->error)) && add_call(p, &call, path);
    json_decref(arguments);
    free(text);
    return good;
}

static bool add_output(sn_parse *p, const item *m, const char *path) {
    char here[SN_PATH_MAX];
    if (!m->call_id) return sn_openai_fail(p->error, 400, NULL, path, "'%s' must have a call_id", path);
    json_t *output = sn_parse_content(p, m->output, sn_path(here, path, "output", 0), "input_text|output_text");
    p->assistant_is_open = false;
    return output &&
           append(p, json_pack("{s:s, s:s, s:o}", "role", "tool", "tool_call_id", m->call_id, "content", output));
}

/* A thought as the model wrote it; a summary is none. */
static bool add_reasoning(sn_parse *p, const item *m, const char *path) {
    char here[SN_PATH_MAX];
    if (!m->content) return true;
    json_t *text = sn_parse_content(p, m->content, sn_path(here, path, "content", 0), "reasoning_text");
    if (!text) return false;
    p->assistant_is_open = false;
    json_t *message = open_message(p);
    return (message && !json_object_set_new(message, "reasoning_content", text)) || sn_out_of_memory(p->error);
}

static bool add_item(sn_parse *p, const json_t *given, const char *path) {
    static const struct {
        const char *type;
        const sn_request_field *fields;
        bool (*add)(sn_parse *p, const item *m, const char *path);
    } kinds[] = {{"message", message_fields, add_message},
                 {"function_call", call_fields, add_call},
                 {"function_call_output", output_fields, add_output},
                 {"custom_tool_call", custom_fields, add_custom_call},
                 {"custom_tool_call_output", output_fields, add_output},
                 {"reasoning", reasoning_fields, add_reasoning}};
    const json_t *type = json_object_get(given, "type");
    const char *name = type ? json_string_value(type) : "message";
    item m = {0};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (name && !strcmp(kinds[i].type, name))
            return sn_read_fields(p, given, path, kinds[i].fields, &m) && kinds[i].add(p, &m, path);
    if (name && !strcmp(name, "web_search_call")) { /* what was found stands in the message that follows */
        sn_note_ignored(p, name);
        return true;
    }
    if (name && !strcmp(name, "item_reference"))
        return sn_openai_fail(p->error, 400, "unsupported_content", path,
                              "'%s' is an item_reference, and this server keeps no items: send the item itself, as "
                              "clients do with \"store\": false",
                              path);
    return sn_openai_fail(p->error, 400, "unsupported_content", path,
                          "'%s' must be a message, function_call, function_call_output or reasoning", path);
}

static bool parse_input(sn_parse *p) {
    const json_t *input = p->body.prompt;
    char path[SN_PATH_MAX];
    size_t n = json_array_size(input);
    if (!json_is_string(input) && !json_is_array(input))
        return sn_openai_fail(p->error, 400, input ? NULL : "missing_required_parameter", "input",
                              "'input' must be a string or a list of items");
    if (json_object_set_new(p->chat, "messages", json_array())) return sn_out_of_memory(p->error);
    if (p->body.instructions && !append(p, json_pack("{s:s, s:s}", "role", "system", "content", p->body.instructions)))
        return false;
    if (json_is_string(input))
        return append(p, json_pack("{s:s, s:O}", "role", "user", "content", (json_t *)(uintptr_t)input));
    if (!n || n > SN_REQUEST_MESSAGES_MAX)
        return sn_openai_fail(p->error, 400, NULL, "input", "'input' has %zu items: it must have 1 to %d", n,
                              (int)SN_REQUEST_MESSAGES_MAX);
    for (size_t i = 0; i < n; i++)
        if (!add_item(p, json_array_get(input, i), sn_path(path, "input", NULL, i))) return false;
    return json_array_size(messages_of(p)) || sn_openai_fail(p->error, 400, NULL, "input", "'input' has no message");
}

/* -- the other fields -- */

/* But for log-probabilities these add to items that no response has, or to thoughts, which are not encrypted here. */
static const char included[] =
    "message.output_text.logprobs|reasoning.encrypted_content|web_search_call.action.sources|web_search_call.results|"
    "file_search_call.results|code_interpreter_call.outputs|computer_call_output.output.image_url|"
    "message.input_image.image_url";

static bool parse_include(sn_parse *p) {
    bool logprobs = p->body.top_logprobs != SN_UNSET && p->body.top_logprobs > 0;
    for (size_t i = 0; i < json_array_size(p->body.include); i++) {
        const char *what = json_string_value(json_array_get(p->body.include, i));
        if (!what || !sn_is_word(included, what))
            return sn_openai_fail(p->error, 400, "unsupported_parameter", "include", "'include' may hold: %s",
                                  included);
        if (!strcmp(what, "message.output_text.logprobs"))
            logprobs = true;
        else
            sn_note_ignored(p, what);
    }
    if (logprobs) p->r->logprobs = p->body.top_logprobs == SN_UNSET ? 0 : (int)p->body.top_logprobs;
    return true;
}

static bool parse_reasoning(sn_parse *p) {
    const sn_request_field fields[] = {{"effort", SN_FIELD_TEXT, offsetof(sn_body, reasoning_effort), 0, 0, NULL},
                                       {"summary", SN_FIELD_IGNORED, 0, 0, 0, NULL}, /* thoughts come as they are */
                                       {"generate_summary", SN_FIELD_IGNORED, 0, 0, 0, NULL},
                                       {NULL, SN_FIELD_ANY, 0, 0, 0, NULL}};
    return !p->body.reasoning || sn_read_fields(p, p->body.reasoning, "reasoning", fields, &p->body);
}

static bool parse_text(sn_parse *p) {
    const sn_request_field fields[] = {{"format", SN_FIELD_OBJECT, offsetof(sn_body, response_format), 0, 0, NULL},
                                       {"verbosity", SN_FIELD_TEXT, offsetof(sn_body, verbosity), 0, 0, NULL},
                                       {NULL, SN_FIELD_ANY, 0, 0, 0, NULL}};
    return (!p->body.text_format || sn_read_fields(p, p->body.text_format, "text", fields, &p->body)) &&
           sn_parse_response_format(p, p->body.response_format, "text.format");
}

bool sn_parse_response(sn_parse *p) {
    return parse_input(p) && sn_parse_tools(p) && parse_include(p) && parse_reasoning(p) && parse_text(p);
}
