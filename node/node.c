/* A node's start, loop and end.
 *
 * Threads: the network thread runs everything in this file. Others wake it through the transport: the engine when jobs
 * are finished, the loader when blocks are loaded, the introducer, and the DHT. Each round of the loop (node_poll)
 * takes events from the transport and finished jobs from the engine and gives them to the protocol; before it,
 * node_tick does what is due by time, and node_apply_placement carries out what the protocol has decided about blocks:
 * free them, load others, serve the loaded ones.
 *
 * Start: listen (so that a port in use is reported at once), introduce to the bootstrap peers, read the model's
 * parameters, create the protocol, then loop until the blocks are served (node_bring_up). End: drain, leave, wait for
 * the last steps. sn_node_free frees in the order of use: the engine first, the transport after all that wake it, the
 * memory of the blocks last, because sessions and adapters lie in it. */
#include "node/node.h"

#include "base/clock.h"
#include "base/listen.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/parse.h"
#include "sharing/hub/cached.h"
#include "net/introduction.h"
#include "net/lookup.h"
#include "net/router/port_mapping.h"
#include "net/transport/private_swarm.h"
#include "node/protocol/protocol.h"
#include "node/metrics.h"
#include "node/recovery.h"
#include "node/membership/dht_client.h"
#include "node/serving.h"
#include "node/shelf.h"
#include "node/swarm_map.h"
#include "node/weights_watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum {
    LAST_STEPS_WAIT_US = 4000000,
    FLUSH_US = 50000,
    LEAVE_WAIT_US = 100000,
    ROUND_EVENTS_MAX = 256,
    PORTS_TRIED = 20,
    LONELY_FIRST_US = 5000000, /* without an answer of a joined node, until the log says so; then each minute */
    LONELY_EVERY_US = 60000000,
    REBALANCE_DRAIN_US = 30000000, /* drain limit before a rebalance when --drain-timeout is 0 */
};

struct sn_node {
    sn_node_config config;
    sn_serving_options serving_options;
    sn_identity identity;
    sn_hparams hp;
    sn_hash model;
    sn_serving serving; /* belongs to the loader while there is one */
    sn_loader *loader;
    sn_shelf *shelf; /* NULL: the node shares nothing */
    sn_weights_watch weights_watch;
    int held; /* the folder of its model in the cache; -1: it lies elsewhere */
    sn_swarm_access swarm;
    const char **sources; /* of `swarm`: addresses of nodes that know others */
    char own_source[SN_ADDRESS_MAX + 2 * SN_KEY_SIZE + 2];
    sn_recovery recovery;
    uint32_t lost_devices; /* of the engine's, those that are known to the protocol; bits as in its stats */
    sn_transport *transport;
    sn_introducer *introducer;
    sn_dht_client dht_client;
    sn_port_mapping *port_mapping; /* NULL: the router was not asked */
    sn_protocol *protocol;
    sn_metrics *metrics;                /* NULL: no metrics page */
    char address[SN_ADDRESS_MAX + 1];   /* at which it listens */
    char announced[SN_ADDRESS_MAX + 1]; /* at which others reach it, as far as is known at its start */
    char toward[SN_ADDRESS_MAX + 1];    /* the first joined node; empty: not known yet */
    int64_t drain_us;
    int64_t lonely_due_us; /* when the log says that no joined node answers; 0: not set */
    bool lonely;           /* it has said so */
    atomic_int stop;       /* number of calls of sn_node_stop */
};

static sn_serving_options serving_options(const sn_node_config *config) {
    sn_serving_options options = {
        .model_path = config->model_path,
        .hub = config->hub,
        .keep_ends = config->share_bytes_per_s > 0,
        .device_placement = config->device_placement,
        .kv_dtype = config->kv_dtype,
        .prefix_cache_memory = config->prefix_cache_memory,
        .swap_to = config->swap_to,
        .swap_dir = config->swap_dir,
        .swap_memory = config->swap_memory,
        .swap_after_s = config->swap_after_s,
        .adapters = config->adapters,
        .on_plan = config->on_plan,
    };
    options.device_placement.tune_memory = config->tune_memory;
    return options;
}

