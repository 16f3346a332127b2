#include "net/address.h"

#include "base/parse.h"
#include "net/codec_private.h"

#include <arpa/inet.h>
#include <assert.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

static_assert((int)SN_ADDRESS_MAX == (int)SN_HOST_PORT_MAX,
              "an address on the wire is as long as one on the command line");
static_assert(SN_KEY_SIZE == sizeof((sn_host_port *)0)->key, "a pinned key is a CURVE key");

sn_status sn_address_check(const char *address, bool to_listen, sn_err *err) {
    sn_host_port parsed;
    if (!sn_is_printable(address, strnlen(address, SN_ADDRESS_MAX + 1)))
        return sn_fail(err, SN_REFUSED, "an address with bytes that are not printable is no address: write HOST:PORT");
    return sn_parse_host_port(address, to_listen ? SN_HOST_PORT_LISTEN : SN_HOST_PORT_DIAL, &parsed, err);
}

bool sn_address_is_numeric(const char *address) {
    sn_host_port parsed;
    uint8_t bytes[16];
    return !sn_parse_host_port(address, SN_HOST_PORT_DIAL, &parsed, NULL) &&
           (inet_pton(AF_INET, parsed.host, bytes) == 1 || inet_pton(AF_INET6, parsed.host, bytes) == 1);
}

sn_status sn_address_check_numeric(const char *address, sn_err *err) {
    sn_status status = sn_address_check(address, false, err);
    if (status || sn_address_is_numeric(address)) return status;
    return sn_fail(err, SN_REFUSED,
                   "%s has a name for a host, and programs tell each other numeric addresses only, as in "
                   "192.0.2.1:31330: its node must announce one (--public)",
                   address);
}

bool sn_address_host(const struct sockaddr_storage *at, char host[SN_ADDRESS_MAX + 1]) {
    char text[INET6_ADDRSTRLEN];
    const struct in6_addr *six = &((const struct sockaddr_in6 *)at)->sin6_addr;
    bool mapped = at->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(six);
    const void *four = mapped ? six->s6_addr + 12 : (const void *)&((const struct sockaddr_in *)at)->sin_addr;
    if (at->ss_family != AF_INET && at->ss_family != AF_INET6) return false;
    bool is_six = at->ss_family == AF_INET6 && !mapped;
    if (!inet_ntop(is_six ? AF_INET6 : AF_INET, is_six ? (const void *)six : four, text, sizeof text)) return false;
    snprintf(host, SN_ADDRESS_MAX + 1, is_six ? "[%s]" : "%s", text);
    return true;
}

void sn_address_of_own(const char *bound, char own[SN_ADDRESS_MAX + 1]) {
    bool everywhere = !strncmp(bound, "0.0.0.0:", 8) || !strncmp(bound, "[::]:", 5);
    snprintf(own, SN_ADDRESS_MAX + 1, everywhere ? "127.0.0.1%s" : "%s", everywhere ? strrchr(bound, ':') : bound);
}

sn_status sn_address_read(const char *address, struct sockaddr_storage *out, socklen_t *len, sn_err *err) {
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    sn_host_port at;
    char port[8];
    sn_status status = sn_address_check_numeric(address, err);
    if (!status) status = sn_parse_host_port(address, SN_HOST_PORT_DIAL, &at, err);
    if (status) return status;
    snprintf(port, sizeof port, "%d", at.port);
    if (getaddrinfo(at.host, port, &hints, &found)) return sn_fail(err, SN_REFUSED, "%s is no address", address);
    memcpy(out, found->ai_addr, *len = found->ai_addrlen);
    freeaddrinfo(found);
    return SN_OK;
}

sn_status sn_address_parse(const char *text, char plain[SN_ADDRESS_MAX + 1], uint8_t key[SN_KEY_SIZE], bool *pinned,
                           sn_err *err) {
    sn_host_port parsed;
    sn_status status = sn_parse_host_port(text, SN_HOST_PORT_PINNED, &parsed, err);
    if (status) return status;
    memcpy(plain, text, parsed.len);
    plain[parsed.len] = 0;
    *pinned = parsed.pinned;
    memcpy(key, parsed.key, SN_KEY_SIZE);
    return SN_OK;
}

int sn_address_scope(const char *address) {
    sn_host_port at;
    uint8_t four[4];
    struct in6_addr six;
    if (sn_parse_host_port(address, SN_HOST_PORT_DIAL, &at, NULL)) return 0;
    if (inet_pton(AF_INET6, at.host, &six) == 1) {
        if (IN6_IS_ADDR_LOOPBACK(&six)) return 0;
        return (six.s6_addr[0] & 0xfe) == 0xfc || IN6_IS_ADDR_LINKLOCAL(&six) ? 1 : 2;
    }
    if (inet_pton(AF_INET, at.host, four) != 1 || four[0] == 127) return 0;
    const int a = four[0], b = four[1];
    bool private = a == 10 || (a == 172 && b >= 16 && b < 32) || (a == 192 && b == 168) || (a == 169 && b == 254) ||
                   (a == 100 && b >= 64 && b < 128);
    return private ? 1 : 2;
}
