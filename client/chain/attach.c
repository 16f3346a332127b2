/* Prefixes by their hashes: before a prompt runs, the nodes are asked for the KV pages of its beginning, which they may
 * still have from an earlier session of this client. What they have neither goes up to them nor comes back.
 *
 * sn_chain_note_prefix remembers, for each end of a page of the timeline, the hash that each hop has there, under a key
 * that commits to what determines these hashes: the nodes in order, their blocks, weights and KV type (the first hash
 * of each hop), where hidden states are rounded, and the tokens. So a route that leads over another node finds nothing;
 * it could not use it either, because that node needs the rows.
 *
 * sn_chain_attach_prefix asks every hop at once with all positions that the client knows, and the timeline then ends
 * where all hops agree. The rows of attached positions are not known here, but for those of the first block, which the
 * chain's source gives again: a failover replays from there. A chain with a verifier does neither, because an auditor
 * needs every row. */
#include "client/chain/chain_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "client/chain/known_prefixes.h"

#include <stdlib.h>
#include <string.h>

enum {
    PAGE = SN_KV_PAGE_TOKENS,
    LEAST_GAIN = 2 * PAGE,  /* positions that are worth a round trip */
    LEAST_ROUTE = 8 * PAGE, /* and those that are worth sessions at other nodes */
    NEWEST = 64,            /* of more positions than fit: so many at the end, and others evenly before them */
    ATTACH_MS = 10000
};

static bool chain_may_attach(const sn_chain *chain) {
    bool remote = chain->options.prefixes && chain->source.rows && !chain->options.verification.verifier.note_step;
    for (size_t i = 0; i < chain->n_hops && remote; i++) remote = !chain->hops[i].is_local;
    return remote && chain->n_hops && !chain->unsettled;
}

static sn_hash joined_hash(const sn_hash *before, const void *data, size_t len) {
    sn_hash both[2] = {*before, sn_hash_of(data, len)};
    return sn_hash_of(both, sizeof both);
}

/* The key of the tokens' route at position 0. */
static sn_hash chain_route_key(const sn_chain *chain, const char *scope) {
    const sn_chain_adapter *adapter = &chain->options.adapter;
    const int of[] = {(int)chain->options.wire.dtype, (int)chain->options.kv.dtype, chain->options.first,
                      chain->options.end};
    sn_hash key = sn_hash_of(scope ? scope : "", scope ? strlen(scope) : 0);
    key = joined_hash(&key, &chain->model, sizeof chain->model);
    key = joined_hash(&key, of, sizeof of);
    key = joined_hash(&key, &adapter->hash, sizeof adapter->hash);
    if (adapter->n_prompt)
        key = joined_hash(&key, adapter->prompt,
                          (size_t)adapter->n_prompt * (size_t)chain->hp.n_embd * sizeof *adapter->prompt);
    return key;
}

/* The key of the hops' timelines at position 0. */
static sn_hash chain_prefix_key(const sn_chain *chain, const char *scope) {
    sn_hash key = chain_route_key(chain, scope);
    if (chain->round_at) key = joined_hash(&key, chain->round_at, (size_t)chain->hp.n_blocks + 1);
    for (size_t i = 0; i < chain->n_hops; i++) {
        key = joined_hash(&key, chain->hops[i].remote.node, SN_KEY_SIZE);
        key = joined_hash(&key, &chain->hops[i].remote.timeline[0], sizeof(sn_hash));
    }
    return key;
}

/* The key at the end of the page that begins at `from`. tokens: those of the timeline, behind the virtual ones. */
static sn_hash page_key(const sn_chain *chain, const sn_hash *before, int from, const int32_t *tokens) {
    const int virtual_tokens = chain->options.adapter.n_prompt;
    int first = from - virtual_tokens, n = PAGE;
    if (first < 0) n += first, first = 0;
    return joined_hash(before, tokens + (n > 0 ? first : 0), n > 0 ? (size_t)n * sizeof *tokens : 0);
}