static void wake_network(void *ctx) { sn_transport_wake(((sn_node *)ctx)->transport); }

/* The model's parameters and id, needed before any block is loaded. */
static sn_status node_describe_model(sn_node *node, const sn_node_config *config, sn_err *err) {
    sn_model *model = NULL;
    char path[SN_PATH_SIZE];
    sn_status status =
        sn_swarm_open_model(config->model_path, node->serving_options.swarm, config->hub, path, &model, err);
    if (status) return status;
    node->hp = *sn_model_hparams(model);
    node->model = sn_model_id(model);
    status = sn_cached_hold_path(path, &node->held, err);
    sn_model_close(&model);
    if (status) return status;
    if (!config->share_bytes_per_s || !config->swarm) return SN_OK;
    return sn_shelf_new(path, config->swarm->cache, wake_network, node, &node->shelf, err);
}

/* The node asks itself for other nodes, before those that it joined, because it knows more of them, and those may be
 * gone. */
static sn_status node_swarm_access(sn_node *node, const sn_node_config *config, sn_err *err) {
    char key[2 * SN_KEY_SIZE + 1];
    if (!config->swarm) return SN_OK;
    node->swarm = *config->swarm;
    node->serving_options.swarm = &node->swarm;
    sn_status status = sn_calloc(&node->sources, config->n_join + 1, sizeof *node->sources, err);
    if (status) return status;
    char own[SN_ADDRESS_MAX + 1];
    sn_address_of_own(node->address, own);
    snprintf(node->own_source, sizeof node->own_source, "%s#%s", own,
             sn_hex(node->identity.curve_key, SN_KEY_SIZE, key));
    node->sources[0] = node->own_source;
    for (size_t i = 0; i < config->n_join; i++) node->sources[i + 1] = config->join[i];
    node->swarm.join = node->sources;
    node->swarm.n_join = config->n_join + 1;
    return SN_OK;
}

static sn_status node_load_identity(sn_node *node, const char *path, sn_err *err) {
    return path ? sn_identity_load(path, &node->identity, err) : sn_identity_new(&node->identity, err);
}

static sn_status node_new_transport(sn_node *node, const sn_emulated_link *link, sn_err *err) {
    sn_transport *inner = NULL;
    if (sn_emulated_link_is_none(link)) return sn_transport_zmq_new(&node->identity, &node->transport, err);
    sn_status status = sn_transport_zmq_new(&node->identity, &inner, err);
    return status ? status : sn_transport_emulated_new(&inner, link, NULL, &node->transport, err);
}

static sn_status node_make_private(sn_node *node, const char *path, sn_err *err) {
    uint8_t key[SN_SWARM_KEY_SIZE];
    sn_transport *inner = node->transport;
    sn_status status = sn_swarm_key_load(path, key, err);
    if (status) return status;
    node->transport = NULL;
    status = sn_transport_private_swarm_new(&inner, &node->identity, key, &node->transport, err);
    explicit_bzero(key, sizeof key);
    return status;
}

static bool engine_submit(void *ctx, sn_job *job) {
    sn_engine *engine = ((sn_node *)ctx)->serving.engine;
    return engine && sn_engine_submit(engine, job);
}
static bool node_is_up(const sn_node *node) { return !node->loader && node->serving.engine; }
static sn_engine_stats read_stats(void *ctx) {
    const sn_node *node = ctx;
    return node_is_up(node) ? sn_engine_read(node->serving.engine) : (sn_engine_stats){0};
}

static void answer_round(void *ctx, sn_expert_round *round) {
    sn_engine *engine = ((sn_node *)ctx)->serving.engine;
    if (engine)
        sn_engine_answer_round(engine, round);
    else
        sn_expert_round_free(&round);
}

