/* Invented nodes: a stranger that brings many does not part the others, and proven nodes are told of first. */
#include "tests/support/flood.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { DIRECTORY = 256 };

/* Each directory has place for 256 nodes, and the stranger invents 600. The node that the others joined is gone. */
Test(gossip_strangers, a_flood_of_invented_nodes_does_not_part_the_others, .timeout = 120) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    protocol_swarm_add(c, -1);
    for (int i = 1; i < HONEST; i++) protocol_swarm_add(c, 0);
    for (int i = 0; i < HONEST; i++) sn_directory_limit(c->nodes[i].protocol->membership->directory, DIRECTORY);
    protocol_swarm_run(c, 30);
    cr_assert_eq(protocol_swarm_least_known(c), HONEST);
    flood_begin(c);
    c->nodes[0].dead = true;
    c->on_step = flood_step;
    int gone = 0;
    size_t most = 0;
    for (int round = 0; round < 11; round++) {
        protocol_swarm_run(c, 10);
        if (protocol_swarm_least_known(c) > most) most = protocol_swarm_least_known(c);
        for (int i = 0; i < HONEST * HONEST; i++) {
            if (i < HONEST || i % HONEST == 0) continue;
            const sn_directory *d = sn_protocol_directory(c->nodes[i / HONEST].protocol);
            const uint8_t *id = c->nodes[i % HONEST].identity.id;
            cr_expect(sn_directory_find(d, id), "node %d forgot node %d", i / HONEST, i % HONEST);
            gone += sn_directory_find_expiry(d, id) <= (uint64_t)c->unix_ms;
        }
    }
    cr_expect_gt(most, DIRECTORY / 2, "there was no flood: %zu nodes", most);
    cr_expect_eq(gone, 0, "%d times a node did not hear of another one in time", gone);
    flood_end(c);
}

/* Twelve nodes with little bandwidth, to five of which a stranger brings four times as much as they could pass on. */
Test(gossip_strangers, a_flood_of_announcements_does_not_hold_up_those_of_others, .timeout = 120) {
    enum { NODES = 12 };
    protocol_swarm *c = protocol_swarm_new(8, 4096);
    protocol_swarm_add(c, -1);
    for (int i = 1; i < NODES; i++) protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 60);
    flood_begin(c);
    flood.renews = true;
    c->on_step = flood_step;
    protocol_swarm_run(c, 20);
    int old = 0, n = 0;
    for (int round = 0; round < 45; round++) {
        protocol_swarm_run(c, 2);
        for (int i = 0; i < NODES * NODES; i++, n++) {
            const sn_directory *d = sn_protocol_directory(c->nodes[i / NODES].protocol);
            const sn_announcement *a = sn_directory_find(d, c->nodes[i % NODES].identity.id);
            old += !a || c->unix_ms - (int64_t)a->sequence > SN_ANNOUNCE_LIFE_MS / 2;
        }
    }
    /* The keys are random: 1 to 5 % are old in a run, and 8 to 17 % where the newest is always passed on first. */
    cr_expect_lt(200 * old, 15 * n, "in %d of %d cases a node had not heard of another one for half a minute", old, n);
    flood_end(c);
}

/* They would count as those of a peer that this node chose, and outlast those of the others. */
Test(gossip_strangers, a_list_that_was_not_asked_for_is_dropped) {
    protocol_swarm *c = flood_swarm();
    sn_event event = {.peer = 1000000, .key = {9}, .network = {10, 0, 0, 9}};
    REQUIRE(sn_msg_new(SN_MSG_PEERS_REPLY, 1, &event.msg, &err));
    sn_msg_peers_reply *reply = &event.msg->peers_reply;
    REQUIRE(sn_list_new(1, SN_ANNOUNCEMENTS_MAX, sizeof *reply->announcements, &reply->announcements, &err));
    const sn_blob sealed = {flood.sealed[0].data, flood.sealed[0].len};
    REQUIRE(sn_membership_copy_blob(&sealed, &reply->announcements[reply->n_announcements++], &err));
    sn_membership_on_peers_reply(c->nodes[0].protocol->membership, &event, c->now_us, c->unix_ms);
    cr_expect(!flood_known(c, 0));
    sn_msg_free(&event.msg);
    flood_end(c);
}

/* -- proven nodes */

Test(gossip_strangers, a_node_is_proven_by_its_own_key_and_for_ten_minutes) {
    enum { TEN_MINUTES_MS = 600000 };
    protocol_swarm *c = flood_swarm();
    flood_bring(c, 1, 0, 1, false);
    sn_membership *m = c->nodes[0].protocol->membership;
    const sn_directory *d = sn_protocol_directory(c->nodes[0].protocol);
    const sn_identity *node = &flood.invented[0];
    sn_membership_prove(m, node->id, flood.invented[1].curve_key, c->unix_ms);
    cr_expect(!sn_directory_is_proven(d, node->id, c->unix_ms), "another key has proven it");
    sn_membership_prove(m, node->id, node->curve_key, c->unix_ms);
    cr_expect(sn_directory_is_proven(d, node->id, c->unix_ms + TEN_MINUTES_MS - 1));
    cr_expect(!sn_directory_is_proven(d, node->id, c->unix_ms + TEN_MINUTES_MS + 1));
    flood_end(c);
}

