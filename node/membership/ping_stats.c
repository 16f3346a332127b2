#include "node/membership/ping_stats.h"

#include <string.h>

void sn_ping_stats_sent(sn_ping_stats *stats, sn_peer peer, uint64_t correlation_id, uint64_t node, uint64_t bytes,
                        int64_t now_us) {
    stats->pending[stats->next_pending++ % SN_PINGS_PENDING_MAX] =
        (struct sn_pending_ping){peer, correlation_id, node, bytes, now_us};
}

static size_t peer_find(const sn_ping_stats *stats, uint64_t node) {
    size_t i = 0;
    while (i < stats->n_peers && stats->peers[i].node != node) i++;
    return i;
}

/* The index of the node's entry. A new entry replaces the one that was updated longest ago when the table is full. */
static size_t peer_find_or_add(sn_ping_stats *stats, uint64_t node) {
    size_t i = peer_find(stats, node), oldest = 0;
    if (i < stats->n_peers) return i;
    if (stats->n_peers < SN_PING_PEERS_MAX) {
        i = stats->n_peers++;
    } else {
        for (size_t k = 1; k < stats->n_peers; k++)
            if (stats->peers[k].updated_us < stats->peers[oldest].updated_us) oldest = k;
        i = oldest;
    }
    stats->peers[i].node = node;
    stats->peers[i].rtt_us = 0;
    return i;
}

void sn_ping_stats_answered(sn_ping_stats *stats, sn_peer peer, uint64_t correlation_id, int64_t now_us) {
    for (size_t i = 0; i < SN_PINGS_PENDING_MAX; i++) {
        struct sn_pending_ping ping = stats->pending[i];
        if (!ping.peer || ping.peer != peer || ping.correlation_id != correlation_id) continue;
        stats->pending[i].peer = 0;
        uint64_t took = now_us > ping.sent_us ? (uint64_t)(now_us - ping.sent_us) : 1;
        if (ping.bytes) { /* the time beyond an unpadded round trip is the transfer time of the padding */
            uint64_t round_trip = sn_ping_stats_rtt_us(stats, ping.node);
            uint64_t us = took > round_trip ? took - round_trip : 1;
            stats->rates[stats->n_rates++ % SN_PING_RATES_MAX] = ping.bytes * 1000000 / us;
            return;
        }
        size_t at = peer_find_or_add(stats, ping.node);
        stats->peers[at].rtt_us = stats->peers[at].rtt_us ? (3 * stats->peers[at].rtt_us + took + 3) / 4 : took;
        stats->peers[at].updated_us = now_us;
        return;
    }
}

uint64_t sn_ping_stats_rtt_us(const sn_ping_stats *stats, uint64_t node) {
    size_t i = peer_find(stats, node);
    return i < stats->n_peers ? stats->peers[i].rtt_us : 0;
}

uint64_t sn_ping_stats_bytes_per_s(const sn_ping_stats *stats) {
    uint64_t sorted[SN_PING_RATES_MAX];
    size_t n = 0, have = stats->n_rates < SN_PING_RATES_MAX ? (size_t)stats->n_rates : SN_PING_RATES_MAX;
    for (; n < have; n++) {
        size_t at = n;
        for (; at && sorted[at - 1] > stats->rates[n]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = stats->rates[n];
    }
    return n ? sorted[n / 2] : 0;
}

void sn_ping_stats_announce(const sn_ping_stats *stats, sn_announcement *a) {
    bool announced[SN_PING_PEERS_MAX] = {0};
    for (a->n_round_trip = 0; a->n_round_trip < SN_ROUND_TRIPS_MAX && a->n_round_trip < stats->n_peers;
         a->n_round_trip++) {
        size_t newest = stats->n_peers;
        for (size_t i = 0; i < stats->n_peers; i++)
            if (!announced[i] &&
                (newest == stats->n_peers || stats->peers[i].updated_us > stats->peers[newest].updated_us))
                newest = i;
        announced[newest] = true;
        a->round_trip[a->n_round_trip] = (struct sn_round_trip){stats->peers[newest].node, stats->peers[newest].rtt_us};
    }
}
