/* Tools, which of them must be called, and the form that the answer's text must have. */
#include "gateway/openai/request_private.h"

#include <string.h>

/* -- tools: {"type": "function", "function": {...}} of chats, {"type": "function", ...} of responses -- */

typedef struct function {
    const char *type, *name, *description;
    const json_t *function, *parameters;
    bool strict;
} function;

#define AT(member) offsetof(function, member), 0, 0, NULL
#define FUNCTION_FIELDS                                                                                                \
    {"name", SN_FIELD_TEXT, AT(name)}, {"description", SN_FIELD_TEXT, AT(description)},                                \
        {"parameters", SN_FIELD_OBJECT, AT(parameters)}, {"strict", SN_FIELD_FLAG, AT(strict)},                        \
        {"input_schema", SN_FIELD_REFUSED, 0, 0, 0, "use 'parameters'"}, {                                             \
        NULL, SN_FIELD_IGNORED, 0, 0, 0, NULL                                                                          \
    }
static const sn_request_field tool_fields[] = {{"type", SN_FIELD_TEXT, AT(type)},
                                               {"function", SN_FIELD_OBJECT, AT(function)},
                                               {NULL, SN_FIELD_IGNORED, 0, 0, 0, NULL}};
static const sn_request_field function_fields[] = {FUNCTION_FIELDS};
static const sn_request_field flat_fields[] = {{"type", SN_FIELD_TEXT, AT(type)}, FUNCTION_FIELDS};

static bool check_name(sn_parse *p, const char *name, const char *path) {
    size_t len = name ? strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") : 0;
    if (len && len <= 64 && !name[len]) return true;
    return sn_openai_fail(p->error, 400, NULL, path,
                          "the name of '%s' must have 1 to 64 letters, digits, underscores and dashes", path);
}

static bool is_known(const json_t *tools, const char *name) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_object_get(json_array_get(tools, i), "function");
        if (!strcmp(json_string_value(json_object_get(tool, "name")), name)) return true;
    }
    return false;
}

static json_t *tool_json(const function *f) {
    json_t *parameters = f->parameters ? json_incref((json_t *)(uintptr_t)f->parameters)
                                       : json_pack("{s:s, s:{}}", "type", "object", "properties");
    return json_pack("{s:s, s:{s:s, s:s*, s:o}}", "type", "function", "function", "name", f->name, "description",
                     f->description, "parameters", parameters);
}

static bool add_tool(sn_parse *p, const json_t *tool, const char *path, json_t *tools) {
    function f = {0};
    char here[SN_PATH_MAX];
    bool flat = p->r->kind == SN_REQUEST_RESPONSE;
    if (!sn_read_fields(p, tool, path, flat ? flat_fields : tool_fields, &f)) return false;
    sn_path(here, path, flat ? "" : "function", 0);
    if (!f.type || (!flat && !f.function))
        return sn_openai_fail(p->error, 400, NULL, path, "'%s' must have a type%s", path,
                              flat ? "" : " and a function");
    if (!flat && !sn_read_fields(p, f.function, here, function_fields, &f)) return false;
    if (!check_name(p, f.name, path)) return false;
    if (is_known(tools, f.name))
        return sn_openai_fail(p->error, 400, NULL, path, "two tools have the name '%s'", f.name);
    json_t *shown = tool_json(&f);
    const json_t *parameters = json_object_get(json_object_get(shown, "function"), "parameters");
    if (!shown || json_array_append_new(tools, shown) ||
        json_array_append_new(p->r->functions, json_pack("{s:s, s:O, s:b}", "name", f.name, "parameters",
                                                         (json_t *)(uintptr_t)parameters, "strict", f.strict)))
        return sn_out_of_memory(p->error);
    return true;
}

/* Tools that the server would have to run (a search), or of another form (custom), are left out beside functions: the
 * model does not know of them, and calls none. */
static const char *other_type(const json_t *tool) {
    const char *type = json_string_value(json_object_get(tool, "type"));
    return type && strcmp(type, "function") != 0 ? type : NULL;
}

static bool add_tools(sn_parse *p, json_t *tools) {
    const json_t *given = p->body.tools;
    const size_t n = json_array_size(given);
    char path[SN_PATH_MAX];
    for (size_t i = 0; i < n; i++) {
        const json_t *tool = json_array_get(given, i);
        const char *type = other_type(tool);
        if (type)
            sn_note_ignored(p, type);
        else if (!add_tool(p, tool, sn_path(path, "tools", NULL, i), tools))
            return false;
    }
    if (!n || json_array_size(tools)) return true;
    return sn_openai_fail(p->error, 400, "unsupported_parameter", "tools",
                          "'tools' has no function, but '%.40s': this server runs no tools itself, so give functions",
                          other_type(json_array_get(given, 0)));
}

/* -- the choice -- */