static sn_status node_listen(sn_node *node, const sn_node_config *config, sn_err *err) {
    int64_t began_us = sn_now_us();
    sn_status status = node->transport ? SN_OK : node_new_transport(node, &config->link, err);
    if (!status && config->swarm_key_path) status = node_make_private(node, config->swarm_key_path, err);
    if (status) return status;
    do status = sn_transport_listen(node->transport, config->listen, node->address, err);
    while (sn_port_may_come_free(began_us, status, err));
    return status;
}

static sn_status node_start_introducer(sn_node *node, sn_err *err) {
    return sn_introducer_new(&node->identity, node->address, wake_network, node, &node->introducer, err);
}

/* Listens for introductions at the UDP port of the same number. When --listen left the TCP port open and that UDP port
 * is in use, other ports are tried. */
static sn_status node_introduce(sn_node *node, const sn_node_config *config, sn_err *err) {
    const char *port = strrchr(config->listen, ':');
    bool any_port = port && !strcmp(port, ":0");
    int64_t began_us = sn_now_us();
    sn_status status;
    do status = node_start_introducer(node, err);
    while (!any_port && sn_port_may_come_free(began_us, status, err));
    for (int i = 1; i < PORTS_TRIED && status == SN_REFUSED && any_port; i++) {
        sn_transport_free(&node->transport);
        status = node_listen(node, config, err);
        if (!status) status = node_start_introducer(node, err);
    }
    for (size_t i = 0; i < config->n_join && !status; i++)
        status = sn_introducer_ask(node->introducer, config->join[i], err);
    return status;
}

/* A transport other than ZeroMQ has no introducer, so every address to join must include its key. */
static sn_status node_join_pinned(sn_node *node, const sn_node_config *config, sn_err *err) {
    for (size_t i = 0; i < config->n_join; i++) {
        char address[SN_ADDRESS_MAX + 1];
        uint8_t key[SN_KEY_SIZE];
        bool pinned;
        sn_status status = sn_address_parse(config->join[i], address, key, &pinned, err);
        if (status) return status;
        if (!pinned) return sn_fail(err, SN_REFUSED, "%s needs its key: write ADDRESS#KEY", config->join[i]);
        sn_protocol_join(node->protocol, address, key);
    }
    return SN_OK;
}

/* A name given with --public is looked up here, once: other programs look up no names. */
static sn_status node_name_announced(sn_node *node, const sn_node_config *config, bool numeric, sn_err *err) {
    const char *address = config->public_address ? config->public_address : node->address;
    if (numeric && config->public_address) return sn_lookup_first(address, node->announced, err);
    snprintf(node->announced, sizeof node->announced, "%s", address);
    return SN_OK;
}

/* -- what the protocol asks to find out how others reach this node */

static bool reach_local_host(void *ctx, char host[SN_ADDRESS_MAX + 1]) {
    return sn_local_host(((const sn_node *)ctx)->toward, host);
}
static void reach_map_port(void *ctx) {
    sn_node *node = ctx;
    char own[SN_ADDRESS_MAX + 1];
    sn_host_port at;
    sn_err err;
    if (!reach_local_host(ctx, own) || sn_parse_host_port(node->address, SN_HOST_PORT_LISTEN, &at, &err)) return;
    if (node->port_mapping)
        sn_port_mapping_move(node->port_mapping, own);
    else if (sn_port_mapping_new(at.port, own, wake_network, node, &node->port_mapping, &err))
        sn_log(SN_LOG_WARN, "the router is not asked", "text=%s", err.text);
}
static bool reach_mapped(void *ctx, char address[SN_ADDRESS_MAX + 1]) {
    sn_port_mapping *mapping = ((const sn_node *)ctx)->port_mapping;
    return mapping && sn_port_mapping_read(mapping, address);
}

static size_t outgoing_max(void) {
    struct rlimit descriptors = {.rlim_cur = RLIM_INFINITY};
    getrlimit(RLIMIT_NOFILE, &descriptors);
    return sn_protocol_outgoing_max((size_t)descriptors.rlim_cur);
}

/* Over a transport other than ZeroMQ there is no introducer. */
static void ask_key(void *ctx, const char *address) {
    const sn_node *node = ctx;
    if (node->introducer) sn_introducer_ask_again(node->introducer, address);
}

