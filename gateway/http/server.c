/* From a connection to a checked request. libmicrohttpd calls handle() on the connection's thread: once with the
 * headers, which decide whether the body is wanted at all, then with the body's pieces, then to answer. An exchange
 * lives from the first of these calls to completed(). */
#include "gateway/http/http_private.h"

#include "base/file.h"
#include "base/host_header.h"
#include "base/listen.h"
#include "base/log.h"
#include "base/parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum {
    CONNECTIONS_MAX = 512,
    CONNECTIONS_OF_ADDRESS_MAX = 256,
    HEADER_BYTES_MAX = 32 << 10, /* and the buffer in which a body is read */
    SILENCE_S = 30,
    HEADERS_MS = 30000,
    BODY_MS = 120000, /* for a whole body */
    CROWDED_HEADERS_MS = 5000,
    CROWDED_BODY_MS = 30000,
    STACK_BYTES = 2 << 20, /* for nested JSON and chat templates */
    PEM_BYTES_MAX = 1 << 20,
    CANCEL_MS = 3000, /* for requests that were cancelled when the server ends */
    N_PROMPTS_MAX = 2048,
    N_CHOICES_MAX = 128
};

static const char *header(sn_exchange *x, const char *name) {
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

/* -- what is decided by the headers -- */

static enum MHD_Result keep_forwarded(void *last, enum MHD_ValueKind kind, const char *name, const char *value) {
    (void)kind;
    if (!strcasecmp(name, "X-Forwarded-For")) *(const char **)last = value;
    return MHD_YES;
}

/* Some proxies add a header behind one that their client sent: the last one counts. */
static uint64_t owner_of(sn_exchange *x) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const char *forwarded = NULL;
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, keep_forwarded, &forwarded);
    return sn_access_owner(&x->server->options.access, info ? info->client_addr : NULL, header(x, "Authorization"),
                           forwarded);
}

/* The client's name for the request, if it is a word of reasonable length, else a random one. */
static void name_request(sn_exchange *x) {
    uint8_t random[12];
    char word[SN_REQUEST_NAME_MAX + 2];
    const char *given = header(x, "x-request-id");
    if (given && *given && strlen(given) <= SN_REQUEST_NAME_MAX &&
        !strcmp(sn_log_sanitize(given, word, sizeof word), given)) {
        snprintf(x->id, sizeof x->id, "%s", given);
        return;
    }
    sn_random(random, sizeof random);
    sn_hex(random, sizeof random, x->id);
}

/* Where a body ends. If a proxy in front of the server saw another end, what follows would be a request that it has not
 * seen, and the next client on its connection would get the answer. */
typedef struct framing {
    int said;      /* how often */
    bool is_other; /* than in one of the two ways that libmicrohttpd reads as proxies do */
} framing;

static enum MHD_Result look_at_framing(void *ctx, enum MHD_ValueKind kind, const char *name, const char *value) {
    framing *f = ctx;
    const bool encoded = !strcasecmp(name, "Transfer-Encoding");
    (void)kind;
    f->said += encoded || !strcasecmp(name, "Content-Length");
    f->is_other |= strpbrk(name, " \t") || (encoded && (!value || strcasecmp(value, "chunked")));
    return MHD_YES;
}

static bool body_ends_clearly(sn_exchange *x, sn_openai_error *error) {
    framing f = {0};
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, look_at_framing, &f);
    if (f.said <= 1 && !f.is_other) return true;
    return sn_openai_fail(error, 400, NULL, NULL,
                          "The headers do not say in one clear way where the body ends: send one Content-Length, or "
                          "'Transfer-Encoding: chunked'.");
}

static bool body_may_come(sn_exchange *x, sn_openai_error *error) {
    const char *length = header(x, "Content-Length");
    int64_t n = 0;
    sn_err err;
    if (length && (sn_parse_int(length, 0, INT64_MAX, &n, &err) || n > SN_BODY_MAX))
        return sn_openai_fail(error, 413, "request_too_large", NULL, "A request may have %d bytes at most.",
                              SN_BODY_MAX);
    return true;
}

