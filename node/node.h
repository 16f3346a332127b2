/* A node: a span of blocks served to the network. Puts together model, device, span, engine, transport and core, and runs
 * the network thread's loop. */
#ifndef SN_NODE_NODE_H
#define SN_NODE_NODE_H

#include "node/placing.h"
#include "node/quota.h"
#include "net/shaped.h"

#include <stdatomic.h>

typedef struct sn_node_config {
    const char *model_path;
    int first, end;              /* blocks; equal: from first on as many as fit */
    int auto_blocks;             /* the node chooses so many itself, by what the swarm lacks; 0: first, end */
    int rebalance_every_s;       /* how often it then thinks of moving, about; 0: never */
    int rebalance_gain;          /* per cent that the swarm's slowest block must gain by that */
    const char *listen;          /* "tcp://127.0.0.1:0" */
    const char *public_address;  /* what is announced instead of where we listen, NULL: that */
    const char *const *join;
    size_t n_join;
    const char *dht;             /* "HOST:PORT" of a node of the table of first contacts, "on", or NULL: not used */
    int dht_port;                /* UDP, 0: any */
    const char *identity_path;   /* NULL: a fresh one for this run */
    sn_quota_limits quota;       /* of each client */
    const char *swarm_key_path;  /* of a private swarm (net/members.h); NULL: everybody is heard */
    sn_shape link;               /* emulated, for measurements; zero: none. Not over a given transport */
    const char *name;
    sn_placing_wish placing;     /* devices, and which block goes where */
    size_t sessions_max;
    int session_timeout_s, room_timeout_s;
    sn_kv_dtype kv_dtype;        /* what keys and values are kept as */
    size_t prefix_memory;        /* for what sessions with the same beginning share; 0: they share nothing */
    const char *idle_to;         /* where sessions rest that have no step: NULL (in the cache), "host" or "disk" */
    const char *idle_dir;        /* for disk */
    size_t idle_memory;          /* bytes there */
    int idle_after_s;            /* 0: only when others need the room */
    size_t tune_memory;          /* for training through these blocks; 0: none is done */
    const char *adapters;        /* folder of those that are published; NULL: none */
    bool share_all;              /* beginnings are shared among all clients, not only among a client's own sessions */
    const char *metrics;         /* where to answer Prometheus: "[HOST:]PORT"; NULL: nowhere */
    int drain_timeout_s;         /* how long it serves on when it is stopped, for its sessions to be moved; 0: not at all */
    struct sn_node_early *early; /* NULL: nobody asks it to stop before it is up */
    void (*planned)(const char *table); /* told the placement before anything is loaded; may be NULL */
} sn_node_config;

/* For whoever may have to end a node that is not up yet. `stop` is set by him; then the node says goodbye, sets `left`, and
 * sn_node_new returns, maybe with a load still under way that sn_node_free would wait for. `up`: there is something to say
 * goodbye to. */
typedef struct sn_node_early {
    atomic_bool up, stop, left;
} sn_node_early;

typedef struct sn_node sn_node;

/* Listens, announces that it joins, chooses its blocks if it is to, and loads the span (progress may be NULL), answering
 * meanwhile. `transport`: taken, NULL for ZeroMQ; tests give another. What `config` points to must outlive a node that may move. */
sn_status sn_node_new(const sn_node_config *config, sn_transport **transport, sn_progress progress, void *ctx,
                      sn_node **out, sn_err *err) SN_MUST_USE;
void sn_node_free(sn_node **node); /* NULL-safe; after run has returned */

/* Serves until sn_node_stop, then takes no new session and serves on until those it has were moved to other nodes
 * (drain_timeout_s at most), ends the steps in hand (4 s at most) and returns. */
sn_status sn_node_run(sn_node *node, sn_err *err) SN_MUST_USE;
void sn_node_stop(sn_node *node); /* from any thread; a second time: at once */
bool sn_node_loading(const sn_node *node); /* blocks are being loaded: sn_node_free would wait for that */

const char *sn_node_address(const sn_node *node);
const uint8_t *sn_node_id(const sn_node *node);        /* SN_KEY_SIZE bytes */
const uint8_t *sn_node_curve_key(const sn_node *node); /* SN_KEY_SIZE bytes */
int sn_node_metrics_port(const sn_node *node);         /* 0: none */
size_t sn_node_weight_bytes(const sn_node *node);
size_t sn_node_kv_tokens(const sn_node *node); /* positions that the cache holds in all */
const sn_span *sn_node_span(const sn_node *node);

#endif
