/* The portal (net/transport/portal.h): dial-backs, and connections through a relay, by transports and by raw sockets.
 */
#include "base/parse.h"
#include "net/transport/portal.h"
#include "net/transport/splice_private.h" /* private: the rate, byte by byte */
#include "tests/support/transport_fixture.h"
#include "tests/support/virtual_clock.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RATE = 1 << 20, REPLY_SIZE = 10 };

static transport_fixture w;
static endpoint relay, node, client;

static void begin(void) {
    endpoint_open(&w, &relay, true);
    endpoint_open(&w, &node, true);
    endpoint_open(&w, &client, false);
    sn_portal_set_rate(relay.t->portal, RATE);
}
static void end(void) {
    sn_transport_free(&client.t);
    sn_transport_free(&node.t);
    sn_transport_free(&relay.t);
}
TestSuite(portal, .init = begin, .fini = end, .timeout = 180);

/* -- raw clients */

static uint8_t raw_network; /* clients connect from 127.0.0.1, or from this network address of loopback */

static int raw_connect(const char *address) {
    sn_host_port parsed;
    cr_assert_eq(sn_parse_host_port(address, SN_HOST_PORT_DIAL, &parsed, NULL), SN_OK);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)parsed.port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + raw_network)};
    cr_assert_eq(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

/* Bytes that came until there are n, or the connection ended. */
static size_t raw_receive(int fd, uint8_t *out, size_t n) {
    size_t got = 0;
    while (got < n) {
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        cr_assert_eq(poll(&poll_fd, 1, WAIT_MS), 1, "nothing came");
        ssize_t r = recv(fd, out + got, n - got, 0);
        if (r <= 0) break;
        got += (size_t)r;
    }
    return got;
}

static int socks_begin(const endpoint *at) {
    uint8_t reply[2];
    int fd = raw_connect(at->address);
    cr_assert_eq(send(fd, "\5\1\0", 3, MSG_NOSIGNAL), 3);
    cr_assert_eq(raw_receive(fd, reply, 2), 2);
    cr_assert(!memcmp(reply, "\5", 2));
    return fd;
}

/* Asks a relay for the node with this key. */
static int socks_ask(const endpoint *at, const uint8_t key[SN_KEY_SIZE]) {
    char name[SN_RELAY_NAME_LEN + 1];
    uint8_t request[5 + SN_RELAY_NAME_LEN + 2] = {5, 1, 0, 3, SN_RELAY_NAME_LEN};
    int fd = socks_begin(at);
    sn_relay_name(key, name);
    memcpy(request + 5, name, SN_RELAY_NAME_LEN);
    request[sizeof request - 1] = 1;
    cr_assert_eq(send(fd, request, sizeof request, MSG_NOSIGNAL), (ssize_t)sizeof request);
    return fd;
}

static void expect_refused(int fd) {
    uint8_t reply[REPLY_SIZE + 1];
    cr_assert_eq(raw_receive(fd, reply, sizeof reply), REPLY_SIZE, "the connection should have ended after the reply");
    cr_assert_eq(reply[1], 4);
    close(fd);
}

/* -- a portal without transports */

static void drop_adopted(void *ctx, int fd, const struct sockaddr_storage *from) {
    (void)ctx, (void)from;
    close(fd);
}

/* Gives the portal one end of a connection from this network, and says this at the other. */
static void take_newcomer(sn_portal *portal, uint8_t network, const void *said, size_t len, int pair[2]) {
    struct sockaddr_storage from = {0};
    *(struct sockaddr_in *)&from =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x0a000001 + network)};
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    cr_assert_eq(fcntl(pair[1], F_SETFL, O_NONBLOCK), 0);
    cr_assert_eq(send(pair[0], said, len, MSG_NOSIGNAL), (ssize_t)len);
    sn_portal_take(portal, pair[1], &from);
}

/* A client that asks for the node with this key. */
static void take_client_of(sn_portal *portal, const uint8_t key[SN_KEY_SIZE], uint8_t network, int pair[2]) {
    uint8_t request[3 + 5 + SN_RELAY_NAME_LEN + 2] = {5, 1, 0, 5, 1, 0, 3, SN_RELAY_NAME_LEN}, methods[2];
    char name[SN_RELAY_NAME_LEN + 1];
    sn_relay_name(key, name);
    memcpy(request + 8, name, SN_RELAY_NAME_LEN);
    take_newcomer(portal, network, request, sizeof request, pair);
    cr_assert_eq(raw_receive(pair[0], methods, 2), 2);
}

