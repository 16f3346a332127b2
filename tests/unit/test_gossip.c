/* How announcements spread. */
#include "base/mem.h"
#include "client/net/link.h" /* how many nodes a client looks for */
#include "tests/support/protocol_swarm.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES_MAX = PROTOCOL_SWARM_MAX };

/* Ends the node without an announcement. */
static void kill_node(protocol_swarm *c, int i) { c->nodes[i].dead = true; }

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
    kill_node(c, 7);
    protocol_swarm_run(c, 30);
    for (int i = 0; i < c->n; i++)
        if (i != 7)
            cr_expect_eq(protocol_swarm_known(c, i), 29, "node %d still knows %zu nodes", i,
                         protocol_swarm_known(c, i));
    kill_node(c, 8);
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
    if (bootstrap_fails) kill_node(c, 0);
    c->partition = 0;
    protocol_swarm_run(c, 100);
    cr_expect_eq(protocol_swarm_least_known(c), alive, "%zu of %zu nodes are known again",
                 protocol_swarm_least_known(c), alive);
    protocol_swarm_free(c);
}

Test(gossip, a_partitioned_swarm_heals, .timeout = 60) { expect_partition_heals(false); }
Test(gossip, a_partitioned_swarm_heals_without_its_bootstrap_node, .timeout = 60) { expect_partition_heals(true); }

/* With 2 KiB/s a node cannot receive all 80 announcements within their lifetime: it knows a part of the nodes, and
 * stays within its budget. */
Test(gossip, stays_within_its_bandwidth_with_any_number_of_nodes, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 2048);
    uint64_t before[NODES_MAX];
    protocol_swarm_add(c, -1);
    for (int i = 1; i < NODES_MAX; i++) protocol_swarm_add(c, i / 2);
    protocol_swarm_run(c, 30);
    for (int i = 0; i < c->n; i++) before[i] = c->nodes[i].protocol->membership->gossip.bytes_sent;
    protocol_swarm_run(c, 60);
    for (int i = 0; i < c->n; i++) {
        uint64_t spent = c->nodes[i].protocol->membership->gossip.bytes_sent - before[i];
        cr_expect_leq(spent, (60 + 6) * 2048, "node %d sent %llu bytes per second", i, (unsigned long long)spent / 60);
    }
    cr_expect_gt(protocol_swarm_least_known(c), 20, "only %zu nodes are known", protocol_swarm_least_known(c));
    protocol_swarm_free(c);
}

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

/* A client asks page by page, and for blocks that it lacks. */
Test(gossip, answers_by_page_and_by_block, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    protocol_swarm_add(c, -1);
    for (int i = 1; i < 20; i++) protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 30);
    sn_identity identity;
    sn_transport *transport = NULL;
    sn_peer peer;
    REQUIRE(sn_identity_new(&identity, &err));
    REQUIRE(sn_transport_memory_new(c->hub, &identity, &transport, &err));
    REQUIRE(sn_transport_dial(transport, "node5:1", c->nodes[5].identity.curve_key, &peer, &err));
    size_t n_announced = 0, of_block = 0;
    uint64_t from = 0, pages = 0;
    /* each page begins at the tag where the previous one ended; the test asks for the lower and the upper half by
     * hand */
    do {
        sn_msg *msg = NULL;
        sn_event event = {0};
        REQUIRE(sn_msg_new(SN_MSG_PEERS, 1, &msg, &err));
        msg->peers.protocol = SN_PROTOCOL_VERSION;
        msg->peers.from_tag = from;
        msg->peers.to_tag = from ? 0 : UINT64_MAX / 2;
        REQUIRE(sn_transport_send(transport, peer, &msg, &err));
        protocol_swarm_run(c, 0.1);
        REQUIRE(sn_transport_recv(transport, 0, &event, &err));
        cr_assert(event.msg && event.msg->kind == SN_MSG_PEERS_REPLY);
        n_announced += event.msg->peers_reply.n_announcements;
        cr_expect_eq(event.msg->peers_reply.next_tag, 0);
        from = from ? 0 : UINT64_MAX / 2 + 1;
        sn_msg_free(&event.msg);
    } while (++pages < 2);
    cr_expect_eq(n_announced, 20);
    sn_msg *msg = NULL;
    sn_event event = {0};
    REQUIRE(sn_msg_new(SN_MSG_PEERS, 1, &msg, &err));
    msg->peers.protocol = SN_PROTOCOL_VERSION;
    msg->peers.first_block = 2;
    msg->peers.end_block = 4;
    REQUIRE(sn_transport_send(transport, peer, &msg, &err));
    protocol_swarm_run(c, 0.1);
    REQUIRE(sn_transport_recv(transport, 0, &event, &err));
    of_block = event.msg->peers_reply.n_announcements;
    cr_expect_eq(of_block, 6, "%zu nodes serve block 2 or 3", of_block); /* 2 3 10 11 18 19 */
    sn_msg_free(&event.msg);
    sn_transport_free(&transport);
    protocol_swarm_free(c);
}

