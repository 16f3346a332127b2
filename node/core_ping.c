/* PINGs: how far others are. A few near nodes are asked in each round of announcements, in turn; now and then with padding, which
 * times the link. */
#include "node/core_private.h"

#include <stdlib.h>
#include <string.h>

enum { PINGS_A_ROUND = 2, PADDED_EVERY_ROUNDS = 8, PADDING_BYTES = 4 * SN_ANNOUNCEMENT_SIZE_MAX };

/* Fills the list with zeros, PADDING_BYTES in all. */
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

void sn_core_ping(sn_core *core, sn_peer peer, const uint8_t id[SN_KEY_SIZE], bool padded, int64_t now_us) {
    sn_err err;
    uint64_t request = ++core->last_ping;
    sn_msg *msg = sn_core_new_msg(SN_MSG_PING, request);
    if (!msg) return;
    if (padded && add_padding(&msg->ping, &err)) {
        sn_msg_free(&msg);
        return;
    }
    sn_distance_asked(&core->distance, peer, request, sn_node_tag(id), padded ? PADDING_BYTES : 0, now_us);
    sn_core_send(core, peer, &msg);
}

void sn_core_measure_distances(sn_core *core, int64_t now_us) {
    const sn_gossip *g = &core->gossip;
    bool padded = core->ping_rounds++ % PADDED_EVERY_ROUNDS == 1; /* not before the first short one */
    for (size_t i = 0; i < g->n_near && i < PINGS_A_ROUND; i++) {
        const sn_near *near = &g->near[(core->ping_rounds * PINGS_A_ROUND + i) % g->n_near];
        bool known = sn_distance_to(&core->distance, sn_node_tag(near->id)) > 0;
        sn_core_ping(core, near->peer, near->id, padded && known, now_us);
    }
}

void sn_core_on_ping(sn_core *core, const sn_event *event) {
    sn_msg *msg = sn_core_new_msg(SN_MSG_PONG, event->msg->request);
    if (!msg) return;
    for (size_t i = 0; i < event->msg->ping.n_padding; i++) msg->pong.padding_bytes += event->msg->ping.padding[i].len;
    sn_core_send(core, event->peer, &msg);
}

void sn_core_on_pong(sn_core *core, const sn_event *event, int64_t now_us) {
    sn_distance_answered(&core->distance, event->peer, event->msg->request, now_us);
}
