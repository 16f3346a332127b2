/* Opening and closing a chain, what comes before a step (step.c) and after it, and the limits of a call. */
#include "client/chain/chain_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    TIMEOUT_MS = 30000,
    MAX_RETRIES = 16,
    REPLAY_MEMORY = 64 << 20,
    WORK_EVERY_US = 250000,
    DECODE_ROWS_MAX = 64 /* a step of at most so many rows is a token with its draft tokens, not a prompt */
};

/* -- opening and closing ----------------------------------------------------------------------------------------------
 */

sn_chain_options sn_chain_options_default(void) {
    return (sn_chain_options){.limits = {.timeout_ms = TIMEOUT_MS,
                                         .max_retries = MAX_RETRIES,
                                         .replay_memory = REPLAY_MEMORY,
                                         .prefill_depth = SN_PREFILL_DEPTH_MAX}};
}

sn_chain_options sn_chain_twin_options(const sn_chain *chain, int first, int end) {
    sn_chain_options options = sn_chain_options_default();
    options.first = first;
    options.end = end;
    options.kv.dtype = chain->options.kv.dtype;
    options.wire = (sn_chain_wire){.dtype = chain->options.wire.dtype, .round_at = chain->round_at};
    options.verification.hashes_from = chain;
    options.adapter = chain->options.adapter;
    options.adapter.n_prompt = 0;
    return options;
}

/* KV pages for one timeline over the local blocks, for each hop that may hold a part of them. */
static size_t chain_kv_bytes(const sn_chain *chain) {
    const sn_chain_local *local = &chain->options.local;
    const sn_chain_routing *routing = &chain->options.routing;
    size_t hops = 1;
    for (int b = local->first + 1; b < local->end; b++)
        hops += routing->every_block || (routing->cut_at && routing->cut_at[b]);
    return sn_span_kv_bytes(&chain->hp, local->device, local->first, local->end, chain->options.kv.dtype, hops,
                            (size_t)chain->max_tokens);
}

/* The local blocks must be those that the adapter was trained for. */
static sn_status chain_check_local(const sn_chain *chain, sn_err *err) {
    const sn_base_weights *base = chain->options.adapter.base;
    for (int b = chain->options.local.first; b < chain->options.local.end; b++) {
        const sn_hash *hash = sn_base_weights_block(base, b);
        if (hash && !sn_span_has_weights(chain->span, b, hash)) return sn_base_weights_block_differs(base, b, err);
    }
    return SN_OK;
}

static sn_status chain_load_local(sn_chain *chain, const sn_model *model, sn_err *err) {
    const sn_chain_local *local = &chain->options.local;
    const sn_chain_adapter *adapter = &chain->options.adapter;
    if (local->first == local->end) return SN_OK;
    size_t kv_memory = local->kv_memory ? local->kv_memory : chain_kv_bytes(chain);
    sn_status status = sn_span_load(model, local->device, local->first, local->end, NULL, NULL, &chain->span, err);
    if (!status) sn_span_set_kv_dtype(chain->span, chain->options.kv.dtype);
    if (!status) status = chain_check_local(chain, err);
    if (!status && adapter->bytes)
        status = sn_adapter_load(chain->span, adapter->image, adapter->bytes, &chain->adapter, err);
    return status ? status : sn_span_kv_pool(chain->span, kv_memory, &chain->pool, err);
}

static sn_status chain_check_options(const sn_chain *chain, sn_err *err) {
    static const sn_hash none;
    const sn_chain_options *o = &chain->options;
    const sn_base_weights *base = o->adapter.base;
    bool named_only = memcmp(&o->adapter.hash, &none, sizeof none) && !o->adapter.bytes;
    if (o->link && o->limits.timeout_ms < 1)
        return sn_fail(err, SN_REFUSED, "a chain over nodes needs a timeout: begin with sn_chain_options_default()");
    if (named_only && o->local.first < o->local.end)
        return sn_fail(err, SN_REFUSED,
                       "an adapter that only nodes hold cannot be used with local blocks: give the adapter's folder");
    if (base && base->n_blocks && base->n_blocks != chain->hp.n_blocks)
        return sn_fail(err, SN_REFUSED, "the adapter was trained for a model of %d blocks", base->n_blocks);
    if (o->max_tokens && o->adapter.n_prompt > chain->hp.n_ctx - o->max_tokens)
        return sn_fail(err, SN_REFUSED, "%d tokens and %d virtual ones are more than this model's context of %d",
                       o->max_tokens, o->adapter.n_prompt, chain->hp.n_ctx);
    return SN_OK;
}

