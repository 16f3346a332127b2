#include "net/near.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

/* The bytes of the address, and how many. */
static const uint8_t *bytes_of(const struct sockaddr *at, size_t *n) {
    *n = at->sa_family == AF_INET ? 4 : 16;
    return at->sa_family == AF_INET ? (const uint8_t *)&((const struct sockaddr_in *)at)->sin_addr
                                    : (const uint8_t *)&((const struct sockaddr_in6 *)at)->sin6_addr;
}

static bool is_loopback(const struct sockaddr *at) {
    size_t n;
    const uint8_t *a = bytes_of(at, &n);
    return n == 4 ? a[0] == 127 : IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)a);
}

static bool is_private(const struct sockaddr *at) {
    size_t n;
    const uint8_t *a = bytes_of(at, &n);
    if (n == 16) return (a[0] & 0xfe) == 0xfc || (a[0] == 0xfe && (a[1] & 0xc0) == 0x80);
    return a[0] == 10 || (a[0] == 172 && (a[1] & 0xf0) == 16) || (a[0] == 192 && a[1] == 168) ||
           (a[0] == 169 && a[1] == 254);
}

static bool is_in_network(const struct sockaddr *at, const struct ifaddrs *i) {
    size_t n;
    if (i->ifa_flags & IFF_POINTOPOINT) return false; /* a private network over the internet, as WireGuard's */
    if (!i->ifa_addr || !i->ifa_netmask || i->ifa_addr->sa_family != at->sa_family) return false;
    const uint8_t *a = bytes_of(at, &n), *own = bytes_of(i->ifa_addr, &n);
    struct sockaddr_storage whole = {.ss_family = at->sa_family}; /* some systems leave a mask's family out */
    memcpy(&whole, i->ifa_netmask, n == 4 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
    whole.ss_family = at->sa_family;
    const uint8_t *mask = bytes_of((const struct sockaddr *)&whole, &n);
    for (size_t b = 0; b < n; b++)
        if ((a[b] ^ own[b]) & mask[b]) return false;
    return true;
}

/* Whether it is an address of this machine. */
static bool is_here(const struct sockaddr *at, const struct ifaddrs *all) {
    size_t n;
    const uint8_t *a = bytes_of(at, &n);
    if (is_loopback(at)) return true;
    for (; all; all = all->ifa_next)
        if (all->ifa_addr && all->ifa_addr->sa_family == at->sa_family && !memcmp(a, bytes_of(all->ifa_addr, &n), n))
            return true;
    return false;
}

/* The gateway in a line of /proc/net/route, "eth0 00000000 0107A8C0 ..." in the machine's order of bytes, or of
 * /proc/net/ipv6_route, whose fifth number it is, as the bytes are. False: the line has none. */
static bool gateway_read(const char *line, size_t bytes, uint8_t out[16]) {
    char hex[33], *end;
    if (sscanf(line, bytes == 4 ? "%*s %*s %32s" : "%*s %*s %*s %*s %32s", hex) != 1 || strlen(hex) != 2 * bytes)
        return false;
    if (bytes == 4) {
        const uint32_t number = (uint32_t)strtoul(hex, &end, 16);
        memcpy(out, &number, sizeof number);
        return number && !*end;
    }
    for (size_t i = 0; i < bytes; i++) {
        const char digits[] = {hex[2 * i], hex[2 * i + 1], 0};
        out[i] = (uint8_t)strtoul(digits, &end, 16);
        if (*end) return false;
    }
    return true;
}

static bool is_gateway(const struct sockaddr *at, FILE *gateways) {
    char line[256];
    uint8_t gateway[16];
    size_t n;
    const uint8_t *a = bytes_of(at, &n);
    while (gateways && fgets(line, sizeof line, gateways))
        if (gateway_read(line, n, gateway) && !memcmp(a, gateway, n)) return true;
    return false;
}

bool sn_address_is_near(const struct sockaddr_storage *at, bool tunnel, const struct ifaddrs *all, FILE *gateways) {
    const struct sockaddr *address = (const struct sockaddr *)at;
    if (at->ss_family != AF_INET && at->ss_family != AF_INET6) return false;
    if (is_here(address, all)) return !tunnel;
    if (!is_private(address) || is_gateway(address, gateways)) return false;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next)
        if (is_in_network(address, i)) return true;
    return false;
}

bool sn_host_is_near(const char *host, bool tunnel) {
    char address[SN_ADDRESS_MAX + 8];
    struct sockaddr_storage at = {0};
    struct ifaddrs *all = NULL;
    socklen_t len;
    sn_err err;
    snprintf(address, sizeof address, "%s:1", host);
    if (sn_address_read(address, &at, &len, &err) || getifaddrs(&all)) return false;
    FILE *gateways = fopen(at.ss_family == AF_INET6 ? "/proc/net/ipv6_route" : "/proc/net/route", "re");
    bool near = sn_address_is_near(&at, tunnel, all, gateways);
    if (gateways) fclose(gateways);
    freeifaddrs(all);
    return near;
}
