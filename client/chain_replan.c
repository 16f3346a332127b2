/* A chain's session moves to a better way: one on which a token is clearly quicker, when the replay that moving takes
 * comes back. */
#include "client/chain_private.h"

#include "base/clock.h"
#include "base/log.h"

#include <string.h>

enum { ASK_MS = 300 };

/* The chain's present way among the offers; false: one of its nodes is not among them. */
static bool present_way(const sn_chain *chain, const sn_offers *offers, sn_route *out) {
    for (out->n = 0; out->n < chain->n_hops; out->n++) {
        const sn_hop_at *hop = &chain->hops[out->n];
        size_t k = 0;
        while (k < offers->n &&
               (hop->local ? offers->at[k].node != NULL
                           : !offers->at[k].node || memcmp(offers->at[k].node->node, hop->node, SN_KEY_SIZE)))
            k++;
        if (k == offers->n) return false;
        out->stops[out->n] = (sn_stop){offers->at[k].node, hop->first, hop->end, k};
    }
    out->cost_ns = sn_route_cost(offers->at, out->stops, out->n, chain->options.push);
    return true;
}

static bool same(const sn_stop *a, const sn_stop *b) {
    return a->offer == b->offer && a->first == b->first && a->end == b->end;
}

/* The hops [*i, *j) of the present way, whole groups, that the better one does otherwise; and what bringing the nodes
 * in their place to the present length costs. */
static int64_t find_change(const sn_chain *chain, const sn_offers *offers, const sn_route *now, const sn_route *better,
                           size_t *i, size_t *j) {
    size_t tail = 0;
    for (*i = 0; *i < now->n && *i < better->n && same(&now->stops[*i], &better->stops[*i]);) ++*i;
    while (tail < now->n - *i && tail < better->n - *i &&
           same(&now->stops[now->n - 1 - tail], &better->stops[better->n - 1 - tail]))
        tail++;
    *j = now->n - tail;
    while (*i && chain->hops[*i].pushed) --*i;
    while (*j < chain->n_hops && chain->hops[*j].pushed) ++*j;
    int64_t ns = 0;
    for (size_t k = 0; k < better->n; k++) {
        const sn_stop *stop = &better->stops[k];
        if (stop->first < chain->hops[*i].first || stop->end > chain->hops[*j - 1].end) continue;
        const sn_offer *o = &offers->at[stop->offer];
        ns += (int64_t)chain->length * (stop->end - stop->first) * o->prompt_ns + 3 * (o->rtt_ns + o->queue_ns);
    }
    return ns;
}

/* Whether to move, and which hops. */
static bool is_better(sn_chain *chain, const sn_offers *offers, size_t *i, size_t *j) {
    sn_route now, better;
    sn_err none;
    const sn_chain_options *o = &chain->options;
    if (!present_way(chain, offers, &now)) return false; /* one is leaving, or gone: a step will show */
    if (sn_route_shortest(offers->at, offers->n, o->push, o->first, o->end, &better, &none)) return false;
    if (sn_chain_cut(chain, &better, &none)) return false;
    better.cost_ns = sn_route_cost(offers->at, better.stops, better.n, o->push);
    if (better.cost_ns >= now.cost_ns) return false;
    int64_t replay_ns = find_change(chain, offers, &now, &better, i, j);
    int64_t left = chain->options.max_tokens - chain->length;
    if (*i == *j || chain->hops[*i].local) return false;
    if (!sn_route_is_worth_moving(now.cost_ns, better.cost_ns, replay_ns, left)) return false;
    sn_log(SN_LOG_INFO, "a better way", "flow=%s now_us=%lld then_us=%lld replay_us=%lld", chain->flow,
           (long long)now.cost_ns / 1000, (long long)better.cost_ns / 1000, (long long)replay_ns / 1000);
    return true;
}

sn_status sn_chain_reconsider(sn_chain *chain, sn_err *err) {
    const sn_chain_options *o = &chain->options;
    int64_t now_us = sn_now_us();
    if (!o->replan_ms || !o->link || o->throughput || o->every_block || !chain->length) return SN_OK;
    if (!chain->replan_us) chain->replan_us = now_us + (int64_t)o->replan_ms * 1000; /* from the first token on */
    if (now_us < chain->replan_us) return SN_OK;
    sn_offers offers = {0};
    size_t i = 0, j = 0;
    sn_status status = sn_link_discover(o->link, &chain->model, ASK_MS, err);
    if (!status && o->measure) status = sn_chain_measure(chain, false, err);
    if (!status) status = sn_chain_survey(chain, &offers, err);
    bool move = !status && is_better(chain, &offers, &i, &j);
    sn_offers_fini(&offers);
    if (move) {
        int retries = 0;
        uint64_t failovers = chain->failovers;
        status = sn_chain_replace_group(chain, &i, j, chain->length, 0, &retries, err);
        if (!status) chain->moves++;
        chain->failovers = failovers;
    }
    chain->replan_us = sn_now_us() + (int64_t)o->replan_ms * 1000;
    if (status && status != SN_STOP) sn_log(SN_LOG_INFO, "no better way", "flow=%s text=%s", chain->flow, err->text);
    return status == SN_STOP ? status : SN_OK;
}
