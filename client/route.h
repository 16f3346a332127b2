/* Routes: which nodes a chain goes through, over offers of known cost. Logic only: no network, no clock.
 *
 * What a token costs on its way is the sum over its stops of waiting and handling there, computing block by block, and
 * the ways between: from the client to the first and from the last back to it half a round trip each; between two nodes
 * half their round trip when they push to each other - as measured, else guessed as the mean of their round trips to
 * the client -, and half of both round trips when it comes by the client. */
#ifndef SN_CLIENT_ROUTE_H
#define SN_CLIENT_ROUTE_H

#include "client/offer.h"

/* A stretch of the way: blocks [first, end) at one offer. */
typedef struct sn_stop {
    const sn_announcement *node; /* NULL: here, at the client. Valid as long as the directory is not changed */
    int first, end;
    size_t offer; /* in the list that was planned over */
} sn_stop;

typedef struct sn_route {
    sn_stop stops[SN_HOPS_MAX];
    size_t n;
    int64_t cost_ns; /* of one token */
} sn_route;

/* The way of least cost over blocks [first, end), by usable offers only, each taken for no more blocks than it has room
 * for; it may be left in the middle of its span. Of several equal ones that over offers earlier in the list. SN_RETRY
 * naming the blocks that nobody serves, or when every way has more than SN_HOPS_MAX stops. O(blocks * (offers log
 * offers + links)). */
sn_status sn_route_shortest(const sn_offer *offers, size_t n, bool push, int first, int end, sn_route *out,
                            sn_err *err) SN_MUST_USE;

/* A way drawn at random so that much work spreads over the nodes as their throughput does: at each boundary a node is
 * taken for as many blocks as it serves, with a weight of its tokens per second times these blocks. The same seed draws
 * the same. Errors as above. */
sn_status sn_route_draw(const sn_offer *offers, size_t n, bool push, int first, int end, uint64_t seed, sn_route *out,
                        sn_err *err) SN_MUST_USE;

/* What one token costs on a given way, and the part of it that is the way to stop i (i == n: back to the client). */
int64_t sn_route_cost(const sn_offer *offers, const sn_stop *stops, size_t n, bool push);
int64_t sn_route_way_ns(const sn_offer *offers, const sn_stop *stops, size_t n, size_t i, bool push);

/* For each offer the least cost of a way that goes through it, INT64_MAX where there is none: out has room for n. */
sn_status sn_route_through(const sn_offer *offers, size_t n, bool push, int first, int end, int64_t *out,
                           sn_err *err) SN_MUST_USE;

/* Whether a session of `length` tokens should move: `now_ns` and `better_ns` are what a token costs on its way and on
 * the better one, `replay_ns` what bringing the new nodes to `length` takes, `left` how many tokens may still come. */
bool sn_route_is_worth_moving(int64_t now_ns, int64_t better_ns, int64_t replay_ns, int64_t left);

#endif
