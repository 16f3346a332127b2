/* PCP (RFC 6887): one datagram asks the default gateway for a port, of IPv4 or, through a firewall that translates
 * nothing, of IPv6; one answers. No library of the distribution speaks it. */
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/random.h"
#include "net/address.h"
#include "net/router/router_private.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    PORT = 5351,
    VERSION = 2,
    MAP = 1,
    ANSWER = 0x80,
    SUCCESS = 0,
    /* Places in a request and its answer. */
    RESULT_AT = 3,
    LIFETIME_AT = 4,
    CLIENT_AT = 8,
    NONCE_AT = 24,
    PROTOCOL_AT = 36,
    INSIDE_AT = 40,
    OUTSIDE_AT = 42,
    HOST_AT = 44,
    TRIES = 3, /* of TRY_MS, and twice as long each, whatever comes meanwhile */
    TRY_MS = 250,
};

/* -- messages */

static void put(uint8_t *at, size_t bytes, uint32_t value) {
    for (size_t i = 0; i < bytes; i++) at[i] = (uint8_t)(value >> 8 * (bytes - 1 - i));
}

static uint32_t get(const uint8_t *at, size_t bytes) {
    uint32_t value = 0;
    for (size_t i = 0; i < bytes; i++) value = value << 8 | at[i];
    return value;
}

static bool own_address(const sn_router_port *port, struct sockaddr_storage *out, socklen_t *len) {
    char address[SN_ADDRESS_MAX + 8];
    sn_err err;
    snprintf(address, sizeof address, "%s:1", port->own);
    return !sn_address_read(address, out, len, &err);
}

bool sn_pcp_request(const sn_router_port *port, int protocol, int seconds, uint8_t out[SN_PCP_SIZE]) {
    static const uint8_t mapped_prefix[12] = {[10] = 0xff, 0xff};
    struct sockaddr_storage own = {0};
    socklen_t len;
    if (!own_address(port, &own, &len)) return false;
    memset(out, 0, SN_PCP_SIZE);
    out[0] = VERSION;
    out[1] = MAP;
    put(out + LIFETIME_AT, 4, (uint32_t)seconds);
    memcpy(out + NONCE_AT, port->nonce, SN_PCP_NONCE_SIZE);
    out[PROTOCOL_AT] = (uint8_t)protocol;
    put(out + INSIDE_AT, 2, (uint32_t)port->inside);
    put(out + OUTSIDE_AT, 2, (uint32_t)(port->outside ? port->outside : port->inside));
    if (own.ss_family == AF_INET6) {
        memcpy(out + CLIENT_AT, &((const struct sockaddr_in6 *)&own)->sin6_addr, 16);
    } else {
        memcpy(out + CLIENT_AT, mapped_prefix, 12);
        memcpy(out + CLIENT_AT + 12, &((const struct sockaddr_in *)&own)->sin_addr, 4);
        memcpy(out + HOST_AT, mapped_prefix, 12); /* any address of IPv4 */
    }
    return true;
}

bool sn_pcp_read(const uint8_t *data, size_t len, const uint8_t request[SN_PCP_SIZE], sn_router_port *port,
                 bool *refused) {
    struct in6_addr six;
    char host[INET6_ADDRSTRLEN];
    *refused = len >= 4 && data[RESULT_AT] != SUCCESS && (data[0] != VERSION || data[1] == (ANSWER | MAP));
    if (len < SN_PCP_SIZE || data[0] != VERSION || data[1] != (ANSWER | MAP) || *refused) return false;
    if (memcmp(data + NONCE_AT, request + NONCE_AT, INSIDE_AT + 2 - NONCE_AT) != 0) return false;
    uint32_t seconds = get(data + LIFETIME_AT, 4);
    memcpy(&six, data + HOST_AT, 16);
    if (IN6_IS_ADDR_V4MAPPED(&six)) {
        inet_ntop(AF_INET, data + HOST_AT + 12, host, sizeof host);
        snprintf(port->host, sizeof port->host, "%s", host);
    } else {
        inet_ntop(AF_INET6, &six, host, sizeof host);
        snprintf(port->host, sizeof port->host, "[%s]", host);
    }
    port->outside = (int)get(data + OUTSIDE_AT, 2);
    port->seconds = seconds < SN_ROUTER_LEASE_S ? (int)seconds : SN_ROUTER_LEASE_S;
    return true;
}

/* -- the router */

/* Of a line "eth0 00000000 0101A8C0 ...": the second number, if the first one is 0; else 0. */
static uint32_t of_default_route(const char *line) {
    char to[9], gateway[9];
    if (sscanf(line, "%*s %8s %8s", to, gateway) != 2 || strspn(to, "0") != 8) return 0;
    return (uint32_t)strtoul(gateway, NULL, 16);
}

