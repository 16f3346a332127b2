#include "gateway/http/http_private.h"

#include "base/log.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool sn_exchange_is_left(const sn_exchange *x) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct pollfd fd = {.fd = info ? info->connect_fd : -1, .events = POLLRDHUP};
    return poll(&fd, 1, 0) > 0 && fd.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL);
}

enum MHD_Result sn_exchange_queue(sn_exchange *x, unsigned code, struct MHD_Response *response) {
    if (!response) return MHD_NO;
    MHD_add_response_header(response, "x-request-id", x->id);
    if (!MHD_get_response_header(response, "X-Content-Type-Options"))
        MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    if (x->from == SN_ORIGIN_NAMED) {
        MHD_add_response_header(response, "Access-Control-Allow-Origin", x->origin);
        MHD_add_response_header(response, "Access-Control-Expose-Headers", "x-request-id");
        MHD_add_response_header(response, "Vary", "Origin");
    }
    if (atomic_load(&x->server->draining)) MHD_add_response_header(response, "Connection", "close");
    enum MHD_Result result = MHD_queue_response(x->connection, code, response);
    MHD_destroy_response(response);
    if (result) x->code = code;
    return result;
}

void sn_exchange_is_read(const sn_exchange *x, size_t bytes) {
    enum { READ_MS = 120000, CROWDED_MS = 30000, BYTES_PER_MS = 32 };
    const int64_t for_bytes = (int64_t)(bytes / BYTES_PER_MS), given = x->server->options.read_ms;
    const int64_t ms = given ? given : READ_MS;
    sn_door_allow(x->server->door, x->guest, ms + for_bytes, (ms < CROWDED_MS ? ms : CROWDED_MS) + for_bytes);
}

/* Whether the log has no line of an ignored field of this name yet. */
static bool is_news(sn_server *s, const char *name) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *name; name++) hash = (hash ^ (uint8_t)*name) * 0x100000001b3u;
    hash |= 1;
    for (size_t i = 0; i < SN_IGNORED_LOGGED; i++) {
        uint64_t there = 0;
        if (atomic_compare_exchange_strong(&s->ignored[i], &there, hash)) return true;
        if (there == hash) return false;
    }
    return false;
}

static void log_ignored(const sn_exchange *x, const sn_request *r) {
    char word[64];
    for (size_t i = 0; i < r->n_ignored; i++)
        if (is_news(x->server, r->ignored[i]))
            sn_log(SN_LOG_INFO, "field ignored", "request_id=%s path=%s field=%s", x->id, x->route->path,
                   sn_log_sanitize(r->ignored[i], word, sizeof word));
}

bool sn_exchange_parse(sn_exchange *x, sn_request_kind kind, sn_request **out, sn_openai_error *error) {
    const char *body = (const char *)x->body.data;
    sn_load *load = &x->server->load;
    size_t passing;
    const size_t becomes = sn_request_memory(body, x->body.len, &passing);
    *out = NULL;
    if (!sn_load_take(load, &x->taken, x->body.len + becomes + passing))
        return sn_openai_fail(error, 503, "overloaded", NULL, "Too many large requests are in progress: try again.");
    if (!sn_request_parse(kind, body, x->body.len, &x->server->limits, out, error)) return false;
    log_ignored(x, *out);
    sn_buf_fini(&x->body);
    (void)!sn_load_take(load, &x->taken, becomes); /* less than before */
    return true;
}

static bool has_left(const void *exchange) { return sn_exchange_is_left(exchange); }

bool sn_exchange_may_prepare(const sn_exchange *x, sn_openai_error *error) {
    enum { WAIT_MS = 30000 };
    if (sn_load_begin(&x->server->load, x->owner, WAIT_MS, has_left, x)) return true;
    return sn_openai_fail(error, 503, "overloaded", NULL, "Too many requests are being prepared: try again.");
}

/* A long reply counts until the client has it, as its request did, which is gone but for a body that means nothing. */
enum MHD_Result sn_exchange_send(sn_exchange *x, unsigned code, const char *type, const void *data, size_t len) {
    sn_openai_error error;
    if (!sn_load_take(&x->server->load, &x->taken, x->body.len + len)) {
        (void)sn_openai_fail(&error, 503, "overloaded", NULL, "Too many large replies are not read yet: try again.");
        return sn_exchange_refuse(x, &error);
    }
    struct MHD_Response *response =
        MHD_create_response_from_buffer(len, (void *)(uintptr_t)data, MHD_RESPMEM_MUST_COPY);
    if (response) MHD_add_response_header(response, "Content-Type", type);
    x->to_read = len;
    return sn_exchange_queue(x, code, response);
}

enum MHD_Result sn_exchange_send_json(sn_exchange *x, unsigned code, char *text) {
    static const char no_memory[] = "{\"error\":{\"message\":\"The server is out of "
                                    "memory.\",\"type\":\"server_error\",\"param\":null,\"code\":null}}";
    enum MHD_Result result = text ? sn_exchange_send(x, code, "application/json", text, strlen(text))
                                  : sn_exchange_send(x, 500, "application/json", no_memory, sizeof no_memory - 1);
    free(text);
    return result;
}

enum MHD_Result sn_exchange_refuse(sn_exchange *x, const sn_openai_error *error) {
    char *text = sn_openai_error_text(error), seconds[24], ms[24];
    if (!text) return sn_exchange_queue(x, 500, NULL); /* memory is out: the connection ends */
    struct MHD_Response *response = MHD_create_response_from_buffer(strlen(text), text, MHD_RESPMEM_MUST_FREE);
    if (response) MHD_add_response_header(response, "Content-Type", "application/json");
    if (response && error->retry_after_ms) {
        snprintf(seconds, sizeof seconds, "%lld", (long long)(error->retry_after_ms + 999) / 1000);
        snprintf(ms, sizeof ms, "%lld", (long long)error->retry_after_ms);
        MHD_add_response_header(response, "retry-after", seconds);
        MHD_add_response_header(response, "retry-after-ms", ms);
    }
    if (response && error->status == 405 && x->allow) MHD_add_response_header(response, "Allow", x->allow);
    if (response && error->status == 401) MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    return sn_exchange_queue(x, (unsigned)error->status, response);
}