/* The page is 64 KiB; a stranger that asks again and again gets a burst, and then a rate. Others get theirs. */
Test(gossip, pages_have_an_allowance_for_each_peer, .timeout = 60) {
    sn_allowance *allowance = calloc(1, sizeof *allowance);
    sn_allowance_peer peer = {.key = {1}}, other = {.key = {2}};
    int64_t now_us = 1000000;
    int wait_ms;
    size_t got = 0, page;
    while ((page = sn_min_size(65536, sn_allowance_left(allowance, &peer, now_us, &wait_ms)))) {
        sn_allowance_spend(allowance, &peer, page, now_us);
        got += page;
    }
    cr_expect_eq(got, SN_ALLOWANCE_BURST);
    cr_expect_gt(wait_ms, 0);
    cr_expect_eq(sn_allowance_left(allowance, &other, now_us, &wait_ms), SN_ALLOWANCE_BURST);
    now_us += 2000000;
    cr_expect_eq(sn_allowance_left(allowance, &peer, now_us, &wait_ms), 2 * SN_ALLOWANCE_BYTES_PER_S);
    got = 0;
    for (uint64_t i = 3; i < 3000; i++) { /* keys cost nothing */
        memcpy(peer.key, &i, sizeof i);
        got += page = sn_allowance_left(allowance, &peer, now_us, &wait_ms);
        sn_allowance_spend(allowance, &peer, page, now_us);
    }
    cr_expect_leq(got, (size_t)SN_ALLOWANCE_ALL_BURST);
    free(allowance);
}

/* Programs of one address leave others some, however many keys they have. */
Test(gossip, pages_have_an_allowance_for_each_address) {
    sn_allowance *allowance = calloc(1, sizeof *allowance);
    sn_allowance_peer peer = {.network = {127, 0, 0, 9}}, other = {.key = {2}, .network = {127, 0, 0, 1}};
    int64_t now_us = 1000000;
    size_t got = 0, page;
    int wait_ms;
    for (uint64_t second = 0; second < 60; second++, now_us += 1000000)
        for (uint64_t i = 1; i < 300; i++) {
            uint64_t number = second * 1000 + i;
            memcpy(peer.key, &number, sizeof number);
            got += page = sn_allowance_left(allowance, &peer, now_us, &wait_ms);
            cr_assert(page || (wait_ms > 0 && wait_ms <= 2000), "it may ask again after %d ms", wait_ms);
            sn_allowance_spend(allowance, &peer, page, now_us);
        }
    cr_expect_leq(got, (size_t)SN_ALLOWANCE_NETWORK_BURST + 60 * (size_t)SN_ALLOWANCE_NETWORK_BYTES_PER_S);
    cr_expect_eq(sn_allowance_left(allowance, &other, now_us, &wait_ms), SN_ALLOWANCE_BURST);
    free(allowance);
}

