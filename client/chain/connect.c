/* Which nodes a chain may use, planning a route over them, and opening sessions along it.
 *
 * sn_chain_list_candidates makes a list of all known nodes with estimated costs (client/routing) from the directory of
 * announcements, this client's peer statistics, and the chain's requirements: weights, wire type, adapter, node filter,
 * bans. sn_chain_plan_route looks for a route by what is known now, and only when there is none asks the swarm for more
 * nodes: the place of a dead node is thus taken at once where another node is known.
 *
 * sn_chain_connect opens a session at each leg of the route. A node that does not open its session is banned, and the
 * next route avoids it. After the first connection the weights of every block are fixed (known): nodes with other
 * weights can then no longer take over, since the text would change. */
#include "client/chain/chain_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "model/source.h"
#include "net/timeline.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPEN_TIMEOUT_MS = 5000, /* opening computes nothing: a node that does not answer soon is not there */
    REPLICA_OPEN_MS = 2000, /* a step waits for it, which could do without a replica */
    BRIEF_US = 50000,       /* the search for a node that the session can do without */
    ROUTE_WAIT_US = 3000000,
    ROUTE_POLL_MS = 200,
    MEASURE_MS = 3000, /* a stranger that is not dialled yet answers twice within four round trips */
    OTHER_MODELS_MS = 1000,
    MEASURE_ROUNDS = 3,
    ADAPTER_PUT_TRIES = 3,
    MEASURED_MAX = 32, /* nodes measured at once; of more nodes the seed decides which */
};
/* What a client hashes to compare with its nodes', and for how long; what it knows from an earlier start is no part. */
static const uint64_t VERIFY_BYTES_MAX = (uint64_t)8 << 30;
static const int64_t VERIFY_US_MAX = 10000000, VERIFY_TOLD_US = 2000000;

/* -- which nodes may be used -----------------------------------------------------------------------------------------
 */

static void chain_avoid_for(sn_chain *chain, const sn_hop *hop, int64_t us, const char *what) {
    const sn_chain_routing *routing = &chain->options.routing;
    if (routing->note_failure) routing->note_failure(routing->avoid_ctx, hop->remote.node);
    sn_log(SN_LOG_WARN, what, "request_id=%s node=%s blocks=%d:%d seconds=%d", chain->request_id, hop->report.node,
           hop->first, hop->end, (int)(us / 1000000));
}

void sn_chain_ban(sn_chain *chain, const sn_hop *hop) {
    int64_t us = sn_peer_stats_note_failure(chain->peer_stats, hop->remote.node, sn_now_us());
    chain_avoid_for(chain, hop, us, "node banned");
}

/* A node opens no session. Many may be gone at once, and some be back soon: each that is not there costs milliseconds
 * whenever it is tried. One that lets the client wait before it closes the connection is no such node. */
static void chain_note_unopened(sn_chain *chain, const sn_hop *hop, int64_t tried_us) {
    if (sn_link_is_connected(chain->options.link, hop->remote.peer) || sn_now_us() - tried_us > SN_ABSENCE_US) {
        sn_chain_ban(chain, hop);
    } else {
        int64_t us = sn_peer_stats_note_absence(chain->peer_stats, hop->remote.node, sn_now_us());
        chain_avoid_for(chain, hop, us, "node not there");
    }
}

/* KV cache of the longest timeline, of one block with keys and values, as most take on average; eight bits with their
 * scales count as nine. */
static uint64_t chain_kv_bytes_per_block(const sn_chain *chain) {
    static const uint64_t eighths[SN_KV_DTYPE_COUNT] = {[SN_KV_F32] = 32, [SN_KV_F16] = 16, [SN_KV_Q8] = 9};
    const sn_hparams *hp = &chain->hp;
    const size_t attend = (size_t)(hp->n_blocks - sn_n_recurrent(hp, 0, hp->n_blocks));
    const size_t index = (size_t)sn_n_choosing(hp, 0, hp->n_blocks) * (size_t)hp->index_dim;
    const size_t width = attend ? (sn_kv_width(hp, 0, hp->n_blocks) - index) / attend : 0;
    return (uint64_t)chain->max_tokens *
           (width * eighths[chain->options.kv.dtype] / 8 + (attend ? index / attend * sizeof(float) : 0));
}

/* What the chain itself has against an otherwise eligible node. */
static sn_eligibility chain_objection(const sn_chain *chain, const sn_announcement *node) {
    const sn_chain_routing *routing = &chain->options.routing;
    const sn_verifier *verifier = &chain->options.verification.verifier;
    if (verifier->is_banned && verifier->is_banned(verifier->ctx, node->node)) return SN_INELIGIBLE_BANNED;
    return routing->avoid && routing->avoid(routing->avoid_ctx, node->node) ? SN_INELIGIBLE_PARTY : SN_ELIGIBLE;
}

