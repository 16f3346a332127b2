/* A swarm inside the process: real nodes with their threads, over the in-memory transport. For tests. Every function ends
 * the process with a message when what it needs cannot be had. */
#ifndef SN_TESTS_CLUSTER_H
#define SN_TESTS_CLUSTER_H

#include "client/chain.h"
#include "node/node.h"

typedef struct cluster cluster;

typedef struct cluster_options {
    const char *model;   /* path */
    const char *isa;     /* NULL: the best */
    const char *device, *device_map; /* NULL: cpu; none */
    int threads;         /* 0: 1 */
    size_t kv_memory;    /* 0: 64 MiB */
    size_t tune_memory;  /* 0: none */
    int sessions_max;    /* 0: 64 */
    int room_timeout_s;  /* 0: 1 */
    int drain_timeout_s; /* 0: nodes that are stopped leave at once */
    sn_quota_limits quota;
    const char *swarm_key; /* path; NULL: none. The links made here have none either way */
    sn_kv_dtype kv_dtype;
    size_t prefix_memory; /* 0: sessions share nothing, each computes for itself */
    bool share_all;
    const char *idle_to, *idle_dir; /* NULL: nothing is set aside */
    size_t idle_memory;
    int idle_after_s;
} cluster_options;

cluster *cluster_new(const cluster_options *options);
void cluster_free(cluster **c);

/* Starts a node for blocks [first, end) (end 0: all); it joins the first one. Returns its number. */
int cluster_add(cluster *c, int first, int end);
int cluster_add_of(cluster *c, const char *model, int first, int end); /* of another file */
const sn_node *cluster_node(const cluster *c, int number);
int cluster_count(const cluster *c);

/* Nodes that are added from now on compute so. isa NULL: the best. */
void cluster_compute_with(cluster *c, const char *isa, int threads);

/* From now on nothing reaches the node or comes from it: as if its cable were cut. */
void cluster_cut_off(cluster *c, int number);
/* The same from the n-th STEP on that is sent to it (1: the next one). */
void cluster_cut_off_at_step(cluster *c, int number, int n);
/* Lets every message to and from the node through, twice. */
void cluster_double(cluster *c, int number);
/* Ends the node as SIGTERM does, and waits until it has. */
void cluster_stop(cluster *c, int number);
/* Ends it, and starts it anew with the same identity, address and blocks. */
void cluster_restart(cluster *c, int number);
void cluster_drain(cluster *c, int number); /* the same without waiting */
bool cluster_has_left(const cluster *c, int number);

/* The number of the node that serves a block of the chain; -1: none here does. */
int cluster_holder(const sn_chain *chain, int block);

sn_hub *cluster_hub(cluster *c);
/* A link that knows all nodes. Free with sn_link_close, before the cluster. */
sn_link *cluster_link(cluster *c);
/* A transport and identity of its own, for tests that speak the protocol by hand; free with sn_transport_free. */
sn_transport *cluster_transport(cluster *c, sn_identity *identity);
sn_transport *cluster_transport_as(cluster *c, const sn_identity *identity); /* the same, with a given one */

#endif
