/* When the auditor's answer differs from the nodes': evidence is collected, an arbiter decides, and the nodes that are
 * wrong are banned. */
#include "client/audit/audit_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a session writes at most. The last file may be longer than the bytes that are left. */
enum { EVIDENCE_FILES_MAX = 16 };
static const size_t EVIDENCE_BYTES_MAX = (size_t)1 << 30;

/* One dispute, about the log's first entry. */
typedef struct dispute {
    sn_audit *a;
    sn_audit_log *log;
    const sn_audit_entry *entry;
    sn_evidence evidence; /* statements: those of the entry's nodes, then the auditor's */
    sn_verdict verdicts[SN_STATEMENTS_MAX];
    bool local; /* the arbiter was this machine */
    uint64_t banned_before;
    size_t n_auditors; /* nodes of the auditor that gave the answer, as they follow each other */
    struct {
        uint8_t node[SN_KEY_SIZE];
        int end; /* of its blocks */
        bool exact;
        float *passed; /* (entry->n, n_embd): what it gave to the next one in that answer; NULL: it was the last one */
    } auditors[SN_HOPS_MAX];
    bool answered; /* the auditor has computed the step again */
} dispute;

static sn_status dispute_begin(dispute *d, const sn_chain *audited, sn_err *err) {
    const sn_audit_entry *entry = d->entry;
    sn_chain_options audited_as = sn_chain_twin_options(audited, d->log->first, d->log->end);
    size_t width = (size_t)d->a->hp->n_embd, before = (size_t)entry->position * width;
    sn_evidence *e = &d->evidence;
    *e = (sn_evidence){.model = sn_model_id(d->a->options.model),
                       .first = d->log->first,
                       .end = d->log->end,
                       .n_embd = d->a->hp->n_embd,
                       .adapter_hash = audited_as.adapter.hash,
                       .n_tokens = entry->position + entry->n,
                       .unix_ms = sn_unix_ms(),
                       .first_hand = true};
    snprintf(e->name, sizeof e->name, "%s", d->a->hp->name);
    sn_status status = sn_calloc(&e->inputs, before + (size_t)entry->n * width, sizeof *e->inputs, err);
    if (status) return status;
    if (before) memcpy(e->inputs, d->log->history, before * sizeof *e->inputs);
    memcpy(e->inputs + before, entry->rows, (size_t)entry->n * width * sizeof *e->inputs);
    size_t n_blocks = (size_t)(e->end - e->first);
    status = sn_calloc(&e->block_hash, n_blocks, sizeof *e->block_hash, err);
    if (!status) memcpy(e->block_hash, sn_chain_weights(audited) + e->first, n_blocks * sizeof *e->block_hash);
    for (size_t i = 0; i < entry->n_hops && !status; i++) {
        const uint8_t *sealed = entry->receipts + i * SN_RECEIPT_SIZE;
        status = sn_evidence_add(e, sealed, sn_audit_find_announcement(d->a, sealed + 16),
                                 i + 1 == entry->n_hops ? entry->outputs : NULL, err);
    }
    return status;
}

/* The nodes of the auditor's present route take no further part, but for repeating their answer. */
static void dispute_exclude_auditor(dispute *d) {
    sn_audit *a = d->a;
    size_t n_hops;
    const sn_hop *hops = sn_chain_route_hops(d->log->auditor, &n_hops);
    for (size_t i = 0; i < n_hops; i++)
        if (!hops[i].is_local) memcpy(a->excluded[a->n_excluded++], hops[i].remote.node, SN_KEY_SIZE);
}

static size_t entry_bytes(const dispute *d) { return (size_t)d->entry->n * (size_t)d->a->hp->n_embd * sizeof(float); }

/* The entry's rows as they entered the auditor's blocks from this one on, in its newest answer; *out NULL: they are not
 * known. */
