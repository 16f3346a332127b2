/* Judging evidence: the reference chain computes the timeline again, an observer hashes each statement's true rows as
 * they pass, and every statement is then compared with the hashes. */
#include "client/audit/evidence.h"

#include "base/mem.h"
#include "base/wire.h"
#include "net/timeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const float TOLERANCE = 0.03f; /* of a row's largest value; see sn_rows_close */

/* What the observer finds out about one statement. */
typedef struct statement_check {
    const sn_statement *statement;
    sn_hash at, before, after; /* timeline hash: so far; at the statement's position; after its tokens */
    sn_hasher *input, *output; /* of the true rows of its tokens, in the types that it names */
    sn_err err;                /* why there is no such hash */
    float *rows;               /* (n, n_embd): the true output, where the evidence has the node's */
} statement_check;

typedef struct judging {
    const sn_evidence *evidence;
    statement_check *checks;
    sn_hasher *hasher;
    sn_dtype kv;    /* in which the reference keeps keys and values */
    sn_dtype wire;  /* of the hidden states ... */
    bool *round_at; /* ... and the boundaries at which they were rounded to it (end + 1) */
} judging;

bool sn_rows_close(const float *a, const float *b, int n, int n_embd) {
    for (int i = 0; i < n; i++, a += n_embd, b += n_embd) {
        float largest = 0, worst = 0;
        for (int k = 0; k < n_embd; k++) {
            largest = fmaxf(largest, fabsf(b[k]));
            worst = fmaxf(worst, fabsf(a[k] - b[k]));
            if (!isfinite(a[k])) return false;
        }
        if (worst > TOLERANCE * largest) return false;
    }
    return true;
}

void sn_evidence_cuts(const sn_evidence *e, bool *cut_at, int n_blocks) {
    memset(cut_at, 0, (size_t)n_blocks * sizeof *cut_at);
    for (size_t i = 0; i < e->n; i++) {
        cut_at[e->statements[i].receipt.first_block] = true;
        if (e->statements[i].receipt.end_block < (uint32_t)n_blocks) cut_at[e->statements[i].receipt.end_block] = true;
    }
}

sn_dtype sn_evidence_wire(const sn_evidence *e, bool *round_at, int n_blocks) {
    sn_dtype wire = SN_F32;
    memset(round_at, 0, ((size_t)n_blocks + 1) * sizeof *round_at);
    for (size_t i = 0; i < e->n; i++) {
        const sn_receipt *r = &e->statements[i].receipt;
        const uint32_t at[] = {r->first_block, r->end_block};
        const uint8_t as[] = {r->input_dtype, r->output_dtype};
        for (int k = 0; k < 2; k++) {
            if (wire == SN_F32 && sn_is_wire_dtype(as[k])) wire = (sn_dtype)as[k];
            if (wire != SN_F32 && as[k] == (uint8_t)wire && at[k] <= (uint32_t)n_blocks) round_at[at[k]] = true;
        }
    }
    return wire;
}

/* Adds those of n rows at `position` that the statement is about to its hash, and to its rows if it has any. */
static void check_add_rows(statement_check *t, bool is_output, int position, int n, const float *rows) {
    const sn_receipt *r = &t->statement->receipt;
    size_t width = r->n_embd;
    for (int i = 0; i < n; i++, rows += width) {
        int64_t at = (int64_t)position + i - (int64_t)r->position;
        if (at < 0 || at >= (int64_t)r->n || t->err.text[0]) continue;
        if (is_output && t->rows) memcpy(t->rows + (size_t)at * width, rows, width * sizeof *rows);
        (void)!sn_rows_hash_add(is_output ? t->output : t->input, rows, 1, (int)width,
                                is_output ? r->output_dtype : r->input_dtype, &t->err);
    }
}

