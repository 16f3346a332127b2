/* What a node does so that others can be reached: it dials back to those that ask (DIAL_BACK), and is a relay for nodes
 * behind routers (RELAY). The portal (net/transport/portal.h) moves the bytes; this decides for whom.
 *
 * A dial-back goes to the address from which the request came, and to no other, with a rate for each network address.
 * A registration as a relayed node belongs to the CURVE key of its connection; it ends with the connection, or when it
 * is not renewed; one network address has a quarter of the places.
 *
 * Logic on the network thread, as membership.h, which sends for it. */
#ifndef SN_NODE_MEMBERSHIP_RELAYING_H
#define SN_NODE_MEMBERSHIP_RELAYING_H

#include "net/transport/portal.h"
#include "node/membership/membership.h"

enum {
    SN_DIAL_BACKS_BURST = 8,   /* to one network address at once, */
    SN_DIAL_BACK_EVERY_S = 10, /* then one in so many seconds */
    SN_DIAL_BACKS_PER_S = 16,  /* to all */
    SN_RELAYED_OF_ADDRESS_MAX = SN_RELAYED_NODES_MAX / 4,
};

typedef struct sn_relaying sn_relaying;

/* bytes_per_s: that it passes on as a relay; 0: it is none. Borrows the transport, which has a portal, and membership.
 */
sn_status sn_relaying_new(sn_transport *transport, sn_membership *membership, int64_t bytes_per_s, sn_relaying **out,
                          sn_err *err) SN_MUST_USE;
void sn_relaying_free(sn_relaying **relaying); /* accepts NULL */
/* A node that others do not reach directly is no relay. */
void sn_relaying_allow(sn_relaying *relaying, bool allowed);
/* For how many further nodes it would be a relay. */
uint64_t sn_relaying_places(const sn_relaying *relaying);

void sn_relaying_on_dial_back(sn_relaying *relaying, const sn_event *event, int64_t now_us);
void sn_relaying_on_relay(sn_relaying *relaying, const sn_event *event, int64_t now_us);
void sn_relaying_peer_gone(sn_relaying *relaying, sn_peer peer);
/* Calls relayed nodes for whom clients wait, and ends registrations that were not renewed. */
void sn_relaying_tick(sn_relaying *relaying, int64_t now_us);

#endif
