/* libmicrohttpd's thread answers from copies that the node publishes: counters at each loop, the map when it was asked
 * for. It answers by an address and by the names of --metrics-host, so that no web page reads it by a name of its own
 * that is made to point here. */
#include "node/metrics.h"

#include "base/clock.h"
#include "base/host_header.h"
#include "base/listen.h"
#include "base/parse.h"
#include "gateway/pages/pages.h"
#include "net/message.h"

#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE_SIZE_MAX = 64 << 10, CONNECTIONS_MAX = 16, CONNECTION_BYTES_MAX = 16 << 10, SILENCE_S = 10 };
enum { MAP_AGE_US = 1000000, MAP_WAIT_S = 2 };

struct sn_metrics {
    char node[80], name[64];
    sn_metrics_facts facts;
    struct MHD_Daemon *server;
    int port;
    pthread_mutex_t lock; /* protects what follows it; held only while that is copied */
    sn_node_stats stats;
    char *map; /* the newest; NULL: none yet */
    int64_t map_made_us;
    pthread_cond_t map_changed;
    atomic_bool wants_map, ends;
};

/* -- replies (the server's thread) --------------------------------------------------------------------------------- */

static enum MHD_Result http_reply(struct MHD_Connection *connection, unsigned code, const char *type, const void *text,
                                  size_t len) {
    struct MHD_Response *response = MHD_create_response_from_buffer(len, (void *)text, MHD_RESPMEM_MUST_COPY);
    if (!response) return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    for (int i = 0; i < SN_PAGE_HEADERS; i++)
        MHD_add_response_header(response, sn_page_headers[i].name, sn_page_headers[i].value);
    enum MHD_Result result = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result http_refuse(struct MHD_Connection *connection, unsigned code, const char *text) {
    return http_reply(connection, code, "text/plain; charset=utf-8", text, strlen(text));
}

static enum MHD_Result http_metrics(sn_metrics *metrics, struct MHD_Connection *connection) {
    pthread_mutex_lock(&metrics->lock);
    sn_node_stats stats = metrics->stats;
    pthread_mutex_unlock(&metrics->lock);
    sn_buf page;
    sn_err err;
    sn_buf_init(&page, PAGE_SIZE_MAX);
    enum MHD_Result result =
        sn_metrics_write(&metrics->facts, &stats, &page, &err)
            ? http_refuse(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, err.text)
            : http_reply(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", page.data, page.len);
    sn_buf_fini(&page);
    return result;
}

/* A copy of a map that is a second old at most, for which the network thread is asked; NULL: it made none in time. */
static char *map_copy(sn_metrics *m) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += MAP_WAIT_S;
    pthread_mutex_lock(&m->lock);
    int64_t oldest_us = sn_now_us() - MAP_AGE_US;
    if (!m->map || m->map_made_us < oldest_us) {
        atomic_store(&m->wants_map, true);
        m->facts.wake(m->facts.ctx);
    }
    while ((!m->map || m->map_made_us < oldest_us) && !atomic_load(&m->ends))
        if (pthread_cond_timedwait(&m->map_changed, &m->lock, &until)) break;
    char *copy = m->map && m->map_made_us >= oldest_us ? strdup(m->map) : NULL;
    pthread_mutex_unlock(&m->lock);
    return copy;
}

static enum MHD_Result http_map(sn_metrics *metrics, struct MHD_Connection *connection) {
    char *map = metrics->facts.wake ? map_copy(metrics) : NULL;
    enum MHD_Result result =
        map ? http_reply(connection, MHD_HTTP_OK, "application/json", map, strlen(map))
            : http_refuse(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "the node is busy: try again in a moment\n");
    free(map);
    return result;
}

/* Not NULL: the path has a NUL. http_handle finds it in *state. */
static void *look_at_path(void *ctx, const char *sent, struct MHD_Connection *connection) {
    (void)connection;
    return sn_path_has_nul(sent) ? ctx : NULL;
}

/* 8 parameters: the callback type of libmicrohttpd */
static enum MHD_Result http_handle(void *ctx, struct MHD_Connection *connection, const char *url, const char *method,
                                   const char *version, const char *upload, size_t *upload_size, void **state) {
    (void)version, (void)upload, (void)upload_size;
    sn_metrics *metrics = ctx;
    const bool has_nul = *state;
    *state = NULL;
    if (has_nul) return http_refuse(connection, MHD_HTTP_BAD_REQUEST, "the path has a NUL in it\n");
    if (strcmp(method, MHD_HTTP_METHOD_GET) && strcmp(method, MHD_HTTP_METHOD_HEAD))
        return http_refuse(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "this server answers only GET\n");
    const sn_page *page = strcmp(url, "/") ? sn_page_find(url) : NULL; /* a node has no chat */
    if (!page && strcmp(url, "/api/swarm") && strcmp(url, "/metrics"))
        return http_refuse(connection, MHD_HTTP_NOT_FOUND, "this server has /metrics, /swarm and /api/swarm\n");
    const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
    if (!sn_host_header_is_known(host, metrics->facts.hosts, metrics->facts.n_hosts))
        return http_refuse(connection, MHD_HTTP_FORBIDDEN,
                           "ask by an IP address, by localhost, or by a name that --metrics-host allows\n");
    if (!strcmp(url, "/metrics")) return http_metrics(metrics, connection);
    return page ? http_reply(connection, MHD_HTTP_OK, page->type, page->data, page->len)
                : http_map(metrics, connection);
}

/* -- start and end ------------------------------------------------------------------------------------------------- */

/* "9100", "host:9100", "[::1]:9100" -> host, port. */
static sn_status address_split(const char *address, char host[256], int *port, sn_err *err) {
    const char *colon = strrchr(address, ':'), *digits = colon ? colon + 1 : address;
    size_t n = colon ? (size_t)(colon - address) : 0;
    int64_t number;
    sn_err why;
    if (sn_parse_int(digits, 0, 65535, &number, &why) || strlen(digits) > 5 || n > 250 || (colon && !n))
        return sn_fail(err, SN_REFUSED, "--metrics %s: write HOST:PORT, as in 127.0.0.1:9100, or PORT", address);
    bool bracketed = n > 2 && address[0] == '[' && address[n - 1] == ']';
    snprintf(host, 256, "%.*s", (int)(bracketed ? n - 2 : n), bracketed ? address + 1 : address);
    if (!n) snprintf(host, 256, "127.0.0.1");
    *port = (int)number;
    return SN_OK;
}

static void metrics_copy_facts(sn_metrics *m, const sn_metrics_facts *facts) {
    snprintf(m->node, sizeof m->node, "%s", facts->node);
    snprintf(m->name, sizeof m->name, "%s", facts->name);
    m->facts = *facts;
    m->facts.node = m->node;
    m->facts.name = m->name;
}

sn_status sn_metrics_new(const char *address, const sn_metrics_facts *facts, sn_metrics **out, sn_err *err) {
    char host[256];
    int fd = -1, port;
    sn_metrics *m = NULL;
    *out = NULL;
    sn_status status = address_split(address, host, &port, err);
    if (!status && sn_listen_tcp(host, port, &fd, &port, err)) status = sn_err_context(err, "--metrics %s", address);
    if (!status) status = sn_calloc(&m, 1, sizeof *m, err);
    if (status) {
        if (fd >= 0) close(fd);
        return status;
    }
    metrics_copy_facts(m, facts);
    m->port = port;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->map_changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    m->server =
        MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, http_handle, m, MHD_OPTION_LISTEN_SOCKET, fd,
                         MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                         (size_t)CONNECTION_BYTES_MAX, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)SILENCE_S,
                         MHD_OPTION_URI_LOG_CALLBACK, look_at_path, m, MHD_OPTION_END);
    if (!m->server) {
        close(fd);
        sn_metrics_free(&m);
        return sn_fail(err, SN_STOP, "--metrics %s: the server did not start: %s", address, strerror(errno));
    }
    *out = m;
    return SN_OK;
}

