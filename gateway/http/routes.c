#include "gateway/http/http_private.h"
#include "gateway/openai/openapi.h"
#include "gateway/pages/pages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL_PATH "/models/"
enum { MODEL_NAME_MAX = 512 };

static enum MHD_Result answer_models(sn_exchange *x) {
    const sn_server *s = x->server;
    return sn_exchange_send_json(x, 200, sn_reply_models(s->served, s->started_unix_s, s->options.context));
}

/* The model's name is what follows the route's path. */
static enum MHD_Result answer_model(sn_exchange *x) {
    const sn_server *s = x->server;
    const char *name = strstr(x->path, MODEL_PATH) + strlen(MODEL_PATH);
    char asked[MODEL_NAME_MAX];
    sn_openai_error error = {0};
    snprintf(asked, sizeof asked, "%s", name);
    for (size_t n = strlen(asked); n && asked[n - 1] == '/';) asked[--n] = 0;
    if (sn_request_model(&s->limits, asked))
        return sn_exchange_send_json(x, 200, sn_reply_model(s->served, s->started_unix_s, s->options.context));
    (void)sn_openai_fail(&error, 404, "model_not_found", "model",
                         "the model '%.100s' is not served here: this server's model is '%.100s'", asked,
                         s->options.model_name);
    return sn_exchange_refuse(x, &error);
}

/* 200 as long as requests are taken: what balances load over servers asks here. */
static enum MHD_Result answer_health(sn_exchange *x) {
    const sn_server_queue_load load = sn_server_queue_get_load(x->server->options.queue);
    char text[160];
    snprintf(text, sizeof text, "{\"status\":\"%s\",\"running\":%zu,\"queued\":%zu}",
             load.draining ? "shutting down" : "ok", load.running, load.queued);
    return sn_exchange_send(x, load.draining ? 503 : 200, "application/json", text, strlen(text));
}

static enum MHD_Result answer_metrics(sn_exchange *x) {
    enum { PAGE_MAX = 64 << 10 };
    const sn_server_queue_load load = sn_server_queue_get_load(x->server->options.queue);
    sn_openai_error error = {0};
    sn_buf page;
    sn_err err;
    sn_buf_init(&page, PAGE_MAX);
    enum MHD_Result result;
    if (!sn_counters_write(&x->server->counters, &load, sn_load_get_bytes(&x->server->load), &page, &err)) {
        result = sn_exchange_send(x, 200, "text/plain; version=0.0.4; charset=utf-8", page.data, page.len);
    } else {
        (void)sn_openai_fail_err(&error, &err);
        result = sn_exchange_refuse(x, &error);
    }
    sn_buf_fini(&page);
    return result;
}

static enum MHD_Result answer_swarm(sn_exchange *x) {
    sn_openai_error error = {0};
    char *text = sn_view_get(x->server->view);
    if (text) return sn_exchange_send_json(x, 200, text);
    (void)sn_openai_fail(&error, 503, NULL, NULL, "No node of the swarm answers now.");
    return sn_exchange_refuse(x, &error);
}

static char *tokenize(const sn_server *s, const sn_request *r, sn_openai_error *error) {
    swarm_error *cause = NULL;
    int32_t *ids = NULL;
    size_t n = 0;
    const int flags = (r->add_special ? SWARM_TEXT_BEGINS : 0) | (r->parse_special ? SWARM_TEXT_SPECIAL : 0);
    const bool good =
        !swarm_model_tokenize(s->options.model, r->prompts->text, r->prompts->len, flags, &ids, &n, &cause) ||
        sn_openai_fail_swarm(error, cause);
    char *json = good ? sn_reply_tokenize(r, s->served, ids, n) : NULL;
    swarm_free(ids);
    return json;
}

static char *detokenize(const sn_server *s, const sn_request *r, sn_openai_error *error) {
    swarm_error *cause = NULL;
    char *text = NULL;
    size_t len = 0;
    const bool good = !swarm_model_detokenize(s->options.model, r->prompts->ids, r->prompts->n, SWARM_TEXT_SPECIAL,
                                              &text, &len, &cause) ||
                      sn_openai_fail_swarm(error, cause);
    char *json = good ? sn_reply_detokenize(text, len) : NULL;
    swarm_free(text);
    return json;
}

