/* Ping statistics: the round trip times to other nodes and the bandwidth towards them, as a node's PINGs measured
 * them. Plain data and logic without I/O: the caller reports what was sent and answered, and when. A part of
 * sn_membership. */
#ifndef SN_NODE_MEMBERSHIP_PING_STATS_H
#define SN_NODE_MEMBERSHIP_PING_STATS_H

#include "net/directory.h"
#include "net/transport/transport.h"

enum { SN_PINGS_PENDING_MAX = 16, SN_PING_PEERS_MAX = 64, SN_PING_RATES_MAX = 9 };

typedef struct sn_ping_stats {
    struct sn_pending_ping {
        sn_peer peer; /* 0: this slot is free */
        uint64_t correlation_id, node, bytes;
        int64_t sent_us;
    } pending[SN_PINGS_PENDING_MAX]; /* ring: a new PING replaces the oldest */
    size_t next_pending;
    struct {
        uint64_t node, rtt_us; /* node: its tag; rtt_us: running mean with weight 1/4 for the newest */
        int64_t updated_us;
    } peers[SN_PING_PEERS_MAX];
    size_t n_peers;
    uint64_t rates[SN_PING_RATES_MAX], n_rates; /* bytes per second; ring of the newest */
} sn_ping_stats;

/* A PING with `bytes` of padding (0: none) was sent to the node with this tag (sn_node_tag). */
void sn_ping_stats_sent(sn_ping_stats *stats, sn_peer peer, uint64_t correlation_id, uint64_t node, uint64_t bytes,
                        int64_t now_us);
/* Its PONG arrived. A PONG that answers no pending PING is ignored. */
void sn_ping_stats_answered(sn_ping_stats *stats, sn_peer peer, uint64_t correlation_id, int64_t now_us);

uint64_t sn_ping_stats_rtt_us(const sn_ping_stats *stats, uint64_t node); /* round trip; 0: not measured */
uint64_t sn_ping_stats_bytes_per_s(const sn_ping_stats *stats);           /* median of the newest; 0: not measured */
/* Writes the newest round trips into an announcement. */
void sn_ping_stats_announce(const sn_ping_stats *stats, sn_announcement *a);

#endif