void sn_metrics_free(sn_metrics **metrics) {
    sn_metrics *m = *metrics;
    if (!m) return;
    pthread_mutex_lock(&m->lock);
    atomic_store(&m->ends, true);
    pthread_cond_broadcast(&m->map_changed);
    pthread_mutex_unlock(&m->lock);
    if (m->server) MHD_stop_daemon(m->server);
    pthread_cond_destroy(&m->map_changed);
    pthread_mutex_destroy(&m->lock);
    free(m->map);
    free(m);
    *metrics = NULL;
}

int sn_metrics_port(const sn_metrics *metrics) { return metrics->port; }

void sn_metrics_publish(sn_metrics *metrics, const sn_node_stats *stats) {
    if (pthread_mutex_trylock(&metrics->lock)) return;
    metrics->stats = *stats;
    pthread_mutex_unlock(&metrics->lock);
}

bool sn_metrics_wants_map(const sn_metrics *metrics) { return atomic_load(&metrics->wants_map); }

void sn_metrics_publish_map(sn_metrics *metrics, char **json) {
    pthread_mutex_lock(&metrics->lock);
    free(metrics->map);
    metrics->map = *json;
    metrics->map_made_us = sn_now_us();
    atomic_store(&metrics->wants_map, false);
    pthread_cond_broadcast(&metrics->map_changed);
    pthread_mutex_unlock(&metrics->lock);
    *json = NULL;
}