static bool named_tool(sn_parse *p, const json_t *tools) {
    const json_t *choice = p->body.tool_choice, *inside = json_object_get(choice, "function");
    const char *type = json_string_value(json_object_get(choice, "type"));
    const json_t *name = json_object_get(p->r->kind == SN_REQUEST_RESPONSE ? choice : inside, "name");
    if (!type || strcmp(type, "function") || !json_is_string(name))
        return sn_openai_fail(p->error, 400, NULL, "tool_choice",
                              "'tool_choice' must be \"none\", \"auto\", \"required\" or name a function");
    if (!is_known(tools, json_string_value(name)))
        return sn_openai_fail(p->error, 400, NULL, "tool_choice",
                              "'tool_choice' names '%.64s', which is no tool of 'tools'", json_string_value(name));
    p->r->tool_choice = SN_TOOLS_NAMED;
    p->r->tool_name = json_string_value(name);
    return true;
}

static bool parse_choice(sn_parse *p, const json_t *tools) {
    const json_t *choice = p->body.tool_choice;
    const char *word = json_string_value(choice);
    bool any = json_array_size(tools);
    p->r->tool_choice = any ? SN_TOOLS_AUTO : SN_TOOLS_NONE;
    if (!choice || (word && !strcmp(word, "auto"))) return true;
    if (word && !strcmp(word, "none")) {
        p->r->tool_choice = SN_TOOLS_NONE;
        return true;
    }
    if (!any)
        return sn_openai_fail(p->error, 400, NULL, "tool_choice",
                              "'tool_choice' asks for a call, but there are no tools");
    if (!word || strcmp(word, "required")) return named_tool(p, tools);
    p->r->tool_choice = SN_TOOLS_REQUIRED;
    return true;
}

/* With "none" the model is not shown the tools, so that it has no reason to write a call. */
bool sn_parse_tools(sn_parse *p) {
    size_t n = json_array_size(p->body.tools);
    json_t *tools = json_array();
    p->r->functions = json_array();
    bool ok =
        n <= SN_REQUEST_TOOLS_MAX ||
        sn_openai_fail(p->error, 400, NULL, "tools", "'tools' has %zu tools: %d at most", n, (int)SN_REQUEST_TOOLS_MAX);
    if (n && p->limits->no_tools && ok)
        ok = sn_openai_fail(p->error, 400, "unsupported_parameter", "tools",
                            "this model's chat template calls no tools: leave out 'tools'");
    ok = ok && add_tools(p, tools) && parse_choice(p, tools);
    if (ok && p->r->tool_choice != SN_TOOLS_NONE)
        ok = !json_object_set(p->chat, "tools", tools) || sn_out_of_memory(p->error);
    p->r->parallel_calls = p->body.parallel_calls;
    json_decref(tools);
    return ok;
}

/* -- the form of the text -- */

typedef struct format {
    const char *type, *name, *description;
    const json_t *json_schema, *schema;
    bool strict;
} format;

#undef AT
#define AT(member) offsetof(format, member), 0, 0, NULL
#define SCHEMA_FIELDS                                                                                                  \
    {"name", SN_FIELD_TEXT, AT(name)}, {"description", SN_FIELD_TEXT, AT(description)},                                \
        {"schema", SN_FIELD_ANY, AT(schema)}, {"strict", SN_FIELD_FLAG, AT(strict)}, {                                 \
        NULL, SN_FIELD_ANY, 0, 0, 0, NULL                                                                              \
    }
static const sn_request_field format_fields[] = {{"type", SN_FIELD_TEXT, AT(type)},
                                                 {"json_schema", SN_FIELD_OBJECT, AT(json_schema)},
                                                 {NULL, SN_FIELD_ANY, 0, 0, 0, NULL}};
static const sn_request_field schema_fields[] = {SCHEMA_FIELDS};
static const sn_request_field flat_format_fields[] = {{"type", SN_FIELD_TEXT, AT(type)}, SCHEMA_FIELDS};

static bool take_schema(sn_parse *p, const format *f, const char *path) {
    char here[SN_PATH_MAX];
    if (f->name && !check_name(p, f->name, path)) return false;
    if (!json_is_object(f->schema) && !json_is_boolean(f->schema))
        return sn_openai_fail(p->error, 400, NULL, sn_path(here, path, "schema", 0), "'%s' must be a JSON schema",
                              here);
    p->r->schema = json_incref((json_t *)(uintptr_t)f->schema);
    return true;
}

bool sn_parse_response_format(sn_parse *p, const json_t *given, const char *path) {
    format f = {0};
    char here[SN_PATH_MAX];
    bool flat = p->r->kind == SN_REQUEST_RESPONSE;
    if (!given) return true;
    if (!sn_read_fields(p, given, path, flat ? flat_format_fields : format_fields, &f)) return false;
    if (f.type && !strcmp(f.type, "text")) return true;
    if (f.type && !strcmp(f.type, "json_object")) {
        p->r->schema = json_pack("{s:s}", "type", "object");
        return p->r->schema || sn_out_of_memory(p->error);
    }
    if (!f.type || strcmp(f.type, "json_schema"))
        return sn_openai_fail(p->error, 400, NULL, sn_path(here, path, "type", 0),
                              "'%s' must be \"text\", \"json_object\" or \"json_schema\"", here);
    if (flat) return take_schema(p, &f, path);
    sn_path(here, path, "json_schema", 0);
    if (!f.json_schema) return sn_openai_fail(p->error, 400, NULL, here, "'%s' is missing", here);
    return sn_read_fields(p, f.json_schema, here, schema_fields, &f) && take_schema(p, &f, here);
}