/* Whether the request may be answered at all. */
static bool admit(sn_exchange *x, const char *method, const char *path, sn_openai_error *error) {
    const sn_access *access = &x->server->options.access;
    if (!sn_access_knows_host(access, x->host))
        return sn_openai_fail(error, 403, "host_not_allowed", NULL,
                              "This server does not answer to the name in the header Host; 'swarm serve --host NAME' "
                              "allows a name.");
    if (x->from == SN_ORIGIN_REFUSED)
        return sn_openai_fail(error, 403, "origin_not_allowed", NULL,
                              "Web pages of other origins may not use this server; 'swarm serve --cors ORIGIN' allows "
                              "one.");
    if (!x->route && !strcmp(method, MHD_HTTP_METHOD_OPTIONS)) return true;
    if (!x->route) x->route = sn_http_route_find(method, path, &x->allow);
    if (!x->route && x->allow)
        return sn_openai_fail(error, 405, "method_not_allowed", NULL, "%.100s is for %s, not for %.16s.", path,
                              x->allow, method);
    if (!x->route) return sn_openai_fail(error, 404, "not_found", NULL, "This server has no %.100s.", path);
    if (!x->route->open && !sn_access_has_key(access, header(x, "Authorization")))
        return sn_openai_fail(error, 401, "invalid_api_key", NULL,
                              "This server needs a key, in the header 'Authorization: Bearer KEY'.");
    if (atomic_load(&x->server->draining) && !x->route->open)
        return sn_openai_fail(error, 503, "shutting_down", NULL, "The server is shutting down.");
    return body_ends_clearly(x, error) && body_may_come(x, error);
}

/* A browser asks whether a page of another origin may send a request. */
static enum MHD_Result answer_preflight(sn_exchange *x) {
    struct MHD_Response *response = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (response && x->from == SN_ORIGIN_NAMED) {
        MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST");
        MHD_add_response_header(response, "Access-Control-Allow-Headers", "authorization, content-type, x-request-id");
        MHD_add_response_header(response, "Access-Control-Max-Age", "600");
    }
    return sn_exchange_queue(x, 204, response);
}

/* What libmicrohttpd hands over in place of a new request's state, when its path has a NUL. */
static char nul_in_path;

static void *look_at_path(void *ctx, const char *sent, struct MHD_Connection *connection) {
    (void)ctx, (void)connection;
    return sn_path_has_nul(sent) ? &nul_in_path : NULL;
}

static enum MHD_Result begin(sn_server *server, struct MHD_Connection *connection, const char *method, const char *path,
                             void **state) {
    sn_exchange *x;
    sn_err err;
    sn_openai_error error = {0};
    const bool has_nul = *state == &nul_in_path;
    *state = NULL;
    if (sn_calloc(&x, 1, sizeof *x, &err)) return MHD_NO;
    *state = x;
    x->server = server;
    x->connection = connection;
    x->arrived_us = sn_now_us();
    sn_buf_init(&x->body, SN_BODY_MAX);
    const union MHD_ConnectionInfo *guest = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (guest) x->guest = guest->socket_context;
    const int64_t ms = server->options.body_ms ? server->options.body_ms : BODY_MS;
    sn_door_allow(server->door, x->guest, ms, ms < CROWDED_BODY_MS ? ms : CROWDED_BODY_MS);
    x->path = path;
    x->host = header(x, "Host");
    x->origin = header(x, "Origin");
    x->from = sn_access_origin(&server->options.access, x->origin, x->host);
    x->owner = x->taken.owner = owner_of(x);
    name_request(x);
    atomic_fetch_add(&server->open, 1);
    if (has_nul) {
        (void)sn_openai_fail(&error, 400, "invalid_path", NULL, "The path has a NUL in it.");
        return sn_exchange_refuse(x, &error);
    }
    if (!admit(x, method, path, &error)) return sn_exchange_refuse(x, &error);
    if (!x->route) return answer_preflight(x);
    return MHD_YES;
}

/* -- the body -- */