Test(gossip, a_program_that_asks_for_page_after_page_is_refused_and_others_are_not, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    protocol_swarm_add(c, -1);
    for (int i = 1; i < 20; i++) protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 30);
    size_t lists = 0, refusals = 0, bytes = 0;
    for (int who = 0; who < 2; who++) {
        sn_identity identity;
        sn_transport *transport = NULL;
        sn_peer peer;
        REQUIRE(sn_identity_new(&identity, &err));
        REQUIRE(sn_transport_memory_new(c->hub, &identity, &transport, &err));
        REQUIRE(sn_transport_dial(transport, "node5:1", c->nodes[5].identity.curve_key, &peer, &err));
        for (int i = 0; i < (who ? 1 : 200); i++) {
            sn_msg *msg = NULL;
            REQUIRE(sn_msg_new(SN_MSG_PEERS, 1, &msg, &err));
            msg->peers.protocol = SN_PROTOCOL_VERSION;
            REQUIRE(sn_transport_send(transport, peer, &msg, &err));
        }
        protocol_swarm_run(c, 0.1);
        sn_event event;
        for (;;) {
            REQUIRE(sn_transport_recv(transport, 0, &event, &err));
            if (!event.peer) break;
            bool list = event.msg && event.msg->kind == SN_MSG_PEERS_REPLY;
            lists += list;
            refusals += !list;
            for (size_t i = 0; list && i < event.msg->peers_reply.n_announcements; i++)
                bytes += event.msg->peers_reply.announcements[i].len;
            sn_msg_free(&event.msg);
        }
        sn_transport_free(&transport);
        cr_expect_eq(refusals + lists, who ? 201 : 200);
        if (!who) cr_expect(refusals > 100 && bytes < SN_ALLOWANCE_BURST + 65536, "%zu bytes", bytes);
        if (!who) lists = 0, refusals = 200;
    }
    cr_expect_eq(lists, 1, "the other program was refused, too");
    protocol_swarm_free(c);
}

/* -- invented nodes ------------------------------------------------------------------------------------------------ */

enum { HONEST = 5, INVENTED = 600, DIRECTORY = 256 };

/* A stranger's announcements, and its connections to the honest nodes. */
static struct {
    sn_identity identity, invented[INVENTED];
    sn_transport *transport;
    sn_peer to[HONEST];
    sn_buf sealed[INVENTED];
    size_t next;
    bool renews; /* each time an announcement is handed over again it is a new one */
} flood;