/* The router of the default route of IPv4: "eth0 00000000 0101A8C0 ..." in the machine's order of bytes. */
static bool gateway_of_four(struct sockaddr_storage *out, socklen_t *len) {
    struct sockaddr_in *four = (struct sockaddr_in *)out;
    char line[256];
    uint32_t gateway = 0;
    FILE *routes = fopen("/proc/net/route", "re");
    while (routes && !gateway && fgets(line, sizeof line, routes)) gateway = of_default_route(line);
    if (routes) fclose(routes);
    four->sin_family = AF_INET;
    four->sin_port = htons(PORT);
    four->sin_addr.s_addr = gateway;
    *len = sizeof *four;
    return gateway != 0;
}

/* The one of IPv6: its fifth number, of a route to ::/0; its last word is the interface. */
static bool gateway_of_six(struct sockaddr_storage *out, socklen_t *len) {
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
    char line[256], to[33], size[3], hex[33], interface[IF_NAMESIZE];
    bool found = false;
    FILE *routes = fopen("/proc/net/ipv6_route", "re");
    while (routes && !found && fgets(line, sizeof line, routes)) {
        if (sscanf(line, "%32s %2s %*s %*s %32s %*s %*s %*s %*s %15s", to, size, hex, interface) != 4) continue;
        if (strspn(to, "0") != 32 || strcmp(size, "00") != 0 || strspn(hex, "0") == 32 || strlen(hex) != 32) continue;
        found = !sn_unhex(hex, six->sin6_addr.s6_addr, sizeof six->sin6_addr.s6_addr, NULL);
        six->sin6_scope_id = IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr) ? if_nametoindex(interface) : 0;
    }
    if (routes) fclose(routes);
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(PORT);
    *len = sizeof *six;
    return found;
}

/* A socket from this machine's address, which the request names, to the router; -1: there is none. */
static int gateway_dial(const sn_router_port *port) {
    struct sockaddr_storage own = {0}, gateway = {0};
    socklen_t own_len, len;
    if (!own_address(port, &own, &own_len)) return -1;
    if (own.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&own)->sin6_port = 0;
    else
        ((struct sockaddr_in *)&own)->sin_port = 0;
    if (!(own.ss_family == AF_INET6 ? gateway_of_six(&gateway, &len) : gateway_of_four(&gateway, &len))) return -1;
    int fd = socket(own.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && !bind(fd, (struct sockaddr *)&own, own_len) && !connect(fd, (struct sockaddr *)&gateway, len))
        return fd;
    if (fd >= 0) close(fd);
    return -1;
}

bool sn_pcp_ask(int fd, sn_router_port *port, int protocol, int seconds) {
    uint8_t request[SN_PCP_SIZE], data[1100];
    bool refused = false;
    if (!sn_pcp_request(port, protocol, seconds, request)) return false;
    for (int tries = 0; tries < TRIES; tries++) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        int64_t until_us = sn_now_us() + (int64_t)(TRY_MS << tries) * 1000;
        if (send(fd, request, sizeof request, 0) < 0 && errno == ECONNREFUSED) return false;
        for (int64_t left_us; (left_us = until_us - sn_now_us()) > 0;) {
            if (poll(&readable, 1, (int)(left_us / 1000) + 1) <= 0) continue;
            ssize_t n = recv(fd, data, sizeof data, 0);
            if (n < 0) return false; /* no program listens there */
            if (sn_pcp_read(data, (size_t)n, request, port, &refused)) return true;
            if (refused) return false;
        }
    }
    return false;
}

static bool pcp_open(sn_router_port *port) {
    static const uint8_t none[SN_PCP_NONCE_SIZE];
    if (!memcmp(port->nonce, none, sizeof none)) sn_random(port->nonce, sizeof port->nonce);
    int fd = gateway_dial(port);
    if (fd < 0) return false;
    bool opened = sn_pcp_ask(fd, port, IPPROTO_TCP, SN_ROUTER_LEASE_S) && port->seconds && port->outside;
    sn_router_port udp = *port;
    if (opened && (!sn_pcp_ask(fd, &udp, IPPROTO_UDP, SN_ROUTER_LEASE_S) || udp.outside != port->outside))
        sn_log(SN_LOG_DEBUG, "router", "text=it opened the TCP port and not the UDP port of its number");
    close(fd);
    return opened;
}

static void pcp_close(sn_router_port *port) {
    int fd = gateway_dial(port);
    if (fd < 0) return;
    (void)sn_pcp_ask(fd, port, IPPROTO_TCP, 0);
    (void)sn_pcp_ask(fd, port, IPPROTO_UDP, 0);
    close(fd);
}

const sn_router_way sn_router_pcp = {.name = "pcp", .six = true, .four = true, .open = pcp_open, .close = pcp_close};
