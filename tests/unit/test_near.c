#include "net/near.h"
#include "tests/support/require.h"

#include <criterion/criterion.h>
#include <string.h>

static void set(struct sockaddr_storage *at, const char *host) {
    char address[128];
    socklen_t len;
    snprintf(address, sizeof address, "%s:1", host);
    REQUIRE(sn_address_read(address, at, &len, &err));
}

/* Interfaces 192.168.7.5/24, 203.0.113.5/24, fd00:1::5/64 and fe80::5/64; the gateway is 192.168.7.1. */
static bool is_near(const char *host) {
    static const char *const own[][2] = {{"192.168.7.5", "255.255.255.0"},
                                         {"203.0.113.5", "255.255.255.0"},
                                         {"[fd00:1::5]", "[ffff:ffff:ffff:ffff::]"},
                                         {"[fe80::5]", "[ffff:ffff:ffff:ffff::]"}};
    static char routes[] =
        "Iface\tDestination\tGateway\tFlags\neth0\t00000000\t0107A8C0\t0003\neth0\t0007A8C0\t00000000\t0001\n";
    struct sockaddr_storage address[4] = {0}, mask[4] = {0}, at = {0};
    struct ifaddrs all[5] = {0}; /* the first one has no address, as some of the kernel's */
    for (int i = 0; i < 4; i++) {
        set(&address[i], own[i][0]);
        set(&mask[i], own[i][1]);
        all[i].ifa_next = &all[i + 1];
        all[i + 1].ifa_addr = (struct sockaddr *)&address[i];
        all[i + 1].ifa_netmask = (struct sockaddr *)&mask[i];
    }
    set(&at, host);
    FILE *gateways = fmemopen(routes, strlen(routes), "r");
    bool near = sn_address_is_near(&at, all, gateways);
    fclose(gateways);
    return near;
}

Test(near, this_machine_and_private_addresses_of_its_networks_are_near) {
    static const char *const near[] = {"127.0.0.1", "[::1]", "192.168.7.77", "[fd00:1::9]", "[fe80::9]"};
    for (size_t i = 0; i < sizeof near / sizeof *near; i++) cr_expect(is_near(near[i]), "%s", near[i]);
}

Test(near, other_networks_public_addresses_and_the_gateway_are_not) {
    static const char *const far[] = {"192.168.8.77", "10.0.0.1",   "203.0.113.9", "8.8.8.8",    "[2001:db8::1]",
                                      "[fd00:2::9]",  "172.16.0.1", "192.168.7.1", "169.254.1.1"};
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) cr_expect_not(is_near(far[i]), "%s", far[i]);
}

Test(near, this_machine_is_near_and_what_is_no_address_is_not) {
    cr_expect(sn_host_is_near("127.0.0.1"));
    cr_expect_not(sn_host_is_near("198.51.100.1"));
    cr_expect_not(sn_host_is_near("name"));
    cr_expect_not(sn_host_is_near(""));
}
