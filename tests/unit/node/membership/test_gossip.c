/* How announcements spread. */
#include "tests/support/protocol_swarm.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdlib.h>

Test(gossip, every_node_learns_of_every_other_and_stays_informed, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    protocol_swarm_add(c, -1);
    for (int i = 1; i < 40; i++) protocol_swarm_add(c, i % 7 ? 0 : i - 1); /* some join another node */
    protocol_swarm_run(c, 10);
    cr_expect_gt(protocol_swarm_least_known(c), 20, "%zu after ten seconds", protocol_swarm_least_known(c));
    protocol_swarm_run(c, 30);
    for (int i = 0; i < 8; i++) {
        protocol_swarm_run(c, 15);
        cr_expect_eq(protocol_swarm_least_known(c), 40, "%zu later", protocol_swarm_least_known(c));
    }
    protocol_swarm_add(c, 3);
    protocol_swarm_run(c, 30);
    cr_expect_eq(protocol_swarm_least_known(c), 41);
    for (int i = 0; i < c->n; i++) cr_expect_gt(c->nodes[i].protocol->membership->ping_stats.n_peers, 5);
    protocol_swarm_free(c);
}

Test(gossip, a_departure_spreads_and_a_failed_node_expires, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    protocol_swarm_add(c, -1);
    for (int i = 1; i < 30; i++) protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 30);
    sn_protocol_leave(c->nodes[7].protocol, c->unix_ms);
    protocol_swarm_run(c, 0.1);
    c->nodes[7].dead = true;
    protocol_swarm_run(c, 30);
    for (int i = 0; i < c->n; i++)
        if (i != 7)
            cr_expect_eq(protocol_swarm_known(c, i), 29, "node %d still knows %zu nodes", i,
                         protocol_swarm_known(c, i));
    c->nodes[8].dead = true;
    /* its last announcement lives for 60 s, and is removed with the next announcement of another node */
    protocol_swarm_run(c, 76);
    cr_expect_eq(protocol_swarm_known(c, 0), 28);
    cr_expect_eq(protocol_swarm_least_known(c), 28);
    protocol_swarm_free(c);
}

/* The bootstrap node may be gone when the halves find each other again. */
static void expect_partition_heals(bool bootstrap_fails) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    protocol_swarm_add(c, -1);
    for (int i = 1; i < 24; i++) protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 40);
    cr_expect_eq(protocol_swarm_least_known(c), 24);
    c->partition = 12;
    protocol_swarm_run(c, 120);
    size_t alive = bootstrap_fails ? 23 : 24;
    for (int i = 0; i < 24; i++) cr_expect_eq(protocol_swarm_known(c, i), 12, "the parts still know each other");
    if (bootstrap_fails) c->nodes[0].dead = true;
    c->partition = 0;
    protocol_swarm_run(c, 100);
    cr_expect_eq(protocol_swarm_least_known(c), alive, "%zu of %zu nodes are known again",
                 protocol_swarm_least_known(c), alive);
    protocol_swarm_free(c);
}

Test(gossip, a_partitioned_swarm_heals, .timeout = 60) { expect_partition_heals(false); }
Test(gossip, a_partitioned_swarm_heals_without_its_bootstrap_node, .timeout = 60) { expect_partition_heals(true); }

Test(gossip, tolerates_clocks_that_differ_by_half_a_minute, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    protocol_swarm_add(c, -1);
    for (int i = 1; i < 12; i++) {
        protocol_swarm_add(c, 0);
        c->nodes[i].skew_ms = i % 3 ? (i % 2 ? 15000 : -15000) : 0;
    }
    protocol_swarm_run(c, 30);
    for (int i = 0; i < 6; i++) {
        protocol_swarm_run(c, 15);
        cr_expect_eq(protocol_swarm_least_known(c), 12, "%zu", protocol_swarm_least_known(c));
    }
    protocol_swarm_free(c);
}

/* As when a joined node has left too much unread: what is lost then comes not back by itself. */
Test(gossip, a_joined_node_is_dialled_again_when_its_connection_was_ended) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    for (int i = 0; i < 2; i++) protocol_swarm_add(c, i ? 0 : -1);
    protocol_swarm_run(c, 5);
    sn_membership *m = c->nodes[1].protocol->membership;
    cr_assert_eq(sn_membership_bootstrap_answered(m), 1);
    sn_event event = {.peer = m->bootstrap_peers[0].peer, .lost = true};
    sn_transport_hang_up(m->setup.transport, event.peer);
    sn_membership_peer_lost(m, &event);
    cr_assert_eq(sn_membership_bootstrap_answered(m), 0);
    protocol_swarm_run(c, 20);
    cr_expect_eq(sn_membership_bootstrap_answered(m), 1);
    protocol_swarm_free(c);
}

static int asked_keys;

static void note_asked(void *ctx, const char *address) {
    (void)ctx;
    cr_expect_str_eq(address, "node0:1");
    asked_keys++;
}

