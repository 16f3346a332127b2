/* A prospect: the way that a session would take now, what it costs hop by hop, and why each other node is passed over.
 * No session is opened. */
#ifndef SN_CLIENT_PROSPECT_H
#define SN_CLIENT_PROSPECT_H

#include "client/chain.h"
#include "client/route.h"

typedef struct sn_prospect {
    sn_offers offers;
    sn_route route;
    sn_err why_none;    /* status SN_OK: there is a way */
    bool short_of_room; /* it leads over nodes whose caches are too full, because no other does */
    int64_t *through;   /* of each offer: what a token costs on the best way that leads over it; INT64_MAX: none does */
    int64_t *banned_us; /* of each offer: for how long yet; 0: not */
} sn_prospect;

/* `chain`: opened with plan_only. Waits for announcements at most its timeout. Valid while the chain and its link live
 * and are not used otherwise. Free with sn_prospect_fini in any case. */
sn_status sn_prospect_make(sn_chain *chain, sn_prospect *out, sn_err *err) SN_MUST_USE;
void sn_prospect_fini(sn_prospect *prospect);

#endif