void sn_chain_note_prefix(sn_chain *chain, const int32_t *tokens, const char *scope) {
    sn_hash timelines[SN_HOPS_MAX], nodes[SN_HOPS_MAX], last;
    if (!chain_may_attach(chain)) return;
    sn_hash key = chain_prefix_key(chain, scope), route = chain_route_key(chain, scope);
    bool any = false;
    for (int end = PAGE; end <= chain->length; end += PAGE) {
        key = page_key(chain, &key, end - PAGE, tokens);
        route = page_key(chain, &route, end - PAGE, tokens);
        if (!sn_hops_know_hash(chain->hops, chain->n_hops, end)) continue;
        any = true;
        last = route;
        for (size_t i = 0; i < chain->n_hops; i++) timelines[i] = chain->hops[i].remote.timeline[end];
        sn_known_prefixes_put(chain->options.prefixes, &key, timelines, chain->n_hops);
    }
    for (size_t i = 0; i < chain->n_hops; i++) memcpy(nodes[i].bytes, chain->hops[i].remote.node, SN_KEY_SIZE);
    if (any) sn_known_prefixes_put(chain->options.prefixes, &last, nodes, chain->n_hops);
}

/* -- the route that a prefix took -- */

/* The nodes that had the longest beginning of the tokens; returns how many. */
static size_t known_route(const sn_chain *chain, const int32_t *tokens, const char *scope, int most,
                          sn_hash nodes[SN_HOPS_MAX]) {
    sn_hash key = chain_route_key(chain, scope), found[SN_HOPS_MAX];
    size_t n = 0;
    for (int end = PAGE; end <= most; end += PAGE) {
        key = page_key(chain, &key, end - PAGE, tokens);
        const size_t here =
            end < LEAST_ROUTE ? 0 : sn_known_prefixes_get(chain->options.prefixes, &key, found, SN_HOPS_MAX);
        if (here) memcpy(nodes, found, here * sizeof *found);
        if (here) n = here;
    }
    return n;
}

static bool route_is_taken(const sn_chain *chain, const sn_hash *nodes, size_t n) {
    size_t i = 0;
    while (i < n && i < chain->n_hops && !memcmp(nodes[i].bytes, chain->hops[i].remote.node, SN_KEY_SIZE)) i++;
    return i == n && n == chain->n_hops;
}

/* A session without tokens moves to the nodes that have a prefix of them, where the route that it was opened over is
 * another one of several that are as good. Where that fails, it stays where it is. */
static sn_status chain_take_known_route(sn_chain *chain, const sn_hash *nodes, size_t n, sn_err *err) {
    sn_node_filter *filter = &chain->options.routing.node_filter;
    const sn_node_filter given = *filter;
    char names[SN_HOPS_MAX][2 * SN_KEY_SIZE + 1];
    const char *only[SN_HOPS_MAX];
    sn_hop *fresh = NULL;
    size_t n_fresh = 0;
    if (chain->length || chain->round_at || given.n_only || route_is_taken(chain, nodes, n)) return SN_OK;
    for (size_t i = 0; i < n; i++) only[i] = sn_hex(nodes[i].bytes, SN_KEY_SIZE, names[i]);
    sn_status status = sn_calloc(&fresh, SN_HOPS_MAX, sizeof *fresh, err);
    if (status) return status;
    const sn_chain_call call = sn_chain_begin_part(chain, 4, 0);
    filter->only = only;
    filter->n_only = n;
    status =
        sn_chain_connect(chain, chain->options.first, chain->options.end, SN_CHAIN_WAIT_BRIEFLY, fresh, &n_fresh, err);
    *filter = given;
    chain->call = call;
    sn_log(SN_LOG_DEBUG, "known route", "request_id=%s nodes=%zu text=%s", chain->request_id, n,
           status ? err->text : "taken");
    if (!status) {
        sn_chain_close_hops(chain, chain->hops, chain->n_hops);
        memcpy(chain->hops, fresh, n_fresh * sizeof *fresh);
        chain->n_hops = n_fresh;
    }
    free(fresh);
    return status == SN_STOP ? status : SN_OK;
}

