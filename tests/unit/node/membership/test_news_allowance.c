/* How many announcements of one source a node verifies (node/membership/allowance.h). */
#include "node/membership/allowance.h"
#include "tests/support/protocol_swarm.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int allowed(sn_news_allowance *news, const uint8_t source[SN_ADDRESS_PREFIX], bool dialled, int n) {
    int count = 0;
    for (int i = 0; i < n; i++) count += sn_news_allowed(news, source, dialled, 1000000);
    return count;
}

/* A stranger with many addresses could otherwise make the node forget what a peer that it dialled has used up. */
Test(news_allowance, addresses_give_no_peer_that_was_dialled_a_new_allowance) {
    sn_news_allowance *news = calloc(1, sizeof *news);
    const uint8_t peer[SN_ADDRESS_PREFIX] = {0x2a};
    cr_assert_eq(allowed(news, peer, true, 2 * SN_NEWS_BURST), SN_NEWS_BURST);
    for (int i = 1; i < 1024; i++) {
        const uint8_t address[SN_ADDRESS_PREFIX] = {(uint8_t)i, 1, (uint8_t)(i >> 8)};
        allowed(news, address, false, 1);
    }
    cr_expect_eq(allowed(news, peer, true, 2 * SN_NEWS_BURST), 0);
    free(news);
}

static int first_allowed(sn_news_allowance *news, uint64_t peer, int64_t now_us) {
    int count = 0;
    for (int i = 0; i < 1000; i++) count += sn_news_first_allowed(news, peer, now_us);
    return count;
}

/* In a full directory one takes three times as long as another question: 4096 of them a second take all the time. */
Test(news_allowance, a_connection_brings_few_first_ones_beside_the_rate_of_its_address) {
    sn_news_allowance *news = calloc(1, sizeof *news);
    const uint64_t peer = UINT64_C(1) << 63 | 1 << 13 | 5, neighbour = UINT64_C(1) << 63 | 1 << 13 | 6;
    int64_t now_us = 1000000;
    cr_expect_eq(first_allowed(news, peer, now_us), SN_NEWS_FIRSTS_BURST);
    cr_expect_eq(first_allowed(news, neighbour, now_us), SN_NEWS_FIRSTS_BURST, "connections share a rate");
    cr_expect_eq(first_allowed(news, peer, now_us), 0);
    cr_expect_eq(first_allowed(news, peer, now_us += 3000000), 3 * SN_NEWS_FIRSTS_PER_S);
    cr_expect_eq(first_allowed(news, peer, now_us += 3600000000), SN_NEWS_FIRSTS_BURST, "it may come much later");
    free(news);
}

/* What an invented node says. */
static sn_buf invent(const protocol_swarm *c) {
    sn_identity invented;
    sn_buf sealed;
    sn_announcement *a = calloc(1, sizeof *a);
    REQUIRE(sn_identity_new(&invented, &err));
    *a = (sn_announcement){.protocol = SN_PROTOCOL_VERSION,
                           .sequence = (uint64_t)c->unix_ms,
                           .expires_unix_ms = (uint64_t)c->unix_ms + SN_ANNOUNCE_LIFE_MS,
                           .state = SN_NODE_ONLINE,
                           .end_block = 1,
                           .n_blocks = 8};
    memcpy(a->node, invented.id, SN_KEY_SIZE);
    memcpy(a->curve_key, invented.curve_key, SN_KEY_SIZE);
    snprintf(a->address, sizeof a->address, "invented:1");
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    REQUIRE(sn_announcement_seal(a, &invented, &sealed, &err));
    free(a);
    return sealed;
}

static void invent_list(const protocol_swarm *c, size_t n, sn_blob **out, size_t *n_out) {
    REQUIRE(sn_list_new(n, SN_ANNOUNCEMENTS_MAX, sizeof **out, out, &err));
    for (*n_out = 0; *n_out < n; ++*n_out) {
        sn_buf sealed = invent(c);
        REQUIRE(sn_membership_copy_blob(&(sn_blob){sealed.data, sealed.len}, &(*out)[*n_out], &err));
        sn_buf_fini(&sealed);
    }
}

