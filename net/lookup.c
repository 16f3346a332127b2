#include "net/lookup.h"

#include "base/clock.h"
#include "base/parse.h"
#include "base/thread.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Shared by the lookup's owner and its thread; freed by the one that leaves last. */
struct sn_lookup {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int holders;
    bool done;
    int failure; /* of getaddrinfo */
    size_t n;
    char found[SN_LOOKUP_ADDRESSES_MAX][SN_ADDRESS_MAX + 1];
    char address[SN_ADDRESS_MAX + 1];
    sn_host_port at;
};

static void lookup_leave(sn_lookup *l) {
    pthread_mutex_lock(&l->lock);
    bool last = --l->holders == 0;
    pthread_mutex_unlock(&l->lock);
    if (!last) return;
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

static size_t collect(const struct addrinfo *list, int family, sn_lookup *l, size_t n) {
    for (const struct addrinfo *a = list; a && n < SN_LOOKUP_ADDRESSES_MAX; a = a->ai_next) {
        char host[NI_MAXHOST];
        if (a->ai_family != family ||
            getnameinfo(a->ai_addr, a->ai_addrlen, host, sizeof host, NULL, 0, NI_NUMERICHOST))
            continue;
        int len = snprintf(l->found[n], SN_ADDRESS_MAX + 1, family == AF_INET6 ? "[%s]:%d" : "%s:%d", host, l->at.port);
        n += len > 0 && len <= SN_ADDRESS_MAX;
    }
    return n;
}

static void *lookup_run(void *arg) {
    sn_lookup *l = arg;
    struct addrinfo *list = NULL, hints = {.ai_socktype = SOCK_STREAM};
    int failure = getaddrinfo(l->at.host, NULL, &hints, &list); /* at.host does not change */
    pthread_mutex_lock(&l->lock);
    l->failure = failure;
    if (!failure) l->n = collect(list, AF_INET6, l, collect(list, AF_INET, l, 0));
    l->done = true;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
    if (list) freeaddrinfo(list);
    lookup_leave(l);
    return NULL;
}

static sn_status lookup_begin(sn_lookup *l, sn_err *err) {
    pthread_t thread;
    l->holders++;
    bool started = sn_thread_start(&thread, lookup_run, l, NULL);
    if (started) pthread_detach(thread);
    if (!started) l->holders--;
    return started ? SN_OK : sn_fail(err, SN_STOP, "the thread that looks up %s cannot start", l->address);
}

sn_status sn_lookup_start(const char *address, sn_lookup **out, sn_err *err) {
    sn_host_port at;
    sn_lookup *l;
    *out = NULL;
    sn_status status = sn_parse_host_port(address, SN_HOST_PORT_DIAL, &at, err);
    if (!status) status = sn_calloc(&l, 1, sizeof *l, err);
    if (status) return status;
    pthread_condattr_t attributes; /* deadlines are on the clock of sn_now_us, the monotonic one */
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    l->holders = 1;
    l->at = at;
    snprintf(l->address, sizeof l->address, "%s", address);
    l->done = sn_address_is_numeric(address);
    if (l->done)
        memcpy(l->found[l->n++], l->address, sizeof l->address);
    else
        status = lookup_begin(l, err);
    if (status)
        lookup_leave(l);
    else
        *out = l;
    return status;
}

sn_status sn_lookup_wait(sn_lookup *l, int64_t deadline_us, char addresses[SN_LOOKUP_ADDRESSES_MAX][SN_ADDRESS_MAX + 1],
                         size_t *n, sn_err *err) {
    struct timespec until = {.tv_sec = deadline_us / 1000000, .tv_nsec = deadline_us % 1000000 * 1000};
    sn_status status = SN_OK;
    *n = 0;
    pthread_mutex_lock(&l->lock);
    while (!l->done && deadline_us > 0)
        if (pthread_cond_timedwait(&l->changed, &l->lock, &until)) break;
    if (!l->done)
        status = sn_fail(err, SN_RETRY, "the host of %s was not found yet: the resolver is slow", l->address);
    else if (l->failure || !l->n)
        status = sn_fail(err, SN_REFUSED, "the host of %s cannot be found: %s", l->address,
                         l->failure ? gai_strerror(l->failure) : "it has no address");
    for (; !status && *n < l->n; ++*n) memcpy(addresses[*n], l->found[*n], SN_ADDRESS_MAX + 1);
    pthread_mutex_unlock(&l->lock);
    return status;
}

void sn_lookup_free(sn_lookup **lookup) {
    if (*lookup) lookup_leave(*lookup);
    *lookup = NULL;
}

sn_status sn_lookup_first(const char *address, char out[SN_ADDRESS_MAX + 1], sn_err *err) {
    char addresses[SN_LOOKUP_ADDRESSES_MAX][SN_ADDRESS_MAX + 1];
    sn_lookup *lookup;
    size_t n;
    sn_status status = sn_lookup_start(address, &lookup, err);
    if (status) return status;
    status = sn_lookup_wait(lookup, sn_now_us() + SN_LOOKUP_WAIT_US, addresses, &n, err);
    if (status == SN_RETRY)
        status = sn_fail(err, SN_REFUSED, "the host of %s was not found within %d seconds: give a numeric address",
                         address, SN_LOOKUP_WAIT_US / 1000000);
    if (!status) memcpy(out, addresses[0], SN_ADDRESS_MAX + 1);
    sn_lookup_free(&lookup);
    return status;
}

/* A UDP socket that is connected sends nothing, and has the address from which it would. */
static bool local_host_towards(const char *toward, char host[SN_ADDRESS_MAX + 1]) {
    sn_host_port at;
    char port[8];
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct sockaddr_storage own = {0};
    socklen_t len = sizeof own;
    if (sn_parse_host_port(toward, SN_HOST_PORT_DIAL, &at, NULL)) return false;
    snprintf(port, sizeof port, "%d", at.port);
    if (getaddrinfo(at.host, port, &hints, &found)) return false;
    int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool known = fd >= 0 && !connect(fd, found->ai_addr, found->ai_addrlen) &&
                 !getsockname(fd, (struct sockaddr *)&own, &len) && sn_address_host(&own, host);
    if (fd >= 0) close(fd);
    freeaddrinfo(found);
    return known;
}

/* One of this machine's own addresses of the family that others could reach. */
static bool local_host_of(const struct ifaddrs *all, int family, char host[SN_ADDRESS_MAX + 1]) {
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        struct sockaddr_storage own = {0};
        if (!i->ifa_addr || i->ifa_addr->sa_family != family || i->ifa_flags & IFF_LOOPBACK) continue;
        memcpy(&own, i->ifa_addr, family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
        const struct in6_addr *six = &((const struct sockaddr_in6 *)&own)->sin6_addr;
        if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(six)) continue; /* needs the name of an interface beside it */
        if (sn_address_host(&own, host)) return true;
    }
    return false;
}

bool sn_local_host(const char *toward, char host[SN_ADDRESS_MAX + 1]) {
    struct ifaddrs *all = NULL;
    if (*toward) return local_host_towards(toward, host);
    if (getifaddrs(&all)) return false;
    bool known = local_host_of(all, AF_INET, host) || local_host_of(all, AF_INET6, host);
    freeifaddrs(all);
    return known;
}