/* As when two nodes know only each other, and one of them starts again with new keys at the same address. */
Test(gossip, a_joined_node_that_returns_with_another_key_is_joined_by_it) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    for (int i = 0; i < 3; i++) protocol_swarm_add(c, i == 1 ? 0 : -1); /* node 2 plays node 0 after its restart */
    sn_membership *m = c->nodes[1].protocol->membership;
    m->setup.host.ask_key = note_asked;
    protocol_swarm_run(c, 5);
    cr_assert_eq(sn_membership_bootstrap_answered(m), 1);
    const sn_event event = {.peer = m->bootstrap_peers[0].peer, .lost = true};
    sn_membership_peer_lost(m, &event);
    cr_expect_eq(asked_keys, 1);
    sn_membership_join(m, "node0:1", c->nodes[0].identity.curve_key); /* the same key: nothing changes */
    cr_expect_eq(m->n_bootstrap_peers, 1);
    cr_expect_eq(m->bootstrap_peers[0].peer, event.peer);
    sn_membership_join(m, "node0:1", c->nodes[2].identity.curve_key);
    cr_assert_eq(m->n_bootstrap_peers, 1);
    cr_expect_arr_eq(m->bootstrap_peers[0].curve_key, c->nodes[2].identity.curve_key, SN_KEY_SIZE);
    cr_expect_neq(m->bootstrap_peers[0].peer, event.peer);
    protocol_swarm_run(c, 40); /* no node with that key listens there: it is asked for in every round */
    cr_expect_geq(asked_keys, 3);
    sn_membership_join(m, "node0:1", c->nodes[0].identity.curve_key);
    protocol_swarm_run(c, 20);
    cr_expect_eq(sn_membership_bootstrap_answered(m), 1);
    sn_membership_join(m, "node0:1", c->nodes[2].identity.curve_key); /* a late answer, while this one is there */
    cr_expect_eq(m->n_bootstrap_peers, 1);
    cr_expect_arr_eq(m->bootstrap_peers[0].curve_key, c->nodes[0].identity.curve_key, SN_KEY_SIZE);
    protocol_swarm_free(c);
}

/* -- within the bandwidth */

/* With 2.25 KiB/s a node cannot receive all 80 announcements within their lifetime: it knows a part of the nodes, and
 * stays within its budget. */
Test(gossip, stays_within_its_bandwidth_with_any_number_of_nodes, .timeout = 60) {
    enum { BUDGET = 2304 };
    protocol_swarm *c = protocol_swarm_new(8, BUDGET);
    uint64_t before[PROTOCOL_SWARM_MAX];
    protocol_swarm_add(c, -1);
    for (int i = 1; i < PROTOCOL_SWARM_MAX; i++) protocol_swarm_add(c, i / 2);
    protocol_swarm_run(c, 30);
    for (int i = 0; i < c->n; i++) before[i] = c->nodes[i].protocol->membership->gossip.bytes_sent;
    protocol_swarm_run(c, 60);
    for (int i = 0; i < c->n; i++) {
        uint64_t spent = c->nodes[i].protocol->membership->gossip.bytes_sent - before[i];
        cr_expect_leq(spent, (60 + 6) * BUDGET, "node %d sent %llu bytes per second", i,
                      (unsigned long long)spent / 60);
    }
    cr_expect_gt(protocol_swarm_least_known(c), 20, "only %zu nodes are known", protocol_swarm_least_known(c));
    protocol_swarm_free(c);
}

/* Strangers with many keys may pull all the time: announcements are passed on all the same. */
Test(gossip, replies_to_pulls_leave_half_of_the_bandwidth_to_pushes) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    protocol_swarm_add(c, -1);
    sn_membership *m = c->nodes[0].protocol->membership;
    int64_t now_us = c->now_us, begin_us = now_us;
    size_t replied = 0, pushed = 0, bytes;
    for (; now_us < begin_us + 60 * (int64_t)PROTOCOL_SWARM_SECOND; now_us += 10000) {
        while ((bytes = sn_gossip_reply_budget(m, now_us))) {
            sn_gossip_reply_sent(m, bytes);
            replied += bytes;
        }
        bytes = m->gossip.budget > 0 ? (size_t)m->gossip.budget : 0;
        m->gossip.budget -= (int64_t)bytes; /* as a push does */
        pushed += bytes;
    }
    cr_expect_leq(replied, 65 * SN_GOSSIP_BYTES_PER_S / 2, "%zu bytes", replied);
    cr_expect_geq(pushed, 59 * SN_GOSSIP_BYTES_PER_S / 2, "%zu bytes", pushed);
    cr_expect_leq(replied + pushed, (size_t)65 * SN_GOSSIP_BYTES_PER_S);
    protocol_swarm_free(c);
}

/* -- what clients ask */

static sn_msg *new_question(void) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_PEERS, 1, &msg, &err));
    msg->peers.protocol = SN_PROTOCOL_VERSION;
    return msg;
}

/* Consumes *question. */
static sn_msg *list_of(protocol_swarm *c, sn_transport *client, sn_peer node, sn_msg **question) {
    sn_event event = {0};
    REQUIRE(sn_transport_send(client, node, question, &err));
    protocol_swarm_run(c, 0.1);
    REQUIRE(sn_transport_recv(client, 0, &event, &err));
    cr_assert(event.msg && event.msg->kind == SN_MSG_PEERS_REPLY);
    return event.msg;
}

