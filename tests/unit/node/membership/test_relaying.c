/* How a node finds out how others reach it (node/membership/reach.h), and what it does for others (relaying.h). The
 * transport is a table of this test, which sees what is sent; the clock is the test's; the portals are real. */
#include "base/clock.h"
#include "net/transport/portal.h"
#include "node/membership/membership_private.h" /* private: round trips as if they had been measured */
#include "node/membership/reach.h"
#include "tests/support/require.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h> /* Criterion needs it for its .timeout */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SECOND = 1000000, T0 = 100 * SECOND, SENT_MAX = 256, NO_HOST = 77, WAIT_MS = 60000 };
static const int64_t UNIX_MS = 1700000000000;

static sn_transport transport;
static sn_identity identity;
static sn_membership *membership;
static sn_relaying *relaying;
static sn_reach *reach;
static sn_msg *sent[SENT_MAX];
static sn_peer sent_to[SENT_MAX], last_peer, hung_up;
static size_t n_sent;
static char last_dialled[SN_ADDRESS_MAX + 1];
static uint8_t met[SENT_MAX][SN_KEY_SIZE]; /* nodes that were asked for an answer */
static size_t n_met;
static bool proves = true; /* relays that are offered have answered */
static bool maps;
static const char *router_address;
static char own_host[64];

/* -- a transport without a network */

static sn_status fake_dial(sn_transport *t, const char *address, const uint8_t key[SN_KEY_SIZE], sn_peer *out,
                           sn_err *err) {
    (void)t, (void)key, (void)err;
    snprintf(last_dialled, sizeof last_dialled, "%s", address);
    *out = ++last_peer;
    return SN_OK;
}
static void fake_hang_up(sn_transport *t, sn_peer peer) { (void)t, hung_up = peer; }
static bool fake_peer_host(sn_transport *t, sn_peer peer, char host[SN_ADDRESS_MAX + 1]) {
    (void)t;
    snprintf(host, SN_ADDRESS_MAX + 1, "127.0.0.1");
    return peer != NO_HOST;
}
static const sn_transport_ops ops = {.dial = fake_dial, .hang_up = fake_hang_up, .peer_host = fake_peer_host};

static void host_send(void *ctx, sn_peer peer, sn_msg **msg) {
    (void)ctx;
    cr_assert_lt(n_sent, SENT_MAX);
    sent_to[n_sent] = peer;
    sent[n_sent++] = *msg;
    *msg = NULL;
}
static void host_refuse(void *ctx, sn_peer peer, const sn_msg *request, const sn_err *why) {
    sn_msg *msg = NULL;
    REQUIRE(sn_msg_new(SN_MSG_ERROR, request->correlation_id, &msg, &err));
    msg->error.status = (uint64_t)why->status;
    host_send(ctx, peer, &msg);
}
static void host_describe(void *ctx, sn_announcement *own) { (void)ctx, own->n_blocks = 1; }
static void host_meet(void *ctx, const sn_announcement *node, int64_t now_us) {
    (void)ctx, (void)now_us;
    memcpy(met[n_met++ % SENT_MAX], node->node, SN_KEY_SIZE);
}

static bool local_host(void *ctx, char host[SN_ADDRESS_MAX + 1]) {
    (void)ctx;
    snprintf(host, SN_ADDRESS_MAX + 1, "%s", own_host);
    return true;
}
static void map_port(void *ctx) { (void)ctx, maps = true; }
static bool mapped(void *ctx, char address[SN_ADDRESS_MAX + 1]) {
    (void)ctx;
    if (maps && router_address) snprintf(address, SN_ADDRESS_MAX + 1, "%s", router_address);
    return maps && router_address;
}

/* The newest message of this kind, or NULL. */
static sn_msg *find_sent(sn_msg_kind kind, sn_peer *to) {
    for (size_t i = n_sent; i-- > 0;)
        if (sent[i]->kind == kind) {
            if (to) *to = sent_to[i];
            return sent[i];
        }
    return NULL;
}

static void forget_sent(void) {
    while (n_sent) sn_msg_free(&sent[--n_sent]);
}

