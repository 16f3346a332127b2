/* A port that the router opens (port_mapping.h). The thread asks by NAT-PMP, which takes a second where no router
 * speaks it, and then by UPnP-IGD; what has answered is asked again for each renewal. */
#include "net/router/port_mapping.h"

#include "base/log.h"
#include "base/thread.h"

#include <arpa/inet.h>
#include <errno.h>
#include <miniupnpc/miniupnpc.h>
#include <miniupnpc/upnpcommands.h>
#include <miniupnpc/upnperrors.h>
#include <natpmp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    LIFETIME_S = 180, /* of a mapping */
    RENEW_S = 60,
    RETRY_S = 300,      /* after routers that open nothing */
    NATPMP_TRIES = 3,   /* of 250 ms and twice as long each: NAT-PMP's own schedule */
    DISCOVER_MS = 2000, /* for routers to answer UPnP's question */
    PORTS_TRIED = 4,    /* outside, when another machine of the home has the port */
};
static const char DESCRIPTION[] = "swarm-node";

struct sn_port_mapping {
    void (*wake)(void *);
    void *ctx;
    int port;
    pthread_t thread;
    bool started;
    /* Of the thread. */
    bool by_natpmp, by_upnp; /* who opened the port */
    int outside;             /* its number there */
    struct UPNPUrls urls;    /* by_upnp */
    struct IGDdatas igd;
    char lan[64];
    pthread_mutex_t lock; /* guards the members below */
    pthread_cond_t changed;
    bool stop;
    char address[SN_ADDRESS_MAX + 1]; /* empty: none */
};

/* -- NAT-PMP */

/* Waits for the answer to the request that was sent. */
static bool natpmp_answer(natpmp_t *n, natpmpresp_t *out) {
    for (int tries = 0; tries < NATPMP_TRIES;) {
        struct timeval left = {0};
        getnatpmprequesttimeout(n, &left); /* below zero where the time has passed */
        struct pollfd fd = {.fd = n->s, .events = POLLIN};
        int ready = poll(&fd, 1, left.tv_sec < 0 ? 0 : (int)(left.tv_sec * 1000 + left.tv_usec / 1000) + 1);
        int r = readnatpmpresponseorretry(n, out);
        if (r == 0) return true;
        if (r != NATPMP_TRYAGAIN) return false;
        if (ready <= 0) tries++;
    }
    return false;
}

static bool natpmp_open_port(natpmp_t *n, int protocol, int inside, int outside, int seconds, int *given) {
    natpmpresp_t answer;
    if (sendnewportmappingrequest(n, protocol, (uint16_t)inside, (uint16_t)outside, (uint32_t)seconds) < 0 ||
        !natpmp_answer(n, &answer))
        return false;
    *given = answer.pnu.newportmapping.mappedpublicport;
    return true;
}

/* Opens the port for so many seconds; 0: closes it. */
static bool natpmp_map(sn_port_mapping *m, int seconds, char host[64]) {
    natpmp_t n;
    natpmpresp_t answer;
    int udp = 0, wanted = m->outside ? m->outside : m->port;
    if (initnatpmp(&n, 0, 0) < 0) return false;
    bool mapped = sendpublicaddressrequest(&n) >= 0 && natpmp_answer(&n, &answer) &&
                  inet_ntop(AF_INET, &answer.pnu.publicaddress.addr, host, 64) &&
                  natpmp_open_port(&n, NATPMP_PROTOCOL_TCP, m->port, seconds ? wanted : 0, seconds, &m->outside);
    if (mapped && !natpmp_open_port(&n, NATPMP_PROTOCOL_UDP, m->port, seconds ? m->outside : 0, seconds, &udp))
        sn_log(SN_LOG_DEBUG, "router", "text=it opened the TCP port and not the UDP port");
    closenatpmp(&n);
    return mapped && (!seconds || m->outside);
}

/* -- UPnP-IGD */

static bool upnp_find(sn_port_mapping *m) {
    enum { CONNECTED = 1 };
    int error = 0;
    struct UPNPDev *found = upnpDiscover(DISCOVER_MS, NULL, NULL, 0, 0, 2, &error);
#if MINIUPNPC_API_VERSION >= 18
    int kind = UPNP_GetValidIGD(found, &m->urls, &m->igd, m->lan, sizeof m->lan, NULL, 0);
#else
    int kind = UPNP_GetValidIGD(found, &m->urls, &m->igd, m->lan, sizeof m->lan);
#endif
    freeUPNPDevlist(found);
    if (kind > CONNECTED) FreeUPNPUrls(&m->urls);
    return kind == CONNECTED;
}