/* Brings n new announcements over one connection, so many in a message; returns how many the node learnt. */
static size_t bring(protocol_swarm *c, sn_peer peer, size_t n, size_t of_message) {
    sn_membership *m = c->nodes[0].protocol->membership;
    size_t before = sn_directory_known_count(m->directory);
    for (size_t i = 0; i < n; i += of_message) {
        sn_event event = {.peer = peer, .network = {10, 0, 0, 1}};
        REQUIRE(sn_msg_new(SN_MSG_PEERS, 1, &event.msg, &err));
        sn_msg_peers *peers = &event.msg->peers;
        peers->protocol = SN_PROTOCOL_VERSION;
        peers->from_tag = UINT64_MAX;
        invent_list(c, of_message, &peers->announcements, &peers->n_announcements);
        sn_membership_on_peers(m, &event, c->now_us, c->unix_ms);
        sn_msg_free(&event.msg);
    }
    return sn_directory_known_count(m->directory) - before;
}

/* Replies with n new ones as a peer that the node has dialled. */
static size_t reply(protocol_swarm *c, sn_peer peer, size_t n) {
    sn_membership *m = c->nodes[0].protocol->membership;
    size_t before = sn_directory_known_count(m->directory);
    for (size_t i = 0; i < n; i += 256) {
        sn_event event = {.peer = peer, .dialled = true};
        REQUIRE(sn_msg_new(SN_MSG_PEERS_REPLY, 1, &event.msg, &err));
        invent_list(c, 256, &event.msg->peers_reply.announcements, &event.msg->peers_reply.n_announcements);
        sn_membership_on_peers_reply(m, &event, c->now_us, c->unix_ms);
        sn_msg_free(&event.msg);
    }
    return sn_directory_known_count(m->directory) - before;
}

Test(news_allowance, announcements_that_come_one_by_one_have_a_rate, .timeout = 120) {
    protocol_swarm *c = protocol_swarm_new(8, 0);
    protocol_swarm_add(c, -1);
    cr_assert_eq(bring(c, 1, SN_NEWS_BURST, 256), SN_NEWS_BURST);
    cr_expect_eq(bring(c, 1, 4 * SN_NEWS_FIRSTS_BURST, 1), SN_NEWS_FIRSTS_BURST);
    cr_expect_eq(bring(c, 2, 1, 1), 1, "another connection of the address brings nothing");
    protocol_swarm_free(c);
}

/* Each neighbour that hangs up is replaced at once by another node, which may be an invented one, too. */
Test(news_allowance, neighbours_that_follow_each_other_have_one_rate, .timeout = 120) {
    enum { JOINED = 7000, FIRST = 8000, NEIGHBOURS = SN_NEWS_MET_BURST / SN_NEWS_BURST };
    protocol_swarm *c = protocol_swarm_new(8, 0);
    protocol_swarm_add(c, -1);
    sn_membership *m = c->nodes[0].protocol->membership;
    m->gossip.n_neighbours = 1;
    for (int i = 0; i < NEIGHBOURS; i++) {
        m->gossip.neighbours[0] = (sn_neighbour){.peer = FIRST + (sn_peer)i};
        cr_expect_eq(reply(c, FIRST + (sn_peer)i, SN_NEWS_BURST), SN_NEWS_BURST);
    }
    m->gossip.neighbours[0].peer = FIRST + NEIGHBOURS;
    cr_expect_eq(reply(c, FIRST + NEIGHBOURS, 256), 0);
    m->bootstrap_peers[m->n_bootstrap_peers++] = (sn_bootstrap_peer){.peer = JOINED};
    cr_expect_eq(reply(c, JOINED, 256), 256, "a joined node waits for others");
    m->n_bootstrap_peers--;
    m->gossip.n_neighbours = 0;
    protocol_swarm_free(c);
}
