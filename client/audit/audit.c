/* Noting the steps of nodes, and checking them.
 *
 * For every range of blocks at which steps are done there is a log: the entries that are not checked yet (input,
 * output, receipts) and the history, which is the inputs of all steps before them. A check makes sure that the log has
 * an auditor, a second chain over these blocks at position `length`, brought there with the history. Then it runs the
 * entries through the auditor, several in one chunk where they follow each other, and compares: the hash of the output
 * where all devices are exact and no keys and values came from elsewhere, else the rows within a tolerance
 * (sn_rows_close). An entry that matches becomes history. For one that does not, audit_dispute decides.
 *
 * A node may not check its own work, and who failed as an auditor is not asked again soon. When no auditor
 * is found, entries wait for a later check, up to PENDING_MAX; beyond that the oldest goes unchecked. So do entries
 * with more rows than two timelines have, after a check was tried: nodes that fail, and prompts that follow each other
 * in one session, would else fill the memory. When auditors were found, but failed or gave wrong results, the audit is
 * incomplete: entries that are left count as such. */
#include "client/audit/audit_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "model/source.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PENDING_MAX = 4096,                /* entries of a log that wait for a check */
    CHECK_ROWS_MAX = 4 * SN_SPAN_ROWS, /* rows that go through the auditor in one step */
    AUDITORS_MAX = 3,                  /* auditors that one check tries, one after the other */
    AUDITOR_RETRY_US = 60000000,       /* until an auditor is looked for again, after none was found */
};

sn_status sn_audit_new(const sn_audit_options *options, sn_audit **out, sn_err *err) {
    sn_audit *a = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&a, 1, sizeof *a, err);
    if (status) return status;
    a->options = *options;
    a->hp = sn_model_hparams(options->model);
    a->rng_state = options->seed;
    a->given_up_from = a->failed_from = INT_MAX;
    *out = a;
    return SN_OK;
}

static void entry_fini(sn_audit_entry *e) {
    free(e->receipts);
    free(e->rows);
    free(e->outputs);
    *e = (sn_audit_entry){0};
}

static void log_fini(sn_audit_log *l) {
    sn_chain_close(&l->auditor);
    for (size_t k = 0; k < l->n; k++) entry_fini(&l->entries[k]);
    free(l->entries);
    free(l->history);
}

void sn_audit_free(sn_audit **audit) {
    sn_audit *a = *audit;
    if (!a) return;
    for (size_t i = 0; i < a->n_logs; i++) log_fini(&a->logs[i]);
    for (size_t i = 0; i < SN_AUDIT_ANNOUNCEMENTS_MAX; i++) free(a->announcements[i].sealed.data);
    free(a);
    *audit = NULL;
}

bool sn_audit_is_banned(void *ctx, const uint8_t node[SN_KEY_SIZE]) {
    const sn_audit *a = ctx;
    for (size_t i = 0; i < a->n_banned && i < SN_AUDIT_BANNED_MAX; i++)
        if (!memcmp(a->banned[i], node, SN_KEY_SIZE)) return true;
    return false;
}

sn_audit_report sn_audit_get_report(const sn_audit *audit) {
    sn_audit_report report = audit->report;
    report.seed = audit->options.seed;
    for (size_t i = 0; i < audit->n_logs; i++) {
        report.unchecked += audit->logs[i].n;
        if (audit->logs[i].auditor_failed) report.unchecked_failed += audit->logs[i].n;
    }
    return report;
}

/* -- what is unchecked ------------------------------------------------------------------------------------------------
 */

/* The position after the newest step. */
static int log_end(const sn_audit_log *l) {
    return l->n ? l->entries[l->n - 1].position + l->entries[l->n - 1].n : l->length;
}

/* A step goes unchecked. position: its first one. */
static void audit_give_up(sn_audit *a, int position, bool failed) {
    a->report.unchecked++;
    if (a->given_up_from > position) a->given_up_from = position;
    if (failed) a->report.unchecked_failed++;
    if (failed && a->failed_from > position) a->failed_from = position;
}

static void audit_give_up_entry(sn_audit *a, const sn_audit_log *l, const sn_audit_entry *e) {
    audit_give_up(a, e->past ? INT_MAX : e->position, l->auditor_failed);
}

