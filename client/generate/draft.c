/* Which drafts are proposed, and how many. Each kind of drafts has a record of what was accepted. Where the end of the
 * text occurs earlier, and the source has something to say, too, the kind that was accepted more proposes. A kind of
 * which next to nothing is accepted is left out for a while, which grows to RESTS_MAX proposals: of a text that nobody
 * can draft one forward pass in RESTS_MAX has a useless row. */
#include "client/generate/draft.h"

#include "base/mem.h"

enum { FIRST_LENGTH = 4, COPY = 8, LONG_COPY = 24, RESTS_MAX = 32, MISSES_MAX = 5 };
static const float LOW_RATE = 0.1f;

/* What is expected before anything was judged: long copies are right nearly always, short ones seldom. */
static const float first_rates[SN_DRAFT_KINDS] = {0.6f, 0.3f, 0.6f, 0.95f};

static void set_length(sn_draft *d) {
    d->length = 0;
    for (int kind = 0; kind < SN_DRAFT_KINDS; kind++)
        if (d->records[kind].length > d->length) d->length = d->records[kind].length;
}

sn_draft sn_draft_make(sn_draft_source source, void *ctx, int n_max) {
    sn_draft d = {.source = source, .ctx = ctx, .n_max = (size_t)n_max};
    for (int kind = 0; kind < SN_DRAFT_KINDS; kind++)
        d.records[kind] = (sn_draft_record){first_rates[kind], sn_min_size(d.n_max, FIRST_LENGTH), 0, 0};
    set_length(&d);
    return d;
}

sn_status sn_draft_add_copies(sn_draft *draft, sn_err *err) { return sn_copies_new(&draft->copies, err); }

void sn_draft_fini(sn_draft *draft) {
    sn_copies_free(&draft->copies);
    *draft = (sn_draft){0};
}

/* One that is passed over may be better by now: what is known of it fades. */
static void pass_over(sn_draft *d, int kind) {
    enum { FADES = 64 };
    d->records[kind].rate += (first_rates[kind] - d->records[kind].rate) / FADES;
}

/* Of the kinds that have something to propose; -1: none that does not rest. */
static int choose_kind(sn_draft *d, size_t matched) {
    const int copy = matched >= LONG_COPY ? SN_DRAFT_LONG_COPY : matched >= COPY ? SN_DRAFT_COPY : SN_DRAFT_SHORT_COPY;
    const bool rests[] = {!d->source || d->records[SN_DRAFT_OF_SOURCE].rests, !matched || d->records[copy].rests};
    if (d->source && rests[0]) d->records[SN_DRAFT_OF_SOURCE].rests--;
    if (matched && rests[1]) d->records[copy].rests--;
    if (rests[0] || rests[1]) return !rests[0] ? SN_DRAFT_OF_SOURCE : !rests[1] ? copy : -1;
    const bool copies = d->records[copy].rate >= d->records[SN_DRAFT_OF_SOURCE].rate;
    pass_over(d, copies ? SN_DRAFT_OF_SOURCE : copy);
    return copies ? copy : SN_DRAFT_OF_SOURCE;
}

/* Past the end of the text the repetition continues. */
static void copy_from(const int32_t *ids, size_t n, size_t at, size_t n_max, int32_t *out) {
    for (size_t i = 0; i < n_max; i++) out[i] = at + i < n ? ids[at + i] : out[at + i - n];
}

sn_status sn_draft_propose(sn_draft *d, const int32_t *ids, size_t n, const sn_rng_state *rng_state, size_t capacity,
                           int32_t *out, size_t *n_out, sn_err *err) {
    size_t matched = 0, at = 0;
    *n_out = 0;
    sn_status status = d->copies ? sn_copies_find(d->copies, ids, n, &matched, &at, err) : SN_OK;
    const int kind = choose_kind(d, matched);
    if (status || kind < 0) return status;
    const size_t length = d->records[kind].length, n_max = sn_min_size(length > d->least ? length : d->least, capacity);
    if (n_max && kind == SN_DRAFT_OF_SOURCE) {
        status = d->source(d->ctx, ids, n, rng_state, n_max, out, n_out, err);
    } else {
        copy_from(ids, n, at, n_max, out);
        *n_out = n_max;
    }
    for (size_t i = 0; i < *n_out; i++) d->kinds[(n + i) % SN_DRAFT_PENDING] = (uint8_t)kind;
    return status;
}

/* Doubles the length after a proposal that was accepted whole; else moves it halfway to what was accepted. */
void sn_draft_note_accepted(sn_draft *d, size_t position, size_t n_drafted, size_t n_accepted) {
    enum { FADES = 8 };
    sn_draft_record *r = &d->records[d->kinds[position % SN_DRAFT_PENDING]];
    if (!n_drafted) return;
    const size_t judged = n_accepted + (n_accepted < n_drafted);
    r->rate += ((float)n_accepted / (float)judged - r->rate) / FADES;
    if (n_accepted == n_drafted)
        r->length = sn_min_size(r->length > 2 * n_drafted ? r->length : 2 * n_drafted, d->n_max);
    else
        r->length = (r->length + n_accepted + 1) / 2;
    r->misses = n_accepted || r->rate > LOW_RATE ? 0 : r->misses + (r->misses < MISSES_MAX);
    r->rests = r->misses ? (unsigned)sn_min_size((size_t)1 << r->misses, RESTS_MAX) : 0;
    set_length(d);
}

void sn_draft_forget(sn_draft *draft, size_t n) {
    if (draft->copies) sn_copies_forget(draft->copies, n);
}

sn_status sn_draft_note_rows(sn_draft *draft, const int32_t *ids, size_t n_ids, size_t position, size_t n,
                             const float *rows, sn_err *err) {
    return draft->rows ? draft->rows(draft->ctx, ids, n_ids, position, n, rows, err) : SN_OK;
}
