/* NAT-PMP (RFC 6886) through libnatpmp. */
#include "base/log.h"
#include "net/router/router_private.h"

#include <arpa/inet.h>
#include <natpmp.h>
#include <poll.h>

enum { TRIES = 3 }; /* of 250 ms and twice as long each: NAT-PMP's own schedule */

/* Waits for the answer to the request that was sent. */
static bool natpmp_answer(natpmp_t *n, natpmpresp_t *out) {
    for (int tries = 0; tries < TRIES;) {
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

static bool natpmp_ask(natpmp_t *n, int protocol, int inside, int outside, int seconds, natpmpresp_t *answer) {
    return sendnewportmappingrequest(n, protocol, (uint16_t)inside, (uint16_t)outside, (uint32_t)seconds) >= 0 &&
           natpmp_answer(n, answer);
}

static bool natpmp_open_ports(natpmp_t *n, sn_router_port *port) {
    natpmpresp_t answer;
    if (sendpublicaddressrequest(n) < 0 || !natpmp_answer(n, &answer) ||
        !inet_ntop(AF_INET, &answer.pnu.publicaddress.addr, port->host, sizeof port->host) ||
        !natpmp_ask(n, NATPMP_PROTOCOL_TCP, port->inside, port->outside ? port->outside : port->inside,
                    SN_ROUTER_LEASE_S, &answer))
        return false;
    port->outside = answer.pnu.newportmapping.mappedpublicport;
    uint32_t seconds = answer.pnu.newportmapping.lifetime;
    port->seconds = seconds < SN_ROUTER_LEASE_S ? (int)seconds : SN_ROUTER_LEASE_S;
    if (!natpmp_ask(n, NATPMP_PROTOCOL_UDP, port->inside, port->outside, SN_ROUTER_LEASE_S, &answer))
        sn_log(SN_LOG_DEBUG, "router", "text=it opened the TCP port and not the UDP port");
    return port->outside && port->seconds;
}

static bool natpmp_open(sn_router_port *port) {
    natpmp_t n;
    if (initnatpmp(&n, 0, 0) < 0) return false;
    bool opened = natpmp_open_ports(&n, port);
    closenatpmp(&n);
    return opened;
}

static void natpmp_close(sn_router_port *port) {
    natpmp_t n;
    natpmpresp_t answer;
    if (initnatpmp(&n, 0, 0) < 0) return;
    (void)natpmp_ask(&n, NATPMP_PROTOCOL_TCP, port->inside, 0, 0, &answer);
    (void)natpmp_ask(&n, NATPMP_PROTOCOL_UDP, port->inside, 0, 0, &answer);
    closenatpmp(&n);
}

const sn_router_way sn_router_natpmp = {.name = "nat-pmp", .four = true, .open = natpmp_open, .close = natpmp_close};
