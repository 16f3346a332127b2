/* The peers that came to us over ZeroMQ: handle <-> routing id and key. Internal to net/.
 *
 * A ROUTER knows a connection by a routing id, which another connection may take over when the first has gone; so a
 * handle stands for routing id and key together. The table has a fixed size: a stranger who makes new connections all
 * day pushes out the peers that have been silent longest, and costs no memory. */
#ifndef SN_NET_INBOUND_H
#define SN_NET_INBOUND_H

#include "net/transport.h"

enum { SN_INBOUND_MAX = 4096, SN_ROUTING_ID_MAX = 255 };

typedef struct sn_inbound sn_inbound;

typedef struct sn_inbound_peer {
    sn_peer handle;
    uint8_t key[SN_KEY_SIZE];
    uint8_t routing_id[SN_ROUTING_ID_MAX];
    uint8_t routing_id_len;
} sn_inbound_peer;

sn_status sn_inbound_new(sn_inbound **out, sn_err *err) SN_MUST_USE;
void sn_inbound_free(sn_inbound **inbound);
/* The handle of this peer, which is now the one heard last; *next is given to a new one and grows. */
sn_peer sn_inbound_hear(sn_inbound *inbound, const void *routing_id, size_t len, const uint8_t key[SN_KEY_SIZE],
                        sn_peer *next);
/* NULL: unknown, or forgotten. Valid until the next hear. */
const sn_inbound_peer *sn_inbound_find(const sn_inbound *inbound, sn_peer handle);
void sn_inbound_forget(sn_inbound *inbound, sn_peer handle);

#endif