const bool *sn_chain_bound_blocks(const sn_chain *chain) {
    const sn_hparams *hp = &chain->hp;
    return hp->index_topk && chain->max_tokens > hp->index_topk ? hp->index_shared : NULL;
}

sn_status sn_chain_list_candidates(sn_chain *chain, sn_candidates *out, sn_err *err) {
    const sn_chain_options *o = &chain->options;
    sn_link *link = o->link;
    sn_candidate_query query = {.directory = link ? sn_link_directory(link) : NULL,
                                .peer_stats = chain->peer_stats,
                                .now_us = sn_now_us(),
                                .unix_ms = sn_unix_ms(),
                                .slow_nodes = o->routing.slow_nodes,
                                .model = chain->model,
                                .n_blocks = chain->hp.n_blocks,
                                .block_hash = chain->known,
                                .kv_dtype = (int)sn_kv_dtype_element(o->kv.dtype),
                                .local_first = o->local.first,
                                .local_end = o->local.end,
                                .bound = sn_chain_bound_blocks(chain),
                                .node_filter = o->routing.node_filter,
                                .adapter = o->adapter.bytes ? 0 : sn_node_tag(o->adapter.hash.bytes),
                                .kv_bytes_per_block = chain_kv_bytes_per_block(chain),
                                .tokens = (uint64_t)(chain->expected > chain->length ? chain->expected : chain->length),
                                .wire = o->wire.dtype,
                                .seed = o->routing.seed};
    if (link) sn_peer_stats_note_online(chain->peer_stats, query.directory);
    sn_status status = sn_candidates_make(&query, out, err);
    for (size_t i = 0; i < out->n && !status; i++) {
        sn_candidate *candidate = &out->at[i];
        if (candidate->node && candidate->eligibility == SN_ELIGIBLE)
            candidate->eligibility = chain_objection(chain, candidate->node);
    }
    return status;
}

/* -- round trips -----------------------------------------------------------------------------------------------
 */

static bool chain_knows_rtt(const sn_chain *chain, const sn_announcement *node) {
    const sn_peer_stat *peer = sn_peer_stats_find(chain->peer_stats, node->node);
    return peer && peer->rtt_us >= 0 && sn_now_us() - peer->measured_us < SN_PEER_STATS_FRESH_US / 2;
}

/* Whether another candidate could take one of this candidate's blocks. */
static bool candidate_has_alternative(const sn_candidates *candidates, size_t i) {
    for (size_t k = 0; k < candidates->n; k++)
        if (k != i && candidates->at[k].eligibility == SN_ELIGIBLE && candidates->at[k].first < candidates->at[i].end &&
            candidates->at[i].first < candidates->at[k].end)
            return true;
    return false;
}

/* Nodes whose round trip is to be measured: those on the route that would be taken now, then others. first_round: lists
 * others even when every round trip on the route is known. Nodes of that route among which there is no choice are
 * dialled meanwhile. */
static sn_status chain_list_unmeasured(sn_chain *chain, bool all, bool first_round, const sn_announcement **nodes,
                                       size_t *n, sn_err *err) {
    const sn_chain_options *o = &chain->options;
    sn_candidates candidates;
    sn_route route = {.n = 0};
    sn_err none;
    *n = 0;
    sn_status status = sn_chain_list_candidates(chain, &candidates, err);
    if (!status && sn_route_shortest(candidates.at, candidates.n, chain->push, o->first, o->end, &route, &none))
        route.n = 0;
    for (size_t i = 0; i < route.n && *n < MEASURED_MAX; i++) {
        const sn_announcement *node = route.legs[i].node;
        const bool wanted = node && (all || candidate_has_alternative(&candidates, route.legs[i].candidate));
        sn_peer peer;
        if (wanted && !chain_knows_rtt(chain, node)) nodes[(*n)++] = node;
        if (node && !wanted && sn_link_dial(o->link, node->address, node->curve_key, &peer, &none)) {} /* to open it */
    }
    for (size_t i = 0; (*n || first_round) && i < candidates.n && *n < MEASURED_MAX; i++) {
        const sn_candidate *candidate = &candidates.at[i];
        bool listed =
            !candidate->node || candidate->eligibility != SN_ELIGIBLE || chain_knows_rtt(chain, candidate->node);
        for (size_t k = 0; k < *n && !listed; k++) listed = nodes[k] == candidate->node;
        if (!listed && (all || candidate_has_alternative(&candidates, i))) nodes[(*n)++] = candidate->node;
    }
    sn_candidates_fini(&candidates);
    return status;
}