static sn_status node_new_protocol(sn_node *node, const sn_node_config *config, sn_err *err) {
    const sn_protocol_setup setup = {
        .transport = node->transport,
        .identity = &node->identity,
        .address = node->announced,
        .name = config->name ? config->name : "",
        .span = {.hp = &node->hp, .first = config->first, .end = config->end},
        .loading = true,
        .placement = {.auto_blocks = config->auto_blocks,
                      .expects_others = config->n_join > 0 || (node->dht_client.dht && strcmp(config->dht, "on")),
                      .rebalance_us = (int64_t)config->rebalance_every_s * 1000000,
                      .rebalance_gain = config->rebalance_gain,
                      .drain_us_max = node->drain_us ? node->drain_us : REBALANCE_DRAIN_US},
        .model = node->model,
        .sessions_max = config->sessions_max,
        .outgoing_max = outgoing_max(),
        .session_timeout_us = (int64_t)config->session_timeout_s * 1000000,
        .kv_timeout_us = (int64_t)config->kv_timeout_s * 1000000,
        .tune_bytes_max = config->tune_memory,
        .prefix_cache_shared = config->prefix_cache_shared,
        .quota = config->quota,
        .n_joined = config->n_join,
        .share = {.bytes_per_s = config->share_bytes_per_s,
                  .near_bytes_per_s = config->share_near_bytes_per_s,
                  .tunnel = config->public_address != NULL,
                  .offer = sn_shelf_offer,
                  .read = sn_shelf_read,
                  .ctx = node->shelf},
        .reach = {.listen = node->address,
                  .asks = !config->public_address && (config->n_join || config->dht),
                  .relay_bytes_per_s = config->relay_bytes_per_s,
                  .host = {reach_local_host, reach_map_port, reach_mapped, node}},
        .submit = engine_submit,
        .read_stats = read_stats,
        .answer_round = answer_round,
        .ask_key = ask_key,
        .ctx = node,
    };
    return sn_protocol_new(&setup, sn_now_us(), &node->protocol, err);
}

static sn_status node_open_dht(sn_node *node, const sn_node_config *config, sn_err *err) {
    sn_status status =
        sn_dht_open(config->dht, config->dht_port, node->model.bytes, wake_network, node, &node->dht_client.dht, err);
    if (!status) sn_log(SN_LOG_INFO, "DHT node started", "udp_port=%d", sn_dht_port(node->dht_client.dht));
    return status;
}

static sn_status node_start_metrics(sn_node *node, const sn_node_config *config, sn_err *err) {
    char id[2 * SN_KEY_SIZE + 1];
    const sn_metrics_facts facts = {sn_hex(node->identity.id, SN_KEY_SIZE, id),
                                    config->name ? config->name : "",
                                    sn_unix_ms(),
                                    wake_network,
                                    node,
                                    config->metrics_hosts,
                                    config->n_metrics_hosts};
    return sn_metrics_new(config->metrics, &facts, &node->metrics, err);
}

static sn_node_given given_of(const sn_node_stats *stats) {
    return (sn_node_given){.hours = (double)(sn_now_us() - stats->started_us) / 3.6e9,
                           .tokens = stats->tokens,
                           .sessions = stats->sessions_opened,
                           .weights_bytes = stats->shared_bytes,
                           .relayed_bytes = stats->relay.relayed_bytes};
}

static void node_publish_metrics(const sn_node *node) {
    sn_node_stats stats;
    sn_protocol_read_stats(node->protocol, &stats);
    sn_metrics_publish(node->metrics, &stats);
    if (!sn_metrics_wants_map(node->metrics)) return;
    const sn_swarm_map_view view = {node->identity.id, node->model.bytes, sn_protocol_address(node->protocol),
                                    node->hp.name,     node->hp.n_blocks, given_of(&stats)};
    char *map = NULL;
    sn_err err;
    if (sn_swarm_map(sn_protocol_directory(node->protocol), &view, &map, &err))
        sn_log(SN_LOG_WARN, "no map of the swarm", "text=%s", err.text);
    sn_metrics_publish_map(node->metrics, &map);
}

