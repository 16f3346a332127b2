/* A stranger that knows the nodes of a swarm and brings them announcements of nodes which it has invented. One in a
 * process. Every function ends the process with a message when a prerequisite is missing. */
#ifndef SN_TESTS_FLOOD_H
#define SN_TESTS_FLOOD_H

#include "tests/support/protocol_swarm.h"

enum { HONEST = 5, INVENTED = 600 };

/* The stranger's announcements, and its connections to the honest nodes. */
extern struct flood {
    sn_identity identity, invented[INVENTED];
    sn_transport *transport;
    sn_peer to[HONEST];
    sn_buf sealed[INVENTED];
    size_t next;
    bool renews; /* each time an announcement is handed over again it is a new one */
} flood;

/* A swarm of the honest nodes, and the stranger. */
protocol_swarm *flood_swarm(void);
/* Seals what this invented node says now. */
void flood_announce(const protocol_swarm *c, int i);
/* The stranger comes to a swarm whose first nodes are the honest ones. */
void flood_begin(protocol_swarm *c);
/* Frees the swarm, too. */
void flood_end(protocol_swarm *c);
/* In each time step every honest node gets another two of them. */
void flood_step(protocol_swarm *c);
/* Brings node 0 n announcements at once: flood.sealed[first], then the following ones, or forged ones. */
void flood_bring(protocol_swarm *c, uint8_t network, size_t first, size_t n, bool forged);
bool flood_known(const protocol_swarm *c, int invented); /* to node 0 */

#endif
