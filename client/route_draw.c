/* A way drawn at random: see route.h. */
#include "client/route.h"

#include "base/mem.h"

#include <stdlib.h>

enum { DRAWS = 16 };

static double next_random(uint64_t *state) { /* splitmix64, in [0, 1) */
    uint64_t x = *state += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (double)((x ^ (x >> 31)) >> 11) / (double)(1ull << 53);
}

/* Where a stretch that begins at block p would end; p when the offer does not serve it. */
static int reach(const sn_offer *offer, int p, int end) {
    if (offer->verdict != SN_OFFER_USABLE || p < offer->first || p >= offer->end) return p;
    int most = offer->end < end ? offer->end : end;
    return most - p < offer->room ? most : p + offer->room;
}

/* The offer of the next stretch, -1: nobody's. */
static int draw(const sn_offer *offers, size_t n, int p, int end, int before, uint64_t *state) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        int blocks = (int)i == before ? 0 : reach(&offers[i], p, end) - p;
        if (blocks && !offers[i].node) return (int)i; /* what is here costs nobody anything */
        sum += blocks * offers[i].tokens_per_s;
    }
    double mark = next_random(state) * sum;
    int drawn = -1;
    for (size_t i = 0; i < n; i++) {
        int blocks = (int)i == before ? 0 : reach(&offers[i], p, end) - p;
        if (!blocks) continue;
        drawn = (int)i;
        mark -= blocks * offers[i].tokens_per_s;
        if (mark < 0) break;
    }
    return drawn;
}

sn_status sn_route_draw(const sn_offer *offers, size_t n, bool push, int first, int end, uint64_t seed, sn_route *out,
                        sn_err *err) {
    for (int i = 0; i < DRAWS; i++) {
        int p = first, before = -1;
        for (out->n = 0; p < end && out->n < SN_HOPS_MAX; out->n++) {
            int u = draw(offers, n, p, end, before, &seed);
            if (u < 0) break;
            out->stops[out->n] = (sn_stop){offers[u].node, p, reach(&offers[u], p, end), (size_t)u};
            p = out->stops[out->n].end;
            before = u;
        }
        if (p < end) continue; /* too many stops, or an offer too full to go on at: another draw may do better */
        out->cost_ns = sn_route_cost(offers, out->stops, out->n, push);
        return SN_OK;
    }
    return sn_route_shortest(offers, n, push, first, end, out, err);
}