/* -- devices that are lost */

/* Tells the log, the protocol and the recovery when the engine has lost a device. */
static void node_watch_devices(sn_node *node) {
    const sn_engine_stats stats = read_stats(node);
    uint32_t new = stats.lost_devices & ~node->lost_devices;
    if (!new) return;
    node->lost_devices |= new;
    for (int i = 0; i < node->serving.device_placement.plan.n_devices; i++) {
        const sn_device *device = node->serving.device_placement.devices[i];
        char name[32];
        if (!(new >> i & 1)) continue;
        sn_log(SN_LOG_ERROR, "device lost", "device=%s blocks=%d:%d text=%s", sn_device_id_name(device->id, name),
               stats.working_first, stats.working_end, device->lost);
        sn_recovery_add(&node->recovery, device->id);
    }
    sn_recovery_pause(&node->recovery, sn_now_us());
    sn_protocol_narrow(node->protocol, stats.working_first, stats.working_end, sn_now_us(), sn_unix_ms());
}

/* Lost devices are tried again when that is due; returns when to call again. */
static int64_t node_try_devices(sn_node *node) {
    if (node->loader || !sn_recovery_needed(&node->recovery)) return INT64_MAX;
    if (sn_recovery_tick(&node->recovery, sn_now_us())) {
        if (node_is_up(node))
            sn_protocol_reload(node->protocol, sn_now_us(), sn_unix_ms());
        else
            sn_protocol_not_loaded(node->protocol, true, sn_now_us(), sn_unix_ms());
    }
    return sn_recovery_due_us(&node->recovery);
}

/* Says in the log that no joined node answers, which is a node on its own: a mistyped address, or another swarm key. A
 * node that loads its blocks for minutes says it meanwhile. Returns when to call again. */
static int64_t node_watch_joined(sn_node *node) {
    const sn_node_config *config = &node->config;
    int64_t now_us = sn_now_us();
    size_t answered = sn_protocol_bootstrap_answered(node->protocol);
    if (!node->lonely_due_us) node->lonely_due_us = now_us + LONELY_FIRST_US;
    if (!config->n_join || answered) {
        if (config->n_join && node->lonely) sn_log(SN_LOG_INFO, "joined", "nodes=%zu", answered);
        node->lonely = false;
        return INT64_MAX;
    }
    if (now_us < node->lonely_due_us) return node->lonely_due_us;
    node->lonely = true;
    node->lonely_due_us = now_us + LONELY_EVERY_US;
    sn_log(SN_LOG_WARN, "no joined node answers", "joined=%s addresses=%zu text=%s", config->join[0], config->n_join,
           config->swarm_key_path ? "this node is alone: is a node running there, is the address right, and has it the "
                                    "same --swarm-key?"
                                  : "this node is alone: is a node running there, is the address right, and is that "
                                    "swarm without a --swarm-key?");
    return node->lonely_due_us;
}

static int64_t node_watch_weights(sn_node *node) {
    if (!node->weights_watch.on || !node_is_up(node) || node->loader) return INT64_MAX;
    const sn_span_info span = sn_span_describe(node->serving.span);
    return sn_weights_watch_tick(&node->weights_watch, sn_protocol_directory(node->protocol), &node->model,
                                 node->identity.id, &span, sn_now_us(), sn_unix_ms());
}

/* Asks nodes that were found in the DHT, until enough have answered. */
static void node_join_found(sn_node *node) {
    const sn_dht_record *record;
    while (node->dht_client.dht && sn_protocol_wants_found(node->protocol, sn_now_us()) &&
           (record = sn_dht_found_next(&node->dht_client.found, false, sn_unix_ms())) &&
           sn_protocol_join_found(node->protocol, record->address, record->curve_key, sn_now_us())) {
        sn_log_rated(SN_LOG_INFO, "peer found in DHT", "address=%s", record->address);
        if (!*node->toward) snprintf(node->toward, sizeof node->toward, "%s", record->address);
    }
}

