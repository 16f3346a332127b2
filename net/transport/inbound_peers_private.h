/* The table of the peers that dialled this transport: handle <-> routing id and key. Private to net/transport/.
 *
 * A ROUTER names a connection by a routing id, which a later connection may use again; a handle therefore stands for
 * routing id and key together. The table has a fixed size: an unknown peer that opens many connections evicts the peers
 * that have been silent longest, and occupies no further memory. Used by the transport's thread. */
#ifndef SN_NET_TRANSPORT_INBOUND_PEERS_PRIVATE_H
#define SN_NET_TRANSPORT_INBOUND_PEERS_PRIVATE_H

#include "net/transport/transport.h"

enum { SN_INBOUND_PEERS_MAX = 4096, SN_ROUTING_ID_MAX = 255 };

typedef struct sn_inbound_peers sn_inbound_peers;

typedef struct sn_inbound_peer {
    sn_peer handle;
    uint8_t key[SN_KEY_SIZE];
    uint8_t routing_id[SN_ROUTING_ID_MAX];
    uint8_t routing_id_len;
} sn_inbound_peer;

sn_status sn_inbound_peers_new(sn_inbound_peers **out, sn_err *err) SN_MUST_USE;
void sn_inbound_peers_free(sn_inbound_peers **inbound);
/* The handle of this peer, which becomes the most recent one. A new peer gets the handle *next, which is incremented.
 */
sn_peer sn_inbound_peers_touch(sn_inbound_peers *inbound, const void *routing_id, size_t len,
                               const uint8_t key[SN_KEY_SIZE], sn_peer *next);
/* NULL: unknown or evicted. Valid until the next touch. */
const sn_inbound_peer *sn_inbound_peers_find(const sn_inbound_peers *inbound, sn_peer handle);
void sn_inbound_peers_remove(sn_inbound_peers *inbound, sn_peer handle);

#endif
