#include "base/listen.h"

#include "base/log.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int bound_port(int fd) {
    struct sockaddr_storage at = {0};
    socklen_t len = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &len)) return 0;
    return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&at)->sin6_port
                                          : ((struct sockaddr_in *)(void *)&at)->sin_port);
}

bool sn_port_may_come_free(int64_t began_us, sn_status status, const sn_err *err) {
    enum { PORT_WAIT_US = 3000000 };
    const bool waits = status && err->retry_after_ms && sn_now_us() - began_us < PORT_WAIT_US;
    if (waits) sn_log_rated(SN_LOG_INFO, "port in use", "text=%s", err->text);
    if (waits) sn_sleep_us((int64_t)err->retry_after_ms * 1000);
    return waits;
}

static sn_status listen_at(const struct addrinfo *at, int *fd, sn_err *err) {
    int yes = 1;
    *fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd >= 0 && !setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) &&
        !bind(*fd, at->ai_addr, at->ai_addrlen) && !listen(*fd, SN_LISTEN_BACKLOG))
        return SN_OK;
    const int reason = errno;
    (void)sn_fail(err, SN_RETRY, "cannot listen there: %s", strerror(reason));
    if (reason == EADDRINUSE) err->retry_after_ms = SN_PORT_RETRY_MS;
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return SN_RETRY;
}

sn_status sn_listen_tcp(const char *host, int port, int *fd, int *bound, sn_err *err) {
    char service[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    const int64_t began_us = sn_now_us();
    sn_status status;
    snprintf(service, sizeof service, "%d", port);
    int code = getaddrinfo(strcmp(host, "*") ? host : NULL, service, &hints, &found);
    if (code) return sn_fail(err, SN_REFUSED, "%s", gai_strerror(code));
    do status = listen_at(found, fd, err);
    while (sn_port_may_come_free(began_us, status, err));
    freeaddrinfo(found);
    *bound = status ? 0 : bound_port(*fd);
    return status;
}
