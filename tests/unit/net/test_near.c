#include "net/near.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <net/if.h>
#include <string.h>

static void set(struct sockaddr_storage *at, const char *host) {
    char address[128];
    socklen_t len;
    snprintf(address, sizeof address, "%s:1", host);
    REQUIRE(sn_address_read(address, at, &len, &err));
}

/* Interfaces 192.168.7.5/24, 203.0.113.5/24, fd00:1::5/64, fe80::5/64, and
 * 10.9.0.5/24 by WireGuard; the gateways are 192.168.7.1 and
 * fd00:1::1. */
static bool is_near(const char *host, bool tunnel) {
    static const char *const own[][2] = {{"192.168.7.5", "255.255.255.0"},
                                         {"203.0.113.5", "255.255.255.0"},
                                         {"[fd00:1::5]", "[ffff:ffff:ffff:ffff::]"},
                                         {"[fe80::5]", "[ffff:ffff:ffff:ffff::]"},
                                         {"10.9.0.5", "255.255.255.0"}};
    static char routes[] =
        "Iface\tDestination\tGateway\tFlags\neth0\t00000000\t0107A8C0\t0003\neth0\t0007A8C0\t00000000\t0001\n";
    static char routes6[] = "fd000001000000000000000000000000 40 00000000000000000000000000000000 00 "
                            "00000000000000000000000000000000 00000100 00000001 00000000 00000001 eth0\n"
                            "00000000000000000000000000000000 00 00000000000000000000000000000000 00 "
                            "fd000001000000000000000000000001 00000400 00000001 00000000 00000003 eth0\n";
    struct sockaddr_storage address[5] = {0}, mask[5] = {0}, at = {0};
    struct ifaddrs all[6] = {0}; /* the first one has no address, as some of the kernel's */
    for (int i = 0; i < 5; i++) {
        set(&address[i], own[i][0]);
        set(&mask[i], own[i][1]);
        all[i].ifa_next = &all[i + 1];
        all[i + 1].ifa_addr = (struct sockaddr *)&address[i];
        all[i + 1].ifa_netmask = (struct sockaddr *)&mask[i];
    }
    all[5].ifa_flags = IFF_POINTOPOINT;
    set(&at, host);
    char *lines = at.ss_family == AF_INET6 ? routes6 : routes;
    FILE *gateways = fmemopen(lines, strlen(lines), "r");
    bool near = sn_address_is_near(&at, tunnel, all, gateways);
    fclose(gateways);
    return near;
}

Test(near, this_machine_and_private_addresses_of_its_networks_are_near) {
    static const char *const near[] = {"127.0.0.1", "[::1]", "192.168.7.77", "[fd00:1::9]", "[fe80::9]", "203.0.113.5"};
    for (size_t i = 0; i < sizeof near / sizeof *near; i++) cr_expect(is_near(near[i], false), "%s", near[i]);
}

/* As an SSH or web tunnel whose end is on this machine, or a forwarder of ports into a container without root. */
Test(near, this_machine_is_not_near_where_a_tunnel_may_pass_strangers_on) {
    static const char *const here[] = {"127.0.0.1", "[::1]", "192.168.7.5", "[fd00:1::5]"};
    for (size_t i = 0; i < sizeof here / sizeof *here; i++) cr_expect_not(is_near(here[i], true), "%s", here[i]);
    cr_expect(is_near("192.168.7.77", true));
    cr_expect_not(sn_host_is_near("127.0.0.1", true));
}

Test(near, other_networks_public_addresses_and_the_gateway_are_not) {
    static const char *const far[] = {"192.168.8.77",  "10.0.0.1",    "203.0.113.9", "8.8.8.8",
                                      "[2001:db8::1]", "[fd00:2::9]", "172.16.0.1",  "192.168.7.1",
                                      "169.254.1.1",   "[fd00:1::1]", "10.9.0.7"};
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) cr_expect_not(is_near(far[i], false), "%s", far[i]);
}

Test(near, this_machine_is_near_and_what_is_no_address_is_not) {
    cr_expect(sn_host_is_near("127.0.0.1", false));
    cr_expect_not(sn_host_is_near("198.51.100.1", false));
    cr_expect_not(sn_host_is_near("name", false));
    cr_expect_not(sn_host_is_near("", false));
}
