#include "net/transport/tcp_listen_private.h"

#include "base/listen.h"
#include "base/parse.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BACKLOG = 1024 };

static sn_status failed(const char *address, const char *reason, int number, sn_err *err) {
    switch (number) {
    case EADDRINUSE:
        (void)sn_fail(err, SN_REFUSED, "%s is in use by another program: choose another --listen address", address);
        if (err) err->retry_after_ms = SN_PORT_RETRY_MS;
        return SN_REFUSED;
    case EACCES:
        return sn_fail(err, SN_REFUSED, "%s needs rights that this program does not have: choose a port above 1023",
                       address);
    default:
        return sn_fail(err, SN_REFUSED,
                       "%s is no address of this machine (%s): choose another --listen address, such "
                       "as 0.0.0.0:7001 for all of them",
                       address, reason);
    }
}

static bool open_socket(const struct addrinfo *at, int *fd) {
    int one = 1, none = 0;
    *fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return *fd >= 0 && !setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) &&
           (at->ai_family != AF_INET6 || !setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &none, sizeof none)) &&
           !bind(*fd, at->ai_addr, at->ai_addrlen) && !listen(*fd, BACKLOG);
}

static bool name_bound(int fd, char bound[SN_ADDRESS_MAX + 1]) {
    struct sockaddr_storage at;
    socklen_t len = sizeof at;
    char host[NI_MAXHOST], port[NI_MAXSERV];
    if (getsockname(fd, (struct sockaddr *)&at, &len) ||
        getnameinfo((struct sockaddr *)&at, len, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV))
        return false;
    int n = snprintf(bound, SN_ADDRESS_MAX + 1, at.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    return n > 0 && n <= SN_ADDRESS_MAX;
}

static sn_status listen_at(const sn_host_port *parsed, int family, const char *address, int *fd,
                           char bound[SN_ADDRESS_MAX + 1], sn_err *err) {
    char port[8];
    sn_status status = SN_OK;
    struct addrinfo *at = NULL,
                    hints = {.ai_family = family, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    snprintf(port, sizeof port, "%d", parsed->port);
    int missing = getaddrinfo(strcmp(parsed->host, "*") ? parsed->host : NULL, port, &hints, &at);
    *fd = -1;
    if (missing) return failed(address, gai_strerror(missing), 0, err);
    if (!open_socket(at, fd) || !name_bound(*fd, bound)) {
        status = failed(address, strerror(errno), errno, err);
        if (*fd >= 0) close(*fd);
        *fd = -1;
    }
    freeaddrinfo(at);
    return status;
}

/* Whether a socket of IPv6, which takes IPv4, too, can be bound here. */
static bool has_six(void) {
    const struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool bound = fd >= 0 && !bind(fd, (const struct sockaddr *)&any, sizeof any);
    if (fd >= 0) close(fd);
    return bound;
}

sn_status sn_tcp_listen(const char *address, int *fd, char bound[SN_ADDRESS_MAX + 1], sn_err *err) {
    sn_host_port parsed;
    sn_status status = sn_parse_host_port(address, SN_HOST_PORT_LISTEN, &parsed, err);
    if (status) return status;
    bool six = strcmp(parsed.host, "*") ? strchr(parsed.host, ':') != NULL : has_six();
    return listen_at(&parsed, six ? AF_INET6 : AF_INET, address, fd, bound, err);
}