/* convert: makes the JSON of the reply, freed with free(); NULL, and *error may say why. */
static enum MHD_Result answer_conversion(sn_exchange *x, sn_request_kind kind,
                                         char *(*convert)(const sn_server *, const sn_request *, sn_openai_error *)) {
    sn_openai_error error = {0};
    sn_request *request = NULL;
    char *json = NULL;
    if (sn_exchange_may_prepare(x, &error)) {
        if (sn_exchange_parse(x, kind, &request, &error)) json = convert(x->server, request, &error);
        sn_load_end(&x->server->load);
    }
    sn_request_free(&request);
    return error.status ? sn_exchange_refuse(x, &error) : sn_exchange_send_json(x, 200, json);
}

static enum MHD_Result answer_tokenize(sn_exchange *x) { return answer_conversion(x, SN_REQUEST_TOKENIZE, tokenize); }
static enum MHD_Result answer_detokenize(sn_exchange *x) {
    return answer_conversion(x, SN_REQUEST_DETOKENIZE, detokenize);
}

static enum MHD_Result answer_openapi(sn_exchange *x) { return sn_exchange_send_json(x, 200, sn_openapi_text()); }

/* The chat, the map, and what they load. They need no key: they ask their user for it. */
static enum MHD_Result answer_page(sn_exchange *x) {
    const sn_page *page = sn_page_find(x->path);
    struct MHD_Response *response =
        MHD_create_response_from_buffer(page->len, (void *)(uintptr_t)page->data, MHD_RESPMEM_PERSISTENT);
    if (response) MHD_add_response_header(response, "Content-Type", page->type);
    for (size_t i = 0; response && i < SN_PAGE_HEADERS; i++)
        MHD_add_response_header(response, sn_page_headers[i].name, sn_page_headers[i].value);
    return sn_exchange_queue(x, 200, response);
}

static const sn_http_route page_route = {"GET", "/", true, answer_page};

static const sn_http_route routes[] = {
    {"GET", "/health", true, answer_health},
    {"GET", "/openapi.json", true, answer_openapi},
    {"GET", "/v1/models", false, answer_models},
    {"GET", "/v1/models/", false, answer_model},
    {"GET", "/metrics", false, answer_metrics},
    {"GET", "/api/swarm", false, answer_swarm},
    {"POST", "/v1/chat/completions", false, sn_http_answer_chat},
    {"POST", "/v1/completions", false, sn_http_answer_completion},
    {"POST", "/v1/embeddings", false, sn_http_answer_embedding},
    {"POST", "/v1/responses", false, sn_http_answer_response},
    {"POST", "/tokenize", false, answer_tokenize},
    {"POST", "/detokenize", false, answer_detokenize},
};

/* Paths are one with and without /v1, and with slashes behind them. */
static const char *without_version(const char *path) {
    static const char version[] = "/v1";
    return !strncmp(path, version, strlen(version)) && path[strlen(version)] == '/' ? path + strlen(version) : path;
}

static bool is_route(const sn_http_route *route, const char *path) {
    const char *own = without_version(route->path), *asked = without_version(path);
    const size_t len = strlen(own);
    if (strncmp(asked, own, len) != 0) return false;
    const char *rest = asked + len;
    if (own[len - 1] == '/') return *rest && *rest != '/'; /* a name follows */
    return !rest[strspn(rest, "/")];
}

const sn_http_route *sn_http_route_find(const char *method, const char *path, const char **allow) {
    const char *wanted = strcmp(method, "HEAD") ? method : "GET";
    *allow = NULL;
    for (size_t i = 0; i < sizeof routes / sizeof *routes && !*allow; i++) {
        if (!is_route(&routes[i], path)) continue;
        if (!strcmp(wanted, routes[i].method)) return &routes[i];
        *allow = strcmp(routes[i].method, "GET") ? routes[i].method : "GET, HEAD";
    }
    if (*allow || !sn_page_find(path)) return NULL;
    *allow = strcmp(wanted, "GET") ? "GET, HEAD" : NULL;
    return *allow ? NULL : &page_route;
}
