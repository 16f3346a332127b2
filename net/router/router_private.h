/* Ways to ask a router for a port, in the order in which a mapping tries them (port_mapping.c). All functions are
 * called on the mapping's thread, and wait a few seconds at most. */
#ifndef SN_NET_ROUTER_ROUTER_PRIVATE_H
#define SN_NET_ROUTER_ROUTER_PRIVATE_H

#include "net/router/port_mapping.h"

#include <stddef.h>

enum { SN_ROUTER_LEASE_S = 180, SN_ROUTER_RENEW_S = 60, SN_PCP_NONCE_SIZE = 12, SN_PCP_SIZE = 60 };

/* A port that was asked for, and what the router gave. */
typedef struct sn_router_port {
    int inside;
    char own[SN_ADDRESS_MAX + 1]; /* this machine's numeric host; IPv6 in brackets */
    int outside;                  /* the number at the router; 0: none was given yet */
    char host[SN_ADDRESS_MAX + 1];
    int seconds;                      /* from its answer until it closes the port; 0: it never does by itself */
    void *state;                      /* of the way that opened it; NULL before, and after close */
    bool only_permanent;              /* of UPnP: the router takes no lease */
    uint8_t nonce[SN_PCP_NONCE_SIZE]; /* of PCP: by it the router knows who may renew and close the port */
} sn_router_port;

typedef struct sn_router_way {
    const char *name;
    bool six; /* with IPv6 */
    bool four;
    /* Opens the TCP port, and the UDP port of the same number where that works; or renews both. */
    bool (*open)(sn_router_port *port);
    void (*close)(sn_router_port *port); /* closes what it opened */
} sn_router_way;

extern const sn_router_way sn_router_pcp, sn_router_natpmp, sn_router_upnp;

/* As sn_port_mapping_new, by the first of these ways that works; borrows them. For tests. */
sn_status sn_port_mapping_new_by(const sn_router_way *const *ways, size_t n, int port, const char *own,
                                 void (*wake)(void *), void *ctx, sn_port_mapping **out, sn_err *err) SN_MUST_USE;

/* A MAP request of PCP for TCP or UDP (IPPROTO_*); seconds 0: closes the port. False: own is no address. */
bool sn_pcp_request(const sn_router_port *port, int protocol, int seconds, uint8_t out[SN_PCP_SIZE]);
/* Reads the answer to a request into outside, host and seconds. False: it answers another one, or refuses; *refused
 * says which. */
bool sn_pcp_read(const uint8_t *data, size_t len, const uint8_t request[SN_PCP_SIZE], sn_router_port *port,
                 bool *refused);
/* Sends the request over a connected datagram socket until its answer comes, which goes into outside, host and seconds.
 * False: the router refuses, or answers not within two seconds, whatever else it sends. */
bool sn_pcp_ask(int fd, sn_router_port *port, int protocol, int seconds);

#endif