static void judging_observe(void *ctx, int block, int position, int n, const float *rows) {
    judging *c = ctx;
    for (size_t i = 0; i < c->evidence->n; i++) {
        statement_check *t = &c->checks[i];
        const sn_receipt *r = &t->statement->receipt;
        if (block == (int)r->end_block) check_add_rows(t, true, position, n, rows);
        if (block != (int)r->first_block) continue;
        check_add_rows(t, false, position, n, rows);
        for (int k = 0; k < n; k++) {
            if ((uint64_t)(position + k) == r->position) t->before = t->at;
            t->at = sn_timeline_next(c->hasher, &t->at, rows + (size_t)k * r->n_embd, r->n_embd);
            if ((uint64_t)(position + k + 1) == r->position + r->n) t->after = t->at;
        }
    }
}

static sn_status judging_begin(judging *c, sn_err *err) {
    const sn_evidence *e = c->evidence;
    sn_status status = sn_calloc(&c->checks, e->n, sizeof *c->checks, err);
    c->hasher = sn_hasher_new();
    if (!status) status = sn_calloc(&c->round_at, (size_t)e->end + 1, sizeof *c->round_at, err);
    if (!status) c->wire = sn_evidence_wire(e, c->round_at, e->end);
    if (!status && !c->hasher) status = sn_fail(err, SN_STOP, "out of memory");
    for (size_t i = 0; i < e->n && !status; i++) {
        statement_check *t = &c->checks[i];
        t->statement = &e->statements[i];
        const sn_receipt *r = &t->statement->receipt;
        sn_hash plain =
            sn_timeline_begin(e->model.bytes, (int)r->first_block, (int)r->end_block,
                              (const uint8_t(*)[SN_HASH_SIZE])(e->block_hash + ((int)r->first_block - e->first)));
        plain = sn_timeline_with_adapter(&plain, e->adapter_hash.bytes);
        t->at = sn_timeline_if_long(&plain, e->is_long);
        t->input = sn_hasher_new();
        t->output = sn_hasher_new();
        if (!t->input || !t->output) status = sn_fail(err, SN_STOP, "out of memory");
        if (!status && t->statement->outputs)
            status = sn_calloc(&t->rows, (size_t)r->n, r->n_embd * sizeof *t->rows, err);
    }
    return status;
}

static sn_verdict verdict_of(sn_verdict_kind kind, const char *why) {
    sn_verdict j = {.kind = kind};
    snprintf(j.why, sizeof j.why, "%s", why);
    return j;
}

static sn_verdict verdict_inconclusive(const char *why) { return verdict_of(SN_VERDICT_INCONCLUSIVE, why); }

static sn_verdict verdict_wrong(const char *why) { return verdict_of(SN_VERDICT_WRONG, why); }

static bool hash_equals(const sn_hash *a, const sn_hash *b) { return !memcmp(a, b, sizeof *a); }

/* For a device that is not exact: the outputs in the evidence must be those that were signed, and close to the true
 * ones. Of those that came to this client the signature was compared with the bytes, of which there are several for the
 * same numbers in 8 bits. */
static sn_verdict judge_inexact(const statement_check *t, sn_hash signed_hash, bool first_hand) {
    const sn_statement *s = t->statement;
    int n = (int)s->receipt.n, n_embd = (int)s->receipt.n_embd;
    sn_hash given;
    bool same = s->outputs && !sn_rows_hash(s->outputs, n, n_embd, s->receipt.output_dtype, &given, NULL) &&
                hash_equals(&given, &signed_hash);
    if (!s->outputs || (!same && !first_hand))
        return verdict_inconclusive("its output is not in the evidence, and it may have other bits");
    bool close = sn_rows_close(s->outputs, t->rows, n, n_embd);
    sn_verdict j = {.kind = close ? SN_VERDICT_CORRECT : SN_VERDICT_WRONG};
    snprintf(j.why, sizeof j.why, "its output is %s 3%% of a row's largest value from what this file gives",
             close ? "within" : "more than");
    return j;
}

static bool statement_is_rounded_as_others(const judging *c, int block, uint8_t dtype) {
    return dtype == (uint8_t)(c->round_at[block] ? c->wire : SN_F32);
}

