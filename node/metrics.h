/* Metrics for Prometheus: a small HTTP server with a thread of its own, which answers GET /metrics with the newest
 * figures that the network thread has put there. The text format is
 * https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4. */
#ifndef SN_NODE_METRICS_H
#define SN_NODE_METRICS_H

#include "base/mem.h"
#include "node/figures.h"

/* What does not change while the node runs. */
typedef struct sn_metrics_facts {
    const char *node, *name; /* id in hexadecimal; what its owner calls it; copied */
    int64_t started_unix_ms;
} sn_metrics_facts;

typedef struct sn_metrics sn_metrics;

/* `address`: "PORT" (of this machine only), "HOST:PORT", "[::1]:PORT"; port 0 picks one. SN_REFUSED when it is no
 * address, SN_RETRY when one cannot listen there. */
sn_status sn_metrics_new(const char *address, const sn_metrics_facts *facts, sn_metrics **out, sn_err *err) SN_MUST_USE;
void sn_metrics_free(sn_metrics **metrics); /* NULL-safe */
int sn_metrics_port(const sn_metrics *metrics);

/* From the network thread: never waits; figures that come while others are being read are left out. */
void sn_metrics_publish(sn_metrics *metrics, const sn_figures *figures);

/* The page. */
sn_status sn_metrics_write(const sn_metrics_facts *facts, const sn_figures *figures, sn_buf *out,
                           sn_err *err) SN_MUST_USE;

#endif
