/* The chain steps from hop to hop. Consecutive nodes that push to each other form a group that is stepped, and
 * replaced, as one; otherwise every hop is a group of its own. */
#include "client/chain.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "client/hop.h"

#include <stdlib.h>
#include <string.h>

enum {
    TIMEOUT_MS = 30000,
    MAX_RETRIES = 3,
    OPEN_GRACE_MS = 3000, /* how long a chain waits at least for blocks that nobody serves yet */
    OPEN_TIMEOUT_MS = 5000,
    PLAN_AGAIN_US = 200000,
    BANNED_MAX = 64,
    BAN_US = 60000000, /* then a node may be tried again: a long chat outlives many hiccups of few nodes */
};
static const size_t VERIFY_BYTES_MAX = (size_t)8 << 30; /* weights that a client hashes to know its nodes' by */

struct sn_chain {
    sn_chain_options options;
    sn_hparams hp;
    sn_hash model;
    sn_hash *block_hash;        /* of blocks whose weights our own file holds */
    const sn_hash **known_hash; /* n_blocks: into block_hash, or NULL */
    sn_span *span;              /* local blocks */
    sn_kv_pool *pool;
    sn_hop_at hops[SN_HOPS_MAX];
    size_t n_hops;
    int length;
    sn_hasher *hasher;
    float *rows[2]; /* hidden states between hops, SN_SPAN_ROWS_MAX rows each */
    struct {
        uint8_t node[SN_KEY_SIZE];
        int64_t until_us;
    } banned[BANNED_MAX]; /* nodes that failed this chain; the oldest is forgiven first */
    size_t n_banned;
    uint64_t failovers;
    sn_chain_observer observer;
    void *observer_ctx;
};

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
    for (size_t i = 0; i < chain->n_banned && i < BANNED_MAX; i++)
        if (!memcmp(chain->banned[i].node, node->node, SN_KEY_SIZE) && sn_now_us() < chain->banned[i].until_us)
            return true;
    return !is_wanted(chain, node);
}

static void ban(sn_chain *chain, const sn_hop_at *hop) {
    size_t i = chain->n_banned++ % BANNED_MAX;
    memcpy(chain->banned[i].node, hop->node, SN_KEY_SIZE);
    chain->banned[i].until_us = sn_now_us() + BAN_US;
    sn_log(SN_LOG_WARN, "node given up", "node=%s blocks=%d:%d", hop->report.node, hop->first, hop->end);
}

