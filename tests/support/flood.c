#include "tests/support/flood.h"

#include "tests/support/require.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct flood flood;

void flood_announce(const protocol_swarm *c, int i) {
    sn_announcement *a = calloc(1, sizeof *a);
    *a = (sn_announcement){.protocol = SN_PROTOCOL_VERSION,
                           .sequence = (uint64_t)c->unix_ms,
                           .expires_unix_ms = (uint64_t)c->unix_ms + SN_ANNOUNCE_LIFE_MS_MAX,
                           .state = SN_NODE_ONLINE,
                           .end_block = 1,
                           .n_blocks = 8};
    memcpy(a->node, flood.invented[i].id, SN_KEY_SIZE);
    memcpy(a->curve_key, flood.invented[i].curve_key, SN_KEY_SIZE);
    snprintf(a->address, sizeof a->address, "invented%d:1", i);
    flood.sealed[i].len = 0;
    REQUIRE(sn_announcement_seal(a, &flood.invented[i], &flood.sealed[i], &err));
    free(a);
}

void flood_begin(protocol_swarm *c) {
    REQUIRE(sn_identity_new(&flood.identity, &err));
    REQUIRE(sn_transport_memory_new(c->hub, &flood.identity, &flood.transport, &err));
    for (int i = 0; i < HONEST; i++) {
        char address[32];
        snprintf(address, sizeof address, "node%d:1", i);
        REQUIRE(sn_transport_dial(flood.transport, address, c->nodes[i].identity.curve_key, &flood.to[i], &err));
    }
    for (int i = 0; i < INVENTED; i++) {
        REQUIRE(sn_identity_new(&flood.invented[i], &err));
        sn_buf_init(&flood.sealed[i], SN_ANNOUNCEMENT_SIZE_MAX);
        flood_announce(c, i);
    }
}

protocol_swarm *flood_swarm(void) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    for (int i = 0; i < HONEST; i++) protocol_swarm_add(c, i ? 0 : -1);
    flood_begin(c);
    return c;
}

void flood_step(protocol_swarm *c) {
    sn_event event;
    do {
        REQUIRE(sn_transport_recv(flood.transport, 0, &event, &err));
        sn_msg_free(&event.msg);
    } while (event.peer);
    for (int i = 0; i < HONEST; i++) {
        sn_msg *msg = NULL;
        REQUIRE(sn_msg_new(SN_MSG_PEERS, 1, &msg, &err));
        msg->peers.protocol = SN_PROTOCOL_VERSION;
        msg->peers.from_tag = msg->peers.to_tag = UINT64_MAX;
        REQUIRE(
            sn_list_new(2, SN_ANNOUNCEMENTS_MAX, sizeof *msg->peers.announcements, &msg->peers.announcements, &err));
        for (int k = 0; k < 2; k++) {
            size_t at = flood.next++ % INVENTED;
            const sn_buf *sealed = &flood.sealed[at];
            if (flood.renews) flood_announce(c, (int)at);
            const sn_blob blob = {sealed->data, sealed->len};
            REQUIRE(sn_membership_copy_blob(&blob, &msg->peers.announcements[msg->peers.n_announcements++], &err));
        }
        REQUIRE(sn_transport_send(flood.transport, flood.to[i], &msg, &err));
    }
}

void flood_end(protocol_swarm *c) {
    for (int i = 0; i < INVENTED; i++) sn_buf_fini(&flood.sealed[i]);
    sn_transport_free(&flood.transport);
    protocol_swarm_free(c);
}

void flood_bring(protocol_swarm *c, uint8_t network, size_t first, size_t n, bool forged) {
    sn_event event = {.peer = 1, .network = {10, 0, 0, network}};
    REQUIRE(sn_msg_new(SN_MSG_PEERS, 1, &event.msg, &err));
    sn_msg_peers *peers = &event.msg->peers;
    peers->protocol = SN_PROTOCOL_VERSION;
    peers->from_tag = UINT64_MAX;
    REQUIRE(sn_list_new(n, SN_ANNOUNCEMENTS_MAX, sizeof *peers->announcements, &peers->announcements, &err));
    for (size_t i = 0; i < n; i++) {
        const sn_buf *sealed = &flood.sealed[first + (forged ? 0 : i)];
        sn_blob *out = &peers->announcements[peers->n_announcements++];
        REQUIRE(sn_membership_copy_blob(&(sn_blob){sealed->data, sealed->len}, out, &err));
        out->data[out->len - 1 - SN_SIGNATURE_SIZE / 2] ^= forged; /* in the point of the signature */
    }
    sn_membership_on_peers(c->nodes[0].protocol->membership, &event, c->now_us, c->unix_ms);
    sn_msg_free(&event.msg);
}

bool flood_known(const protocol_swarm *c, int invented) {
    return sn_directory_find(sn_protocol_directory(c->nodes[0].protocol), flood.invented[invented].id) != NULL;
}
