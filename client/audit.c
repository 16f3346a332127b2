#include "client/audit_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "client/chain_private.h"

#include <stdlib.h>
#include <string.h>

enum {
    PENDING_MAX = 4096,         /* steps kept for a check; what cannot be checked in time goes unchecked */
    CHUNK = 4 * SN_SPAN_ROWS_MAX, /* rows that go to the auditor at once */
    LOOK_AGAIN_US = 60000000,   /* for an auditor, after none was found */
};

sn_status sn_audit_new(const sn_audit_options *options, sn_audit **out, sn_err *err) {
    sn_audit *a = NULL;
    *out = NULL;
    sn_status status = sn_calloc(&a, 1, sizeof *a, err);
    if (status) return status;
    a->options = *options;
    a->hp = sn_model_hparams(options->model);
    a->coin = options->seed;
    *out = a;
    return SN_OK;
}

static void free_entry(sn_audit_entry *e) {
    free(e->receipts);
    free(e->rows);
    free(e->outputs);
    *e = (sn_audit_entry){0};
}

void sn_audit_free(sn_audit **audit) {
    sn_audit *a = *audit;
    if (!a) return;
    for (size_t i = 0; i < a->n_logs; i++) {
        sn_audit_log *l = &a->logs[i];
        sn_chain_close(&l->auditor);
        for (size_t k = 0; k < l->n; k++) free_entry(&l->entries[k]);
        free(l->entries);
        free(l->history);
    }
    for (size_t i = 0; i < SN_AUDIT_VOICES_MAX; i++) free(a->voices[i].sealed.data);
    free(a);
    *audit = NULL;
}

bool sn_audit_caught(void *ctx, const uint8_t node[SN_KEY_SIZE]) {
    const sn_audit *a = ctx;
    for (size_t i = 0; i < a->n_caught && i < SN_CAUGHT_MAX; i++)
        if (!memcmp(a->caught[i], node, SN_KEY_SIZE)) return true;
    return false;
}

sn_audit_report sn_audit_read(const sn_audit *audit) {
    sn_audit_report report = audit->report;
    for (size_t i = 0; i < audit->n_logs; i++) report.unchecked += audit->logs[i].n;
    return report;
}

/* -- what is noted --------------------------------------------------------------------------------------------------- */

/* splitmix64 (Vigna): known to nobody who does not know the seed. */
static bool throw_coin(sn_audit *a) {
    uint64_t z = a->coin += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53 < a->options.share;
}

/* Puts n rows at `position` (<= length), and forgets what lay behind. */
static sn_status remember(const sn_audit *a, sn_audit_log *l, int position, int n, const float *rows, sn_err *err) {
    size_t width = (size_t)a->hp->n_embd, bytes;
    if (position + n > l->history_room) {
        size_t room = (size_t)(position + n) * 3 / 2 + 64;
        if (!sn_mul(room * sizeof *rows, width, &bytes)) return sn_fail(err, SN_STOP, "a timeline is too long");
        float *grown = realloc(l->history, bytes);
        if (!grown) return sn_fail(err, SN_STOP, "out of memory to keep %d tokens for an audit", position + n);
        l->history = grown;
        l->history_room = (int)room;
    }
    memcpy(l->history + (size_t)position * width, rows, (size_t)n * width * sizeof *rows);
    l->length = position + n;
    return SN_OK;
}

static sn_audit_log *find_log(sn_audit *a, const sn_hop_at *hops, size_t n_hops) {
    int first = hops[0].first, end = hops[n_hops - 1].end;
    for (size_t i = 0; i < a->n_logs; i++)
        if (a->logs[i].first == first && a->logs[i].end == end) return &a->logs[i];
    if (a->n_logs == SN_AUDIT_LOGS_MAX) return NULL;
    sn_audit_log *l = &a->logs[a->n_logs++];
    *l = (sn_audit_log){.first = first, .end = end};
    return l;
}

const sn_blob *sn_audit_voice_of(const sn_audit *a, const uint8_t node[SN_KEY_SIZE]) {
    for (size_t i = 0; i < a->n_voices && i < SN_AUDIT_VOICES_MAX; i++)
        if (!memcmp(a->voices[i].node, node, SN_KEY_SIZE)) return &a->voices[i].sealed;
    return NULL;
}

