/* A route drawn at random (sn_route_sample in route.h). */
#include "client/routing/route.h"

#include "base/mem.h"
#include "base/random.h"

#include <stdlib.h>

enum { SAMPLES_MAX = 16 };

/* Where a leg that begins at block p would end; p: the candidate cannot compute block p. */
static int candidate_reach(const sn_candidate *candidate, int p, int end) {
    if (candidate->eligibility != SN_ELIGIBLE || p < candidate->first || p >= candidate->end) return p;
    int most = candidate->end < end ? candidate->end : end;
    if (most - p > candidate->blocks_max) most = p + candidate->blocks_max;
    while (most > p && most < end && candidate->bound && candidate->bound[most])
        most--; /* the model is not cut there */
    return most;
}

/* Draws the candidate of the next leg; -1: there is none. `before`: the candidate of the leg before. */
static int sample_candidate(const sn_candidate *candidates, size_t n, int p, int end, int before, uint64_t *state) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        int blocks = (int)i == before ? 0 : candidate_reach(&candidates[i], p, end) - p;
        if (blocks && !candidates[i].node) return (int)i; /* local blocks cost no node anything */
        sum += blocks * candidates[i].tokens_per_s;
    }
    double mark = sn_rng_uniform(state) * sum;
    int sampled = -1;
    for (size_t i = 0; i < n; i++) {
        int blocks = (int)i == before ? 0 : candidate_reach(&candidates[i], p, end) - p;
        if (!blocks) continue;
        sampled = (int)i;
        mark -= blocks * candidates[i].tokens_per_s;
        if (mark < 0) break;
    }
    return sampled;
}

sn_status sn_route_sample(const sn_candidate *candidates, size_t n, bool push, int first, int end, uint64_t seed,
                          sn_route *out, sn_err *err) {
    for (int i = 0; i < SAMPLES_MAX; i++) {
        int p = first, before = -1;
        for (out->n = 0; p < end && out->n < SN_HOPS_MAX; out->n++) {
            int u = sample_candidate(candidates, n, p, end, before, &seed);
            if (u < 0) break;
            out->legs[out->n] =
                (sn_route_leg){candidates[u].node, p, candidate_reach(&candidates[u], p, end), (size_t)u};
            p = out->legs[out->n].end;
            before = u;
        }
        if (p < end) continue; /* too many legs, or no candidate for the next block: another draw may succeed */
        out->cost_ns = sn_route_cost(candidates, out->legs, out->n, push);
        return SN_OK;
    }
    return sn_route_shortest(candidates, n, push, first, end, out, err);
}
