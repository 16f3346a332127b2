/* Which nodes have refused to list others during one discovery, and whether they are to be asked again. */
#ifndef SN_CLIENT_NET_REFUSALS_H
#define SN_CLIENT_NET_REFUSALS_H

#include "net/transport/transport.h"

enum { SN_REFUSALS_MAX = 96 };

typedef struct sn_refusals {
    struct {
        sn_peer peer;
        int64_t ask_at_us; /* when it said that it may be asked again; 0: it refuses for good */
    } at[SN_REFUSALS_MAX]; /* the newest answer of each */
    size_t n;
} sn_refusals;

/* The node has refused: err says why, and when it may be asked again. Nodes beyond the limit are left out. */
void sn_refusals_note(sn_refusals *refusals, sn_peer peer, const sn_err *err, int64_t now_us);
/* Whether the node may be asked now. */
bool sn_refusals_may_ask(const sn_refusals *refusals, sn_peer peer, int64_t now_us);
/* Whether each of these nodes refuses for good, and no other one is to be asked again: no answer can be expected. */
bool sn_refusals_are_final(const sn_refusals *refusals, const sn_peer *peers, size_t n, int64_t now_us);

#endif