static sn_status auditor_rows_at(const dispute *d, int block, float **out, sn_err *err) {
    size_t n_hops;
    const sn_audit_entry *e = d->entry;
    const sn_hop *hops = sn_chain_route_hops(d->log->auditor, &n_hops), *at = NULL;
    *out = NULL;
    for (size_t i = 0; i < n_hops; i++)
        if (hops[i].first == block && !hops[i].is_local && hops[i].length >= e->position + e->n) at = &hops[i];
    if (!at || !sn_hop_can_replay(at, e->position)) return SN_OK;
    sn_status status = sn_calloc(out, entry_bytes(d), 1, err);
    return status ? status : sn_hop_inputs(at, e->position, e->n, d->a->hp->n_embd, *out, err);
}

static sn_status dispute_note_auditor(dispute *d, sn_err *err) {
    size_t n_hops;
    const sn_hop *hops = sn_chain_route_hops(d->log->auditor, &n_hops);
    sn_status status = SN_OK;
    for (size_t i = 0; i < n_hops && !status; i++) {
        if (hops[i].is_local) continue;
        memcpy(d->auditors[d->n_auditors].node, hops[i].remote.node, SN_KEY_SIZE);
        d->auditors[d->n_auditors].end = hops[i].end;
        d->auditors[d->n_auditors].exact = hops[i].remote.last_receipt.device == SN_RECEIPT_EXACT;
        status = auditor_rows_at(d, hops[i].end, &d->auditors[d->n_auditors++].passed, err);
    }
    return status;
}

static bool auditor_passed_the_same(const dispute *d, size_t i) {
    sn_err err;
    float *now;
    const float *before = d->auditors[i].passed;
    bool known = !auditor_rows_at(d, d->auditors[i].end, &now, &err) && now && before;
    bool same = known && (d->auditors[i].exact ? !memcmp(now, before, entry_bytes(d))
                                               : sn_rows_close(now, before, d->entry->n, d->a->hp->n_embd));
    free(now);
    return same;
}

/* Whether the rows that it signed are far from those of the arbiter. */
static bool auditor_is_far(const dispute *d, size_t i) {
    for (size_t k = d->entry->n_hops; k < d->evidence.n; k++) {
        const sn_receipt *r = &d->evidence.statements[k].receipt;
        if (r->end_block == (uint32_t)d->auditors[i].end && !memcmp(r->node, d->auditors[i].node, SN_KEY_SIZE))
            return d->verdicts[k].far;
    }
    return false;
}

/* The auditor was wrong. Where that is not proven of any node, as behind one whose device gives other bits, it was the
 * first one that gave other rows for the same input when it was asked again, or rows far from the true ones; the others
 * of its chain may be honest. Who was replaced in the midst of the answer may have been wrong, too: those that are
 * there now need not have been. */
static void dispute_avoid_auditor(dispute *d) {
    size_t wrong = 0;
    if (d->a->report.nodes_banned > d->banned_before || d->log->auditor_changed) return;
    while (d->answered && wrong + 1 < d->n_auditors && auditor_passed_the_same(d, wrong) && !auditor_is_far(d, wrong))
        wrong++;
    for (size_t i = 0; i < d->n_auditors; i++)
        if (i == wrong || !d->answered) sn_audit_avoid(d->a, d->auditors[i].node, INT64_MAX);
}

/* The auditor runs this one step again by itself; the evidence gets what it signs. Where it fails, only the entry's
 * nodes are judged. */
static sn_status dispute_add_auditor(dispute *d, sn_err *err) {
    const sn_audit_entry *entry = d->entry;
    sn_chain *auditor = d->log->auditor;
    float *rows = NULL;
    sn_status status = sn_calloc(&rows, (size_t)entry->n * (size_t)d->a->hp->n_embd, sizeof *rows, err);
    if (!status) status = sn_chain_step(auditor, entry->position, entry->n, entry->rows, rows, err);
    bool answered = d->answered = !status;
    if (status != SN_STOP) status = SN_OK;
    size_t n_hops;
    const sn_hop *hops = sn_chain_route_hops(auditor, &n_hops);
    for (size_t i = 0; i < n_hops && answered && !status; i++) {
        const sn_hop_remote *remote = &hops[i].remote;
        if (hops[i].is_local) continue;
        bool whole = remote->last_receipt.n == (uint32_t)entry->n, last = i + 1 == n_hops;
        float *passed = NULL;
        if (whole && !last) status = auditor_rows_at(d, hops[i].end, &passed, err);
        if (!status) status = sn_audit_keep_announcement(d->a, &hops[i], err);
        if (!status)
            status = sn_evidence_add(&d->evidence, remote->receipt, sn_audit_find_announcement(d->a, remote->node),
                                     !whole ? NULL
                                     : last ? rows
                                            : passed,
                                     err);
        free(passed);
    }
    free(rows);
    return status;
}

