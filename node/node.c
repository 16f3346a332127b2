#include "node/node.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "net/introduce.h"
#include "net/members.h"
#include "node/core.h"
#include "node/metrics.h"
#include "node/rendezvous.h"
#include "node/serving.h"

#include <stdlib.h>
#include <string.h>

enum {
    LAST_STEPS_US = 4000000,
    FLUSH_US = 50000,
    GOODBYE_US = 100000,
    ROUND_EVENTS_MAX = 256,
    PORTS_TRIED = 20,
    MOVE_US = 30000000, /* that sessions have to be moved before their node moves, where --drain-timeout says nothing */
};

struct sn_node {
    sn_node_config config;
    sn_identity identity;
    sn_hparams hp;
    sn_hash model;
    sn_serving serving; /* the loader's while there is one */
    sn_loader *loader;
    sn_transport *transport;
    sn_introducer *introducer;
    sn_rendezvous rendezvous;
    sn_core *core;
    sn_metrics *metrics; /* NULL: nobody watches */
    char address[SN_ADDRESS_MAX + 1];
    int64_t drain_us;
    atomic_int stop; /* how often it was asked to */
};

/* What must be known of the model before a block of it is loaded. */
static sn_status describe_model(sn_node *node, const char *path, sn_err *err) {
    sn_model *model = NULL;
    sn_status status = sn_model_open(path, &model, err);
    if (status) return status;
    node->hp = *sn_model_hparams(model);
    node->model = sn_model_id(model);
    sn_model_close(&model);
    return SN_OK;
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

static sn_status make_private(sn_node *node, const char *path, sn_err *err) {
    uint8_t key[SN_SWARM_KEY_SIZE];
    sn_transport *inner = node->transport;
    sn_status status = sn_swarm_key_load(path, key, err);
    if (status) return status;
    node->transport = NULL;
    status = sn_transport_private_new(&inner, &node->identity, key, &node->transport, err);
    explicit_bzero(key, sizeof key);
    return status;
}

static void wake_network(void *ctx) { sn_transport_wake(((sn_node *)ctx)->transport); }
static bool submit(void *ctx, sn_job *job) {
    sn_engine *engine = ((sn_node *)ctx)->serving.engine;
    return engine && sn_engine_submit(engine, job);
}
static sn_engine_figures read_figures(void *ctx) {
    const sn_node *node = ctx;
    if (node->loader || !node->serving.engine) return (sn_engine_figures){0};
    return sn_engine_read(node->serving.engine);
}

static sn_status listen_here(sn_node *node, const sn_node_config *config, sn_err *err) {
    sn_status status = node->transport ? SN_OK : new_transport(node, &config->link, err);
    if (!status && config->swarm_key_path) status = make_private(node, config->swarm_key_path, err);
    return status ? status : sn_transport_listen(node->transport, config->listen, node->address, err);
}

static sn_status answer_introductions(sn_node *node, sn_err *err) {
    return sn_introducer_new(&node->identity, node->address, wake_network, node, &node->introducer, err);
}

/* TCP's port was any that was free; UDP's of that number need not be: then another pair is tried. */
static sn_status introduce(sn_node *node, const sn_node_config *config, sn_err *err) {
    const char *port = strrchr(config->listen, ':');
    bool any_port = port && !strcmp(port, ":0");
    sn_status status = answer_introductions(node, err);
    for (int i = 1; i < PORTS_TRIED && status == SN_REFUSED && any_port; i++) {
        sn_transport_free(&node->transport);
        status = listen_here(node, config, err);
        if (!status) status = answer_introductions(node, err);
    }
    for (size_t i = 0; i < config->n_join && !status; i++)
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

static sn_status new_core(sn_node *node, const sn_node_config *config, sn_err *err) {
    const sn_core_setup setup = {
        .transport = node->transport,
        .identity = &node->identity,
        .address = config->public_address ? config->public_address : node->address,
        .name = config->name ? config->name : "",
        .span = {.hp = &node->hp, .first = config->first, .end = config->end},
        .loading = true,
        .auto_blocks = config->auto_blocks,
        .expects_others = config->n_join > 0 || (node->rendezvous.dht && strcmp(config->dht, "on")),
        .rebalance_us = (int64_t)config->rebalance_every_s * 1000000,
        .rebalance_gain = config->rebalance_gain,
        .move_us_max = node->drain_us ? node->drain_us : MOVE_US,
        .model = node->model,
        .sessions_max = config->sessions_max,
        .idle_us_max = (int64_t)config->session_timeout_s * 1000000,
        .room_us_max = (int64_t)config->room_timeout_s * 1000000,
        .tune_bytes_max = config->tune_memory,
        .share_all = config->share_all,
        .quota = config->quota,
        .submit = submit,
        .read = read_figures,
        .ctx = node,
    };
    return sn_core_new(&setup, sn_now_us(), &node->core, err);
}

static sn_status open_table(sn_node *node, const sn_node_config *config, sn_err *err) {
    sn_status status = sn_dht_open(config->dht, config->dht_port, node->model.bytes, wake_network, node,
                                   &node->rendezvous.dht, err);
    if (!status) sn_log(SN_LOG_INFO, "in the table of first contacts", "udp_port=%d", sn_dht_port(node->rendezvous.dht));
    return status;
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

/* What is due without a message; returns until when nothing is. */
static int64_t tick(sn_node *node) {
    int64_t core_us = sn_core_tick(node->core, sn_now_us(), sn_unix_ms());
    int64_t table_us = sn_rendezvous_tick(&node->rendezvous, node->introducer, &node->identity,
                                          node->config.public_address ? node->config.public_address : node->address,
                                          !node->loader && node->serving.engine, sn_now_us(), sn_unix_ms());
    return core_us < table_us ? core_us : table_us;
}

/* One round of the network thread: a message or a wake-up, then what else is there, up to a limit: under a stream of
 * messages that never ends, announcements and the end of the program still have their turn. */
static sn_status serve(sn_node *node, int64_t deadline_us, sn_err *err) {
    bool more = true;
    sn_engine *engine = node->loader ? NULL : node->serving.engine;
    for (int i = 0; more && i < ROUND_EVENTS_MAX; i++) {
        sn_event event;
        sn_status status = sn_transport_recv(node->transport, deadline_us, &event, err);
        if (status) return status;
        more = event.peer != 0;
        deadline_us = 0;
        if (more) sn_core_handle(node->core, &event, sn_now_us(), sn_unix_ms());
        for (sn_job *job = engine ? sn_engine_take(engine) : NULL; job; job = sn_engine_take(engine))
            sn_core_done(node->core, job, sn_now_us());
    }
    char address[SN_ADDRESS_MAX + 1];
    uint8_t key[SN_KEY_SIZE];
    while (node->introducer && sn_introducer_take(node->introducer, address, key))
        sn_core_join(node->core, address, key);
    if (node->metrics) publish(node);
    return SN_OK;
}

static sn_status begin_to_serve(sn_node *node, sn_err *err) {
    sn_serving *serving = &node->serving;
    sn_status status = sn_loader_take(&node->loader, err);
    if (!status)
        status = sn_engine_new(serving->span, serving->pool, 2 * node->config.sessions_max, serving->speed, wake_network,
                               node, &serving->engine, err);
    if (status) return status;
    sn_span_facts facts = sn_span_describe(serving->span);
    sn_log(SN_LOG_INFO, "serving", "blocks=%d:%d decode_us=%llu prompt_tokens_per_s=%llu", facts.first, facts.end,
           (unsigned long long)serving->speed.decode_us, (unsigned long long)serving->speed.prompt_tokens_per_s);
    sn_core_publish(node->core, &serving->published);
    sn_core_serve(node->core, &facts, sn_kv_pool_bytes(serving->pool), sn_now_us(), sn_unix_ms());
    return SN_OK;
}

/* What the core has decided about the blocks that are served. */
static sn_status attend(sn_node *node, sn_progress progress, void *ctx, sn_err *err) {
    int first, end;
    if (node->loader && sn_loader_done(node->loader)) return begin_to_serve(node, err);
    if (sn_core_wants_to_move(node->core)) {
        sn_engine_free(&node->serving.engine); /* then what clients trained goes, then what it lies on */
        sn_core_vacate(node->core, sn_now_us(), sn_unix_ms());
        sn_serving_free(&node->serving);
    }
    if (!sn_core_wants_blocks(node->core, &first, &end)) return SN_OK;
    return sn_loader_start(&node->serving, &node->config, first, end, progress, ctx, wake_network, node, &node->loader, err);
}

static bool is_up(const sn_node *node) { return !node->loader && node->serving.engine; }

/* Serves what can be served without blocks until they are there. */
static sn_status bring_up(sn_node *node, sn_progress progress, void *ctx, sn_err *err) {
    sn_node_early *early = node->config.early;
    sn_status status = SN_OK;
    if (early) atomic_store(&early->up, true);
    while (!status && !is_up(node) && !(early && atomic_load(&early->stop))) {
        int64_t next_us = tick(node), soon_us = sn_now_us() + GOODBYE_US;
        status = attend(node, progress, ctx, err);
        if (!status && !is_up(node)) status = serve(node, next_us < soon_us ? next_us : soon_us, err);
    }
    if (status || !early || !atomic_load(&early->stop)) return status;
    sn_core_leave(node->core, sn_unix_ms());
    status = serve(node, sn_now_us() + GOODBYE_US, err);
    atomic_store(&early->left, true);
    return status;
}

sn_status sn_node_new(const sn_node_config *config, sn_transport **transport, sn_progress progress, void *ctx,
                      sn_node **out, sn_err *err) {
    sn_node *node = NULL;
    sn_status status = sn_calloc(&node, 1, sizeof *node, err);
    if (status) return status;
    node->config = *config;
    node->drain_us = (int64_t)config->drain_timeout_s * 1000000;
    bool introduced = !transport; /* in-memory transports are told the keys */
    if (transport) {
        node->transport = *transport;
        *transport = NULL;
    }
    status = load_identity(node, config->identity_path, err);
    /* Listening comes before loading: a port that is taken shows at once. */
    if (!status) status = listen_here(node, config, err);
    if (!status && introduced) status = introduce(node, config, err);
    if (!status && config->metrics) status = watch(node, config, err);
    if (!status) status = describe_model(node, config->model_path, err);
    if (!status && config->dht && introduced) status = open_table(node, config, err);
    if (!status) status = new_core(node, config, err);
    if (!status && !introduced) status = join_pinned(node, config, err);
    if (!status) status = bring_up(node, progress, ctx, err);
    if (status) sn_node_free(&node);
    *out = node;
    return status;
}

void sn_node_free(sn_node **node) {
    sn_node *n = *node;
    sn_err err;
    if (!n) return;
    sn_metrics_free(&n->metrics);
    sn_dht_close(&n->rendezvous.dht); /* before the transport that it wakes */
    if (sn_loader_take(&n->loader, &err)) sn_log(SN_LOG_INFO, "blocks not loaded", "text=%s", err.text);
    sn_engine_free(&n->serving.engine); /* first: from here on nobody else touches span, pool and sessions */
    sn_core_free(&n->core);
    sn_introducer_free(&n->introducer); /* before the transport that it wakes */
    sn_transport_free(&n->transport);
    sn_serving_free(&n->serving);
    free(n);
    *node = NULL;
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
    while (!status && !atomic_load(&node->stop)) {
        int64_t next_us = tick(node);
        status = attend(node, NULL, NULL, err);
        if (!status) status = serve(node, next_us, err);
    }
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

bool sn_node_loading(const sn_node *node) { return node->loader != NULL; }
const char *sn_node_address(const sn_node *node) { return node->address; }
const uint8_t *sn_node_id(const sn_node *node) { return node->identity.id; }
const uint8_t *sn_node_curve_key(const sn_node *node) { return node->identity.curve_key; }
int sn_node_metrics_port(const sn_node *node) { return node->metrics ? sn_metrics_port(node->metrics) : 0; }
size_t sn_node_weight_bytes(const sn_node *node) { return sn_span_bytes(node->serving.span); }
size_t sn_node_kv_tokens(const sn_node *node) { return sn_kv_pool_tokens(node->serving.pool); }
const sn_span *sn_node_span(const sn_node *node) { return node->serving.span; }
