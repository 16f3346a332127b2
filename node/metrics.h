/* The HTTP server of a node, on a thread of its own: metrics for Prometheus (/metrics), and the map of the swarm for
 * people (/swarm, a page of gateway/pages, with its data at /api/swarm). It only reads.
 *
 * sn_metrics holds a copy of the newest statistics, which the network thread publishes after each round of its loop,
 * and of the map, which the network thread makes when a browser asks: at most once a second. The format of the metrics
 * is https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4. */
#ifndef SN_NODE_METRICS_H
#define SN_NODE_METRICS_H

#include "base/mem.h"
#include "node/protocol/stats.h"

/* Facts that do not change while the node runs. */
typedef struct sn_metrics_facts {
    const char *node, *name; /* id in hexadecimal; name for people; both are copied */
    int64_t started_unix_ms;
    /* Called on the server's thread when the map is asked for: wakes the network thread. NULL: there is no map. */
    void (*wake)(void *ctx);
    void *ctx;
    const char *const *hosts; /* names in the header Host that it answers to, beside addresses; borrowed */
    size_t n_hosts;
} sn_metrics_facts;

typedef struct sn_metrics sn_metrics;

/* `address`: "PORT" (reachable from this machine only), "HOST:PORT" or "[::1]:PORT"; port 0: any free one. SN_REFUSED:
 * it is not an address; SN_RETRY: the server cannot listen there. */
sn_status sn_metrics_new(const char *address, const sn_metrics_facts *facts, sn_metrics **out, sn_err *err) SN_MUST_USE;
void sn_metrics_free(sn_metrics **metrics); /* accepts NULL */
int sn_metrics_port(const sn_metrics *metrics);

/* On the network thread. Never waits: while the server copies the statistics, new ones are skipped. */
void sn_metrics_publish(sn_metrics *metrics, const sn_node_stats *stats);

/* Whether the map is asked for. On the network thread, which then publishes it (sn_swarm_map): *json is taken. */
bool sn_metrics_wants_map(const sn_metrics *metrics);
void sn_metrics_publish_map(sn_metrics *metrics, char **json);

/* Writes the page of the metrics. */
sn_status sn_metrics_write(const sn_metrics_facts *facts, const sn_node_stats *stats, sn_buf *out,
                           sn_err *err) SN_MUST_USE;

#endif