static void take_client(sn_portal *portal, uint8_t network, int pair[2]) {
    take_client_of(portal, node.identity.curve_key, network, pair);
}

static void take_answer(sn_portal *portal, const uint8_t token[SN_TOKEN_SIZE], int pair[2]) {
    uint8_t line[24] = "SWARM>1";
    memcpy(line + 8, token, SN_TOKEN_SIZE);
    take_newcomer(portal, 0, line, sizeof line, pair);
}

static void await_call(sn_portal *portal, uint8_t key[SN_KEY_SIZE], uint8_t token[SN_TOKEN_SIZE]) {
    int64_t until = sn_now_us() + WAIT_MS * 1000;
    while (!sn_portal_next_call(portal, key, token)) {
        cr_assert_lt(sn_now_us(), until, "no call came");
        sn_sleep_us(1000);
    }
}

/* -- */

static void next_call(uint8_t key[SN_KEY_SIZE], uint8_t token[SN_TOKEN_SIZE]) {
    await_call(relay.t->portal, key, token);
}

static void register_node(void) {
    sn_err err = {0};
    require_ok(sn_portal_register(relay.t->portal, node.identity.curve_key, &err), &err);
}

/* What the network threads of relay and node do about one client. */
static void bring_one(void) {
    uint8_t key[SN_KEY_SIZE], token[SN_TOKEN_SIZE];
    sn_err err = {0};
    next_call(key, token);
    cr_assert(!memcmp(key, node.identity.curve_key, SN_KEY_SIZE));
    require_ok(sn_portal_answer(node.t->portal, relay.address, token, &err), &err);
}

/* The message of a client that is brought: it calls again if its handshake took too long. */
static sn_event expect_brought(void) {
    uint8_t key[SN_KEY_SIZE], token[SN_TOKEN_SIZE];
    sn_err err = {0};
    for (int64_t until = sn_now_us() + (int64_t)WAIT_MS * 1000;;) {
        while (sn_portal_next_call(relay.t->portal, key, token))
            require_ok(sn_portal_answer(node.t->portal, relay.address, token, &err), &err);
        sn_event event = receive_event(node.t, 10);
        if (event.msg) return event;
        cr_assert_lt(sn_now_us(), until, "nothing came");
    }
}

static sn_peer dial_through_relay(void) {
    char address[SN_ADDRESS_MAX + 1];
    sn_err err = {0};
    sn_peer peer;
    snprintf(address, sizeof address, "%.200s" SN_RELAYED, relay.address);
    require_ok(sn_transport_dial(client.t, address, node.identity.curve_key, &peer, &err), &err);
    return peer;
}

/* -- tests */

Test(portal, a_client_reaches_a_node_through_a_relay_with_curve_between_the_two) {
    register_node();
    sn_peer peer = dial_through_relay();
    cr_assert_eq(send_message(client.t, peer, step_reply_message(7, 100000)), SN_OK);
    sn_event event = expect_brought();
    cr_assert_eq(event.msg->correlation_id, 7);
    cr_assert_eq(event.msg->tensor.bytes, 400000);
    cr_assert(!memcmp(event.key, client.identity.curve_key, SN_KEY_SIZE),
              "the client has proven its own key to the node");
    sn_msg_free(&event.msg);
    cr_assert_eq(send_message(node.t, event.peer, status_message(8)), SN_OK);
    event = expect_message(client.t);
    cr_assert_eq(event.msg->correlation_id, 8);
    sn_msg_free(&event.msg);
    sn_portal_stats stats = sn_portal_read_stats(relay.t->portal);
    cr_assert_geq(stats.relayed_connections, 1);
    cr_assert_gt(stats.relayed_bytes, 400000);
}

Test(portal, a_node_does_not_take_a_relays_address_for_that_of_a_client) {
    char host[SN_ADDRESS_MAX + 1];
    register_node();
    cr_assert_eq(send_message(client.t, dial_through_relay(), status_message(1)), SN_OK);
    sn_event event = expect_brought();
    sn_msg_free(&event.msg);
    cr_expect_not(sn_transport_peer_host(node.t, event.peer, host));
    cr_assert_eq(send_message(client.t, endpoint_dial(&client, &node), status_message(2)), SN_OK);
    event = expect_message(node.t);
    sn_msg_free(&event.msg);
    cr_assert(sn_transport_peer_host(node.t, event.peer, host));
    cr_expect_str_eq(host, "127.0.0.1");
}

