/* Judging evidence: the timeline is computed again, and each statement held against what it should have said. */
#include "client/evidence.h"

#include "base/mem.h"
#include "base/wire.h"
#include "net/timeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const float CLOSE = 0.03f; /* of a row's largest value; see sn_rows_close */

/* What is worked out about one statement while the rows go by. */
typedef struct trial {
    const sn_statement *statement;
    sn_hash at, before, after; /* timeline: as far as it has come; at its position; behind its tokens */
    float *input, *output;     /* (n, n_embd): the true rows of its tokens */
} trial;

typedef struct court {
    const sn_evidence *evidence;
    trial *trials;
    sn_hasher *hasher;
    sn_dtype wire; /* and where hidden states were rounded to it: (end + 1) */
    bool *round_at;
} court;

bool sn_rows_close(const float *a, const float *b, int n, int n_embd) {
    for (int i = 0; i < n; i++, a += n_embd, b += n_embd) {
        float largest = 0, worst = 0;
        for (int k = 0; k < n_embd; k++) {
            largest = fmaxf(largest, fabsf(b[k]));
            worst = fmaxf(worst, fabsf(a[k] - b[k]));
            if (!isfinite(a[k])) return false;
        }
        if (worst > CLOSE * largest) return false;
    }
    return true;
}

sn_status sn_rows_hash(const float *rows, int n, int n_embd, sn_dtype dtype, sn_hash *out, sn_err *err) {
    size_t count = (size_t)n * (size_t)n_embd;
    void *wire = NULL;
    size_t bytes;
    if (dtype == SN_F32) {
        *out = sn_hash_of(rows, count * sizeof *rows);
        return SN_OK;
    }
    if (!sn_is_wire_dtype(dtype))
        return sn_fail(err, SN_REFUSED, "rows of type %s are not judged by this program", sn_dtype_name(dtype));
    sn_status status = sn_dtype_row_bytes(dtype, (size_t)n_embd, &bytes, err);
    if (!status) status = sn_calloc(&wire, (size_t)n, bytes, err);
    if (status) return status;
    sn_wire_encode(dtype, rows, count, wire);
    *out = sn_hash_of(wire, (size_t)n * bytes);
    free(wire);
    return SN_OK;
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

/* Keeps those of the rows that the statement is about. */
static void keep(float *to, const sn_receipt *r, int position, int n, const float *rows) {
    size_t width = r->n_embd;
    for (int i = 0; i < n; i++) {
        int64_t at = (int64_t)position + i - (int64_t)r->position;
        if (at >= 0 && at < (int64_t)r->n) memcpy(to + (size_t)at * width, rows + (size_t)i * width, width * sizeof *to);
    }
}

static void watch(void *ctx, int block, int position, int n, const float *rows) {
    court *c = ctx;
    for (size_t i = 0; i < c->evidence->n; i++) {
        trial *t = &c->trials[i];
        const sn_receipt *r = &t->statement->receipt;
        if (block == (int)r->end_block) keep(t->output, r, position, n, rows);
        if (block != (int)r->first_block) continue;
        keep(t->input, r, position, n, rows);
        for (int k = 0; k < n; k++) {
            if ((uint64_t)(position + k) == r->position) t->before = t->at;
            t->at = sn_timeline_next(c->hasher, &t->at, rows + (size_t)k * r->n_embd, r->n_embd);
            if ((uint64_t)(position + k + 1) == r->position + r->n) t->after = t->at;
        }
    }
}

static sn_status begin(court *c, sn_err *err) {
    const sn_evidence *e = c->evidence;
    sn_status status = sn_calloc(&c->trials, e->n, sizeof *c->trials, err);
    c->hasher = sn_hasher_new();
    if (!status) status = sn_calloc(&c->round_at, (size_t)e->end + 1, sizeof *c->round_at, err);
    if (!status) c->wire = sn_evidence_wire(e, c->round_at, e->end);
    if (!status && !c->hasher) status = sn_fail(err, SN_STOP, "out of memory");
    for (size_t i = 0; i < e->n && !status; i++) {
        trial *t = &c->trials[i];
        t->statement = &e->statements[i];
        const sn_receipt *r = &t->statement->receipt;
        size_t size = (size_t)r->n * (size_t)r->n_embd;
        sn_hash plain = sn_timeline_begin(e->model.bytes, (int)r->first_block, (int)r->end_block,
                                          (const uint8_t(*)[SN_HASH_SIZE])(e->block_hash + ((int)r->first_block - e->first)));
        t->at = sn_timeline_tuned(&plain, e->tuned.bytes);
        status = sn_calloc(&t->input, size, sizeof *t->input, err);
        if (!status) status = sn_calloc(&t->output, size, sizeof *t->output, err);
    }
    return status;
}

static sn_judgement nothing(const char *why) {
    sn_judgement j = {.finding = SN_FOUND_NOTHING};
    snprintf(j.why, sizeof j.why, "%s", why);
    return j;
}

static bool same(const sn_hash *a, const sn_hash *b) { return !memcmp(a, b, sizeof *a); }

/* Outputs of a device that is not exact: they must be those that were signed, and near the true ones. */
static sn_judgement judge_close(const trial *t, sn_hash signed_hash) {
    const sn_statement *s = t->statement;
    int n = (int)s->receipt.n, n_embd = (int)s->receipt.n_embd;
    sn_hash given;
    if (!s->outputs || sn_rows_hash(s->outputs, n, n_embd, s->receipt.output_dtype, &given, NULL) ||
        !same(&given, &signed_hash))
        return nothing("what it sent is not in the evidence, and its device need not give the same bits");
    bool close = sn_rows_close(s->outputs, t->output, n, n_embd);
    sn_judgement j = {.finding = close ? SN_FOUND_TRUE : SN_FOUND_LIE};
    snprintf(j.why, sizeof j.why, "its output is %s what this file gives, by 3%% of a row's largest value",
             close ? "near" : "further from");
    return j;
}

static bool as_the_others(const court *c, int block, uint8_t dtype) {
    return dtype == (uint8_t)(c->round_at[block] ? c->wire : SN_F32);
}

static sn_judgement judge(const court *c, const trial *t) {
    const sn_receipt *r = &t->statement->receipt;
    const sn_evidence *e = c->evidence;
    sn_hash input, output;
    sn_hash weights = sn_hash_of(e->block_hash + ((int)r->first_block - e->first),
                                 (size_t)(r->end_block - r->first_block) * SN_HASH_SIZE);
    if (memcmp(r->model, &e->model, SN_HASH_SIZE) || !same(&r->weights, &weights))
        return nothing("it is about other weights");
    if (r->kv_dtype != SN_F32) return nothing("its keys and values were kept in another type than float32");
    if (!as_the_others(c, (int)r->first_block, r->input_dtype) || !as_the_others(c, (int)r->end_block, r->output_dtype))
        return nothing("its rows travelled as another type than those of others");
    if (sn_rows_hash(t->input, (int)r->n, (int)r->n_embd, r->input_dtype, &input, NULL) ||
        sn_rows_hash(t->output, (int)r->n, (int)r->n_embd, r->output_dtype, &output, NULL))
        return nothing("its rows are of a type that this program does not judge");
    if (!same(&input, &r->input)) return nothing("it was given another input");
    if (!same(&t->before, &r->timeline_before) || !same(&t->after, &r->timeline_after))
        return nothing("it builds on another past");
    sn_judgement j = {.finding = SN_FOUND_TRUE, .why = "its output is what this file gives, bit by bit"};
    if (same(&output, &r->output)) return j;
    if (r->device != SN_RECEIPT_EXACT) return judge_close(t, r->output);
    j.finding = SN_FOUND_LIE;
    snprintf(j.why, sizeof j.why, "it signed another output than this file gives for the same input and past");
    return j;
}

sn_status sn_evidence_judge(const sn_evidence *e, sn_chain *truth, sn_judgement *out, sn_err *err) {
    court c = {.evidence = e};
    float *rows = NULL;
    sn_status status = begin(&c, err);
    if (!status) status = sn_calloc(&rows, (size_t)SN_SPAN_ROWS_MAX * (size_t)e->n_embd, sizeof *rows, err);
    sn_chain_observe(truth, watch, &c);
    for (int at = 0, n; at < e->n_tokens && !status; at += n) {
        n = e->n_tokens - at < SN_SPAN_ROWS_MAX ? e->n_tokens - at : SN_SPAN_ROWS_MAX;
        status = sn_chain_step(truth, at, n, e->inputs + (size_t)at * (size_t)e->n_embd, rows, err);
    }
    sn_chain_observe(truth, NULL, NULL);
    for (size_t i = 0; i < e->n && !status; i++) out[i] = judge(&c, &c.trials[i]);
    for (size_t i = 0; c.trials && i < e->n; i++) {
        free(c.trials[i].input);
        free(c.trials[i].output);
    }
    free(c.trials);
    free(c.round_at);
    free(rows);
    sn_hasher_free(c.hasher);
    return status;
}
