/* Making the list of candidates.
 *
 * For each node of the directory: is it eligible (node_eligibility), and what does it cost (candidate_estimate)? Costs
 * come from what the node announces (decode_us, queued steps, tokens per second, free KV memory), clamped, because
 * nodes announce about themselves what they want; fresh measurements of this client replace them. Round trips that were
 * not measured are assumed to be the median of the measured ones. Then candidates_link turns the round trips that nodes
 * announce about each other into links between candidates, with one sort of the node tags and one of the pairs, so a
 * large swarm costs O(n log n). */
#include "client/routing/candidates.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/random.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { RATE_MAX = 1000000000 };                      /* tokens a second */
static const int64_t TIME_US_MAX = 3600LL * 1000000; /* announced times are clamped to an hour */
enum {
    CLAIM_GAIN = 4,
    LOAD_MAX = 1000,        /* announced sessions and queued steps are clamped to this */
    SESSIONS_PER_TOKEN = 16 /* so many open sessions count as one queued step */
};

const char *sn_eligibility_name(sn_eligibility eligibility) {
    static const char *const names[SN_ELIGIBILITY_COUNT] = {"usable",
                                                            "not online",
                                                            "another protocol",
                                                            "another model",
                                                            "other weights",
                                                            "another --kv-dtype",
                                                            "not of this --wire-dtype",
                                                            "not among --only",
                                                            "denied",
                                                            "banned",
                                                            "takes part already",
                                                            "without the adapter",
                                                            "too little KV memory",
                                                            "no KV memory"};
    return (size_t)eligibility < SN_ELIGIBILITY_COUNT ? names[eligibility] : "?";
}

static int64_t clamp_us(uint64_t us) { return us < (uint64_t)TIME_US_MAX ? (int64_t)us : TIME_US_MAX; }

/* -- eligibility --------------------------------------------------------------------------------------------------- */

static bool node_matches_any(const sn_announcement *node, const char *const *names, size_t n) {
    char id[2 * SN_KEY_SIZE + 1];
    sn_hex(node->node, SN_KEY_SIZE, id);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(names[i], node->name) ||
            (strlen(names[i]) >= SN_NODE_FILTER_DIGITS_MIN && !strncmp(names[i], id, strlen(names[i]))))
            return true;
    return false;
}

/* The first block with other weights than the session needs; -1: none. */
static int node_other_block(const sn_candidate_query *query, const sn_announcement *node) {
    for (int b = (int)node->first_block; b < (int)node->end_block; b++) {
        const sn_hash *want = query->block_hash ? query->block_hash[b] : NULL;
        if (want && memcmp(want->bytes, node->block_hash[b - (int)node->first_block], SN_HASH_SIZE)) return b;
    }
    return -1;
}

static bool node_accepts_dtype(const sn_announcement *node, sn_dtype dtype) {
    for (size_t i = 0; i < node->n_wire_dtype; i++)
        if (node->wire_dtype[i] == (uint64_t)dtype) return true;
    return dtype == SN_F32;
}

static bool node_holds_adapter(const sn_announcement *node, uint64_t tag) {
    for (size_t i = 0; i < node->n_adapters; i++)
        if (node->adapters[i] == tag) return true;
    return !tag;
}

static sn_eligibility node_eligibility(const sn_candidate_query *query, const sn_announcement *node) {
    if (node->protocol != SN_PROTOCOL_VERSION) return SN_INELIGIBLE_PROTOCOL;
    if (memcmp(node->model, query->model.bytes, SN_HASH_SIZE) || node->n_blocks != (uint64_t)query->n_blocks)
        return SN_INELIGIBLE_MODEL;
    if (node->state != SN_NODE_ONLINE) return SN_INELIGIBLE_STATE;
    if (node_other_block(query, node) >= 0) return SN_INELIGIBLE_WEIGHTS;
    if (query->kv_dtype >= 0 && node->kv_dtype != (uint64_t)query->kv_dtype) return SN_INELIGIBLE_KV_DTYPE;
    if (!node_accepts_dtype(node, query->wire)) return SN_INELIGIBLE_WIRE;
    if (node_matches_any(node, query->node_filter.deny, query->node_filter.n_deny)) return SN_INELIGIBLE_DENIED;
    if (query->node_filter.n_only && !node_matches_any(node, query->node_filter.only, query->node_filter.n_only))
        return SN_INELIGIBLE_NOT_IN_ONLY;
    if (!node_holds_adapter(node, query->adapter)) return SN_INELIGIBLE_ADAPTER;
    if (node->kv_tokens_max && node->kv_tokens_max < query->tokens) return SN_INELIGIBLE_KV_SMALL;
    if (sn_peer_stats_ban_left_us(query->peer_stats, node->node, query->now_us)) return SN_INELIGIBLE_BANNED;
    return SN_ELIGIBLE;
}

