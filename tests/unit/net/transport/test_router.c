/* Ports that routers open: when they are asked for again, by which way, and PCP's messages. */
#include "base/clock.h"
#include "net/router/router_private.h" /* private: ways of a test's own, and the messages of PCP */
#include "tests/support/require.h"
#include "tests/support/virtual_clock.h"

#include <criterion/criterion.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* -- ways that keep an account, under the virtual clock */

enum { ASKED_MAX = 64 };
static struct {
    bool works;
    int seconds;
    int n_asked, n_closed;
    int64_t at_us[ASKED_MAX];
    char own[SN_ADDRESS_MAX + 1];
} first, second;
static int n_woken;

static bool first_open(sn_router_port *port) {
    if (first.n_asked < ASKED_MAX) first.at_us[first.n_asked] = sn_now_us();
    first.n_asked++;
    memcpy(first.own, port->own, sizeof first.own);
    snprintf(port->host, sizeof port->host, "203.0.113.1");
    port->outside = port->inside;
    port->seconds = first.seconds;
    return first.works;
}
static void first_close(sn_router_port *port) {
    (void)port;
    first.n_closed++;
}
static bool second_open(sn_router_port *port) {
    second.n_asked++;
    snprintf(port->host, sizeof port->host, "203.0.113.2");
    port->outside = port->inside + 1;
    port->seconds = SN_ROUTER_LEASE_S;
    return true;
}
static void second_close(sn_router_port *port) {
    (void)port;
    second.n_closed++;
}
static const sn_router_way first_way = {.name = "first", .four = true, .open = first_open, .close = first_close};
static const sn_router_way second_way = {
    .name = "second", .four = true, .six = true, .open = second_open, .close = second_close};

static void woken(void *ctx) {
    (void)ctx;
    n_woken++;
}

static sn_port_mapping *mapping(const char *own) {
    static const sn_router_way *const ways[] = {&first_way, &second_way};
    sn_port_mapping *m;
    sn_err error;
    REQUIRE(sn_port_mapping_new_by(ways, 2, 31330, own, woken, NULL, &m, &error));
    return m;
}

static void pass(int seconds) { sn_sleep_us((int64_t)seconds * 1000000); }

/* By the first way. */
static sn_port_mapping *opened_mapping(void) {
    virtual_clock_begin_still();
    first.works = true;
    first.seconds = SN_ROUTER_LEASE_S;
    sn_port_mapping *m = mapping("192.168.1.2");
    pass(10);
    return m;
}

static int64_t longest_pause_us(void) {
    int64_t longest = 0;
    for (int i = 1; i < first.n_asked && i < ASKED_MAX; i++)
        if (first.at_us[i] - first.at_us[i - 1] > longest) longest = first.at_us[i] - first.at_us[i - 1];
    return longest;
}

/* Two of its requests may be lost before the router closes the port. */
Test(router, a_port_is_asked_for_again_long_before_the_router_closes_it) {
    const int given[] = {180, 30, 2, 0};
    virtual_clock_begin_still();
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        memset(&first, 0, sizeof first);
        first.works = true;
        first.seconds = given[i];
        sn_port_mapping *m = mapping("192.168.1.2");
        pass(600);
        char address[SN_ADDRESS_MAX + 1];
        cr_assert(sn_port_mapping_read(m, address));
        cr_expect_str_eq(address, "203.0.113.1:31330");
        int most = given[i] ? given[i] : SN_ROUTER_LEASE_S; /* without end: the router may have forgotten it */
        cr_expect_geq(first.n_asked, 10);
        cr_expect_leq(longest_pause_us(), (int64_t)most * 1000000 / 2, "%lld us of %d s", (long long)longest_pause_us(),
                      given[i]);
        cr_expect_eq(first.n_closed, 0);
        sn_port_mapping_free(&m);
        cr_expect_eq(first.n_closed, 1);
    }
    cr_expect_eq(second.n_asked, 0);
}

Test(router, a_router_that_stops_to_answer_is_asked_by_the_next_way) {
    sn_port_mapping *m = opened_mapping();
    char address[SN_ADDRESS_MAX + 1];
    first.works = false;
    pass(120);
    cr_assert(sn_port_mapping_read(m, address));
    cr_expect_str_eq(address, "203.0.113.2:31331");
    cr_expect_eq(n_woken, 2);
    sn_port_mapping_free(&m);
    cr_expect_eq(second.n_closed, 1);
}

Test(router, another_address_of_this_machine_has_a_port_of_its_own) {
    sn_port_mapping *m = opened_mapping();
    char address[SN_ADDRESS_MAX + 1];
    sn_port_mapping_move(m, "192.168.1.2");
    pass(10);
    cr_expect_eq(first.n_closed, 0);
    sn_port_mapping_move(m, "192.168.1.77");
    pass(10);
    cr_expect_eq(first.n_closed, 1);
    cr_expect_str_eq(first.own, "192.168.1.77");
    sn_port_mapping_move(m, "[2001:db8::2]"); /* the first way has IPv4 alone */
    pass(10);
    cr_assert(sn_port_mapping_read(m, address));
    cr_expect_str_eq(address, "203.0.113.2:31331");
    sn_port_mapping_free(&m);
}

/* -- PCP */

