/* A body's schema has a property for each field that is obeyed or harmless; refused fields are left out, as are those
 * that no table knows ("additionalProperties" is false). Fields that hold lists and objects have their schemas here. */
#include "gateway/openai/openapi.h"

#include "gateway/openai/request_private.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_LIST "{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"string\"}}"
#define ID        "{\"type\":\"integer\",\"minimum\":0}"
#define ID_LIST   "{\"type\":\"array\",\"minItems\":1,\"items\":" ID "}"
#define PROMPT                                                                                                         \
    "{\"oneOf\":[{\"type\":\"string\"}," TEXT_LIST "," ID_LIST                                                         \
    ",{\"type\":\"array\",\"minItems\":1,\"items\":" ID_LIST "}]}"
#define CHOICE                                                                                                         \
    "{\"oneOf\":[{\"enum\":[\"none\",\"auto\",\"required\"]},{\"type\":\"object\",\"required\":[\"type\"],"            \
    "\"properties\":{\"type\":{\"const\":\"function\"}}}]}"

/* What the values of these fields are; other lists and objects hold anything. */
static const struct {
    const char *name, *schema;
    sn_request_kind kind; /* with one_kind */
    bool one_kind;
} details[] = {
    {"messages",
     "{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"object\",\"required\":[\"role\"],\"properties\":{"
     "\"role\":{\"enum\":[\"system\",\"developer\",\"user\",\"assistant\",\"tool\"]},\"content\":{\"type\":[\"string\","
     "\"array\",\"null\"]}}}}",
     0, false},
    {"input", "{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"object\"}}]}",
     SN_REQUEST_RESPONSE, true},
    {"input", PROMPT, 0, false},
    {"prompt", "{\"type\":\"string\"}", SN_REQUEST_TOKENIZE, true},
    {"prompt", PROMPT, 0, false},
    {"stop", "{\"oneOf\":[{\"type\":\"string\"}," TEXT_LIST "]}", 0, false},
    {"tools",
     "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"required\":[\"type\"],\"properties\":{\"type\":{"
     "\"const\":\"function\"}}}}",
     0, false},
    {"tool_choice", CHOICE, 0, false},
    {"tokens", "{\"type\":\"array\",\"items\":" ID "}", 0, false},
    {"logit_bias",
     "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"number\",\"minimum\":-100,\"maximum\":100}}", 0, false},
    {"encoding_format", "{\"enum\":[\"float\",\"base64\"]}", 0, false},
    {"modalities", "{\"type\":\"array\",\"items\":{\"const\":\"text\"}}", 0, false},
    {"include", "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}", 0, false},
    {"enable_thinking", "{\"type\":\"boolean\"}", 0, false},
    {"thinking", "{\"type\":\"object\",\"properties\":{\"type\":{\"enum\":[\"enabled\",\"disabled\"]}}}", 0, false},
};

