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
    BAN_US = 60000000, /* then a node may be tried again: a long chat outlives many hiccups of few nodes */
};
static const size_t VERIFY_BYTES_MAX = (size_t)8 << 30; /* weights that a client hashes to know its nodes' by */

/* -- which nodes may be used -----------------------------------------------------------------------------------------
 */

static bool is_wanted(const sn_chain *chain, const sn_announcement *node) {
    char id[2 * SN_KEY_SIZE + 1];
    if (!chain->options.n_only) return true;
    sn_hex(node->node, SN_KEY_SIZE, id);
    for (size_t i = 0; i < chain->options.n_only; i++) {
        const char *only = chain->options.only[i];
        if (!strcmp(only, node->name) || (*only && !strncmp(only, id, strlen(only)))) return true;
    }
    return false;
}

static bool is_excluded(void *ctx, const sn_announcement *node) {
    const sn_chain *chain = ctx;
    for (size_t i = 0; i < chain->n_banned && i < SN_CHAIN_BANNED_MAX; i++)
        if (!memcmp(chain->banned[i].node, node->node, SN_KEY_SIZE) && sn_now_us() < chain->banned[i].until_us)
            return true;
    return !is_wanted(chain, node);
}

void sn_chain_ban(sn_chain *chain, const sn_hop_at *hop) {
    size_t i = chain->n_banned++ % SN_CHAIN_BANNED_MAX;
    memcpy(chain->banned[i].node, hop->node, SN_KEY_SIZE);
    chain->banned[i].until_us = sn_now_us() + BAN_US;
    sn_log(SN_LOG_WARN, "node given up", "node=%s blocks=%d:%d", hop->report.node, hop->first, hop->end);
}

/* Hashes the blocks that our own file holds, so that nodes with other weights under the same name are passed over. */
sn_status sn_chain_learn_hashes(sn_chain *chain, const sn_model *model, sn_err *err) {
    size_t n = (size_t)chain->hp.n_blocks, budget = VERIFY_BYTES_MAX;
    sn_status status = sn_calloc(&chain->block_hash, n, sizeof *chain->block_hash, err);
    if (!status) status = sn_calloc(&chain->known_hash, n, sizeof *chain->known_hash, err);
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
        chain->known_hash[b] = &chain->block_hash[b];
    }
    return status;
}

/* -- connecting ------------------------------------------------------------------------------------------------------
 */

static sn_status cut_at_every_block(sn_stop *stops, size_t *n, sn_err *err) {
    sn_stop cut[SN_HOPS_MAX];
    size_t m = 0;
    int blocks = stops[*n - 1].end - stops[0].first;
    if (blocks > SN_HOPS_MAX)
        return sn_fail(err, SN_REFUSED, "%d blocks cannot be cut into hops of one block: at most %d can", blocks,
                       SN_HOPS_MAX);
    for (size_t i = 0; i < *n; i++)
        for (int b = stops[i].first; b < stops[i].end; b++) cut[m++] = (sn_stop){stops[i].node, b, b + 1};
    memcpy(stops, cut, m * sizeof *cut);
    *n = m;
    return SN_OK;
}

/* How long to wait for somebody who serves blocks: until `until_us`, if that is not too soon. */
int sn_chain_grace_ms(const sn_chain *chain, int64_t until_us) {
    int64_t left_ms = (until_us - sn_now_us()) / 1000;
    int least = chain->options.timeout_ms < OPEN_GRACE_MS ? chain->options.timeout_ms : OPEN_GRACE_MS;
    return left_ms > least ? (int)left_ms : least;
}

/* A way over blocks [first, end), waiting until wait_ms have passed for somebody to serve them. */
static sn_status plan(sn_chain *chain, int first, int end, int wait_ms, sn_stop *stops, size_t *n_stops, sn_err *err) {
    sn_link *link = chain->options.link;
    sn_route_wish wish = {.directory = link ? sn_link_directory(link) : NULL,
                          .model = chain->model,
                          .block_hash = chain->known_hash,
                          .n_blocks = chain->hp.n_blocks,
                          .local_first = chain->options.local_first,
                          .local_end = chain->options.local_end,
                          .excluded = is_excluded,
                          .ctx = chain};
    int64_t until = sn_now_us() + (int64_t)wait_ms * 1000;
    for (;;) { /* first by what is known: a dead node's place is taken at once where another is known */
        sn_err asking;
        sn_status status = sn_route_plan(&wish, first, end, stops, n_stops, err);
        int64_t left_us = until - sn_now_us();
        if (!status && chain->options.every_block) status = cut_at_every_block(stops, n_stops, err);
        if (status != SN_RETRY || !link || left_us <= 0) return status;
        sn_status asked = sn_link_discover(link, &chain->model, (int)(left_us / 1000) + 1, &asking);
        if (asked) /* the cause: nobody could be asked */
            return sn_fail(err, asked, "no way over blocks %d:%d: %s", first, end, asking.text);
        if (sn_route_plan(&wish, first, end, stops, n_stops, err)) sn_sleep_us(PLAN_AGAIN_US);
    }
}

void sn_chain_close_hops(sn_chain *chain, sn_hop_at *hops, size_t n) {
    for (size_t i = 0; i < n; i++) sn_hop_fini(&hops[i], chain->options.link);
}

/* Opening computes nothing: who does not answer soon is not there. */
static int open_timeout(const sn_chain *chain) {
    return chain->options.timeout_ms < OPEN_TIMEOUT_MS ? chain->options.timeout_ms : OPEN_TIMEOUT_MS;
}

static sn_status open_hop(sn_chain *chain, const sn_stop *stop, const sn_hop_at *before, sn_hop_at *hop, sn_err *err) {
    bool pushed = chain->options.push && before && !before->local && stop->node;
    sn_status status = sn_hop_init(hop, stop, &chain->model, pushed, err);
    if (status) return status;
    if (hop->local) {
        hop->span = chain->span;
        return sn_kv_new(chain->pool, &hop->kv, err);
    }
    hop->signs = chain->options.receipts;
    return sn_hop_open(hop, chain->options.link, &chain->model, chain->options.max_tokens,
                       pushed ? before->curve_key : NULL, open_timeout(chain), err);
}

/* Opens sessions along a way over blocks [first, end). Nodes that do not open are given up, *retries times in all. */
sn_status sn_chain_connect(sn_chain *chain, int first, int end, int wait_ms, int *retries, sn_hop_at *hops, size_t *n,
                           sn_err *err) {
    for (;;) {
        sn_stop stops[SN_HOPS_MAX];
        size_t n_stops = 0;
        sn_status status = plan(chain, first, end, wait_ms, stops, &n_stops, err);
        if (status) return status;
        for (*n = 0; *n < n_stops && !status; ++*n)
            status = open_hop(chain, &stops[*n], *n ? &hops[*n - 1] : NULL, &hops[*n], err);
        if (!status) return SN_OK;
        bool local = hops[*n - 1].local;
        if (!local) sn_chain_ban(chain, &hops[*n - 1]);
        sn_chain_close_hops(chain, hops, *n);
        if (local || status == SN_STOP || (*retries)-- <= 0) return status;
    }
}