/* Whether the reference rounded hidden states inside the statement's blocks, which its node did not. */
static bool statement_is_cut(const judging *c, const sn_receipt *r) {
    for (uint32_t b = r->first_block + 1; b < r->end_block; b++)
        if (c->round_at[b]) return true;
    return false;
}

static sn_verdict judge_statement(const judging *c, statement_check *t) {
    const sn_receipt *r = &t->statement->receipt;
    const sn_evidence *e = c->evidence;
    sn_hash weights = sn_hash_of(e->block_hash + ((int)r->first_block - e->first),
                                 (size_t)(r->end_block - r->first_block) * SN_HASH_SIZE);
    if (memcmp(r->model, &e->model, SN_HASH_SIZE) || !hash_equals(&r->weights, &weights))
        return verdict_inconclusive("it is about other weights");
    if (r->kv_dtype != (uint8_t)c->kv)
        return verdict_inconclusive("it names another type of keys and values than its block hashes");
    if (!statement_is_rounded_as_others(c, (int)r->first_block, r->input_dtype) ||
        !statement_is_rounded_as_others(c, (int)r->end_block, r->output_dtype))
        return verdict_inconclusive("its hidden states travelled in another type than those of other statements");
    if (statement_is_cut(c, r))
        return verdict_inconclusive("other statements say that hidden states were rounded inside its blocks");
    if (t->err.text[0]) return verdict_inconclusive("its hidden states are of a type that this program does not know");
    sn_hash input = sn_hasher_end(t->input), output = sn_hasher_end(t->output);
    if (!hash_equals(&input, &r->input)) return verdict_inconclusive("it was given another input");
    if (!hash_equals(&t->before, &r->timeline_before)) return verdict_inconclusive("it continues another timeline");
    if (!hash_equals(&t->after, &r->timeline_after))
        return verdict_wrong("it signed another timeline than its input continues");
    if (hash_equals(&output, &r->output))
        return (sn_verdict){.kind = SN_VERDICT_CORRECT, .why = "its output is what this file gives, bit by bit"};
    /* Its client has another node compute in its place, wherever the wrong keys and values came from. Right ones may
     * have come from a device that is not exact. */
    if ((r->device & SN_RECEIPT_CONTINUED) && !e->first_hand)
        return verdict_inconclusive("its node was given keys and values from elsewhere, and says so");
    if (r->device != SN_RECEIPT_EXACT) return judge_inexact(t, r->output, e->first_hand);
    return verdict_wrong("it signed another output than this file gives for the same input and timeline");
}

sn_status sn_evidence_judge(const sn_evidence *e, sn_chain *reference, sn_verdict *out, sn_err *err) {
    judging c = {.evidence = e, .kv = sn_kv_dtype_element(sn_chain_kv_dtype(reference))};
    float *rows = NULL;
    sn_status status = judging_begin(&c, err);
    if (!status) status = sn_calloc(&rows, (size_t)SN_SPAN_ROWS * (size_t)e->n_embd, sizeof *rows, err);
    sn_chain_observe(reference, judging_observe, &c);
    for (int at = 0, n; at < e->n_tokens && !status; at += n) {
        n = e->n_tokens - at < SN_SPAN_ROWS ? e->n_tokens - at : SN_SPAN_ROWS;
        status = sn_chain_step(reference, at, n, e->inputs + (size_t)at * (size_t)e->n_embd, rows, err);
    }
    sn_chain_observe(reference, NULL, NULL);
    for (size_t i = 0; i < e->n && !status; i++) {
        const sn_statement *s = &e->statements[i];
        out[i] = judge_statement(&c, &c.checks[i]);
        out[i].far = s->outputs && !sn_rows_close(s->outputs, c.checks[i].rows, (int)s->receipt.n, e->n_embd);
    }
    for (size_t i = 0; c.checks && i < e->n; i++) {
        sn_hasher_free(c.checks[i].input);
        sn_hasher_free(c.checks[i].output);
        free(c.checks[i].rows);
    }
    free(c.checks);
    free(c.round_at);
    free(rows);
    sn_hasher_free(c.hasher);
    return status;
}