/* In a large swarm not every node is measured, but the nodes on the route that is then taken have been: each round
 * measures the route that the results of the round before suggest. The round trip of a node that does not answer in
 * time counts as the longest that was waited for. */
sn_status sn_chain_measure_rtt(sn_chain *chain, bool all, sn_err *err) {
    const sn_announcement *nodes[MEASURED_MAX];
    sn_node_reply replies[MEASURED_MAX];
    for (int round = 0; round < MEASURE_ROUNDS; round++) {
        size_t n;
        sn_status status = chain_list_unmeasured(chain, all, !round, nodes, &n, err);
        if (status || !n) return status;
        int quarter_ms = sn_chain_left_ms(chain, INT_MAX) / 4,
            measure_ms = quarter_ms < MEASURE_MS ? quarter_ms : MEASURE_MS;
        const sn_link_query query = {
            nodes, n, .status = true, .hurry = true, .by_connection = true, .timeout_ms = measure_ms};
        status = sn_link_query_nodes(chain->options.link, &query, replies, err);
        for (size_t i = 0; i < n && !status; i++)
            if (replies[i].answered)
                sn_peer_stats_note_rtt(chain->peer_stats, nodes[i]->node, replies[i].rtt_us, sn_now_us());
            else
                sn_peer_stats_note_silence(chain->peer_stats, nodes[i]->node, (int64_t)measure_ms * 1000, sn_now_us());
        if (status) return status;
    }
    return SN_OK;
}

/* Compares the time of a token with what the node announces. */
static void chain_note_speed(sn_chain *chain, const sn_hop *hop) {
    const sn_peer_stat *peer = sn_peer_stats_find(chain->peer_stats, hop->remote.node);
    const sn_announcement *node = sn_directory_find(sn_link_directory(chain->options.link), hop->remote.node);
    if (!peer || peer->block_ns < 0 || !node || node->end_block <= node->first_block) return;
    int64_t decode_us = node->decode_us < INT32_MAX ? (int64_t)node->decode_us : INT32_MAX;
    sn_slow_nodes_note(chain->options.routing.slow_nodes, hop->remote.node,
                       decode_us * 1000 / (int64_t)(node->end_block - node->first_block), peer->block_ns, sn_unix_ms());
}

void sn_chain_note_step(sn_chain *chain, const sn_hop *hops, size_t i, size_t j, int n) {
    int64_t now_us = sn_now_us();
    for (size_t k = i; k < j; k++)
        if (!hops[k].is_local) {
            const sn_hop_remote *r = &hops[k].remote;
            sn_peer_stats_note_step(chain->peer_stats, r->node, hops[k].end - hops[k].first, n,
                                    (int64_t)r->last_queue_us, (int64_t)r->last_compute_us, now_us);
        }
    /* For several nodes that push to each other the time is not known link by link, and the last one tells those of the
     * others: it could have them remembered as slow. */
    if (j - i > 1 || hops[i].is_local || n != 1) return;
    if (chain->options.routing.slow_nodes) chain_note_speed(chain, &hops[i]);
    sn_peer_stats_note_rtt(chain->peer_stats, hops[i].remote.node, (int64_t)hops[i].remote.last_network_us, now_us);
}

/* -- planning --------------------------------------------------------------------------------------------------------
 */

/* A route over these candidates: the fastest, or one drawn by throughput. Not cut yet (sn_chain_cut_route). */
static sn_status chain_choose_route(const sn_chain *chain, const sn_candidates *candidates, int first, int end,
                                    sn_route *out, sn_err *err) {
    const sn_chain_routing *routing = &chain->options.routing;
    return routing->throughput
               ? sn_route_sample(candidates->at, candidates->n, chain->push, first, end, routing->seed, out, err)
               : sn_route_shortest(candidates->at, candidates->n, chain->push, first, end, out, err);
}

static sn_status chain_plan_route_now(sn_chain *chain, int first, int end, sn_route *out, sn_err *err) {
    sn_candidates candidates;
    sn_status status = sn_chain_list_candidates(chain, &candidates, err);
    for (size_t i = 0; i < candidates.n && !status; i++)
        if (candidates.at[i].node && sn_chain_avoids(chain, candidates.at[i].node->node))
            candidates.at[i].eligibility = chain->being_replicated ? SN_INELIGIBLE_PARTY : SN_INELIGIBLE_STATE;
    if (!status) status = chain_choose_route(chain, &candidates, first, end, out, err);
    if (status == SN_RETRY) { /* waiting for KV pages at a full node is better than no route */
        sn_candidates_ignore_kv(&candidates);
        status = chain_choose_route(chain, &candidates, first, end, out, err);
    }
    sn_candidates_fini(&candidates);
    return status;
}

