/* A route explanation: the route that a session would take now, its cost hop by hop, and why every other node is not on
 * it. For `swarm route`; no session is opened. */
#ifndef SN_CLIENT_CHAIN_EXPLANATION_H
#define SN_CLIENT_CHAIN_EXPLANATION_H

#include "client/chain/chain.h"

typedef struct sn_route_explanation {
    sn_candidates candidates;
    sn_route route;           /* over these candidates */
    sn_err no_route;          /* status SN_OK: there is a route; else why there is none */
    bool kv_full;             /* the route leads over nodes without free KV memory, because no other route exists */
    int64_t *cost_through_ns; /* (candidates.n): cost of a token on the fastest route over this candidate; INT64_MAX: no
                                 route leads over it */
    int64_t *ban_left_us;     /* (candidates.n): for how much longer the node is banned; 0: it is not */
} sn_route_explanation;

/* `chain`: opened with plan_only. Waits for announcements for at most the chain's timeout, and measures round trips.
 * The result borrows from the chain's link: valid until the chain or the link is used again. Free it with
 * sn_route_explanation_fini, after a failure too. */
sn_status sn_route_explain(sn_chain *chain, sn_route_explanation *out, sn_err *err) SN_MUST_USE;
void sn_route_explanation_fini(sn_route_explanation *explanation);

#endif
