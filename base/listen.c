#include "base/listen.h"

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

sn_status sn_listen_tcp(const char *host, int port, int *fd, int *bound, sn_err *err) {
    char service[16];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    int yes = 1;
    snprintf(service, sizeof service, "%d", port);
    int code = getaddrinfo(strcmp(host, "*") ? host : NULL, service, &hints, &found);
    if (code) return sn_fail(err, SN_REFUSED, "%s", gai_strerror(code));
    *fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool ready = *fd >= 0 && !setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) &&
                 !bind(*fd, found->ai_addr, found->ai_addrlen) && !listen(*fd, SN_LISTEN_BACKLOG);
    sn_status status = ready ? SN_OK : sn_fail(err, SN_RETRY, "cannot listen there: %s", strerror(errno));
    freeaddrinfo(found);
    if (status && *fd >= 0) close(*fd);
    *bound = status ? 0 : bound_port(*fd);
    if (status) *fd = -1;
    return status;
}