static void adopt(void *ctx, int fd, const struct sockaddr_storage *from) {
    (void)ctx, (void)from;
    close(fd);
}

static void begin(void) {
    const sn_portal_host none = {.adopt = adopt};
    transport.ops = &ops;
    snprintf(own_host, sizeof own_host, "192.168.1.2");
    REQUIRE(sn_identity_new(&identity, &err));
    REQUIRE(sn_portal_new(&none, 64, &transport.portal, &err));
    const sn_membership_setup setup = {.transport = &transport,
                                       .identity = &identity,
                                       .address = "0.0.0.0:31330",
                                       .name = "n",
                                       .host = {host_send, host_refuse, host_describe, host_meet, NULL, NULL, NULL}};
    REQUIRE(sn_membership_new(&setup, &membership, &err));
    REQUIRE(sn_relaying_new(&transport, membership, 1 << 20, &relaying, &err));
    const sn_reach_setup reach_setup = {.transport = &transport,
                                        .membership = membership,
                                        .relaying = relaying,
                                        .listen = "0.0.0.0:31330",
                                        .asks = true,
                                        .host = {local_host, map_port, mapped, NULL}};
    REQUIRE(sn_reach_new(&reach_setup, &reach, &err));
}
static void end(void) {
    forget_sent();
    sn_reach_free(&reach);
    sn_relaying_free(&relaying);
    sn_membership_free(&membership);
    sn_portal_free(&transport.portal);
}
TestSuite(relaying, .init = begin, .fini = end, .timeout = 180);
TestSuite(reach, .init = begin, .fini = end, .timeout = 180);

static sn_event event_of(sn_msg_kind kind, sn_peer peer, uint8_t key, uint8_t network) {
    sn_event event = {.peer = peer, .key = {key}, .network = {network}};
    REQUIRE(sn_msg_new(kind, 5, &event.msg, &err));
    return event;
}

/* -- what a node does for others */

/* The status of the answer: SN_OK for the reply. */
static int dial_back(sn_peer peer, uint8_t network, int64_t now_us) {
    sn_event event = event_of(SN_MSG_DIAL_BACK, peer, 1, network);
    event.msg->dial_back.protocol = SN_PROTOCOL_VERSION;
    event.msg->dial_back.port = 9;
    sn_relaying_on_dial_back(relaying, &event, now_us);
    sn_msg_free(&event.msg);
    sn_msg *reply = sent[n_sent - 1];
    if (reply->kind == SN_MSG_ERROR) return (int)reply->error.status;
    cr_assert_str_eq(reply->dial_back_reply.address, "127.0.0.1:9", "it dials another host than the one that asks");
    return SN_OK;
}

Test(relaying, dial_backs_go_to_the_host_that_asks_at_a_rate) {
    for (int i = 0; i < SN_DIAL_BACKS_BURST; i++) cr_assert_eq(dial_back(1, 1, T0), SN_OK);
    cr_assert_eq(dial_back(1, 1, T0), SN_RETRY);
    cr_assert_eq(dial_back(2, 1, T0 + SECOND), SN_RETRY, "another connection of the same address is no other asker");
    cr_assert_eq(dial_back(3, 2, T0 + SECOND), SN_OK);
    cr_assert_eq(dial_back(1, 1, T0 + 12 * SECOND), SN_OK);
    cr_assert_eq(dial_back(NO_HOST, 3, T0 + 12 * SECOND), SN_REFUSED, "an address that is not seen was dialled");
}

Test(relaying, dial_backs_to_all_addresses_together_have_a_rate) {
    for (int i = 0; i < SN_DIAL_BACKS_PER_S; i++) cr_assert_eq(dial_back(1, (uint8_t)(10 + i), T0), SN_OK);
    cr_expect_eq(dial_back(1, 200, T0), SN_RETRY);
    cr_expect_eq(dial_back(1, 201, T0 + SECOND), SN_OK);
}