/* What is due by time; returns when to call again. */
static int64_t node_tick(sn_node *node) {
    sn_hash manifest;
    char id[2 * SN_HASH_SIZE + 1];
    if (node->shelf && sn_shelf_take(node->shelf, &manifest)) {
        sn_log(SN_LOG_INFO, "weights shared", "model=swarm:%s", sn_hex(manifest.bytes, SN_HASH_SIZE, id));
        sn_protocol_share(node->protocol, &manifest, sn_now_us(), sn_unix_ms());
    }
    int64_t devices_us = node_try_devices(node);
    int64_t protocol_us = sn_protocol_tick(node->protocol, sn_now_us(), sn_unix_ms());
    int64_t dht_us = sn_dht_client_tick(&node->dht_client, &node->identity, sn_protocol_address(node->protocol),
                                        node_is_up(node), sn_now_us(), sn_unix_ms());
    node_join_found(node);
    int64_t joined_us = node_watch_joined(node), weights_us = node_watch_weights(node);
    if (devices_us < protocol_us) protocol_us = devices_us;
    if (joined_us < protocol_us) protocol_us = joined_us;
    if (weights_us < protocol_us) protocol_us = weights_us;
    return protocol_us < dht_us ? protocol_us : dht_us;
}

/* One round of the network thread: waits for an event until the deadline, then takes what else is there, up to a limit,
 * so that an endless stream of messages does not block announcements and the end of the program. */
static sn_status node_poll(sn_node *node, int64_t deadline_us, sn_err *err) {
    bool more = true;
    sn_engine *engine = node->loader ? NULL : node->serving.engine;
    for (int i = 0; more && i < ROUND_EVENTS_MAX; i++) {
        sn_event event;
        sn_status status = sn_transport_recv(node->transport, deadline_us, &event, err);
        if (status) return status;
        more = event.peer != 0;
        deadline_us = 0;
        if (more) sn_protocol_handle(node->protocol, &event, sn_now_us(), sn_unix_ms());
        node_watch_devices(node); /* before the clients hear of it */
        for (sn_job *job; engine && (job = sn_engine_next_finished(engine));) {
            node_watch_devices(node); /* this job may be the first that failed on one */
            sn_protocol_job_done(node->protocol, job, sn_now_us());
        }
        for (sn_expert_round *round; engine && (round = sn_engine_next_round(engine));)
            sn_protocol_ask_experts(node->protocol, round, sn_now_us());
    }
    char address[SN_ADDRESS_MAX + 1];
    uint8_t key[SN_KEY_SIZE];
    while (node->introducer && sn_introducer_next(node->introducer, address, key)) {
        if (!*node->toward) snprintf(node->toward, sizeof node->toward, "%s", address);
        sn_protocol_join(node->protocol, address, key);
    }
    if (node->metrics) node_publish_metrics(node);
    return SN_OK;
}

static sn_status node_start_serving(sn_node *node, sn_err *err) {
    sn_serving *serving = &node->serving;
    sn_status status = sn_loader_join(&node->loader, err);
    if (status && sn_recovery_needed(&node->recovery)) { /* this may be the reason still: they are tried again */
        sn_log(SN_LOG_ERROR, "blocks not loaded", "text=%s", err->text);
        sn_serving_free(serving);
        sn_recovery_pause(&node->recovery, sn_now_us());
        sn_protocol_not_loaded(node->protocol, false, sn_now_us(), sn_unix_ms());
        return SN_OK;
    }
    sn_recovery_end(&node->recovery);
    node->lost_devices = 0;
    if (!status)
        status = sn_engine_new(serving->span, serving->pool, 2 * node->config.sessions_max + SN_PROTOCOL_OTHER_JOBS_MAX,
                               serving->throughput, wake_network, node, &serving->engine, err);
    if (status) return status;
    sn_span_info facts = sn_span_describe(serving->span);
    const sn_kv_room room = sn_kv_room_of(serving->pool);
    sn_log(SN_LOG_INFO, "serving",
           "blocks=%d:%d decode_us=%llu prompt_tokens_per_s=%llu step_tokens_max=%d kv_tokens=%zu swap_bytes=%zu",
           facts.first, facts.end, (unsigned long long)serving->throughput.decode_us,
           (unsigned long long)serving->throughput.prompt_tokens_per_s, facts.rows_max, room.tokens_max,
           room.swap_bytes_max);
    sn_protocol_publish_adapters(node->protocol, &serving->adapter_store);
    sn_protocol_serve(node->protocol, &facts, room, sn_now_us(), sn_unix_ms());
    if (node->shelf) sn_shelf_begin(node->shelf);
    return SN_OK;
}