/* Seals what this invented node says now. */
static void flood_announce(const protocol_swarm *c, int i) {
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

static void flood_begin(protocol_swarm *c) {
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

/* In each time step every honest node gets another two of them. */
static void flood_step(protocol_swarm *c) {
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

static void flood_end(void) {
    for (int i = 0; i < INVENTED; i++) sn_buf_fini(&flood.sealed[i]);
    sn_transport_free(&flood.transport);
}

/* Each directory has place for 256 nodes, and the stranger invents 600. The node that the others joined is gone. */
Test(gossip, a_flood_of_invented_nodes_does_not_part_the_others, .timeout = 120) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    protocol_swarm_add(c, -1);
    for (int i = 1; i < HONEST; i++) protocol_swarm_add(c, 0);
    for (int i = 0; i < HONEST; i++) sn_directory_limit(c->nodes[i].protocol->membership->directory, DIRECTORY);
    protocol_swarm_run(c, 30);
    cr_assert_eq(protocol_swarm_least_known(c), HONEST);
    flood_begin(c);
    kill_node(c, 0);
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
    flood_end();
    protocol_swarm_free(c);
}

/* Twelve nodes with little bandwidth, to five of which a stranger brings four times as much as they could pass on. */
Test(gossip, a_flood_of_announcements_does_not_hold_up_those_of_others, .timeout = 120) {
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
    flood_end();
    protocol_swarm_free(c);
}

/* -- the time that verification takes ------------------------------------------------------------------------------ */

static int news_allowed(sn_news_allowance *allowance, uint64_t network, bool dialled, int64_t now_us) {
    uint8_t source[SN_ADDRESS_PREFIX];
    int n = 0;
    memcpy(source, &network, sizeof source);
    while (n < 2 * SN_NEWS_BURST && sn_news_allowed(allowance, source, dialled, now_us)) n++;
    return n;
}

Test(gossip, announcements_are_verified_at_a_rate_for_each_address_and_for_all) {
    sn_news_allowance *allowance = calloc(1, sizeof *allowance);
    int64_t now_us = 1000000;
    cr_expect_eq(news_allowed(allowance, 7, false, now_us), SN_NEWS_BURST);
    for (int i = 0; i < 400; i++) sn_news_allowed(allowance, (uint8_t[SN_ADDRESS_PREFIX]){7}, false, now_us += 5000);
    now_us += 2000000;
    cr_expect_eq(news_allowed(allowance, 7, false, now_us), 2 * SN_NEWS_PER_S);
    now_us += 100000000;
    int all = 0;
    for (uint64_t network = 1; network < 100; network++) all += news_allowed(allowance, network, false, now_us);
    cr_expect_eq(all, SN_NEWS_ALL_BURST, "many addresses have more");
    now_us += 1000000;
    for (uint64_t network = 1000; network < 1100; network++) all += news_allowed(allowance, network, false, now_us);
    cr_expect_eq(all, SN_NEWS_ALL_BURST + SN_NEWS_ALL_PER_S);
    cr_expect_eq(news_allowed(allowance, 7, true, now_us), SN_NEWS_BURST,
                 "a peer that this node dialled waits for them");
    cr_expect_eq(news_allowed(allowance, 0, false, now_us), 2 * SN_NEWS_BURST, "an unknown address is limited");
    free(allowance);
}

/* Brings n announcements at once: flood.sealed[first], then the following ones, or forged ones. */
static void bring(protocol_swarm *c, uint8_t network, size_t first, size_t n, bool forged) {
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

static bool is_known(const protocol_swarm *c, int invented) {
    return sn_directory_find(sn_protocol_directory(c->nodes[0].protocol), flood.invented[invented].id) != NULL;
}

/* A stranger brings announcements with wrong signatures, hundreds in a message: after some thousands no further one
 * of its address is verified, but the first of each message, which may be that of a node of the same address. */
Test(gossip, forged_announcements_of_an_address_take_a_bounded_time) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    for (int i = 0; i < HONEST; i++) protocol_swarm_add(c, i ? 0 : -1);
    flood_begin(c);
    for (int i = 0; i <= SN_NEWS_BURST / 250; i++) bring(c, 1, 0, 252, true);
    cr_expect(!is_known(c, 0));
    bring(c, 1, 1, 2, false);
    cr_expect(is_known(c, 1), "a node cannot bring its own");
    cr_expect(!is_known(c, 2), "it was verified");
    bring(c, 2, 3, 2, false);
    cr_expect(is_known(c, 3) && is_known(c, 4), "those of another address were not verified");
    flood_end();
    protocol_swarm_free(c);
}

/* What no announcement is, is asked for again and again: each time all of a large directory are looked at. */
Test(gossip, looking_for_what_is_not_there_counts_in_the_allowance, .timeout = 60) {
    enum { QUESTIONS = 1000 };
    protocol_swarm *c = protocol_swarm_new(8, 0);
    for (int i = 0; i < HONEST; i++) protocol_swarm_add(c, i ? 0 : -1);
    flood_begin(c);
    for (int i = 0; i < 500; i += 250) bring(c, 1, (size_t)i, 250, false);
    sn_membership *m = c->nodes[0].protocol->membership;
    sn_event event = {.peer = 1, .key = {9}, .network = {10, 0, 0, 9}};
    sn_allowance_peer peer = {.key = {9}, .network = {10, 0, 0, 9}};
    int wait_ms = 0;
    for (int pulls = 0; pulls < 2; pulls++) {
        REQUIRE(sn_msg_new(SN_MSG_PEERS, 1, &event.msg, &err));
        event.msg->peers.protocol = SN_PROTOCOL_VERSION;
        snprintf(event.msg->peers.name, sizeof event.msg->peers.name, "absent");
        if (pulls) REQUIRE(sn_list_new(1, 1, sizeof *event.msg->peers.known, &event.msg->peers.known, &err));
        event.msg->peers.n_known = (size_t)pulls;
        for (int i = 0; i < QUESTIONS; i++) sn_membership_on_peers(m, &event, c->now_us, c->unix_ms);
        sn_msg_free(&event.msg);
        cr_expect_eq(sn_allowance_left(&m->allowance, &peer, c->now_us, &wait_ms), 0, "it may look for ever");
    }
    cr_expect_lt(wait_ms, 10000, "what is not looked at counts: %d ms", wait_ms);
    flood_end();
    protocol_swarm_free(c);
}

/* A client asks for each node of --only by its name: in a full directory, too, it is to be told of all of them. */
Test(gossip, a_client_may_look_for_all_its_nodes_in_a_full_directory, .timeout = 60) {
    enum { PAGE = 65536 };
    protocol_swarm *c = protocol_swarm_new(8, 0);
    for (int i = 0; i < HONEST; i++) protocol_swarm_add(c, i ? 0 : -1);
    flood_begin(c);
    for (int i = 0; i < 500; i += 250) bring(c, 1, (size_t)i, 250, false);
    sn_membership *m = c->nodes[0].protocol->membership;
    sn_event event = {.peer = 1, .key = {9}, .network = {10, 0, 0, 9}};
    sn_allowance_peer peer = {.key = {9}, .network = {10, 0, 0, 9}};
    int wait_ms = 0;
    REQUIRE(sn_msg_new(SN_MSG_PEERS, 1, &event.msg, &err));
    event.msg->peers.protocol = SN_PROTOCOL_VERSION;
    snprintf(event.msg->peers.name, sizeof event.msg->peers.name, "absent");
    for (int i = 0; i < SN_LINK_WANTED_MAX; i++) sn_membership_on_peers(m, &event, c->now_us, c->unix_ms);
    size_t spent = SN_ALLOWANCE_BURST - sn_allowance_left(&m->allowance, &peer, c->now_us, &wait_ms);
    size_t listed = sn_directory_known_count(sn_protocol_directory(c->nodes[0].protocol));
    cr_assert_geq(listed, 200);
    cr_expect_lt(PAGE + spent * SN_DIRECTORY_MAX / listed, SN_ALLOWANCE_BURST, "%zu of %zu are too many", spent,
                 listed);
    sn_msg_free(&event.msg);
    flood_end();
    protocol_swarm_free(c);
}

/* One peer that pulls again and again would have all of the gossip's bandwidth. */
Test(gossip, a_byte_of_a_pull_costs_eight_of_the_allowance) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    for (int i = 0; i < HONEST; i++) protocol_swarm_add(c, i ? 0 : -1);
    flood_begin(c);
    bring(c, 1, 0, 100, false);
    sn_membership *m = c->nodes[0].protocol->membership;
    sn_event event = {.peer = 1, .key = {9}, .network = {10, 0, 0, 9}};
    sn_allowance_peer peer = {.key = {9}, .network = {10, 0, 0, 9}};
    int wait_ms;
    REQUIRE(sn_msg_new(SN_MSG_PEERS, 1, &event.msg, &err));
    event.msg->peers.protocol = SN_PROTOCOL_VERSION;
    REQUIRE(sn_list_new(1, 1, sizeof *event.msg->peers.known, &event.msg->peers.known, &err));
    event.msg->peers.n_known = 1;
    size_t before = sn_gossip_reply_budget(m, c->now_us);
    sn_membership_on_peers(m, &event, c->now_us, c->unix_ms);
    size_t bytes = before - sn_gossip_reply_budget(m, c->now_us);
    size_t spent = SN_ALLOWANCE_BURST - sn_allowance_left(&m->allowance, &peer, c->now_us, &wait_ms);
    cr_expect_gt(bytes, 1000);
    cr_expect_geq(spent, 8 * bytes, "%zu bytes cost %zu", bytes, spent);
    sn_msg_free(&event.msg);
    flood_end();
    protocol_swarm_free(c);
}

/* They would count as those of a peer that this node chose, and outlast those of the others. */
Test(gossip, a_list_that_was_not_asked_for_is_dropped) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    for (int i = 0; i < HONEST; i++) protocol_swarm_add(c, i ? 0 : -1);
    flood_begin(c);
    sn_event event = {.peer = 1000000, .key = {9}, .network = {10, 0, 0, 9}};
    REQUIRE(sn_msg_new(SN_MSG_PEERS_REPLY, 1, &event.msg, &err));
    sn_msg_peers_reply *reply = &event.msg->peers_reply;
    REQUIRE(sn_list_new(1, SN_ANNOUNCEMENTS_MAX, sizeof *reply->announcements, &reply->announcements, &err));
    const sn_blob sealed = {flood.sealed[0].data, flood.sealed[0].len};
    REQUIRE(sn_membership_copy_blob(&sealed, &reply->announcements[reply->n_announcements++], &err));
    sn_membership_on_peers_reply(c->nodes[0].protocol->membership, &event, c->now_us, c->unix_ms);
    cr_expect(!is_known(c, 0));
    sn_msg_free(&event.msg);
    flood_end();
    protocol_swarm_free(c);
}