static void chain_init_request_id(sn_chain *chain) {
    uint8_t drawn[8];
    sn_random(drawn, sizeof drawn);
    sn_hex(drawn, sizeof drawn, chain->request_id);
    if (chain->options.request_id)
        sn_log_sanitize(chain->options.request_id, chain->request_id, sizeof chain->request_id);
    chain->options.request_id = NULL; /* borrowed while opening */
}

/* Decides once at which boundaries hidden states are rounded: where the options say, or at both ends of each remote hop
 * of the first route. Called before and after the first route is opened. */
static sn_status chain_fix_rounding(sn_chain *chain, sn_err *err) {
    const sn_chain_wire *wire = &chain->options.wire;
    const bool *given = wire->round_at;
    size_t n = (size_t)chain->hp.n_blocks + 1;
    if (wire->dtype == SN_F32 || chain->round_at) return SN_OK;
    if (chain->hp.n_embd % (int)sn_dtype_block(wire->dtype))
        return sn_fail(err, SN_REFUSED,
                       "hidden states of %d numbers are not whole blocks of %s: choose another --wire-dtype",
                       chain->hp.n_embd, sn_dtype_name(wire->dtype));
    if (!given && !chain->n_hops) return SN_OK;
    sn_status status = sn_calloc(&chain->round_at, n, sizeof *chain->round_at, err);
    if (status) return status;
    if (given) memcpy(chain->round_at, given, n * sizeof *given);
    chain->options.wire.round_at = NULL; /* borrowed while opening */
    for (size_t i = 0; i < chain->n_hops; i++)
        if (!chain->hops[i].is_local)
            chain->round_at[chain->hops[i].first] = chain->round_at[chain->hops[i].end] = true;
    for (size_t i = 0; i < chain->n_hops; i++) {
        chain->hops[i].input_dtype = sn_chain_wire_at(chain, chain->hops[i].first);
        chain->hops[i].output_dtype = sn_chain_wire_at(chain, chain->hops[i].end);
    }
    return SN_OK;
}

static sn_status chain_new(const sn_model *model, const sn_chain_options *options, sn_chain **out, sn_err *err) {
    sn_chain *chain = NULL;
    sn_status status = sn_calloc(&chain, 1, sizeof *chain, err);
    if (status) return status;
    *out = chain;
    chain->options = *options;
    chain->hp = *sn_model_hparams(model);
    chain->model = sn_model_id(model);
    if (options->first == options->end) chain->options.end = chain->hp.n_blocks;
    chain->chunk_rows_max = SN_CHAIN_ROWS_MAX;
    chain->push = options->routing.push && !options->routing.every_block && !options->routing.cut_at;
    if (options->verification.verifier.note_step) chain->options.verification.receipts = true;
    chain_init_request_id(chain);
    chain->hasher = sn_hasher_new();
    if (!chain->hasher) return sn_fail(err, SN_STOP, "out of memory");
    status = sn_calloc(&chain->computed_by, (size_t)chain->hp.n_blocks, sizeof *chain->computed_by, err);
    return status ? status : sn_peer_stats_new(&chain->peer_stats, err);
}

/* The parts that the user names begin and end where the model can be cut. */
static sn_status chain_check_cuts(const sn_chain *chain, sn_err *err) {
    const sn_chain_options *o = &chain->options;
    if (!sn_chain_bound_blocks(chain)) return SN_OK;
    SN_TRY(sn_check_cuts(&chain->hp, o->first, o->end, err));
    return o->local.first < o->local.end ? sn_check_cuts(&chain->hp, o->local.first, o->local.end, err) : SN_OK;
}

