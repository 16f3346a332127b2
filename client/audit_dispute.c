/* When the auditor came to another answer: evidence is put together, a third decides, and who lied is caught. */
#include "client/audit_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "client/chain_private.h"
#include "net/codec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One dispute, about the log's first entry. */
typedef struct dispute {
    sn_audit *a;
    sn_audit_log *log;
    const sn_audit_entry *entry;
    sn_evidence evidence; /* statements: those of the entry's nodes, then the auditor's */
    sn_judgement judgements[SN_STATEMENTS_MAX];
    bool here; /* the third was this machine */
} dispute;

/* The weights that the nodes say to have; where none is known, those of our own file. */
static sn_status fill_hashes(dispute *d, sn_kv_dtype dtype, sn_err *err) {
    sn_evidence *e = &d->evidence;
    sn_announcement *told = NULL;
    sn_status status = sn_calloc(&e->block_hash, (size_t)(e->end - e->first), sizeof *e->block_hash, err);
    if (!status) status = sn_calloc(&told, 1, sizeof *told, err);
    for (size_t i = 0; i < d->entry->n_hops && !status; i++) {
        const sn_blob *sealed = sn_audit_voice_of(d->a, d->entry->receipts + i * SN_RECEIPT_SIZE + 16);
        if (!sealed || sn_announcement_parse(sealed->data, sealed->len - SN_SIGNATURE_SIZE, told, NULL)) continue;
        for (int b = e->first; b < e->end; b++)
            if ((uint64_t)b >= told->first_block && (uint64_t)b < told->end_block)
                memcpy(&e->block_hash[b - e->first], told->block_hash[b - (int)told->first_block], SN_HASH_SIZE);
    }
    static const sn_hash none;
    for (int b = e->first; b < e->end && !status; b++) {
        sn_hash *hash = &e->block_hash[b - e->first];
        if (memcmp(hash, &none, sizeof none) || !sn_model_has_block(d->a->options.model, b)) continue;
        status = sn_model_block_hash(d->a->options.model, b, hash, err);
        if (!status) *hash = sn_span_hash_of(hash, dtype);
    }
    free(told);
    return status;
}

static sn_status begin(dispute *d, const sn_chain *like, sn_err *err) {
    const sn_audit_entry *entry = d->entry;
    size_t width = (size_t)d->a->hp->n_embd, past = (size_t)entry->position * width;
    sn_evidence *e = &d->evidence;
    *e = (sn_evidence){.model = sn_model_id(d->a->options.model),
                       .first = d->log->first,
                       .end = d->log->end,
                       .n_embd = d->a->hp->n_embd,
                       .tuned = like->options.tuned.hash,
                       .n_tokens = entry->position + entry->n,
                       .unix_ms = sn_unix_ms()};
    snprintf(e->name, sizeof e->name, "%s", d->a->hp->name);
    sn_status status = sn_calloc(&e->inputs, past + (size_t)entry->n * width, sizeof *e->inputs, err);
    if (status) return status;
    if (past) memcpy(e->inputs, d->log->history, past * sizeof *e->inputs);
    memcpy(e->inputs + past, entry->rows, (size_t)entry->n * width * sizeof *e->inputs);
    status = fill_hashes(d, like->options.kv_dtype, err);
    for (size_t i = 0; i < entry->n_hops && !status; i++) {
        const uint8_t *sealed = entry->receipts + i * SN_RECEIPT_SIZE;
        status = sn_evidence_add(e, sealed, sn_audit_voice_of(d->a, sealed + 16),
                                 i + 1 == entry->n_hops ? entry->outputs : NULL, err);
    }
    return status;
}

/* Lets the auditor do this one step again by itself, and adds what it signs. */
static sn_status hear_auditor(dispute *d, sn_err *err) {
    const sn_audit_entry *entry = d->entry;
    sn_chain *auditor = d->log->auditor;
    float *rows = NULL;
    sn_status status = sn_calloc(&rows, (size_t)entry->n * (size_t)d->a->hp->n_embd, sizeof *rows, err);
    if (!status) status = sn_chain_step(auditor, entry->position, entry->n, entry->rows, rows, err);
    for (size_t i = 0; i < auditor->n_hops && !status; i++) {
        const sn_hop_at *hop = &auditor->hops[i];
        bool whole = i + 1 == auditor->n_hops && hop->said.n == (uint32_t)entry->n;
        if (hop->local) continue;
        status = sn_audit_listen(d->a, hop, err);
        if (!status)
            status = sn_evidence_add(&d->evidence, hop->receipt, sn_audit_voice_of(d->a, hop->node), whole ? rows : NULL, err);
    }
    free(rows);
    return status;
}