static const uint8_t request_of_four[SN_PCP_SIZE] = {
    2,    1,    0,    0,    0, 0, 0, 180, 0, 0, 0, 0, 0, 0,  0,    0,    0, 0, 0xff, 0xff,
    192,  168,  1,    2,    1, 2, 3, 4,   5, 6, 7, 8, 9, 10, 11,   12,   6, 0, 0,    0,
    0x7a, 0x62, 0x7a, 0x62, 0, 0, 0, 0,   0, 0, 0, 0, 0, 0,  0xff, 0xff, 0, 0, 0,    0};

static void answer(const uint8_t request[SN_PCP_SIZE], uint8_t out[SN_PCP_SIZE]) {
    static const uint8_t outside[] = {0x12, 0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 203, 0, 113, 5};
    memcpy(out, request, SN_PCP_SIZE);
    memset(out + 8, 0, 16);
    out[1] |= 0x80;
    out[7] = 120; /* seconds */
    memcpy(out + 42, outside, sizeof outside);
}

Test(router, pcp_has_the_messages_of_rfc_6887) {
    sn_router_port port = {.inside = 31330, .own = "192.168.1.2", .nonce = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}};
    uint8_t request[SN_PCP_SIZE], data[SN_PCP_SIZE];
    bool refused;
    cr_assert(sn_pcp_request(&port, IPPROTO_TCP, 180, request));
    cr_expect_arr_eq(request, request_of_four, SN_PCP_SIZE);
    answer(request, data);
    cr_assert(sn_pcp_read(data, sizeof data, request, &port, &refused));
    cr_expect_str_eq(port.host, "203.0.113.5");
    cr_expect_eq(port.outside, 0x1234);
    cr_expect_eq(port.seconds, 120);

    snprintf(port.own, sizeof port.own, "[2001:db8:41::2]");
    static const uint8_t six[16] = {0x20, 0x01, 0x0d, 0xb8, 0, 0x41, [15] = 2};
    cr_assert(sn_pcp_request(&port, IPPROTO_UDP, 180, request));
    cr_expect_arr_eq(request + 8, six, 16);
    cr_expect_eq(request[36], 17);
    cr_expect_eq(request[43], 0x34, "the port that was given is asked for again");
    answer(request, data);
    memcpy(data + 44, six, 16);
    memset(data + 4, 0xff, 4); /* for ever: it is renewed all the same */
    cr_assert(sn_pcp_read(data, sizeof data, request, &port, &refused));
    cr_expect_str_eq(port.host, "[2001:db8:41::2]");
    cr_expect_eq(port.seconds, SN_ROUTER_LEASE_S);
}

Test(router, what_is_no_answer_to_the_request_of_pcp_is_not_believed) {
    sn_router_port port = {.inside = 31330, .own = "192.168.1.2", .nonce = {1, 2, 3}};
    uint8_t request[SN_PCP_SIZE], data[SN_PCP_SIZE];
    bool refused;
    cr_assert(sn_pcp_request(&port, IPPROTO_TCP, 180, request));
    const struct {
        size_t at;
        bool refuses;
    } changed[] = {{0, false}, {1, false}, {24, false}, {35, false}, {36, false}, {40, false}, {3, true}};
    for (size_t i = 0; i < sizeof changed / sizeof *changed; i++) {
        answer(request, data);
        data[changed[i].at] ^= 1;
        cr_expect_not(sn_pcp_read(data, sizeof data, request, &port, &refused), "byte %zu", changed[i].at);
        cr_expect_eq(refused, changed[i].refuses, "byte %zu", changed[i].at);
    }
    answer(request, data);
    for (size_t len = 0; len < sizeof data; len++)
        cr_expect_not(sn_pcp_read(data, len, request, &port, &refused), "%zu bytes", len);
    const uint8_t other_version[] = {0, 0x81, 0, 1, 0, 0, 0, 0}; /* a router with NAT-PMP alone */
    cr_expect_not(sn_pcp_read(other_version, sizeof other_version, request, &port, &refused));
    cr_expect(refused);
    cr_expect_eq(port.outside, 0);
    snprintf(port.own, sizeof port.own, "name.example");
    cr_expect_not(sn_pcp_request(&port, IPPROTO_TCP, 180, request));
}

/* Sends what is no answer until the other end is closed, or for far longer than anybody may wait. */
static atomic_bool flooding;
static void *flood(void *fd) {
    static const uint8_t nothing[SN_PCP_SIZE];
    const int64_t until_us = sn_now_us() + INT64_C(20000000);
    while (sn_now_us() < until_us)
        if (send(*(int *)fd, nothing, sizeof nothing, MSG_NOSIGNAL) < 0) return NULL;
    flooding = false;
    return NULL;
}

Test(router, a_router_that_never_stops_to_send_is_left) {
    sn_router_port port = {.inside = 31330, .own = "192.168.1.2", .nonce = {1, 2, 3}};
    int ends[2];
    pthread_t router;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends), 0);
    flooding = true;
    cr_assert_eq(pthread_create(&router, NULL, flood, &ends[1]), 0);
    cr_expect_not(sn_pcp_ask(ends[0], &port, IPPROTO_TCP, 180));
    cr_expect(flooding);
    close(ends[0]);
    pthread_join(router, NULL);
    close(ends[1]);
}