sn_status sn_chain_open(const sn_model *model, const sn_chain_options *options, sn_chain **out, sn_err *err) {
    sn_chain *chain = NULL;
    *out = NULL;
    sn_status status = chain_new(model, options, &chain, err);
    if (!status) status = chain_check_options(chain, err);
    if (!status)
        chain->max_tokens = options->max_tokens ? options->max_tokens + options->adapter.n_prompt : chain->hp.n_ctx;
    if (!status) status = chain_check_cuts(chain, err);
    if (!status) status = chain_fix_rounding(chain, err);
    if (!status && options->link && options->routing.node_filter.n_only)
        sn_link_look_for(options->link, options->routing.node_filter.only, options->routing.node_filter.n_only);
    if (!status && !options->plan_only) status = chain_load_local(chain, model, err);
    if (!status) status = sn_chain_learn_hashes(chain, model, err);
    if (!status) sn_chain_begin_call(chain); /* loading and hashing are work of this machine */
    /* Of a link that knows nodes already the first plan asks no node. */
    if (!status && !options->plan_only && options->link && options->routing.measure)
        status = sn_chain_measure_rtt(chain, false, err);
    if (!status && !options->plan_only)
        status = sn_chain_connect(chain, chain->options.first, chain->options.end, SN_CHAIN_WAIT_JOINED, chain->hops,
                                  &chain->n_hops, err);
    if (!status) status = chain_fix_rounding(chain, err);
    if (status) sn_chain_close(&chain);
    *out = chain;
    return status;
}

void sn_chain_close(sn_chain **chain) {
    sn_chain *c = *chain;
    if (!c) return;
    sn_chain_close_hops(c, c->hops, c->n_hops);
    sn_kv_pool_free(&c->pool);
    sn_adapter_free(&c->adapter);
    sn_span_free(&c->span);
    sn_hasher_free(c->hasher);
    sn_peer_stats_free(&c->peer_stats);
    free(c->weights);
    free(c->computed_by);
    free(c->round_at);
    free(c->known);
    free(c);
    *chain = NULL;
}

/* Positions of the chain count from the first virtual token, those of the caller's source from the token behind them.
 */
static sn_status chain_source_rows(void *ctx, int position, int n, float *out, sn_err *err) {
    const sn_chain *chain = ctx;
    const sn_chain_adapter *adapter = &chain->options.adapter;
    const size_t width = (size_t)chain->hp.n_embd;
    int before = adapter->n_prompt - position;
    if (before < 0) before = 0;
    if (before > n) before = n;
    if (before) memcpy(out, adapter->prompt + (size_t)position * width, (size_t)before * width * sizeof *out);
    if (before == n) return SN_OK;
    return chain->tokens.rows(chain->tokens.ctx, position + before - adapter->n_prompt, n - before,
                              out + (size_t)before * width, err);
}

void sn_chain_set_source(sn_chain *chain, const sn_row_source *source) {
    chain->tokens = source ? *source : (sn_row_source){0};
    chain->source = (sn_row_source){source ? chain_source_rows : NULL, chain};
    for (size_t i = 0; i < chain->n_hops; i++)
        if (!chain->hops[i].is_local) sn_chain_limit_inputs(chain, &chain->hops[i]);
}

/* -- the limits of a call ---------------------------------------------------------------------------------------------
 */

void sn_chain_begin_call(sn_chain *chain) {
    chain->call = (sn_chain_call){sn_now_us() + (int64_t)chain->options.limits.timeout_ms * 1000,
                                  chain->options.limits.max_retries, false};
}

sn_chain_call sn_chain_begin_part(sn_chain *chain, int share, int retries) {
    sn_chain_call whole = chain->call;
    int64_t now_us = sn_now_us();
    chain->call = (sn_chain_call){now_us + (whole.deadline_us - now_us) / share, retries, true};
    return whole;
}

int64_t sn_chain_attempt_until_us(const sn_chain *chain) {
    int64_t now_us = sn_now_us(), left_us = chain->call.deadline_us - now_us;
    return chain->call.retries > 0 && left_us > 0 ? now_us + left_us / 4 * 3 : chain->call.deadline_us;
}

/* Milliseconds from now on, within 1 and `most`. */
static int ms_until(int64_t until_us, int most) {
    int64_t ms = (until_us - sn_now_us()) / 1000;
    return ms < 1 ? 1 : ms < most ? (int)ms : most;
}