Test(gossip, a_node_is_proven_by_its_own_key_and_for_ten_minutes) {
    enum { TEN_MINUTES_MS = 600000 };
    protocol_swarm *c = protocol_swarm_new(8, 0);
    for (int i = 0; i < HONEST; i++) protocol_swarm_add(c, i ? 0 : -1);
    flood_begin(c);
    bring(c, 1, 0, 1, false);
    sn_membership *m = c->nodes[0].protocol->membership;
    const sn_directory *d = sn_protocol_directory(c->nodes[0].protocol);
    const sn_identity *node = &flood.invented[0];
    sn_membership_prove(m, node->id, flood.invented[1].curve_key, c->unix_ms);
    cr_expect(!sn_directory_is_proven(d, node->id, c->unix_ms), "another key has proven it");
    sn_membership_prove(m, node->id, node->curve_key, c->unix_ms);
    cr_expect(sn_directory_is_proven(d, node->id, c->unix_ms + TEN_MINUTES_MS - 1));
    cr_expect(!sn_directory_is_proven(d, node->id, c->unix_ms + TEN_MINUTES_MS + 1));
    flood_end();
    protocol_swarm_free(c);
}

static int n_asked_for_an_answer;
static void count_asked(void *ctx, const sn_announcement *node, int64_t now_us) {
    (void)ctx, (void)node, (void)now_us;
    n_asked_for_an_answer++;
}

/* A joined node may say that it has proven any number. */
Test(gossip, sixteen_nodes_of_a_joined_ones_list_are_asked_for_an_answer) {
    enum { PROVEN = 40 };
    protocol_swarm *c = protocol_swarm_new(8, 0);
    for (int i = 0; i < HONEST; i++) protocol_swarm_add(c, i ? 0 : -1);
    flood_begin(c);
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
    flood_end();
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

Test(gossip, the_first_page_begins_with_the_node_and_those_that_it_has_proven, .timeout = 60) {
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
    flood_end();
    protocol_swarm_free(c);
}

/* -- nodes that were found in a DHT -------------------------------------------------------------------------------- */

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

/* The joined node's directory is full of invented nodes, and it has proven the others. */
Test(gossip, a_newcomer_meets_the_nodes_that_the_joined_one_has_proven, .timeout = 60) {
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
    flood_end();
    protocol_swarm_free(c);
}
