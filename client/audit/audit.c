/* Noting the steps of nodes, and checking them.
 *
 * For every range of blocks at which steps are done there is a log: the entries that are not checked yet (input,
 * output, receipts) and the history, which is the inputs of all steps before them. A check makes sure that the log has
 * an auditor, a second chain over these blocks at position `length`, brought there with the history. Then it runs the
 * entries through the auditor, several in one chunk where they follow each other, and compares: the hash of the output
 * where all devices are exact and no keys and values came from elsewhere, else the rows within a tolerance
 * (sn_rows_close). An entry that matches becomes history. For one that does not, sn_audit_dispute (dispute.c) decides.
 *
 * A node may not check its own work, and who failed as an auditor is not asked again soon (auditors.c). When no auditor
 * is found, entries wait for a later check, up to PENDING_MAX; beyond that the oldest goes unchecked. So do entries
 * with more rows than two timelines have, after a check was tried: nodes that fail, and prompts that follow each other
 * in one session, would else fill the memory. When auditors were found, but failed or gave wrong results, the audit is
 * incomplete: entries that are left count as such. */
#include "client/audit/audit_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"

#include <limits.h>
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
    size_t width = (size_t)a->hp->n_embd, bytes;
    if (position + n > l->history_capacity) {
        size_t capacity = (size_t)(position + n) * 3 / 2 + 64;
        if (!sn_mul(capacity * sizeof *rows, width, &bytes)) return sn_fail(err, SN_STOP, "a timeline is too long");
        float *grown = realloc(l->history, bytes);
        if (!grown) return sn_fail(err, SN_STOP, "out of memory to keep %d tokens for an audit", position + n);
        l->history = grown;
        l->history_capacity = (int)capacity;
    }
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

const sn_blob *sn_audit_find_announcement(const sn_audit *a, const uint8_t node[SN_KEY_SIZE]) {
    for (size_t i = 0; i < a->n_announcements && i < SN_AUDIT_ANNOUNCEMENTS_MAX; i++)
        if (!memcmp(a->announcements[i].node, node, SN_KEY_SIZE)) return &a->announcements[i].sealed;
    return NULL;
}