/* -- what is known of a prompt -- */

typedef struct known_prefix {
    int positions[SN_ATTACH_POINTS_MAX]; /* ascending */
    sn_hash *timelines;                  /* (n, n_hops) */
    size_t n;
} known_prefix;

/* Takes every second position out, but for the newest ones. */
static void known_thin_out(known_prefix *known, size_t n_hops) {
    size_t kept = 0;
    for (size_t i = 0; i < known->n; i++) {
        if (i % 2 && i + NEWEST < known->n) continue;
        known->positions[kept] = known->positions[i];
        memmove(known->timelines + kept++ * n_hops, known->timelines + i * n_hops, n_hops * sizeof *known->timelines);
    }
    known->n = kept;
}

/* Positions up to `most` that the client knows; thinned out as often as they do not fit. */
static sn_status known_find(sn_chain *chain, const int32_t *tokens, const char *scope, int most, known_prefix *known,
                            sn_err *err) {
    const size_t n_hops = chain->n_hops;
    sn_hash key = chain_prefix_key(chain, scope);
    *known = (known_prefix){.n = 0};
    sn_status status = sn_calloc(&known->timelines, SN_ATTACH_POINTS_MAX * n_hops, sizeof *known->timelines, err);
    for (int end = PAGE; end <= most && !status; end += PAGE) {
        key = page_key(chain, &key, end - PAGE, tokens);
        if (known->n == SN_ATTACH_POINTS_MAX) known_thin_out(known, n_hops);
        if (sn_known_prefixes_get(chain->options.prefixes, &key, known->timelines + known->n * n_hops, n_hops) ==
            n_hops)
            known->positions[known->n++] = end;
    }
    return status;
}

/* -- asking the nodes -- */

static sn_status attach_msg_new(const sn_chain *chain, size_t hop, const known_prefix *known, sn_msg **out,
                                sn_err *err) {
    sn_msg *msg = NULL;
    sn_status status = sn_msg_new(SN_MSG_ATTACH, sn_link_new_correlation_id(), &msg, err);
    if (status) return status;
    sn_msg_attach *m = &msg->attach;
    memcpy(m->session, chain->hops[hop].remote.session, SN_SESSION_ID_SIZE);
    status = sn_list_new(known->n, SN_ATTACH_POINTS_MAX, sizeof *m->points, &m->points, err);
    if (status) {
        sn_msg_free(&msg);
        return status;
    }
    for (m->n_points = 0; m->n_points < known->n; m->n_points++) { /* the latest first */
        const size_t k = known->n - 1 - m->n_points;
        m->points[m->n_points].position = (uint64_t)known->positions[k];
        memcpy(m->points[m->n_points].timeline, known->timelines[k * chain->n_hops + hop].bytes, SN_HASH_SIZE);
    }
    *out = msg;
    return SN_OK;
}

/* The last position up to `most` that every hop holds and knows the hash of. */
static int common_position(const sn_chain *chain, int most) {
    while (most > 0 && !sn_hops_know_hash(chain->hops, chain->n_hops, most)) most--;
    return most;
}

/* The hop's session holds a known prefix of `length` tokens now, in place of what it held; 0: nothing has changed. */
static sn_status hop_take_prefix(sn_chain *chain, size_t hop, const known_prefix *known, uint64_t length, sn_err *err) {
    sn_hop *h = &chain->hops[hop];
    size_t k = 0;
    if (!length) return SN_OK;
    while (k < known->n && (uint64_t)known->positions[k] != length) k++;
    if (k == known->n) return sn_fail(err, SN_RETRY, "%s attached what it was not asked for", h->report.node);
    return sn_hop_attached(h, known->positions, known->timelines + hop, chain->n_hops, k + 1, err);
}

/* Asks all hops at once. A hop that does not answer, or not what it was asked, is replaced by the next step. The
 * timeline then ends where all agree. */