static void chain_know_weights(sn_chain *chain, int block, const sn_hash *weights) {
    chain->weights[block] = *weights;
    chain->known[block] = &chain->weights[block];
}

/* -- the hashes of this machine's file -------------------------------------------------------------------------------
 */

typedef struct verifying {
    const sn_chain *chain;
    int64_t began_us, until_us;
    uint64_t bytes_left;
    int skipped; /* blocks */
    bool told, ended;
} verifying;

/* Also tells the user why nothing happens. */
static bool stop_verifying(void *ctx) {
    verifying *v = ctx;
    int64_t now_us = sn_now_us();
    if (!v->told && now_us - v->began_us > VERIFY_TOLD_US) {
        v->told = true;
        sn_log(SN_LOG_WARN, "hashing the model's file",
               "text=its blocks are compared with those of the nodes: this takes up to %d more seconds, and less at "
               "the next start",
               (int)((v->until_us - now_us) / 1000000) + 1);
    }
    return now_us >= v->until_us || sn_link_is_cancelled(v->chain->options.link);
}

/* Hashes a block as far as the bounds allow. */
static sn_status verify_block(verifying *v, const sn_model *model, int block, bool *known, sn_hash *out, sn_err *err) {
    const sn_halt stop = {stop_verifying, v};
    uint64_t bytes = 0;
    bool kept = sn_model_knows_block_hash(model, block);
    sn_status status = kept ? SN_OK : sn_model_block_bytes(model, block, &bytes, err);
    if (status) return status;
    if (bytes > v->bytes_left) v->ended = true;
    if (v->ended && !kept) {
        v->skipped++;
        return SN_OK;
    }
    v->bytes_left -= bytes;
    status = sn_model_known_block_hash(model, block, kept ? NULL : &stop, out, err);
    *known = !status;
    if (status != SN_RETRY) return status;
    if (sn_link_is_cancelled(v->chain->options.link))
        return sn_fail(err, SN_STOP, "comparing the model's file with the nodes was cancelled");
    v->ended = true;
    v->skipped++;
    return SN_OK;
}

sn_status sn_chain_learn_hashes(sn_chain *chain, const sn_model *model, sn_err *err) {
    size_t n = (size_t)chain->hp.n_blocks;
    sn_status status = sn_calloc(&chain->weights, n, sizeof *chain->weights, err);
    if (!status) status = sn_calloc(&chain->known, n, sizeof *chain->known, err);
    const sn_chain *like = chain->options.verification.hashes_from;
    const sn_base_weights *base = chain->options.adapter.base;
    sn_hash hash;
    for (int b = 0; b < chain->hp.n_blocks && !status && like; b++)
        if (like->known[b]) chain_know_weights(chain, b, like->known[b]);
    chain->options.verification.hashes_from = NULL; /* borrowed while opening */
    if (like) return status;
    verifying v = {.chain = chain, .began_us = sn_now_us(), .bytes_left = VERIFY_BYTES_MAX};
    const int64_t quarter_us = (int64_t)chain->options.limits.timeout_ms * 1000 / 4;
    v.until_us = v.began_us + (quarter_us < VERIFY_US_MAX ? quarter_us : VERIFY_US_MAX);
    for (int b = 0; b < chain->hp.n_blocks && !status; b++) {
        bool here = b >= chain->options.local.first && b < chain->options.local.end, known = false;
        if (here || !chain->options.link) continue;
        const sn_hash *of_base = sn_base_weights_block(base, b);
        if (of_base) chain_know_weights(chain, b, of_base);
        if (sn_model_told_block_hash(model, b, &hash)) chain_know_weights(chain, b, &hash);
        if (sn_model_holds_block(model, b)) status = verify_block(&v, model, b, &known, &hash, err);
        if (!status && known && of_base && memcmp(&hash, of_base, sizeof hash))
            status = sn_base_weights_block_differs(base, b, err);
        if (!status && known) chain_know_weights(chain, b, &hash);
    }
    if (!status && v.skipped)
        sn_log(SN_LOG_INFO, "blocks not compared",
               "text=%d blocks of the model's file were not hashed to be compared with those of nodes: it takes too "
               "long for one start",
               v.skipped);
    return status;
}

/* -- connecting ------------------------------------------------------------------------------------------------------
 */

sn_dtype sn_chain_wire_at(const sn_chain *chain, int block) {
    return !chain->round_at || chain->round_at[block] ? chain->options.wire.dtype : SN_F32;
}