static json_t *words_schema(const char *words) {
    json_t *list = json_array();
    for (const char *at = words; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        json_array_append_new(list, json_stringn(at, strcspn(at, "|")));
    return json_pack("{s:o}", "enum", list);
}

static json_t *field_schema(sn_request_kind kind, const sn_request_field *f) {
    static const char *const types[] = {
        [SN_FIELD_FLAG] = "boolean", [SN_FIELD_INT] = "integer",   [SN_FIELD_NUMBER] = "number",
        [SN_FIELD_TEXT] = "string",  [SN_FIELD_OBJECT] = "object", [SN_FIELD_LIST] = "array"};
    for (size_t i = 0; i < sizeof details / sizeof *details; i++)
        if (!strcmp(details[i].name, f->name) && (!details[i].one_kind || details[i].kind == kind))
            return json_loads(details[i].schema, 0, NULL);
    if (f->kind == SN_FIELD_ONLY) return words_schema(f->words);
    if (f->kind == SN_FIELD_ANY || f->kind == SN_FIELD_IGNORED) return json_object();
    json_t *schema = json_pack("{s:s}", "type", types[f->kind]);
    if (f->kind == SN_FIELD_NUMBER || f->kind == SN_FIELD_INT) {
        bool whole = f->kind == SN_FIELD_INT && f->high <= 0x1p53;
        if (f->high <= 0x1p53) {
            json_object_set_new(schema, "minimum", whole ? json_integer((json_int_t)f->low) : json_real(f->low));
            json_object_set_new(schema, "maximum", whole ? json_integer((json_int_t)f->high) : json_real(f->high));
        }
    }
    return schema;
}

static json_t *body_schema(sn_request_kind kind, const sn_request_field *fields, const char *required) {
    json_t *properties = json_object();
    for (const sn_request_field *f = fields; f->name; f++)
        if (f->kind != SN_FIELD_REFUSED) json_object_set_new(properties, f->name, field_schema(kind, f));
    return json_pack("{s:s, s:[s], s:b, s:o}", "type", "object", "required", required, "additionalProperties", 0,
                     "properties", properties);
}

/* -- routes -- */

static json_t *content(const char *type, json_t *schema) { return json_pack("{s:{s:o}}", type, "schema", schema); }

static json_t *reply(const char *description, json_t *body) {
    return json_pack("{s:s, s:o}", "description", description, "content", body);
}

/* Each refusal has OpenAI's form. */
static json_t *responses(const char *type, bool computes) {
    static const struct {
        const char *status, *description;
        bool of_computing;
    } refusals[] = {{"400", "The request is wrong; the error names the field.", false},
                    {"401", "The API key is missing or wrong.", false},
                    {"403", "The Host or Origin is not allowed.", false},
                    {"404", "The model is not served here.", true},
                    {"413", "The body is too large.", false},
                    {"429", "The queue is full; see retry-after.", true},
                    {"503", "No node serves some blocks, or the server shuts down.", true}};
    json_t *all = json_object(), *body = content(type, json_object());
    bool streams = computes && !strcmp(type, "application/json");
    if (streams) json_object_update_new(body, content("text/event-stream", json_pack("{s:s}", "type", "string")));
    json_object_set_new(all, "200", reply("The answer.", body));
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        if (computes || !refusals[i].of_computing)
            json_object_set_new(
                all, refusals[i].status,
                reply(refusals[i].description,
                      content("application/json", json_pack("{s:s}", "$ref", "#/components/schemas/Error"))));
    return all;
}

static void add_get(json_t *paths, const char *path, const char *summary, const char *type) {
    json_object_set_new(paths, path,
                        json_pack("{s:{s:s, s:o}}", "get", "summary", summary, "responses", responses(type, false)));
}

static void add_post(json_t *paths, const char *path, const char *summary, json_t *schema) {
    json_t *body = json_pack("{s:b, s:o}", "required", 1, "content", content("application/json", schema));
    json_object_set_new(paths, path,
                        json_pack("{s:{s:s, s:o, s:o}}", "post", "summary", summary, "requestBody", body, "responses",
                                  responses("application/json", true)));
}

static json_t *paths_json(void) {
    json_t *paths = json_object();
    add_post(paths, "/v1/chat/completions", "The next message of a conversation",
             body_schema(SN_REQUEST_CHAT, sn_chat_fields, "messages"));
    add_post(paths, "/v1/completions", "The continuation of texts",
             body_schema(SN_REQUEST_COMPLETION, sn_completion_fields, "prompt"));
    add_post(paths, "/v1/embeddings", "Embeddings of texts",
             body_schema(SN_REQUEST_EMBEDDING, sn_embedding_fields, "input"));
    add_post(paths, "/v1/responses", "An answer as a list of items",
             body_schema(SN_REQUEST_RESPONSE, sn_response_fields, "input"));
    json_t *tokenize = body_schema(SN_REQUEST_TOKENIZE, sn_tokenize_fields, "content");
    json_object_del(tokenize, "required"); /* "content" or "prompt" */
    add_post(paths, "/tokenize", "The token ids of a text", tokenize);
    add_post(paths, "/detokenize", "The text of token ids",
             body_schema(SN_REQUEST_DETOKENIZE, sn_detokenize_fields, "tokens"));
    add_get(paths, "/v1/models", "The model that is served", "application/json");
    json_object_set_new(paths, "/v1/models/{id}",
                        json_pack("{s:{s:s, s:[{s:s, s:s, s:b, s:{s:s}}], s:o}}", "get", "summary",
                                  "The model by its name", "parameters", "name", "id", "in", "path", "required", 1,
                                  "schema", "type", "string", "responses", responses("application/json", false)));
    add_get(paths, "/health", "Whether the server answers", "application/json");
    add_get(paths, "/api/swarm", "The nodes, the coverage of the blocks, and what is missing", "application/json");
    add_get(paths, "/metrics", "Counters for Prometheus", "text/plain");
    add_get(paths, "/openapi.json", "This document", "application/json");
    return paths;
}

char *sn_openapi_text(void) {
    json_t *error = json_loads("{\"type\":\"object\",\"required\":[\"error\"],\"properties\":{\"error\":{\"type\":"
                               "\"object\",\"required\":[\"message\",\"type\"],\"properties\":{\"message\":{\"type\":"
                               "\"string\"},\"type\":{\"type\":\"string\"},\"param\":{\"type\":[\"string\",\"null\"]},"
                               "\"code\":{\"type\":[\"string\",\"null\"]}}}}}",
                               0, NULL);
    json_t *document =
        json_pack("{s:s, s:{s:s, s:s}, s:[{s:[]}, {}], s:o, s:{s:{s:o}, s:{s:{s:s, s:s}}}}", "openapi", "3.1.0", "info",
                  "title", "swarm serve", "version", SN_VERSION, "security", "key", "paths", paths_json(), "components",
                  "schemas", "Error", error, "securitySchemes", "key", "type", "http", "scheme", "bearer");
    char *text = document ? json_dumps(document, JSON_COMPACT) : NULL;
    json_decref(document);
    return text;
}
