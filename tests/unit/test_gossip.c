/* How announcements go round. */
#include "tests/support/crowd.h"
#include "tests/support/need.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { NODES_MAX = CROWD_MAX };

/* Ends it without a word. */
static void kill_node(crowd *c, int i) { c->nodes[i].gone = true; }

Test(gossip, everybody_learns_of_everybody_and_goes_on_knowing, .timeout = 60) {
    crowd *c = crowd_new(8, 0);
    crowd_add(c, -1);
    for (int i = 1; i < 40; i++) crowd_add(c, i % 7 ? 0 : i - 1); /* some know another door */
    crowd_run(c, 10);
    cr_expect_gt(crowd_least_known(c), 20, "%zu after ten seconds", crowd_least_known(c));
    crowd_run(c, 30);
    for (int i = 0; i < 8; i++) {
        crowd_run(c, 15);
        cr_expect_eq(crowd_least_known(c), 40, "%zu later", crowd_least_known(c));
    }
    crowd_add(c, 3);
    crowd_run(c, 30);
    cr_expect_eq(crowd_least_known(c), 41);
    for (int i = 0; i < c->n; i++) cr_expect_gt(c->nodes[i].core->distance.n_known, 5);
    crowd_free(c);
}

Test(gossip, a_last_word_goes_everywhere_and_a_sudden_death_within_the_life_of_an_announcement, .timeout = 60) {
    crowd *c = crowd_new(8, 0);
    crowd_add(c, -1);
    for (int i = 1; i < 30; i++) crowd_add(c, 0);
    crowd_run(c, 30);
    sn_core_leave(c->nodes[7].core, c->unix_ms);
    crowd_run(c, 0.1);
    kill_node(c, 7);
    crowd_run(c, 30);
    for (int i = 0; i < c->n; i++)
        if (i != 7) cr_expect_eq(crowd_known(c, i), 29, "node %d still knows %zu", i, crowd_known(c, i));
    kill_node(c, 8);
    crowd_run(c, 76); /* what it said last lives for 60 s, and is swept with the next announcement */
    cr_expect_eq(crowd_known(c, 0), 28);
    cr_expect_eq(crowd_least_known(c), 28);
    crowd_free(c);
}

/* The node that all had joined is dead when the halves find each other again. */
static void falls_apart_and_heals(bool door_dies) {
    crowd *c = crowd_new(8, 0);
    crowd_add(c, -1);
    for (int i = 1; i < 24; i++) crowd_add(c, 0);
    crowd_run(c, 40);
    cr_expect_eq(crowd_least_known(c), 24);
    c->cut = 12;
    crowd_run(c, 120);
    size_t alive = door_dies ? 23 : 24;
    for (int i = 0; i < 24; i++) cr_expect_eq(crowd_known(c, i), 12, "the parts do not forget each other");
    if (door_dies) kill_node(c, 0);
    c->cut = 0;
    crowd_run(c, 100);
    cr_expect_eq(crowd_least_known(c), alive, "%zu of %zu are known again", crowd_least_known(c), alive);
    crowd_free(c);
}

Test(gossip, a_swarm_that_fell_apart_heals, .timeout = 60) { falls_apart_and_heals(false); }
Test(gossip, a_swarm_that_fell_apart_heals_without_the_node_that_all_had_joined, .timeout = 60) {
    falls_apart_and_heals(true);
}

/* With 2 KiB a second a node cannot hear of all 80 in the life of an announcement: it knows a part, and spends no more. */
Test(gossip, spends_no_more_than_its_allowance_however_many_there_are, .timeout = 60) {
    crowd *c = crowd_new(8, 2048);
    uint64_t before[NODES_MAX];
    crowd_add(c, -1);
    for (int i = 1; i < NODES_MAX; i++) crowd_add(c, i / 2);
    crowd_run(c, 30);
    for (int i = 0; i < c->n; i++) before[i] = c->nodes[i].core->gossip.bytes_sent;
    crowd_run(c, 60);
    for (int i = 0; i < c->n; i++) {
        uint64_t spent = c->nodes[i].core->gossip.bytes_sent - before[i];
        cr_expect_leq(spent, (60 + 6) * 2048, "node %d spent %llu bytes a second", i, (unsigned long long)spent / 60);
    }
    cr_expect_gt(crowd_least_known(c), 20, "only %zu are known", crowd_least_known(c));
    crowd_free(c);
}

Test(gossip, clocks_that_differ_by_half_a_minute_do_no_harm, .timeout = 60) {
    crowd *c = crowd_new(8, 0);
    crowd_add(c, -1);
    for (int i = 1; i < 12; i++) {
        crowd_add(c, 0);
        c->nodes[i].skew_ms = i % 3 ? (i % 2 ? 15000 : -15000) : 0;
    }
    crowd_run(c, 30);
    for (int i = 0; i < 6; i++) {
        crowd_run(c, 15);
        cr_expect_eq(crowd_least_known(c), 12, "%zu", crowd_least_known(c));
    }
    crowd_free(c);
}

/* A client asks page by page, and for the blocks that it lacks. */
Test(gossip, answers_in_pages_and_for_blocks, .timeout = 60) {
    crowd *c = crowd_new(8, 0);
    crowd_add(c, -1);
    for (int i = 1; i < 20; i++) crowd_add(c, 0);
    crowd_run(c, 30);
    sn_identity identity;
    sn_transport *transport = NULL;
    sn_peer peer;
    NEED(sn_identity_new(&identity, &err));
    NEED(sn_transport_memory_new(c->hub, &identity, &transport, &err));
    NEED(sn_transport_dial(transport, "mem://5", c->nodes[5].identity.curve_key, &peer, &err));
    size_t told = 0, of_block = 0;
    uint64_t from = 0, pages = 0;
    do { /* each page from the tag where the last one ended; here we ask for the lower and the upper half by hand */
        sn_msg *msg = NULL;
        sn_event event = {0};
        NEED(sn_msg_new(SN_MSG_PEERS, 1, &msg, &err));
        msg->peers.protocol = SN_PROTOCOL;
        msg->peers.from_tag = from;
        msg->peers.to_tag = from ? 0 : UINT64_MAX / 2;
        NEED(sn_transport_send(transport, peer, &msg, &err));
        crowd_run(c, 0.1);
        NEED(sn_transport_recv(transport, 0, &event, &err));
        cr_assert(event.msg && event.msg->kind == SN_MSG_PEERS_ARE);
        told += event.msg->peers_are.n_announcements;
        cr_expect_eq(event.msg->peers_are.next, 0);
        from = from ? 0 : UINT64_MAX / 2 + 1;
        sn_msg_free(&event.msg);
    } while (++pages < 2);
    cr_expect_eq(told, 20);
    sn_msg *msg = NULL;
    sn_event event = {0};
    NEED(sn_msg_new(SN_MSG_PEERS, 1, &msg, &err));
    msg->peers.protocol = SN_PROTOCOL;
    msg->peers.first_block = 2;
    msg->peers.end_block = 4;
    NEED(sn_transport_send(transport, peer, &msg, &err));
    crowd_run(c, 0.1);
    NEED(sn_transport_recv(transport, 0, &event, &err));
    of_block = event.msg->peers_are.n_announcements;
    cr_expect_eq(of_block, 6, "%zu nodes serve block 2 or 3", of_block); /* 2 3 10 11 18 19 */
    sn_msg_free(&event.msg);
    sn_transport_free(&transport);
    crowd_free(c);
}