static bool upnp_open_port(sn_port_mapping *m, int outside, const char *protocol) {
    char in[8], out[8], lease[12];
    snprintf(in, sizeof in, "%d", m->port);
    snprintf(out, sizeof out, "%d", outside);
    snprintf(lease, sizeof lease, "%d", LIFETIME_S);
    return !UPNP_AddPortMapping(m->urls.controlURL, m->igd.first.servicetype, out, in, m->lan, DESCRIPTION, protocol,
                                NULL, lease);
}

static void upnp_close_port(sn_port_mapping *m, const char *protocol) {
    char out[8];
    snprintf(out, sizeof out, "%d", m->outside);
    UPNP_DeletePortMapping(m->urls.controlURL, m->igd.first.servicetype, out, protocol, NULL);
}

static bool upnp_map(sn_port_mapping *m, char host[64]) {
    bool known = m->by_upnp;
    if (!known && !upnp_find(m)) return false;
    bool mapped = false;
    for (int i = 0; i < PORTS_TRIED && !mapped; i++) {
        int outside = m->outside ? m->outside : m->port + 1009 * i > 65535 ? m->port - 1009 * i : m->port + 1009 * i;
        mapped = upnp_open_port(m, outside, "TCP");
        if (mapped) m->outside = outside;
    }
    if (mapped && !upnp_open_port(m, m->outside, "UDP"))
        sn_log(SN_LOG_DEBUG, "router", "text=it opened the TCP port and not the UDP port");
    char ip[40] = "";
    mapped = mapped && !UPNP_GetExternalIPAddress(m->urls.controlURL, m->igd.first.servicetype, ip);
    snprintf(host, 64, "%s", ip);
    if (!mapped) FreeUPNPUrls(&m->urls);
    return mapped;
}

/* -- the thread */

static void mapping_set(sn_port_mapping *m, const char *host) {
    char address[SN_ADDRESS_MAX + 1] = "";
    if (*host) snprintf(address, sizeof address, "%s:%d", host, m->outside);
    pthread_mutex_lock(&m->lock);
    bool changed = strcmp(address, m->address) != 0;
    snprintf(m->address, sizeof m->address, "%s", address);
    pthread_mutex_unlock(&m->lock);
    if (!changed) return;
    sn_log(SN_LOG_INFO, "router", "address=%s by=%s", *address ? address : "-",
           m->by_natpmp ? "nat-pmp"
           : m->by_upnp ? "upnp"
                        : "-");
    m->wake(m->ctx);
}

static void mapping_renew(sn_port_mapping *m) {
    char host[64] = "";
    bool by_natpmp = !m->by_upnp && natpmp_map(m, LIFETIME_S, host);
    bool by_upnp = !by_natpmp && upnp_map(m, host);
    m->by_natpmp = by_natpmp;
    m->by_upnp = by_upnp;
    if (!by_natpmp && !by_upnp) m->outside = 0;
    mapping_set(m, by_natpmp || by_upnp ? host : "");
}

/* False: the mapping ends. */
static bool mapping_wait(sn_port_mapping *m, int seconds) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    pthread_mutex_lock(&m->lock);
    for (int waited = 0; !m->stop && waited != ETIMEDOUT;)
        waited = pthread_cond_timedwait(&m->changed, &m->lock, &until);
    bool go_on = !m->stop;
    pthread_mutex_unlock(&m->lock);
    return go_on;
}

static void *mapping_run(void *arg) {
    sn_port_mapping *m = arg;
    char host[64];
    do {
        mapping_renew(m);
    } while (mapping_wait(m, m->by_natpmp || m->by_upnp ? RENEW_S : RETRY_S));
    if (m->by_natpmp) natpmp_map(m, 0, host);
    if (!m->by_upnp) return NULL;
    upnp_close_port(m, "TCP");
    upnp_close_port(m, "UDP");
    FreeUPNPUrls(&m->urls);
    return NULL;
}

sn_status sn_port_mapping_new(int port, void (*wake)(void *), void *ctx, sn_port_mapping **out, sn_err *err) {
    sn_port_mapping *m = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&m, 1, sizeof *m, err);
    if (status) return status;
    m->port = port;
    m->wake = wake;
    m->ctx = ctx;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    m->started = sn_thread_start(&m->thread, mapping_run, m, NULL);
    if (m->started)
        *out = m;
    else
        sn_port_mapping_free(&m);
    return *out ? SN_OK : sn_fail(err, SN_STOP, "the thread that asks the router cannot be started");
}

void sn_port_mapping_free(sn_port_mapping **mapping) {
    sn_port_mapping *m = *mapping;
    if (!m) return;
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->lock);
    if (m->started) pthread_join(m->thread, NULL);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m);
    *mapping = NULL;
}

bool sn_port_mapping_read(sn_port_mapping *m, char address[SN_ADDRESS_MAX + 1]) {
    pthread_mutex_lock(&m->lock);
    memcpy(address, m->address, sizeof m->address);
    pthread_mutex_unlock(&m->lock);
    return *address;
}