static sn_status chain_ask_hops(sn_chain *chain, const known_prefix *known, sn_err *err) {
    sn_wait waits[SN_HOPS_MAX];
    size_t hop_of[SN_HOPS_MAX], n = 0, n_attached = 0, which;
    int most = known->positions[known->n - 1]; /* that all hold */
    const int64_t until_us = sn_now_us() + (int64_t)sn_chain_attempt_ms(chain, ATTACH_MS) * 1000;
    sn_link *link = chain->options.link;
    for (size_t i = 0; i < chain->n_hops; i++) {
        sn_hop_remote *r = &chain->hops[i].remote;
        sn_msg *msg = NULL;
        sn_status status = attach_msg_new(chain, i, known, &msg, err);
        if (status) return status;
        waits[n] = (sn_wait){msg->correlation_id, SN_MSG_ATTACH_REPLY, until_us, .peers = &r->peer, .n_peers = 1};
        if (sn_link_send(link, r->peer, &msg, err)) continue; /* the step finds it, too */
        hop_of[n++] = i;
    }
    while (n) {
        sn_msg *reply = NULL;
        sn_status status = sn_link_wait_any(link, waits, n, &which, &reply, err);
        sn_hop *hop = &chain->hops[hop_of[which]];
        const uint64_t length = status ? 0 : reply->attach_reply.length;
        const bool refused = status && waits[which].from;
        if (!status) status = hop_take_prefix(chain, hop_of[which], known, length, err);
        sn_msg_free(&reply);
        if (status == SN_STOP) return status;
        if (status) sn_log(SN_LOG_INFO, "prefix not attached", "node=%s text=%s", hop->report.node, err->text);
        if (status && !refused) hop->length = -1; /* it may hold either */
        if (!status && length) n_attached++;
        if (!status && length && hop->length < most) most = hop->length;
        n--;
        memmove(waits + which, waits + which + 1, (n - which) * sizeof *waits);
        memmove(hop_of + which, hop_of + which + 1, (n - which) * sizeof *hop_of);
    }
    if (n_attached < chain->n_hops && chain->length < most) most = chain->length; /* the others hold what they held */
    if (n_attached) chain->length = common_position(chain, most);
    return SN_OK;
}

/* Whether every hop can be brought from `from` to the timeline's end, with rows that are known here. */
static bool hops_can_go_on(const sn_chain *chain, int from) {
    for (size_t i = 0; i < chain->n_hops; i++)
        if (!chain->hops[i].pushed && !sn_hop_can_replay(&chain->hops[i], from)) return false;
    return true;
}

sn_status sn_chain_attach_prefix(sn_chain *chain, const int32_t *tokens, size_t n, const char *scope, sn_err *err) {
    known_prefix known = {.n = 0};
    const int virtual_tokens = chain->options.adapter.n_prompt;
    if (!chain_may_attach(chain) || !n) return SN_OK;
    const int most = virtual_tokens + (int)n - 1;
    sn_hash nodes[SN_HOPS_MAX];
    sn_chain_begin_call(chain);
    const size_t n_nodes = chain->length ? 0 : known_route(chain, tokens, scope, most, nodes);
    if (n_nodes && chain_take_known_route(chain, nodes, n_nodes, err)) return SN_STOP;
    const int here = common_position(chain, chain->length);
    if (!hops_can_go_on(chain, here)) chain->length = here; /* behind a rewind among attached positions */
    sn_status status = known_find(chain, tokens, scope, most, &known, err);
    if (!status && known.n && known.positions[known.n - 1] >= here + LEAST_GAIN) {
        status = chain_ask_hops(chain, &known, err);
        sn_log(SN_LOG_DEBUG, "prefix asked for", "request_id=%s tokens=%d before=%d known=%d", chain->request_id,
               chain->length, here, known.positions[known.n - 1]);
    }
    free(known.timelines);
    if (status == SN_STOP) chain->unsettled = true;
    return status;
}
