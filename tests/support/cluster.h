/* A swarm in one process: real nodes with their threads, over the in-memory transport and under the virtual clock.
 * For tests. Every function ends the process with a message when a prerequisite is missing. Functions are called by
 * the test's thread only. */
#ifndef SN_TESTS_CLUSTER_H
#define SN_TESTS_CLUSTER_H

#include "client/chain/chain.h"
#include "node/node.h"
#include "tests/support/memory_transport.h"

typedef struct cluster cluster;

typedef struct cluster_options {
    const char *model;               /* path */
    const char *isa;                 /* NULL: the best */
    const char *device, *device_map; /* NULL: cpu; none */
    const char *device_memory;       /* as of --device-memory; NULL: none */
    int threads;                     /* 0: 1 */
    int batch_rows;                  /* of sn_device_options; 0: the device's own */
    size_t kv_memory;                /* 0: 64 MiB */
    size_t tune_memory;              /* 0: none */
    const char *adapters;            /* folder of the adapters that nodes publish; NULL: none */
    int sessions_max;                /* 0: 64 */
    int kv_timeout_s;                /* 0: 1 */
    int drain_timeout_s;             /* 0: nodes that are stopped leave at once */
    sn_quota_limits quota;
    const char *swarm_key; /* path; NULL: none. Links of cluster_link have no key */
    sn_kv_dtype kv_dtype;
    size_t prefix_cache_memory; /* 0: no prefix cache */
    bool prefix_cache_shared;
    sn_residence swap_to; /* SN_ON_DEVICE: no KV cache is swapped out */
    const char *swap_dir;
    size_t swap_memory;
    int swap_after_s;
} cluster_options;

cluster *cluster_new(const cluster_options *options);
void cluster_free(cluster **c);

/* Starts a node for blocks [first, end) (end 0: all) that joins node 0. Returns its number. */
int cluster_add(cluster *c, int first, int end);
int cluster_add_of(cluster *c, const char *model, int first, int end); /* of another model file */
/* A node with experts [experts.first, experts.end) of each mixture. */
int cluster_add_part(cluster *c, int first, int end, sn_expert_range experts);
const sn_node *cluster_node(const cluster *c, int number);
int cluster_count(const cluster *c);

/* Nodes that are added later compute with this instruction set (NULL: the best) and number of threads. */
void cluster_compute_with(cluster *c, const char *isa, int threads);
/* Nodes that are added later have devices with these batch_rows; 0: the device's own. */
void cluster_batch_rows(cluster *c, int rows);

/* Cuts the node off for good: no message reaches it or comes from it. */
void cluster_cut_off(cluster *c, int number);
/* The same from the n-th STEP on that is sent to the node (1: the next one). */
void cluster_cut_off_at_step(cluster *c, int number, int n);
/* The node to which the next EXPERTS goes is cut off from it on; cluster_cut_off_number says which one it was. */
void cluster_cut_off_next_holder(cluster *c);
int cluster_cut_off_number(const cluster *c); /* -1: none yet */
/* Delivers every message to and from the node twice. */
void cluster_duplicate_messages(cluster *c, int number);
/* Ends the node as SIGTERM does, and waits until it has ended. */
void cluster_stop(cluster *c, int number);
/* The same, and its connections are lost; no link may be opened to the cluster after that. */
void cluster_kill(cluster *c, int number);
/* Ends the node, and starts it again with the same identity, address and blocks. */
void cluster_restart(cluster *c, int number);
void cluster_drain(cluster *c, int number); /* as cluster_stop, without waiting */
bool cluster_has_left(const cluster *c, int number);

/* The number of the node that serves a block of the chain; -1: no node of the cluster does. */
int cluster_node_of_block(const sn_chain *chain, int block);

sn_hub *cluster_hub(cluster *c);
/* Opens a link that knows all nodes. Free with sn_link_close, before the cluster. */
sn_link *cluster_link(cluster *c);
/* Makes a transport with an identity of its own, for tests that speak the protocol by hand; free with
 * sn_transport_free. */
sn_transport *cluster_transport(cluster *c, sn_identity *identity);
sn_transport *cluster_transport_as(cluster *c, const sn_identity *identity); /* the same with a given identity */

#endif
