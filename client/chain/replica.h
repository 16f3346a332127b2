/* A KV replica: sessions at other nodes that together hold the blocks of one hop and a copy of its KV cache. The hop's
 * node copies its KV pages there and keeps the copy up to date (KV_SEND, docs/PROTOCOL.md). When that node drains or
 * dies, the chain promotes the replica: it continues in these sessions without a replay. The hop owns its replica; used
 * by replica.c and hop.c, on the chain's thread. */
#ifndef SN_CLIENT_CHAIN_REPLICA_H
#define SN_CLIENT_CHAIN_REPLICA_H

#include "client/chain/hop.h"

typedef struct sn_kv_replica {
    sn_hop *hops; /* (n), in the order of their blocks */
    size_t n;
    int64_t resend_us; /* when a KV_SEND without a reply is sent again */
    uint64_t
        pending[SN_HOPS_MAX]; /* of each hop: correlation id of the KV_SEND without a reply; 0: its copy is complete */
} sn_kv_replica;

void sn_kv_replica_free(sn_kv_replica **replica, sn_link *link); /* accepts NULL; closes the sessions */

#endif
