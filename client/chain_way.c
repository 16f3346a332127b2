/* Which nodes a chain may use, and sessions along a way over them. */
#include "client/chain_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    OPEN_GRACE_MS = 3000, /* how long a chain waits at least for blocks that nobody serves yet */
    OPEN_TIMEOUT_MS = 5000,
    PLAN_AGAIN_US = 200000,
    MEASURE_MS = 1000,
    MEASURE_ROUNDS = 3,
    TUNE_TRIES = 3,
    MEASURED_MAX = 32, /* nodes asked at once; the seed decides which of many */
};
static const size_t VERIFY_BYTES_MAX = (size_t)8 << 30; /* weights that a client hashes to know its nodes' by */

/* -- which nodes may be used -----------------------------------------------------------------------------------------
 */

void sn_chain_ban(sn_chain *chain, const sn_hop_at *hop) {
    int64_t ban_us = sn_seen_failure(chain->seen, hop->node, sn_now_us());
    sn_log(SN_LOG_WARN, "node given up", "flow=%s node=%s blocks=%d:%d seconds=%d", chain->flow, hop->report.node,
           hop->first, hop->end, (int)(ban_us / 1000000));
}

/* Keys and values of the longest timeline, of one block, as float32. */
static uint64_t kv_bytes_per_block(const sn_chain *chain) {
    return 2u * sizeof(float) * (uint64_t)chain->options.max_tokens * (uint64_t)chain->hp.n_kv_heads *
           (uint64_t)chain->hp.head_dim;
}

sn_status sn_chain_survey(sn_chain *chain, sn_offers *out, sn_err *err) {
    sn_link *link = chain->options.link;
    sn_offer_wish wish = {.directory = link ? sn_link_directory(link) : NULL,
                          .seen = chain->seen,
                          .now_us = sn_now_us(),
                          .model = chain->model,
                          .n_blocks = chain->hp.n_blocks,
                          .block_hash = chain->known_hash,
                          .local_first = chain->options.local_first,
                          .local_end = chain->options.local_end,
                          .pick = chain->options.pick,
                          .adapter = chain->options.tuned.bytes ? 0 : sn_node_tag(chain->options.tuned.hash.bytes),
                          .kv_bytes_per_block = kv_bytes_per_block(chain),
                          .wire = chain->options.wire,
                          .seed = chain->options.route_seed};
    if (link) sn_seen_presence(chain->seen, wish.directory);
    sn_status status = sn_offers_make(&wish, out, err);
    for (size_t i = 0; i < out->n && !status && chain->options.avoid; i++) {
        sn_offer *offer = &out->at[i];
        bool avoid = offer->node && chain->options.avoid(chain->options.avoid_ctx, offer->node->node);
        if (avoid && offer->verdict == SN_OFFER_USABLE) offer->verdict = SN_OFFER_BANNED;
    }
    return status;
}

/* -- what they are like ----------------------------------------------------------------------------------------------
 */

static bool is_measured(const sn_chain *chain, const sn_announcement *node) {
    const sn_sight *sight = sn_seen_of(chain->seen, node->node);
    return sight && sight->rtt_us >= 0 && sn_now_us() - sight->measured_us < SN_SEEN_FRESH_US / 2;
}

/* Whether another one could take a block of its. */
static bool has_rival(const sn_offers *offers, size_t i) {
    for (size_t k = 0; k < offers->n; k++)
        if (k != i && offers->at[k].verdict == SN_OFFER_USABLE && offers->at[k].first < offers->at[i].end &&
            offers->at[i].first < offers->at[k].end)
            return true;
    return false;
}

/* Nodes to ask how far they are: those on the way that would be taken now, then others. `first`: also when all on the
 * way are known. */
