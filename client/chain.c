/* A chain opened, stepped from hop to hop, closed. */
#include "client/audit.h"
#include "client/chain_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { TIMEOUT_MS = 30000, MAX_RETRIES = 3, FEW_ROWS = 64 /* a token, and as many as a draft may guess behind it */ };

/* Pages for one timeline over the local blocks, for each hop that may lie on them. */
static size_t kv_needed(const sn_chain *chain) {
    const sn_chain_options *o = &chain->options;
    sn_kv_shape shape = {o->local_end - o->local_first, chain->hp.n_kv_heads, chain->hp.head_dim, SN_KV_PAGE_TOKENS,
                         o->kv_dtype};
    size_t hops = 1, pages = (size_t)o->max_tokens / SN_KV_PAGE_TOKENS + 1;
    for (int b = o->local_first + 1; b < o->local_end; b++) hops += o->every_block || (o->cut_at && o->cut_at[b]);
    return hops * pages * o->device->ops->kv_page_bytes(o->device, &shape);
}

static sn_status load_local(sn_chain *chain, const sn_model *model, sn_err *err) {
    sn_chain_options *o = &chain->options;
    if (o->local_first == o->local_end) return SN_OK;
    if (!o->kv_memory) o->kv_memory = kv_needed(chain);
    sn_status status = sn_span_load(model, o->device, o->local_first, o->local_end, NULL, NULL, &chain->span, err);
    if (!status) sn_span_keep_as(chain->span, o->kv_dtype);
    if (!status && o->tuned.bytes) status = sn_tuning_load(chain->span, o->tuned.image, o->tuned.bytes, &chain->tuning, err);
    return status ? status : sn_span_kv_pool(chain->span, o->kv_memory, &chain->pool, err);
}

/* Virtual tokens take room that the caller does not know of. */
static sn_status make_room_for_prompt(sn_chain *chain, sn_err *err) {
    static const sn_hash none;
    sn_chain_options *o = &chain->options;
    bool named = memcmp(&o->tuned.hash, &none, sizeof none) && !o->tuned.bytes;
    if (named && o->local_first < o->local_end)
        return sn_fail(err, SN_REFUSED, "an adapter that nodes hold is not here: blocks of this machine need its folder");
    if (o->max_tokens && o->tuned.n_prompt > chain->hp.n_ctx - o->max_tokens)
        return sn_fail(err, SN_REFUSED, "%d tokens and %d virtual ones are more than this model's context of %d", o->max_tokens,
                       o->tuned.n_prompt, chain->hp.n_ctx);
    if (o->max_tokens) o->max_tokens += o->tuned.n_prompt;
    return SN_OK;
}

static void begin_flow(sn_chain *chain) {
    uint8_t drawn[8];
    sn_random(drawn, sizeof drawn);
    sn_hex(drawn, sizeof drawn, chain->flow);
    if (chain->options.flow) sn_log_word(chain->options.flow, chain->flow, sizeof chain->flow);
    chain->options.flow = NULL; /* ours from now on */
}