/* A reply has to wait for the end of the body; what comes until then, within limits, is dropped. */
static enum MHD_Result take_piece(sn_exchange *x, const char *data, size_t *len) {
    sn_err err;
    size_t n = *len;
    *len = 0;
    x->received += n;
    if (x->received > 2 * (size_t)SN_BODY_MAX) return MHD_NO;
    if (x->code || x->refusal.status) return MHD_YES;
    if (!sn_load_take(&x->server->load, &x->taken, x->body.len + n)) {
        (void)sn_openai_fail(&x->refusal, 503, "overloaded", NULL,
                             "Too many large requests are in progress: try again.");
        return MHD_YES;
    }
    if (!sn_buf_append(&x->body, data, n, &err)) return MHD_YES;
    (void)sn_openai_fail(&x->refusal, 413, "request_too_large", NULL, "A request may have %d bytes at most.",
                         SN_BODY_MAX);
    return MHD_YES;
}

/* 8 parameters: the callback type of libmicrohttpd */
static enum MHD_Result handle(void *ctx, struct MHD_Connection *connection, const char *path, const char *method,
                              const char *version, const char *upload, size_t *upload_size, void **state) {
    (void)version;
    sn_exchange *x = *state;
    if (!*state || *state == &nul_in_path) return begin(ctx, connection, method, path, state);
    if (*upload_size) return take_piece(x, upload, upload_size);
    if (x->code) return MHD_YES;
    if (x->refusal.status) return sn_exchange_refuse(x, &x->refusal);
    /* An answer may take longer than a client may be silent. */
    sn_door_allow(x->server->door, x->guest, 0, 0);
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    enum MHD_Result result = x->route->handle(x);
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)SILENCE_S);
    if (!x->answer || !x->streams) sn_exchange_is_read(x, x->to_read);
    return result;
}

static void allow_headers(const sn_server *server, sn_guest *guest) {
    const int64_t ms = server->options.headers_ms ? server->options.headers_ms : HEADERS_MS;
    sn_door_allow(server->door, guest, ms, ms < CROWDED_HEADERS_MS ? ms : CROWDED_HEADERS_MS);
}

static void notify_connection(void *ctx, struct MHD_Connection *connection, void **guest,
                              enum MHD_ConnectionNotificationCode what) {
    sn_server *server = ctx;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (what == MHD_CONNECTION_NOTIFY_STARTED && info) {
        *guest = sn_door_enter(server->door, info->connect_fd);
        allow_headers(server, *guest);
    } else if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        sn_door_leave(server->door, *guest);
        *guest = NULL;
    }
}

static void completed(void *ctx, struct MHD_Connection *connection, void **state, enum MHD_RequestTerminationCode why) {
    sn_server *server = ctx;
    sn_exchange *x = *state;
    (void)connection;
    if (!x || *state == &nul_in_path) return; /* it ended before it was handled */
    bool answered = x->code && why == MHD_REQUEST_TERMINATED_COMPLETED_OK;
    if (x->answer && !answered) atomic_fetch_add(&server->counters.cancelled, 1);
    atomic_fetch_add(&server->counters.requests[answered ? x->code % SN_STATUS_CODES : 0], 1);
    sn_log(SN_LOG_INFO, "request", "request_id=%s path=%s code=%u answered=%d ms=%lld", x->id,
           x->route ? x->route->path : "-", x->code, answered, (long long)(sn_now_us() - x->arrived_us) / 1000);
    sn_http_answer_free(&x->answer);
    sn_load_give_back(&server->load, &x->taken);
    sn_buf_fini(&x->body);
    allow_headers(server, x->guest);
    free(x);
    *state = NULL;
    atomic_fetch_sub(&server->open, 1);
}

/* -- start and end -- */

static sn_status read_pem(const char *option, const char *path, bool secret, char **out, sn_err *err) {
    sn_buf text = {0};
    sn_status status =
        secret ? sn_read_secret_file(path, PEM_BYTES_MAX, &text, err) : sn_read_file(path, PEM_BYTES_MAX, &text, err);
    if (status) return sn_err_context(err, "%s", option);
    *out = (char *)text.data; /* with a NUL behind it */
    return SN_OK;
}

