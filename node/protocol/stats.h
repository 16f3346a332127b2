/* Statistics of a node: plain numbers, copied out of the protocol on the network thread, shown by node/metrics.h. */
#ifndef SN_NODE_PROTOCOL_STATS_H
#define SN_NODE_PROTOCOL_STATS_H

#include "base/err.h"
#include "net/transport/portal.h"
#include "node/engine/engine.h"
#include "node/protocol/quota.h"

/* Counts per interval; counts[i] has what exceeds bound i - 1 and not bound i, the last one what exceeds all bounds. */
enum { SN_HISTOGRAM_BOUNDS = 14 };
extern const int64_t SN_HISTOGRAM_BOUNDS_US[SN_HISTOGRAM_BOUNDS];
typedef struct sn_histogram {
    uint64_t counts[SN_HISTOGRAM_BOUNDS + 1], sum_us;
} sn_histogram;
void sn_histogram_add(sn_histogram *histogram, int64_t us);

/* Experts of a group of nodes, since the start. */
typedef struct sn_expert_counters {
    uint64_t pairs_asked, pairs_computed; /* of other nodes, for other nodes */
    uint64_t rounds, failed, dropped;     /* failed: of the rounds; dropped: holders that did not answer */
} sn_expert_counters;

typedef struct sn_node_stats {
    char model[128]; /* name */
    int first, end;  /* blocks served */
    sn_engine_stats engine;
    uint64_t kv_bytes_max, swap_bytes_max, weight_bytes, sessions, sessions_max, draining;
    int64_t started_us; /* sn_now_us of the start, since when are counted: */
    uint64_t steps, tokens, sessions_opened;
    uint64_t shared_bytes;                   /* of the model's files, given to others */
    uint64_t sessions_migrated;              /* sessions whose KV pages another node received */
    uint64_t refusals[SN_STOP + 1];          /* ERRORs sent, by their status */
    uint64_t quota_refusals[SN_QUOTA_KINDS]; /* those that a quota caused */
    uint64_t announcements, joined,
        bootstrap_peers; /* live announcements known; addresses joined; who answered there */
    sn_expert_counters experts;
    uint64_t experts_first, experts_end, n_experts; /* held of each mixture; zeros: there is none */
    uint64_t experts_missing;                       /* 1: some are held by no node that it knows */
    sn_portal_stats relay;                          /* zeros over a transport without a portal */
    sn_histogram step,
        queue; /* of each step: from arrival to reply, and from arrival to the start of its computation */
} sn_node_stats;

#endif