Test(portal, a_relay_brings_to_registered_nodes_only) {
    expect_refused(socks_ask(&relay, node.identity.curve_key));
    register_node();
    int waits = socks_ask(&relay, node.identity.curve_key);
    uint8_t key[SN_KEY_SIZE], token[SN_TOKEN_SIZE];
    next_call(key, token);
    sn_portal_unregister(relay.t->portal, node.identity.curve_key);
    expect_refused(socks_ask(&relay, node.identity.curve_key));
    uint8_t byte;
    cr_assert_eq(raw_receive(waits, &byte, 1), 0, "a client still waits for a node that is gone");
    close(waits);
}

Test(portal, a_relay_is_no_proxy_to_addresses) {
    const uint8_t to_ipv4[] = {5, 1, 0, 1, 127, 0, 0, 1, 0, 80};
    uint8_t byte;
    int fd = socks_begin(&relay);
    cr_assert_eq(send(fd, to_ipv4, sizeof to_ipv4, MSG_NOSIGNAL), (ssize_t)sizeof to_ipv4);
    cr_assert_eq(raw_receive(fd, &byte, 1), 0);
    close(fd);
}

Test(portal, a_relay_that_is_off_registers_no_node) {
    sn_err err = {0};
    cr_assert_eq(sn_portal_register(node.t->portal, client.identity.curve_key, &err), SN_REFUSED);
    cr_assert_eq(sn_portal_read_stats(node.t->portal).places, 0);
}

Test(portal, places_of_a_relay_are_bounded) {
    sn_err err = {0};
    uint8_t key[SN_KEY_SIZE] = {0};
    for (int i = 0; i < SN_RELAYED_NODES_MAX; i++) {
        key[0] = (uint8_t)i;
        require_ok(sn_portal_register(relay.t->portal, key, &err), &err);
    }
    require_ok(sn_portal_register(relay.t->portal, key, &err), &err); /* again */
    key[1] = 1;
    cr_assert_eq(sn_portal_register(relay.t->portal, key, &err), SN_RETRY);
}

Test(portal, connections_that_wait_are_bounded_for_each_address) {
    int fd[SN_PORTAL_OF_ADDRESS_MAX];
    uint8_t key[SN_KEY_SIZE], token[SN_TOKEN_SIZE], byte;
    sn_err err = {0};
    register_node();
    require_ok(sn_portal_register(relay.t->portal, client.identity.curve_key, &err), &err);
    int64_t began_us = sn_now_us();
    for (int i = 0; i < SN_PORTAL_OF_ADDRESS_MAX; i++) {
        fd[i] = socks_ask(&relay, i % 2 ? client.identity.curve_key : node.identity.curve_key);
        next_call(key, token);
    }
    int one_more = raw_connect(relay.address);
    (void)!send(one_more, "\5\1\0", 3, MSG_NOSIGNAL);
    bool let_in = raw_receive(one_more, &byte, 1);
    cr_assert(!let_in || sn_now_us() - began_us > 10000000, "it should have been refused"); /* waits end after 10 s */
    close(one_more);
    for (int i = 0; i < SN_PORTAL_OF_ADDRESS_MAX; i++) close(fd[i]);
}

/* Joins a client and the relayed node. */
static int join_one(void) {
    uint8_t reply[REPLY_SIZE];
    int fd = socks_ask(&relay, node.identity.curve_key);
    bring_one();
    cr_assert_eq(raw_receive(fd, reply, REPLY_SIZE), REPLY_SIZE);
    cr_assert_eq(reply[1], 0);
    return fd;
}

Test(portal, connections_of_one_relayed_node_are_bounded) {
    int fd[SN_RELAYED_CONNECTIONS_MAX];
    register_node();
    for (int i = 0; i < SN_RELAYED_CONNECTIONS_MAX; i++) {
        raw_network = (uint8_t)(i / SN_RELAYED_OF_CLIENT_MAX);
        fd[i] = join_one();
    }
    raw_network = 100;
    expect_refused(socks_ask(&relay, node.identity.curve_key));
    for (int i = 0; i < SN_RELAYED_CONNECTIONS_MAX; i++) close(fd[i]);
}