static bool chain_is_cut_at(const sn_chain *chain, int block) {
    const sn_chain_routing *routing = &chain->options.routing;
    const bool *bound = sn_chain_bound_blocks(chain);
    if (bound && bound[block]) return false;
    return routing->every_block || (routing->cut_at && routing->cut_at[block]) ||
           (chain->round_at && chain->round_at[block]);
}

sn_status sn_chain_cut_route(const sn_chain *chain, sn_route *route, sn_err *err) {
    const sn_chain_routing *routing = &chain->options.routing;
    sn_route_leg cut[SN_HOPS_MAX];
    size_t m = 0;
    int blocks = route->legs[route->n - 1].end - route->legs[0].first;
    if (!routing->every_block && !routing->cut_at && !chain->round_at) return SN_OK;
    if (routing->every_block && blocks > SN_HOPS_MAX)
        return sn_fail(err, SN_REFUSED, "%d blocks cannot be cut into hops of one block: at most %d can", blocks,
                       SN_HOPS_MAX);
    for (size_t i = 0; i < route->n; i++) {
        const sn_route_leg *leg = &route->legs[i];
        for (int b = leg->first, from = b; b < leg->end; b++) {
            if (b + 1 < leg->end && !chain_is_cut_at(chain, b + 1)) continue;
            if (m == SN_HOPS_MAX) return sn_fail(err, SN_REFUSED, "a chain has at most %d hops", SN_HOPS_MAX);
            cut[m++] = (sn_route_leg){leg->node, from, b + 1, leg->candidate};
            from = b + 1;
        }
    }
    memcpy(route->legs, cut, m * sizeof *cut);
    route->n = m;
    return SN_OK;
}

/* No node of this model is known: whether there are nodes of other ones, which then are the reason. */
static bool chain_sees_other_models(sn_chain *chain) {
    sn_link *link = chain->options.link;
    sn_err ignored;
    return !sn_directory_count(sn_link_directory(link)) &&
           !sn_link_discover(link, NULL, sn_chain_left_ms(chain, OTHER_MODELS_MS), &ignored) &&
           sn_directory_count(sn_link_directory(link));
}

/* How long to wait on for nodes that serve missing blocks, at most until they are looked for again, in a search that
 * began at began_us. 0: no longer. */
static int chain_patience_ms(const sn_chain *chain, sn_chain_patience patience, int64_t began_us) {
    static const int64_t limits_us[] = {BRIEF_US, ROUTE_WAIT_US, INT64_MAX};
    int64_t left_us = limits_us[patience] - (sn_now_us() - began_us);
    if (sn_chain_is_late(chain)) return 0;
    if (patience == SN_CHAIN_WAIT_JOINED && sn_link_unanswered(chain->options.link)) left_us = INT64_MAX;
    if (left_us <= 0) return 0;
    return sn_chain_left_ms(chain, left_us < ROUTE_POLL_MS * 1000 ? (int)(left_us / 1000) + 1 : ROUTE_POLL_MS);
}

/* There is no swarm for what the local blocks leave over; *err holds what the route lacks. */
static sn_status chain_fail_local(const sn_chain *chain, int first, int end, sn_err *err) {
    int from = chain->options.local.first, to = chain->options.local.end;
    if (from <= first && to >= end) return SN_RETRY;
    if (from <= first && to > first) first = to;
    if (to >= end && from < end) end = from;
    return sn_fail(err, SN_REFUSED,
                   "blocks %d:%d are missing, and this program computes blocks %d:%d only (--local): give --join "
                   "HOST:PORT of a node for the others, or --local all",
                   first, end, from, to);
}

/* began_us: when the search for these blocks began, for which there is patience. Where nodes that did not answer have
 * taken all of it, the swarm is asked once all the same: another one may have joined meanwhile. */