static sn_status start_daemon(sn_server *s, int fd, sn_err *err) {
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL;
    /* What browsers and libraries of the last ten years speak, all of it with forward secrecy and AEAD. */
    static char tls_suites[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-KX-ALL:+ECDHE-ECDSA:+ECDHE-RSA:-CIPHER-ALL:"
                               "+AES-256-GCM:+CHACHA20-POLY1305:+AES-128-GCM";
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_CERT, 0, s->cert},
                                   {MHD_OPTION_HTTPS_MEM_KEY, 0, s->key},
                                   {MHD_OPTION_HTTPS_PRIORITIES, 0, tls_suites},
                                   {MHD_OPTION_END, 0, NULL}};
    if (s->cert) flags |= MHD_USE_TLS;
    if (!s->cert) tls[0].option = MHD_OPTION_END;
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, handle, s, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_NOTIFY_COMPLETED, completed, s,
        MHD_OPTION_NOTIFY_CONNECTION, notify_connection, s, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)CONNECTIONS_OF_ADDRESS_MAX, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)HEADER_BYTES_MAX, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)SILENCE_S, MHD_OPTION_THREAD_STACK_SIZE,
        (size_t)STACK_BYTES, MHD_OPTION_URI_LOG_CALLBACK, look_at_path, NULL, MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
    if (s->daemon) return SN_OK;
    close(fd);
    return sn_fail(err, s->cert ? SN_REFUSED : SN_STOP, "the HTTP server did not start%s",
                   s->cert ? ": see whether --tls-cert and --tls-key are a certificate and its key, in PEM" : "");
}

sn_status sn_server_new(const sn_server_options *options, sn_server **out, sn_err *err) {
    sn_server *s;
    int fd = -1;
    *out = NULL;
    sn_status status = sn_calloc(&s, 1, sizeof *s, err);
    if (status) return status;
    sn_load_init(&s->load);
    s->options = *options;
    s->models[0] = options->model_name;
    s->started_unix_s = sn_unix_ms() / 1000;
    s->limits = (sn_request_limits){.models = s->models,
                                    .n_models = 1,
                                    .vocab = swarm_model_vocab(options->model),
                                    .context = options->context,
                                    .width = swarm_model_width(options->model),
                                    .n_max = (int)sn_min_size(N_CHOICES_MAX, options->choices_max),
                                    .prompts_max = N_PROMPTS_MAX,
                                    .choices_max = (int)sn_min_size(N_CHOICES_MAX, options->choices_max)};
    status = sn_served_model_new(options->model, options->model_name, &s->served, err);
    if (!status) s->limits.sampling = *sn_served_model_sampling(s->served);
    if (!status) s->limits.no_tools = !sn_served_model_calls_tools(s->served);
    if (!status) status = sn_view_new(s, &s->view, err);
    if (!status) status = sn_door_new(CONNECTIONS_MAX, &s->door, err);
    if (!status && options->tls_cert) status = read_pem("--tls-cert", options->tls_cert, false, &s->cert, err);
    if (!status && options->tls_key) status = read_pem("--tls-key", options->tls_key, true, &s->key, err);
    if (!status && sn_listen_tcp(options->host, options->port, &fd, &s->port, err))
        status = sn_err_context(err, "--listen %s:%d", options->host, options->port);
    if (!status) status = start_daemon(s, fd, err);
    if (status) sn_server_free(&s);
    *out = s;
    return status;
}

int sn_server_port(const sn_server *server) { return server->port; }

static bool wait_until_idle(sn_server *s, int64_t deadline_us) {
    enum { SLEEP_US = 20000 };
    while (atomic_load(&s->open) && sn_now_us() < deadline_us) sn_sleep_us(SLEEP_US);
    return !atomic_load(&s->open);
}

bool sn_server_drain(sn_server *s, int64_t deadline_us) {
    atomic_store(&s->draining, true);
    sn_server_queue_drain(s->options.queue);
    if (wait_until_idle(s, deadline_us)) return true;
    sn_server_queue_cancel_all(s->options.queue);
    (void)wait_until_idle(s, sn_now_us() + CANCEL_MS * 1000);
    return false;
}

void sn_server_free(sn_server **server) {
    sn_server *s = *server;
    if (!s) return;
    if (s->daemon) MHD_stop_daemon(s->daemon);
    sn_door_free(&s->door);
    sn_load_fini(&s->load);
    sn_view_free(&s->view);
    sn_served_model_free(&s->served);
    if (s->key) explicit_bzero(s->key, strlen(s->key));
    free(s->key);
    free(s->cert);
    free(s);
    *server = NULL;
}
