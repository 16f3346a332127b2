/* Metrics for Prometheus: an HTTP server on a thread of its own that answers GET /metrics.
 *
 * sn_metrics holds a copy of the newest statistics, which the network thread publishes after each round of its loop.
 * The text format is https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4. */
#ifndef SN_NODE_METRICS_H
#define SN_NODE_METRICS_H

#include "base/mem.h"
#include "node/protocol/stats.h"

/* Facts that do not change while the node runs. */
typedef struct sn_metrics_facts {
    const char *node, *name; /* id in hexadecimal; name for people; both are copied */
    int64_t started_unix_ms;
} sn_metrics_facts;

typedef struct sn_metrics sn_metrics;

/* `address`: "PORT" (reachable from this machine only), "HOST:PORT" or "[::1]:PORT"; port 0: any free one. SN_REFUSED:
 * it is not an address; SN_RETRY: the server cannot listen there. */
sn_status sn_metrics_new(const char *address, const sn_metrics_facts *facts, sn_metrics **out, sn_err *err) SN_MUST_USE;
void sn_metrics_free(sn_metrics **metrics); /* accepts NULL */
int sn_metrics_port(const sn_metrics *metrics);

/* On the network thread. Never waits: while the server copies the statistics, new ones are skipped. */
void sn_metrics_publish(sn_metrics *metrics, const sn_node_stats *stats);

/* Writes the page. */
sn_status sn_metrics_write(const sn_metrics_facts *facts, const sn_node_stats *stats, sn_buf *out,
                           sn_err *err) SN_MUST_USE;

#endif