/* What a node computes behind a position has its keys and values from the steps before it: a timeline with one that is
 * unchecked stays so until the session goes back to before it. */
static void audit_rewind(void *ctx, int position) {
    sn_audit *a = ctx;
    if (a->given_up_from >= position) a->given_up_from = INT_MAX;
    if (a->failed_from >= position) a->failed_from = INT_MAX;
    for (size_t i = 0; i < a->n_logs; i++) {
        sn_audit_log *l = &a->logs[i];
        for (size_t k = 0; k < l->n && log_end(l) > position; k++)
            if (l->entries[k].position >= position) l->entries[k].past = true;
    }
}

/* Whether a step of the timeline waits for a check. failed: one whose auditors failed. */
static bool audit_waits(const sn_audit *a, bool failed) {
    for (size_t i = 0; i < a->n_logs; i++) {
        const sn_audit_log *l = &a->logs[i];
        for (size_t k = 0; k < l->n && (l->auditor_failed || !failed); k++)
            if (!l->entries[k].past) return true;
    }
    return false;
}

bool sn_audit_timeline_is_checked(const sn_audit *a) { return a->given_up_from == INT_MAX && !audit_waits(a, false); }

static bool audit_is_incomplete(void *ctx) {
    const sn_audit *a = ctx;
    return a->failed_from < INT_MAX || audit_waits(a, true);
}

/* -- noting steps -----------------------------------------------------------------------------------------------------
 */

/* A node that does not know the seed cannot tell which steps are checked. */
static bool audit_draws_check(sn_audit *a) { return sn_rng_uniform(&a->rng_state) < a->options.share; }

/* Writes n rows at `position` (<= length) and drops what followed. */
static sn_status log_append_history(const sn_audit *a, sn_audit_log *l, int position, int n, const float *rows,
                                    sn_err *err) {
    size_t width = (size_t)a->hp->n_embd;
    SN_TRY(sn_grow(&l->history, &l->history_capacity, (size_t)(position + n), width * sizeof *rows, err));
    memcpy(l->history + (size_t)position * width, rows, (size_t)n * width * sizeof *rows);
    l->length = position + n;
    return SN_OK;
}

/* Entries that are left count as unchecked. */
static void audit_drop_log(sn_audit *a, size_t i) {
    sn_audit_log *l = &a->logs[i];
    for (size_t k = 0; k < l->n; k++) audit_give_up_entry(a, l, &l->entries[k]);
    log_fini(l);
    a->log_in_check = NULL;
    memmove(l, l + 1, (--a->n_logs - i) * sizeof *l);
}

/* The session does the blocks of [first, end) in this range now. Other ranges with some of them are left: what waits
 * there is checked soon, and what is checked is given up, so that nodes which fail one after the other neither fill the
 * memory with histories nor the places of logs. */
static void audit_leave_logs(sn_audit *a, int first, int end) {
    for (size_t i = a->n_logs; i-- > 0;) {
        sn_audit_log *l = &a->logs[i];
        bool same = l->first == first && l->end == end;
        if (same || l->first >= end || l->end <= first) continue;
        l->left = l->due = true;
        if (!l->n) audit_drop_log(a, i);
    }
}

/* The log of the range; a new one where there is none. When all places are taken, the oldest that was left goes; NULL:
 * there is none. */
static sn_audit_log *audit_find_log(sn_audit *a, const sn_hop *hops, size_t n_hops) {
    int first = hops[0].first, end = hops[n_hops - 1].end;
    size_t oldest = 0;
    audit_leave_logs(a, first, end);
    for (size_t i = 0; i < a->n_logs; i++) {
        if (a->logs[i].first != first || a->logs[i].end != end) continue;
        a->logs[i].left = false;
        return &a->logs[i];
    }
    while (oldest < a->n_logs && !a->logs[oldest].left) oldest++;
    if (a->n_logs == SN_AUDIT_LOGS_MAX && oldest == a->n_logs) return NULL;
    if (a->n_logs == SN_AUDIT_LOGS_MAX) audit_drop_log(a, oldest);
    sn_audit_log *l = &a->logs[a->n_logs++];
    *l = (sn_audit_log){.first = first, .end = end};
    return l;
}