Test(portal, a_network_address_has_a_quarter_of_the_connections_of_a_relayed_node) {
    int fd[SN_RELAYED_OF_CLIENT_MAX];
    register_node();
    for (int i = 0; i < SN_RELAYED_OF_CLIENT_MAX; i++) fd[i] = join_one();
    expect_refused(socks_ask(&relay, node.identity.curve_key));
    raw_network = 1;
    close(join_one());
    for (int i = 0; i < SN_RELAYED_OF_CLIENT_MAX; i++) close(fd[i]);
}

/* Clients of as many networks as are needed, which are joined with a relayed node. */
Test(portal, clients_leave_places_to_others_to_tokens_and_to_what_the_portal_dials) {
    enum { PLACES = 32, CLIENTS = PLACES - PLACES / 4 };
    const sn_portal_host host = {.adopt = drop_adopted};
    sn_portal *portal = NULL;
    sn_err err = {0};
    int ends[CLIENTS + 1][2], answers[CLIENTS][2];
    uint8_t key[SN_KEY_SIZE], token[SN_TOKEN_SIZE], reply[REPLY_SIZE];
    require_ok(sn_portal_new(&host, PLACES, &portal, &err), &err);
    sn_portal_set_rate(portal, RATE);
    require_ok(sn_portal_register(portal, node.identity.curve_key, &err), &err);
    for (int i = 0; i <= CLIENTS; i++) {
        take_client(portal, (uint8_t)(1 + i / 4), ends[i]);
        if (i == CLIENTS) break;
        await_call(portal, key, token);
        take_answer(portal, token, answers[i]); /* also where nearly all places are taken */
        cr_assert_eq(raw_receive(ends[i][0], reply, REPLY_SIZE), REPLY_SIZE);
        cr_assert_eq(reply[1], 0, "client %d was refused", i);
    }
    cr_assert_eq(raw_receive(ends[CLIENTS][0], reply, REPLY_SIZE), REPLY_SIZE);
    cr_expect_eq(reply[1], 4, "clients took the places of others");
    enum { LEFT = PLACES - PLACES / 8 - CLIENTS };
    int others[LEFT + 1][2];
    for (int i = 0; i <= LEFT; i++) {
        take_newcomer(portal, (uint8_t)(100 + i), "\5\1\0", 3, others[i]);
        cr_expect_eq(raw_receive(others[i][0], reply, 2), i < LEFT ? 2 : 0, "newcomer %d", i);
    }
    sn_portal_free(&portal);
    for (int i = 0; i <= LEFT; i++) close(others[i][0]);
    for (int i = 0; i < CLIENTS; i++) close(ends[i][0]), close(answers[i][0]);
    close(ends[CLIENTS][0]);
}

Test(portal, connections_that_wait_have_half_of_the_places_and_an_end) {
    enum { PLACES = 32, SECOND = 1000000 };
    const sn_portal_host host = {.adopt = drop_adopted};
    sn_portal *portal = NULL;
    sn_err err = {0};
    int waiting[PLACES / 2 + 1][2];
    uint8_t bytes[2];
    virtual_clock_begin_still();
    require_ok(sn_portal_new(&host, PLACES, &portal, &err), &err);
    for (int i = 0; i <= PLACES / 2; i++) {
        take_newcomer(portal, (uint8_t)i, "\5\1\0", 3, waiting[i]);
        cr_expect_eq(raw_receive(waiting[i][0], bytes, 2), i < PLACES / 2 ? 2 : 0, "newcomer %d", i);
    }
    virtual_clock_advance(6 * SECOND);
    for (int i = 0; i < PLACES / 2; i++) cr_expect_eq(raw_receive(waiting[i][0], bytes, 1), 0, "%d still waits", i);
    sn_portal_free(&portal);
    for (int i = 0; i <= PLACES / 2; i++) close(waiting[i][0]);
}