sn_status sn_audit_listen(sn_audit *a, const sn_hop_at *hop, sn_err *err) {
    const sn_directory *d = a->options.link ? sn_link_directory(a->options.link) : NULL;
    sn_status status = SN_OK;
    if (sn_audit_voice_of(a, hop->node)) return SN_OK;
    for (size_t i = 0; d && i < sn_directory_count(d); i++) {
        const sn_blob *sealed = sn_directory_sealed_at(d, i);
        if (memcmp(sn_directory_at(d, i)->node, hop->node, SN_KEY_SIZE)) continue;
        sn_audit_voice *voice = &a->voices[a->n_voices++ % SN_AUDIT_VOICES_MAX];
        free(voice->sealed.data);
        *voice = (sn_audit_voice){0};
        memcpy(voice->node, hop->node, SN_KEY_SIZE);
        if ((status = sn_calloc(&voice->sealed.data, sealed->len, 1, err))) return status;
        memcpy(voice->sealed.data, sealed->data, sealed->len);
        voice->sealed.len = sealed->len;
        break;
    }
    return status;
}

/* The oldest step goes unchecked: its rows only become part of the past. */
static sn_status pass_by(sn_audit *a, sn_audit_log *l, sn_err *err) {
    sn_audit_entry *e = &l->entries[0];
    sn_chain_close(&l->auditor); /* another one begins with the whole past */
    sn_status status = e->position <= l->length ? remember(a, l, e->position, e->n, e->rows, err) : SN_OK;
    free_entry(e);
    memmove(l->entries, l->entries + 1, --l->n * sizeof *l->entries);
    a->report.unchecked++;
    return status;
}

static sn_status new_entry(const sn_hop_at *hops, size_t n_hops, int position, int n, size_t width, const float *in,
                           const float *out, sn_audit_entry *e, sn_err *err) {
    size_t size = (size_t)n * width;
    const sn_receipt *last = &hops[n_hops - 1].said;
    *e = (sn_audit_entry){.position = position, .n = n, .n_hops = n_hops, .exact = true};
    e->output = last->output;
    e->output_dtype = (sn_dtype)last->output_dtype;
    for (size_t i = 0; i < n_hops; i++) e->exact = e->exact && hops[i].said.device == SN_RECEIPT_EXACT;
    sn_status status = sn_calloc(&e->receipts, n_hops, SN_RECEIPT_SIZE, err);
    if (!status) status = sn_calloc(&e->rows, size, sizeof *in, err);
    if (!status) status = sn_calloc(&e->outputs, size, sizeof *out, err);
    if (status) {
        free_entry(e);
        return status;
    }
    for (size_t i = 0; i < n_hops; i++) memcpy(e->receipts + i * SN_RECEIPT_SIZE, hops[i].receipt, SN_RECEIPT_SIZE);
    memcpy(e->rows, in, size * sizeof *in);
    memcpy(e->outputs, out, size * sizeof *out);
    return SN_OK;
}

sn_status sn_audit_note(sn_audit *a, const sn_hop_at *hops, size_t n_hops, int position, int n, int n_embd,
                        const float *in, const float *out, sn_err *err) {
    sn_audit_log *l = find_log(a, hops, n_hops);
    a->report.steps++;
    if (!l) {
        a->report.unchecked++;
        return SN_OK;
    }
    /* The session may have come with a past from elsewhere. */
    sn_status status = SN_OK;
    if (!l->n && position > l->length && hops[0].inputs) {
        sn_chain_close(&l->auditor);
        status = remember(a, l, 0, position, hops[0].inputs, err);
    }
    if (!status && l->n == PENDING_MAX) status = pass_by(a, l, err);
    if (!status && l->n == l->room) {
        size_t room = 2 * l->room + 16;
        sn_audit_entry *grown = realloc(l->entries, room * sizeof *grown);
        if (!grown) return sn_fail(err, SN_STOP, "out of memory for an audit");
        l->entries = grown;
        l->room = room;
    }
    for (size_t i = 0; i < n_hops && !status; i++) status = sn_audit_listen(a, &hops[i], err);
    if (!status) status = new_entry(hops, n_hops, position, n, (size_t)n_embd, in, out, &l->entries[l->n], err);
    if (status) return status;
    l->n++;
    if (throw_coin(a)) {
        l->due = true;
        a->report.checks++;
    }
    return SN_OK;
}

/* -- checks ---------------------------------------------------------------------------------------------------------- */