/* The kept announcement of a node; NULL: none. */
static const sn_blob *audit_find_announcement(const sn_audit *a, const uint8_t node[SN_KEY_SIZE]) {
    for (size_t i = 0; i < a->n_announcements && i < SN_AUDIT_ANNOUNCEMENTS_MAX; i++)
        if (!memcmp(a->announcements[i].node, node, SN_KEY_SIZE)) return &a->announcements[i].sealed;
    return NULL;
}

/* Keeps the announcement of the hop's node. */
static sn_status audit_keep_announcement(sn_audit *a, const sn_hop *hop, sn_err *err) {
    const sn_directory *d = a->options.link ? sn_link_directory(a->options.link) : NULL;
    sn_status status = SN_OK;
    if (audit_find_announcement(a, hop->remote.node)) return SN_OK;
    for (size_t i = 0; d && i < sn_directory_count(d); i++) {
        const sn_blob *sealed = sn_directory_sealed_at(d, i);
        if (memcmp(sn_directory_at(d, i)->node, hop->remote.node, SN_KEY_SIZE)) continue;
        sn_audit_announcement *kept = &a->announcements[a->n_announcements++ % SN_AUDIT_ANNOUNCEMENTS_MAX];
        free(kept->sealed.data);
        *kept = (sn_audit_announcement){0};
        memcpy(kept->node, hop->remote.node, SN_KEY_SIZE);
        if ((status = sn_calloc(&kept->sealed.data, sealed->len, 1, err))) return status;
        memcpy(kept->sealed.data, sealed->data, sealed->len);
        kept->sealed.len = sealed->len;
        break;
    }
    return status;
}

/* The first entry is not needed any more. */
static void log_remove_first(sn_audit_log *l) {
    l->rows -= (size_t)l->entries[0].n;
    entry_fini(&l->entries[0]);
    memmove(l->entries, l->entries + 1, --l->n * sizeof *l->entries);
}

/* Gives up checking the oldest entry: its rows become history. The auditor is closed, because the next one begins with
 * the whole history. */
static sn_status log_skip_oldest(sn_audit *a, sn_audit_log *l, sn_err *err) {
    sn_audit_entry *e = &l->entries[0];
    sn_chain_close(&l->auditor);
    sn_status status = e->position <= l->length ? log_append_history(a, l, e->position, e->n, e->rows, err) : SN_OK;
    audit_give_up_entry(a, l, e);
    log_remove_first(l);
    return status;
}

static sn_status entry_init(sn_audit_entry *e, const sn_hop *hops, size_t n_hops, const sn_step *step, sn_err *err) {
    size_t size = (size_t)step->n * (size_t)step->n_embd;
    const sn_receipt *last = &hops[n_hops - 1].remote.last_receipt;
    *e = (sn_audit_entry){.position = step->position, .n = step->n, .n_hops = n_hops, .exact = true};
    e->output = last->output;
    e->output_dtype = (sn_dtype)last->output_dtype;
    for (size_t i = 0; i < n_hops; i++) e->exact = e->exact && hops[i].remote.last_receipt.device == SN_RECEIPT_EXACT;
    sn_status status = sn_calloc(&e->receipts, n_hops, SN_RECEIPT_SIZE, err);
    if (!status) status = sn_calloc(&e->rows, size, sizeof *e->rows, err);
    if (!status) status = sn_calloc(&e->outputs, size, sizeof *e->outputs, err);
    if (status) {
        entry_fini(e);
        return status;
    }
    for (size_t i = 0; i < n_hops; i++)
        memcpy(e->receipts + i * SN_RECEIPT_SIZE, hops[i].remote.receipt, SN_RECEIPT_SIZE);
    memcpy(e->rows, step->in, size * sizeof *e->rows);
    memcpy(e->outputs, step->out, size * sizeof *e->outputs);
    return SN_OK;
}

/* How many rows may wait for a check in a log. */
static size_t audit_rows_max(const sn_audit *a) { return 2 * (size_t)a->longest + CHECK_ROWS_MAX; }

/* After a check: of a log with too many rows half of them wait on, at least a whole timeline. Of those that were left
 * the oldest go. */
