/* A node's use of the DHT (net/dht.h): it searches for nodes that serve its model, and publishes a DHT record of
 * itself. Those found are asked in turns until some have answered (sn_membership_join_found). Plain data in the
 * caller's storage; used on the network thread. */
#ifndef SN_NODE_MEMBERSHIP_DHT_CLIENT_H
#define SN_NODE_MEMBERSHIP_DHT_CLIENT_H

#include "net/dht.h"

typedef struct sn_dht_client {
    sn_dht *dht;                   /* owned by the caller; NULL: no DHT is used */
    int64_t search_us, publish_us; /* when the next search and the next publication are due */
    int searches;                  /* since the start */
    sn_dht_found found;
} sn_dht_client;

/* What is due: takes what was found, searches, and, once the node is `serving`, renews its record. Returns when to call
 * again; INT64_MAX without a DHT. Failures are logged and tried again. */
int64_t sn_dht_client_tick(sn_dht_client *client, const sn_identity *identity, const char *address, bool serving,
                           int64_t now_us, int64_t unix_ms);

#endif