/* -- costs --------------------------------------------------------------------------------------------------------- */

static void candidate_estimate(const sn_candidate_query *query, const sn_announcement *node, sn_candidate *p) {
    const sn_peer_stat *peer = sn_peer_stats_find(query->peer_stats, node->node);
    if (peer && (!peer->measured_us || query->now_us - peer->measured_us >= SN_PEER_STATS_FRESH_US)) peer = NULL;
    int64_t span = p->end > p->first ? p->end - p->first : 1;
    uint64_t sessions = node->sessions < LOAD_MAX ? node->sessions : LOAD_MAX;
    uint64_t queue = node->queued_steps < LOAD_MAX ? node->queued_steps : LOAD_MAX;
    p->rtt_measured = peer && peer->rtt_us >= 0;
    p->block_measured = peer && peer->block_ns >= 0;
    p->answers = peer && peer->answers;
    p->rtt_ns = (p->rtt_measured ? clamp_us((uint64_t)peer->rtt_us) : SN_DEFAULT_RTT_US) * 1000;
    p->block_ns = SN_DEFAULT_BLOCK_US * 1000;
    if (node->decode_us) p->block_ns = clamp_us(node->decode_us) * 1000 / span;
    int64_t remembered_ns = sn_slow_nodes_block_ns(query->slow_nodes, node->node, query->unix_ms);
    if (p->block_ns < remembered_ns) p->block_ns = remembered_ns;
    if (p->block_measured) p->block_ns = peer->block_ns < TIME_US_MAX * 1000 ? peer->block_ns : TIME_US_MAX * 1000;
    p->prefill_ns =
        node->prompt_tokens_per_s
            ? 1000000000 / span /
                  (int64_t)(node->prompt_tokens_per_s >> 1 < INT32_MAX ? node->prompt_tokens_per_s : INT32_MAX)
            : p->block_ns / 4;
    /* Each queued step is a forward pass before this client's; an open session may or may not have one. */
    int64_t waiting = (int64_t)queue * SESSIONS_PER_TOKEN + (int64_t)sessions;
    p->queue_ns = waiting * span * p->block_ns / SESSIONS_PER_TOKEN;
    if (peer && peer->queue_us >= 0) p->queue_ns = clamp_us((uint64_t)peer->queue_us) * 1000;
    if (p->queue_ns > TIME_US_MAX * 1000) p->queue_ns = TIME_US_MAX * 1000;
    p->queue_ns += SN_STEP_OVERHEAD_US * 1000;
    p->tokens_per_s = node->tokens_per_s ? (double)node->tokens_per_s : 1e9 / (double)(span * p->block_ns + 1);
    uint64_t fitting = query->kv_bytes_per_block ? node->kv_bytes_free / query->kv_bytes_per_block : (uint64_t)span;
    p->blocks_max = fitting < (uint64_t)span ? (int)fitting : (int)span;
    if (!p->blocks_max && p->eligibility == SN_ELIGIBLE) p->eligibility = SN_INELIGIBLE_KV_FULL;
}

/* -- claims -------------------------------------------------------------------------------------------------------- */