/* Where hidden states are rounded: where that is said, or at each end of what a node computes on the first way. */
static sn_status fix_rounds(sn_chain *chain, sn_err *err) {
    const bool *given = chain->options.round_at;
    size_t n = (size_t)chain->hp.n_blocks + 1;
    if (chain->options.wire == SN_F32 || chain->rounds) return SN_OK;
    if (chain->hp.n_embd % (int)sn_dtype_block(chain->options.wire))
        return sn_fail(err, SN_REFUSED, "hidden states of %d numbers are no whole blocks of %s: choose another type for the wire",
                       chain->hp.n_embd, sn_dtype_name(chain->options.wire));
    if (!given && !chain->n_hops) return SN_OK;
    sn_status status = sn_calloc(&chain->rounds, n, sizeof *chain->rounds, err);
    if (status) return status;
    if (given) memcpy(chain->rounds, given, n * sizeof *given);
    chain->options.round_at = NULL; /* it may be gone sooner */
    for (size_t i = 0; i < chain->n_hops; i++)
        if (!chain->hops[i].local) chain->rounds[chain->hops[i].first] = chain->rounds[chain->hops[i].end] = true;
    for (size_t i = 0; i < chain->n_hops; i++) {
        chain->hops[i].takes = sn_chain_wire_at(chain, chain->hops[i].first);
        chain->hops[i].gives = sn_chain_wire_at(chain, chain->hops[i].end);
    }
    return SN_OK;
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
    status = make_room_for_prompt(chain, err);
    if (!chain->options.max_tokens) chain->options.max_tokens = chain->hp.n_ctx;
    begin_flow(chain);
    if (chain->options.first == chain->options.end) chain->options.end = chain->hp.n_blocks;
    if (chain->options.every_block || chain->options.cut_at) chain->options.push = false;
    if (chain->options.audit) {
        chain->options.receipts = true;
        chain->options.avoid = sn_audit_caught;
        chain->options.avoid_ctx = chain->options.audit;
    }
    int retries = chain->options.max_retries;
    chain->hasher = sn_hasher_new();
    if (!status && !chain->hasher) status = sn_fail(err, SN_STOP, "out of memory");
    for (int i = 0; i < 2 && !status; i++)
        status = sn_calloc(&chain->rows[i], (size_t)SN_SPAN_ROWS_MAX * (size_t)chain->hp.n_embd, sizeof(float), err);
    if (!status) status = sn_calloc(&chain->weights, (size_t)chain->hp.n_blocks, sizeof *chain->weights, err);
    if (!status) status = sn_seen_new(&chain->seen, err);
    if (!status) status = fix_rounds(chain, err);
    if (!status && !options->plan_only) status = load_local(chain, model, err);
    if (!status) status = sn_chain_learn_hashes(chain, model, err);
    chain->options.like = NULL; /* it may be gone sooner */
    if (!status && !options->plan_only)
        status = sn_chain_connect(chain, chain->options.first, chain->options.end, sn_chain_grace_ms(chain, 0), &retries,
                                  chain->hops, &chain->n_hops, err);
    if (!status) status = fix_rounds(chain, err);
    if (status) sn_chain_close(&chain);
    *out = chain;
    return status;
}

void sn_chain_close(sn_chain **chain) {
    sn_chain *c = *chain;
    if (!c) return;
    sn_chain_close_hops(c, c->hops, c->n_hops);
    sn_kv_pool_free(&c->pool);
    sn_tuning_free(&c->tuning);
    sn_span_free(&c->span);
    sn_hasher_free(c->hasher);
    sn_seen_free(&c->seen);
    for (int i = 0; i < 2; i++) free(c->rows[i]);
    free(c->block_hash);
    free(c->weights);
    free(c->rounds);
    free(c->known_hash);
    free(c);
    *chain = NULL;
}

/* -- stepping --------------------------------------------------------------------------------------------------------
 */

size_t sn_chain_group_end(const sn_hop_at *hops, size_t n_hops, size_t i) {
    size_t j = i + 1;
    while (j < n_hops && hops[j].pushed) j++;
    return j;
}

/* After a failure in the group that ends before hop j. failed == j: all of it lives, but the nodes do not reach each
 * other; from then on the client stands between them. */
void sn_chain_blame(sn_chain *chain, const sn_hop_at *hops, size_t j, size_t failed) {
    if (failed == j) {
        chain->options.push = false;
        sn_log(SN_LOG_WARN, "nodes do not reach each other", "flow=%s text=%s", chain->flow, "hidden states come by the client from now on");
    } else if (!hops[failed].local) {
        sn_chain_ban(chain, &hops[failed]);
    }
}

/* n rows (SN_SPAN_ROWS_MAX at most) through the group of hops [i, j), once: no second try, but where a node says when. */
sn_status sn_chain_step_group(sn_chain *chain, sn_hop_at *hops, size_t i, size_t j, int position, int n,
                              const float *in, float *out, size_t *failed, sn_err *err) {
    int n_embd = chain->hp.n_embd;
    int64_t until_us = sn_now_us() + (int64_t)chain->options.timeout_ms * 1000;
    *failed = 0;
    if (hops[i].local) return sn_hop_step_local(&hops[i], position, n, n_embd, in, out, err);
    for (int done = 0, rows; done < n; done += rows) { /* a node may take fewer rows at once */
        rows = n - done;
        for (size_t k = i; k < j; k++)
            if (rows > hops[k].step_tokens_max) rows = hops[k].step_tokens_max;
        size_t at = (size_t)done * (size_t)n_embd;
        sn_status status = sn_hop_record(&hops[i], position + done, rows, n_embd, in + at, chain->hasher, err);
        while (!status) {
            status = sn_hops_step(&hops[i], j - i, chain->options.link, position + done, rows, n_embd, in + at,
                                  chain->options.timeout_ms, out + at, failed, err);
            if (status != SN_RETRY || !err->wait_ms || sn_now_us() + (int64_t)err->wait_ms * 1000 > until_us) break;
            sn_sleep_us((int64_t)err->wait_ms * 1000); /* a node asks for it: its owner's --client-steps */
            status = SN_OK;
        }
        if (!status && chain->options.audit)
            status = sn_audit_note(chain->options.audit, hops + i, j - i, position + done, rows, n_embd,
                                   hops[i].inputs + (size_t)(position + done) * (size_t)n_embd, out + at, err);
        if (status) return status;
        sn_chain_note_step(chain, hops, i, j, rows);
    }
    return SN_OK;
}

