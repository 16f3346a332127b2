/* A node: a span of blocks that is served to the network.
 *
 * sn_node puts together transport, protocol, engine, loader, DHT client and metrics, and runs the loop of the network
 * thread. The thread that calls sn_node_new and sn_node_run is the network thread; sn_node_stop may be called on any
 * thread. The swarm-node program (main.c) and tests use it. */
#ifndef SN_NODE_NODE_H
#define SN_NODE_NODE_H

#include "node/placement/device_placement.h"
#include "node/protocol/quota.h"
#include "sharing/peers/swarm_model.h"
#include "net/transport/emulated_link.h"

#include <stdatomic.h>

typedef struct sn_node_config {
    const char *model_path;        /* or a name, if hub is given */
    const sn_hub_settings *hub;    /* how models are fetched by name; NULL: they are paths. Borrowed */
    const sn_swarm_access *swarm;  /* how models are fetched from other nodes; NULL: they are not. Copied */
    size_t share_bytes_per_s;      /* at which the node gives its model's files to others; 0: not at all */
    size_t share_near_bytes_per_s; /* and to machines of its own network; 0: at the same rate */
    int first, end;                /* blocks; equal: from first on as many as fit */
    int auto_blocks;               /* the node selects so many blocks itself; 0: it serves first, end */
    int rebalance_every_s;      /* with auto_blocks: mean time between two considerations of other blocks; 0: never */
    int rebalance_gain;         /* per cent by which the swarm's slowest block must become faster */
    const char *listen;         /* "127.0.0.1:0" */
    const char *public_address; /* announced instead of the address it listens at; NULL: that one */
    int64_t relay_bytes_per_s;  /* that it passes on for nodes behind routers; 0: it is no relay */
    const char *const *join;    /* addresses of bootstrap peers */
    size_t n_join;
    const char *dht;            /* "HOST:PORT" of a DHT node, "on": be the first DHT node, NULL: no DHT */
    int dht_port;               /* UDP, 0: any */
    const char *identity_path;  /* NULL: a new identity for this run */
    sn_quota_limits quota;      /* of each client */
    const char *swarm_key_path; /* of a private swarm (net/transport/private_swarm.h); NULL: the swarm is open */
    sn_emulated_link link;      /* emulated, for measurements; zero: none. Ignored with a given transport */
    const char *name;           /* for people */
    sn_device_placement_options device_placement; /* devices, and which block goes where */
    size_t sessions_max;
    int session_timeout_s, kv_timeout_s;
    sn_kv_dtype kv_dtype;             /* of keys and values in the KV pool */
    size_t prefix_cache_memory;       /* host memory of the prefix cache; 0: none */
    sn_residence swap_to;             /* where KV caches of idle sessions go; SN_ON_DEVICE: they stay */
    const char *swap_dir;             /* for disk */
    size_t swap_memory;               /* bytes there at most */
    int swap_after_s;                 /* idle time before that; 0: only when others need its pages */
    size_t tune_memory;               /* bytes for training through these blocks; 0: the node does not train */
    const char *adapters;             /* folder of the adapters that are published; NULL: none */
    bool prefix_cache_shared;         /* prefixes are shared between clients, not only within one client */
    const char *metrics;              /* address of the metrics page: "[HOST:]PORT"; NULL: none */
    const char *const *metrics_hosts; /* names by which it may be asked, beside addresses */
    size_t n_metrics_hosts;
    int drain_timeout_s; /* how long it serves after sn_node_stop, so that sessions can migrate; 0: not at all */
    struct sn_node_startup *startup;    /* NULL: it is not asked to stop while it starts */
    void (*on_plan)(const char *table); /* receives the plan as text before anything is loaded; may be NULL */
} sn_node_config;

/* Stops a node while sn_node_new is still running. Another thread sets `stop`; then the node announces that it leaves,
 * sets `left`, and sn_node_new returns, possibly with a load in progress, for which sn_node_free would wait. `up`: the
 * node may have announced itself. */
typedef struct sn_node_startup {
    atomic_bool up, stop, left;
} sn_node_startup;

typedef struct sn_node sn_node;

/* Listens, announces that it joins, selects its blocks if config->auto_blocks says so, and loads the span (progress
 * may be NULL) while it answers messages. `transport`: taken; NULL: ZeroMQ. What `config` points to must outlive
 * the node. */
sn_status sn_node_new(const sn_node_config *config, sn_transport **transport, sn_progress progress, void *ctx,
                      sn_node **out, sn_err *err) SN_MUST_USE;
void sn_node_free(sn_node **node); /* accepts NULL; after sn_node_run has returned */

/* Serves until sn_node_stop. Then it drains: opens no session, and serves until its sessions have migrated (at most
 * drain_timeout_s). Then it finishes the steps in the engine (at most 4 s) and returns. */
sn_status sn_node_run(sn_node *node, sn_err *err) SN_MUST_USE;
void sn_node_stop(sn_node *node);          /* from any thread; a second call ends the drain at once */
bool sn_node_loading(const sn_node *node); /* blocks are being loaded: sn_node_free would wait */

const char *sn_node_address(const sn_node *node);      /* at which it listens */
const char *sn_node_announced(const sn_node *node);    /* at which others reach it */
size_t sn_node_joined(const sn_node *node);            /* joined nodes that have answered */
const uint8_t *sn_node_id(const sn_node *node);        /* SN_KEY_SIZE bytes */
const uint8_t *sn_node_curve_key(const sn_node *node); /* SN_KEY_SIZE bytes */
int sn_node_metrics_port(const sn_node *node);         /* 0: none */
size_t sn_node_weight_bytes(const sn_node *node);
size_t sn_node_kv_tokens(const sn_node *node); /* capacity of the KV pool in tokens */
const sn_span *sn_node_span(const sn_node *node);

#endif