static const uint8_t *signer(const sn_audit_entry *e, size_t hop) { return e->receipts + hop * SN_RECEIPT_SIZE + 16; }

/* A node may not check itself. */
static bool is_party(const sn_audit_log *l, const uint8_t node[SN_KEY_SIZE]) {
    for (size_t i = 0; i < l->n; i++)
        for (size_t k = 0; k < l->entries[i].n_hops; k++)
            if (!memcmp(signer(&l->entries[i], k), node, SN_KEY_SIZE)) return true;
    return false;
}

static bool may_not_check(void *ctx, const uint8_t node[SN_KEY_SIZE]) {
    const sn_audit *a = ctx;
    for (size_t i = 0; i < a->n_third; i++)
        if (!memcmp(a->third[i], node, SN_KEY_SIZE)) return true;
    return sn_audit_caught(ctx, node) || (a->asking && is_party(a->asking, node));
}

static bool has_blocks(const sn_audit *a, const sn_audit_log *l) {
    for (int b = l->first; b < l->end; b++)
        if (!sn_model_has_block(a->options.model, b)) return false;
    return a->options.device != NULL;
}

sn_status sn_audit_open(sn_audit *a, const sn_audit_log *l, const sn_chain *like, bool here, const bool *cut_at,
                        sn_chain **out, sn_err *err) {
    sn_chain_options options = {.first = l->first,
                                .end = l->end,
                                .kv_dtype = like->options.kv_dtype,
                                .max_tokens = a->options.max_tokens,
                                .timeout_ms = a->options.timeout_ms,
                                .receipts = true,
                                .cut_at = cut_at,
                                .wire = like->options.wire,
                                .round_at = like->rounds,
                                .pick = a->options.pick,
                                .tuned = like->options.tuned,
                                .avoid = may_not_check,
                                .avoid_ctx = a,
                                .like = like};
    options.tuned.n_prompt = 0; /* virtual tokens stand in the history */
    if (here && !has_blocks(a, l))
        return sn_fail(err, SN_RETRY, "the model's file here does not hold blocks %d:%d", l->first, l->end);
    if (here) {
        options.local_first = l->first;
        options.local_end = l->end;
        options.device = a->options.device;
    } else {
        options.link = a->options.link;
    }
    a->asking = l;
    return sn_chain_open(a->options.model, &options, out, err);
}

static bool auditor_is_party(const sn_audit_log *l) {
    for (size_t i = 0; i < l->auditor->n_hops; i++)
        if (!l->auditor->hops[i].local && is_party(l, l->auditor->hops[i].node)) return true;
    return false;
}

/* An auditor that stands where the log stands. */
static sn_status have_auditor(sn_audit *a, sn_audit_log *l, const sn_chain *like, float *scratch, sn_err *err) {
    if (l->auditor && auditor_is_party(l)) sn_chain_close(&l->auditor);
    a->asking = l; /* it may have to replace nodes of its own on the way */
    if (l->auditor) return SN_OK;
    sn_status status = sn_audit_open(a, l, like, a->options.local, NULL, &l->auditor, err);
    for (int at = 0, n; at < l->length && !status; at += n) {
        n = l->length - at < CHUNK ? l->length - at : CHUNK;
        status = sn_chain_step(l->auditor, at, n, l->history + (size_t)at * (size_t)a->hp->n_embd, scratch, err);
    }
    return status;
}

static bool is_exact(const sn_chain *auditor) {
    for (size_t i = 0; i < auditor->n_hops; i++) /* what is local is on a CPU */
        if (!auditor->hops[i].local && auditor->hops[i].said.device != SN_RECEIPT_EXACT) return false;
    return true;
}

/* Whether the rows of the auditor bear out what the entry's nodes answered. */
static bool bears_out(const sn_audit *a, const sn_audit_entry *e, const sn_chain *auditor, const float *rows) {
    sn_hash hash;
    bool exact = e->exact && is_exact(auditor) && !sn_rows_hash(rows, e->n, a->hp->n_embd, e->output_dtype, &hash, NULL);
    return exact ? !memcmp(&hash, &e->output, sizeof hash) : sn_rows_close(e->outputs, rows, e->n, a->hp->n_embd);
}