/* Opens the arbiter's chain: on this machine where its file holds the blocks, else at nodes that did not take part. */
static sn_status dispute_open_arbiter(dispute *d, const sn_chain *audited, const bool *cut_at, sn_chain **out,
                                      sn_err *err) {
    sn_audit *a = d->a;
    d->local = true;
    sn_status status = sn_audit_open_chain(a, d->log, audited, true, cut_at, out, err);
    if (status != SN_RETRY) return status;
    d->local = false;
    dispute_exclude_auditor(d); /* other nodes may have taken over meanwhile */
    return a->options.link ? sn_audit_open_chain(a, d->log, audited, false, cut_at, out, err) : status;
}

static sn_status dispute_ask_arbiter(dispute *d, const sn_chain *audited, sn_err *err) {
    bool *cut_at = NULL;
    sn_chain *arbiter = NULL;
    sn_status status = sn_calloc(&cut_at, (size_t)d->a->hp->n_blocks, sizeof *cut_at, err);
    if (status) return status;
    sn_evidence_cuts(&d->evidence, cut_at, d->a->hp->n_blocks);
    status = dispute_open_arbiter(d, audited, cut_at, &arbiter, err);
    if (!status) status = sn_evidence_judge(&d->evidence, arbiter, d->verdicts, err);
    sn_chain_close(&arbiter);
    free(cut_at);
    return status;
}

static void audit_ban(sn_audit *a, const sn_statement *s, const char *why) {
    char id[17];
    memcpy(a->banned[a->n_banned++ % SN_AUDIT_BANNED_MAX], s->receipt.node, SN_KEY_SIZE);
    a->report.nodes_banned++;
    snprintf(a->report.verdict, sizeof a->report.verdict,
             "node %s failed an audit check of blocks %u:%u at position %llu: %s", sn_hex(s->receipt.node, 8, id),
             s->receipt.first_block, s->receipt.end_block, (unsigned long long)s->receipt.position, why);
    sn_log(SN_LOG_WARN, "audit failed", "text=%s", a->report.verdict);
}

/* Bans the signers of those of the statements [from, to) that are wrong. */
static void dispute_ban_wrong(dispute *d, size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        if (d->verdicts[i].kind == SN_VERDICT_WRONG) audit_ban(d->a, &d->evidence.statements[i], d->verdicts[i].why);
}

static bool dispute_has_wrong(const dispute *d, size_t from, size_t to) {
    for (size_t i = from; i < to; i++)
        if (d->verdicts[i].kind == SN_VERDICT_WRONG) return true;
    return false;
}

/* No statement is wrong by itself, but the answer is not confirmed. The first statement that is not correct has an
 * input that a node with a correct one has signed, so its node is the one that differs: but where its device may give
 * other bits, and it sent its output to another node, the statements do not show which. Then the nodes
 * are used one by one from now on, and the one that goes on giving wrong results is found. */
static sn_audit_outcome dispute_decide_first(dispute *d) {
    size_t i = 0;
    while (d->verdicts[i].kind == SN_VERDICT_CORRECT) i++;
    const sn_statement *s = &d->evidence.statements[i];
    d->a->apart = s->receipt.device != SN_RECEIPT_EXACT && d->entry->n_hops > 1;
    if (!i && !d->a->apart) return SN_AUDIT_UNDECIDED; /* its input and its timeline are the client's own */
    if (!d->a->apart) audit_ban(d->a, s, d->verdicts[i].why);
    return SN_AUDIT_FAILED;
}

