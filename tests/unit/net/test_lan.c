/* Nodes of the local network (net/lan.h): two of them, and one that looks, in a network of the test's own, which has
 * the loopback interface only. The clock is the test's. */
#include "base/clock.h"
#include "base/parse.h"
#include "net/lan.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h> /* Criterion needs it for its .timeout */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WAIT_MS = 60000 };
static const int64_t UNIX_MS = 1700000000000;

static sn_identity identity[SN_LAN_OF_HOST_MAX + 1];

static void own_network(void) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    if (unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNET : CLONE_NEWNET)) cr_skip_test("no network of its own here");
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    cr_assert_eq(ioctl(fd, SIOCSIFFLAGS, &request), 0);
    close(fd);
}
TestSuite(lan, .init = own_network, .timeout = 180);

static sn_lan *open_lan(int node) { /* -1: only looks */
    sn_lan *lan = NULL;
    char bound[32];
    snprintf(bound, sizeof bound, "0.0.0.0:%d", 7000 + node);
    if (node >= 0) REQUIRE(sn_identity_new(&identity[node], &err));
    REQUIRE(sn_lan_new(node >= 0 ? &identity[node] : NULL, node >= 0 ? bound : NULL, &lan, &err));
    sn_lan_tick(lan, 1000000, UNIX_MS); /* from now on it belongs to the group */
    return lan;
}

/* The number of the next node that is found; -1: none, when a record of the node `last` has been read. */
static int find_next(sn_lan *lan, sn_lan *last) {
    static int64_t now = 2000000;
    for (int rounds = 0; rounds < 3; rounds++) {
        char address[SN_ADDRESS_MAX + 1];
        uint8_t key[SN_KEY_SIZE];
        bool found;
        struct pollfd fd = {.fd = sn_lan_fd(lan), .events = POLLIN};
        now += 20000000;
        sn_lan_tick(last, now, UNIX_MS);
        cr_assert_eq(poll(&fd, 1, WAIT_MS), 1, "no datagram came: is multicast permitted here?");
        while (sn_lan_receive(lan, UNIX_MS, &found, address, key)) {
            if (!found) continue;
            sn_host_port at;
            cr_assert_eq(sn_parse_host_port(address, SN_HOST_PORT_DIAL, &at, NULL), SN_OK);
            if (at.port < 7000 || at.port >= 7000 + (int)(sizeof identity / sizeof *identity))
                continue; /* a node of the machine */
            cr_assert(!memcmp(key, identity[at.port - 7000].curve_key, SN_KEY_SIZE));
            cr_assert(strncmp(address, "0.0.0.0", 7), "the host is the sender's");
            return at.port - 7000;
        }
    }
    return -1;
}

Test(lan, a_program_finds_each_node_once) {
    sn_lan *looks = open_lan(-1), *node = open_lan(0);
    cr_assert_eq(find_next(looks, node), 0);
    cr_assert_eq(find_next(looks, node), -1);
    cr_assert_eq(find_next(node, node), -1, "it has found itself");
    sn_lan_free(&node);
    sn_lan_free(&looks);
}

Test(lan, one_host_has_few_places) {
    sn_lan *looks = open_lan(-1), *node[SN_LAN_OF_HOST_MAX + 1];
    for (int i = 0; i < SN_LAN_OF_HOST_MAX; i++) {
        node[i] = open_lan(i);
        cr_assert_eq(find_next(looks, node[i]), i);
    }
    node[SN_LAN_OF_HOST_MAX] = open_lan(SN_LAN_OF_HOST_MAX);
    cr_assert_eq(find_next(looks, node[SN_LAN_OF_HOST_MAX]), -1);
    for (int i = 0; i <= SN_LAN_OF_HOST_MAX; i++) sn_lan_free(&node[i]);
    sn_lan_free(&looks);
}

Test(lan, questions_are_answered_at_a_rate) {
    sn_lan *node = open_lan(0), *looks = open_lan(-1);
    int64_t now = 100000000, due;
    char address[SN_ADDRESS_MAX + 1];
    uint8_t key[SN_KEY_SIZE];
    bool found;
    struct pollfd fd = {.fd = sn_lan_fd(node), .events = POLLIN};
    for (int i = 0; i < 20; i++)
        sn_lan_tick(node, now += SN_LAN_ANSWER_EVERY_US, UNIX_MS); /* it asks seldom from now on */
    sn_lan_tick(node, now += 60000000, UNIX_MS);                   /* sends its record */
    while (sn_lan_receive(node, UNIX_MS, &found, address, key)) {}
    sn_lan_tick(looks, now, UNIX_MS); /* asks */
    cr_assert_eq(poll(&fd, 1, WAIT_MS), 1);
    while (sn_lan_receive(node, UNIX_MS, &found, address, key)) {}
    due = sn_lan_tick(node, now + 1, UNIX_MS);
    cr_assert_geq(due, now + SN_LAN_ANSWER_EVERY_US, "it has answered at once although it had just sent its record");
    cr_assert_leq(due, now + SN_LAN_ANSWER_EVERY_US);
    sn_lan_free(&node);
    sn_lan_free(&looks);
}