/* Steps that follow each other without a rewind, from entry `from` on, as far as they fit in a chunk. */
static size_t run_length(const sn_audit_log *l, int *rows) {
    size_t k = 0;
    for (*rows = 0; k < l->n; k++) {
        const sn_audit_entry *e = &l->entries[k];
        if (k && (e->position != l->entries[0].position + *rows || *rows + e->n > CHUNK)) break;
        *rows += e->n;
    }
    return k;
}

static sn_status settle_entry(sn_audit *a, sn_audit_log *l, sn_err *err) {
    sn_audit_entry *e = &l->entries[0];
    sn_status status = remember(a, l, e->position, e->n, e->rows, err);
    free_entry(e);
    memmove(l->entries, l->entries + 1, --l->n * sizeof *l->entries);
    a->report.checked++;
    return status;
}

/* What follows a wrong answer is not looked at any more: the chain will take all of it back. */
static void forget_entries(sn_audit_log *l) {
    for (size_t i = 0; i < l->n; i++) free_entry(&l->entries[i]);
    l->n = 0;
}

/* The first steps of the log that follow each other, through the auditor. *outcome is about the log's first entry when it is
 * not RIGHT. */
static sn_status check_run(sn_audit *a, sn_audit_log *l, const sn_chain *like, float *in, float *out,
                           sn_audit_outcome *outcome, sn_err *err) {
    int rows, position = l->entries[0].position;
    size_t width = (size_t)a->hp->n_embd, k = run_length(l, &rows);
    if (position > l->length) { /* not what a chain does */
        forget_entries(l);
        return sn_fail(err, SN_RETRY, "steps are missing before position %d", position);
    }
    for (size_t i = 0, at = 0; i < k; at += (size_t)l->entries[i++].n * width)
        memcpy(in + at, l->entries[i].rows, (size_t)l->entries[i].n * width * sizeof *in);
    sn_status status = sn_chain_step(l->auditor, position, rows, in, out, err);
    for (size_t at = 0; k-- && !status;) {
        size_t size = (size_t)l->entries[0].n * width;
        if (!bears_out(a, &l->entries[0], l->auditor, out + at)) return sn_audit_dispute(a, l, like, outcome, err);
        status = settle_entry(a, l, err);
        at += size;
    }
    return status;
}

/* Returns what kept it from checking, if anything did. */
static sn_status check_log(sn_audit *a, sn_audit_log *l, const sn_chain *like, sn_audit_outcome *outcome, sn_err *err) {
    float *in = NULL, *out = NULL;
    size_t size = (size_t)CHUNK * (size_t)a->hp->n_embd;
    sn_status status = sn_calloc(&in, size, sizeof *in, err);
    if (!status) status = sn_calloc(&out, size, sizeof *out, err);
    for (int auditors = 0; !status && l->n && *outcome == SN_AUDIT_RIGHT; auditors += !l->auditor) {
        if (auditors > SN_HOPS_MAX) status = sn_fail(err, SN_RETRY, "no auditor answers twice alike");
        if (!status) status = have_auditor(a, l, like, out, err);
        if (!status) status = check_run(a, l, like, in, out, outcome, err);
    }
    l->due = status != SN_OK;
    free(in);
    free(out);
    return status;
}

sn_status sn_audit_check(sn_audit *a, const sn_chain *like, bool all, int *wrong_from, sn_err *err) {
    sn_err later;
    *wrong_from = -1;
    for (size_t i = 0; i < a->n_logs && *wrong_from < 0; i++) {
        sn_audit_log *l = &a->logs[i];
        sn_audit_outcome outcome = SN_AUDIT_RIGHT;
        bool nobody = !l->auditor && sn_now_us() < l->retry_us; /* was there a while ago */
        if (!l->n || (!l->due && !all) || nobody) continue;
        sn_status status = check_log(a, l, like, &outcome, &later);
        if (status == SN_STOP) return sn_fail(err, SN_STOP, "%s", later.text);
        if (status) { /* the auditor is not to be reached: another one, another time */
            sn_chain_close(&l->auditor);
            l->retry_us = sn_now_us() + LOOK_AGAIN_US;
            sn_log(SN_LOG_WARN, "steps cannot be checked now", "blocks=%d:%d text=%s", l->first, l->end, later.text);
        }
        if (outcome == SN_AUDIT_RIGHT) continue;
        *wrong_from = l->entries[0].position;
        forget_entries(l);
        if (outcome == SN_AUDIT_UNDECIDED) return sn_fail(err, SN_RETRY, "%s", a->report.verdict);
    }
    return SN_OK;
}