int sn_chain_attempt_ms(const sn_chain *chain, int most) { return ms_until(sn_chain_attempt_until_us(chain), most); }
int sn_chain_left_ms(const sn_chain *chain, int most) { return ms_until(chain->call.deadline_us, most); }
bool sn_chain_is_late(const sn_chain *chain) { return sn_now_us() >= chain->call.deadline_us; }

bool sn_chain_is_put_off(sn_chain *chain, int64_t until_us, sn_status *status, sn_err *err) {
    int64_t wait_us = *status == SN_RETRY ? (int64_t)err->retry_after_ms * 1000 : 0;
    if (!wait_us || sn_now_us() + wait_us > until_us) return false;
    *status = sn_link_pause(chain->options.link, wait_us, err);
    return !*status;
}

/* -- steps ------------------------------------------------------------------------------------------------------------
 */

/* What comes before a step of n rows: the work between steps, and room for it. */
static sn_status chain_begin_step(sn_chain *chain, int position, int n, sn_err *err) {
    const int tokens = position + n;
    sn_status status = SN_OK;
    sn_chain_begin_call(chain);
    if (chain->unsettled) status = sn_chain_settle(chain, position, err);
    if (status) return status;
    sn_chain_poll_hops(chain);
    chain->worked_us = sn_now_us();
    chain->audit_failed = false;
    if (n <= DECODE_ROWS_MAX && position == chain->length) status = sn_chain_maybe_reroute(chain, err);
    chain->length = position; /* the step overwrites what the hops hold after it, even when it fails */
    sn_chain_rewind_verifier(chain, position);
    return status ? status
                  : sn_chain_make_room(chain, position, tokens > chain->expected ? tokens : chain->expected, err);
}

static sn_status chain_end_step(sn_chain *chain, sn_status status, sn_err *err) {
    chain->unsettled = status == SN_STOP;
    if (status == SN_REBUILD) status = err->status = SN_RETRY; /* a node's word; to callers it is an audit's only */
    return status ? status : sn_chain_run_audit(chain, false, err);
}

/* A step of any length. Its positions count from the first virtual token. */
static sn_status chain_run(sn_chain *chain, const sn_step *step, sn_err *err) {
    sn_status status = chain_begin_step(chain, step->position, step->n, err);
    if (!status) status = sn_chain_run(chain, chain->hops, chain->n_hops, NULL, step, err);
    if (!status) chain->length = step->position + step->n;
    return chain_end_step(chain, status, err);
}

/* Runs the virtual tokens that are not in the timeline yet. */
static sn_status chain_run_virtual_tokens(sn_chain *chain, sn_err *err) {
    const sn_chain_adapter *adapter = &chain->options.adapter;
    int n = adapter->n_prompt - chain->length;
    size_t width = (size_t)chain->hp.n_embd;
    float *unused = NULL; /* hidden states of virtual tokens are not needed */
    if (n <= 0) return SN_OK;
    sn_status status = sn_calloc(&unused, (size_t)n * width, sizeof *unused, err);
    sn_step step = {chain->length, n, chain->hp.n_embd, adapter->prompt + (size_t)chain->length * width, unused};
    if (!status) status = chain_run(chain, &step, err);
    free(unused);
    return status;
}

sn_status sn_chain_step(sn_chain *chain, int position, int n, const float *hidden, float *out, sn_err *err) {
    int n_virtual = chain->options.adapter.n_prompt, tokens_max = chain->max_tokens - n_virtual;
    if (position < 0 || position > sn_chain_length(chain) || n < 1)
        return sn_fail(err, SN_REFUSED, "position %d is not in the timeline of %d tokens", position,
                       sn_chain_length(chain));
    if (n > tokens_max - position)
        return sn_fail(err, SN_REFUSED, "%d tokens at position %d are too many: the context holds %d", n, position,
                       tokens_max);
    sn_status status = chain_run_virtual_tokens(chain, err);
    sn_step step = {n_virtual + position, n, chain->hp.n_embd, hidden, out};
    return status ? status : chain_run(chain, &step, err);
}

