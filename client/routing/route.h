/* Routes: which nodes compute which blocks, planned over candidates of known cost (candidates.h). Pure functions: no
 * network, no clock.
 *
 * Cost of a token on a route: for each leg the node's queue time and its compute time for each block, and the network
 * between. From the client to the first node and from the last node back: half a round trip each. Between two nodes
 * that push to each other: half their round trip, as measured, else estimated as the mean of their round trips to the
 * client. Between two nodes without pushing: half of each one's round trip, since hidden states travel by the client.
 *
 * `push` in the functions below says whether nodes push. */
#ifndef SN_CLIENT_ROUTING_ROUTE_H
#define SN_CLIENT_ROUTING_ROUTE_H

#include "client/routing/candidates.h"

/* Blocks [first, end) at one candidate. */
typedef struct sn_route_leg {
    const sn_announcement *node; /* borrowed from the directory; NULL: the client's local blocks */
    int first, end;
    size_t candidate; /* index in the list that was planned over */
} sn_route_leg;

typedef struct sn_route {
    sn_route_leg legs[SN_HOPS_MAX];
    size_t n;
    int64_t cost_ns; /* of one token */
} sn_route;

/* The route of least cost over blocks [first, end), over eligible candidates only, each used for at most its blocks_max
 * blocks; a leg may begin and end inside a node's span. Of equal routes: the one over candidates earlier in the list.
 * SN_RETRY: the message names the blocks that no node serves; or every route has more than SN_HOPS_MAX legs. Time:
 * O(blocks * (candidates log candidates + links)). */
sn_status sn_route_shortest(const sn_candidate *candidates, size_t n, bool push, int first, int end, sn_route *out,
                            sn_err *err) SN_MUST_USE;

/* A route drawn at random, so that much work spreads over the nodes in proportion to their throughput: at each boundary
 * a node is drawn with a weight of its tokens per second times the blocks that it can compute from there, and used for
 * all of these. The same seed draws the same route. Errors as above. */
sn_status sn_route_sample(const sn_candidate *candidates, size_t n, bool push, int first, int end, uint64_t seed,
                          sn_route *out, sn_err *err) SN_MUST_USE;

/* Cost of one token on a route, and its part for the network before leg i (i == n: back to the client). */
int64_t sn_route_cost(const sn_candidate *candidates, const sn_route_leg *legs, size_t n, bool push);
int64_t sn_route_network_ns(const sn_candidate *candidates, const sn_route_leg *legs, size_t n, size_t i, bool push);

/* out (n): for each candidate the least cost of a route that uses it; INT64_MAX: there is none. */
sn_status sn_route_cost_through(const sn_candidate *candidates, size_t n, bool push, int first, int end, int64_t *out,
                                sn_err *err) SN_MUST_USE;

/* Whether a session should move to a better route. now_ns, better_ns: cost of a token on either route; replay_ns: cost
 * of bringing the new nodes to the session's position; left: tokens that may still follow. */
bool sn_route_is_worth_rerouting(int64_t now_ns, int64_t better_ns, int64_t replay_ns, int64_t left);

#endif
