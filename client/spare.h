/* A spare: sessions at other nodes that together hold the blocks of one hop, and get a copy of its past, which its node keeps up
 * to date (KV_SEND). The chain goes on there when the hop's node leaves, or dies. */
#ifndef SN_CLIENT_SPARE_H
#define SN_CLIENT_SPARE_H

#include "client/hop.h"

typedef struct sn_spare {
    sn_hop_at *hops; /* (n), in the order of their blocks */
    size_t n;
    int64_t again_us; /* when what is not answered is asked again */
    uint64_t asked[SN_HOPS_MAX]; /* of each: the KV_SEND that is not answered yet; 0: its past is there */
} sn_spare;

void sn_spare_free(sn_spare **spare, sn_link *link); /* NULL-safe; closes its sessions */

#endif
