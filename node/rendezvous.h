/* A node's part in the table of first contacts (net/dht.h): it looks for others who serve its model, and puts up a signpost to
 * itself. Belongs to the network thread. */
#ifndef SN_NODE_RENDEZVOUS_H
#define SN_NODE_RENDEZVOUS_H

#include "net/dht.h"
#include "net/introduce.h"

typedef struct sn_rendezvous {
    sn_dht *dht; /* NULL: none */
    int64_t search_us, offer_us; /* when to do it again */
    int searches, found;
} sn_rendezvous;

/* What is due: found addresses are asked for their nodes, a signpost is renewed once `serving`. Returns when to call again. */
int64_t sn_rendezvous_tick(sn_rendezvous *r, sn_introducer *introducer, const sn_identity *identity, const char *address,
                           bool serving, int64_t now_us, int64_t unix_ms);

#endif
