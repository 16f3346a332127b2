#include "node/node.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "kvcache/idle.h"
#include "net/introduce.h"
#include "node/core.h"
#include "node/metrics.h"

#include <stdlib.h>
#include <string.h>

enum { LAST_STEPS_US = 4000000, FLUSH_US = 50000, ROUND_EVENTS_MAX = 256 };

struct sn_node {
    sn_identity identity;
    sn_placing placing;
    sn_span *span;
    sn_kv_pool *pool;
    sn_transport *transport;
    sn_introducer *introducer;
    sn_engine *engine;
    sn_core *core;
    sn_metrics *metrics; /* NULL: nobody watches */
    char address[SN_ADDRESS_MAX + 1];
    int64_t drain_us;
    atomic_int stop; /* how often it was asked to */
};

static sn_status open_idle(sn_node *node, const sn_node_config *config, sn_err *err) {
    if (!config->idle_to) return SN_OK;
    bool disk = !strcmp(config->idle_to, "disk");
    if (!disk && strcmp(config->idle_to, "host"))
        return sn_fail(err, SN_REFUSED, "--idle-to %.40s is unknown: use host or disk", config->idle_to);
    if (disk && !config->idle_dir) return sn_fail(err, SN_REFUSED, "idle sessions are to rest on disk: give --idle-dir");
    return sn_idle_open(node->pool, disk ? config->idle_dir : NULL, config->idle_memory,
                        (int64_t)config->idle_after_s * 1000000, err);
}

static sn_status load(sn_node *node, const sn_node_config *config, sn_progress progress, void *ctx, sn_hash *model_id,
                      sn_err *err) {
    sn_model *model = NULL;
    int end = config->end;
    sn_placing *placing = &node->placing;
    sn_status status = sn_model_open(config->model_path, &model, err);
    if (!status) status = sn_placing_make(&config->placing, model, config->first, &end, placing, err);
    if (!status && config->planned) config->planned((const char *)placing->table.data);
    if (!status)
        status = sn_span_load_plan(model, &placing->plan, placing->devices, placing->store, progress, ctx, &node->span, err);
    if (!status) *model_id = sn_model_id(model);
    sn_model_close(&model);
    if (!status) status = sn_span_kv_pool(node->span, config->placing.kv_memory, &node->pool, err);
    if (!status) status = open_idle(node, config, err);
    if (!status) status = sn_prefix_share(node->pool, sn_span_hparams(node->span)->n_embd, config->prefix_memory, err);
    return status;
}

static sn_status load_identity(sn_node *node, const char *path, sn_err *err) {
    return path ? sn_identity_load(path, &node->identity, err) : sn_identity_new(&node->identity, err);
}

static sn_status new_transport(sn_node *node, const sn_shape *link, sn_err *err) {
    sn_transport *inner = NULL;
    if (sn_shape_is_none(link)) return sn_transport_zmq_new(&node->identity, &node->transport, err);
    sn_status status = sn_transport_zmq_new(&node->identity, &inner, err);
    return status ? status : sn_transport_shaped_new(&inner, link, NULL, &node->transport, err);
}

static void wake_network(void *ctx) { sn_transport_wake(((sn_node *)ctx)->transport); }
static bool submit(void *ctx, sn_job *job) { return sn_engine_submit(((sn_node *)ctx)->engine, job); }
static sn_engine_figures read_figures(void *ctx) { return sn_engine_read(((sn_node *)ctx)->engine); }

static sn_status listen_and_ask(sn_node *node, const sn_node_config *config, bool introduce, sn_err *err) {
    sn_status status = sn_transport_listen(node->transport, config->listen, node->address, err);
    if (!status && introduce)
        status = sn_introducer_new(&node->identity, node->address, wake_network, node, &node->introducer, err);
    for (size_t i = 0; i < config->n_join && !status && introduce; i++)
        status = sn_introducer_ask(node->introducer, config->join[i], err);
    return status;
}

/* Without an introducer (another transport than ZeroMQ) every address to join has its key with it. */
static sn_status join_pinned(sn_node *node, const sn_node_config *config, sn_err *err) {
    for (size_t i = 0; i < config->n_join; i++) {
        char address[SN_ADDRESS_MAX + 1];
        uint8_t key[SN_KEY_SIZE];
        bool pinned;
        sn_status status = sn_address_parse(config->join[i], address, key, &pinned, err);
        if (status) return status;
        if (!pinned) return sn_fail(err, SN_REFUSED, "%s needs its key: write ADDRESS#KEY", config->join[i]);
        sn_core_join(node->core, address, key);
    }
    return SN_OK;
}

static sn_status new_core(sn_node *node, const sn_node_config *config, const sn_hash *model_id, sn_err *err) {
    const sn_core_setup setup = {
        .transport = node->transport,
        .identity = &node->identity,
        .address = config->public_address ? config->public_address : node->address,
        .name = config->name ? config->name : "",
        .span = sn_span_describe(node->span),
        .model = *model_id,
        .kv_bytes_max = sn_kv_pool_bytes(node->pool),
        .sessions_max = config->sessions_max,
        .idle_us_max = (int64_t)config->session_timeout_s * 1000000,
        .room_us_max = (int64_t)config->room_timeout_s * 1000000,
        .share_all = config->share_all,
        .submit = submit,
        .read = read_figures,
        .ctx = node,
    };
    return sn_core_new(&setup, sn_now_us(), &node->core, err);
}