/* Carries out what the protocol has decided about blocks. */
static sn_status node_apply_placement(sn_node *node, sn_progress progress, void *ctx, sn_err *err) {
    int first, end;
    if (node->loader && sn_loader_done(node->loader)) return node_start_serving(node, err);
    if (sn_protocol_wants_rebalance(node->protocol)) {
        sn_engine_free(&node->serving.engine); /* before the adapters (vacate), before the span that they lie on */
        sn_protocol_vacate(node->protocol, sn_now_us(), sn_unix_ms());
        sn_serving_free(&node->serving);
    }
    if (!sn_protocol_wants_blocks(node->protocol, &first, &end)) return SN_OK;
    sn_log(SN_LOG_INFO, "loading", "blocks=%d:%d text=they are read, hashed once and laid out", first, end);
    const sn_load_request request = {&node->serving_options, first, end, progress, ctx};
    return sn_loader_start(&node->serving, &request, wake_network, node, &node->loader, err);
}

/* Runs the loop until the blocks are served, or startup->stop is set. */
static sn_status node_bring_up(sn_node *node, sn_progress progress, void *ctx, sn_err *err) {
    sn_node_startup *startup = node->config.startup;
    sn_status status = SN_OK;
    if (startup) atomic_store(&startup->up, true);
    while (!status && !node_is_up(node) && !(startup && atomic_load(&startup->stop))) {
        int64_t next_us = node_tick(node), soon_us = sn_now_us() + LEAVE_WAIT_US;
        status = node_apply_placement(node, progress, ctx, err);
        if (!status && !node_is_up(node)) status = node_poll(node, next_us < soon_us ? next_us : soon_us, err);
    }
    if (status || !startup || !atomic_load(&startup->stop)) return status;
    sn_protocol_leave(node->protocol, sn_unix_ms());
    status = node_poll(node, sn_now_us() + LEAVE_WAIT_US, err);
    atomic_store(&startup->left, true);
    return status;
}

sn_status sn_node_new(const sn_node_config *config, sn_transport **transport, sn_progress progress, void *ctx,
                      sn_node **out, sn_err *err) {
    sn_node *node = NULL;
    sn_status status = sn_calloc(&node, 1, sizeof *node, err);
    if (status) return status;
    node->config = *config;
    node->serving_options = serving_options(config);
    node->drain_us = (int64_t)config->drain_timeout_s * 1000000;
    node->held = -1;
    node->weights_watch.on = config->hub && sn_model_name_is_remote(config->model_path);
    node->recovery.options = config->device_placement.device_options;
    node->recovery.wake = wake_network;
    node->recovery.ctx = node;
    bool by_introduction = !transport; /* other transports get the keys with the addresses */
    if (transport) {
        node->transport = *transport;
        *transport = NULL;
    }
    status = node_load_identity(node, config->identity_path, err);
    if (!status) status = node_listen(node, config, err);
    if (!status && by_introduction) status = node_introduce(node, config, err);
    if (!status) status = node_name_announced(node, config, by_introduction, err);
    if (!status && config->metrics) status = node_start_metrics(node, config, err);
    if (!status) status = node_swarm_access(node, config, err);
    if (!status) status = node_describe_model(node, config, err);
    if (!status && config->dht && by_introduction) status = node_open_dht(node, config, err);
    if (!status) status = node_new_protocol(node, config, err);
    if (!status && !by_introduction) status = node_join_pinned(node, config, err);
    if (!status) status = node_bring_up(node, progress, ctx, err);
    if (status) sn_node_free(&node);
    *out = node;
    return status;
}