static sn_status chain_plan_route_since(sn_chain *chain, int64_t began_us, int first, int end,
                                        sn_chain_patience patience, sn_route *out, sn_err *err) {
    sn_link *link = chain->options.link;
    bool discovered = false;
    for (;;) {
        sn_err asking;
        sn_status status = chain_plan_route_now(chain, first, end, out, err);
        if (!status) status = sn_chain_cut_route(chain, out, err);
        if (status == SN_RETRY && !link) return chain_fail_local(chain, first, end, err);
        if (status != SN_RETRY) return status;
        bool waits = chain_patience_ms(chain, patience, began_us) > 0;
        if (!waits && (discovered || patience == SN_CHAIN_WAIT_BRIEFLY || sn_chain_is_late(chain))) {
            if (patience == SN_CHAIN_WAIT_JOINED && chain_sees_other_models(chain)) continue;
            const char *silent = patience == SN_CHAIN_WAIT_BRIEFLY ? NULL : sn_link_unanswered(link);
            return silent ? sn_err_context(err, "%s has not answered, and of the nodes that are known", silent)
                          : status;
        }
        int wait_ms = sn_chain_left_ms(chain, patience == SN_CHAIN_WAIT_BRIEFLY ? BRIEF_US / 1000
                                              : waits                           ? INT_MAX
                                                                                : ROUTE_WAIT_US / 1000);
        sn_status asked = sn_link_discover(link, &chain->model, wait_ms, &asking);
        discovered = discovered || !asked;
        if (asked && (!discovered || asked != SN_RETRY)) /* the cause: no node could be asked */
            return sn_fail(err, asked, "no route over blocks %d:%d: %s", first, end, asking.text);
        if (chain->options.routing.measure && (status = sn_chain_measure_rtt(chain, false, err))) return status;
        bool found = !chain_plan_route_now(chain, first, end, out, err);
        int64_t pause_ms = found ? 0 : chain_patience_ms(chain, patience, began_us);
        if (pause_ms) status = sn_link_pause(link, pause_ms * 1000, err);
        if (status == SN_STOP) return status;
    }
}

sn_status sn_chain_plan_route(sn_chain *chain, int first, int end, sn_chain_patience patience, sn_route *out,
                              sn_err *err) {
    return chain_plan_route_since(chain, sn_now_us(), first, end, patience, out, err);
}

void sn_chain_close_hops(sn_chain *chain, sn_hop *hops, size_t n) {
    for (size_t i = 0; i < n; i++) sn_hop_fini(&hops[i], chain->options.link);
}

/* The announcement by which the node of leg i is asked to push to the next leg; NULL: it does not push there. A node
 * does not push to itself, and dials only what a live announcement names: in the last seconds of one, the client
 * relays.
 */
static const sn_blob *route_push_target(const sn_chain *chain, const sn_route *route, size_t i, int64_t unix_ms) {
    const sn_announcement *from = route->legs[i].node, *to = i + 1 < route->n ? route->legs[i + 1].node : NULL;
    if (!chain->push || !from || !to || !memcmp(from->node, to->node, SN_KEY_SIZE)) return NULL;
    const sn_directory *directory = sn_link_directory(chain->options.link);
    if (sn_directory_find_expiry(directory, to->node) <= (uint64_t)(unix_ms + OPEN_TIMEOUT_MS)) return NULL;
    return sn_directory_find_sealed(directory, to->node);
}

/* Of the first block the inputs are made again, or are all there is to begin a replay with. Those of the others save
 * computing the blocks before them: they stay within --replay-memory, and below the keys and values of their tokens. */
void sn_chain_limit_inputs(const sn_chain *chain, sn_hop *hop) {
    sn_hop_remote *r = &hop->remote;
    if (hop->first == chain->options.first) {
        const bool kept = !chain->source.rows || chain->options.verification.verifier.note_step;
        r->source = kept ? NULL : &chain->source;
        return;
    }
    const size_t width = sn_kv_width(&chain->hp, hop->first, hop->end);
    r->inputs_max = chain->options.limits.replay_memory;
    r->inputs_token_max = width / sn_dtype_block(r->kv_dtype) * sn_dtype_bytes(r->kv_dtype);
}

/* pushed: its input comes from the node of the hop before it. Opens no session at a node. */
static sn_status chain_init_hop(sn_chain *chain, const sn_route_leg *leg, bool pushed, sn_hop *hop, sn_err *err) {
    sn_status status = sn_hop_init(hop, leg, &chain->model, &chain->options.adapter.hash, pushed, err);
    if (status) return status;
    hop->is_long = sn_chain_is_long(chain);
    if (!hop->is_local) hop->remote.timeline[0] = sn_timeline_if_long(&hop->remote.timeline[0], hop->is_long);
    hop->input_dtype = sn_chain_wire_at(chain, hop->first);
    hop->output_dtype = sn_chain_wire_at(chain, hop->end);
    for (int b = leg->first; b < leg->end; b++)
        chain->computed_by[b] =
            hop->is_local ? sn_block_hash_with_kv_dtype(sn_span_block_hash(chain->span, b), chain->options.kv.dtype)
                          : sn_hop_hash_with_kv(leg->node, b);
    if (hop->is_local) {
        hop->local = (sn_hop_local){.span = chain->span, .adapter = chain->adapter};
        return sn_kv_cache_new(chain->pool, &hop->local.kv, err);
    }
    hop->remote.request_id = chain->request_id;
    hop->remote.wants_receipt = chain->options.verification.receipts;
    hop->remote.kv_dtype = sn_kv_dtype_element(chain->options.kv.dtype);
    sn_chain_limit_inputs(chain, hop);
    return SN_OK;
}