static sn_status list_unmeasured(sn_chain *chain, bool all, bool first, const sn_announcement **nodes, size_t *n,
                                 sn_err *err) {
    const sn_chain_options *o = &chain->options;
    sn_offers offers;
    sn_route way = {.n = 0};
    sn_err none;
    *n = 0;
    sn_status status = sn_chain_survey(chain, &offers, err);
    if (!status && sn_route_shortest(offers.at, offers.n, o->push, o->first, o->end, &way, &none)) way.n = 0;
    for (size_t i = 0; i < way.n && *n < MEASURED_MAX; i++) {
        const sn_announcement *node = way.stops[i].node;
        if (node && (all || has_rival(&offers, way.stops[i].offer)) && !is_measured(chain, node)) nodes[(*n)++] = node;
    }
    for (size_t i = 0; (*n || first) && i < offers.n && *n < MEASURED_MAX; i++) {
        const sn_offer *offer = &offers.at[i];
        bool listed = !offer->node || offer->verdict != SN_OFFER_USABLE || is_measured(chain, offer->node);
        for (size_t k = 0; k < *n && !listed; k++) listed = nodes[k] == offer->node;
        if (!listed && (all || has_rival(&offers, i))) nodes[(*n)++] = offer->node;
    }
    sn_offers_fini(&offers);
    return status;
}

/* In a large swarm not every node is asked, but those on the way that is taken have been. Who does not answer in time
 * is taken to be at least so far. */
sn_status sn_chain_measure(sn_chain *chain, bool all, sn_err *err) {
    const sn_announcement *nodes[MEASURED_MAX];
    sn_poll polls[MEASURED_MAX];
    for (int round = 0; round < MEASURE_ROUNDS; round++) {
        size_t n;
        sn_status status = list_unmeasured(chain, all, !round, nodes, &n, err);
        if (status || !n) return status;
        status = sn_link_poll(chain->options.link, nodes, n, MEASURE_MS, true, polls, err);
        for (size_t i = 0; i < n && !status; i++)
            sn_seen_round_trip(chain->seen, nodes[i]->node, polls[i].answered ? polls[i].rtt_us : MEASURE_MS * 1000,
                               sn_now_us());
        if (status) return status;
    }
    return SN_OK;
}

void sn_chain_note_step(sn_chain *chain, const sn_hop_at *hops, size_t i, size_t j, int n) {
    int64_t now_us = sn_now_us();
    for (size_t k = i; k < j; k++)
        if (!hops[k].local)
            sn_seen_step(chain->seen, hops[k].node, hops[k].end - hops[k].first, n, (int64_t)hops[k].last_queue_us,
                         (int64_t)hops[k].last_compute_us, now_us);
    /* Of a row of nodes nobody knows which way took how long. */
    if (j - i == 1 && !hops[i].local && n == 1)
        sn_seen_round_trip(chain->seen, hops[i].node, (int64_t)hops[i].last_network_us, now_us);
}

/* -- planning --------------------------------------------------------------------------------------------------------
 */

static sn_status choose(const sn_chain *chain, const sn_offers *offers, int first, int end, sn_route *out,
                        sn_err *err) {
    const sn_chain_options *o = &chain->options;
    return o->throughput ? sn_route_draw(offers->at, offers->n, o->push, first, end, o->route_seed, out, err)
                         : sn_route_shortest(offers->at, offers->n, o->push, first, end, out, err);
}

/* A way by what is known now. */
static sn_status plan_now(sn_chain *chain, int first, int end, sn_route *out, sn_err *err) {
    sn_offers offers;
    sn_status status = sn_chain_survey(chain, &offers, err);
    for (size_t i = 0; i < offers.n && !status; i++)
        if (offers.at[i].node && sn_chain_avoids(chain, offers.at[i].node->node)) offers.at[i].verdict = SN_OFFER_STATE;
    if (!status) status = choose(chain, &offers, first, end, out, err);
    if (status == SN_RETRY) { /* better to wait in a full cache's queue than not to be served */
        sn_offers_ignore_room(&offers);
        status = choose(chain, &offers, first, end, out, err);
    }
    sn_offers_fini(&offers);
    return status;
}

