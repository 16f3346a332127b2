/* What a peer and an address may ask for and bring: lists of announcements, pulls, and announcements to be verified. */
#include "base/mem.h"
#include "client/net/link.h" /* how many nodes a client looks for */
#include "tests/support/flood.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The page is 64 KiB; a stranger that asks again and again gets a burst, and then a rate. Others get theirs. */
Test(gossip_allowance, pages_have_an_allowance_for_each_peer, .timeout = 60) {
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
Test(gossip_allowance, pages_have_an_allowance_for_each_address) {
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

Test(gossip_allowance, a_program_that_asks_for_page_after_page_is_refused_and_others_are_not, .timeout = 60) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    protocol_swarm_add(c, -1);
    for (int i = 1; i < 20; i++) protocol_swarm_add(c, 0);
    protocol_swarm_run(c, 30);
    size_t lists = 0, refusals = 0, bytes = 0;
    for (int who = 0; who < 2; who++) {
        sn_peer peer;
        sn_transport *transport = protocol_swarm_stranger(c, 5, &peer);
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

/* -- what a question costs */

static const sn_allowance_peer asker = {.key = {9}, .network = {10, 0, 0, 9}};

/* A PEERS of the asker, for a node with this name ("": for any), which knows so many announcements. */
static sn_event question(const char *name, size_t n_known) {
    sn_event event = {.peer = 1, .key = {9}, .network = {10, 0, 0, 9}};
    REQUIRE(sn_msg_new(SN_MSG_PEERS, 1, &event.msg, &err));
    sn_msg_peers *peers = &event.msg->peers;
    peers->protocol = SN_PROTOCOL_VERSION;
    snprintf(peers->name, sizeof peers->name, "%s", name);
    if (n_known) REQUIRE(sn_list_new(n_known, n_known, sizeof *peers->known, &peers->known, &err));
    peers->n_known = n_known;
    return event;
}

/* Node 0 knows hundreds of nodes. */
static protocol_swarm *swarm_with_full_directory(void) {
    protocol_swarm *c = flood_swarm();
    for (size_t i = 0; i < 500; i += 250) flood_bring(c, 1, i, 250, false);
    return c;
}

/* What no announcement is, is asked for again and again: each time all of a large directory are looked at. */
Test(gossip_allowance, looking_for_what_is_not_there_counts_in_the_allowance, .timeout = 60) {
    enum { QUESTIONS = 1000 };
    protocol_swarm *c = swarm_with_full_directory();
    sn_membership *m = c->nodes[0].protocol->membership;
    int wait_ms = 0;
    for (size_t pulls = 0; pulls < 2; pulls++) {
        sn_event event = question("absent", pulls);
        for (int i = 0; i < QUESTIONS; i++) sn_membership_on_peers(m, &event, c->now_us, c->unix_ms);
        sn_msg_free(&event.msg);
        cr_expect_eq(sn_allowance_left(&m->allowance, &asker, c->now_us, &wait_ms), 0, "it may look for ever");
    }
    cr_expect_lt(wait_ms, 10000, "what is not looked at counts: %d ms", wait_ms);
    flood_end(c);
}

/* A client asks for each node of --only by its name: in a full directory, too, it is to be told of all of them. */
Test(gossip_allowance, a_client_may_look_for_all_its_nodes_in_a_full_directory, .timeout = 60) {
    enum { PAGE = 65536 };
    protocol_swarm *c = swarm_with_full_directory();
    sn_membership *m = c->nodes[0].protocol->membership;
    int wait_ms = 0;
    sn_event event = question("absent", 0);
    for (int i = 0; i < SN_LINK_WANTED_MAX; i++) sn_membership_on_peers(m, &event, c->now_us, c->unix_ms);
    size_t spent = SN_ALLOWANCE_BURST - sn_allowance_left(&m->allowance, &asker, c->now_us, &wait_ms);
    size_t listed = sn_directory_known_count(sn_protocol_directory(c->nodes[0].protocol));
    cr_assert_geq(listed, 200);
    cr_expect_lt(PAGE + spent * SN_DIRECTORY_MAX / listed, SN_ALLOWANCE_BURST, "%zu of %zu are too many", spent,
                 listed);
    sn_msg_free(&event.msg);
    flood_end(c);
}

/* One peer that pulls again and again would have all of the gossip's bandwidth. */
Test(gossip_allowance, a_byte_of_a_pull_costs_eight_of_the_allowance) {
    protocol_swarm *c = flood_swarm();
    flood_bring(c, 1, 0, 100, false);
    sn_membership *m = c->nodes[0].protocol->membership;
    int wait_ms;
    sn_event event = question("", 1);
    size_t before = sn_gossip_reply_budget(m, c->now_us);
    sn_membership_on_peers(m, &event, c->now_us, c->unix_ms);
    size_t bytes = before - sn_gossip_reply_budget(m, c->now_us);
    size_t spent = SN_ALLOWANCE_BURST - sn_allowance_left(&m->allowance, &asker, c->now_us, &wait_ms);
    cr_expect_gt(bytes, 1000);
    cr_expect_geq(spent, 8 * bytes, "%zu bytes cost %zu", bytes, spent);
    sn_msg_free(&event.msg);
    flood_end(c);
}

/* -- the time that verification takes */

static int news_allowed(sn_news_allowance *allowance, uint64_t network, bool dialled, int64_t now_us) {
    uint8_t source[SN_ADDRESS_PREFIX];
    int n = 0;
    memcpy(source, &network, sizeof source);
    while (n < 2 * SN_NEWS_BURST && sn_news_allowed(allowance, source, dialled, now_us)) n++;
    return n;
}

Test(gossip_allowance, announcements_are_verified_at_a_rate_for_each_address_and_for_all) {
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

/* A stranger brings announcements with wrong signatures, hundreds in a message: after some thousands no further one
 * of its address is verified, but the first of each message, which may be that of a node of the same address. */
Test(gossip_allowance, forged_announcements_of_an_address_take_a_bounded_time) {
    protocol_swarm *c = flood_swarm();
    for (int i = 0; i <= SN_NEWS_BURST / 250; i++) flood_bring(c, 1, 0, 252, true);
    cr_expect(!flood_known(c, 0));
    flood_bring(c, 1, 1, 2, false);
    cr_expect(flood_known(c, 1), "a node cannot bring its own");
    cr_expect(!flood_known(c, 2), "it was verified");
    flood_bring(c, 2, 3, 2, false);
    cr_expect(flood_known(c, 3) && flood_known(c, 4), "those of another address were not verified");
    flood_end(c);
}