static sn_status audit_trim(sn_audit *a, sn_err *err) {
    size_t most = audit_rows_max(a), left = 0;
    for (size_t i = 0; i < a->n_logs; i++) {
        bool full = a->logs[i].rows > most;
        while (full && a->logs[i].rows > most / 2) {
            sn_status status = log_skip_oldest(a, &a->logs[i], err);
            if (status) return status;
        }
    }
    for (size_t i = a->n_logs; i-- > 0;) {
        if (!a->logs[i].left) continue;
        left += a->logs[i].rows + (size_t)a->logs[i].length;
        if (left > 2 * most) audit_drop_log(a, i);
    }
    return SN_OK;
}

static sn_status audit_note_step(void *ctx, const sn_hop *hops, size_t n_hops, const sn_step *step, sn_err *err) {
    sn_audit *a = ctx;
    sn_audit_log *l = audit_find_log(a, hops, n_hops);
    a->report.steps++;
    if (!l) {
        audit_give_up(a, step->position, false);
        return SN_OK;
    }
    /* The session may have begun with KV pages from elsewhere. Where the hop knows their inputs, these are the history.
     */
    sn_status status = SN_OK;
    if (step->position > log_end(l)) {
        if (l->n || !sn_hop_can_replay(&hops[0], 0)) {
            audit_give_up(a, step->position, false);
            l->due = l->n > 0; /* without entries the history can begin anew */
            return SN_OK;
        }
        sn_chain_close(&l->auditor);
        float *before = NULL;
        status = sn_calloc(&before, (size_t)step->position * (size_t)step->n_embd, sizeof *before, err);
        if (!status) status = sn_hop_inputs(&hops[0], 0, step->position, step->n_embd, before, err);
        if (!status) status = log_append_history(a, l, 0, step->position, before, err);
        free(before);
    }
    if (!status && l->n == PENDING_MAX) status = log_skip_oldest(a, l, err);
    if (!status) status = sn_grow(&l->entries, &l->capacity, l->n + 1, sizeof *l->entries, err);
    for (size_t i = 0; i < n_hops && !status; i++) status = audit_keep_announcement(a, &hops[i], err);
    if (!status) status = entry_init(&l->entries[l->n], hops, n_hops, step, err);
    if (status) return status;
    l->n++;
    l->rows += (size_t)step->n;
    if (a->longest < step->position + step->n) a->longest = step->position + step->n;
    if (audit_draws_check(a)) {
        l->due = true;
        a->report.checks++;
    }
    return SN_OK;
}

/* -- who may check a log
 * -------------------------------------------------------------------------------------------------
 */

static const int64_t FAILED_US = 60000000; /* how long a node that failed is not asked again */

static const uint8_t *entry_signer(const sn_audit_entry *e, size_t hop) {
    return e->receipts + hop * SN_RECEIPT_SIZE + 16;
}

/* Whether the node signed an entry of the log: it may then not check it. */
static bool log_has_signer(const sn_audit_log *l, const uint8_t node[SN_KEY_SIZE]) {
    for (size_t i = 0; i < l->n; i++)
        for (size_t k = 0; k < l->entries[i].n_hops; k++)
            if (!memcmp(entry_signer(&l->entries[i], k), node, SN_KEY_SIZE)) return true;
    return false;
}

static bool audit_avoids_node(void *ctx, const uint8_t node[SN_KEY_SIZE]) {
    const sn_audit *a = ctx;
    int64_t now_us = sn_now_us();
    for (size_t i = 0; i < a->n_excluded; i++)
        if (!memcmp(a->excluded[i], node, SN_KEY_SIZE)) return true;
    for (size_t i = 0; i < a->n_avoided && i < SN_AUDIT_AVOIDED_MAX; i++)
        if (a->avoided[i].until_us > now_us && !memcmp(a->avoided[i].node, node, SN_KEY_SIZE)) return true;
    return sn_audit_is_banned(ctx, node) || (a->log_in_check && log_has_signer(a->log_in_check, node));
}

/* The node is no auditor until then. */
static void audit_avoid(sn_audit *a, const uint8_t node[SN_KEY_SIZE], int64_t until_us) {
    sn_audit_avoided *avoided = &a->avoided[a->n_avoided++ % SN_AUDIT_AVOIDED_MAX];
    avoided->until_us = until_us;
    memcpy(avoided->node, node, SN_KEY_SIZE);
}