/* A client asks page by page, and for blocks that it lacks. */
Test(gossip, answers_by_page_and_by_block, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    protocol_swarm_add(c, -1);
    for (int i = 1; i < 20; i++) protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 30);
    sn_peer peer;
    sn_transport *transport = protocol_swarm_stranger(c, 5, &peer);
    size_t n_announced = 0, of_block = 0;
    uint64_t from = 0, pages = 0;
    /* each page begins at the tag where the previous one ended; the test asks for the lower and the upper half by
     * hand */
    do {
        sn_msg *msg = new_question();
        msg->peers.from_tag = from;
        msg->peers.to_tag = from ? 0 : UINT64_MAX / 2;
        msg = list_of(c, transport, peer, &msg);
        n_announced += msg->peers_reply.n_announcements;
        cr_expect_eq(msg->peers_reply.next_tag, 0);
        from = from ? 0 : UINT64_MAX / 2 + 1;
        sn_msg_free(&msg);
    } while (++pages < 2);
    cr_expect_eq(n_announced, 20);
    sn_msg *msg = new_question();
    msg->peers.first_block = 2;
    msg->peers.end_block = 4;
    msg = list_of(c, transport, peer, &msg);
    of_block = msg->peers_reply.n_announcements;
    cr_expect_eq(of_block, 6, "%zu nodes serve block 2 or 3", of_block); /* 2 3 10 11 18 19 */
    sn_msg_free(&msg);
    sn_transport_free(&transport);
    protocol_swarm_free(c);
}

/* -- nodes that were found in a DHT */

/* Joins invented nodes, as many as it takes. Returns how many these were. */
static int join_invented(protocol_swarm *c, int node, int from) {
    int n = 0;
    for (; n < 100 && sn_protocol_wants_found(c->nodes[node].protocol, c->now_us); n++) {
        char address[32];
        uint8_t key[SN_KEY_SIZE] = {1, (uint8_t)(from + n), 2};
        snprintf(address, sizeof address, "invented%d:1", from + n);
        cr_assert(sn_protocol_join_found(c->nodes[node].protocol, address, key, c->now_us));
        cr_assert_not(sn_protocol_join_found(c->nodes[node].protocol, address, key, c->now_us), "joined twice");
    }
    return n;
}

Test(gossip, nodes_found_that_do_not_answer_make_room_for_others, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    protocol_swarm_add(c, -1);
    protocol_swarm_add(c, -1);
    protocol_swarm_run(c, 1);
    int n = join_invented(c, 1, 0);
    cr_expect(n > 0 && n < SN_BOOTSTRAP_PEERS_MAX / 2, "%d are asked at a time", n);
    protocol_swarm_run(c, 10);
    cr_expect_not(sn_protocol_wants_found(c->nodes[1].protocol, c->now_us), "they have more time to answer");
    for (int turn = 1; turn < 10; turn++) {
        protocol_swarm_run(c, 20);
        cr_expect_eq(join_invented(c, 1, n * turn), n, "turn %d", turn);
    }
    protocol_swarm_run(c, 20);
    cr_assert(sn_protocol_wants_found(c->nodes[1].protocol, c->now_us));
    cr_assert(sn_protocol_join_found(c->nodes[1].protocol, "node0:1", c->nodes[0].identity.curve_key, c->now_us));
    protocol_swarm_run(c, 20);
    cr_expect_eq(protocol_swarm_known(c, 0), 2);
    cr_expect(sn_protocol_wants_found(c->nodes[1].protocol, c->now_us));
    cr_expect_eq(sn_membership_bootstrap_answered(c->nodes[1].protocol->membership), 1);
    cr_expect_eq(c->nodes[1].protocol->membership->n_bootstrap_peers, 1, "one that answered is given up, or none else");
    sn_membership *m = c->nodes[1].protocol->membership;
    c->nodes[0].dead = true;
    m->bootstrap_peers[0].answered = false; /* as when its connection is lost */
    protocol_swarm_run(c, 20);
    cr_expect(sn_protocol_wants_found(c->nodes[1].protocol, c->now_us));
    cr_expect_eq(m->n_bootstrap_peers, 1, "the only one that has ever answered is given up");
    protocol_swarm_free(c);
}

Test(gossip, when_some_nodes_found_have_answered_no_more_are_asked, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    for (int i = 0; i < 6; i++) protocol_swarm_add(c, -1);
    for (int i = 1; i < 6; i++) {
        char address[32];
        protocol_swarm_run(c, 1);
        cr_expect_eq(sn_protocol_wants_found(c->nodes[0].protocol, c->now_us), i <= 4, "after %d", i - 1);
        snprintf(address, sizeof address, "node%d:1", i);
        cr_assert(sn_protocol_join_found(c->nodes[0].protocol, address, c->nodes[i].identity.curve_key, c->now_us));
    }
    protocol_swarm_free(c);
}