/* Hashes the blocks that our own file holds, so that nodes with other weights under the same name are passed over. */
static sn_status learn_hashes(sn_chain *chain, const sn_model *model, sn_err *err) {
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
static int grace_ms(const sn_chain *chain, int64_t until_us) {
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

static void close_hops(sn_chain *chain, sn_hop_at *hops, size_t n) {
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
    return sn_hop_open(hop, chain->options.link, &chain->model, chain->options.max_tokens,
                       pushed ? before->curve_key : NULL, open_timeout(chain), err);
}

/* Opens sessions along a way over blocks [first, end). Nodes that do not open are given up, *retries times in all. */
static sn_status connect_hops(sn_chain *chain, int first, int end, int wait_ms, int *retries, sn_hop_at *hops,
                              size_t *n, sn_err *err) {
    for (;;) {
        sn_stop stops[SN_HOPS_MAX];
        size_t n_stops = 0;
        sn_status status = plan(chain, first, end, wait_ms, stops, &n_stops, err);
        if (status) return status;
        for (*n = 0; *n < n_stops && !status; ++*n)
            status = open_hop(chain, &stops[*n], *n ? &hops[*n - 1] : NULL, &hops[*n], err);
        if (!status) return SN_OK;
        bool local = hops[*n - 1].local;
        if (!local) ban(chain, &hops[*n - 1]);
        close_hops(chain, hops, *n);
        if (local || status == SN_STOP || (*retries)-- <= 0) return status;
    }
}

static sn_status load_local(sn_chain *chain, const sn_model *model, sn_err *err) {
    const sn_chain_options *o = &chain->options;
    if (o->local_first == o->local_end) return SN_OK;
    sn_status status = sn_span_load(model, o->device, o->local_first, o->local_end, NULL, NULL, &chain->span, err);
    return status ? status : sn_span_kv_pool(chain->span, o->kv_memory, &chain->pool, err);
}

sn_status sn_chain_open(const sn_model *model, const sn_chain_options *options, sn_chain **out, sn_err *err) {
    sn_chain *chain = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&chain, 1, sizeof *chain, err);
    if (status) return status;
    chain->options = *options;
    chain->hp = *sn_model_hparams(model);
    chain->model = sn_model_id(model);
    if (!chain->options.timeout_ms) chain->options.timeout_ms = TIMEOUT_MS;
    if (!chain->options.max_retries) chain->options.max_retries = MAX_RETRIES;
    if (!chain->options.max_tokens) chain->options.max_tokens = chain->hp.n_ctx;
    if (chain->options.every_block) chain->options.push = false;
    int retries = chain->options.max_retries;
    chain->hasher = sn_hasher_new();
    if (!chain->hasher) status = sn_fail(err, SN_STOP, "out of memory");
    for (int i = 0; i < 2 && !status; i++)
        status = sn_calloc(&chain->rows[i], (size_t)SN_SPAN_ROWS_MAX * (size_t)chain->hp.n_embd, sizeof(float), err);
    if (!status) status = load_local(chain, model, err);
    if (!status) status = learn_hashes(chain, model, err);
    if (!status)
        status =
            connect_hops(chain, 0, chain->hp.n_blocks, grace_ms(chain, 0), &retries, chain->hops, &chain->n_hops, err);
    if (status) sn_chain_close(&chain);
    *out = chain;
    return status;
}

void sn_chain_close(sn_chain **chain) {
    sn_chain *c = *chain;
    if (!c) return;
    close_hops(c, c->hops, c->n_hops);
    sn_kv_pool_free(&c->pool);
    sn_span_free(&c->span);
    sn_hasher_free(c->hasher);
    for (int i = 0; i < 2; i++) free(c->rows[i]);
    free(c->block_hash);
    free(c->known_hash);
    free(c);
    *chain = NULL;
}

/* -- stepping --------------------------------------------------------------------------------------------------------
 */

static size_t group_end(const sn_hop_at *hops, size_t n_hops, size_t i) {
    size_t j = i + 1;
    while (j < n_hops && hops[j].pushed) j++;
    return j;
}

/* After a failure in the group that ends before hop j. failed == j: all of it lives, but the nodes do not reach each
 * other; from then on the client stands between them. */
static void blame(sn_chain *chain, const sn_hop_at *hops, size_t j, size_t failed) {
    if (failed == j) {
        chain->options.push = false;
        sn_log(SN_LOG_WARN, "nodes do not reach each other", "text=%s", "hidden states come by the client from now on");
    } else if (!hops[failed].local) {
        ban(chain, &hops[failed]);
    }
}

/* n rows (SN_SPAN_ROWS_MAX at most) through the group of hops [i, j), once: no second try. */
static sn_status step_group(sn_chain *chain, sn_hop_at *hops, size_t i, size_t j, int position, int n, const float *in,
                            float *out, size_t *failed, sn_err *err) {
    int n_embd = chain->hp.n_embd;
    *failed = 0;
    if (hops[i].local) return sn_hop_step_local(&hops[i], position, n, n_embd, in, out, err);
    for (int done = 0, rows; done < n; done += rows) { /* a node may take fewer rows at once */
        rows = n - done;
        for (size_t k = i; k < j; k++)
            if (rows > hops[k].step_tokens_max) rows = hops[k].step_tokens_max;
        size_t at = (size_t)done * (size_t)n_embd;
        sn_status status = sn_hop_record(&hops[i], position + done, rows, n_embd, in + at, chain->hasher, err);
        if (!status)
            status = sn_hops_step(&hops[i], j - i, chain->options.link, position + done, rows, n_embd, in + at,
                                  chain->options.timeout_ms, out + at, failed, err);
        if (status) return status;
    }
    return SN_OK;
}

/* Brings new hops to `length` tokens by what once went into their first block. */
static sn_status replay(sn_chain *chain, sn_hop_at *hops, size_t n_hops, const float *inputs, int length, sn_err *err) {
    size_t failed;
    float *rows[2] = {NULL, NULL}; /* the chain's own hold the step that is being repaired */
    size_t size = (size_t)SN_SPAN_ROWS_MAX * (size_t)chain->hp.n_embd;
    sn_status status = SN_OK;
    for (int k = 0; k < 2 && !status; k++) status = sn_calloc(&rows[k], size, sizeof(float), err);
    for (int at = 0, n; at < length && !status; at += n) {
        n = length - at < SN_SPAN_ROWS_MAX ? length - at : SN_SPAN_ROWS_MAX;
        const float *in = inputs + (size_t)at * (size_t)chain->hp.n_embd;
        for (size_t i = 0, j, turn = 0; i < n_hops && !status; i = j, turn ^= 1) {
            j = group_end(hops, n_hops, i);
            status = step_group(chain, hops, i, j, at, n, in, rows[turn], &failed, err);
            if (status) blame(chain, hops, j, i + failed);
            in = rows[turn];
        }
    }
    for (int k = 0; k < 2; k++) free(rows[k]);
    return status;
}

/* Puts other hops in the place of the group [i, j), brought to `position` tokens. */
static sn_status replace_group(sn_chain *chain, size_t i, size_t j, int position, int64_t until_us, int *retries,
                               sn_err *err) {
    sn_hop_at *fresh = NULL;
    size_t n_fresh = 0;
    sn_status status = sn_calloc(&fresh, SN_HOPS_MAX, sizeof *fresh, err);
    if (status) return status;
    for (;;) {
        status = connect_hops(chain, chain->hops[i].first, chain->hops[j - 1].end, grace_ms(chain, until_us), retries,
                              fresh, &n_fresh, err);
        if (status) goto out;
        if (chain->n_hops - (j - i) + n_fresh > SN_HOPS_MAX) {
            close_hops(chain, fresh, n_fresh);
            status =
                sn_fail(err, SN_RETRY, "the way over the nodes that are left takes more than %d hops", SN_HOPS_MAX);
            goto out;
        }
        status = replay(chain, fresh, n_fresh, chain->hops[i].inputs, position, err);
        if (!status) break;
        close_hops(chain, fresh, n_fresh);
        if (status == SN_STOP || (*retries)-- <= 0) goto out;
    }
    close_hops(chain, chain->hops + i, j - i);
    memmove(chain->hops + i + n_fresh, chain->hops + j, (chain->n_hops - j) * sizeof *chain->hops);
    memcpy(chain->hops + i, fresh, n_fresh * sizeof *fresh);
    chain->n_hops += n_fresh - (j - i);
    chain->failovers++;
    sn_log(SN_LOG_INFO, "blocks moved", "blocks=%d:%d tokens=%d hops=%zu", chain->hops[i].first,
           chain->hops[i + n_fresh - 1].end, position, n_fresh);
out:
    free(fresh);
    return status;
}

static bool group_knows(const sn_chain *chain, size_t i, size_t j, int position) {
    for (; i < j; i++)
        if (!sn_hop_knows(&chain->hops[i], position)) return false;
    return true;
}

/* n rows from hop *i on through its group, whatever it takes. *i becomes the hop behind what the rows went through:
 * after a replacement by several hops, only the first of them. */
static sn_status step_surely(sn_chain *chain, size_t *i, int position, int n, const float *in, float *out,
                             sn_err *err) {
    int retries = chain->options.max_retries;
    int64_t until_us = sn_now_us() + (int64_t)chain->options.timeout_ms * 1000;
    uint8_t rebuilt[SN_KEY_SIZE] = {0}; /* a node that has lost its session gets one chance to begin again */
    for (;;) {
        size_t j = group_end(chain->hops, chain->n_hops, *i), failed = 0;
        sn_status status = SN_REBUILD;
        bool known = group_knows(chain, *i, j, position);
        if (known) status = step_group(chain, chain->hops, *i, j, position, n, in, out, &failed, err);
        if (!status) {
            *i = j;
            return SN_OK;
        }
        if (chain->hops[*i].local || status == SN_STOP) return status;
        const sn_hop_at *hop = &chain->hops[*i + failed < j ? *i + failed : *i];
        int first = chain->hops[*i].first, end = chain->hops[j - 1].end;
        if (known) {
            sn_log(SN_LOG_WARN, "step failed", "node=%s position=%d text=%s", hop->report.node, position, err->text);
            if (status != SN_REBUILD || !memcmp(rebuilt, hop->node, SN_KEY_SIZE))
                blame(chain, chain->hops, j, *i + failed);
            memcpy(rebuilt, hop->node, SN_KEY_SIZE);
            sn_err_context(err, "%s", hop->report.node);
            if (retries-- <= 0) return sn_err_context(err, "blocks %d:%d failed too often, last", first, end);
        }
        sn_err cause = *err;
        status = replace_group(chain, *i, j, position, until_us, &retries, err);
        if (status) return known ? sn_err_context(err, "%.180s; and then", cause.text) : status;
    }
}

static void observe(const sn_chain *chain, int block, int position, int n, const float *rows) {
    if (chain->observer) chain->observer(chain->observer_ctx, block, position, n, rows);
}

sn_status sn_chain_step(sn_chain *chain, int position, int n, const float *hidden, float *out, sn_err *err) {
    size_t n_embd = (size_t)chain->hp.n_embd;
    if (position < 0 || position > chain->length || n < 1)
        return sn_fail(err, SN_REFUSED, "position %d is not in the timeline of %d tokens", position, chain->length);
    if (n > chain->options.max_tokens - position)
        return sn_fail(err, SN_REFUSED, "%d tokens at position %d are too many: the context holds %d", n, position,
                       chain->options.max_tokens);
    chain->length = position; /* what the hops hold behind it is written over, whether or not the step succeeds */
    for (int done = 0, rows; done < n; done += rows) {
        rows = n - done < SN_SPAN_ROWS_MAX ? n - done : SN_SPAN_ROWS_MAX;
        const float *in = hidden + (size_t)done * n_embd;
        for (size_t i = 0, turn = 0; i < chain->n_hops; turn ^= 1) {
            observe(chain, chain->hops[i].first, position + done, rows, in);
            sn_status status = step_surely(chain, &i, position + done, rows, in, chain->rows[turn], err);
            if (status) return status;
            in = chain->rows[turn];
        }
        observe(chain, chain->hp.n_blocks, position + done, rows, in);
        memcpy(out + (size_t)done * n_embd, in, (size_t)rows * n_embd * sizeof *out);
    }
    chain->length = position + n;
    return SN_OK;
}

int sn_chain_length(const sn_chain *chain) { return chain->length; }
uint64_t sn_chain_failovers(const sn_chain *chain) { return chain->failovers; }

void sn_chain_observe(sn_chain *chain, sn_chain_observer observer, void *ctx) {
    chain->observer = observer;
    chain->observer_ctx = ctx;
}

size_t sn_chain_hops(const sn_chain *chain, sn_hop_report *out, size_t room) {
    for (size_t i = 0; i < chain->n_hops && i < room; i++) out[i] = chain->hops[i].report;
    return chain->n_hops;
}