/* Nodes that failed may be auditors again, but not those that were wrong. false: there are none. */
static bool audit_forgive_failures(sn_audit *a) {
    int64_t now_us = sn_now_us();
    bool any = false;
    for (size_t i = 0; i < SN_AUDIT_AVOIDED_MAX; i++) {
        if (a->avoided[i].until_us <= now_us || a->avoided[i].until_us == INT64_MAX) continue;
        a->avoided[i].until_us = 0;
        any = true;
    }
    return any;
}

static void audit_note_failure(void *ctx, const uint8_t node[SN_KEY_SIZE]) {
    audit_avoid(ctx, node, sn_now_us() + FAILED_US);
}

static bool audit_holds_blocks(const sn_audit *a, const sn_audit_log *l) {
    for (int b = l->first; b < l->end; b++)
        if (!sn_model_holds_block(a->options.model, b)) return false;
    return a->options.device != NULL;
}

/* Opens a chain over the log's blocks that uses none of the nodes that the log is about. local: on this machine. */
static sn_status audit_open_chain(sn_audit *a, const sn_audit_log *l, const sn_chain *audited, bool local,
                                  const bool *cut_at, sn_chain **out, sn_err *err) {
    sn_chain_options options = sn_chain_twin_options(audited, l->first, l->end);
    if (a->options.max_tokens) /* the history has the virtual tokens */
        options.max_tokens = a->options.max_tokens + sn_chain_get_adapter(audited)->n_prompt;
    options.limits.timeout_ms = a->options.timeout_ms;
    options.verification.receipts = true;
    options.routing.cut_at = cut_at;
    options.routing.node_filter = a->options.node_filter;
    options.routing.avoid = audit_avoids_node;
    options.routing.note_failure = audit_note_failure;
    options.routing.avoid_ctx = a;
    if (local && !audit_holds_blocks(a, l))
        return sn_fail(err, SN_RETRY, "the model's file here does not hold blocks %d:%d", l->first, l->end);
    if (local)
        options.local = (sn_chain_local){.device = a->options.device, .first = l->first, .end = l->end};
    else
        options.link = a->options.link;
    a->log_in_check = l;
    return sn_chain_open(a->options.model, &options, out, err);
}

/* Whether a node of the log's auditor may no longer be one, for example because it has signed an entry meanwhile. */
static bool auditor_is_avoided(sn_audit *a, const sn_audit_log *l) {
    size_t n;
    const sn_hop *hops = sn_chain_route_hops(l->auditor, &n);
    a->log_in_check = l;
    for (size_t i = 0; i < n; i++)
        if (!hops[i].is_local && audit_avoids_node(a, hops[i].remote.node)) return true;
    return false;
}

/* -- disputes
 * ------------------------------------------------------------------------------------------------------------
 */