/* Hashes the blocks that our own file holds, so that nodes with other weights under the same name are passed over. */
sn_status sn_chain_learn_hashes(sn_chain *chain, const sn_model *model, sn_err *err) {
    size_t n = (size_t)chain->hp.n_blocks, budget = VERIFY_BYTES_MAX;
    sn_status status = sn_calloc(&chain->block_hash, n, sizeof *chain->block_hash, err);
    if (!status) status = sn_calloc(&chain->known_hash, n, sizeof *chain->known_hash, err);
    const sn_chain *like = chain->options.like;
    for (size_t b = 0; b < n && !status && like; b++) {
        if (!like->known_hash[b]) continue;
        chain->block_hash[b] = *like->known_hash[b];
        chain->known_hash[b] = &chain->block_hash[b];
    }
    if (like) return status;
    for (int b = 0; b < chain->hp.n_blocks && !status; b++) {
        bool here = b >= chain->options.local_first && b < chain->options.local_end;
        if (here || !chain->options.link || !sn_model_has_block(model, b)) continue;
        for (int role = SN_ROLE_FIRST_OF_BLOCK; role < SN_ROLE_COUNT && !status; role++) {
            sn_model_tensor t;
            status = sn_model_find(model, (sn_role)role, b, &t, err);
            if (!status) budget -= sn_min_size(budget, t.data ? t.bytes : 0);
        }
        if (status || !budget) break;
        status = sn_model_block_hash(model, b, &chain->block_hash[b], err);
        if (!status) chain->block_hash[b] = sn_span_hash_of(&chain->block_hash[b], chain->options.kv_dtype);
        chain->known_hash[b] = &chain->block_hash[b];
    }
    return status;
}

/* -- connecting ------------------------------------------------------------------------------------------------------
 */

sn_dtype sn_chain_wire_at(const sn_chain *chain, int block) {
    return !chain->rounds || chain->rounds[block] ? chain->options.wire : SN_F32;
}

static bool is_cut(const sn_chain *chain, int block) {
    const sn_chain_options *o = &chain->options;
    return o->every_block || (o->cut_at && o->cut_at[block]) || (chain->rounds && chain->rounds[block]);
}

sn_status sn_chain_cut(const sn_chain *chain, sn_route *route, sn_err *err) {
    const sn_chain_options *o = &chain->options;
    sn_stop cut[SN_HOPS_MAX];
    size_t m = 0;
    int blocks = route->stops[route->n - 1].end - route->stops[0].first;
    if (!o->every_block && !o->cut_at && !chain->rounds) return SN_OK;
    if (o->every_block && blocks > SN_HOPS_MAX)
        return sn_fail(err, SN_REFUSED, "%d blocks cannot be cut into hops of one block: at most %d can", blocks,
                       SN_HOPS_MAX);
    for (size_t i = 0; i < route->n; i++) {
        const sn_stop *stop = &route->stops[i];
        for (int b = stop->first, from = b; b < stop->end; b++) {
            if (b + 1 < stop->end && !is_cut(chain, b + 1)) continue;
            if (m == SN_HOPS_MAX) return sn_fail(err, SN_REFUSED, "a chain has at most %d hops", SN_HOPS_MAX);
            cut[m++] = (sn_stop){stop->node, from, b + 1, stop->offer};
            from = b + 1;
        }
    }
    memcpy(route->stops, cut, m * sizeof *cut);
    route->n = m;
    return SN_OK;
}

/* How long to wait for somebody who serves blocks: until `until_us`, if that is not too soon. */
int sn_chain_grace_ms(const sn_chain *chain, int64_t until_us) {
    int64_t left_ms = (until_us - sn_now_us()) / 1000;
    int least = chain->options.timeout_ms < OPEN_GRACE_MS ? chain->options.timeout_ms : OPEN_GRACE_MS;
    return left_ms > least ? (int)left_ms : least;
}

sn_status sn_chain_plan(sn_chain *chain, int first, int end, int wait_ms, sn_route *out, sn_err *err) {
    sn_link *link = chain->options.link;
    int64_t until = sn_now_us() + (int64_t)wait_ms * 1000;
    bool heard = false;
    for (;;) { /* first by what is known: a dead node's place is taken at once where another is known */
        sn_err asking;
        sn_status status = plan_now(chain, first, end, out, err);
        int64_t left_us = until - sn_now_us();
        if (!status) status = sn_chain_cut(chain, out, err);
        if (status != SN_RETRY || !link || left_us <= 0) return status;
        sn_status asked = sn_link_discover(link, &chain->model, (int)(left_us / 1000) + 1, &asking);
        heard = heard || !asked;
        if (asked && (!heard || asked != SN_RETRY)) /* the cause: nobody could be asked */
            return sn_fail(err, asked, "no way over blocks %d:%d: %s", first, end, asking.text);
        if (chain->options.measure && (status = sn_chain_measure(chain, false, err))) return status;
        if (plan_now(chain, first, end, out, err)) sn_sleep_us(left_us < PLAN_AGAIN_US ? left_us : PLAN_AGAIN_US);
    }
}