static int register_key(uint8_t key, uint8_t network, sn_peer peer, int64_t now_us) {
    sn_event event = event_of(SN_MSG_RELAY, peer, key, network);
    event.msg->relay.protocol = SN_PROTOCOL_VERSION;
    sn_relaying_on_relay(relaying, &event, now_us);
    sn_msg_free(&event.msg);
    return sent[n_sent - 1]->kind == SN_MSG_ERROR ? (int)sent[n_sent - 1]->error.status : SN_OK;
}

Test(relaying, a_network_address_has_a_quarter_of_the_places) {
    sn_relaying_allow(relaying, true);
    for (int i = 0; i < SN_RELAYED_OF_ADDRESS_MAX; i++)
        cr_assert_eq(register_key((uint8_t)i, 1, (sn_peer)i, T0), SN_OK);
    cr_assert_eq(register_key(100, 1, 100, T0), SN_RETRY);
    cr_assert_eq(register_key(0, 1, 100, T0), SN_OK, "a node renews its place");
    cr_assert_eq(register_key(50, 3, 50, T0), SN_OK);
    cr_assert_eq(register_key(50, 1, 50, T0), SN_RETRY, "a node that has its place already came from a full network");
    cr_assert_eq(register_key(50, 4, 51, T0), SN_OK, "a node's network changes");
    cr_assert_eq(register_key(101, 2, 101, T0), SN_OK);
    cr_assert_eq(sn_relaying_places(relaying), SN_RELAYED_NODES_MAX - SN_RELAYED_OF_ADDRESS_MAX - 2);
}

Test(relaying, places_end_with_the_connection_and_when_they_are_not_renewed) {
    sn_relaying_allow(relaying, true);
    register_key(1, 1, 11, T0);
    register_key(2, 1, 12, T0);
    sn_relaying_peer_gone(relaying, 11);
    cr_assert_eq(sn_portal_read_stats(transport.portal).relayed_nodes, 1);
    sn_relaying_tick(relaying, T0 + (int64_t)SN_RELAY_LIFE_MS * 1000);
    cr_assert_eq(sn_portal_read_stats(transport.portal).relayed_nodes, 0);
    cr_assert_eq(sn_relaying_places(relaying), SN_RELAYED_NODES_MAX);
}

Test(relaying, a_node_is_no_relay_before_it_knows_that_others_reach_it) {
    cr_assert_eq(sn_relaying_places(relaying), 0);
    cr_assert_eq(register_key(1, 1, 11, T0), SN_REFUSED);
}

/* -- how others reach it */

static int listens; /* the socket of the relay's portal */
static struct {
    uint8_t data[SN_ANNOUNCEMENT_SIZE_MAX];
    size_t len;
} offered; /* the announcement that came last */
static char relay_address[32];
static sn_peer joined;

/* The joined node announces one that would be a relay; returns its tag. */
static uint64_t offer_relay_of(const char *address, sn_reach_kind how) {
    sn_identity other;
    sn_buf sealed;
    sn_announcement a = {.protocol = SN_PROTOCOL_VERSION,
                         .sequence = 1,
                         .expires_unix_ms = (uint64_t)UNIX_MS + 60000,
                         .state = SN_NODE_ONLINE,
                         .relay_places = 4,
                         .reach = how,
                         .end_block = 1,
                         .n_blocks = 1};
    REQUIRE(sn_identity_new(&other, &err));
    memcpy(a.node, other.id, SN_KEY_SIZE);
    memcpy(a.curve_key, other.curve_key, SN_KEY_SIZE);
    snprintf(a.address, sizeof a.address, "%s", address);
    sn_buf_init(&sealed, SN_ANNOUNCEMENT_SIZE_MAX);
    REQUIRE(sn_announcement_seal(&a, &other, &sealed, &err));
    sn_event event = event_of(SN_MSG_PEERS_REPLY, joined, 9, 0);
    const sn_blob blob = {sealed.data, sealed.len};
    memcpy(offered.data, sealed.data, offered.len = sealed.len);
    REQUIRE(sn_announcement_list(&blob, &event.msg->peers_reply.announcements, &event.msg->peers_reply.n_announcements,
                                 &err));
    sn_membership_handle(membership, &event, T0, UNIX_MS);
    if (proves) sn_membership_prove(membership, other.id, other.curve_key, UNIX_MS);
    sn_msg_free(&event.msg);
    sn_buf_fini(&sealed);
    return sn_node_tag(other.id);
}