Test(portal, calls_of_a_network_address_have_a_rate) {
    enum { NODES = SN_RELAYED_NODES_MAX, BURST = 64, PLACES = 4 * BURST, SECOND = 1000000 };
    const sn_portal_host host = {.adopt = drop_adopted};
    sn_portal *portal = NULL;
    sn_err err = {0};
    int ends[BURST + 2][2], answers[BURST + 2][2];
    uint8_t keys[NODES][SN_KEY_SIZE], key[SN_KEY_SIZE], token[SN_TOKEN_SIZE], reply[REPLY_SIZE];
    virtual_clock_begin_still();
    require_ok(sn_portal_new(&host, PLACES, &portal, &err), &err);
    sn_portal_set_rate(portal, RATE);
    for (int i = 0; i < NODES; i++) {
        memset(keys[i], 1 + i, SN_KEY_SIZE);
        require_ok(sn_portal_register(portal, keys[i], &err), &err);
    }
    for (int i = 0; i < BURST + 2; i++) {
        if (i == BURST + 1) virtual_clock_advance(SECOND);
        take_client_of(portal, keys[i % NODES], 1, ends[i]);
        for (int waits = 0; i != BURST && !sn_portal_next_call(portal, key, token); waits++) {
            cr_assert_lt(waits, WAIT_MS, "call %d does not come", i);
            usleep(1000); /* of real time: the clock stands still */
        }
        if (i != BURST) take_answer(portal, token, answers[i]);
        cr_assert_eq(raw_receive(ends[i][0], reply, REPLY_SIZE), REPLY_SIZE);
        cr_assert_eq(reply[1], i == BURST ? 4 : 0, "call %d", i);
    }
    sn_portal_free(&portal);
    for (int i = 0; i < BURST + 2; i++) close(ends[i][0]);
    for (int i = 0; i < BURST + 2; i++)
        if (i != BURST) close(answers[i][0]);
}

/* Twelve clients send all the time over a small rate: the bytes that each one gets through differ little. While the
 * test is held up, its clock stands still, and nothing passes. */
Test(portal, busy_connections_have_equal_parts_of_the_rate) {
    enum { CLIENTS = 12, ROUNDS_MAX = 30000 };
    const sn_portal_host host = {.adopt = drop_adopted};
    static uint8_t data[1 << 16];
    sn_portal *portal = NULL;
    sn_err err = {0};
    int ends[CLIENTS][2], answers[CLIENTS][2];
    size_t passed[CLIENTS] = {0}, least = SIZE_MAX, most = 0, all = 0;
    uint8_t key[SN_KEY_SIZE], token[SN_TOKEN_SIZE], reply[REPLY_SIZE];
    require_ok(sn_portal_new(&host, 64, &portal, &err), &err);
    sn_portal_set_rate(portal, RATE);
    require_ok(sn_portal_register(portal, node.identity.curve_key, &err), &err);
    for (int i = 0; i < CLIENTS; i++) {
        take_client(portal, (uint8_t)(1 + i / 4), ends[i]);
        await_call(portal, key, token);
        take_answer(portal, token, answers[i]);
        cr_assert_eq(raw_receive(ends[i][0], reply, REPLY_SIZE), REPLY_SIZE);
    }
    virtual_clock_begin_still();
    for (int rounds = 0; all < RATE; rounds++) {
        cr_assert_lt(rounds, ROUNDS_MAX, "%zu bytes came", all);
        for (int i = 0; i < CLIENTS; i++) {
            (void)!send(ends[i][0], data, sizeof data, MSG_NOSIGNAL | MSG_DONTWAIT);
            ssize_t n = recv(answers[i][0], data, sizeof data, MSG_DONTWAIT);
            if (n > 0) passed[i] += (size_t)n, all += (size_t)n;
        }
        virtual_clock_advance(1000);
        usleep(1000);
    }
    for (int i = 0; i < CLIENTS; i++) {
        least = passed[i] < least ? passed[i] : least;
        most = passed[i] > most ? passed[i] : most;
    }
    cr_expect_lt(most, 2 * least + 4 * SN_SPLICE_BYTES / CLIENTS, "from %zu to %zu bytes", least, most);
    sn_portal_free(&portal);
    for (int i = 0; i < CLIENTS; i++) close(ends[i][0]), close(answers[i][0]);
}

Test(portal, a_token_answers_one_call) {
    uint8_t key[SN_KEY_SIZE], token[SN_TOKEN_SIZE], wrong[24] = "SWARM>1", byte;
    register_node();
    int fd = socks_ask(&relay, node.identity.curve_key);
    next_call(key, token);
    memcpy(wrong + 8, token, SN_TOKEN_SIZE);
    wrong[23] ^= 1;
    int stranger = raw_connect(relay.address);
    cr_assert_eq(send(stranger, wrong, sizeof wrong, MSG_NOSIGNAL), (ssize_t)sizeof wrong);
    cr_assert_eq(raw_receive(stranger, &byte, 1), 0, "another token was taken");
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    cr_expect_eq(poll(&poll_fd, 1, 0), 0, "the client was joined with a stranger");
    close(stranger);
    close(fd);
}