static bool group_knows(const sn_chain *chain, size_t i, size_t j, int position) {
    for (; i < j; i++)
        if (!sn_hop_knows(&chain->hops[i], position)) return false;
    return true;
}

int sn_chain_known_from(const sn_chain *chain, size_t i, size_t j, int position) {
    int from = position;
    while (from > 0 && !group_knows(chain, i, j, from)) from--;
    return from == position || sn_hop_can_replay(&chain->hops[i], from) ? from : -1;
}

/* The same as sn_chain_step_group, from `from` <= position on: what went in since then goes in again, in the same step. */
static sn_status step_group_from(sn_chain *chain, size_t i, size_t j, int from, int position, int n, const float *in, float *out,
                                 size_t *failed, sn_err *err) {
    size_t row = (size_t)chain->hp.n_embd, before = (size_t)(position - from) * row, all = before + (size_t)n * row;
    float *rows = NULL;
    if (!before) return sn_chain_step_group(chain, chain->hops, i, j, position, n, in, out, failed, err);
    *failed = j - i; /* nobody */
    sn_status status = sn_calloc(&rows, 2 * all, sizeof *rows, err);
    if (status) return status;
    memcpy(rows, chain->hops[i].inputs + (size_t)from * row, before * sizeof *rows);
    memcpy(rows + before, in, (all - before) * sizeof *rows);
    status = sn_chain_step_group(chain, chain->hops, i, j, from, position - from + n, rows, rows + all, failed, err);
    if (!status) memcpy(out, rows + all + before, (all - before) * sizeof *rows);
    free(rows);
    return status;
}

/* n rows from hop *i on through its group, whatever it takes. *i becomes the hop behind what the rows went through:
 * after a replacement by several hops, only the first of them. */
static sn_status step_surely(sn_chain *chain, size_t *i, int position, int n, const float *in, float *out,
                             sn_err *err) {
    int retries = chain->options.max_retries;
    int64_t until_us = sn_now_us() + (int64_t)chain->options.timeout_ms * 1000;
    uint8_t rebuilt[SN_KEY_SIZE] = {0}; /* a node that has lost its session gets one chance to begin again */
    for (;;) {
        size_t j = sn_chain_group_end(chain->hops, chain->n_hops, *i), failed = 0;
        sn_status status = SN_REBUILD;
        int from = sn_chain_known_from(chain, *i, j, position);
        bool known = from >= 0;
        if (known) status = step_group_from(chain, *i, j, from, position, n, in, out, &failed, err);
        if (!status) {
            *i = j;
            return SN_OK;
        }
        if (chain->hops[*i].local || status == SN_STOP) return status;
        const sn_hop_at *hop = &chain->hops[*i + failed < j ? *i + failed : *i];
        int first = chain->hops[*i].first, end = chain->hops[j - 1].end;
        if (known) {
            sn_log(SN_LOG_WARN, "step failed", "flow=%s node=%s position=%d text=%s", chain->flow, hop->report.node,
                   position, err->text);
            if (status != SN_REBUILD || !memcmp(rebuilt, hop->node, SN_KEY_SIZE))
                sn_chain_blame(chain, chain->hops, j, *i + failed);
            memcpy(rebuilt, hop->node, SN_KEY_SIZE);
            sn_err_context(err, "%s", hop->report.node);
            if (retries-- <= 0) return sn_err_context(err, "blocks %d:%d failed too often, last", first, end);
        }
        sn_err cause = *err, why;
        if (known && *i + failed < j && !sn_chain_take_spare(chain, *i, j, *i + failed, from, &why)) continue;
        status = sn_chain_replace_group(chain, i, j, position, until_us, &retries, err);
        if (status) return known ? sn_err_context(err, "%.180s; and then", cause.text) : status;
    }
}

static void observe(const sn_chain *chain, int block, int position, int n, const float *rows) {
    if (chain->observer) chain->observer(chain->observer_ctx, block, position, n, rows);
}