void sn_chain_close_hops(sn_chain *chain, sn_hop_at *hops, size_t n) {
    for (size_t i = 0; i < n; i++) sn_hop_fini(&hops[i], chain->options.link);
}

/* Opening computes nothing: who does not answer soon is not there. */
static int open_timeout(const sn_chain *chain) {
    return chain->options.timeout_ms < OPEN_TIMEOUT_MS ? chain->options.timeout_ms : OPEN_TIMEOUT_MS;
}

/* At a node that does not hold the tuning it is brought there first; it may be gone again, or for others, by then. */
static sn_status open_session(sn_chain *chain, const uint8_t *predecessor, sn_hop_at *hop, sn_err *err) {
    const sn_chain_options *o = &chain->options;
    for (int tries = 0;; tries++) {
        sn_status status = sn_hop_open(hop, o->link, &chain->model, o->max_tokens, predecessor,
                                       chain->spared ? chain->spared->curve_key : NULL, open_timeout(chain), err);
        if (status != SN_REBUILD || !o->tuned.bytes || tries == TUNE_TRIES) return status;
        status = sn_hop_tune(hop, o->link, o->tuned.image, o->tuned.bytes, o->timeout_ms, err);
        if (status) return status;
    }
}

static sn_status open_hop(sn_chain *chain, const sn_stop *stop, const sn_hop_at *before, sn_hop_at *hop, sn_err *err) {
    bool pushed = chain->options.push && before && !before->local && stop->node &&
                  memcmp(before->node, stop->node->node, SN_KEY_SIZE); /* not to itself, where a boundary asks for two hops */
    sn_status status = sn_hop_init(hop, stop, &chain->model, &chain->options.tuned.hash, pushed, err);
    if (status) return status;
    hop->flow = chain->flow;
    hop->takes = sn_chain_wire_at(chain, hop->first);
    hop->gives = sn_chain_wire_at(chain, hop->end);
    for (int b = stop->first; b < stop->end; b++)
        memcpy(chain->weights[b].bytes,
               hop->local ? sn_span_block_hash(chain->span, b)->bytes : stop->node->block_hash[b - (int)stop->node->first_block],
               SN_HASH_SIZE);
    if (hop->local) {
        hop->span = chain->span;
        hop->tuning = chain->tuning;
        return sn_kv_new(chain->pool, &hop->kv, err);
    }
    hop->signs = chain->options.receipts;
    return open_session(chain, pushed ? before->curve_key : NULL, hop, err);
}

/* An adapter is named that is not here. */
static bool needs_holders(const sn_chain *chain) {
    static const sn_hash none;
    return !chain->options.tuned.bytes && memcmp(&chain->options.tuned.hash, &none, sizeof none);
}

/* Opens sessions along a way over blocks [first, end). Nodes that do not open are given up, *retries times in all. */
sn_status sn_chain_connect(sn_chain *chain, int first, int end, int wait_ms, int *retries, sn_hop_at *hops, size_t *n,
                           sn_err *err) {
    for (;;) {
        sn_route route;
        sn_status status = sn_chain_plan(chain, first, end, wait_ms, &route, err);
        if (status) return needs_holders(chain) ? sn_err_context(err, "of nodes that hold the adapter") : status;
        for (*n = 0; *n < route.n && !status; ++*n)
            status = open_hop(chain, &route.stops[*n], *n ? &hops[*n - 1] : NULL, &hops[*n], err);
        for (int b = first; b < end && !status; b++) /* from now on these weights, or the text would change */
            if (!chain->known_hash[b]) chain->known_hash[b] = &chain->weights[b];
        if (!status) return SN_OK;
        bool local = hops[*n - 1].local;
        if (!local) sn_chain_ban(chain, &hops[*n - 1]);
        sn_chain_close_hops(chain, hops, *n);
        if (status == SN_REFUSED && !local) status = err->status = SN_RETRY; /* that node's word: it has moved, perhaps */
        if (local || status == SN_STOP || (*retries)-- <= 0) return status;
    }
}