/* -- the page -- */

enum { LABEL_MAX = 256 };

/* Escapes a label's value: backslash, quote and newline get a backslash before them. */
static const char *label_escape(const char *text, char out[LABEL_MAX]) {
    size_t n = 0;
    for (; *text && n + 3 < LABEL_MAX; text++) {
        if (*text == '\\' || *text == '"' || *text == '\n') out[n++] = '\\';
        out[n++] = *text == '\n' ? 'n' : *text;
    }
    out[n] = 0;
    return out;
}

static sn_status put_head(sn_buf *out, const char *name, const char *type, const char *help, sn_err *err) {
    return sn_buf_printf(out, err, "# HELP swarm_node_%s %s\n# TYPE swarm_node_%s %s\n", name, help, name, type);
}

static sn_status put_number(sn_buf *out, const char *name, const char *type, uint64_t value, const char *help,
                            sn_err *err) {
    sn_status status = put_head(out, name, type, help, err);
    return status ? status : sn_buf_printf(out, err, "swarm_node_%s %" PRIu64 "\n", name, value);
}

/* Microseconds, as seconds. */
static sn_status put_seconds(sn_buf *out, const char *name, const char *type, uint64_t us, const char *help,
                             sn_err *err) {
    sn_status status = put_head(out, name, type, help, err);
    return status
               ? status
               : sn_buf_printf(out, err, "swarm_node_%s %" PRIu64 ".%06" PRIu64 "\n", name, us / 1000000, us % 1000000);
}