static uint64_t offer_relay(const char *address) { return offer_relay_of(address, SN_REACH_DIRECT); }

static void ping_took(uint64_t tag, int ms) {
    static uint64_t id;
    sn_ping_stats_sent(&membership->ping_stats, 1, ++id, tag, 0, T0);
    sn_ping_stats_answered(&membership->ping_stats, 1, id, T0 + 1000 * ms);
}

/* The node joins one, which answers with the announcement of a relay. */
static void join(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    uint8_t key[SN_KEY_SIZE] = {9};
    listens = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    cr_assert(!bind(listens, (struct sockaddr *)&at, len) && !listen(listens, 8) &&
              !getsockname(listens, (struct sockaddr *)&at, &len));
    snprintf(relay_address, sizeof relay_address, "127.0.0.1:%d", ntohs(at.sin_port));
    sn_membership_join(membership, "203.0.113.1:31330", key);
    joined = last_peer;
    offer_relay(relay_address);
}

/* A round in which this node answers that it sees this address; the token of the joined one comes or does not. */
static void round_answered_by(sn_peer peer, const char *seen, bool comes, int64_t now_us) {
    sn_reach_tick(reach, now_us, UNIX_MS);
    const sn_msg *asked = find_sent(SN_MSG_DIAL_BACK, NULL);
    cr_assert(asked, "no dial-back was asked for");
    sn_event event = event_of(SN_MSG_DIAL_BACK_REPLY, peer, 9, 0);
    event.msg->correlation_id = asked->correlation_id;
    snprintf(event.msg->dial_back_reply.address, SN_ADDRESS_MAX, "%s", seen);
    sn_reach_handle(reach, &event, now_us, UNIX_MS);
    sn_msg_free(&event.msg);
    if (comes) { /* over the portal's own port: this test has none, so the token comes by a pair of sockets */
        int pair[2];
        struct sockaddr_storage from = {.ss_family = AF_INET};
        uint8_t line[8 + SN_TOKEN_SIZE] = "SWARM<1";
        memcpy(line + 8, asked->dial_back.token, SN_TOKEN_SIZE);
        cr_assert(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
        cr_assert_eq(send(pair[0], line, sizeof line, 0), (ssize_t)sizeof line);
        sn_portal_take(transport.portal, pair[1], &from);
        while (!sn_portal_was_reached(transport.portal, asked->dial_back.token)) sn_sleep_us(1000);
        close(pair[0]);
    }
    sn_reach_tick(reach, now_us + 5 * SECOND, UNIX_MS);
}

static void round_of(const char *seen, bool comes, int64_t now_us) { round_answered_by(joined, seen, comes, now_us); }

static const sn_announcement *own(void) {
    sn_membership_announce(membership, T0, UNIX_MS);
    return sn_directory_find(sn_membership_directory(membership), identity.id);
}

Test(reach, an_address_is_announced_when_a_dial_back_has_come) {
    join();
    round_of("203.0.113.5:31330", true, T0);
    cr_expect_str_eq(own()->address, "203.0.113.5:31330");
    cr_expect_eq(own()->reach, SN_REACH_DIRECT);
    cr_expect_gt(own()->relay_places, 0);
    cr_expect_not(maps);
    close(listens);
}

Test(reach, without_a_dial_back_a_relay_is_found_and_the_router_asked) {
    sn_peer relay = 0;
    join();
    round_of("203.0.113.5:31330", false, T0);
    cr_expect(maps, "the router was not asked for a port");
    sn_msg *asked = find_sent(SN_MSG_RELAY, &relay);
    cr_assert(asked, "no relay was asked");
    sn_event event = event_of(SN_MSG_RELAY_REPLY, relay, 9, 0);
    event.msg->correlation_id = asked->correlation_id;
    sn_reach_handle(reach, &event, T0 + 5 * SECOND, UNIX_MS);
    sn_msg_free(&event.msg);
    char expected[64];
    snprintf(expected, sizeof expected, "%s/relay", relay_address);
    cr_expect_str_eq(own()->address, expected);
    cr_expect_eq(own()->reach, SN_REACH_RELAYED);
    cr_expect_eq(own()->relay_places, 0, "a relayed node offers to relay");
    /* The router opens a port after all: it is tried, and the relay is not needed any more. */
    router_address = "203.0.113.5:40000";
    round_of("203.0.113.5:40000", true, T0 + 6 * SECOND);
    cr_expect_str_eq(own()->address, "203.0.113.5:40000");
    cr_expect_eq(own()->reach, SN_REACH_MAPPED);
    close(listens);
}

Test(reach, a_dial_back_to_another_port_proves_nothing) {
    join();
    round_of("203.0.113.5:31331", true, T0);
    cr_expect_str_neq(own()->address, "203.0.113.5:31331", "an address was announced that the node did not ask about");
    close(listens);
}

Test(reach, an_address_that_another_node_has_seen_proves_nothing) {
    join();
    round_answered_by(joined + 1, "203.0.113.66:31330", true, T0);
    cr_expect_str_neq(own()->address, "203.0.113.66:31330", "it was not asked");
    close(listens);
}

Test(reach, connections_to_nodes_found_that_do_not_answer_are_closed) {
    const uint8_t key[SN_KEY_SIZE] = {8};
    cr_assert(sn_membership_join_found(membership, "203.0.113.2:31330", key, T0));
    const sn_peer silent = last_peer;
    cr_expect(sn_membership_wants_found(membership, T0 + 14 * SECOND) && hung_up != silent);
    cr_expect(sn_membership_wants_found(membership, T0 + 16 * SECOND));
    cr_expect_eq(hung_up, silent);
}

Test(reach, the_relay_is_the_nearest_of_those_that_were_measured) {
    enum { RELAYS = 6 };
    static const int ms[RELAYS] = {50, 10, 40, 30, 60, 20};
    char address[32];
    join();
    for (int i = 0; i < RELAYS; i++) {
        snprintf(address, sizeof address, "203.0.113.9:%d", ms[i]);
        ping_took(offer_relay(address), ms[i]);
    }
    ping_took(offer_relay_of("203.0.113.9:1/relay", SN_REACH_RELAYED), 1); /* others do not reach it directly */
    round_of("203.0.113.5:31330", false, T0);
    for (int nth = 1; nth <= RELAYS; nth++) { /* each is lost in turn, and avoided from then on */
        sn_peer relay = 0;
        snprintf(address, sizeof address, "203.0.113.9:%d", 10 * nth);
        cr_assert(find_sent(SN_MSG_RELAY, &relay));
        cr_assert_str_eq(last_dialled, address);
        sn_reach_peer_lost(reach, relay, T0 + 6 * SECOND);
        sn_reach_tick(reach, T0 + 6 * SECOND, UNIX_MS);
    }
    cr_expect_str_eq(last_dialled, relay_address, "of the others, the one that was not measured");
    close(listens);
}

/* A stranger invents relays. None is asked to be one; some of them are asked for an answer at a time, until the one
 * that is real is among them. */
Test(reach, a_relay_is_found_among_invented_ones) {
    enum { INVENTED = 100 };
    char address[32];
    uint64_t real = 0;
    proves = false;
    join();
    for (int i = 0; i < INVENTED; i++) {
        snprintf(address, sizeof address, "203.0.113.%d:9", i);
        uint64_t tag = offer_relay(address);
        if (i == INVENTED / 2) real = tag;
    }
    round_of("203.0.113.5:31330", false, T0);
    cr_expect(n_met > 1 && n_met <= 16, "%zu were asked at a time", n_met);
    size_t seen = 0;
    for (int64_t now_us = T0 + 5 * SECOND; !find_sent(SN_MSG_RELAY, NULL); now_us += SECOND / 2) {
        cr_assert_lt(now_us, T0 + 600 * SECOND, "no relay was found");
        for (; seen < n_met; seen++) {
            const sn_announcement *a = sn_directory_find(sn_membership_directory(membership), met[seen % SENT_MAX]);
            bool proven = sn_node_tag(a->node) == real; /* others answer over a connection with another key */
            sn_membership_prove(membership, a->node, proven ? a->curve_key : identity.curve_key, UNIX_MS);
        }
        sn_reach_tick(reach, now_us, UNIX_MS);
    }
    snprintf(address, sizeof address, "203.0.113.%d:9", INVENTED / 2);
    cr_expect_str_eq(last_dialled, address);
    close(listens);
}

/* A joined node says that it has proven any number of nodes. */
Test(reach, some_of_the_nodes_that_a_joined_one_has_proven_are_met) {
    enum { NODES = 40 };
    char address[32];
    proves = false;
    join();
    sn_event event = event_of(SN_MSG_PEERS_REPLY, joined, 9, 0);
    sn_msg_peers_reply *reply = &event.msg->peers_reply;
    REQUIRE(sn_list_new(NODES, NODES, sizeof *reply->announcements, &reply->announcements, &err));
    reply->n_announcements = reply->proven = NODES;
    for (int i = 0; i < NODES; i++) {
        snprintf(address, sizeof address, "203.0.113.%d:9", i);
        offer_relay(address);
        sn_blob *copy = &reply->announcements[i];
        copy->len = offered.len;
        REQUIRE(sn_calloc(&copy->data, offered.len, 1, &err));
        memcpy(copy->data, offered.data, offered.len);
    }
    n_met = 0;
    sn_membership_handle(membership, &event, T0, UNIX_MS);
    cr_expect_eq(n_met, 16, "%zu were met", n_met);
    sn_msg_free(&event.msg);
    close(listens);
}

/* The relay is lost every 70 s: the nearest one is asked again each time later. */
Test(reach, a_relay_that_failed_often_is_asked_seldom) {
    char address[32];
    int n_nearest = 0;
    join();
    for (int i = 1; i <= 5; i++) {
        snprintf(address, sizeof address, "203.0.113.9:%d", i);
        ping_took(offer_relay(address), 10 * i);
    }
    round_of("203.0.113.5:31330", false, T0);
    for (int i = 0; i < 40; i++) {
        const int64_t now_us = T0 + (10 + 70 * (int64_t)i) * SECOND;
        sn_peer relay = 0;
        cr_assert(find_sent(SN_MSG_RELAY, &relay));
        n_nearest += !strcmp(last_dialled, "203.0.113.9:1");
        forget_sent();
        sn_reach_peer_lost(reach, relay, now_us);
        sn_reach_tick(reach, now_us, UNIX_MS);
    }
    cr_expect_leq(n_nearest, 14, "%d times of 40", n_nearest);
    close(listens);
}

Test(reach, a_changed_address_is_found_out_anew) {
    join();
    round_of("203.0.113.5:31330", true, T0);
    forget_sent();
    snprintf(own_host, sizeof own_host, "192.168.7.7");
    sn_reach_tick(reach, T0 + 8 * SECOND, UNIX_MS);
    cr_expect_str_eq(own()->address, "192.168.7.7:31330", "until it knows better");
    sn_event event = event_of(SN_MSG_PEERS_REPLY, joined = last_peer, 9, 0); /* it was dialled anew */
    sn_membership_handle(membership, &event, T0 + 8 * SECOND, UNIX_MS);
    sn_msg_free(&event.msg);
    round_of("203.0.113.6:31330", true, T0 + 9 * SECOND);
    cr_expect_str_eq(own()->address, "203.0.113.6:31330");
    close(listens);
}

/* Whether a dial-back is asked for at this time. */
static bool asks_at(int64_t now_us) {
    forget_sent();
    sn_reach_tick(reach, now_us, UNIX_MS);
    return find_sent(SN_MSG_DIAL_BACK, NULL) != NULL;
}

Test(reach, who_was_not_reached_tries_again_and_who_was_is_looked_after) {
    join();
    round_of("203.0.113.5:31330", false, T0);
    cr_expect_not(asks_at(T0 + 200 * SECOND));
    forget_sent();
    round_of("203.0.113.5:31330", true, T0 + 310 * SECOND);
    cr_expect_str_eq(own()->address, "203.0.113.5:31330");
    cr_expect_eq(own()->reach, SN_REACH_DIRECT);
    cr_expect_not(asks_at(T0 + 340 * SECOND));
    forget_sent();
    round_of("203.0.113.5:31330", false, T0 + 380 * SECOND);
    cr_expect_eq(own()->reach, SN_REACH_DIRECT, "one round may fail by chance");
    cr_expect(asks_at(T0 + 391 * SECOND), "it waits for a minute though it may have been lost");
    close(listens);
}

/* Another machine of the same home dials the address that it sees, not the port of the router. */
Test(reach, a_port_that_the_router_opened_counts_when_it_was_dialled_from_outside) {
    join();
    round_of("203.0.113.5:31330", false, T0);
    router_address = "203.0.113.5:40000";
    round_of("192.168.1.2:40000", true, T0 + 6 * SECOND);
    cr_expect_neq(own()->reach, SN_REACH_MAPPED);
    cr_expect_str_neq(own()->address, "192.168.1.2:40000");
    forget_sent();
    round_of("203.0.113.5:40000", true, T0 + 20 * SECOND);
    cr_expect_str_eq(own()->address, "203.0.113.5:40000");
    cr_expect_eq(own()->reach, SN_REACH_MAPPED);
    close(listens);
}

Test(reach, who_was_put_off_by_one_and_reached_from_within_a_home_asks_again_soon) {
    const uint8_t key[SN_KEY_SIZE] = {7};
    sn_peer to = 0;
    join();
    sn_membership_join(membership, "192.168.1.9:31330", key);
    sn_event answers = event_of(SN_MSG_PEERS_REPLY, last_peer, 7, 0);
    sn_membership_handle(membership, &answers, T0, UNIX_MS);
    sn_msg_free(&answers.msg);
    forget_sent();
    sn_reach_tick(reach, T0, UNIX_MS);
    cr_assert(n_sent == 2 && find_sent(SN_MSG_DIAL_BACK, &to) && to == last_peer);
    sn_event refuses = event_of(SN_MSG_ERROR, joined, 9, 0);
    refuses.msg->correlation_id = sent[0]->correlation_id;
    cr_assert(sn_reach_on_error(reach, &refuses, T0));
    sn_msg_free(&refuses.msg);
    round_answered_by(last_peer, "192.168.1.2:31330", true, T0);
    cr_expect_str_eq(own()->address, "192.168.1.2:31330");
    forget_sent();
    cr_expect(asks_at(T0 + 12 * SECOND));
    close(listens);
}

/* Whether a connection comes to the relay's portal. */
static bool is_called(int wait_ms) {
    struct pollfd fd = {.fd = listens, .events = POLLIN};
    return poll(&fd, 1, wait_ms) > 0;
}

Test(relaying, only_its_relay_may_call_a_node) {
    sn_peer relay = 0;
    join();
    round_of("203.0.113.5:31330", false, T0);
    cr_assert(find_sent(SN_MSG_RELAY, &relay));
    sn_event event = event_of(SN_MSG_RELAY_CALL, relay + 1000, 9, 0);
    sn_reach_handle(reach, &event, T0, UNIX_MS);
    event.peer = relay;
    memset(event.msg->relay_call.token, 7, SN_TOKEN_SIZE);
    sn_reach_handle(reach, &event, T0, UNIX_MS);
    sn_msg_free(&event.msg);
    cr_assert(is_called(WAIT_MS));
    uint8_t line[8 + SN_TOKEN_SIZE];
    size_t got = 0;
    int fd = accept4(listens, NULL, NULL, 0);
    for (ssize_t n = 1; n > 0 && got < sizeof line; got += (size_t)n) n = recv(fd, line + got, sizeof line - got, 0);
    cr_assert_eq(line[8], 7, "the first connection was made for a stranger's call");
    close(fd);
    close(listens);
}