/* The adapter is given by its hash only, so it cannot be uploaded. */
static bool chain_needs_adapter_holders(const sn_chain *chain) {
    static const sn_hash none;
    return !chain->options.adapter.bytes && memcmp(&chain->options.adapter.hash, &none, sizeof none);
}

/* The hops of a route that are being opened. */
typedef struct opening {
    sn_chain *chain;
    const sn_route *route;
    sn_hop *hops;
    int64_t unix_ms, asked_us;
    size_t failed; /* the hop whose failure ended it */
} opening;

/* Asks the node of hop i for its session. */
static sn_status opening_ask(opening *o, size_t i, sn_wait *wait, sn_err *err) {
    sn_chain *chain = o->chain;
    const sn_hop *source = chain->being_replicated;
    const sn_hop_peers peers = {o->hops[i].pushed ? o->hops[i - 1].remote.curve_key : NULL,
                                source ? source->remote.curve_key : NULL,
                                route_push_target(chain, o->route, i, o->unix_ms)};
    const int ms = sn_chain_attempt_ms(chain, source ? REPLICA_OPEN_MS : OPEN_TIMEOUT_MS);
    o->failed = i;
    return sn_hop_open(&o->hops[i], chain->options.link, chain->max_tokens, &peers, sn_now_us() + (int64_t)ms * 1000,
                       wait, err);
}

/* Takes the reply to one of n waits, which are for the hops of[]. SN_REBUILD: the node lacks the adapter. */
static sn_status opening_take(opening *o, sn_wait *waits, size_t *of, size_t *n, sn_err *err) {
    sn_msg *reply = NULL;
    size_t which;
    sn_status status = sn_link_wait_any(o->chain->options.link, waits, *n, &which, &reply, err);
    o->failed = of[which];
    o->hops[o->failed].remote.answer_us = sn_now_us() - o->asked_us;
    if (!status) status = sn_hop_opened(&o->hops[o->failed], reply, err);
    sn_msg_free(&reply);
    --*n;
    memmove(waits + which, waits + which + 1, (*n - which) * sizeof *waits);
    memmove(of + which, of + which + 1, (*n - which) * sizeof *of);
    return status;
}

/* A node that does not hold the adapter gets it before it opens the session. It may have unloaded it again by then, so
 * this is tried several times. */
static sn_status opening_with_adapter(opening *o, size_t i, sn_err *err) {
    const sn_chain_adapter *adapter = &o->chain->options.adapter;
    for (int tries = 1;; tries++) {
        sn_wait wait;
        size_t of = i, n = 1;
        o->failed = i;
        sn_status status = sn_hop_put_adapter(&o->hops[i], o->chain->options.link, adapter->image, adapter->bytes,
                                              sn_chain_attempt_ms(o->chain, INT_MAX), err);
        if (!status) status = opening_ask(o, i, &wait, err);
        if (!status) status = opening_take(o, &wait, &of, &n, err);
        if (status != SN_REBUILD || tries == ADAPTER_PUT_TRIES) return status;
    }
}

/* Opens a session at each remote hop. All nodes are dialled and asked at once: their round trips must not add up. */
static sn_status opening_run(opening *o, sn_err *err) {
    sn_wait waits[SN_HOPS_MAX];
    size_t of[SN_HOPS_MAX], lacking[SN_HOPS_MAX], n = 0, n_lacking = 0;
    sn_status status = SN_OK;
    for (size_t i = 0; i < o->route->n && !status; i++) {
        if (o->hops[i].is_local) continue;
        status = opening_ask(o, i, &waits[n], err);
        of[n++] = i;
    }
    while (n && !status) {
        status = opening_take(o, waits, of, &n, err);
        if (status != SN_REBUILD || !o->chain->options.adapter.bytes) continue;
        lacking[n_lacking++] = o->failed; /* when the others have answered: an upload would drop their replies */
        status = SN_OK;
    }
    for (size_t i = 0; i < n_lacking && !status; i++) status = opening_with_adapter(o, lacking[i], err);
    return status ? sn_err_context(err, "%s", o->hops[o->failed].remote.address) : SN_OK;
}

/* Makes the hops of a route, with their sessions. *failed: on failure, the hop that caused it, of *n. */
static sn_status chain_open_route(sn_chain *chain, const sn_route *route, sn_hop *hops, size_t *n, size_t *failed,
                                  sn_err *err) {
    opening o = {chain, route, hops, sn_unix_ms(), sn_now_us(), 0};
    sn_status status = SN_OK;
    for (*n = 0; *n < route->n && !status; ++*n) {
        const bool pushed = *n && route_push_target(chain, route, *n - 1, o.unix_ms);
        *failed = *n;
        status = chain_init_hop(chain, &route->legs[*n], pushed, &hops[*n], err);
    }
    if (status) return status;
    status = opening_run(&o, err);
    *failed = o.failed;
    return status;
}