/* Rows (SN_SPAN_ROWS_MAX at most) through all hops, whatever it takes. */
static sn_status step_through(sn_chain *chain, int position, int n, const float *in, float *out, sn_err *err) {
    for (size_t i = 0, turn = 0; i < chain->n_hops; turn ^= 1) {
        observe(chain, chain->hops[i].first, position, n, in);
        sn_status status = step_surely(chain, &i, position, n, in, chain->rows[turn], err);
        if (status) return status;
        in = chain->rows[turn];
    }
    observe(chain, chain->options.end, position, n, in);
    memcpy(out, in, (size_t)n * (size_t)chain->hp.n_embd * sizeof *out);
    return SN_OK;
}

/* Here positions count from the first virtual token. */
static sn_status run(sn_chain *chain, int position, int n, const float *hidden, float *out, sn_err *err) {
    size_t n_embd = (size_t)chain->hp.n_embd;
    sn_chain_attend(chain);
    chain->misled = false;
    if (n <= FEW_ROWS && position == chain->length) {
        sn_status status = sn_chain_reconsider(chain, err);
        if (status) return status;
    }
    chain->length = position; /* what the hops hold behind it is written over, whether or not the step succeeds */
    for (int done = 0, rows = 0, piece = sn_chain_piece_rows(chain, n); done < n; done += rows) {
        const float *in = hidden + (size_t)done * n_embd;
        sn_status status = SN_RETRY;
        rows = 0; /* of this turn */
        if (piece && group_knows(chain, 0, chain->n_hops, position + done)) {
            status = sn_chain_step_ahead(chain, position + done, n - done, piece, in, out + (size_t)done * n_embd, &rows, err);
            if (status) sn_log(SN_LOG_INFO, "steps one by one", "flow=%s text=%s", chain->flow, err->text);
        }
        if (status == SN_STOP) return status;
        if (!status || rows) continue;
        rows = n - done < SN_SPAN_ROWS_MAX ? n - done : SN_SPAN_ROWS_MAX;
        if (piece && piece < rows) rows = piece; /* a node may be at work on just this one */
        status = step_through(chain, position + done, rows, in, out + (size_t)done * n_embd, err);
        if (status) return status;
    }
    chain->length = position + n;
    return sn_chain_look_back(chain, false, err);
}

/* What stands before every timeline, as far as it is not there yet. */
static sn_status run_prompt(sn_chain *chain, sn_err *err) {
    const sn_chain_tuned *tuned = &chain->options.tuned;
    int n = tuned->n_prompt - chain->length;
    size_t width = (size_t)chain->hp.n_embd;
    float *out = NULL; /* nobody looks at it */
    if (n <= 0) return SN_OK;
    sn_status status = sn_calloc(&out, (size_t)n * width, sizeof *out, err);
    if (!status) status = run(chain, chain->length, n, tuned->prompt + (size_t)chain->length * width, out, err);
    free(out);
    return status;
}

sn_status sn_chain_step(sn_chain *chain, int position, int n, const float *hidden, float *out, sn_err *err) {
    int before = chain->options.tuned.n_prompt, most = chain->options.max_tokens - before;
    if (position < 0 || position > sn_chain_length(chain) || n < 1)
        return sn_fail(err, SN_REFUSED, "position %d is not in the timeline of %d tokens", position, sn_chain_length(chain));
    if (n > most - position)
        return sn_fail(err, SN_REFUSED, "%d tokens at position %d are too many: the context holds %d", n, position, most);
    sn_status status = run_prompt(chain, err);
    return status ? status : run(chain, before + position, n, hidden, out, err);
}

int sn_chain_length(const sn_chain *chain) {
    int n = chain->length - chain->options.tuned.n_prompt;
    return n > 0 ? n : 0;
}
const sn_chain_tuned *sn_chain_tuned_by(const sn_chain *chain) { return &chain->options.tuned; }
void sn_chain_rewind(sn_chain *chain, int position) {
    position += chain->options.tuned.n_prompt;
    if (position < chain->length) chain->length = position; /* the hops learn of it with the next step */
}
const sn_hash *sn_chain_weights(const sn_chain *chain) { return chain->weights; }
uint64_t sn_chain_failovers(const sn_chain *chain) { return chain->failovers; }
uint64_t sn_chain_moves(const sn_chain *chain) { return chain->moves; }
const char *sn_chain_flow(const sn_chain *chain) { return chain->flow; }

void sn_chain_observe(sn_chain *chain, sn_chain_observer observer, void *ctx) {
    chain->observer = observer;
    chain->observer_ctx = ctx;
}

size_t sn_chain_hops(const sn_chain *chain, sn_hop_report *out, size_t room) {
    for (size_t i = 0; i < chain->n_hops && i < room; i++) out[i] = chain->hops[i].report;
    return chain->n_hops;
}