void sn_node_free(sn_node **node) {
    sn_node *n = *node;
    sn_err err;
    if (!n) return;
    sn_metrics_free(&n->metrics);
    sn_dht_close(&n->dht_client.dht); /* it wakes the transport */
    if (sn_loader_join(&n->loader, &err)) sn_log(SN_LOG_INFO, "blocks not loaded", "text=%s", err.text);
    sn_recovery_end(&n->recovery);      /* it wakes the transport */
    sn_engine_free(&n->serving.engine); /* from here on no other thread touches span, pool and sessions */
    sn_cached_release(&n->held);
    sn_shelf_free(&n->shelf); /* its thread wakes the transport */
    sn_protocol_free(&n->protocol);
    sn_introducer_free(&n->introducer);     /* it wakes the transport */
    sn_port_mapping_free(&n->port_mapping); /* likewise */
    sn_transport_free(&n->transport);
    sn_serving_free(&n->serving);
    free(n->sources);
    free(n);
    *node = NULL;
}

/* Serves until every session has migrated, the time limit is reached, or sn_node_stop is called again. */
static sn_status node_drain(sn_node *node, sn_err *err) {
    sn_status status = SN_OK;
    int64_t until = sn_now_us() + node->drain_us;
    sn_protocol_drain(node->protocol, sn_unix_ms());
    while (!status && sn_protocol_session_count(node->protocol) && sn_now_us() < until &&
           atomic_load(&node->stop) == 1) {
        int64_t next = sn_protocol_tick(node->protocol, sn_now_us(), sn_unix_ms());
        status = node_poll(node, next < until ? next : until, err);
    }
    if (sn_protocol_session_count(node->protocol))
        sn_log(SN_LOG_WARN, "sessions not migrated", "sessions=%zu", sn_protocol_session_count(node->protocol));
    return status;
}

static void log_given(const sn_node *node) {
    sn_node_stats stats;
    char weights[32], relayed[32];
    sn_protocol_read_stats(node->protocol, &stats);
    const sn_node_given given = given_of(&stats);
    sn_log(SN_LOG_INFO, "given since the start", "hours=%.2f tokens=%llu sessions=%llu weights=\"%s\" relayed=\"%s\"",
           given.hours, (unsigned long long)given.tokens, (unsigned long long)given.sessions,
           sn_format_size(given.weights_bytes, weights), sn_format_size(given.relayed_bytes, relayed));
}

sn_status sn_node_run(sn_node *node, sn_err *err) {
    sn_status status = SN_OK;
    if (node->metrics) node_publish_metrics(node);
    while (!status && !atomic_load(&node->stop)) {
        int64_t next_us = node_tick(node);
        status = node_apply_placement(node, NULL, NULL, err);
        if (!status) status = node_poll(node, next_us, err);
    }
    if (!status && node->drain_us) status = node_drain(node, err);
    log_given(node);
    if (status) return status;
    sn_protocol_leave(node->protocol, sn_unix_ms());
    int64_t until = sn_now_us() + LAST_STEPS_WAIT_US;
    while (!status && sn_protocol_busy(node->protocol) && sn_now_us() < until && atomic_load(&node->stop) == 1)
        status = node_poll(node, sn_now_us() + FLUSH_US, err);
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
size_t sn_node_joined(const sn_node *node) { return sn_protocol_bootstrap_answered(node->protocol); }
const char *sn_node_announced(const sn_node *node) { return sn_protocol_address(node->protocol); }
int sn_node_metrics_port(const sn_node *node) { return node->metrics ? sn_metrics_port(node->metrics) : 0; }
size_t sn_node_weight_bytes(const sn_node *node) { return sn_span_weight_bytes(node->serving.span); }
size_t sn_node_kv_tokens(const sn_node *node) { return sn_kv_pool_tokens(node->serving.pool); }
const sn_span *sn_node_span(const sn_node *node) { return node->serving.span; }