/* From now on the blocks of the leg have these weights only. */
static void chain_keep_weights(sn_chain *chain, const sn_route_leg *leg) {
    for (int b = leg->first; b < leg->end; b++) {
        if (chain->known[b]) continue;
        memcpy(chain->weights[b].bytes,
               leg->node ? leg->node->block_hash[b - (int)leg->node->first_block]
                         : sn_span_block_hash(chain->span, b)->bytes,
               SN_HASH_SIZE);
        chain->known[b] = &chain->weights[b];
    }
}

/* Each turn of the loop takes a node out of the next ones for seconds, and the search for others waits: it ends with
 * the call, or sooner where patience does. */
sn_status sn_chain_connect(sn_chain *chain, int first, int end, sn_chain_patience patience, sn_hop *hops, size_t *n,
                           sn_err *err) {
    int64_t began_us = sn_now_us();
    sn_err cause = {0};
    for (;;) {
        sn_route route;
        size_t failed;
        sn_status status = chain_plan_route_since(chain, began_us, first, end, patience, &route, err);
        if (status && chain_needs_adapter_holders(chain)) sn_err_context(err, "over nodes that hold the adapter");
        if (status) return cause.status ? sn_err_context(err, "%.180s; and then", cause.text) : status;
        const int64_t tried_us = sn_now_us();
        status = chain_open_route(chain, &route, hops, n, &failed, err);
        for (size_t i = 0; i < route.n && !status; i++) chain_keep_weights(chain, &route.legs[i]);
        if (!status) return SN_OK;
        bool local = hops[failed].is_local;
        if (!local && status != SN_STOP) chain_note_unopened(chain, &hops[failed], tried_us);
        sn_chain_close_hops(chain, hops, *n);
        if ((status == SN_REFUSED || status == SN_REBUILD) && !local)
            status = err->status = SN_RETRY; /* one node refused, for example after moving to other blocks */
        if (local || status == SN_STOP || sn_chain_is_late(chain)) return status;
        if (chain->call.is_part && chain->call.retries-- <= 0) return status;
        cause = *err;
    }
}

/* -- explaining a route -----------------------------------------------------------------------------------------------
 */

void sn_route_explanation_fini(sn_route_explanation *p) {
    sn_candidates_fini(&p->candidates);
    free(p->cost_through_ns);
    free(p->ban_left_us);
    *p = (sn_route_explanation){0};
}

sn_status sn_route_explain(sn_chain *chain, sn_route_explanation *out, sn_err *err) {
    sn_route route; /* of sn_chain_plan_route, which waits for nodes but does not say over which candidates */
    int first = chain->options.first, end = chain->options.end;
    *out = (sn_route_explanation){0};
    sn_chain_begin_call(chain);
    sn_status status = sn_chain_plan_route(chain, first, end, SN_CHAIN_WAIT_JOINED, &route, &out->no_route);
    if (status && status != SN_RETRY) return sn_fail(err, status, "%s", out->no_route.text);
    status = chain->options.link ? sn_chain_measure_rtt(chain, true, err) : SN_OK;
    if (!status) status = sn_chain_list_candidates(chain, &out->candidates, err);
    size_t n = out->candidates.n;
    if (!status) status = sn_calloc(&out->cost_through_ns, n, sizeof *out->cost_through_ns, err);
    if (!status) status = sn_calloc(&out->ban_left_us, n, sizeof *out->ban_left_us, err);
    if (status) return status;
    for (size_t i = 0; i < n; i++)
        if (out->candidates.at[i].node)
            out->ban_left_us[i] =
                sn_peer_stats_ban_left_us(chain->peer_stats, out->candidates.at[i].node->node, sn_now_us());
    status = chain_choose_route(chain, &out->candidates, first, end, &out->route, &out->no_route);
    if (status == SN_RETRY) {
        sn_err none;
        sn_candidates_ignore_kv(&out->candidates);
        out->kv_full = !chain_choose_route(chain, &out->candidates, first, end, &out->route, &none);
        if (out->kv_full) status = SN_OK;
    }
    out->no_route.status = status;
    if (status && status != SN_RETRY) return sn_fail(err, status, "%s", out->no_route.text);
    return sn_route_cost_through(out->candidates.at, n, chain->push, first, end, out->cost_through_ns, err);
}