Test(portal, a_dial_back_proves_that_its_token_has_come) {
    uint8_t expected[SN_TOKEN_SIZE] = {1}, other[SN_TOKEN_SIZE] = {2};
    sn_err err = {0};
    sn_portal_expect(node.t->portal, expected);
    require_ok(sn_portal_dial_back(relay.t->portal, node.address, other, &err), &err);
    int fd = raw_connect(node.address); /* the other token has been read when this connection, made later, has ended */
    uint8_t line[24] = "SWARM<1", byte;
    cr_assert_eq(send(fd, line, sizeof line, MSG_NOSIGNAL), (ssize_t)sizeof line);
    cr_assert_eq(raw_receive(fd, &byte, 1), 0);
    close(fd);
    cr_assert_not(sn_portal_was_reached(node.t->portal, expected), "another token was taken for it");
    require_ok(sn_portal_dial_back(relay.t->portal, node.address, expected, &err), &err);
    for (int64_t until = sn_now_us() + WAIT_MS * 1000; !sn_portal_was_reached(node.t->portal, expected);) {
        cr_assert_lt(sn_now_us(), until, "the dial-back has not come");
        sn_sleep_us(1000);
    }
}

Test(portal, a_relay_reaches_its_own_relayed_nodes_where_its_router_does_not_let_it_out_and_in_again) {
    sn_err err = {0};
    sn_peer peer;
    register_node();
    require_ok(sn_transport_dial(relay.t, "203.0.113.9:31330" SN_RELAYED, node.identity.curve_key, &peer, &err), &err);
    cr_assert_eq(send_message(relay.t, peer, status_message(3)), SN_OK);
    sn_event event = expect_brought();
    cr_assert_eq(event.msg->correlation_id, 3);
    sn_msg_free(&event.msg);
}

Test(portal, connections_of_a_node_that_comes_by_another_way_end) {
    uint8_t reply[REPLY_SIZE], byte, key[SN_KEY_SIZE], token[SN_TOKEN_SIZE], answer[24] = "SWARM>1";
    register_node();
    int fd = socks_ask(&relay, node.identity.curve_key), other = raw_connect(relay.address);
    next_call(key, token);
    memcpy(answer + 8, token, SN_TOKEN_SIZE);
    cr_assert_eq(send(other, answer, sizeof answer, MSG_NOSIGNAL), (ssize_t)sizeof answer);
    cr_assert_eq(raw_receive(fd, reply, REPLY_SIZE), REPLY_SIZE);
    sn_portal_renew(relay.t->portal, client.identity.curve_key); /* another node's */
    sn_portal_renew(relay.t->portal, node.identity.curve_key);
    cr_assert_eq(raw_receive(fd, &byte, 1), 0);
    cr_assert_eq(raw_receive(other, &byte, 1), 0);
    close(other);
    close(fd);
}

Test(portal, a_name_is_not_dialled) {
    uint8_t token[SN_TOKEN_SIZE] = {0};
    sn_err err = {0};
    cr_assert_eq(sn_portal_dial_back(relay.t->portal, "localhost:80", token, &err), SN_REFUSED);
}

Test(splice, moves_no_more_than_the_rate_allows) {
    int a[2], b[2];
    uint8_t data[1000] = {0}, out[1000];
    sn_splice *splice = NULL;
    sn_err err = {0};
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, a), 0);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, b), 0);
    require_ok(sn_splice_new(a[1], b[1], 0, &splice, &err), &err);
    cr_assert_eq(send(a[0], data, sizeof data, 0), (ssize_t)sizeof data);
    int64_t budget = 300;
    cr_assert(sn_splice_move(splice, &budget, 0));
    cr_expect_eq(budget, 0);
    cr_expect_eq(recv(b[0], out, sizeof out, 0), 300);
    cr_assert(sn_splice_move(splice, &budget, 0));
    cr_expect_lt(recv(b[0], out, sizeof out, 0), 0, "bytes passed although the rate was used up");
    cr_expect_eq(sn_splice_events(splice, 0, false) & POLLIN, 0);
    budget = 10000;
    cr_assert(sn_splice_move(splice, &budget, 0));
    cr_expect_eq(recv(b[0], out, sizeof out, 0), 700);
    close(a[0]);
    cr_expect_not(sn_splice_move(splice, &budget, 0));
    sn_splice_free(&splice);
    close(b[0]);
}