/* The position up to which every hop has room. */
static int chain_room(const sn_chain *chain) {
    int most = chain->max_tokens;
    for (size_t i = 0; i < chain->n_hops; i++) {
        const int tokens = chain->hops[i].is_local ? (int)sn_min_size(sn_kv_pool_tokens(chain->pool), INT_MAX)
                                                   : chain->hops[i].remote.tokens_max;
        if (tokens && tokens < most) most = tokens;
    }
    return most;
}

sn_status sn_chain_step_ahead(sn_chain *chain, int position, const sn_guesses *guesses, sn_err *err) {
    const int n_virtual = chain->options.adapter.n_prompt, at = n_virtual + position;
    if (position < 0 || position > sn_chain_length(chain) || at >= chain->max_tokens)
        return sn_fail(err, SN_REFUSED, "position %d is not in the timeline of %d tokens, or beyond the context of %d",
                       position, sn_chain_length(chain), chain->max_tokens - n_virtual);
    sn_status status = chain_run_virtual_tokens(chain, err);
    if (!status) status = chain_begin_step(chain, at, 1, err);
    if (!status) status = sn_chain_run_ahead(chain, at, chain_room(chain), guesses, err);
    return chain_end_step(chain, status, err);
}

bool sn_chain_has_work(const sn_chain *chain) {
    const sn_verifier *verifier = &chain->options.verification.verifier;
    const int64_t now_us = sn_now_us();
    if (verifier->is_due && verifier->is_due(verifier->ctx)) return true;
    if (chain->options.routing.reroute_every_ms && now_us >= chain->reroute_us) return true;
    for (size_t i = 0; i < chain->n_hops; i++) {
        const sn_hop *hop = &chain->hops[i];
        const sn_hop_remote *r = &hop->remote;
        if (hop->is_local) continue;
        if (!r->draining && sn_link_is_draining(chain->options.link, r->peer, r->session)) return true;
        if ((r->draining || (chain->options.kv.replica && !hop->report.replicated)) &&
            now_us - chain->worked_us > WORK_EVERY_US)
            return true;
    }
    return false;
}

/* -- what it is and has done ------------------------------------------------------------------------------------------
 */

int sn_chain_length(const sn_chain *chain) {
    int n = chain->length - chain->options.adapter.n_prompt;
    return n > 0 ? n : 0;
}

void sn_chain_rewind(sn_chain *chain, int position) {
    position += chain->options.adapter.n_prompt;
    if (position < chain->length) chain->length = position; /* the hops learn of it from the next step */
}

const sn_chain_adapter *sn_chain_get_adapter(const sn_chain *chain) { return &chain->options.adapter; }
bool sn_chain_is_long(const sn_chain *chain) { return sn_is_long(&chain->hp, chain->max_tokens); }
const sn_hash *sn_chain_weights(const sn_chain *chain) { return chain->computed_by; }
sn_kv_dtype sn_chain_kv_dtype(const sn_chain *chain) { return chain->options.kv.dtype; }
const char *sn_chain_request_id(const sn_chain *chain) { return chain->request_id; }
uint64_t sn_chain_failovers(const sn_chain *chain) { return chain->failovers; }
uint64_t sn_chain_replicas_promoted(const sn_chain *chain) { return chain->replicas_promoted; }
uint64_t sn_chain_replayed(const sn_chain *chain) { return chain->replayed; }
uint64_t sn_chain_reroutes(const sn_chain *chain) { return chain->reroutes; }
uint64_t sn_chain_drains(const sn_chain *chain) { return chain->drains; }

void sn_chain_watch(sn_chain *chain, void (*watcher)(void *ctx, int rows), void *ctx) {
    chain->watcher = watcher;
    chain->watcher_ctx = ctx;
}

void sn_chain_observe(sn_chain *chain, sn_chain_observer observer, void *ctx) {
    chain->observer = observer;
    chain->observer_ctx = ctx;
}

size_t sn_chain_hops(const sn_chain *chain, sn_hop_report *out, size_t capacity) {
    for (size_t i = 0; i < chain->n_hops && i < capacity; i++) out[i] = chain->hops[i].report;
    return chain->n_hops;
}

const sn_hop *sn_chain_route_hops(const sn_chain *chain, size_t *n) {
    *n = chain->n_hops;
    return chain->hops;
}
