/* Moving a session to a faster route, when tokens on it are so much faster that the replay which the move needs pays
 * off. */
#include "client/chain/chain_private.h"

#include "base/clock.h"
#include "base/log.h"

#include <string.h>

enum { DISCOVER_MS = 300, REST_MAX = 32 };

/* The chain's present route over these candidates; false: one of its nodes is not among them. */
static bool chain_present_route(const sn_chain *chain, const sn_candidates *candidates, sn_route *out) {
    for (out->n = 0; out->n < chain->n_hops; out->n++) {
        const sn_hop *hop = &chain->hops[out->n];
        size_t k = 0;
        while (k < candidates->n && (hop->is_local ? candidates->at[k].node != NULL
                                                   : !candidates->at[k].node || memcmp(candidates->at[k].node->node,
                                                                                       hop->remote.node, SN_KEY_SIZE)))
            k++;
        if (k == candidates->n) return false;
        out->legs[out->n] = (sn_route_leg){candidates->at[k].node, hop->first, hop->end, k};
    }
    out->cost_ns = sn_route_cost(candidates->at, out->legs, out->n, chain->push);
    return true;
}

static bool leg_equals(const sn_route_leg *a, const sn_route_leg *b) {
    return a->candidate == b->candidate && a->first == b->first && a->end == b->end;
}

/* The hops [*i, *j) of the present route, whole groups, in which the better route differs. Returns the cost of bringing
 * the nodes that replace them to the present length. */
static int64_t chain_find_change(const sn_chain *chain, const sn_candidates *candidates, const sn_route *now,
                                 const sn_route *better, size_t *i, size_t *j) {
    size_t tail = 0;
    for (*i = 0; *i < now->n && *i < better->n && leg_equals(&now->legs[*i], &better->legs[*i]);) ++*i;
    while (tail < now->n - *i && tail < better->n - *i &&
           leg_equals(&now->legs[now->n - 1 - tail], &better->legs[better->n - 1 - tail]))
        tail++;
    *j = now->n - tail;
    while (*i && chain->hops[*i].pushed) --*i;
    while (*j < chain->n_hops && chain->hops[*j].pushed) ++*j;
    int64_t ns = 0;
    for (size_t k = 0; k < better->n; k++) {
        const sn_route_leg *leg = &better->legs[k];
        if (leg->first < chain->hops[*i].first || leg->end > chain->hops[*j - 1].end) continue;
        const sn_candidate *c = &candidates->at[leg->candidate];
        ns += (int64_t)chain->length * (leg->end - leg->first) * c->prefill_ns + 3 * (c->rtt_ns + c->queue_ns);
    }
    return ns;
}

/* Whether to move, and which hops. */
static bool chain_has_better_route(sn_chain *chain, const sn_candidates *candidates, size_t *i, size_t *j) {
    sn_route now, better;
    sn_err none;
    const sn_chain_options *o = &chain->options;
    if (!chain_present_route(chain, candidates, &now)) return false; /* a node drains or is lost: a step will show */
    if (sn_route_shortest(candidates->at, candidates->n, chain->push, o->first, o->end, &better, &none)) return false;
    if (sn_chain_cut_route(chain, &better, &none)) return false;
    better.cost_ns = sn_route_cost(candidates->at, better.legs, better.n, chain->push);
    if (better.cost_ns >= now.cost_ns) return false;
    int64_t replay_ns = chain_find_change(chain, candidates, &now, &better, i, j);
    int64_t left = chain->max_tokens - chain->length;
    if (*i == *j || chain->hops[*i].is_local) return false;
    if (!sn_route_is_worth_rerouting(now.cost_ns, better.cost_ns, replay_ns, left)) return false;
    sn_log(SN_LOG_INFO, "rerouting", "request_id=%s cost_us=%lld new_cost_us=%lld replay_us=%lld", chain->request_id,
           (long long)now.cost_ns / 1000, (long long)better.cost_ns / 1000, (long long)replay_ns / 1000);
    return true;
}

sn_status sn_chain_maybe_reroute(sn_chain *chain, sn_err *err) {
    const sn_chain_routing *routing = &chain->options.routing;
    sn_link *link = chain->options.link;
    int64_t now_us = sn_now_us(), every_us = (int64_t)routing->reroute_every_ms * 1000;
    if (!every_us || !link || routing->throughput || routing->every_block || !chain->length) return SN_OK;
    if (!chain->reroute_us) { /* the interval begins with the first token */
        chain->reroute_us = now_us + every_us;
        chain->reroute_rest = 1;
    }
    if (now_us < chain->reroute_us) return SN_OK;
    sn_candidates candidates = {0};
    size_t i = 0, j = 0;
    sn_chain_call call = sn_chain_begin_part(chain, 2, 0);
    sn_status status = sn_link_discover(link, &chain->model, sn_chain_left_ms(chain, DISCOVER_MS), err);
    if (!status && routing->measure) status = sn_chain_measure_rtt(chain, false, err);
    if (!status) status = sn_chain_list_candidates(chain, &candidates, err);
    bool move = !status && chain_has_better_route(chain, &candidates, &i, &j);
    sn_candidates_fini(&candidates);
    if (move) {
        uint64_t failovers = chain->failovers;
        status = sn_chain_replace_group(chain, &i, j, chain->length, err);
        if (!status) chain->reroutes++;
        chain->reroute_rest = !status ? 1 : chain->reroute_rest < REST_MAX ? 2 * chain->reroute_rest : REST_MAX;
        chain->failovers = failovers;
    }
    chain->call = call;
    chain->reroute_us = sn_now_us() + every_us * chain->reroute_rest;
    if (status && status != SN_STOP)
        sn_log(SN_LOG_INFO, "not rerouted", "request_id=%s text=%s", chain->request_id, err->text);
    return status == SN_STOP ? status : SN_OK;
}