static sn_status watch(sn_node *node, const sn_node_config *config, sn_err *err) {
    char id[2 * SN_KEY_SIZE + 1];
    const sn_metrics_facts facts = {sn_hex(node->identity.id, SN_KEY_SIZE, id), config->name ? config->name : "", sn_unix_ms()};
    return sn_metrics_new(config->metrics, &facts, &node->metrics, err);
}

static void publish(const sn_node *node) {
    sn_figures figures;
    sn_core_read(node->core, &figures);
    sn_metrics_publish(node->metrics, &figures);
}

sn_status sn_node_new(const sn_node_config *config, sn_transport **transport, sn_progress progress, void *ctx,
                      sn_node **out, sn_err *err) {
    sn_node *node = NULL;
    sn_hash model_id;
    sn_status status = sn_calloc(&node, 1, sizeof *node, err);
    if (status) return status;
    node->drain_us = (int64_t)config->drain_timeout_s * 1000000;
    bool introduce = !transport; /* in-memory transports are told the keys */
    if (transport) {
        node->transport = *transport;
        *transport = NULL;
    }
    status = load_identity(node, config->identity_path, err);
    if (!status && !node->transport) status = new_transport(node, &config->link, err);
    /* Listening comes before loading: a port that is taken shows at once. Nothing is answered before run. */
    if (!status) status = listen_and_ask(node, config, introduce, err);
    if (!status && config->metrics) status = watch(node, config, err);
    if (!status) status = load(node, config, progress, ctx, &model_id, err);
    if (!status)
        status = sn_engine_new(node->span, node->pool, 2 * config->sessions_max, wake_network, node, &node->engine, err);
    if (!status) status = new_core(node, config, &model_id, err);
    if (!status && !introduce) status = join_pinned(node, config, err);
    if (status) sn_node_free(&node);
    *out = node;
    return status;
}

void sn_node_free(sn_node **node) {
    sn_node *n = *node;
    if (!n) return;
    sn_metrics_free(&n->metrics);
    sn_engine_free(&n->engine); /* from here on nobody else touches span, pool and sessions */
    sn_core_free(&n->core);
    sn_introducer_free(&n->introducer); /* before the transport that it wakes */
    sn_transport_free(&n->transport);
    sn_kv_pool_free(&n->pool);
    sn_span_free(&n->span);
    sn_placing_close(&n->placing);
    free(n);
    *node = NULL;
}

/* One round of the network thread: a message or a wake-up, then what else is there, up to a limit: under a stream of
 * messages that never ends, announcements and the end of the program still have their turn. */
static sn_status serve(sn_node *node, int64_t deadline_us, sn_err *err) {
    bool more = true;
    for (int i = 0; more && i < ROUND_EVENTS_MAX; i++) {
        sn_event event;
        sn_status status = sn_transport_recv(node->transport, deadline_us, &event, err);
        if (status) return status;
        more = event.peer != 0;
        deadline_us = 0;
        if (more) sn_core_handle(node->core, &event, sn_now_us(), sn_unix_ms());
        for (sn_job *job = sn_engine_take(node->engine); job; job = sn_engine_take(node->engine))
            sn_core_done(node->core, job, sn_now_us());
    }
    char address[SN_ADDRESS_MAX + 1];
    uint8_t key[SN_KEY_SIZE];
    while (node->introducer && sn_introducer_take(node->introducer, address, key))
        sn_core_join(node->core, address, key);
    if (node->metrics) publish(node);
    return SN_OK;
}

/* Serves on until every session has been moved by its owner, or the time is up. */
static sn_status drain(sn_node *node, sn_err *err) {
    sn_status status = SN_OK;
    int64_t until = sn_now_us() + node->drain_us;
    sn_core_drain(node->core, sn_unix_ms());
    while (!status && sn_core_sessions(node->core) && sn_now_us() < until && atomic_load(&node->stop) == 1) {
        int64_t next = sn_core_tick(node->core, sn_now_us(), sn_unix_ms());
        status = serve(node, next < until ? next : until, err);
    }
    if (sn_core_sessions(node->core))
        sn_log(SN_LOG_WARN, "sessions were not moved", "sessions=%zu", sn_core_sessions(node->core));
    return status;
}

sn_status sn_node_run(sn_node *node, sn_err *err) {
    sn_status status = SN_OK;
    if (node->metrics) publish(node);
    while (!status && !atomic_load(&node->stop))
        status = serve(node, sn_core_tick(node->core, sn_now_us(), sn_unix_ms()), err);
    if (!status && node->drain_us) status = drain(node, err);
    if (status) return status;
    sn_core_leave(node->core, sn_unix_ms());
    int64_t until = sn_now_us() + LAST_STEPS_US;
    while (!status && sn_core_busy(node->core) && sn_now_us() < until && atomic_load(&node->stop) == 1)
        status = serve(node, sn_now_us() + FLUSH_US, err);
    return status;
}

void sn_node_stop(sn_node *node) {
    atomic_fetch_add(&node->stop, 1);
    sn_transport_wake(node->transport);
}

const char *sn_node_address(const sn_node *node) { return node->address; }
const uint8_t *sn_node_id(const sn_node *node) { return node->identity.id; }
const uint8_t *sn_node_curve_key(const sn_node *node) { return node->identity.curve_key; }
int sn_node_metrics_port(const sn_node *node) { return node->metrics ? sn_metrics_port(node->metrics) : 0; }
size_t sn_node_weight_bytes(const sn_node *node) { return sn_span_bytes(node->span); }
size_t sn_node_kv_tokens(const sn_node *node) { return sn_kv_pool_tokens(node->pool); }
const sn_span *sn_node_span(const sn_node *node) { return node->span; }
