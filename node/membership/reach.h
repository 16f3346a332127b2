/* How others reach this node: directly, through a port that its router opened, or through a relay.
 *
 * The node asks up to three of the nodes that it joined to dial back (DIAL_BACK). Where their tokens arrive, the
 * address that they dialled is the one to announce. Where none arrives, the router is asked to open a port, which is
 * tried by a dial-back in turn; meanwhile a relay is looked for among the nodes that announce places (RELAY): among
 * proven ones, and where there is none, others are asked for an answer first. A relay that is lost, or does not answer,
 * is replaced. All of it is tried again from time to time, and at once when this
 * machine's own address changes. Of nodes that see different addresses of this one, as those inside and outside of a
 * home do, those count that see the most public one.
 *
 * Logic on the network thread, as membership.h, which sends for it; sn_reach_host does what needs sockets. */
#ifndef SN_NODE_MEMBERSHIP_REACH_H
#define SN_NODE_MEMBERSHIP_REACH_H

#include "node/membership/relaying.h"

typedef struct sn_reach_host {
    /* The numeric host that this machine has towards the swarm. False: none is known. */
    bool (*local_host)(void *ctx, char host[SN_ADDRESS_MAX + 1]);
    /* Begins to ask the router for a port of this machine's address; when it has begun, looks whether that is another.
     */
    void (*map_port)(void *ctx);
    /* The address that the router has opened. False: none, or not yet. */
    bool (*mapped)(void *ctx, char address[SN_ADDRESS_MAX + 1]);
    void *ctx;
} sn_reach_host;

typedef struct sn_reach_setup {
    sn_transport *transport;   /* borrowed; has a portal */
    sn_membership *membership; /* borrowed; announces what this finds */
    sn_relaying *relaying;     /* borrowed */
    const char *listen;        /* the address at which the transport listens; copied */
    bool asks;                 /* false: the address that is announced is right, as with --public */
    sn_reach_host host;
} sn_reach_setup;

typedef struct sn_reach sn_reach;

sn_status sn_reach_new(const sn_reach_setup *setup, sn_reach **out, sn_err *err) SN_MUST_USE;
void sn_reach_free(sn_reach **reach); /* accepts NULL */

/* DIAL_BACK_REPLY, RELAY_REPLY, RELAY_CALL. */
void sn_reach_handle(sn_reach *reach, const sn_event *event, int64_t now_us, int64_t unix_ms);
/* True: the ERROR answers a request of this module. */
bool sn_reach_on_error(sn_reach *reach, const sn_event *event, int64_t now_us);
void sn_reach_peer_lost(sn_reach *reach, sn_peer peer, int64_t now_us);
/* What is due; returns when to call again. */
int64_t sn_reach_tick(sn_reach *reach, int64_t now_us, int64_t unix_ms);

#endif