/* A chain that is believed: this machine where it holds the blocks, else nodes that are no party to it. */
static sn_status find_third(dispute *d, const sn_chain *like, const bool *cut_at, sn_chain **out, sn_err *err) {
    sn_audit *a = d->a;
    d->here = true;
    sn_status status = sn_audit_open(a, d->log, like, true, cut_at, out, err);
    if (status != SN_RETRY) return status;
    d->here = false;
    for (size_t i = 0; i < d->log->auditor->n_hops; i++)
        memcpy(a->third[a->n_third++], d->log->auditor->hops[i].node, SN_KEY_SIZE);
    status = a->options.link ? sn_audit_open(a, d->log, like, false, cut_at, out, err) : status;
    return status;
}

static sn_status ask_third(dispute *d, const sn_chain *like, sn_err *err) {
    bool *cut_at = NULL;
    sn_chain *third = NULL;
    sn_status status = sn_calloc(&cut_at, (size_t)d->a->hp->n_blocks, sizeof *cut_at, err);
    if (status) return status;
    sn_evidence_cuts(&d->evidence, cut_at, d->a->hp->n_blocks);
    status = find_third(d, like, cut_at, &third, err);
    if (!status) status = sn_evidence_judge(&d->evidence, third, d->judgements, err);
    sn_chain_close(&third);
    d->a->n_third = 0;
    free(cut_at);
    return status;
}

static void catch(sn_audit *a, const sn_statement *s, const char *why) {
    char id[17];
    memcpy(a->caught[a->n_caught++ % SN_CAUGHT_MAX], s->receipt.node, SN_KEY_SIZE);
    a->report.lies++;
    snprintf(a->report.verdict, sizeof a->report.verdict, "node %s is not believed about blocks %u:%u at position %llu: %s",
             sn_hex(s->receipt.node, 8, id), s->receipt.first_block, s->receipt.end_block,
             (unsigned long long)s->receipt.position, why);
    sn_log(SN_LOG_WARN, "a node lied", "text=%s", a->report.verdict);
}

/* Statements [from, to) that are found lies. */
static size_t catch_liars(dispute *d, size_t from, size_t to) {
    size_t n = 0;
    for (size_t i = from; i < to; i++)
        if (d->judgements[i].finding == SN_FOUND_LIE && ++n) catch(d->a, &d->evidence.statements[i], d->judgements[i].why);
    return n;
}

static bool any_lie(const dispute *d, size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        if (d->judgements[i].finding == SN_FOUND_LIE) return true;
    return false;
}

static sn_audit_outcome decide(dispute *d) {
    size_t n = d->entry->n_hops, all = d->evidence.n;
    bool accused = any_lie(d, 0, n), auditor = any_lie(d, n, all);
    if (accused && auditor && !d->here) return SN_AUDIT_UNDECIDED; /* three answers */
    if (auditor) catch_liars(d, n, all);
    if (accused) {
        catch_liars(d, 0, n);
        return SN_AUDIT_WRONG;
    }
    if (d->judgements[n - 1].finding == SN_FOUND_TRUE) return SN_AUDIT_RIGHT;
    /* What they signed does not hang together: nobody's statement is a plain lie, and the answer is not borne out. */
    for (size_t i = 0; i < n; i++)
        if (d->judgements[i].finding != SN_FOUND_TRUE) catch(d->a, &d->evidence.statements[i], d->judgements[i].why);
    return SN_AUDIT_WRONG;
}

static void keep_evidence(dispute *d) {
    sn_err err;
    sn_audit_report *report = &d->a->report;
    if (!d->a->options.evidence) return;
    if (sn_evidence_save(&d->evidence, d->a->options.evidence, report->evidence, &err)) {
        report->evidence[0] = 0;
        sn_log(SN_LOG_WARN, "evidence is lost", "text=%s", err.text);
    }
}

sn_status sn_audit_dispute(sn_audit *a, sn_audit_log *l, const sn_chain *like, sn_audit_outcome *out, sn_err *err) {
    dispute *d = NULL;
    sn_status status = sn_calloc(&d, 1, sizeof *d, err);
    if (status) return status;
    d->a = a;
    d->log = l;
    d->entry = &l->entries[0];
    status = begin(d, like, err);
    if (!status) status = hear_auditor(d, err);
    sn_err unheard = {0};
    if (!status) {
        sn_status asked = ask_third(d, like, &unheard);
        if (asked == SN_STOP) status = sn_fail(err, SN_STOP, "%s", unheard.text);
        *out = asked ? SN_AUDIT_UNDECIDED : decide(d);
    }
    if (!status && (*out == SN_AUDIT_UNDECIDED || a->report.lies)) keep_evidence(d);
    if (!status && *out == SN_AUDIT_UNDECIDED)
        snprintf(a->report.verdict, sizeof a->report.verdict,
                 "nodes differ about blocks %d:%d at position %d, and nobody can say who is right; what follows may be wrong",
                 l->first, l->end, d->entry->position);
    if (*out != SN_AUDIT_WRONG) sn_chain_close(&l->auditor);
    sn_evidence_fini(&d->evidence);
    free(d);
    return status;
}