static sn_audit_outcome dispute_decide(dispute *d) {
    size_t n = d->entry->n_hops, all = d->evidence.n;
    bool accused = dispute_has_wrong(d, 0, n), auditor = dispute_has_wrong(d, n, all);
    if (accused && (auditor || all == n) && !d->local) return SN_AUDIT_UNDECIDED; /* no two answers agree */
    if (auditor) dispute_ban_wrong(d, n, all);
    if (accused) {
        dispute_ban_wrong(d, 0, n);
        return SN_AUDIT_FAILED;
    }
    if (auditor || d->verdicts[n - 1].kind == SN_VERDICT_CORRECT) return SN_AUDIT_PASSED;
    return dispute_decide_first(d);
}

static void dispute_save_evidence(dispute *d) {
    sn_err err;
    sn_audit_report *report = &d->a->report;
    if (!d->a->options.evidence || !d->evidence.n) return;
    if (d->a->n_evidence == EVIDENCE_FILES_MAX || d->a->evidence_bytes >= EVIDENCE_BYTES_MAX) {
        sn_log(SN_LOG_WARN, "evidence not saved", "text=%s", "this session has written as much as it may");
        return;
    }
    d->a->n_evidence++;
    size_t rows = (size_t)d->evidence.n_tokens;
    for (size_t i = 0; i < d->evidence.n; i++)
        rows += d->evidence.statements[i].outputs ? d->evidence.statements[i].receipt.n : 0;
    d->a->evidence_bytes += rows * (size_t)d->evidence.n_embd * sizeof(float);
    if (sn_evidence_save(&d->evidence, d->a->options.evidence, report->evidence, &err)) {
        report->evidence[0] = 0;
        sn_log(SN_LOG_WARN, "evidence not saved", "text=%s", err.text);
    }
}

sn_status sn_audit_dispute(sn_audit *a, sn_audit_log *l, const sn_chain *audited, sn_audit_outcome *out, sn_err *err) {
    dispute *d = NULL;
    sn_status status = sn_calloc(&d, 1, sizeof *d, err);
    if (status) return status;
    d->a = a;
    d->log = l;
    d->entry = &l->entries[0];
    d->banned_before = a->report.nodes_banned;
    dispute_exclude_auditor(d);
    *out = SN_AUDIT_UNDECIDED; /* whatever fails from here on: the answers differ, so the entry has not passed */
    status = dispute_note_auditor(d, err);
    if (!status) status = dispute_begin(d, audited, err);
    if (!status) status = dispute_add_auditor(d, err);
    if (!status) status = dispute_ask_arbiter(d, audited, err);
    if (!status) *out = dispute_decide(d);
    if (status != SN_STOP) status = SN_OK;
    /* An auditor that gives a wrong answer once, and the right one when it signs it, is not proven wrong. */
    if (*out == SN_AUDIT_PASSED) dispute_avoid_auditor(d);
    a->n_excluded = 0;
    if (!status && (*out == SN_AUDIT_UNDECIDED || a->report.nodes_banned > d->banned_before)) dispute_save_evidence(d);
    if (!status && *out == SN_AUDIT_UNDECIDED)
        snprintf(a->report.verdict, sizeof a->report.verdict,
                 "nodes differ about blocks %d:%d at position %d, and no third node can decide; results from there "
                 "on may be wrong",
                 l->first, l->end, d->entry->position);
    if (!status && a->apart)
        snprintf(
            a->report.verdict, sizeof a->report.verdict,
            "nodes that push to each other gave a wrong result for blocks %d:%d at position %d; they are used one by "
            "one from now on",
            l->first, l->end, d->entry->position);
    if (*out != SN_AUDIT_FAILED) sn_chain_close(&l->auditor);
    sn_evidence_fini(&d->evidence);
    for (size_t i = 0; i < d->n_auditors; i++) free(d->auditors[i].passed);
    free(d);
    return status;
}