sn_status sn_audit_keep_announcement(sn_audit *a, const sn_hop *hop, sn_err *err) {
    const sn_directory *d = a->options.link ? sn_link_directory(a->options.link) : NULL;
    sn_status status = SN_OK;
    if (sn_audit_find_announcement(a, hop->remote.node)) return SN_OK;
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
    if (!status && l->n == l->capacity) {
        size_t capacity = 2 * l->capacity + 16;
        sn_audit_entry *grown = realloc(l->entries, capacity * sizeof *grown);
        if (!grown) return sn_fail(err, SN_STOP, "out of memory for an audit");
        l->entries = grown;
        l->capacity = capacity;
    }
    for (size_t i = 0; i < n_hops && !status; i++) status = sn_audit_keep_announcement(a, &hops[i], err);
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

/* -- checking ---------------------------------------------------------------------------------------------------------
 */

/* Opens an auditor, if there is none, and brings it to the log's position. */
static sn_status log_ensure_auditor(sn_audit *a, sn_audit_log *l, const sn_chain *audited, float *scratch,
                                    sn_err *err) {
    if (l->auditor && sn_audit_auditor_is_avoided(a, l)) sn_chain_close(&l->auditor);
    a->log_in_check = l; /* the auditor may have to replace nodes of its own */
    if (l->auditor) return SN_OK;
    sn_status status = sn_audit_open_chain(a, l, audited, a->options.local, NULL, &l->auditor, err);
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

/* Runs the first entries that follow each other through the auditor. When *outcome is not SN_AUDIT_PASSED, it is about
 * the entry that is then the log's first one. */
static sn_status log_check_run(sn_audit *a, sn_audit_log *l, const sn_chain *audited, float *in, float *out,
                               sn_audit_outcome *outcome, sn_err *err) {
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
        if (!entry_matches(a, &l->entries[0], l->auditor, out + at))
            return sn_audit_dispute(a, l, audited, outcome, err);
        status = log_settle_entry(a, l, err);
        at += size;
    }
    return status;
}

/* Has the log's auditor check the entries. auditor_failed: entries are left, and that is not only because no other node
 * has ever served their blocks. */
static sn_status log_try_auditor(sn_audit *a, sn_audit_log *l, const sn_chain *audited, float *in, float *out,
                                 sn_audit_outcome *outcome, sn_err *err) {
    sn_status status = log_ensure_auditor(a, l, audited, out, err);
    bool found = l->auditor != NULL;
    while (!status && l->n && l->auditor && *outcome == SN_AUDIT_PASSED)
        status = log_check_run(a, l, audited, in, out, outcome, err);
    if (status) sn_chain_close(&l->auditor);
    l->auditor_failed = l->n && (!status || found || a->n_avoided);
    return status;
}

/* Checks all entries of the log. A wrong auditor is replaced by another one; one that fails only where `all` are to be
 * checked now, since a later check does it else; and when there are no others, those that failed are asked once more.
 * After the first one the others share the time of one call. An error is the reason why entries are left. */
static sn_status log_check(sn_audit *a, sn_audit_log *l, const sn_chain *audited, bool all, sn_audit_outcome *outcome,
                           sn_err *err) {
    float *in = NULL, *out = NULL;
    size_t size = (size_t)CHECK_ROWS_MAX * (size_t)a->hp->n_embd;
    sn_status status = sn_calloc(&in, size, sizeof *in, err);
    if (!status) status = sn_calloc(&out, size, sizeof *out, err);
    int64_t until_us = INT64_MAX;
    for (int tried = 0; !status && l->n && *outcome == SN_AUDIT_PASSED;) {
        size_t avoided = a->n_avoided;
        status = log_try_auditor(a, l, audited, in, out, outcome, err);
        bool another = l->n != 0;
        if (status) another = all && status != SN_STOP && (a->n_avoided > avoided || sn_audit_forgive_failures(a));
        if (!tried++) until_us = sn_now_us() + (int64_t)a->options.timeout_ms * 1000;
        if (!another || *outcome != SN_AUDIT_PASSED) break;
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

static sn_status audit_check(void *ctx, const sn_chain *audited, bool all, sn_finding *out, sn_err *err) {
    sn_audit *a = ctx;
    sn_err later;
    *out = (sn_finding){.wrong_from = -1};
    a->apart = false;
    for (size_t i = 0; i < a->n_logs && out->wrong_from < 0; i++) {
        sn_audit_log *l = &a->logs[i];
        sn_audit_outcome outcome = SN_AUDIT_PASSED;
        bool full = l->rows > audit_rows_max(a);
        /* No auditor was found a short time ago; where one was, and failed, another one may check what would go. */
        bool wait = !all && !l->auditor && sn_now_us() < l->retry_us && !(full && l->auditor_failed);
        if (!l->n || !(l->due || full || all) || wait) continue;
        int64_t began_us = sn_now_us();
        sn_status status = log_check(a, l, audited, all, &outcome, &later);
        if (status == SN_STOP) return sn_fail(err, SN_STOP, "%s", later.text);
        if (status) { /* another auditor is tried later */
            l->retry_us = sn_now_us() + sn_audit_pause_us(a->n_logs, sn_now_us() - began_us);
            sn_log(SN_LOG_WARN, "audit check postponed", "blocks=%d:%d text=%s", l->first, l->end, later.text);
        }
        if (outcome == SN_AUDIT_PASSED) continue;
        *out = (sn_finding){log_drop_entries(l), a->apart};
        if (outcome == SN_AUDIT_UNDECIDED) return sn_fail(err, SN_RETRY, "%s", a->report.verdict);
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
                         .is_banned = sn_audit_is_banned,
                         .is_incomplete = audit_is_incomplete,
                         .verdict = audit_verdict};
}