static int compare_ns(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* What a node claims of its speed counts little until it was observed. `known` are the times of a block at nodes that
 * this client has measured or that are proven: a proven one is believed up to CLAIM_GAIN times their median, a stranger
 * is taken for half as fast as their median whatever it claims, and costs SN_STRANGER_US besides, or
 * SN_SILENT_STRANGER_US until it has answered this client: then no route over known nodes costs as much. No step of one
 * client measures a throughput: that of a measured node is believed as that of a proven one. */
static sn_status candidates_doubt_claims(const sn_candidate_query *query, sn_candidates *candidates, sn_err *err) {
    int64_t *known = NULL, *rates = NULL; /* times of a block; tokens a second */
    size_t n = 0;
    if (!query->unix_ms) return SN_OK;
    sn_status status = sn_calloc(&known, candidates->n, sizeof *known, err);
    if (!status) status = sn_calloc(&rates, candidates->n, sizeof *rates, err);
    for (size_t i = 0; i < candidates->n && !status; i++) {
        sn_candidate *p = &candidates->at[i];
        p->stranger =
            p->node && !p->block_measured && !sn_directory_is_proven(query->directory, p->node->node, query->unix_ms);
        if (!p->node || p->eligibility != SN_ELIGIBLE || p->stranger) continue;
        rates[n] = p->tokens_per_s < RATE_MAX ? (int64_t)p->tokens_per_s : RATE_MAX;
        known[n++] = p->block_ns;
    }
    if (!status) qsort(known, n, sizeof *known, compare_ns);
    if (!status) qsort(rates, n, sizeof *rates, compare_ns);
    /* Of two in the middle the one that claims less. */
    int64_t median = n ? known[n / 2] : 0, rate = n ? rates[(n - 1) / 2] : 0;
    for (size_t i = 0; i < candidates->n && n; i++) {
        sn_candidate *p = &candidates->at[i];
        int64_t least = p->stranger ? 2 * median : median / CLAIM_GAIN;
        double most = p->stranger ? (double)rate / 2 : (double)rate * CLAIM_GAIN;
        if (!p->node) continue;
        if (p->tokens_per_s > most && rate) p->tokens_per_s = most;
        if (p->block_measured) continue;
        if (p->block_ns < least) p->block_ns = least;
        if (p->prefill_ns < least / 16) p->prefill_ns = least / 16;
        if (p->stranger) p->queue_ns += (p->answers ? SN_STRANGER_US : SN_SILENT_STRANGER_US) * INT64_C(1000);
    }
    free(known);
    free(rates);
    return status;
}

/* Of candidates of equal cost the first in the list is chosen. The seed shuffles the list, so that clients with
 * different seeds use different nodes, and the same seed gives the same route. */
static void candidates_shuffle(sn_candidate *at, size_t n, uint64_t seed) {
    for (size_t i = n; i > 1; i--) {
        size_t k = (size_t)sn_rng_below(&seed, i);
        sn_candidate swapped = at[i - 1];
        at[i - 1] = at[k];
        at[k] = swapped;
    }
}

/* -- round trips to the client ----------------------------------------------------------------------------------------
 */

static int compare_rtt(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* A round trip that was not measured is assumed to be the median of the measured ones, and twice that through a relay,
 * which every message passes on its way. A measured one has gone through the relay. */
static sn_status candidates_default_rtts(sn_candidates *candidates, sn_err *err) {
    int64_t *known = NULL;
    size_t n = 0;
    sn_status status = sn_calloc(&known, candidates->n, sizeof *known, err);
    if (status) return status;
    for (size_t i = 0; i < candidates->n; i++)
        if (candidates->at[i].rtt_measured) known[n++] = candidates->at[i].rtt_ns;
    qsort(known, n, sizeof *known, compare_rtt);
    for (sn_candidate *p = candidates->at; p < candidates->at + candidates->n; p++) {
        if (!p->node || p->rtt_measured) continue;
        if (n) p->rtt_ns = known[n / 2];
        if (p->node->reach == SN_REACH_RELAYED) p->rtt_ns *= 2;
    }
    free(known);
    return SN_OK;
}

/* -- round trips between nodes ------------------------------------------------------------------------------------- */

typedef struct tagged {
    uint64_t tag;
    size_t candidate;
} tagged;

typedef struct pair {
    size_t from;
    sn_candidate_link link;
} pair;

static int compare_tags(const void *a, const void *b) {
    uint64_t x = ((const tagged *)a)->tag, y = ((const tagged *)b)->tag;
    return x < y ? -1 : x > y;
}

static int compare_pairs(const void *a, const void *b) {
    const pair *x = a, *y = b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    if (x->link.other != y->link.other) return x->link.other < y->link.other ? -1 : 1;
    return x->link.rtt_ns < y->link.rtt_ns ? -1 : x->link.rtt_ns > y->link.rtt_ns;
}

/* The round trips that nodes announce about each other, in both directions, into `pairs` (capacity: two for each
 * announced one). Returns how many. */
static size_t candidates_list_pairs(const sn_candidates *candidates, const tagged *tags, size_t n_tags, pair *pairs) {
    size_t n = 0;
    for (size_t t = 0; t < n_tags; t++) {
        const sn_announcement *a = candidates->at[tags[t].candidate].node;
        for (size_t i = 0; i < a->n_round_trip; i++) {
            const tagged *other =
                bsearch(&(tagged){.tag = a->round_trip[i].node}, tags, n_tags, sizeof *tags, compare_tags);
            if (!other || other->candidate == tags[t].candidate) continue;
            int64_t rtt_ns = clamp_us(a->round_trip[i].us) * 1000;
            pairs[n++] = (pair){tags[t].candidate, {other->candidate, rtt_ns}};
            pairs[n++] = (pair){other->candidate, {tags[t].candidate, rtt_ns}};
        }
    }
    return n;
}

/* Where both nodes of a pair have measured, the shorter time counts: a measurement can be delayed, but not too short.
 */
static sn_status candidates_link(sn_candidates *candidates, sn_err *err) {
    tagged *tags = NULL;
    pair *pairs = NULL;
    size_t n_tags = 0, n = 0;
    sn_status status = sn_calloc(&tags, candidates->n, sizeof *tags, err);
    for (size_t i = 0; i < candidates->n && !status; i++)
        if (candidates->at[i].node && candidates->at[i].eligibility == SN_ELIGIBLE) {
            tags[n_tags++] = (tagged){sn_node_tag(candidates->at[i].node->node), i};
            n += 2 * candidates->at[i].node->n_round_trip;
        }
    if (!status) qsort(tags, n_tags, sizeof *tags, compare_tags);
    if (!status) status = sn_calloc(&pairs, n, sizeof *pairs, err);
    if (!status) status = sn_calloc(&candidates->links, n, sizeof *candidates->links, err);
    if (!status) {
        n = candidates_list_pairs(candidates, tags, n_tags, pairs);
        qsort(pairs, n, sizeof *pairs, compare_pairs);
    }
    size_t kept = 0;
    for (size_t i = 0; i < n && !status; i++) {
        if (i && pairs[i].from == pairs[i - 1].from && pairs[i].link.other == pairs[i - 1].link.other) continue;
        sn_candidate *from = &candidates->at[pairs[i].from];
        if (!from->n_links++) from->links = &candidates->links[kept];
        candidates->links[kept++] = pairs[i].link;
    }
    free(tags);
    free(pairs);
    return status;
}

sn_status sn_candidates_make(const sn_candidate_query *query, sn_candidates *out, sn_err *err) {
    size_t n = query->directory ? sn_directory_count(query->directory) : 0;
    *out = (sn_candidates){0};
    sn_status status = sn_calloc(&out->at, n + 1, sizeof *out->at, err);
    if (status) return status;
    for (size_t i = 0; i < n; i++) {
        const sn_announcement *node = sn_directory_at(query->directory, i);
        sn_candidate *p = &out->at[out->n++];
        *p = (sn_candidate){.node = node, .eligibility = node_eligibility(query, node)};
        if (p->eligibility == SN_INELIGIBLE_WEIGHTS) p->other_block = node_other_block(query, node);
        if (p->eligibility == SN_INELIGIBLE_MODEL || p->eligibility == SN_INELIGIBLE_PROTOCOL)
            continue; /* its blocks mean nothing here */
        p->first = (int)node->first_block;
        p->end = (int)node->end_block;
        candidate_estimate(query, node, p);
    }
    if ((status = candidates_doubt_claims(query, out, err))) {
        sn_candidates_fini(out);
        return status;
    }
    if (query->seed) candidates_shuffle(out->at, out->n, query->seed);
    if (query->local_first < query->local_end)
        out->at[out->n++] = (sn_candidate){.first = query->local_first,
                                           .end = query->local_end,
                                           .blocks_max = query->local_end - query->local_first,
                                           .tokens_per_s = 1};
    for (size_t i = 0; i < out->n; i++) out->at[i].bound = query->bound;
    status = candidates_default_rtts(out, err);
    if (!status) status = candidates_link(out, err);
    if (status) sn_candidates_fini(out);
    return status;
}

void sn_candidates_ignore_kv(sn_candidates *candidates) {
    for (size_t i = 0; i < candidates->n; i++) {
        sn_candidate *p = &candidates->at[i];
        p->blocks_max = p->end - p->first;
        if (p->eligibility == SN_INELIGIBLE_KV_FULL) p->eligibility = SN_ELIGIBLE;
    }
}

/* Not a matter of time: its weights, its program, or what the client was told to use. */
static bool is_never_used(sn_eligibility why) {
    static const bool never[SN_ELIGIBILITY_COUNT] = {
        [SN_INELIGIBLE_PROTOCOL] = true, [SN_INELIGIBLE_MODEL] = true,  [SN_INELIGIBLE_WEIGHTS] = true,
        [SN_INELIGIBLE_KV_DTYPE] = true, [SN_INELIGIBLE_WIRE] = true,   [SN_INELIGIBLE_NOT_IN_ONLY] = true,
        [SN_INELIGIBLE_DENIED] = true,   [SN_INELIGIBLE_ADAPTER] = true};
    return never[why];
}

int sn_candidates_tokens_max(const sn_candidates *candidates, int first, int end) {
    int least = INT_MAX;
    for (int b = first; b < end; b++) {
        int most = -1;
        for (const sn_candidate *p = candidates->at; p < candidates->at + candidates->n; p++) {
            if (!p->node || b < p->first || b >= p->end || is_never_used(p->eligibility)) continue;
            const int tokens = p->node->kv_tokens_max ? (int)p->node->kv_tokens_max : INT_MAX;
            if (tokens > most) most = tokens;
        }
        if (most >= 0 && most < least) least = most;
    }
    return least;
}

void sn_candidates_fini(sn_candidates *candidates) {
    free(candidates->at);
    free(candidates->links);
    *candidates = (sn_candidates){0};
}