static sn_status put_histogram(sn_buf *out, const char *name, const sn_histogram *h, const char *help, sn_err *err) {
    sn_status status = put_head(out, name, "histogram", help, err);
    uint64_t sum = 0;
    for (int i = 0; i < SN_HISTOGRAM_BOUNDS && !status; i++) {
        sum += h->counts[i];
        status = sn_buf_printf(out, err, "swarm_node_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name,
                               (double)SN_HISTOGRAM_BOUNDS_US[i] / 1e6, sum);
    }
    sum += h->counts[SN_HISTOGRAM_BOUNDS];
    if (!status) status = sn_buf_printf(out, err, "swarm_node_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, sum);
    if (!status)
        status =
            sn_buf_printf(out, err, "swarm_node_%s_sum %" PRIu64 ".%06" PRIu64 "\nswarm_node_%s_count %" PRIu64 "\n",
                          name, h->sum_us / 1000000, h->sum_us % 1000000, name, sum);
    return status;
}

static sn_status put_facts(sn_buf *out, const sn_metrics_facts *facts, const sn_node_stats *f, sn_err *err) {
    char node[LABEL_MAX], name[LABEL_MAX], model[LABEL_MAX];
    sn_status status = put_head(out, "build_info", "gauge", "Always 1; the labels name the software.", err);
    if (!status)
        status = sn_buf_printf(out, err, "swarm_node_build_info{version=\"%s\",protocol=\"%d\"} 1\n", SN_VERSION,
                               SN_PROTOCOL_VERSION);
    if (!status)
        status = put_head(out, "span_info", "gauge", "Always 1; the labels name the node and its blocks.", err);
    if (!status)
        status = sn_buf_printf(
            out, err,
            "swarm_node_span_info{node=\"%s\",name=\"%s\",model=\"%s\",first_block=\"%d\",end_block=\"%d\"} 1\n",
            label_escape(facts->node, node), label_escape(facts->name, name), label_escape(f->model, model), f->first,
            f->end);
    if (!status)
        status = put_seconds(out, "start_time_seconds", "gauge", (uint64_t)facts->started_unix_ms * 1000,
                             "Unix time at which the node started.", err);
    return status;
}

static sn_status put_refusals(sn_buf *out, const sn_node_stats *f, sn_err *err) {
    static const char *const kinds[] = {
        [SN_RETRY] = "retry", [SN_REBUILD] = "rebuild", [SN_REFUSED] = "refused", [SN_STOP] = "stop"};
    sn_status status =
        put_head(out, "refusals_total", "counter", "ERROR replies, by the reaction expected of the requester.", err);
    for (int i = SN_OK + 1; i <= SN_STOP && !status; i++)
        status =
            sn_buf_printf(out, err, "swarm_node_refusals_total{kind=\"%s\"} %" PRIu64 "\n", kinds[i], f->refusals[i]);
    return status;
}

static sn_status put_quota_refusals(sn_buf *out, const sn_node_stats *f, sn_err *err) {
    static const char *const quotas[SN_QUOTA_KINDS] = {"sessions", "kv", "steps"};
    sn_status status =
        put_head(out, "quota_refusals_total", "counter",
                 "ERROR replies because of a per-client quota, by the option --client-... that sets it.", err);
    for (int i = 0; i < SN_QUOTA_KINDS && !status; i++)
        status = sn_buf_printf(out, err, "swarm_node_quota_refusals_total{quota=\"%s\"} %" PRIu64 "\n", quotas[i],
                               f->quota_refusals[i]);
    return status;
}

sn_status sn_metrics_write(const sn_metrics_facts *facts, const sn_node_stats *f, sn_buf *out, sn_err *err) {
    const struct {
        const char *name, *type, *help;
        uint64_t value;
    } numbers[] = {
        {"sessions", "gauge", "Open sessions.", f->sessions},
        {"sessions_max", "gauge", "Limit of open sessions.", f->sessions_max},
        {"kv_bytes", "gauge", "KV pages in use.", f->engine.kv_bytes},
        {"kv_max_bytes", "gauge", "Size of the KV pool.", f->kv_bytes_max},
        {"weight_bytes", "gauge", "Weights of the span.", f->weight_bytes},
        {"queued_steps", "gauge", "Steps and other jobs in the engine.", f->engine.queued_steps},
        {"lost_devices", "gauge", "Devices that are lost and tried again.",
         (uint64_t)__builtin_popcount(f->engine.lost_devices)},
        {"draining", "gauge", "1 while the node drains.", f->draining},
        {"announcements", "gauge", "Nodes with a live announcement.", f->announcements},
        {"joined_addresses", "gauge", "Addresses given with --join.", f->joined},
        {"bootstrap_peers", "gauge", "Bootstrap peers that have answered.", f->bootstrap_peers},
        {"relayed_nodes", "gauge", "Nodes behind routers whose connections this one passes on.",
         f->relay.relayed_nodes},
        {"relay_places", "gauge", "Further nodes that it would relay for.", f->relay.places},
        {"relayed_connections", "gauge", "Connections that it passes on.", f->relay.relayed_connections},
        {"relayed_bytes_total", "counter", "Bytes that it has passed on, both directions together.",
         f->relay.relayed_bytes},
        {"shared_pages", "gauge", "KV pages that two or more sessions share.", f->engine.shared_pages},
        {"swapped_bytes", "gauge", "KV pages of idle sessions, swapped out.", f->engine.swapped_bytes},
        {"swap_max_bytes", "gauge", "Limit of them.", f->swap_bytes_max},
        {"steps_total", "counter", "Steps computed.", f->steps},
        {"sessions_opened_total", "counter", "Sessions opened.", f->sessions_opened},
        {"shared_bytes_total", "counter", "Bytes of the model's files, given to others.", f->shared_bytes},
        {"tokens_total", "counter", "Tokens computed or attached.", f->tokens},
        {"prefix_cached_tokens_total", "counter", "Tokens attached from the prefix cache instead of computed.",
         f->engine.prefix_cached_tokens},
        {"forward_passes_total", "counter", "Forward passes.", f->engine.forward_passes},
        {"device_transfer_bytes_total", "counter", "Hidden states copied between devices.",
         f->engine.device_transfer_bytes},
        {"expert_hits_total", "counter", "Chosen experts that were on the device, of those that rest elsewhere.",
         f->engine.experts.hits},
        {"experts_ahead_total", "counter", "Chosen experts that were foreseen, and there or on the way.",
         f->engine.experts.ahead},
        {"expert_misses_total", "counter", "Chosen experts that had to be brought.", f->engine.experts.misses},
        {"expert_bytes_total", "counter", "Experts brought to devices.", f->engine.experts.bytes},
        {"experts_first", "gauge", "Experts held of each mixture: the first, and", f->experts_first},
        {"experts_end", "gauge", "the one behind the last.", f->experts_end},
        {"experts_missing", "gauge", "1 while some experts are held by no node of its group: clients are not served.",
         f->experts_missing},
        {"expert_rounds_total", "counter", "Times that a forward pass asked other nodes for experts of a block.",
         f->experts.rounds},
        {"expert_rounds_failed_total", "counter", "Of these, those to which no node answered.", f->experts.failed},
        {"expert_pairs_asked_total", "counter", "Pairs of a row and an expert that other nodes were asked for.",
         f->experts.pairs_asked},
        {"expert_pairs_computed_total", "counter", "Pairs that were computed for other nodes.",
         f->experts.pairs_computed},
        {"expert_holders_dropped_total", "counter",
         "Nodes that did not answer as asked, and were not asked for a while.", f->experts.dropped},
        {"sessions_migrated_total", "counter", "Sessions whose KV pages another node received.", f->sessions_migrated},
    };
    sn_status status = put_facts(out, facts, f, err);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && !status; i++)
        status = put_number(out, numbers[i].name, numbers[i].type, numbers[i].value, numbers[i].help, err);
    if (!status)
        status = put_seconds(out, "compute_seconds_total", "counter", f->engine.compute_us,
                             "Time spent in forward passes.", err);
    if (!status)
        status = put_seconds(out, "expert_wait_seconds_total", "counter", f->engine.expert_wait_us,
                             "Time in which forward passes waited for experts of other nodes.", err);
    if (!status) status = put_refusals(out, f, err);
    if (!status) status = put_quota_refusals(out, f, err);
    if (!status) status = put_histogram(out, "step_seconds", &f->step, "From the arrival of a step to its reply.", err);
    if (!status)
        status = put_histogram(out, "queue_seconds", &f->queue,
                               "From the arrival of a step to the start of its computation.", err);
    return status;
}
