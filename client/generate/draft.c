#include "client/generate/draft.h"

#include "base/mem.h"

enum { FIRST_LENGTH = 4, NGRAM_MIN = 2, NGRAM_MAX = 32 }; /* tokens */

sn_draft sn_draft_make(sn_draft_source source, void *ctx, int n_max) {
    size_t length = (size_t)n_max;
    return (sn_draft){source, ctx, length, sn_min_size(length, FIRST_LENGTH)};
}

sn_status sn_draft_propose(sn_draft *d, const int32_t *ids, size_t n, const sn_rng_state *rng_state, size_t capacity,
                           int32_t *out, size_t *n_out, sn_err *err) {
    size_t n_max = sn_min_size(d->length, capacity);
    *n_out = 0;
    return n_max ? d->source(d->ctx, ids, n, rng_state, n_max, out, n_out, err) : SN_OK;
}

/* Doubles the length after a proposal that was accepted whole; else moves it halfway to what was accepted. */
void sn_draft_note_accepted(sn_draft *d, size_t n_drafted, size_t n_accepted) {
    if (!n_drafted) return;
    if (n_accepted == n_drafted)
        d->length = sn_min_size(d->length > 2 * n_drafted ? d->length : 2 * n_drafted, d->n_max);
    else
        d->length = (d->length + n_accepted + 1) / 2;
}

sn_status sn_draft_ngram(void *ctx, const int32_t *ids, size_t n, const sn_rng_state *rng_state, size_t n_max,
                         int32_t *out, size_t *n_out, sn_err *err) {
    (void)ctx, (void)rng_state, (void)err;
    size_t best = 0, at = 0;
    for (size_t end = n; --end > 0 && best < NGRAM_MAX;) { /* compares the end of ids[0, end) with the end of ids */
        size_t same = 0;
        while (same < NGRAM_MAX && same < end && ids[end - 1 - same] == ids[n - 1 - same]) same++;
        if (same <= best) continue;
        best = same;
        at = end;
    }
    *n_out = best < NGRAM_MIN ? 0 : n_max;
    for (size_t i = 0; i < *n_out; i++)
        out[i] = at + i < n ? ids[at + i] : out[at + i - n]; /* past the end, the repetition continues */
    return SN_OK;
}