/* No other node is told of it either. */
Test(gossip_strangers, a_node_at_whose_address_another_key_speaks_is_forgotten) {
    protocol_swarm *c = flood_swarm();
    flood_bring(c, 1, 0, 1, false);
    const sn_directory *d = sn_protocol_directory(c->nodes[0].protocol);
    const sn_announcement *known = sn_directory_find(d, flood.invented[0].id);
    cr_assert(known);
    cr_assert_neq(sn_directory_find_expiry(d, flood.invented[0].id), 0);
    sn_event event = {.peer = 1000000, .lost = true};
    memcpy(event.key, known->curve_key, SN_KEY_SIZE);
    sn_protocol_handle(c->nodes[0].protocol, &event, c->now_us, c->unix_ms);
    cr_assert_neq(sn_directory_find_expiry(d, flood.invented[0].id), 0, "it may be back");
    memcpy(event.other_at, known->address, sizeof event.other_at);
    sn_protocol_handle(c->nodes[0].protocol, &event, c->now_us, c->unix_ms);
    cr_expect_eq(sn_directory_find_expiry(d, flood.invented[0].id), 0);
    flood_end(c);
}

Test(gossip_strangers, the_first_page_begins_with_the_node_and_those_that_it_has_proven, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    protocol_swarm_add(c, -1);
    for (int i = 1; i < HONEST; i++) protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 30);
    flood_begin(c);
    c->on_step = flood_step;
    protocol_swarm_run(c, 10);
    c->on_step = NULL;
    sn_msg *msg = NULL;
    sn_event event = {0};
    REQUIRE(sn_msg_new(SN_MSG_PEERS, 77, &msg, &err));
    msg->peers.protocol = SN_PROTOCOL_VERSION;
    REQUIRE(sn_transport_send(flood.transport, flood.to[3], &msg, &err));
    protocol_swarm_run(c, 0.1);
    do {
        sn_msg_free(&event.msg);
        REQUIRE(sn_transport_recv(flood.transport, 0, &event, &err));
        cr_assert(event.peer, "no reply");
    } while (!event.msg || event.msg->correlation_id != 77);
    const sn_msg_peers_reply *reply = &event.msg->peers_reply;
    sn_announcement *a = calloc(1, sizeof *a);
    bool honest[HONEST] = {0};
    for (size_t i = 0; i < reply->proven; i++) {
        const sn_blob *sealed = &reply->announcements[i];
        REQUIRE(sn_announcement_open(sealed->data, sealed->len, c->unix_ms, a, &err));
        if (!i) cr_expect(!memcmp(a->node, c->nodes[3].identity.id, SN_KEY_SIZE), "another node comes first");
        for (int k = 0; k < HONEST; k++) honest[k] |= !memcmp(a->node, c->nodes[k].identity.id, SN_KEY_SIZE);
    }
    for (int k = 0; k < HONEST; k++) cr_expect(honest[k], "node %d is not proven", k);
    cr_expect_leq(reply->proven, HONEST + 1);
    sn_msg_free(&event.msg);
    free(a);
    flood_end(c);
}

static int n_asked_for_an_answer;
static void count_asked(void *ctx, const sn_announcement *node, int64_t now_us) {
    (void)ctx, (void)node, (void)now_us;
    n_asked_for_an_answer++;
}

/* A joined node may say that it has proven any number. */
Test(gossip_strangers, sixteen_nodes_of_a_joined_ones_list_are_asked_for_an_answer) {
    enum { PROVEN = 40 };
    protocol_swarm *c = flood_swarm();
    sn_membership *m = c->nodes[1].protocol->membership;
    sn_event event = {.peer = m->bootstrap_peers[0].peer, .dialled = true};
    m->setup.host.meet = count_asked;
    m->bootstrap_peers[0].met = false;
    REQUIRE(sn_msg_new(SN_MSG_PEERS_REPLY, 1, &event.msg, &err));
    sn_msg_peers_reply *reply = &event.msg->peers_reply;
    REQUIRE(sn_list_new(PROVEN, SN_ANNOUNCEMENTS_MAX, sizeof *reply->announcements, &reply->announcements, &err));
    for (int i = 0; i < PROVEN; i++) {
        const sn_blob sealed = {flood.sealed[i].data, flood.sealed[i].len};
        REQUIRE(sn_membership_copy_blob(&sealed, &reply->announcements[reply->n_announcements++], &err));
    }
    reply->proven = PROVEN;
    sn_membership_on_peers_reply(m, &event, c->now_us, c->unix_ms);
    cr_expect_eq(n_asked_for_an_answer, 16);
    sn_msg_free(&event.msg);
    flood_end(c);
}

/* The joined node's directory is full of invented nodes, and it has proven the others. */
Test(gossip_strangers, a_newcomer_meets_the_nodes_that_the_joined_one_has_proven, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    int n = 0;
    protocol_swarm_add(c, -1);
    for (int i = 1; i < 8; i++) protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 60);
    for (int i = 0; i < INVENTED; i++) {
        REQUIRE(sn_identity_new(&flood.invented[i], &err));
        sn_buf_init(&flood.sealed[i], SN_ANNOUNCEMENT_SIZE_MAX);
        flood_announce(c, i);
        REQUIRE(sn_directory_add(c->nodes[0].protocol->membership->directory, flood.sealed[i].data, flood.sealed[i].len,
                                 c->unix_ms, &err));
    }
    const sn_directory *directory = sn_protocol_directory(c->nodes[protocol_swarm_add(c, 0)].protocol);
    protocol_swarm_run(c, 10);
    for (int i = 0; i < 8; i++) n += sn_directory_is_proven(directory, c->nodes[i].identity.id, c->unix_ms);
    cr_expect_gt(n, 5, "%d of 8 real nodes have been met", n);
    flood_end(c);
}
