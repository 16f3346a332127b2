/* PING and PONG. In each announcement round a few neighbours are pinged in turn, which measures the round trip; in
 * every PADDED_EVERY_ROUNDS-th round the PINGs carry padding, which measures the bandwidth (ping_stats.h). */
#include "node/membership/membership_private.h"

#include <stdlib.h>
#include <string.h>

enum { PINGS_A_ROUND = 2, PADDED_EVERY_ROUNDS = 8, PADDING_BYTES = 4 * SN_ANNOUNCEMENT_SIZE_MAX };

/* PADDING_BYTES of zeros. */
static sn_status add_padding(sn_msg_ping *ping, sn_err *err) {
    sn_status status = sn_list_new(PADDING_BYTES / SN_ANNOUNCEMENT_SIZE_MAX, SN_PADDINGS_MAX, sizeof *ping->padding,
                                   &ping->padding, err);
    for (size_t i = 0; i < PADDING_BYTES / SN_ANNOUNCEMENT_SIZE_MAX && !status; i++) {
        status = sn_calloc(&ping->padding[i].data, SN_ANNOUNCEMENT_SIZE_MAX, 1, err);
        if (status) return status;
        ping->padding[i].len = SN_ANNOUNCEMENT_SIZE_MAX;
        ping->n_padding = i + 1;
    }
    return status;
}

void sn_ping_send(sn_membership *m, sn_peer peer, const uint8_t id[SN_KEY_SIZE], bool padded, int64_t now_us) {
    sn_err err;
    uint64_t correlation_id = ++m->last_ping;
    sn_msg *msg = sn_membership_new_msg(SN_MSG_PING, correlation_id);
    if (!msg) return;
    if (padded && add_padding(&msg->ping, &err)) {
        sn_msg_free(&msg);
        return;
    }
    sn_ping_stats_sent(&m->ping_stats, peer, correlation_id, sn_node_tag(id), padded ? PADDING_BYTES : 0, now_us);
    sn_membership_send(m, peer, &msg);
}

void sn_ping_round(sn_membership *m, int64_t now_us) {
    const sn_gossip *g = &m->gossip;
    bool padded = m->ping_rounds++ % PADDED_EVERY_ROUNDS == 1; /* padded PINGs need an RTT to compare with */
    for (size_t i = 0; i < g->n_neighbours && i < PINGS_A_ROUND; i++) {
        const sn_neighbour *neighbour = &g->neighbours[(m->ping_rounds * PINGS_A_ROUND + i) % g->n_neighbours];
        bool known = sn_ping_stats_rtt_us(&m->ping_stats, sn_node_tag(neighbour->id)) > 0;
        sn_ping_send(m, neighbour->peer, neighbour->id, padded && known, now_us);
    }
}

void sn_ping_on_ping(sn_membership *m, const sn_event *event) {
    sn_msg *msg = sn_membership_new_msg(SN_MSG_PONG, event->msg->correlation_id);
    if (!msg) return;
    for (size_t i = 0; i < event->msg->ping.n_padding; i++) msg->pong.padding_bytes += event->msg->ping.padding[i].len;
    sn_membership_send(m, event->peer, &msg);
}

void sn_ping_on_pong(sn_membership *m, const sn_event *event, int64_t now_us) {
    sn_ping_stats_answered(&m->ping_stats, event->peer, event->msg->correlation_id, now_us);
}