typedef enum audit_outcome {
    AUDIT_PASSED,    /* no answer is known to be wrong */
    AUDIT_FAILED,    /* the answer of the log's first entry is wrong */
    AUDIT_UNDECIDED, /* it may be wrong: two answers differ, and there is no arbiter */
} audit_outcome;

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
                       .is_long = sn_chain_is_long(audited),
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
        status = sn_evidence_add(e, sealed, audit_find_announcement(d->a, sealed + 16),
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
        if (i == wrong || !d->answered) audit_avoid(d->a, d->auditors[i].node, INT64_MAX);
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
        if (!status) status = audit_keep_announcement(d->a, &hops[i], err);
        if (!status)
            status = sn_evidence_add(&d->evidence, remote->receipt, audit_find_announcement(d->a, remote->node),
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
    sn_status status = audit_open_chain(a, d->log, audited, true, cut_at, out, err);
    if (status != SN_RETRY) return status;
    d->local = false;
    dispute_exclude_auditor(d); /* other nodes may have taken over meanwhile */
    return a->options.link ? audit_open_chain(a, d->log, audited, false, cut_at, out, err) : status;
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
static audit_outcome dispute_decide_first(dispute *d) {
    size_t i = 0;
    while (d->verdicts[i].kind == SN_VERDICT_CORRECT) i++;
    const sn_statement *s = &d->evidence.statements[i];
    d->a->apart = s->receipt.device != SN_RECEIPT_EXACT && d->entry->n_hops > 1;
    if (!i && !d->a->apart) return AUDIT_UNDECIDED; /* its input and its timeline are the client's own */
    if (!d->a->apart) audit_ban(d->a, s, d->verdicts[i].why);
    return AUDIT_FAILED;
}

static audit_outcome dispute_decide(dispute *d) {
    size_t n = d->entry->n_hops, all = d->evidence.n;
    bool accused = dispute_has_wrong(d, 0, n), auditor = dispute_has_wrong(d, n, all);
    if (accused && (auditor || all == n) && !d->local) return AUDIT_UNDECIDED; /* no two answers agree */
    if (auditor) dispute_ban_wrong(d, n, all);
    if (accused) {
        dispute_ban_wrong(d, 0, n);
        return AUDIT_FAILED;
    }
    if (auditor || d->verdicts[n - 1].kind == SN_VERDICT_CORRECT) return AUDIT_PASSED;
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

/* The auditor's answer differs from the one of the nodes of the log's first entry. Finds out which is right, saves
 * evidence, and bans the nodes that are wrong. On AUDIT_PASSED the auditor was wrong: it is closed, and the node that
 * gave the wrong answer is avoided, or all of the auditor's where it is not known. */
static sn_status audit_dispute(sn_audit *a, sn_audit_log *l, const sn_chain *audited, audit_outcome *out, sn_err *err) {
    dispute *d = NULL;
    sn_status status = sn_calloc(&d, 1, sizeof *d, err);
    if (status) return status;
    d->a = a;
    d->log = l;
    d->entry = &l->entries[0];
    d->banned_before = a->report.nodes_banned;
    dispute_exclude_auditor(d);
    *out = AUDIT_UNDECIDED; /* whatever fails from here on: the answers differ, so the entry has not passed */
    status = dispute_note_auditor(d, err);
    if (!status) status = dispute_begin(d, audited, err);
    if (!status) status = dispute_add_auditor(d, err);
    if (!status) status = dispute_ask_arbiter(d, audited, err);
    if (!status) *out = dispute_decide(d);
    if (status != SN_STOP) status = SN_OK;
    /* An auditor that gives a wrong answer once, and the right one when it signs it, is not proven wrong. */
    if (*out == AUDIT_PASSED) dispute_avoid_auditor(d);
    a->n_excluded = 0;
    if (!status && (*out == AUDIT_UNDECIDED || a->report.nodes_banned > d->banned_before)) dispute_save_evidence(d);
    if (!status && *out == AUDIT_UNDECIDED)
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
    if (*out != AUDIT_FAILED) sn_chain_close(&l->auditor);
    sn_evidence_fini(&d->evidence);
    for (size_t i = 0; i < d->n_auditors; i++) free(d->auditors[i].passed);
    free(d);
    return status;
}

/* -- checking ---------------------------------------------------------------------------------------------------------
 */

/* Opens an auditor, if there is none, and brings it to the log's position. */
static sn_status log_ensure_auditor(sn_audit *a, sn_audit_log *l, const sn_chain *audited, float *scratch,
                                    sn_err *err) {
    if (l->auditor && auditor_is_avoided(a, l)) sn_chain_close(&l->auditor);
    a->log_in_check = l; /* the auditor may have to replace nodes of its own */
    if (l->auditor) return SN_OK;
    sn_status status = audit_open_chain(a, l, audited, a->options.local, NULL, &l->auditor, err);
    for (int at = 0, n; at < l->length && !status; at += n) {
        n = l->length - at < CHECK_ROWS_MAX ? l->length - at : CHECK_ROWS_MAX;
        status = sn_chain_step(l->auditor, at, n, l->history + (size_t)at * (size_t)a->hp->n_embd, scratch, err);
    }
    return status;
}

static bool auditor_is_exact(const sn_chain *auditor) {
    size_t n;
    const sn_hop *hops = sn_chain_route_hops(auditor, &n);
    for (size_t i = 0; i < n; i++) /* local blocks are on a CPU */
        if (!hops[i].is_local && hops[i].remote.last_receipt.device != SN_RECEIPT_EXACT) return false;
    return true;
}

/* Whether the auditor's rows agree with the answer of the entry's nodes. */
static bool entry_matches(const sn_audit *a, const sn_audit_entry *e, const sn_chain *auditor, const float *rows) {
    sn_hash hash;
    bool exact =
        e->exact && auditor_is_exact(auditor) && !sn_rows_hash(rows, e->n, a->hp->n_embd, e->output_dtype, &hash, NULL);
    return exact ? !memcmp(&hash, &e->output, sizeof hash) : sn_rows_close(e->outputs, rows, e->n, a->hp->n_embd);
}

/* How many of the first entries follow each other without a rewind and fit in one chunk. *rows: theirs, together. */
static size_t log_run_length(const sn_audit_log *l, int *rows) {
    size_t k = 0;
    for (*rows = 0; k < l->n; k++) {
        const sn_audit_entry *e = &l->entries[k];
        if (k && (e->position != l->entries[0].position + *rows || *rows + e->n > CHECK_ROWS_MAX)) break;
        *rows += e->n;
    }
    return k;
}

/* The first entry was checked and is right: its rows become history. */
static sn_status log_settle_entry(sn_audit *a, sn_audit_log *l, sn_err *err) {
    sn_audit_entry *e = &l->entries[0];
    sn_status status = log_append_history(a, l, e->position, e->n, e->rows, err);
    log_remove_first(l);
    a->report.checked++;
    return status;
}

/* After a wrong answer the entries that follow are not checked: the chain drops all positions from the returned one on.
 * After a rewind that is not the first entry's. */
static int log_drop_entries(sn_audit_log *l) {
    int from = l->entries[0].position;
    for (size_t i = 0; i < l->n; i++) {
        if (l->entries[i].position < from) from = l->entries[i].position;
        entry_fini(&l->entries[i]);
    }
    l->n = l->rows = 0;
    l->auditor_failed = false;
    return from;
}

/* Runs the first entries that follow each other through the auditor. When *outcome is not AUDIT_PASSED, it is about
 * the entry that is then the log's first one. */
static sn_status log_check_run(sn_audit *a, sn_audit_log *l, const sn_chain *audited, float *in, float *out,
                               audit_outcome *outcome, sn_err *err) {
    int rows, position = l->entries[0].position;
    size_t width = (size_t)a->hp->n_embd, k = log_run_length(l, &rows);
    if (position > l->length) /* cannot happen: audit_note_step takes no such step */
        return sn_fail(err, SN_RETRY, "steps are missing before position %d", position);
    for (size_t i = 0, at = 0; i < k; at += (size_t)l->entries[i++].n * width)
        memcpy(in + at, l->entries[i].rows, (size_t)l->entries[i].n * width * sizeof *in);
    uint64_t failovers = sn_chain_failovers(l->auditor);
    sn_status status = sn_chain_step(l->auditor, position, rows, in, out, err);
    l->auditor_changed = sn_chain_failovers(l->auditor) != failovers;
    for (size_t at = 0; k-- && !status;) {
        size_t size = (size_t)l->entries[0].n * width;
        if (!entry_matches(a, &l->entries[0], l->auditor, out + at)) return audit_dispute(a, l, audited, outcome, err);
        status = log_settle_entry(a, l, err);
        at += size;
    }
    return status;
}

/* Has the log's auditor check the entries. auditor_failed: entries are left, and that is not only because no other node
 * has ever served their blocks. */
static sn_status log_try_auditor(sn_audit *a, sn_audit_log *l, const sn_chain *audited, float *in, float *out,
                                 audit_outcome *outcome, sn_err *err) {
    sn_status status = log_ensure_auditor(a, l, audited, out, err);
    bool found = l->auditor != NULL;
    while (!status && l->n && l->auditor && *outcome == AUDIT_PASSED)
        status = log_check_run(a, l, audited, in, out, outcome, err);
    if (status) sn_chain_close(&l->auditor);
    l->auditor_failed = l->n && (!status || found || a->n_avoided);
    return status;
}

/* Checks all entries of the log. A wrong auditor is replaced by another one; one that fails only where `all` are to be
 * checked now, since a later check does it else; and when there are no others, those that failed are asked once more.
 * After the first one the others share the time of one call. An error is the reason why entries are left. */
static sn_status log_check(sn_audit *a, sn_audit_log *l, const sn_chain *audited, bool all, audit_outcome *outcome,
                           sn_err *err) {
    float *in = NULL, *out = NULL;
    size_t size = (size_t)CHECK_ROWS_MAX * (size_t)a->hp->n_embd;
    sn_status status = sn_calloc(&in, size, sizeof *in, err);
    if (!status) status = sn_calloc(&out, size, sizeof *out, err);
    int64_t until_us = INT64_MAX;
    for (int tried = 0; !status && l->n && *outcome == AUDIT_PASSED;) {
        size_t avoided = a->n_avoided;
        status = log_try_auditor(a, l, audited, in, out, outcome, err);
        bool another = l->n != 0;
        if (status) another = all && status != SN_STOP && (a->n_avoided > avoided || audit_forgive_failures(a));
        if (!tried++) until_us = sn_now_us() + (int64_t)a->options.timeout_ms * 1000;
        if (!another || *outcome != AUDIT_PASSED) break;
        status = SN_OK;
        if (tried == AUDITORS_MAX || sn_now_us() > until_us)
            status = sn_fail(err, SN_RETRY, "%d auditors failed or gave wrong results", tried);
    }
    l->due = status != SN_OK;
    free(in);
    free(out);
    return status;
}

int64_t sn_audit_pause_us(size_t n_logs, int64_t spent_us) {
    int64_t pause_us = (3 * (int64_t)n_logs - 1) * spent_us;
    return pause_us > AUDITOR_RETRY_US ? pause_us : AUDITOR_RETRY_US;
}

/* Whether the log is checked now. No auditor was found a short time ago? Where one was, and failed, another one may
 * check what would go. */
static bool log_is_to_be_checked(const sn_audit *a, const sn_audit_log *l, bool all) {
    const bool full = l->rows > audit_rows_max(a);
    const bool wait = !all && !l->auditor && sn_now_us() < l->retry_us && !(full && l->auditor_failed);
    return l->n && (l->due || full || all) && !wait;
}

static bool audit_is_due(void *ctx) {
    const sn_audit *a = ctx;
    size_t i = 0;
    while (i < a->n_logs && !log_is_to_be_checked(a, &a->logs[i], false)) i++;
    return i < a->n_logs;
}

static sn_status audit_check(void *ctx, const sn_chain *audited, bool all, sn_finding *out, sn_err *err) {
    sn_audit *a = ctx;
    sn_err later;
    *out = (sn_finding){.wrong_from = -1};
    a->apart = false;
    for (size_t i = 0; i < a->n_logs && out->wrong_from < 0; i++) {
        sn_audit_log *l = &a->logs[i];
        audit_outcome outcome = AUDIT_PASSED;
        if (!log_is_to_be_checked(a, l, all)) continue;
        int64_t began_us = sn_now_us();
        sn_status status = log_check(a, l, audited, all, &outcome, &later);
        if (status == SN_STOP) return sn_fail(err, SN_STOP, "%s", later.text);
        if (status) { /* another auditor is tried later */
            l->retry_us = sn_now_us() + sn_audit_pause_us(a->n_logs, sn_now_us() - began_us);
            sn_log(SN_LOG_WARN, "audit check postponed", "blocks=%d:%d text=%s", l->first, l->end, later.text);
        }
        if (outcome == AUDIT_PASSED) continue;
        *out = (sn_finding){log_drop_entries(l), a->apart};
        if (outcome == AUDIT_UNDECIDED) return sn_fail(err, SN_RETRY, "%s", a->report.verdict);
    }
    return out->wrong_from < 0 ? audit_trim(a, err) : SN_OK;
}

static const char *audit_verdict(void *ctx) { return ((sn_audit *)ctx)->report.verdict; }

sn_verifier sn_audit_verifier(sn_audit *audit) {
    if (!audit) return (sn_verifier){0};
    return (sn_verifier){.ctx = audit,
                         .note_step = audit_note_step,
                         .rewind = audit_rewind,
                         .check = audit_check,
                         .is_due = audit_is_due,
                         .is_banned = sn_audit_is_banned,
                         .is_incomplete = audit_is_incomplete,
                         .verdict = audit_verdict};
}
